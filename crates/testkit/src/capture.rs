//! Images cut off in the middle of writing: what a power cut leaves, at hundreds of moments of one workload.
//!
//! ```text
//!  workers ──► ext4 (kernel) ──► loop device ──► FUSE file of this process ──► bytes in memory
//!                                                        │ between two write requests
//!                                                        ▼
//!                                                 a copy: one capture
//! ```
//!
//! The backing file of the loop device is served by this process, so that it can be copied *between two
//! writes*: a plain copy of a file that is being written mixes blocks of different moments, states that no
//! crash leaves. Freezing the file system instead would commit its journal first and leave nothing to replay.
//!
//! What a capture is ([`Cut`]): either all writes that the kernel has handed over, or these less some of
//! those that came after the last flush, as a disk with a volatile write cache loses them. Either way each is
//! a state from which the kernel must recover, and a reader of the unreplayed image must see what the kernel
//! sees after its replay.
//!
//! Limits: writes are lost as whole requests or at multiples of 4096 bytes, not within a sector; there is no
//! external journal; the moments differ from run to run, since the kernel's threads do. A capture that fails
//! should be kept.
//!
//! Does **not** own: what is done with a capture. It is given to a callback, and its file is gone afterwards,
//! so that the space needed does not grow with their number. While the callback works, the workers rest.
//!
//! Invariants
//! 1. No thread of this process waits for the mount: see the workers.
//! 2. Order of the end: no more captures, workers stop, unmount, detach, then the FUSE server. In another
//!    order the unmount would wait forever for a disk without a server; a panic of the callback takes the
//!    same path.

mod disk;
mod gate;
mod worker;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

pub use disk::Cut;
use gate::{Gate, State};

use crate::tools::{run, scratch};
use crate::{LoopDevice, LoopMount};

/// How long the workload may go without a write before something must have gone wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// How file data and the journal relate: ext4's `data=` option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Data before the transaction that refers to it.
    Ordered,
    /// Data in the journal.
    Journal,
    /// Data whenever.
    Writeback,
}

/// The checksums of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// None: neither `metadata_csum` nor `journal_checksum`.
    None,
    /// In commit blocks (`journal_checksum` without `metadata_csum`).
    V1,
    /// In commit blocks, and commits that do not wait for their blocks (`journal_async_commit`, which implies
    /// v1).
    V1Async,
    /// In every block (`metadata_csum`).
    V3,
    /// In every block, and commits that do not wait (`journal_async_commit`).
    V3Async,
}

/// A workload and its captures.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many captures.
    pub n_captures: usize,
    /// Writes between two captures, on average.
    pub writes_between: u64,
    /// What is lost.
    pub cut: Cut,
    /// The `data=` option.
    pub data: Data,
    /// The `fast_commit` feature. The kernel makes none with [`Data::Journal`].
    ///
    /// Linux 6.18 is no perfect judge of these: it refuses some captures (about 1 in 20), leaves wrong
    /// counters after the replay of some others (`i_blocks`, free inodes), stamps directories with the time
    /// of the replay, drops a directory that was made with the inode of a removed one, shows a removed
    /// directory's block in the file that was made with its inode, and with `inline_data` leaves files that
    /// it cannot read itself (`ENOENT`).
    pub fast_commit: bool,
    /// The journal's checksums.
    pub checksums: Checksums,
    /// Block size in bytes: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Further features in mke2fs's words: `"inline_data,^orphan_file"`; empty for none.
    pub features: &'static str,
    /// Size of the image in MiB; the journal has 4 MiB.
    pub size_mib: u32,
    /// How many shells write at once.
    pub n_workers: usize,
    /// Where the workers' randomness starts.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            n_captures: 200,
            writes_between: 40,
            cut: Cut::AllHandedOver,
            data: Data::Ordered,
            fast_commit: false,
            checksums: Checksums::V3,
            block_size: 4096,
            features: "",
            size_mib: 32,
            n_workers: 3,
            seed: 1,
        }
    }
}

/// One capture.
#[derive(Debug)]
pub struct Capture<'a> {
    /// From 0 on.
    pub number: usize,
    /// The image, for the duration of the callback. It may be changed.
    pub image: &'a Path,
    /// How many writes the disk had seen.
    pub n_writes: u64,
    /// How many of them, since the last flush, were lost at least in part.
    pub n_lost: u64,
}

impl Options {
    fn mke2fs_features(&self) -> String {
        let mut features: Vec<&str> = vec![match self.checksums {
            Checksums::V3 | Checksums::V3Async => "metadata_csum",
            Checksums::None | Checksums::V1 | Checksums::V1Async => "^metadata_csum,^metadata_csum_seed",
        }];
        if self.fast_commit {
            features.push("fast_commit");
        }
        if !self.features.is_empty() {
            features.push(self.features);
        }
        features.join(",")
    }

    fn mount_options(&self) -> String {
        let data = match self.data {
            Data::Ordered => "data=ordered",
            Data::Journal => "data=journal",
            Data::Writeback => "data=writeback",
        };
        let journal = match self.checksums {
            Checksums::None | Checksums::V3 => "",
            Checksums::V1 => ",journal_checksum",
            Checksums::V1Async | Checksums::V3Async => ",journal_async_commit",
        };
        // A commit every second on top of those that fsync asks for.
        format!("commit=1,{data}{journal}")
    }
}

/// Runs a workload of creating, writing, renaming, removing, setting attributes and syncing, and calls `each`
/// with every capture. Needs root and `/dev/fuse`.
///
/// # Panics
/// When the file system cannot be made or mounted (ext4 refuses `journal_async_commit` with `data=ordered`),
/// when it has failed in the end, or when nothing is written for a minute. A panic of `each` passes through,
/// after everything was unmounted.
pub fn captures(options: &Options, mut each: impl FnMut(&Capture<'_>)) {
    let dir = scratch();
    let image = dir.path().join("image");
    let block_size = options.block_size.to_string();
    let (features, size) = (options.mke2fs_features(), format!("{}M", options.size_mib));
    let fixed =
        ["-q", "-F", "-t", "ext4", "-J", "size=4", "-E", "lazy_itable_init=0,nodiscard", "-N", "4096"];
    let args = ["-b", &block_size, "-O", &features, image.to_str().expect("a plain path"), &size];
    run("mke2fs", fixed.iter().chain(&args));
    let bytes = std::fs::read(&image).unwrap_or_else(|error| panic!("{}: {error}", image.display()));

    // Declared in this order, so that they end in the opposite one.
    let disk = disk::Disk::serve(bytes);
    let device = LoopDevice::attach(disk.path()).unwrap_or_else(|error| panic!("{error}"));
    let mount =
        LoopMount::device(&device, &options.mount_options()).unwrap_or_else(|error| panic!("{error}"));
    let gate = Gate::default();
    std::thread::scope(|scope| {
        let snapshots = disk.arm(options.cut, options.writes_between, options.seed);
        // Dropped at the end of the scope's closure or by a panic in it, before the scope waits for the
        // workers.
        let _guard = StopWhenDropped { gate: &gate, disk: &disk };
        for number in 0..options.n_workers {
            let (root, gate) = (mount.path(), &gate);
            scope.spawn(move || worker::work(root, number, options.seed, gate));
        }
        for number in 0..options.n_captures {
            disk.want();
            gate.set(State::Go);
            let snapshot = match snapshots.recv_timeout(PATIENCE) {
                Ok(snapshot) => snapshot,
                Err(error) => panic!("capture {number}: the disk is not written any more ({error})"),
            };
            gate.set(State::Rest);
            write_sparse(&image, &snapshot.bytes);
            each(&Capture { number, image: &image, n_writes: snapshot.n_writes, n_lost: snapshot.n_lost });
        }
    });
    // What the workers ran into they did not say. A file system that has seen an error is read-only.
    run("rm", [Path::new("-rf"), &mount.path().join("worker-0")]);
    run("sync", [mount.path()]);
}

/// Lets the workers and the disk go, whatever happens.
struct StopWhenDropped<'a> {
    gate: &'a Gate,
    disk: &'a disk::Disk,
}

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.gate.set(State::Stop);
        self.disk.disarm();
    }
}

/// Writes a file anew, zeros as holes.
fn write_sparse(path: &Path, bytes: &[u8]) {
    const GRAIN: usize = 65536;
    let write = || -> std::io::Result<()> {
        let file = File::create(path)?;
        file.set_len(bytes.len() as u64)?;
        for (i, chunk) in bytes.chunks(GRAIN).enumerate() {
            if chunk.iter().any(|&byte| byte != 0) {
                file.write_all_at(chunk, (i * GRAIN) as u64)?;
            }
        }
        Ok(())
    };
    write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
