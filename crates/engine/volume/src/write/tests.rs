//! Tests that need the crate's internals.

mod shift;

use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;

use super::{New, unprivileged};
use crate::{OpenOptions, Volume};

#[test]
fn the_group_bit_stays_where_it_means_something_else() {
    assert_eq!([0o6755, 0o6745, 0o4644, 0o0777].map(unprivileged), [0o0755, 0o2745, 0o0644, 0o0777]);
}

/// Extent status that was cached between an unmap's first invalidation and the unmap itself, from an extent
/// that was converted elsewhere, goes with the blocks.
#[test]
fn what_is_unmapped_is_known_no_more() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "1024", path.to_str().unwrap(), "16M"]);
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let ino = volume.names().create(Ino::ROOT, b"file", &New::file(0o644)).unwrap().ino();
    volume.files().write_at(ino, 0, &[7; 100 << 10]).unwrap();
    volume.files().fsync(ino).unwrap();
    let writer = volume.writer.as_ref().unwrap();
    let node = writer.inodes().get(ino).unwrap();
    assert_eq!(volume.files().precache_extents(ino).unwrap(), 1);
    let credits = extant_inode::Change::cut_credits(writer.shared());
    writer.run(credits, |change| Ok(change.punch(&node, 20..40)?)).unwrap();
    volume.files().check_file(ino).unwrap();
    writer.run(credits, |change| Ok(change.cut(&node, 70)?)).unwrap();
    volume.files().check_file(ino).unwrap();
}

/// Another machine owns the file system now, its log and its superblock included.
#[test]
fn after_the_loss_of_a_file_system_nothing_is_written_to_it() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", path.to_str().unwrap(), "16M"]);
    for is_lost in [true, false] {
        let device = Arc::new(FileDevice::open(&path, true).unwrap());
        let volume = Volume::open(device, &OpenOptions::default()).unwrap();
        volume.names().create(Ino::ROOT, format!("{is_lost}").as_bytes(), &New::file(0o644)).unwrap();
        let before = std::fs::read(&path).unwrap();
        let writer = volume.writer.as_ref().unwrap();
        writer.keeper.errors.is_lost.store(is_lost, std::sync::atomic::Ordering::Release);
        writer.journal.abort("another writer has it".to_owned());
        assert!(volume.names().create(Ino::ROOT, b"later", &New::file(0o644)).is_err());
        assert!(volume.sync().is_err());
        let _ = volume.close();
        assert_eq!(std::fs::read(&path).unwrap() == before, is_lost);
    }
}

/// docs/reclaim.md has a row for each cache that charges the budget, and no other.
#[test]
fn every_cache_has_its_row_on_the_page_about_reclaim() {
    let page = include_str!("../../../../../docs/reclaim.md");
    let mut rows: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, _)| name)
        .collect();
    rows.sort_unstable();
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", path.to_str().unwrap(), "16M"]);
    let mut names = std::collections::BTreeSet::new();
    for open in [Volume::open, Volume::open_read_only] {
        let device = Arc::new(FileDevice::open(&path, true).unwrap());
        let volume = open(device, &OpenOptions::default()).unwrap();
        names.extend(volume.inodes.shared().budget.shrinkers().iter().map(|cache| cache.name()));
        volume.close().unwrap();
    }
    assert_eq!(rows, names.into_iter().collect::<Vec<_>>());
}

/// The state that directory changes cache is charged to the budget, and is reclaimed when memory is short if
/// the directory was not changed meanwhile.
#[test]
fn directories_give_memory_back() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "30000", path.to_str().unwrap(), "64M"],
    );
    let device = Arc::new(FileDevice::open(&path, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let budget = &volume.inodes.shared().budget;
    let shrinker = budget.shrinkers().into_iter().find(|known| known.name() == "directory caches").unwrap();
    let make = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let name = format!("a-name-that-is-somewhat-longer-{number}");
            volume.names().create(Ino::ROOT, name.as_bytes(), &New::file(0o644)).unwrap();
        }
    };
    make(0..10_000);
    let (held, used) = (shrinker.cached_bytes(), budget.used());
    assert!(held > 60_000, "{held}");
    let node = volume.writer.as_ref().unwrap().inodes().get(Ino::ROOT).unwrap();
    let values = node.values();
    assert_eq!(shrinker.shrink(usize::MAX), 0, "it is being changed");
    drop(values);
    make(10_000..10_001);
    let held = shrinker.cached_bytes();
    assert_eq!(shrinker.shrink(usize::MAX), 0, "it was changed just now");
    assert_eq!(shrinker.shrink(usize::MAX), held);
    assert_eq!(shrinker.cached_bytes(), 0);
    assert!(budget.used() < used - held / 2, "{budget:?}");
    make(10_001..20_000);
    assert!(shrinker.cached_bytes() > held);
    let stats = volume.counters().dir_stats(Ino::ROOT).unwrap();
    assert_eq!(stats.inserts, 20_000);
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

/// Reading inodes of a writable volume charges the budget for everything that stays in memory; eviction
/// returns the charge.
#[test]
fn snapshots_are_charged_and_evicted() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", "-N", "30000", path.to_str().unwrap(), "64M"]);
    let volume =
        Volume::open(Arc::new(FileDevice::open(&path, true).unwrap()), &OpenOptions::default()).unwrap();
    let made: Vec<Ino> = (0..2000)
        .map(|number| {
            volume
                .names()
                .create(Ino::ROOT, format!("f{number}").as_bytes(), &New::file(0o644))
                .unwrap()
                .ino()
        })
        .collect();
    volume.sync().unwrap();
    let budget = &volume.inodes.shared().budget;
    let read_all = || {
        let before = budget.used();
        made.iter().for_each(|ino| assert_eq!(volume.inode(*ino).unwrap().ino(), *ino));
        budget.used() - before
    };
    assert_eq!(read_all(), 0, "creating them left snapshots");
    let before = budget.used();
    made.iter().for_each(|ino| volume.evict(*ino));
    let evicted = before - budget.used();
    let per_inode = evicted / made.len();
    assert!(per_inode > size_of::<extant_inode::Inode>(), "{per_inode} bytes of each inode");
    let again = read_all();
    assert!(again.abs_diff(evicted) < 4096, "reading them takes what eviction returned: {again} {evicted}");
    assert_eq!(read_all(), 0);
    assert_eq!(volume.inode(made[7]).unwrap().ino(), made[7]);
    volume.close().unwrap();
}

/// When memory is short, a directory in active use keeps its cached state, and unused state is evicted. Of
/// more directories than fit in memory, each keeps a part.
#[test]
fn a_directory_in_use_is_not_forgotten_when_memory_is_short() {
    let ground = |inodes: u32| {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let inodes = inodes.to_string();
        extant_testkit::run(
            "mke2fs",
            ["-q", "-F", "-t", "ext4", "-N", &inodes, path.to_str().unwrap(), "256M"],
        );
        let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
        let volume = Volume::open(Arc::new(FileDevice::open(&path, true).unwrap()), &options).unwrap();
        (scratch, path, volume)
    };
    for dirs in [1, 3] {
        let (_scratch, path, volume) = ground(100_000);
        let made: Vec<Ino> = (0..dirs)
            .map(|dir| {
                volume
                    .names()
                    .create_number(Ino::ROOT, format!("{dir}").as_bytes(), &New::directory(0o755))
                    .unwrap()
            })
            .collect();
        for number in 0..90_000 {
            let dir = made[number % dirs];
            volume
                .names()
                .create_number(dir, format!("file-{number}").as_bytes(), &New::file(0o644))
                .unwrap();
        }
        for dir in made {
            let stats = volume.counters().dir_stats(dir).unwrap();
            assert!(stats.leaf_reads < stats.inserts / 10, "{dirs}: {stats}");
        }
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
    }
}
