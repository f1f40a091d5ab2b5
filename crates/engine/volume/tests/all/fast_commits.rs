//! Power fails while a recovery writes fast commits back: the image reopens with the same tree, and is sound.
//!
//! Environment: `EXTANT_CAPTURES=100` takes more captures, `EXTANT_SEED=n` sets another seed.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use extant_simdisk::{Image, SimDisk};
use extant_testkit::capture::{Options, captures};
use extant_testkit::{DiffOptions, Manifest, diff};
use extant_volume::{OpenOptions, Volume, WriteOptions};

/// Cuts for each capture.
const CUTS: u64 = 24;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn a_write_back_that_is_cut_is_done_again() {
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device or /dev/fuse");
        return;
    }
    let seed = number("EXTANT_SEED", 21);
    let options = Options {
        n_captures: number("EXTANT_CAPTURES", 12) as usize,
        fast_commit: true,
        block_size: 1024,
        seed,
        ..Options::default()
    };
    let (mut with_records, mut cuts, mut superseded) = (0, 0, 0);
    let mut problem: Option<String> = None;
    captures(&options, |capture| {
        let image = Image::from_bytes(&std::fs::read(capture.image).unwrap());
        let disk = Arc::new(SimDisk::recording(image));
        if common::open(capture.image, None).recovery().fast_commit_records == 0 || problem.is_some() {
            return;
        }
        with_records += 1;
        open_and_close(&disk).unwrap();
        let expected = tree(&disk);
        let recording = disk.recorded().unwrap();
        for number in 0..CUTS {
            let span = recording.end() - recording.start();
            let at = recording.start() + span * number / CUTS;
            let again = Arc::new(recording.cut(at, seed ^ number));
            superseded += u64::from(!still_has_fast_commits(&again));
            let judged = open_and_close(&again).map(|()| differences(&expected, &tree(&again)));
            let finding = match judged {
                Ok(lines) if lines.is_empty() => e2fsck(&again, number % 8 == 0),
                Ok(lines) => Some(lines.join("\n  ")),
                Err(why) => Some(why),
            };
            if let Some(finding) = finding {
                problem = Some(format!("capture {}, cut at event {at} of {span}: {finding}", capture.number));
                break;
            }
            cuts += 1;
        }
    });
    println!(
        "seed {seed}: {with_records} captures with fast commits, {cuts} cuts, {superseded} of them after the commit"
    );
    assert!(problem.is_none(), "seed {seed}: {}", problem.unwrap_or_default());
    assert!(with_records > 0 && superseded > 0 && superseded < cuts, "seed {seed}");
}

fn open_and_close(disk: &Arc<SimDisk>) -> Result<(), String> {
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let volume = Volume::open(Arc::clone(disk) as Arc<dyn extant_device::Device>, &options);
    volume.map_err(|fault| fault.to_string())?.close().map_err(|fault| fault.to_string())
}

fn read(disk: &Arc<SimDisk>) -> Volume {
    Volume::open_read_only(Arc::clone(disk) as Arc<dyn extant_device::Device>, &OpenOptions::default())
        .unwrap()
}

fn still_has_fast_commits(disk: &Arc<SimDisk>) -> bool {
    read(disk).recovery().fast_commit_records > 0
}

fn tree(disk: &Arc<SimDisk>) -> Manifest {
    common::manifest(&read(disk))
}

/// Ignores the times of directories, which are those of the recovery, and the blocks that recovery allocated.
fn differences(expected: &Manifest, found: &Manifest) -> Vec<String> {
    let lines = diff(expected, found, &DiffOptions::exact(1024)).into_iter();
    lines.filter(|line| !["time is ", ": extent "].iter().any(|words| line.contains(words))).collect()
}

fn e2fsck(disk: &Arc<SimDisk>, is_asked: bool) -> Option<String> {
    if !is_asked {
        return None;
    }
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let file = std::fs::File::create(&path).unwrap();
    let image = disk.image();
    file.set_len(image.size_bytes()).unwrap();
    image.for_each_chunk(|at, bytes| std::os::unix::fs::FileExt::write_all_at(&file, bytes, at)).unwrap();
    let checked = extant_testkit::command("e2fsck").args([Path::new("-fn"), &path]).output().unwrap();
    (!checked.status.success()).then(|| String::from_utf8_lossy(&checked.stdout).into_owned())
}
