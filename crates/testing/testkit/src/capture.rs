//! Images cut off in the middle of writing: the states after power cuts, at hundreds of moments of one
//! workload.
//!
//! ```text
//!  workers ──► ext4 (kernel) ──► loop device ──► FUSE file of this process ──► bytes in memory
//!                                                        │ between two write requests
//!                                                        ▼
//!                                                 a copy: one capture
//! ```
//!
//! This process serves the backing file of the loop device, so that it can copy the file *between two
//! writes*. A plain copy of a file that is being written mixes blocks of different moments: states that no
//! crash leaves. Freezing the file system instead would commit its journal first and leave nothing to replay.
//!
//! A capture ([`Cut`]) contains either all writes that the kernel has issued, or these without some of the
//! writes since the last flush, as a disk with a volatile write cache loses them. The kernel must recover
//! from each such state, and a reader of the unreplayed image must see what the kernel sees after its replay.
//!
//! Limits: writes are lost as whole requests or at multiples of 4096 bytes, not within a sector; there is no
//! external journal; the moments differ between runs, because the kernel's threads do. A capture that fails
//! should be kept.
//!
//! Does **not** own: the use of a capture. A callback gets each capture, and its file is overwritten by the
//! next, so that the space needed does not grow with their number. The workers rest while the callback works.
//!
//! Invariants
//! 1. No thread of this process waits for the mount: see the workers.
//! 2. Order at the end: no more captures, workers stop, unmount, detach, then the FUSE server. In another
//!    order the unmount would wait forever for a disk without a server. A panic of the callback takes the
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

/// Maximum time without a write of the workload; after it, something has gone wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// The order of file data and the journal: ext4's `data=` option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// Data is written before the transaction that refers to it.
    Ordered,
    /// Data goes through the journal.
    Journal,
    /// Data is written at any time.
    Writeback,
}

/// The checksums of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// None: neither `metadata_csum` nor `journal_checksum`.
    None,
    /// In commit blocks (`journal_checksum` without `metadata_csum`).
    V1,
    /// In commit blocks, and commits do not wait for their blocks (`journal_async_commit`, which implies v1).
    V1Async,
    /// In every block (`metadata_csum`).
    V3,
    /// In every block, and commits do not wait (`journal_async_commit`).
    V3Async,
}

/// A workload and its captures.
#[derive(Debug, Clone)]
pub struct Options {
    /// Number of captures.
    pub n_captures: usize,
    /// Average number of writes between two captures.
    pub writes_between: u64,
    /// What a cut loses.
    pub cut: Cut,
    /// The `data=` option.
    pub data: Data,
    /// The `fast_commit` feature. The kernel makes no fast commits with [`Data::Journal`].
    ///
    /// Linux 6.18 is not a perfect judge of fast commits. It refuses some captures (about 1 in 20). In others
    /// its replay leaves wrong counters (`i_blocks`, free inodes), gives directories the time of the replay,
    /// drops a directory that was created with the inode of a removed one, or shows a removed directory's
    /// block in the file that was created with its inode. With `inline_data` it leaves files that it cannot
    /// read itself (`ENOENT`).
    pub fast_commit: bool,
    /// The journal's checksums.
    pub checksums: Checksums,
    /// Block size in bytes: 1024, 2048 or 4096.
    pub block_size: u32,
    /// Further features as mke2fs takes them: `"inline_data,^orphan_file"`; empty for none.
    pub features: &'static str,
    /// Size of the image in MiB; the journal has 4 MiB.
    pub size_mib: u32,
    /// Number of shells that write concurrently.
    pub n_workers: usize,
    /// Seed of the workers' random numbers.
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
    /// Counts from 0.
    pub number: usize,
    /// The image, valid during the callback, which may change it.
    pub image: &'a Path,
    /// Number of writes that the disk had received.
    pub n_writes: u64,
    /// Number of those since the last flush that were lost at least in part.
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
        // A commit every second, in addition to those that fsync requests.
        format!("commit=1,{data}{journal}")
    }
}

/// Runs a workload that creates, writes, renames, removes, sets attributes and syncs, and calls `each` with
/// every capture. Needs root and `/dev/fuse`.
///
/// # Panics
/// The file system cannot be made or mounted (ext4 refuses `journal_async_commit` with `data=ordered`), it
/// has failed at the end, or nothing is written for a minute. A panic of `each` is passed on after everything
/// was unmounted.
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

    // Dropped in reverse order of declaration.
    let disk = disk::Disk::serve(bytes);
    let device = LoopDevice::attach(disk.path()).unwrap_or_else(|error| panic!("{error}"));
    let mount =
        LoopMount::device(&device, &options.mount_options()).unwrap_or_else(|error| panic!("{error}"));
    let gate = Gate::default();
    std::thread::scope(|scope| {
        let snapshots = disk.arm(options.cut, options.writes_between, options.seed);
        // Dropped at the end of the closure, or by a panic in it, before the scope waits for the workers.
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
    // The workers do not report errors. But a file system with an error is read-only, so that `rm` fails.
    run("rm", [Path::new("-rf"), &mount.path().join("worker-0")]);
    run("sync", [mount.path()]);
}

/// Stops the workers and the disk on every path.
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

/// Writes a new file, with holes for zeros.
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
