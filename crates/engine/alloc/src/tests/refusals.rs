//! Refusals, and that they change nothing; damaged images.

use extant_base::Group;
use extant_ondisk::group_desc::GroupDesc;

use super::*;

const SMALL: &[&str] = &["-b", "1024"];

fn descs(image: &Image) -> Vec<GroupDesc> {
    let geometry = &image.geometry;
    (0..geometry.groups)
        .map(|group| {
            let (block, at) = geometry.descriptor_place(Group(group));
            let bytes = image.buffers.get(block, DESCRIPTORS.owner, |_| Ok(())).unwrap();
            GroupDesc::decode(&bytes[at..at + geometry.desc_size]).unwrap()
        })
        .collect()
}

#[test]
fn what_is_not_in_use_cannot_be_freed() {
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let (start, _) = alloc.allocate(&edit, &request(20_000, 10, 10)).unwrap();
    let usage = alloc.usage();
    assert!(alloc.free(&edit, Pblk(image.geometry.blocks - 1), 2, false).is_err());
    assert!(alloc.free(&edit, Pblk(0), 1, false).is_err());
    assert!(alloc.free(&edit, Pblk(5), u64::MAX, false).is_err());
    assert_eq!((alloc.usage(), alloc.problems().len()), (usage, 0));
    alloc.free(&edit, start, 10, false).unwrap();
    let fault = alloc.free(&edit, start, 10, false).unwrap_err();
    assert!(fault.to_string().contains("in use"), "{fault}");
    let group = image.geometry.group_of(start).unwrap();
    assert_eq!(alloc.problems().iter().map(|problem| problem.0).collect::<Vec<_>>(), [group]);
    // The group is set aside: nothing more is allocated there.
    for _ in 0..100 {
        let (block, _) = alloc.allocate(&edit, &request(start.0, 1, 1)).unwrap();
        assert_ne!(image.geometry.group_of(block), Some(group));
    }
    alloc.assert_whole();
}

#[test]
fn the_file_systems_own_blocks_cannot_be_freed() {
    for at in 0..3 {
        let image = Image::mke2fs("40M", SMALL);
        let desc = descs(&image)[1];
        let alloc = image.open(Options::default());
        let block = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table + 3][at];
        assert!(alloc.free(&image.edit(extant_base::Tid(1)), Pblk(block), 1, true).is_err());
    }
}

#[test]
fn a_range_over_two_groups_is_freed_whole_or_not_at_all() {
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    // Group 4 has no copy of the superblock at its start.
    let edge = image.geometry.group_start(Group(4)).0;
    let mut ask = request(edge - 4, 4, 4);
    assert_eq!(alloc.allocate(&edit, &ask).unwrap().0, Pblk(edge - 4));
    let before = alloc.usage();
    assert!(alloc.free(&edit, Pblk(edge - 4), 8, false).is_err());
    assert_eq!(alloc.pending_clusters.load(std::sync::atomic::Ordering::Relaxed), 0);
    drop((before, alloc));
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let before = alloc.usage();
    alloc.allocate(&edit, &ask).unwrap();
    ask.goal = Pblk(edge);
    assert_eq!(alloc.allocate(&edit, &ask).unwrap().0, Pblk(edge));
    alloc.free(&edit, Pblk(edge - 4), 8, false).unwrap();
    assert_eq!((alloc.committed(extant_base::Tid(1)), alloc.usage()), (8, before));
}

#[test]
fn inodes_that_are_reserved_or_free_cannot_be_freed() {
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    for ino in [0, 1, 2, 10, u32::MAX, image.geometry.inodes() + 1] {
        assert!(alloc.free_inode(&edit, Ino(ino), false).is_err());
    }
    assert_eq!(alloc.problems(), []);
    let new = alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap();
    alloc.free_inode(&edit, new.ino, false).unwrap();
    assert!(alloc.free_inode(&edit, new.ino, false).is_err());
    assert_eq!(alloc.problems().len(), 1);
}

#[test]
fn a_damaged_bitmap_sets_its_group_aside() {
    let image = Image::mke2fs("40M", SMALL);
    let bitmaps = descs(&image);
    let seal = Seal { owner: Owner { kind: Kind::Other, ino: 0 }, seed: None };
    let edit = direct(&image);
    edit.change(Pblk(bitmaps[0].block_bitmap), seal, &mut |bytes| bytes[900] ^= 1).unwrap();
    edit.change(Pblk(bitmaps[0].inode_bitmap), seal, &mut |bytes| bytes[0] = 0).unwrap();
    let alloc = image.open(Options::default());
    let (block, _) = alloc.allocate(&edit, &request(5000, 1, 1)).unwrap();
    assert_ne!(image.geometry.group_of(block), Some(Group(0)));
    let new = alloc.allocate_inode(&edit, &inode_request(2, false)).unwrap();
    assert_ne!(image.geometry.inode_place(new.ino).unwrap().0, Group(0));
    let problems = alloc.problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.0 == Group(0)));
}

/// Without checksums, a bitmap can say that the file system's own blocks are free.
#[test]
fn the_file_systems_own_blocks_are_never_given_out() {
    let image = Image::mke2fs("40M", &["-b", "1024", "-O", "^metadata_csum,^uninit_bg,^flex_bg"]);
    let desc = descs(&image)[2];
    let at = (desc.inode_table - image.geometry.group_start(Group(2)).0) as u32;
    let edit = direct(&image);
    edit.change(Pblk(desc.block_bitmap), BLOCK_BITMAP, &mut |bytes| {
        bits::fill_bytes(bytes, at..at + 1, false);
        bits::fill_bytes(bytes, 8000..8001, true);
    })
    .unwrap();
    let alloc = image.open(Options::default());
    let (block, _) = alloc.allocate(&edit, &request(desc.inode_table, 1, 1)).unwrap();
    assert_ne!(image.geometry.group_of(block), Some(Group(2)));
    assert_eq!(alloc.problems().len(), 1);
}

#[test]
fn reserves_are_kept_from_unprivileged_allocations() {
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    alloc.set_reserves(100, 50);
    let edit = image.edit(extant_base::Tid(1));
    let free = alloc.usage().blocks_free;
    assert_eq!(alloc.usage().blocks_available, free - 150);
    alloc.claim(free - 160, Privilege::User).unwrap();
    assert_eq!(alloc.claim(11, Privilege::User), Err(NoSpace { pending: false }));
    let ask = |len, flags| Request { flags, ..request(0, len, len) };
    assert!(alloc.allocate(&edit, &ask(11, Flags::METADATA)).is_err());
    alloc.allocate(&edit, &ask(11, Flags::METADATA | Flags::USE_ROOT)).unwrap();
    assert!(alloc.allocate(&edit, &ask(100, Flags::METADATA | Flags::USE_ROOT)).is_err());
    alloc.allocate(&edit, &ask(149, Flags::METADATA | Flags::USE_RESERVED)).unwrap();
    // A promise can be used when nothing else is left.
    let (_, len) = alloc.allocate(&edit, &ask(100, Flags::DATA | Flags::PROMISED)).unwrap();
    assert_eq!(len, 100);
    alloc.unclaim(free - 160 - 100);
    assert_eq!((alloc.usage().blocks_dirty, alloc.usage().blocks_free), (0, free - 260));
}

#[test]
fn clusters_are_freed_whole() {
    let image = Image::mke2fs("40M", &["-b", "1024", "-O", "bigalloc", "-C", "16384"]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let (start, len) = alloc.allocate(&edit, &request(20_001, 17, 1)).unwrap();
    assert_eq!((start.0 % 16, len), (0, 32));
    assert!(alloc.free(&edit, Pblk(start.0 + 1), 16, false).is_err());
    assert!(alloc.free(&edit, start, 17, false).is_err());
    assert_eq!(alloc.problems(), []);
    alloc.free(&edit, start, 16, false).unwrap();
    assert_eq!(alloc.committed(extant_base::Tid(1)), 16);
}

#[test]
fn windows_give_way_when_space_runs_out() {
    let image = Image::mke2fs("40M", SMALL);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let mut windows: Vec<Prealloc> = (0..20).map(|_| Prealloc::new()).collect();
    for window in &mut windows {
        alloc.allocate_in(&edit, window, &request(9000, 1, 1)).unwrap();
    }
    while alloc.allocate(&edit, &request(0, 64, 1)).is_ok() {}
    assert_eq!(alloc.usage().blocks_free, 0);
    alloc.assert_whole();
    for window in &mut windows {
        assert!(matches!(alloc.allocate_in(&edit, window, &request(9000, 1, 1)), Err(Fault::NoSpace(_))));
    }
}

/// Exactly requested blocks and inodes are allocated once and counted, and refused while they are in use or
/// freed but not committed.
#[test]
fn exactly_these_are_taken_once() {
    let image = Image::mke2fs("16M", &["-b", "1024"]);
    let alloc = image.open(Options::default());
    let edit = image.edit(extant_base::Tid(1));
    let free = alloc.usage();
    let request = Request { goal: Pblk(12_000), len: 30, min_len: 30, flags: Flags::DATA, stream: None };
    let (start, len) = alloc.allocate(&edit, &request).unwrap();
    alloc.free(&edit, start, len.into(), false).unwrap();
    assert!(alloc.take_these(&edit, start, len.into()).is_err(), "freed, and not committed");
    alloc.committed(extant_base::Tid(1));
    let edit = image.edit(extant_base::Tid(2));
    alloc.take_these(&edit, start, len.into()).unwrap();
    assert_eq!(alloc.usage().blocks_free, free.blocks_free - 30);
    assert!(alloc.take_these(&edit, start, 1).is_err(), "in use");
    assert!(alloc.take_these(&edit, Pblk(1), 1).is_err(), "the file system's own");
    assert!(alloc.take_these(&edit, Pblk(image.geometry.blocks - 1), 2).is_err(), "outside");
    alloc.free(&edit, start, len.into(), false).unwrap();

    let ino = Ino(100);
    assert!(!alloc.is_inode_used(ino).unwrap());
    alloc.take_this_inode(&edit, ino, false).unwrap();
    assert!(alloc.is_inode_used(ino).unwrap());
    assert_eq!(alloc.usage().inodes_free, free.inodes_free - 1);
    assert!(alloc.take_this_inode(&edit, ino, false).is_err(), "in use");
    assert!(alloc.take_this_inode(&edit, Ino(u32::MAX), false).is_err(), "no inode's number");
    alloc.free_inode(&edit, ino, false).unwrap();
    assert_eq!(alloc.usage().inodes_free, free.inodes_free);
    alloc.committed(extant_base::Tid(2));
    image.judge(&alloc);
}
