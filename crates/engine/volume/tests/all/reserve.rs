//! Root's reserve: ordinary users stop before it; root continues until only the pool of metadata is left, as
//! with the kernel.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_volume::{Acting, DataPath, New, OpenOptions, Refusal, Volume, WriteOptions};

/// Blocks of the reserve: 5 % of 16 MiB in blocks of 4 KiB.
const RESERVED: u64 = 204;
/// Blocks of the pool that protects metadata from running out of space: 2 %.
const POOL: u64 = 81;

fn make(path: &Path, options: &[&str]) {
    let args = ["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "5"].iter().chain(options).copied();
    extant_testkit::run("mke2fs", args.chain([path.to_str().unwrap(), "16M"]));
}

fn open(path: &Path, data: DataPath, keep_reserve: bool) -> Volume {
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let write = WriteOptions { data, keep_reserve, ..WriteOptions::default() };
    Volume::open(device, &OpenOptions { write, ..OpenOptions::default() }).unwrap()
}

fn create(volume: &Volume, name: &str) -> Ino {
    volume.names().create(volume.root().unwrap().ino(), name.as_bytes(), &New::file(0o644)).unwrap().ino()
}

/// Appends until there is no space. Returns the number of blocks.
fn fill(volume: &Volume, ino: Ino) -> u64 {
    let mut blocks = 0;
    loop {
        match volume.files().append(ino, &[7; 4096]) {
            Ok((_, done)) => blocks += done as u64 / 4096,
            Err(fault) => {
                assert!(fault.is(Refusal::NoSpace), "{fault}");
                return blocks;
            }
        }
    }
}

#[test]
fn the_reserve_is_roots() {
    for data in [DataPath::Iomap, DataPath::Ordered, DataPath::Journal] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, &[]);
        let volume = open(&path, data, true);
        let (theirs, roots) = (create(&volume, "theirs"), create(&volume, "roots"));
        fill(&volume, theirs);
        volume.sync().unwrap();
        let full = volume.statfs().unwrap();
        assert_eq!(full.blocks_available, 0, "{data:?}");
        // Besides its bytes, a write may need a block of the map.
        assert!((RESERVED + POOL - 2..=RESERVED + POOL).contains(&full.blocks_free), "{data:?}: {full:?}");
        let more = {
            let _root = Acting::as_root();
            fill(&volume, roots)
        };
        assert!((RESERVED - 4..=RESERVED).contains(&more), "{data:?}: {more}");
        // The privilege is limited to the thread and to the lifetime of the guard.
        assert!(volume.files().append(theirs, b"x").is_err_and(|fault| fault.is(Refusal::NoSpace)));
        volume.sync().unwrap();
        let full = volume.statfs().unwrap();
        assert!(full.blocks_available == 0 && full.blocks_free <= POOL, "{data:?}: {full:?}");
        // All reserved bytes reached the device: nothing is lost.
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path, data, true);
        assert_eq!(volume.inode(roots).unwrap().size(), more * 4096);
        let mut found = vec![0; (more * 4096) as usize];
        assert_eq!(volume.files().read_at(roots, 0, &mut found).unwrap(), found.len());
        assert!(found.iter().all(|byte| *byte == 7));
        volume.close().unwrap();
    }
}

/// A block map needs a block per 1024 blocks of data, and these blocks were not reserved.
#[test]
fn root_fills_a_file_system_without_extents_to_the_pool_and_loses_nothing() {
    for data in [DataPath::Iomap, DataPath::Ordered, DataPath::Journal] {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        make(&path, &["-O", "^extents,^64bit"]);
        let volume = open(&path, data, false);
        let file = create(&volume, "file");
        // In one call, so that all bytes are reserved before the map takes a block.
        let blocks = volume.files().write_at(file, 0, &vec![7; 32 << 20]).unwrap() as u64 / 4096;
        assert!(blocks > 2000, "{data:?}: {blocks}");
        assert!(volume.files().append(file, b"x").is_err_and(|fault| fault.is(Refusal::NoSpace)));
        volume.files().fsync(file).unwrap();
        let full = volume.statfs().unwrap();
        assert!(full.blocks_free <= POOL, "{data:?}: {full:?}");
        volume.close().unwrap();
        extant_testkit::e2fsck_clean(&path);
        let volume = open(&path, data, false);
        let mut found = vec![0; (blocks * 4096) as usize];
        assert_eq!(volume.files().read_at(file, 0, &mut found).unwrap(), found.len());
        assert!(found.iter().all(|byte| *byte == 7));
        volume.close().unwrap();
    }
}

#[test]
fn the_library_acts_as_root_by_default() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let volume = open(&path, DataPath::Iomap, false);
    let file = create(&volume, "file");
    let by_user = {
        let _user = Acting::as_user();
        fill(&volume, file)
    };
    assert!(by_user > 0 && fill(&volume, file) >= RESERVED - 4);
    // The allocator found every block of it, and counted them.
    volume.sync().unwrap();
    let stats = volume.counters().alloc_stats().unwrap();
    assert!(stats.clusters >= by_user && stats.success > 0, "{stats}");
    assert!(stats.to_string().contains("groups_scanned"), "{stats}");
    volume.close().unwrap();
    extant_testkit::e2fsck_clean(&path);
}

#[test]
fn the_superblock_says_whose_it_is() {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, &[]);
    let may = |uid: u32, groups: &[u32]| {
        let volume = open(&path, DataPath::Iomap, true);
        let may = volume.may_use_reserve(uid, |group| groups.contains(&group));
        volume.close().unwrap();
        may
    };
    // Root's group gives no access.
    assert!(may(0, &[]) && !may(1000, &[0, 1000]));
    extant_testkit::run("tune2fs", ["-u", "7000", "-g", "8000", path.to_str().unwrap()]);
    assert!(may(7000, &[]) && may(1000, &[5, 8000]) && !may(0, &[]) && !may(1000, &[7000]));
}
