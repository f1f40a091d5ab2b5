//! Tests of whole images: filled to the last block and inode, and the layout of allocations.

use std::collections::BTreeMap;
use std::time::Instant;

use super::random::KINDS;
use super::*;

/// Fills an image to the last cluster, in large pieces and small ones, and frees everything.
#[test]
fn every_image_fills_to_the_last_cluster_and_inode() {
    for (size, args) in KINDS {
        let image = Image::mke2fs(size, args);
        let alloc = image.open(Options::default());
        let before = alloc.usage();
        let edit = image.edit(extant_base::Tid(1));
        let (mut owned, mut goal, mut len) = (Vec::new(), 1000, 5000);
        let mut sum = 0;
        loop {
            match alloc.allocate(&edit, &request(goal, len, len.min(7))) {
                Ok((start, len)) => {
                    sum += u64::from(len);
                    goal = start.0 + u64::from(len);
                    owned.push((start, len));
                }
                Err(Fault::NoSpace(_)) if len > 1 => len = len / 2 + 1 - len % 2,
                Err(Fault::NoSpace(no_space)) => {
                    assert!(!no_space.pending);
                    break;
                }
                Err(fault) => panic!("{fault}"),
            }
            len = if len == 2 { 1 } else { len };
        }
        assert_eq!((alloc.usage().blocks_free, alloc.problems()), (0, vec![]), "{args:?}");
        assert!(sum.abs_diff(before.blocks_free) < image.geometry.cluster_ratio(), "{args:?}");
        let mut inodes = Vec::new();
        for at in 0..before.inodes_free {
            let new = alloc.allocate_inode(&edit, &inode_request(2, at % 5 == 0)).unwrap();
            inodes.push((new.ino, at % 5 == 0));
        }
        assert!(matches!(alloc.allocate_inode(&edit, &inode_request(2, false)), Err(Fault::NoSpace(_))));
        assert_eq!(alloc.usage().inodes_free, 0);
        alloc.assert_whole();
        for (start, len) in owned {
            alloc.free(&edit, start, len.into(), false).unwrap();
        }
        for (ino, was_dir) in inodes {
            alloc.free_inode(&edit, ino, was_dir).unwrap();
        }
        let pending = alloc.allocate(&edit, &request(0, 1, 1)).unwrap_err();
        assert!(matches!(pending, Fault::NoSpace(NoSpace { pending: true })), "{pending}");
        alloc.committed(extant_base::Tid(1));
        assert!(alloc.allocate(&edit, &request(0, 1, 1)).is_ok_and(|(start, len)| {
            alloc.free(&edit, start, len.into(), false).unwrap();
            true
        }));
        assert_eq!(alloc.usage(), before);
        image.judge(&alloc);
    }
}

#[test]
fn one_request_after_the_other_goes_on_where_the_last_one_ended() {
    let image = Image::mke2fs("300M", &[]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let mut goal = alloc.inode_goal(Ino(11), true).0 + 5000;
    for _ in 0..1000 {
        assert_eq!(alloc.allocate(&edit, &request(goal, 8, 1)).unwrap(), (Pblk(goal), 8));
        goal += 8;
    }
    let stats = alloc.stats();
    assert_eq!((stats.success, stats.goal_hits, stats.clusters), (1000, 1000, 8000));
    assert!(stats.to_string().contains("goal_hits: 1000"));
}

/// Two directories that grow in turns: windows keep their extents long.
#[test]
fn windows_keep_growing_directories_apart() {
    let image = Image::mke2fs("300M", &[]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let mut windows = [Prealloc::new(), Prealloc::new()];
    let mut ends = [0u64; 2];
    let mut extents = [0; 2];
    for at in 0..2000 {
        let who = at % 2;
        let goal = if ends[who] == 0 { 40_000 } else { ends[who] };
        let (start, len) = alloc.allocate_in(&edit, &mut windows[who], &request(goal, 1, 1)).unwrap();
        assert_eq!(len, 1);
        extents[who] += u32::from(start.0 != ends[who]);
        ends[who] = start.0 + 1;
    }
    assert!(extents.iter().all(|count| *count <= 1 + 1000 / 64 + 3), "{extents:?}");
    alloc.assert_whole();
    drop(windows);
    alloc.assert_whole();
    assert_eq!(alloc.window_clusters.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn top_directories_spread_and_others_stay() {
    let image = Image::mke2fs("64M", &["-b", "1024", "-G", "2"]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let group = |ino: Ino| image.geometry.inode_place(ino).unwrap().0.0;
    let mut flexes = BTreeMap::new();
    for name_hash in 0..40u32 {
        let top = InodeRequest { is_top_dir: true, name_hash: name_hash * 7919, ..inode_request(2, true) };
        let dir = alloc.allocate_inode(&edit, &top).unwrap().ino;
        *flexes.entry(group(dir) / 2).or_insert(0) += 1;
        let file = alloc.allocate_inode(&edit, &inode_request(dir.0, false)).unwrap().ino;
        let sub = alloc.allocate_inode(&edit, &inode_request(dir.0, true)).unwrap().ino;
        assert_eq!((group(file) / 2, group(sub) / 2), (group(dir) / 2, group(dir) / 2));
    }
    assert!(flexes.len() >= 3, "{flexes:?}");
}

/// A thread that alternates with another at a fast pace moves to another group and stays there: inside the
/// directory's flex group, and beyond it.
#[test]
fn threads_that_take_turns_part() {
    let image = Image::mke2fs("64M", &["-b", "1024", "-G", "2"]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let make = || {
        let ino = alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap().ino;
        image.geometry.inode_place(ino).unwrap().0.0
    };
    let part = || {
        let from = make();
        let comes =
            || alloc.groups.cell(from).unwrap().state.lock().sharing.is_crowded(usize::MAX - 1, Instant::now);
        // Immediately, unless the machine is busy.
        let to = std::iter::repeat_with(|| {
            comes();
            make()
        });
        let to = to.take(1500).find(|group| *group != from).expect("one of the two goes");
        assert!((0..20).all(|_| make() == to));
        (from, to)
    };
    assert_eq!(part(), (0, 1));
    while make() < 2 {}
    let (from, to) = part();
    assert!(from >= 2 && to >= 2, "{from} {to}");
}

#[test]
fn files_of_one_directory_fill_one_table() {
    let image = Image::mke2fs("64M", &["-b", "1024"]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let first = alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap();
    let per_block = image.geometry.inodes_per_block();
    for next in 1..500 {
        let new = alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap();
        assert_eq!(new.ino.0, first.ino.0 + next);
        assert_eq!(new.is_first_in_block, (new.ino.0 - 1).is_multiple_of(per_block));
    }
    // A freed number is reused when the thread searches for a group again; as a goal, immediately.
    alloc.free_inode(&edit, first.ino, false).unwrap();
    let wanted = InodeRequest { goal: Some(first.ino), ..inode_request(2, false) };
    assert_eq!(alloc.allocate_inode(&edit, &wanted).unwrap().ino, first.ino);
}

/// 16 TiB: the file holds a few MiB of metadata, and the allocator reads only what it uses.
#[test]
fn a_huge_image_opens_at_once() {
    let device = Arc::new(MemDevice::new(16 << 40));
    let mut sb = Superblock {
        blocks_count: 1 << 32,
        free_blocks_count: 1 << 31,
        log_block_size: 2,
        log_cluster_size: 2,
        rev_level: 1,
        inode_size: 256,
        desc_size: 64,
        blocks_per_group: 32768,
        clusters_per_group: 32768,
        inodes_per_group: 8192,
        ..Superblock::default()
    };
    sb.features.incompat = Features::EXTENTS | Features::BIT64 | Features::FLEX_BG;
    let geometry = Geometry::new(&sb).unwrap();
    let buffers = Buffers::new(device, geometry.block_size, geometry.blocks, &Budget::new(1 << 20));
    let start = std::time::Instant::now();
    let alloc = Alloc::open(buffers, &sb, &geometry, Options::default()).unwrap();
    assert!(start.elapsed().as_millis() < 200, "{:?}", start.elapsed());
    assert_eq!(alloc.stats().groups_loaded, 0);
    // Descriptors are zeros: each group is set aside with a reason, and none is used.
    let fault = alloc.allocate(&direct_of(&alloc), &request(0, 1, 1)).unwrap_err();
    assert!(matches!(fault, Fault::NoSpace(_)), "{fault}");
    assert!(!alloc.problems().is_empty());
}

fn direct_of(alloc: &Alloc) -> Direct<'_> {
    Direct(&alloc.groups.buffers)
}
