//! Random operations in one thread and in several, compared with a plain model.

use std::collections::{BTreeMap, HashSet};
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;

/// The kinds of images for random operations.
pub(crate) const KINDS: &[(&str, &[&str])] = &[
    ("300M", &["-O", "64bit"]),
    ("40M", &["-b", "1024", "-O", "^64bit"]),
    ("40M", &["-b", "1024", "-O", "meta_bg,^resize_inode"]),
    ("40M", &["-b", "1024", "-O", "bigalloc", "-C", "16384"]),
    ("600M", &["-O", "bigalloc", "-C", "65536"]),
    ("40M", &["-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("40M", &["-b", "1024", "-O", "^metadata_csum,^uninit_bg,^flex_bg"]),
    ("40M", &["-b", "1024", "-O", "^flex_bg", "-N", "512"]),
    ("20000k", &["-b", "1024", "-G", "2"]),
];

#[derive(Debug, Clone)]
enum Step {
    Allocate { goal: u32, len: u32, min: u32, flags: u16 },
    Window { goal: u32, len: u32 },
    Free { which: usize, part: u32 },
    Inode { parent: u32, is_dir: bool },
    FreeInode { which: usize },
    Commit,
    Seal,
    DropWindow,
    Shrink,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![1u32..4, Just(8), Just(64), 1u32..3000];
    let step = prop_oneof![
        6 => (any::<u32>(), len.clone(), 1u32..40, 0u16..64)
            .prop_map(|(goal, len, min, flags)| Step::Allocate { goal, len, min, flags }),
        3 => (any::<u32>(), 1u32..4).prop_map(|(goal, len)| Step::Window { goal, len }),
        6 => (any::<usize>(), any::<u32>()).prop_map(|(which, part)| Step::Free { which, part }),
        4 => (any::<u32>(), any::<bool>()).prop_map(|(parent, is_dir)| Step::Inode { parent, is_dir }),
        2 => any::<usize>().prop_map(|which| Step::FreeInode { which }),
        2 => Just(Step::Commit),
        1 => Just(Step::Seal),
        1 => Just(Step::DropWindow),
        1 => Just(Step::Shrink),
    ];
    prop::collection::vec(step, 1..300)
}

/// What was allocated, and what must not be reused yet.
#[derive(Default)]
struct Model {
    owned: Vec<(u64, u32)>,
    used: HashSet<u64>,
    /// Freed, by transaction.
    waiting: BTreeMap<u64, Vec<u64>>,
    inodes: Vec<(Ino, bool)>,
}

impl Model {
    fn given(&mut self, (start, len): (Pblk, u32)) {
        for block in start.0..start.0 + u64::from(len) {
            assert!(self.used.insert(block), "block {block} was given out twice");
            let waits = self.waiting.values().flatten().any(|waiting| *waiting == block);
            assert!(!waits, "block {block} was freed by a transaction that is not committed");
        }
        self.owned.push((start.0, len));
    }
}

fn run(image: &Image, steps: &[Step], scan: Scan) {
    let alloc = image.open(Options { scan, ..Options::default() });
    let before = alloc.usage();
    let ratio = image.geometry.cluster_ratio();
    let mut model = Model::default();
    let mut window = Prealloc::new();
    let mut transaction = 1;
    for step in steps {
        let edit = image.edit(extant_base::Tid(transaction));
        let goal = |goal: u32| u64::from(goal) % (image.geometry.blocks + 5);
        let answer = match *step {
            Step::Allocate { goal: at, len, min, flags } => {
                // Not promised.
                let flags = Flags(flags & !8);
                let stream = (len > 100).then_some(min);
                alloc.allocate(&edit, &Request { goal: Pblk(goal(at)), len, min_len: min, flags, stream })
            }
            Step::Window { goal: at, len } => {
                alloc.allocate_in(&edit, &mut window, &request(goal(at), len, 1))
            }
            Step::Free { which, part } if !model.owned.is_empty() => {
                let at = which % model.owned.len();
                let (start, len) = model.owned.swap_remove(at);
                // Part of the range, in whole clusters, or all of it.
                let some = u64::from(part) % u64::from(len).div_ceil(ratio) * ratio;
                let freed = if some == 0 { u64::from(len) } else { some };
                alloc.free(&edit, Pblk(start), freed, part % 2 == 0).unwrap();
                if freed < len.into() {
                    model.owned.push((start + freed, len - freed as u32));
                }
                let blocks = start..start + freed;
                blocks.clone().for_each(|block| assert!(model.used.remove(&block)));
                model.waiting.entry(transaction).or_default().extend(blocks);
                continue;
            }
            Step::Inode { parent, is_dir } => {
                let parent = parent % image.geometry.inodes() + 1;
                match alloc.allocate_inode(&edit, &inode_request(parent, is_dir)) {
                    Ok(new) => {
                        assert!(new.ino.0 >= 11 && new.ino.0 <= image.geometry.inodes());
                        assert!(!model.inodes.iter().any(|(ino, _)| *ino == new.ino), "{} twice", new.ino);
                        model.inodes.push((new.ino, is_dir));
                    }
                    Err(Fault::NoSpace(_)) => assert_eq!(alloc.usage().inodes_free, 0),
                    Err(fault) => panic!("{fault}"),
                }
                continue;
            }
            Step::FreeInode { which } if !model.inodes.is_empty() => {
                let at = which % model.inodes.len();
                let (ino, was_dir) = model.inodes.swap_remove(at);
                alloc.free_inode(&edit, ino, was_dir).unwrap();
                continue;
            }
            Step::Commit => {
                // Commit the transaction before the current one.
                let done = transaction - 1;
                transaction += 1;
                let blocks: usize =
                    model.waiting.extract_if(..=done, |_, _| true).map(|(_, blocks)| blocks.len()).sum();
                // The last cluster may be cut.
                assert!(alloc.committed(extant_base::Tid(done)).abs_diff(blocks as u64) < ratio);
                continue;
            }
            Step::Seal => {
                alloc.seal(&edit).unwrap();
                continue;
            }
            Step::DropWindow => {
                window.release();
                continue;
            }
            Step::Shrink => {
                alloc.groups.shrink(1 << 30);
                continue;
            }
            _ => continue,
        };
        match answer {
            Ok(place) => model.given(place),
            Err(Fault::NoSpace(_)) => {}
            Err(fault) => panic!("{fault}"),
        }
        assert_eq!(alloc.problems(), []);
    }
    alloc.assert_whole();
    assert_eq!(before.inodes_free - alloc.usage().inodes_free, model.inodes.len() as u64);
    // Free everything, so that e2fsck finds nothing without an owner.
    window.release();
    let edit = image.edit(extant_base::Tid(transaction));
    for (start, len) in model.owned {
        alloc.free(&edit, Pblk(start), len.into(), true).unwrap();
    }
    for (ino, was_dir) in model.inodes {
        alloc.free_inode(&edit, ino, was_dir).unwrap();
    }
    alloc.committed(extant_base::Tid(transaction));
    alloc.assert_whole();
    assert_eq!(alloc.usage(), before);
    alloc.recount().unwrap();
    assert_eq!(alloc.usage(), before);
    image.judge(&alloc);
    // What was written reads back the same.
    let again = image.open(Options::default());
    again.recount().unwrap();
    assert_eq!(again.usage(), before);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 200, ..ProptestConfig::default() })]
    #[test]
    fn nothing_is_given_out_twice(steps in steps(), kind in 0..KINDS.len(), linear in any::<bool>()) {
        let (size, args) = KINDS[kind];
        run(&Image::mke2fs(size, args), &steps, if linear { Scan::Linear } else { Scan::Ordered });
    }
}

#[test]
fn threads_never_get_the_same() {
    for (size, args) in [KINDS[0], KINDS[1], KINDS[3]] {
        let image = Image::mke2fs(size, args);
        let budget = Budget::new(64 << 10);
        let alloc = image.open(Options { budget: Some(budget), ..Options::default() });
        let before = alloc.usage();
        let used = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let (alloc, image, used) = (&alloc, &image, &used);
                scope.spawn(move || worker(alloc, image, used, seed));
            }
        });
        alloc.committed(extant_base::Tid(u64::MAX));
        alloc.assert_whole();
        assert_eq!((alloc.usage(), alloc.problems()), (before, vec![]));
        image.judge(&alloc);
    }
}

fn worker(alloc: &Alloc, image: &Image, used: &Mutex<HashSet<u64>>, seed: u64) {
    let mut rng = Rng(seed + 1);
    let mut window = Prealloc::new();
    let (mut owned, mut inodes) = (Vec::new(), Vec::new());
    for round in 0..3000 {
        let edit = image.edit(extant_base::Tid(round / 100 + 1));
        let ask = request(rng.below(image.geometry.blocks), rng.below(70) as u32, 1);
        let answer = match rng.below(10) {
            0..3 => alloc.allocate(&edit, &ask),
            3 => alloc.allocate_in(&edit, &mut window, &ask),
            4..7 if !owned.is_empty() => {
                let (start, len): (Pblk, u32) = owned.swap_remove(rng.below(owned.len() as u64) as usize);
                let mut used = used.lock().unwrap();
                (start.0..start.0 + u64::from(len)).for_each(|block| assert!(used.remove(&block)));
                drop(used);
                alloc.free(&edit, start, len.into(), false).unwrap();
                continue;
            }
            7 => {
                let new = alloc.allocate_inode(&edit, &inode_request(2, round % 3 == 0));
                inodes.extend(new.ok().map(|new| (new.ino, round % 3 == 0)));
                continue;
            }
            8 if !inodes.is_empty() => {
                let (ino, was_dir) = inodes.swap_remove(rng.below(inodes.len() as u64) as usize);
                alloc.free_inode(&edit, ino, was_dir).unwrap();
                continue;
            }
            _ => {
                alloc.committed(extant_base::Tid((round / 100).saturating_sub(1)));
                continue;
            }
        };
        match answer {
            Ok((start, len)) => {
                let mut used = used.lock().unwrap();
                (start.0..start.0 + u64::from(len))
                    .for_each(|block| assert!(used.insert(block), "{block} twice"));
                owned.push((start, len));
            }
            Err(Fault::NoSpace(_)) => {}
            Err(fault) => panic!("{fault}"),
        }
    }
    let edit = image.edit(extant_base::Tid(1000));
    for (start, len) in owned {
        let mut used = used.lock().unwrap();
        (start.0..start.0 + u64::from(len)).for_each(|block| assert!(used.remove(&block)));
        drop(used);
        alloc.free(&edit, start, len.into(), true).unwrap();
    }
    for (ino, was_dir) in inodes {
        alloc.free_inode(&edit, ino, was_dir).unwrap();
    }
}
