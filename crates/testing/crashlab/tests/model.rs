//! The engine against the model, which answers as the kernel does; then e2fsck.
//!
//! Environment: `EXTANT_OPS=1000000` makes more operations, `EXTANT_SEED=7` sets another seed,
//! `EXTANT_EACH=1` compares the trees after each operation.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_crashlab::Engine;
use extant_device::FileDevice;
use extant_fsmodel::{Generator, Kernel, Limits, Model, Options, Subject, compare};
use extant_volume::{New, OpenOptions, SetXattr, Volume, WriteOptions};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn make(path: &Path, options: &[&str]) {
    let name = path.to_str().unwrap();
    let args = ["-q", "-F", "-t", "ext4", "-b", "4096"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([name, "256M"]));
}

fn engine(path: &Path) -> Engine {
    Engine::open(Arc::new(FileDevice::open(path, true).unwrap()), WriteOptions::default()).unwrap()
}

fn against_the_model(features: &[&str], options: Options) {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, features);
    let mut engine = engine(&path);
    let limits = options.limits;
    let mut model = Model::new(limits);
    let options = Options { capabilities: false, ..options };
    let mut generator = Generator::new(number("EXTANT_SEED", 1), options);
    let report = compare(
        &mut engine,
        &mut model,
        &mut generator,
        number("EXTANT_OPS", 8000),
        number("EXTANT_EACH", 1000),
    );
    let report = report.unwrap_or_else(|difference| {
        // Finds the shortest list of operations that shows it.
        let mut n = 0;
        let least = extant_fsmodel::shrink(&difference.ops, || {
            n += 1;
            let path = scratch.path().join(format!("again-{n}"));
            let _ = std::fs::remove_file(scratch.path().join(format!("again-{}", n - 1)));
            make(&path, features);
            (self::engine(&path), Model::new(limits))
        });
        let least: Vec<String> = least.iter().map(|op| format!("  {op:?}")).collect();
        panic!("{difference}\nthe least:\n{}", least.join("\n"))
    });
    println!("{report}");
    engine.close().unwrap();
    extant_crashlab::e2fsck_says(&path).unwrap();
}

#[test]
fn plain() {
    against_the_model(&["-O", "metadata_csum_seed,orphan_file"], Options::default());
}

#[test]
fn many_names() {
    let options = Options { many_names: 300, ..Options::default() };
    against_the_model(&["-O", "metadata_csum_seed,orphan_file"], options);
}

#[test]
fn without_checksums() {
    against_the_model(&["-O", "^metadata_csum,^orphan_file"], Options::default());
}

#[test]
fn attributes() {
    against_the_model(&[], Options { mostly_attributes: true, ..Options::default() });
}

#[test]
fn large_values() {
    let limits = Limits { ea_inode: true, ..Limits::default() };
    let options =
        Options { mostly_attributes: true, short_symlinks_with_ea_inodes: true, ..Options::default() };
    against_the_model(&["-O", "ea_inode"], Options { limits, ..options });
}

/// e2fsck 1.47 reads the target of such a link as block numbers, in the kernel's images too. The judge allows
/// for it.
#[test]
fn the_judge_knows_what_e2fsck_says_of_links_with_large_values() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &["-O", "ea_inode"]);
    let volume =
        Volume::open(Arc::new(FileDevice::open(&path, true).unwrap()), &OpenOptions::default()).unwrap();
    for target in [&b"a"[..], b"short", b"a target of more than two words"] {
        let link =
            volume.names().create(Ino::ROOT, &target[..1 + target.len() / 8], &New::symlink(target)).unwrap();
        volume.attributes().set_xattr(link.ino(), b"trusted.a", &[7; 9000], SetXattr::Any).unwrap();
    }
    volume.close().unwrap();
    let said = extant_testkit::command("e2fsck").arg("-fn").arg(&path).output().unwrap();
    println!("{}", String::from_utf8_lossy(&said.stdout));
    extant_crashlab::e2fsck_says(&path).unwrap();
}

/// Ignores times: those that an operation sets are compared with the model.
struct Timeless<S>(S);

impl<S: Subject> Subject for Timeless<S> {
    fn apply(&mut self, op: &extant_fsmodel::Op) -> Result<(), extant_fsmodel::Errno> {
        self.0.apply(op)
    }

    fn tree(&mut self) -> extant_fsmodel::Tree {
        let mut tree = self.0.tree();
        tree.nodes.values_mut().for_each(|node| (node.atime, node.mtime) = (None, None));
        tree
    }
}

#[test]
fn the_kernel_answers_the_same() {
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let scratch = extant_testkit::scratch();
    let (ours, theirs) = (scratch.path().join("ours"), scratch.path().join("theirs"));
    for path in [&ours, &theirs] {
        make(path, &["-O", "metadata_csum_seed,orphan_file"]);
    }
    let mut engine = Timeless(engine(&ours));
    let mount = extant_testkit::LoopMount::new(&theirs, "noatime").unwrap();
    let mut kernel = Kernel::fresh(mount.path(), 0).unwrap();
    let options = Options { capabilities: false, ..Options::default() };
    let mut generator = Generator::new(number("EXTANT_SEED", 1), options);
    let report = compare(&mut engine, &mut kernel, &mut generator, number("EXTANT_OPS", 8000), 2000);
    println!("{}", report.unwrap_or_else(|difference| panic!("{difference}")));
    drop(kernel);
    drop(mount);
    engine.0.close().unwrap();
    extant_testkit::e2fsck_clean(&ours);
    let mut shown =
        Engine::open(Arc::new(FileDevice::open(&theirs, true).unwrap()), WriteOptions::default()).unwrap();
    assert!(!shown.tree().nodes.is_empty(), "what the kernel wrote opens");
    shown.close().unwrap();
    extant_testkit::e2fsck_clean(&theirs);
}
