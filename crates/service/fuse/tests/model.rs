//! Random operations on a read-write mount have the same results, and make the same trees, as on the model.
//! The tests of `fsmodel` compare the model with the kernel's ext4. [`OnFuse`] has the difference between the
//! two that FUSE makes and a server cannot prevent.
//!
//! `EXTANT_OPS` sets the number of operations of each test (20,000 in CI), `EXTANT_SEED` the seed. Needs
//! /dev/fuse, root, and the Linux that `fsmodel` needs (6.6).

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use extant_device::FileDevice;
use extant_fsmodel::{
    At, Bytes, Errno, Generator, Kernel, Limits, Model, Op, Options, Subject, Tree, XattrMode, compare,
    replay, shrink,
};
use extant_fuse::{MountOptions, Mounted, Server, Threads};
use extant_testkit::{e2fsck_clean, is_root, run, scratch};
use extant_volume::{OpenOptions, Volume};

const N_OPS_CI: u64 = 20_000;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// The model as the kernel's FUSE changes a file system: a truncate that is refused because of the size has
/// removed `security.capability`.
///
/// FUSE has no field for the largest size of a file, so the kernel takes any. It removes the attribute
/// (REMOVEXATTR) before it asks for the new size (SETATTR), which the server refuses. On ext4 the kernel
/// knows the limit and refuses first (`capabilities_survive_a_size_that_is_refused` in `fsmodel`).
struct OnFuse(Model);

impl Subject for OnFuse {
    fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        let answer = self.0.apply(op);
        if let (Op::Truncate { at, .. }, Err(Errno::EFBIG)) = (op, answer) {
            // Most files have none: ENODATA.
            let _ = self.0.apply(&Op::RemoveXattr { at: at.clone(), name: "security.capability".into() });
        }
        answer
    }

    fn tree(&mut self) -> Tree {
        self.0.tree()
    }
}

/// Mounts a new file system with these features and runs `test` on it. Afterwards e2fsck must find it clean.
fn on_mount(features: &str, limits: Limits, test: impl FnOnce(&Path) + std::panic::UnwindSafe) {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: not root, or no /dev/fuse");
        return;
    }
    let dir = scratch();
    let (image, mnt) = (dir.path().join("model.img"), dir.path().join("mnt"));
    std::fs::create_dir(&mnt).unwrap();
    let (block_size, inode_size) = (limits.block_size.to_string(), limits.inode_size.to_string());
    let fixed =
        ["-q", "-F", "-t", "ext4", "-i", "8192", "-b", &block_size, "-I", &inode_size, "-O", features];
    run("mke2fs", fixed.into_iter().map(OsStr::new).chain([image.as_os_str(), OsStr::new("1G")]));
    let device = Arc::new(FileDevice::open_locked(&image).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let server = Arc::new(Server::new(volume, Box::new(|damage| eprintln!("damage: {damage}"))));
    let options = MountOptions { read_only: false, dev: true, suid: true, ..MountOptions::new("model.img") };
    let mounted = Mounted::new(Arc::clone(&server), &mnt, &options, Threads::default()).unwrap();
    let serving = std::thread::spawn(move || mounted.serve());
    let tested = std::panic::catch_unwind(|| test(&mnt));
    extant_fuse::unmount(&mnt, tested.is_err()).unwrap();
    serving.join().unwrap().unwrap();
    server.close().unwrap();
    if let Err(panic) = tested {
        std::panic::resume_unwind(panic);
    }
    e2fsck_clean(&image);
}

fn equals_model(features: &str, options: &Options, check_every: u64) {
    on_mount(features, options.limits, |mount| {
        let (n_ops, seed) = (number("EXTANT_OPS", N_OPS_CI), number("EXTANT_SEED", 1));
        let fresh = |number| (OnFuse(Model::new(options.limits)), Kernel::fresh(mount, number).unwrap());
        let (mut model, mut subject) = fresh(0);
        let mut generator = Generator::new(seed, options.clone());
        match compare(&mut model, &mut subject, &mut generator, n_ops, check_every) {
            Ok(report) => println!("{features}, seed {seed}: {report}"),
            Err(difference) => {
                // Before the shrinking, which takes long.
                eprintln!("{difference}");
                let mut number = 0;
                let ops = shrink(&difference.ops, || {
                    // All attempts together would need more inodes than there are.
                    if number > 0 {
                        std::fs::remove_dir_all(mount.join(format!("subject-{number}"))).unwrap();
                    }
                    number += 1;
                    fresh(number)
                });
                panic!("{difference}\nmodel != mount; shrunk to {ops:#?}");
            }
        }
    });
}

#[test]
fn plain() {
    equals_model("metadata_csum,metadata_csum_seed,orphan_file", &Options::default(), 500);
}

#[test]
fn without_checksums() {
    equals_model("^metadata_csum,^64bit,^dir_index", &Options::default(), 500);
}

#[test]
fn attributes_with_ea_inode() {
    let limits = Limits { ea_inode: true, ..Limits::default() };
    let options = Options { limits, mostly_attributes: true, n_objects_max: 40, ..Options::default() };
    equals_model("metadata_csum,ea_inode", &options, 200);
}

#[test]
fn many_names() {
    let options = Options { many_names: 20_000, n_objects_max: 12_000, ..Options::default() };
    equals_model("metadata_csum,metadata_csum_seed,orphan_file", &options, 5_000);
}

/// At operation 208,275 of `many_names` the model kept an attribute that the mount had removed.
#[test]
fn capabilities_do_not_survive_a_size_that_is_refused() {
    on_mount("metadata_csum", Limits::default(), |mount| {
        let mut value = vec![0, 0, 0, 2];
        value.resize(20, 7);
        let (at, name) = (At::new("f"), "security.capability".into());
        let ops = [
            Op::Create { at: at.clone(), mode: 0o755 },
            Op::SetXattr { at: at.clone(), name, value: Bytes(value), mode: XattrMode::Any },
            Op::Truncate { at, size: Limits::default().max_size() + 1 },
        ];
        let (mut model, mut subject) = (OnFuse(Model::default()), Kernel::fresh(mount, 0).unwrap());
        let report = replay(&mut model, &mut subject, &ops, 1).unwrap();
        assert_eq!(report.answers[&("truncate", Some(Errno::EFBIG))], 1);
    });
}
