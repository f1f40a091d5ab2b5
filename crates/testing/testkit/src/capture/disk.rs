//! A disk in memory, served as a file of a FUSE file system, that can be copied between any two writes.
//!
//! Invariants
//! 1. The server has one thread and opens the file with `FOPEN_DIRECT_IO`: a write of the loop device is one
//!    request (or a few, in order), and no page cache holds data back.
//! 2. The server never waits for a thread that requests a copy. Programs that the callback runs wait for the
//!    server (`losetup --find` reads the attributes of every loop device's backing file).
//! 3. `durable` is the disk at the last flush; `current` is `durable` with all of `pending` written in order.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use tempfile::TempDir;

use crate::trees::Random;

/// The name of the only file.
const NAME: &str = "disk";
const INO: INodeNo = INodeNo(2);
const TTL: Duration = Duration::from_secs(3600);

/// The unit of a torn write, in bytes.
const SECTOR: usize = 4096;

/// What a power cut leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Every write that the kernel has issued: a disk without a volatile cache.
    AllHandedOver,
    /// Some random writes since the last flush are lost, and some remain only in part: a disk with a volatile
    /// cache, written in any order.
    LosesUnflushed,
}

/// The disk at one moment.
pub(super) struct Snapshot {
    pub(super) bytes: Vec<u8>,
    pub(super) n_writes: u64,
    pub(super) n_lost: u64,
}

/// A served disk. Dropping it ends the server; its users should be gone by then.
pub(super) struct Disk {
    state: Arc<Mutex<State>>,
    // The session is dropped before the directory that it is mounted on.
    _session: BackgroundSession,
    _dir: TempDir,
    path: PathBuf,
}

struct State {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    n_writes: u64,
    armed: Option<Armed>,
}

struct Armed {
    cut: Cut,
    writes_between: u64,
    /// The number of the write after which a snapshot is taken.
    wanted_at: Option<u64>,
    random: Random,
    snapshots: SyncSender<Snapshot>,
}

impl Disk {
    /// Serves these bytes as a file.
    ///
    /// # Panics
    /// FUSE cannot be mounted: not root, or no `/dev/fuse`.
    pub(super) fn serve(bytes: Vec<u8>) -> Self {
        let dir = tempfile::Builder::new().prefix("extant-disk-").tempdir().expect("a directory to mount on");
        let durable = bytes.clone();
        let state = State { current: bytes, durable, pending: Vec::new(), n_writes: 0, armed: None };
        let state = Arc::new(Mutex::new(state));
        let server = Server { state: Arc::clone(&state) };
        let session = fuser::spawn_mount(server, dir.path(), &Config::default())
            .unwrap_or_else(|error| panic!("mounting FUSE on {}: {error}", dir.path().display()));
        let path = dir.path().join(NAME);
        Self { state, _session: session, _dir: dir, path }
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Prepares for snapshots, which [`want`](Self::want) requests.
    pub(super) fn arm(&self, cut: Cut, writes_between: u64, seed: u64) -> Receiver<Snapshot> {
        let (snapshots, receiver) = sync_channel(1);
        let random = Random::new(seed);
        lock(&self.state).armed = Some(Armed { cut, writes_between, wanted_at: None, random, snapshots });
        receiver
    }

    /// Requests one snapshot, after about `writes_between` writes. There must be no other request until it
    /// was received.
    pub(super) fn want(&self) {
        let mut state = lock(&self.state);
        let n_writes = state.n_writes;
        if let Some(armed) = &mut state.armed {
            armed.wanted_at = Some(n_writes + 1 + armed.random.below(2 * armed.writes_between.max(1)));
        }
    }

    /// Ends snapshots.
    pub(super) fn disarm(&self) {
        lock(&self.state).armed = None;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic of another thread leaves bytes that are still usable.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn write(&mut self, offset: usize, data: &[u8]) -> bool {
        let Some(place) = offset.checked_add(data.len()).and_then(|end| self.current.get_mut(offset..end))
        else {
            return false;
        };
        place.copy_from_slice(data);
        self.pending.push((offset, data.to_vec()));
        self.n_writes += 1;
        self.snapshot_if_wanted();
        true
    }

    fn flush(&mut self) {
        for (offset, data) in self.pending.drain(..) {
            self.durable[offset..offset + data.len()].copy_from_slice(&data);
        }
    }

    fn snapshot_if_wanted(&mut self) {
        let Some(armed) = &mut self.armed else { return };
        if armed.wanted_at.is_none_or(|wanted_at| self.n_writes < wanted_at) {
            return;
        }
        armed.wanted_at = None;
        let (bytes, n_lost) = match armed.cut {
            Cut::AllHandedOver => (self.current.clone(), 0),
            Cut::LosesUnflushed => survivors(&self.durable, &self.pending, &mut armed.random),
        };
        // The channel has room for the requested snapshot. The receiver is gone when the captures end.
        let _ = armed.snapshots.try_send(Snapshot { bytes, n_writes: self.n_writes, n_lost });
    }
}

/// The durable bytes with some of the pending writes, in order; and the number of writes that are missing
/// completely or in part.
fn survivors(durable: &[u8], pending: &[(usize, Vec<u8>)], random: &mut Random) -> (Vec<u8>, u64) {
    let mut bytes = durable.to_vec();
    let mut n_lost = 0;
    // From almost none to almost all, another share each time.
    let kept_of_16 = random.below(17);
    for (offset, data) in pending {
        let len = if random.below(16) < kept_of_16 {
            data.len()
        } else {
            n_lost += 1;
            // Most are lost completely; some of those with several sectors are torn.
            let n_sectors = (data.len() / SECTOR) as u64;
            if n_sectors > 1 && random.below(4) == 0 { random.below(n_sectors) as usize * SECTOR } else { 0 }
        };
        bytes[*offset..offset + len].copy_from_slice(&data[..len]);
    }
    (bytes, n_lost)
}

/// The file system: a root and one file.
struct Server {
    state: Arc<Mutex<State>>,
}

impl Server {
    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (kind, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0),
            INO => (FileType::RegularFile, lock(&self.state).current.len() as u64),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm: if kind == FileType::Directory { 0o700 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: SECTOR as u32,
            flags: 0,
        })
    }

    fn answer(&self, ino: INodeNo, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(INO) {
            Some(attributes) if parent == INodeNo::ROOT && name == NAME => {
                reply.entry(&TTL, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(ino, reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let state = lock(&self.state);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(state.current.len());
        let end = start.saturating_add(size as usize).min(state.current.len());
        reply.data(&state.current[start..end]);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_within = usize::try_from(offset).is_ok_and(|offset| lock(&self.state).write(offset, data));
        match u32::try_from(data.len()) {
            Ok(len) if is_within => reply.written(len),
            _ => reply.error(Errno::ENOSPC),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        lock(&self.state).flush();
        reply.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unflushed_writes_are_lost() {
        let mut state = State {
            current: vec![0; 8 * SECTOR],
            durable: vec![0; 8 * SECTOR],
            pending: Vec::new(),
            n_writes: 0,
            armed: None,
        };
        assert!(state.write(0, &[1; SECTOR]));
        state.flush();
        assert!(state.write(SECTOR, &[2; 4 * SECTOR]));
        assert!(!state.write(8 * SECTOR - 1, &[9; 2]), "beyond the end");
        let mut n_cut = 0;
        for seed in 0..200 {
            let (bytes, n_lost) = survivors(&state.durable, &state.pending, &mut Random::new(seed));
            assert_eq!(bytes[..SECTOR], [1; SECTOR]);
            let n_written = bytes.iter().filter(|&&byte| byte == 2).count();
            assert_eq!(n_lost == 0, n_written == 4 * SECTOR);
            n_cut += usize::from(n_written != 0 && n_lost > 0);
        }
        assert!(n_cut > 0);
    }
}
