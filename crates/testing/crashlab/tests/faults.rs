//! A device that fails once: the n-th read, write or flush of an operation, for every n. Afterwards, and
//! after it is reopened, the volume must show the tree before the operation or the one after it.

use std::sync::Arc;

use extant_crashlab::{Engine, Kind, base_image, e2fsck_says, to_file, tree};
use extant_fsmodel::{Errno, Op, Subject, Tree, diff, short_alphabet, short_setup};
use extant_simdisk::{EIO, Effect, Faulty, Image, Rule, SimDisk};
use extant_volume::WriteOptions;

type Disk = Arc<Faulty<SimDisk>>;

fn options() -> WriteOptions {
    WriteOptions { no_committer: true, ..WriteOptions::default() }
}

fn disk(image: &Image) -> Disk {
    Arc::new(Faulty::new(SimDisk::from_image(image.clone())))
}

/// The tree without times, which differ between runs.
fn look(engine: &Engine) -> Tree {
    let mut tree = tree(engine.volume()).unwrap();
    for node in tree.nodes.values_mut() {
        (node.atime, node.mtime) = (None, None);
    }
    tree
}

fn prepared(kind: Kind) -> Image {
    let disk = Arc::new(SimDisk::from_image(base_image(kind)));
    let mut engine = Engine::open(disk.clone(), options()).unwrap();
    for op in short_setup() {
        engine.apply(&op).unwrap();
    }
    // Adds blocks that operations can free, and attributes that they move.
    for (at, op) in short_alphabet().into_iter().enumerate().filter(|(at, _)| [5, 24].contains(at)) {
        assert!(engine.apply(&op).is_ok(), "{at}");
    }
    engine.close().unwrap();
    disk.image()
}

/// Directories inside their inodes, made by debugfs. They move into blocks when their names change.
fn inline() -> Image {
    let scratch = extant_testkit::scratch();
    let (image, script) = (scratch.path().join("image"), scratch.path().join("script"));
    let (name, commands) = (image.to_str().unwrap(), script.to_str().unwrap());
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "inline_data", name, "8M"]);
    let dirs = ["", "/A", "/B", "/B/z"].map(|dir| format!("mkdir /tree{dir}\n"));
    let files = ["A/x", "A/y", "B/x"].map(|file| format!("write /dev/null /tree/{file}\n"));
    std::fs::write(&script, dirs.concat() + &files.concat()).unwrap();
    extant_testkit::run("debugfs", ["-w", "-f", commands, name]);
    Image::from_bytes(&std::fs::read(&image).unwrap())
}

/// The effect of an operation when nothing fails: its answer, and the trees before and after it.
struct Expected {
    answer: Result<(), Errno>,
    trees: [Tree; 2],
}

fn expected(image: &Image, op: &Op) -> Expected {
    let mut engine = Engine::open(disk(image), options()).unwrap();
    let before = look(&engine);
    let answer = engine.apply(op);
    let trees = [before, look(&engine)];
    Expected { answer, trees }
}

struct Sweep {
    runs: u64,
    aborted: u64,
}

impl Sweep {
    /// The tree on the disk must be one of these, and the volume must be writable. e2fsck judges a sample.
    fn judge(&mut self, disk: &Disk, trees: &[Tree], case: &dyn std::fmt::Display) {
        disk.disarm_all();
        let engine = Engine::open(disk.clone(), options()).unwrap_or_else(|why| panic!("{case}: {why}"));
        let found = look(&engine);
        assert!(
            trees.iter().any(|tree| diff(tree, &found).is_empty()),
            "{case}: not one of these trees; from the last: {:#?}",
            trees.last().map(|tree| diff(tree, &found))
        );
        engine.close().unwrap_or_else(|why| panic!("{case}: {why}"));
        self.runs += 1;
        if self.runs.is_multiple_of(16) {
            let scratch = extant_testkit::scratch();
            let path = scratch.path().join("image");
            to_file(disk.inner(), &path).unwrap();
            e2fsck_says(&path).unwrap_or_else(|why| panic!("{case}: {why}"));
        }
    }

    /// Fails the n-th read of the operation, and `times - 1` reads after it.
    fn read(&mut self, image: &Image, op: &Op, n: u64, times: u64, expected: &Expected) -> bool {
        let case = format!("{op:?}, read {n} of it fails, {times} times");
        let disk = disk(image);
        let mut engine = Engine::open(disk.clone(), options()).unwrap();
        let rule = disk.arm(Rule::fail(extant_simdisk::Op::Read, EIO).nth(n).times(times));
        let answer = engine.apply(op);
        let is_hit = disk.hits(rule) > 0;
        disk.disarm_all();
        let is_whole = answer == expected.answer;
        assert!(is_whole || answer == Err(Errno(EIO)) && is_hit, "{case}: {answer:?}");
        let tree = &expected.trees[usize::from(is_whole)];
        match engine.volume().sync() {
            // The failure was contained: the volume shows the state before.
            Ok(()) => {
                let lines = diff(tree, &look(&engine));
                assert!(lines.is_empty(), "{case}: {lines:?}");
            }
            Err(fault) => {
                assert!(!is_whole, "{case}: {fault}");
                assert_eq!(fault.errno(), 30, "{case}: {fault}");
                let more = Op::Mkdir { at: extant_fsmodel::At::new("more"), mode: 0o755 };
                assert_eq!(engine.apply(&more), Err(Errno(30)), "{case}");
                self.aborted += 1;
            }
        }
        drop(engine);
        self.judge(&disk, std::slice::from_ref(tree), &case);
        is_hit
    }

    /// Fails the n-th write or flush of a session: open, the operation, a sync, close.
    fn session(&mut self, image: &Image, op: &Op, rule: Rule, expected: &Expected) -> bool {
        let case = format!("{op:?}, {rule:?}");
        let disk = disk(image);
        let rule = disk.arm(rule);
        let mut is_durable = false;
        if let Ok(mut engine) = Engine::open(disk.clone(), options()) {
            let answer = engine.apply(op);
            assert!(answer == expected.answer || disk.hits(rule) > 0, "{case}: {answer:?}");
            is_durable = engine.volume().sync().is_ok();
            is_durable |= engine.close().is_ok();
        }
        let is_hit = disk.hits(rule) > 0;
        self.judge(&disk, &expected.trees[usize::from(is_durable)..], &case);
        is_hit
    }
}

#[test]
fn one_read_fails() {
    let kinds = [Kind::Today, Kind::Listed, Kind::Clusters].map(|kind| (format!("{kind:?}"), prepared(kind)));
    for (kind, image) in kinds.into_iter().chain([("Inline".to_owned(), inline())]) {
        let mut sweep = Sweep { runs: 0, aborted: 0 };
        for op in short_alphabet() {
            let expected = expected(&image, &op);
            // Some reads are readahead and are repeated. So two reads in a row fail.
            for times in [1, 2] {
                let mut n = 1;
                while sweep.read(&image, &op, n, times, &expected) {
                    n += 1;
                }
            }
        }
        println!("{kind}: {} runs, {} aborted", sweep.runs, sweep.aborted);
        assert!(sweep.runs > 100 && sweep.aborted < sweep.runs / 4);
    }
}

#[test]
fn one_write_or_flush_fails() {
    for kind in [Kind::Today, Kind::Listed] {
        let image = prepared(kind);
        let mut sweep = Sweep { runs: 0, aborted: 0 };
        for op in short_alphabet() {
            let expected = expected(&image, &op);
            for what in [extant_simdisk::Op::Write, extant_simdisk::Op::Flush] {
                for effect in [Effect::Fail(EIO), Effect::FailAfter(EIO)] {
                    let mut n = 1;
                    while sweep.session(&image, &op, Rule::new(what, effect).nth(n), &expected) {
                        n += 1;
                    }
                }
            }
        }
        println!("{kind:?}: {} runs", sweep.runs);
        assert!(sweep.runs > 500);
    }
}
