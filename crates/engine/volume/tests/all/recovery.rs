//! One recovery: an open for reading shows the tree that an open for writing leaves, whatever the moment of
//! the power cut, and writes nothing. The captures of the kernel's dirty logs are compared in `dirty`.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::Device;
use extant_ondisk::group_desc::GroupDesc;
use extant_simdisk::{Image, SimDisk};
use extant_testkit::Manifest;
use extant_volume::{New, OpenOptions, Volume, WriteOptions};

const BLOCK: u64 = 1024;
/// Pieces of each file.
const PIECES: u64 = 1500;

fn options() -> OpenOptions {
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    OpenOptions { write, ..OpenOptions::default() }
}

fn open(disk: &Arc<SimDisk>) -> Volume {
    Volume::open(Arc::clone(disk) as Arc<dyn Device>, &options()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn open_to_read(disk: &Arc<SimDisk>) -> Volume {
    let opened = Volume::open_read_only(Arc::clone(disk) as Arc<dyn Device>, &OpenOptions::default());
    opened.unwrap_or_else(|fault| panic!("{fault}"))
}

fn tree(disk: &Arc<SimDisk>) -> Manifest {
    common::manifest(&open_to_read(disk))
}

/// A disk with two orphans: a file to be truncated, and one to be deleted.
fn with_orphans(features: &str) -> Arc<SimDisk> {
    let scratch = extant_testkit::scratch();
    let path = common::small::image(scratch.path(), &["-b", "1024", "-O", features], &[]);
    let volume = common::small::open(&path);
    let inos = [&b"cut"[..], b"gone"].map(|name| {
        let ino = volume.names().create(Ino::ROOT, name, &New::file(0o644)).unwrap().ino();
        (0..PIECES).for_each(|piece| {
            volume.files().write_at(ino, piece * 2 * BLOCK, &[piece as u8; 1000]).unwrap();
        });
        ino
    });
    volume.close().unwrap();
    let [cut, gone] = inos;
    for request in [
        format!("set_inode_field <{cut}> size {}", PIECES * BLOCK),
        "unlink gone".to_owned(),
        format!("set_inode_field <{gone}> links_count 0"),
        format!("set_inode_field <{gone}> dtime @{cut}"),
        format!("set_super_value last_orphan {gone}"),
    ] {
        common::small::edit(&path, &request);
    }
    Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).unwrap())))
}

#[test]
fn what_is_shown_is_what_recovery_leaves_at_every_cut() {
    for features in ["orphan_file", "^orphan_file", "^extent,^64bit,^orphan_file"] {
        let disk = with_orphans(features);
        disk.start_recording();
        open(&disk).close().unwrap();
        let recording = disk.recorded().unwrap();
        let (mut truncations, mut deletions) = (0, 0);
        for at in recording.moments() {
            let cut = Arc::new(recording.cut(at, at));
            let events = cut.events();
            let volume = open_to_read(&cut);
            let shown = common::manifest(&volume);
            // Only the first sector of a commit block may be left.
            let problem = volume.recovery().problems.iter().find(|problem| !problem.contains("first sector"));
            assert_eq!(problem, None, "{features}, cut at {at}");
            drop(volume);
            assert_eq!(cut.events(), events, "{features}, cut at {at}: reading wrote");
            let volume = open(&cut);
            truncations += volume.recovery().truncated_orphans;
            deletions += volume.recovery().deleted_orphans;
            volume.close().unwrap();
            let lines = common::differences(&shown, &tree(&cut));
            assert!(lines.is_empty(), "{features}, cut at {at}:\n  {}", lines.join("\n  "));
        }
        println!("{features}: {truncations} truncations, {deletions} deletions in {:?}", recording.moments());
        assert!(truncations > 3 && deletions > 0, "{features}: {truncations}, {deletions}");
    }
}

/// A recovery in memory that fails is not fatal: the volume is shown without that stage.
#[test]
fn a_sweep_that_fails_in_memory_is_reported() {
    let cut = with_orphans("^orphan_file");
    assert_eq!(open_to_read(&cut).recovery().truncated_orphans, 1);
    let sound = tree(&cut);
    // Each byte of the block bitmaps of both groups is inverted.
    for group in 0..2 {
        let mut desc = [0; 64];
        cut.read_at(2 * BLOCK + group * 64, &mut desc).unwrap();
        let bitmap = GroupDesc::decode(&desc).unwrap().block_bitmap * BLOCK;
        let mut bytes = [0; BLOCK as usize];
        cut.read_at(bitmap, &mut bytes).unwrap();
        cut.write_at(bitmap, &bytes.map(|byte| !byte)).unwrap();
    }
    let volume = open_to_read(&cut);
    let problems = &volume.recovery().problems;
    assert!(problems.iter().any(|line| line.contains("orphans")), "{problems:?}");
    let shown = common::manifest(&volume);
    assert_eq!(shown.entries.len(), sound.entries.len());
    for (path, entry) in &sound.entries {
        let shown = &shown.entries[path];
        assert_eq!((&entry.content, entry.size), (&shown.content, shown.size), "{}", path.escape_ascii());
    }
}

/// Images of the kernel after a crash, with fast commits and with orphans.
#[test]
fn the_kernels_dirty_images_are_shown_as_recovery_leaves_them() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/rules");
    for (name, has_fast_commits) in [("crash-fast-commit", true), ("crash-orphan-list", false)] {
        let packed = std::fs::read(dir.join(format!("{name}.img.zst"))).unwrap();
        let bytes = zstd::decode_all(&packed[..]).unwrap();
        let disk = Arc::new(SimDisk::from_image(Image::from_bytes(&bytes)));
        let volume = open_to_read(&disk);
        let recovery = volume.recovery().clone();
        assert_eq!(recovery.fast_commit_records > 0, has_fast_commits, "{name}: {recovery:?}");
        let shown = common::manifest(&volume);
        drop(volume);
        Volume::open(Arc::clone(&disk) as Arc<dyn Device>, &OpenOptions::default()).unwrap().close().unwrap();
        let lines = common::differences(&shown, &tree(&disk));
        assert!(lines.is_empty(), "{name}:\n  {}", lines.join("\n  "));
    }
}
