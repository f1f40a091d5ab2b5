//! Logs written by the kernel. Images are copied while they are mounted and busy. An overlay shows one copy,
//! and e2fsck replays another: every block must be the same.
//!
//! Mounting needs root. Without it the tests print a note and pass.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::{BlockSize, Pblk};
use extant_device::{Device, FileDevice};
use extant_jbd2_format::fast_commit::{NameChange, Record};
use extant_jbd2_format::{Checksums, Features};
use extant_journal::{EndReason, Log, LogMap, LogRun, Overlay, ReplayPlan, ReplayTarget, scan};
use extant_testkit::{LoopDevice, LoopMount, command, debugfs, is_root, run, scratch};

/// An image copied while the kernel used it.
struct Captured {
    dir: tempfile::TempDir,
    image: PathBuf,
    /// No write happened during the copy.
    still: bool,
    block_size: BlockSize,
}

/// How an image is made and mounted.
struct Recipe {
    mkfs: &'static [&'static str],
    block_size: u64,
    mount: &'static str,
    size: &'static str,
}

const LARGE: Recipe = Recipe { mkfs: &[], block_size: 4096, mount: "rw", size: "96M" };
const SMALL: Recipe = Recipe { size: "24M", ..LARGE };

fn can_run() -> bool {
    if !is_root() {
        println!("skipped: not root");
    }
    is_root()
}

fn mkfs(recipe: &Recipe, image: &Path) {
    let block_size = recipe.block_size.to_string();
    let mut args = vec!["-q", "-F", "-t", "ext4", "-b", &block_size];
    args.extend(recipe.mkfs);
    args.extend([image.to_str().unwrap(), recipe.size]);
    run("mke2fs", args);
}

/// Makes a file's data and metadata durable: the journal commits, and the blocks stay in the log for a while.
fn sync(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

/// Creates, grows and deletes files; creates and removes directories, so that their blocks are revoked and
/// reused.
fn work(root: &Path, round: u32) {
    let dir = root.join(format!("dir {round}"));
    fs::create_dir(&dir).unwrap();
    for n in 0..40 {
        fs::write(dir.join(format!("a file with a long name {n}")), vec![round as u8; 700 * n]).unwrap();
    }
    sync(&dir);
    if round % 3 == 2 {
        fs::remove_dir_all(root.join(format!("dir {}", round - 1))).unwrap();
        // In mode data=journal this block is logged and must be escaped.
        let mut file = File::create(root.join(format!("magic {round}"))).unwrap();
        file.write_all(&[0xC0, 0x3B, 0x39, 0x98].repeat(3000)).unwrap();
        file.sync_all().unwrap();
    }
}

/// Copies an image in use. It starts over if another process interfered (for example a sync of all file
/// systems): then deleted inodes can be held for a moment, and a replay of the log deletes them; or the log
/// is empty.
fn capture(recipe: &Recipe, rounds: u32) -> Captured {
    for _ in 0..20 {
        let captured = capture_once(recipe, rounds);
        match captured.fault() {
            None => return captured,
            Some(fault) => eprintln!("captured again: {fault}"),
        }
    }
    panic!("something uses the file systems of this test all the time")
}

fn capture_once(recipe: &Recipe, rounds: u32) -> Captured {
    let dir = scratch();
    let (live, image) = (dir.path().join("live.img"), dir.path().join("captured.img"));
    mkfs(recipe, &live);
    let mounted = LoopMount::new(&live, recipe.mount).unwrap();
    for round in 0..rounds {
        work(mounted.path(), round);
    }
    fs::copy(&live, &image).unwrap();
    let still = fs::read(&live).unwrap() == fs::read(&image).unwrap();
    drop(mounted);
    Captured { dir, image, still, block_size: BlockSize::from_bytes(recipe.block_size).unwrap() }
}

impl Captured {
    fn blocks(&self) -> u64 {
        fs::metadata(&self.image).unwrap().len() / self.block_size.bytes()
    }

    fn device(&self) -> Arc<dyn Device> {
        Arc::new(FileDevice::open(&self.image, false).unwrap())
    }

    /// The journal's runs, from debugfs: `0/ 0   1/  1     0 -  4095  8193 - 12288   4096`.
    fn map(&self) -> LogMap {
        let listing = debugfs(&self.image, "dump_extents <8>");
        let mut runs = Vec::new();
        for line in listing.lines().skip(1) {
            let numbers: Vec<u64> = line
                .split(|c: char| !c.is_ascii_digit())
                .filter(|word| !word.is_empty())
                .map(|word| word.parse().unwrap())
                .collect();
            if let [level, depth, _, _, log, _, start, _, len] = numbers[..]
                && level == depth
            {
                runs.push(LogRun { log: log as u32, start: Pblk(start), len: len as u32 });
            }
        }
        let blocks = runs.iter().map(|run| run.len).sum();
        LogMap::internal(runs, blocks, self.blocks()).unwrap()
    }

    fn log(&self) -> Log {
        Log::new(self.device(), self.map(), self.block_size)
    }

    fn scan(&self) -> ReplayPlan {
        scan(self.log().view(), &ReplayTarget::new(self.blocks(), self.block_size)).unwrap()
    }

    /// Why a replay of its log would do more than copy blocks, or nothing.
    fn fault(&self) -> Option<String> {
        if !self.still {
            return Some("it was written to meanwhile".to_owned());
        }
        let log = self.log();
        let plan = match scan(log.view(), &ReplayTarget::new(self.blocks(), self.block_size)) {
            Ok(plan) => plan,
            Err(fault) => return Some(fault.to_string()),
        };
        let overlay = Overlay::builder(self.device(), self.block_size).replay(&log, &plan).unwrap().build();
        let mut last_orphan = [0; 4];
        overlay.read_at(1024 + 0xE8, &mut last_orphan).unwrap();
        (last_orphan != [0; 4]).then(|| format!("orphan {}", u32::from_le_bytes(last_orphan)))
    }

    /// Lets e2fsck replay a copy, and compares all its blocks except superblock and journal with an overlay.
    fn compare(&self, log: &Log, plan: &ReplayPlan, e2fsck: &[&str], story: &str) {
        let copy = self.dir.path().join("replayed.img");
        fs::copy(&self.image, &copy).unwrap();
        let mut command = command("e2fsck");
        let output = command.args(["-y", "-E", "journal_only"]).args(e2fsck).arg(&copy).output().unwrap();
        assert!(output.status.code().is_some_and(|code| code <= 1), "{story}: {output:?}");

        let overlay = Overlay::builder(self.device(), self.block_size).replay(log, plan).unwrap().build();
        assert_eq!(overlay.replaced_blocks(), plan.homes.len(), "{story}");
        let (before, replayed) = (File::open(&self.image).unwrap(), File::open(&copy).unwrap());
        let len = self.block_size.len();
        let (mut ours, mut theirs, mut raw) = (vec![0; len], vec![0; len], vec![0; len]);
        let superblock = 1024 / self.block_size.bytes();
        let mut changed = 0;
        for block in 0..self.blocks() {
            if block == superblock || log.map().occupies(Pblk(block)) {
                continue;
            }
            let offset = block * self.block_size.bytes();
            overlay.read_at(offset, &mut ours).unwrap();
            replayed.read_exact_at(&mut theirs, offset).unwrap();
            assert!(
                ours == theirs,
                "{story}: {}, {:?}\n{plan}\n{}",
                difference(block, &ours, &theirs),
                plan.home(Pblk(block)),
                String::from_utf8_lossy(&output.stdout),
            );
            before.read_exact_at(&mut raw, offset).unwrap();
            changed += u32::from(raw != theirs);
        }
        assert!(changed > 0, "{story}: replay changed nothing, so the test shows nothing\n{plan}");
        eprintln!(
            "{story}: {} transactions, {} homes, {changed} blocks changed, {} copies revoked, ends at {}",
            plan.transactions.len(),
            plan.homes.len(),
            plan.revoked_copies,
            plan.end.reason
        );
    }
}

#[test]
fn an_overlay_shows_what_e2fsck_writes_home() {
    if !can_run() {
        return;
    }
    let small = &["-J", "size=4"];
    let old = &["-O", "^metadata_csum,^64bit"];
    let asynchronous = "rw,journal_async_commit,data=writeback";
    let both = "rw,data=journal,journal_checksum";
    let recipes = [
        ("4k", LARGE, Checksums::V3, 9),
        ("1k", Recipe { block_size: 1024, ..LARGE }, Checksums::V3, 9),
        ("wraps round", Recipe { mkfs: small, ..LARGE }, Checksums::V3, 80),
        ("no checksums", Recipe { mkfs: old, ..LARGE }, Checksums::None, 9),
        (
            "version 1",
            Recipe { mkfs: old, block_size: 2048, mount: "rw,journal_checksum", ..LARGE },
            Checksums::V1,
            9,
        ),
        ("async", Recipe { mount: asynchronous, ..LARGE }, Checksums::V3, 9),
        ("journalled data", Recipe { block_size: 1024, mount: "rw,data=journal", ..LARGE }, Checksums::V3, 9),
        ("both", Recipe { mkfs: old, block_size: 1024, mount: both, ..LARGE }, Checksums::V1, 9),
    ];
    let (mut revoked, mut escaped) = (0, 0);
    for (story, recipe, checksums, rounds) in recipes {
        let captured = capture(&recipe, rounds);
        let plan = captured.scan();
        assert!(plan.is_sound() && plan.problems.is_empty(), "{story}\n{plan}");
        assert_eq!(plan.format.checksums, checksums, "{story}");
        assert!(plan.transactions.len() > 1, "{story}\n{plan}");
        assert!(!matches!(plan.end.reason, EndReason::FailedCommit | EndReason::WholeLog), "{story}\n{plan}");
        revoked += plan.revoked_copies;
        escaped += plan.transactions.iter().map(|t| t.escaped).sum::<u32>();
        captured.compare(&captured.log(), &plan, &[], story);
    }
    assert!(revoked > 0 && escaped > 0, "{revoked} {escaped}");
}

#[test]
fn fast_commits_of_the_kernel_are_found() {
    if !can_run() {
        return;
    }
    let recipe = Recipe { mkfs: &["-O", "fast_commit"], ..LARGE };
    let dir = scratch();
    let (live, image) = (dir.path().join("live.img"), dir.path().join("captured.img"));
    mkfs(&recipe, &live);
    let mounted = LoopMount::new(&live, recipe.mount).unwrap();
    work(mounted.path(), 0);
    // A full commit, and then only changes that a fast commit can record.
    run("sync", ["-f".as_ref(), mounted.path().as_os_str()]);
    for n in 0..20 {
        let path = mounted.path().join(format!("fast {n}"));
        fs::write(&path, "content").unwrap();
        sync(&path);
    }
    fs::copy(&live, &image).unwrap();
    drop(mounted);
    let captured = Captured { dir, image, still: true, block_size: BlockSize::KIB4 };
    let plan = captured.scan();
    assert!(plan.superblock.features.has_incompat(Features::FAST_COMMIT) && plan.is_sound(), "{plan}");
    let commits = plan.fast_commits.as_ref().unwrap_or_else(|| panic!("no fast commits\n{plan}"));
    let created: Vec<&[u8]> = commits
        .records()
        .filter_map(|record| match record {
            Record::Name { change: NameChange::Create, name, .. } => Some(name),
            _ => None,
        })
        .collect();
    // The first of them may be part of a full commit; the last one was just synced.
    assert_eq!(created.last(), Some(&b"fast 19".as_slice()), "{plan}");
    assert_eq!(created.len() as u64, commits.counts.creations);
    assert!(commits.counts.commits > 0 && commits.counts.inodes >= commits.counts.creations, "{plan}");
    eprintln!("{commits}");

    // Without the fast commits, the blocks still equal e2fsck's result.
    let file = File::options().write(true).open(&captured.image).unwrap();
    let map = captured.map();
    for at in plan.fast_commit_area.clone().unwrap() {
        let place = captured.block_size.offset_of(map.find(at).unwrap().0).unwrap();
        file.write_all_at(&[0; 4096], place).unwrap();
    }
    let plan = captured.scan();
    assert_eq!(plan.fast_commits, None);
    if !plan.homes.is_empty() {
        captured.compare(&captured.log(), &plan, &[], "fast commits taken out");
    }
}

#[test]
fn a_journal_on_a_device_of_its_own_is_replayed_from_there() {
    if !can_run() {
        return;
    }
    for block_size in [1024u64, 4096] {
        let dir = scratch();
        let [live, journal, image, log_image] =
            ["live.img", "journal.img", "captured.img", "captured-journal.img"]
                .map(|name| dir.path().join(name));
        let bytes = block_size.to_string();
        run("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", &bytes, journal.to_str().unwrap(), "16M"]);
        let device = LoopDevice::attach(&journal).unwrap();
        let option = format!("device={}", device.path().display());
        run(
            "mke2fs",
            ["-q", "-F", "-t", "ext4", "-b", &bytes, "-J", &option, live.to_str().unwrap(), LARGE.size],
        );
        let mounted = LoopMount::new(&live, &format!("rw,journal_path={}", device.path().display())).unwrap();
        for round in 0..6 {
            work(mounted.path(), round);
        }
        fs::copy(&live, &image).unwrap();
        // Copies are written past the device's own cache, which may therefore show older contents while the
        // device is open: read the file.
        File::open(device.path()).unwrap().sync_all().unwrap();
        fs::copy(&journal, &log_image).unwrap();
        drop(mounted);
        drop(device);

        let captured =
            Captured { dir, image, still: true, block_size: BlockSize::from_bytes(block_size).unwrap() };
        let blocks = (fs::metadata(&log_image).unwrap().len() / block_size) as u32;
        let map = LogMap::external(blocks, captured.block_size);
        let log = Log::new(Arc::new(FileDevice::open(&log_image, false).unwrap()), map, captured.block_size);
        let mut target = ReplayTarget::new(captured.blocks(), captured.block_size);
        target.journal_uuid = Some([9; 16]);
        assert!(scan(log.view(), &target).unwrap_err().to_string().contains("another file system"));
        target.journal_uuid = None;
        let plan = scan(log.view(), &target).unwrap();
        assert!(plan.transactions.len() > 1 && plan.is_sound(), "{plan}");
        let spare = captured.dir.path().join("replayed-journal.img");
        fs::copy(&log_image, &spare).unwrap();
        captured.compare(
            &log,
            &plan,
            &["-j", spare.to_str().unwrap()],
            &format!("external journal, {block_size}"),
        );
    }
}

/// A small random number generator (xorshift64*), sufficient to choose bytes.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8) % end
    }
}

/// Where two versions of a block differ, to find what changed it.
fn difference(block: u64, ours: &[u8], theirs: &[u8]) -> String {
    let differing: Vec<usize> = (0..ours.len()).filter(|&at| ours[at] != theirs[at]).collect();
    let some: Vec<String> =
        differing.iter().take(24).map(|&at| format!("{at}: {:#04x} {:#04x}", ours[at], theirs[at])).collect();
    format!("block {block}, {} bytes (byte: ours theirs) {}", differing.len(), some.join(", "))
}

/// One byte of the log is changed. Either the kernel mounts and its replay equals the overlay; or it refuses,
/// and the plan reports a loss. In both cases the blocks are the same.
#[test]
fn the_kernel_replays_damaged_logs_alike_and_refuses_what_we_call_a_loss() {
    if !can_run() {
        return;
    }
    let old = &["-O", "^metadata_csum,^64bit"];
    let recipes = [
        ("version 3", Recipe { mkfs: &[], mount: "rw", ..SMALL }),
        ("no checksums", Recipe { mkfs: old, mount: "rw", ..SMALL }),
        ("version 1", Recipe { mkfs: old, mount: "rw,journal_checksum", ..SMALL }),
        ("async", Recipe { mkfs: &[], mount: "rw,journal_async_commit,data=writeback", ..SMALL }),
        ("async, version 1", Recipe { mkfs: old, mount: "rw,journal_async_commit,data=writeback", ..SMALL }),
    ];
    let seed = std::env::var("EXTANT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1u64);
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for (story, recipe) in recipes {
        let captured = capture(&recipe, 6);
        let log = captured.log();
        let whole = captured.scan();
        let used: u32 = whole.transactions.iter().map(|t| t.log_blocks).sum();
        assert!(whole.superblock.start + used + 2 < whole.superblock.log_end(), "{story}: it wraps round");
        let original = fs::read(&captured.image).unwrap();
        let (mut refusals, mut unsound, mut faults) = (0, 0, 0);
        for round in 0..15 {
            let at = whole.superblock.start + rng.below(u64::from(used) + 2) as u32;
            let within = if rng.below(2) == 0 { rng.below(64) } else { rng.below(4096) };
            let place = (log.view().offset_of(at).unwrap().0 + within) as usize;
            let mut bytes = original.clone();
            bytes[place] ^= 1 + rng.below(255) as u8;
            let story =
                format!("{story}, EXTANT_SEED={seed}, round {round}: byte {within} of log block {at}");
            fs::write(&captured.image, &bytes).unwrap();
            let copy = captured.dir.path().join("replayed.img");
            fs::write(&copy, &bytes).unwrap();
            let refused = LoopMount::new(&copy, "rw,noinit_itable").is_err();
            let theirs = fs::read(&copy).unwrap();
            let ours = match scan(log.view(), &ReplayTarget::new(captured.blocks(), captured.block_size)) {
                Ok(plan) => {
                    assert_eq!(refused, !plan.is_sound(), "{story}\n{plan}");
                    unsound += u32::from(refused);
                    let builder = Overlay::builder(captured.device(), captured.block_size);
                    let mut ours = vec![0; bytes.len()];
                    builder.replay(&log, &plan).unwrap().build().read_at(0, &mut ours).unwrap();
                    ours
                }
                Err(fault) => {
                    assert!(refused, "{story}: {fault}");
                    faults += 1;
                    bytes
                }
            };
            refusals += u32::from(refused);
            let len = captured.block_size.len();
            let differing: Vec<String> = (0..)
                .zip(ours.chunks(len).zip(theirs.chunks(len)))
                .filter(|&(block, (ours, theirs))| {
                    block > 0 && !log.map().occupies(Pblk(block)) && ours != theirs
                })
                .map(|(block, (ours, theirs))| difference(block, ours, theirs))
                .collect();
            assert!(
                differing.is_empty(),
                "{story}, refused: {refused}, before the change: {whole}\nour replay is not the kernel's:\n{}\n{}",
                differing.join("\n"),
                debugfs(&captured.image, "stats -h"),
            );
        }
        eprintln!("{story}: of 15, {refusals} refused: {unsound} plans with a loss, {faults} faults");
    }
}
