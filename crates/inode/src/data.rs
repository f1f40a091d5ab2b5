//! The bytes of a regular file that is being written: in memory first, where blocks are promised and not
//! chosen.
//!
//! ```text
//!            delay: promise          run of dirty bytes        allocate unwritten        write         convert, size
//!   write -----------------> pages -------------------> blocks ------------------> device ----> written, seen after a crash
//!   read  <----------------- pages <------------------- device (what is not here)
//! ```
//!
//! Owns: what a file has in memory besides its inode ([`FileData`]): its bytes, what is known of its blocks,
//! its size, promises. Does **not** own: transactions, when something is written (see `volume`), the map on
//! disk (see `mapping`).
//!
//! Invariants
//! 1. The size here is what reads and stat see. The inode's own (`i_size` on disk) is at most that, and
//!    follows the data: less of it means that something is dirty or being written.
//! 2. A block is delayed only while its bytes are dirty or being written, or the writer that promised it
//!    holds the operation lock.
//! 3. In memory, bytes behind the size in the last block are zeros.
//! 4. The map changes under `mapping`, held exclusively, and the inode's values; readers of the map hold one
//!    of them (the operation lock does not exclude write-back). Locks, in order: operation lock, handle,
//!    folio, `mapping`, values.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_alloc::Alloc;
use extant_base::{Lblk, Tid};
use extant_extent_status::{Answer, Entry, Keep, Settled, Source, Status};
use extant_mapping::{FileMap, Holds, Mapped};
use extant_memory::Budget;
use extant_ondisk::inode::flags;
use extant_page_cache::{Backing, Order, PageCache};
use parking_lot::{Mutex, RwLock};

use crate::live::Values;
use crate::unconverted::Unconverted;
use crate::{Fault, LiveInode, Shared};

/// How bytes get from memory to the device: chosen for the volume, and for each file when it is first in
/// memory: one whose map has no extents goes block by block in any case.
///
/// (The kernel goes block by block on the whole file system where there may be inline data, encryption or
/// verity. Here bytes leave the inode before they are written by range, and encrypted and verity files are
/// not written to.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataPath {
    /// By ranges, in large folios: blocks are allocated unwritten, and converted, with the size, when the
    /// bytes are there. Nothing is ordered: no commit waits for data. The kernel's `buffered_iomap`.
    #[default]
    Iomap,
    /// Block by block, in pages: blocks are allocated as written, and no commit that says so goes before
    /// their bytes are there. The kernel's `nobuffered_iomap` with `data=ordered`.
    Ordered,
    /// As [`Ordered`](Self::Ordered), but commits do not wait: after a crash a file may hold what its blocks
    /// held before. The kernel's `data=writeback`.
    Writeback,
    /// Bytes go through the journal, as metadata does, and are written home later: after a crash each block
    /// has the bytes of one write or of the next. Twice the bytes to the device. The kernel's `data=journal`;
    /// without a journal as [`Writeback`](Self::Writeback).
    Journal,
}

/// Bytes of memory per entry of what is known of files' blocks: of it there is a share of the budget at most,
/// and less when that is spent.
const ENTRY_BYTES: u64 = 24;

/// Memory that a file with cached data takes besides that data and its inode: this structure, and its entries
/// in the page cache (one chunk and one folio) and in the extent-status cache.
pub(crate) const FILE_BYTES: usize = size_of::<FileData>() + 2048;

/// What all files' data of a volume share.
pub struct FileCaches {
    /// Their bytes.
    pub pages: PageCache,
    path: DataPath,
    known: extant_extent_status::Cache,
    next_key: AtomicU64,
    /// Those with something dirty, by the cache's key: they stay in memory.
    dirty: Mutex<HashMap<u64, Arc<LiveInode>>>,
    /// Is one among them that [is rewritten](crate::Values::is_rewritten)?
    has_rewritten: AtomicBool,
    /// Those with bytes that could not be written back, by the cache's key: they stay in memory until those
    /// leave it.
    lost: Mutex<HashMap<u64, Arc<LiveInode>>>,
}

impl FileCaches {
    /// Empty caches of a volume.
    #[must_use]
    pub fn new(shared: &Shared, path: DataPath, policy: extant_extent_status::Policy) -> Self {
        let bytes = shared.budget.limit() as u64;
        let known = extant_extent_status::Options {
            policy,
            limit: Some((bytes / 16 / ENTRY_BYTES).max(1 << 12)),
            cluster_bits: shared.geometry.cluster_log,
            ..extant_extent_status::Options::default()
        };
        Self {
            pages: PageCache::new(extant_page_cache::Config::of_bytes(bytes / 4 * 3), &shared.budget),
            path,
            known: extant_extent_status::Cache::with_budget(known, &shared.budget),
            next_key: AtomicU64::new(1),
            dirty: Mutex::default(),
            has_rewritten: AtomicBool::new(false),
            lost: Mutex::default(),
        }
    }

    /// What is known of all files' blocks: counts.
    #[must_use]
    pub fn extent_stats(&self) -> extant_extent_status::Stats {
        self.known.stats()
    }

    /// How bytes get to the device, of files that do not need it otherwise.
    #[must_use]
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// What a file gets that has nothing in memory yet. `changed_in`: the last transaction that changed its
    /// inode, maybe its size or that it is there at all.
    pub(crate) fn file(&self, shared: &Shared, ino: extant_base::Ino, values: &Values) -> FileData {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let block_bytes = shared.geometry.block_size.bytes() as u32;
        let path = match self.path {
            DataPath::Iomap if !values.has_flag(flags::EXTENTS | flags::INLINE_DATA) => DataPath::Ordered,
            path => path,
        };
        let order_max = if path == DataPath::Iomap { Order::MAX } else { Order::MIN };
        let (size, changed_in) = (values.fields.size, values.changed_in);
        let pages = self.pages.file_of(key, block_bytes, order_max).open();
        pages.raise_end(size);
        FileData {
            budget: Arc::clone(&shared.budget),
            path,
            pages,
            unconverted: Unconverted::default(),
            known: self.known.inode(ino),
            mapping: RwLock::new(()),
            size: AtomicU64::new(size),
            promised: AtomicU64::new(0),
            mapped_in: AtomicU64::new(changed_in.0),
            is_listed: AtomicBool::new(false),
            lost: Mutex::default(),
            has_lost: AtomicBool::new(false),
        }
    }

    /// Something of this file is dirty: it stays in memory until [`settle`](Self::settle) finds that nothing
    /// is.
    ///
    /// Called before the bytes become dirty, so that write-back finds the file, and after.
    pub fn note_dirty(&self, node: &Arc<LiveInode>, data: &FileData) {
        if !data.is_listed.swap(true, Ordering::AcqRel) {
            self.dirty.lock().insert(data.pages.key(), Arc::clone(node));
        }
    }

    /// A dirty file [is rewritten](crate::Values::is_rewritten).
    pub fn note_rewritten(&self) {
        self.has_rewritten.store(true, Ordering::Release);
    }

    /// Was one noted since this was asked last?
    pub fn take_rewritten(&self) -> bool {
        self.has_rewritten.load(Ordering::Relaxed) && self.has_rewritten.swap(false, Ordering::AcqRel)
    }

    /// These bytes of a file could not be written back.
    pub fn note_lost(&self, node: &Arc<LiveInode>, data: &FileData, bytes: Range<u64>) {
        let mut lost = self.lost.lock();
        data.lost.lock().push(bytes);
        data.has_lost.store(true, Ordering::Release);
        lost.insert(data.pages.key(), Arc::clone(node));
    }

    /// The ranges of a file's bytes that could not be written back since this was asked last.
    #[must_use]
    pub fn take_lost(&self, data: &FileData) -> Vec<Range<u64>> {
        let mut lost = self.lost.lock();
        data.has_lost.store(false, Ordering::Release);
        let ranges = std::mem::take(&mut *data.lost.lock());
        let node = lost.remove(&data.pages.key());
        drop(lost);
        drop(node);
        ranges
    }

    /// All files with bytes that could not be written back.
    #[must_use]
    pub fn lost_nodes(&self) -> Vec<Arc<LiveInode>> {
        self.lost.lock().values().cloned().collect()
    }

    /// Lets a file go that has nothing dirty any more.
    pub fn settle(&self, data: &FileData) {
        let mut dirty = self.dirty.lock();
        if !data.is_listed.swap(false, Ordering::AcqRel) {
            return;
        }
        // A writer that makes something dirty from here on lists the file again.
        if !data.pages.is_clean() {
            data.is_listed.store(true, Ordering::Release);
            return;
        }
        let node = dirty.remove(&data.pages.key());
        drop(dirty);
        drop(node);
    }

    /// The file that the cache of bytes has under this key, if something of it is dirty.
    #[must_use]
    pub fn node(&self, key: u64) -> Option<Arc<LiveInode>> {
        self.dirty.lock().get(&key).cloned()
    }

    /// All files that have something dirty.
    #[must_use]
    pub fn dirty_nodes(&self) -> Vec<Arc<LiveInode>> {
        let mut nodes: Vec<_> = self.dirty.lock().values().cloned().collect();
        nodes.sort_unstable_by_key(|node| node.ino());
        nodes
    }
}

/// What a file has in memory besides its inode. See the module's first page.
pub struct FileData {
    /// Charged with [`FILE_BYTES`] while this lives.
    budget: Arc<Budget>,
    path: DataPath,
    /// Its bytes.
    pub pages: extant_page_cache::Handle,
    /// What is known of its blocks.
    pub known: extant_extent_status::Inode,
    /// Held exclusively while the map changes, shared by readers of the map.
    pub mapping: RwLock<()>,
    /// What was written to unwritten blocks.
    pub unconverted: Unconverted,
    size: AtomicU64,
    /// Clusters that are promised to its delayed blocks.
    promised: AtomicU64,
    /// The last transaction that changed its size or map.
    mapped_in: AtomicU64,
    is_listed: AtomicBool,
    /// Ranges of bytes that could not be written back: memory has what the device has not.
    lost: Mutex<Vec<Range<u64>>>,
    has_lost: AtomicBool,
}

impl Drop for FileData {
    fn drop(&mut self) {
        self.budget.release(FILE_BYTES);
    }
}

impl FileData {
    /// Charges the budget for it. Call it once, with no lock held that a shrinker takes.
    pub(crate) fn charge(&self) {
        self.budget.charge(FILE_BYTES);
    }

    /// Whether it can be evicted and read again from the device, where the inode's size is `on_disk`: it has
    /// no dirty data, no delayed allocation and no error to report.
    pub(crate) fn is_idle(&self, on_disk: u64) -> bool {
        let is_settled = !self.is_listed.load(Ordering::Acquire) && self.pages.is_clean();
        is_settled && self.promised() == 0 && self.size() == on_disk && !self.pages.had_errors()
    }

    /// How its bytes get to the device.
    #[must_use]
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Changes [`size`](Self::size). The caller holds the operation lock alone, and `mapping` exclusively to
    /// make it less.
    pub fn set_size(&self, size: u64) {
        self.pages.cut_end(size);
        self.size.store(size, Ordering::Release);
    }

    /// Clusters that are promised to its delayed blocks.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// So many clusters more are promised.
    pub(crate) fn note_promised(&self, clusters: u64) {
        self.promised.fetch_add(clusters, Ordering::Relaxed);
    }

    /// The last transaction that changed its size or map, or one since; 0 for none since it is in memory.
    #[must_use]
    pub fn mapped_in(&self) -> Tid {
        Tid(self.mapped_in.load(Ordering::Acquire))
    }

    /// Has memory bytes that could not be written back?
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }

    /// Its size or map was changed by this transaction.
    pub fn note_mapped(&self, transaction: Tid) {
        self.mapped_in.fetch_max(transaction.0, Ordering::AcqRel);
    }

    /// What holds at `lblk`, for at most `len` blocks.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn entry(&self, shared: &Shared, node: &LiveInode, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        let _mapping = self.mapping.read();
        let mut source = OnDisk { leaf_for: Some(&self.known), ..OnDisk::new(shared, node) };
        self.known.map(lblk, len, &mut source, Keep::Yes)
    }

    /// As [`entry`](Self::entry), for a caller that will change it: the result is not cached.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub fn entry_to_change(
        &self,
        shared: &Shared,
        node: &LiveInode,
        lblk: Lblk,
        len: u32,
    ) -> Result<Entry, Fault> {
        let _mapping = self.mapping.read();
        self.entry_now(shared, node, lblk, len)
    }

    /// As [`entry_to_change`](Self::entry_to_change); the caller holds `mapping`.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub fn entry_now(&self, shared: &Shared, node: &LiveInode, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        self.known.map(lblk, len, &mut OnDisk::new(shared, node), Keep::No)
    }

    /// Promises blocks for what is a hole of `len` blocks from `lblk` on; how many of them are promised or
    /// allocated now, and whether they were promised by this call. The caller holds the operation lock alone.
    ///
    /// # Errors
    /// No space: nothing is promised. Or the map cannot be read.
    pub fn delay(
        &self,
        (shared, alloc): (&Shared, &Alloc),
        node: &LiveInode,
        lblk: Lblk,
        len: u32,
    ) -> Result<(u32, bool), Fault> {
        let _mapping = self.mapping.write();
        let (alloc, leaf_for) = (Some((alloc, &self.promised)), Some(&self.known));
        let mut source = OnDisk { alloc, leaf_for, ..OnDisk::new(shared, node) };
        let before = self.known.seq();
        let entry = self.known.delay(lblk, len, &mut source)?;
        let is_new = entry.status == Status::Delayed && self.known.seq() != before;
        Ok((entry.len, is_new))
    }

    /// Drops entries of blocks that were truncated or punched, or reserved and not used. The caller, which
    /// changes the map, holds `mapping`.
    pub fn forget(&self, shared: &Shared, alloc: &Alloc, lblk: Lblk, len: u32) {
        self.settle(shared, alloc, self.known.remove(lblk, len));
    }

    /// The map on disk says this now. The caller holds `mapping` exclusively.
    pub fn learn(
        &self,
        shared: &Shared,
        alloc: &Alloc,
        entry: Entry,
        allocation: extant_extent_status::Allocation,
    ) {
        self.settle(shared, alloc, self.known.insert(entry, allocation));
    }

    /// What became of promises. Those that were used, the allocation took off what is promised.
    fn settle(&self, shared: &Shared, alloc: &Alloc, settled: Settled) {
        self.promised.fetch_sub(settled.clusters().into(), Ordering::Relaxed);
        if let Settled::Release(clusters) = settled {
            alloc.unclaim(u64::from(clusters) * shared.geometry.cluster_ratio());
        }
    }

    /// The bytes in front of the end on disk that are in its block, if a run of bytes after that block must
    /// wait for them: the block is dirty or being written, so what it has on the device after that end may be
    /// anything, and the size may not go past it yet.
    #[must_use]
    pub fn end_in_front_of(&self, on_disk: u64, run: &Range<u64>, block_bytes: u64) -> Option<Range<u64>> {
        let block = on_disk & !(block_bytes - 1);
        let must_wait = block < on_disk && on_disk < run.start && self.pages.is_held(block..on_disk);
        must_wait.then_some(block..on_disk)
    }

    /// Compares the cached entries with the map on disk, and reservations with what needs them: for tests.
    /// The file must not change meanwhile.
    ///
    /// # Errors
    /// What does not fit, in words; or the map cannot be read.
    pub fn check(&self, shared: &Shared, node: &LiveInode) -> Result<(), String> {
        let _mapping = self.mapping.read();
        let mut disk = OnDisk::new(shared, node);
        for entry in self.known.entries() {
            let mut at = entry.lblk;
            while at.0 < entry.end() {
                let answer = disk.extent_at(at).map_err(|fault| fault.to_string())?;
                let (fits, end) = match answer {
                    Answer::Extent(extent) => (extent.agrees_with(&entry), extent.end()),
                    Answer::Gap { to, .. } => (!entry.status.is_mapped(), to),
                };
                if !fits {
                    return Err(format!("block {at}: known is {entry:?}, the map says {answer:?}"));
                }
                at = Lblk(end);
            }
        }
        let on_disk = node.values().fields.size;
        if self.pages.is_clean() && !self.has_lost() && on_disk != self.size() {
            return Err(format!("nothing is dirty, and the size is {}, on disk {on_disk}", self.size()));
        }
        let (needed, promised) = (u64::from(self.known.promises()), self.promised());
        if needed == promised {
            Ok(())
        } else {
            Err(format!("{promised} clusters promised, {needed} needed"))
        }
    }

    /// For the cache of bytes: where those are that it does not have.
    #[must_use]
    pub fn stored<'a>(&'a self, shared: &'a Shared, node: &'a LiveInode) -> Stored<'a> {
        Stored { shared, node, data: self }
    }
}

/// The map on disk of one file, and the space that is promised to it.
struct OnDisk<'a> {
    shared: &'a Shared,
    node: &'a LiveInode,
    alloc: Option<(&'a Alloc, &'a AtomicU64)>,
    /// Caches all of a leaf that had to be read from the device.
    leaf_for: Option<&'a extant_extent_status::Inode>,
    /// Once it was asked for.
    map: Option<FileMap>,
}

impl<'a> OnDisk<'a> {
    fn new(shared: &'a Shared, node: &'a LiveInode) -> Self {
        Self { shared, node, alloc: None, leaf_for: None, map: None }
    }

    fn map(&mut self) -> &FileMap {
        let node = self.node;
        self.map.get_or_insert_with(|| node.values().map())
    }
}

impl Source for OnDisk<'_> {
    type Error = Fault;

    fn extent_at(&mut self, lblk: Lblk) -> Result<Answer, Fault> {
        let (shared, ino) = (self.shared, self.node.ino());
        let found = self.map().around(&shared.buffers, lblk).map_err(Fault::of(ino))?;
        if let Some(known) = self.leaf_for.filter(|_| found.leaf.len() > 1) {
            known.cache_leaf(&found.leaf.iter().filter_map(entry_of).collect::<Vec<_>>());
        }
        let here = found.here;
        let to = here.end().min(extant_extent_status::END.into()) as u32;
        Ok(entry_of(&here).map_or(Answer::Gap { from: here.lblk.0, to }, Answer::Extent))
    }

    fn cluster_is_allocated(&mut self, cluster: u32) -> Result<bool, Fault> {
        let (shared, ino) = (self.shared, self.node.ino());
        let log = shared.geometry.cluster_log;
        let (from, end) = (u64::from(cluster) << log, (u64::from(cluster) + 1) << log);
        let mut found = false;
        let Ok(from) = u32::try_from(from) else { return Ok(false) };
        self.map()
            .walk_until(&shared.buffers, Lblk(from), end, &mut |_| {
                found = true;
                None
            })
            .map_err(Fault::of(ino))?;
        Ok(found)
    }

    fn promise(&mut self, clusters: u32) -> Result<(), Fault> {
        let Some((alloc, promised)) = self.alloc else { return Ok(()) };
        let blocks = u64::from(clusters) * self.shared.geometry.cluster_ratio();
        alloc.claim(blocks, alloc.acting()).map_err(|_| Fault::NoSpace)?;
        promised.fetch_add(clusters.into(), Ordering::Relaxed);
        Ok(())
    }
}

/// What is known of blocks that are mapped so; `None` for a hole.
fn entry_of(mapped: &Mapped) -> Option<Entry> {
    // The last of all numbers is no block's.
    let len = mapped.len.min(extant_extent_status::END - mapped.lblk.0);
    let (start, status) = match mapped.holds {
        Holds::Hole => return None,
        Holds::Written(start) => (start, Status::Written),
        Holds::Unwritten(start) => (start, Status::Unwritten),
    };
    Some(Entry::mapped(mapped.lblk.0, len, start.0, status))
}

/// A file's bytes on the device.
pub struct Stored<'a> {
    shared: &'a Shared,
    node: &'a LiveInode,
    data: &'a FileData,
}

impl Stored<'_> {
    fn entry(&self, pos: u64, len: u64) -> Result<Option<Entry>, Fault> {
        let log = self.shared.geometry.block_size.log2();
        let Some(lblk) = u32::try_from(pos >> log).ok().filter(|lblk| *lblk < extant_extent_status::END)
        else {
            return Ok(None);
        };
        let len = u32::try_from(len >> log).unwrap_or(u32::MAX).max(1);
        self.data.entry(self.shared, self.node, Lblk(lblk), len).map(Some)
    }
}

impl Backing for Stored<'_> {
    type Error = Fault;

    fn extent_at(&self, pos: u64, len: u64) -> Result<extant_page_cache::Extent, Fault> {
        let Some(entry) = self.entry(pos, len)? else {
            return Ok(extant_page_cache::Extent::Hole { len_bytes: len });
        };
        let len_bytes = u64::from(entry.len) << self.shared.geometry.block_size.log2();
        Ok(match entry.status {
            Status::Written => extant_page_cache::Extent::Data { len_bytes },
            Status::Unwritten | Status::Delayed | Status::Hole => {
                extant_page_cache::Extent::Hole { len_bytes }
            }
        })
    }

    fn read_at(&self, pos: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Fault> {
        let bs = self.shared.geometry.block_size;
        let (mut at, mut first) = (pos, 0);
        while first < bufs.len() {
            let wanted: u64 = bufs[first..].iter().map(|buf| buf.len() as u64).sum();
            let found = self.entry(at, wanted)?;
            let len = found.map_or(wanted, |entry| u64::from(entry.len) << bs.log2());
            let start = found.filter(|entry| entry.status == Status::Written);
            let start = start.and_then(|entry| bs.offset_of(entry.pblk));
            // Buffers that lie inside of the extent whole, or else the front of one.
            let (mut whole, mut covered) = (first, 0);
            while whole < bufs.len() && covered + bufs[whole].len() as u64 <= len {
                covered += bufs[whole].len() as u64;
                whole += 1;
            }
            if whole > first {
                match start {
                    Some(start) => self.shared.device.read_vectored_at(start, &mut bufs[first..whole])?,
                    None => bufs[first..whole].iter_mut().for_each(|buf| buf.fill(0)),
                }
                (at, first) = (at + covered, whole);
                continue;
            }
            at += self.read_pieces(at, &mut bufs[first])?;
            first += 1;
        }
        // Disk content past the end belongs to no file.
        let (size, mut at) = (self.data.size(), pos);
        for buf in bufs {
            let end = at + buf.len() as u64;
            if end > size {
                let from = size.saturating_sub(at) as usize;
                buf[from..].fill(0);
            }
            at = end;
        }
        Ok(())
    }
}

impl Stored<'_> {
    /// Reads a buffer that lies in several extents.
    fn read_pieces(&self, pos: u64, buf: &mut [u8]) -> Result<u64, Fault> {
        let bs = self.shared.geometry.block_size;
        let mut done = 0;
        while done < buf.len() {
            let rest = &mut buf[done..];
            let found = self.entry(pos + done as u64, rest.len() as u64)?;
            let len = found.map_or(rest.len() as u64, |entry| u64::from(entry.len) << bs.log2());
            let len = rest.len().min(usize::try_from(len).unwrap_or(usize::MAX));
            let start = found.filter(|entry| entry.status == Status::Written);
            match start.and_then(|entry| bs.offset_of(entry.pblk)) {
                Some(start) => self.shared.device.read_at(start, &mut rest[..len])?,
                None => rest[..len].fill(0),
            }
            done += len;
        }
        Ok(done as u64)
    }
}
