//! The data of a regular file that is open for writing. Writes go to memory first, where space is promised
//! but blocks are not chosen yet.
//!
//! ```text
//!   write --> pages         the pages become dirty; their blocks are delayed, and space is promised for them
//!   write-back              a run of dirty bytes: allocate unwritten blocks --> write to the device
//!                           --> convert them, set the size on disk: now the data survives a crash
//!   read  <-- pages         bytes that are not in memory are read from the device first
//! ```
//!
//! Owns: the data in memory of a file besides its inode ([`FileData`]): its bytes, the cached status of its
//! blocks, its size, promises. Does **not** own: transactions, when data is written back (see `volume`), the
//! map on disk (see `mapping`).
//!
//! Invariants
//! 1. Reads and stat use the size in this module. The inode's size (`i_size` on disk) is at most that, and
//!    follows the data: if it is smaller, some bytes are dirty or being written.
//! 2. A block is delayed only while its bytes are dirty or being written, or the writer that promised it
//!    holds the operation lock.
//! 3. In memory, bytes after the size in the last block are zeros.
//! 4. The map changes only with `mapping` held exclusively and the inode's values locked; readers of the map
//!    hold one of the two (the operation lock does not exclude write-back). Locks, in order: operation lock,
//!    handle, folio, `mapping`, values.
//!
//! Source: the linux-ext4 series "ext4: use iomap for regular file's buffered I/O", 2024.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_alloc::Alloc;
use extant_base::Lblk;
use extant_base::rank;
use extant_extent_status::{Answer, EndedReservation, Entry, Keep, Source, Status};
use extant_mapping::{FileMap, MapState, Mapped};
use extant_ondisk::inode::flags;
use extant_page_cache::{Backing, Order, PageCache};
use parking_lot::Mutex;

use crate::file_data::{DataPath, FileData};
use crate::node::{LiveInode, Values};
use crate::{Fault, Shared};

/// Memory of an entry of the extent-status cache, in bytes. The cache is limited to a share of the budget,
/// and to less when the budget is spent.
const ENTRY_BYTES: u64 = 24;

/// The caches of file data of a volume.
pub struct FileCaches {
    /// The cached bytes.
    pub pages: PageCache,
    path: DataPath,
    known: extant_extent_status::Cache,
    next_key: AtomicU64,
    /// Files with dirty data, by the page cache's key. They stay in memory.
    dirty: rank::Mutex<HashMap<u64, Arc<LiveInode>>, { rank::DIRTY_FILES }>,
    /// Whether one of them [is rewritten](crate::Values::is_rewritten).
    has_rewritten: AtomicBool,
    /// Files with bytes that could not be written back, by the page cache's key. They stay in memory until
    /// those bytes are dropped.
    lost: Mutex<HashMap<u64, Arc<LiveInode>>>,
}

impl FileCaches {
    /// Creates empty caches for a volume.
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
            dirty: rank::Mutex::default(),
            has_rewritten: AtomicBool::new(false),
            lost: Mutex::default(),
        }
    }

    /// Statistics of the extent-status cache of all files.
    #[must_use]
    pub fn extent_stats(&self) -> extant_extent_status::Stats {
        self.known.stats()
    }

    /// The volume's path of data to the device; a file may need another one.
    #[must_use]
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// Creates the data of a file that has nothing in memory yet. `values.changed_in` is the last transaction
    /// that changed its inode, possibly its size or its creation.
    pub(crate) fn file(&self, shared: &Shared, ino: extant_base::Ino, values: &Values) -> FileData {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let block_bytes = shared.geometry.block_size.bytes() as u32;
        let path = match self.path {
            DataPath::Iomap if !values.has_flag(flags::EXTENTS | flags::INLINE_DATA) => DataPath::Ordered,
            path => path,
        };
        let large = path == DataPath::Iomap && !shared.small_folios;
        let order_max = if large { Order::MAX } else { Order::MIN };
        let (size, changed_in) = (values.fields.size, values.changed_in);
        let pages = self.pages.file_of(key, block_bytes, order_max).open();
        pages.raise_end(size);
        FileData::new(&shared.budget, path, pages, self.known.inode(ino), size, changed_in)
    }

    /// Marks the file as dirty: it stays in memory until [`release_if_clean`](Self::release_if_clean) finds
    /// that it is clean.
    ///
    /// Called before the bytes become dirty, so that write-back finds the file, and again after.
    pub fn note_dirty(&self, node: &Arc<LiveInode>, data: &FileData) {
        if !data.is_listed.swap(true, Ordering::AcqRel) {
            self.dirty.lock().insert(data.pages.key(), Arc::clone(node));
        }
    }

    /// Records that a dirty file [is rewritten](crate::Values::is_rewritten).
    pub fn note_rewritten(&self) {
        self.has_rewritten.store(true, Ordering::Release);
    }

    /// Whether one was recorded since the last call.
    pub fn take_rewritten(&self) -> bool {
        self.has_rewritten.load(Ordering::Relaxed) && self.has_rewritten.swap(false, Ordering::AcqRel)
    }

    /// Records that these bytes of a file could not be written back.
    pub fn note_lost(&self, node: &Arc<LiveInode>, data: &FileData, bytes: Range<u64>) {
        let mut lost = self.lost.lock();
        data.lost.lock().push(bytes);
        data.has_lost.store(true, Ordering::Release);
        lost.insert(data.pages.key(), Arc::clone(node));
    }

    /// Takes the ranges of a file's bytes that could not be written back since the last call.
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

    /// Releases a file that has no dirty data any more.
    pub fn release_if_clean(&self, data: &FileData) {
        let mut dirty = self.dirty.lock();
        if !data.is_listed.swap(false, Ordering::AcqRel) {
            return;
        }
        // A writer that makes bytes dirty from here on lists the file again.
        if !data.pages.is_clean() {
            data.is_listed.store(true, Ordering::Release);
            return;
        }
        let node = dirty.remove(&data.pages.key());
        drop(dirty);
        drop(node);
    }

    /// The file with this key in the page cache, if it has dirty data.
    #[must_use]
    pub fn node(&self, key: u64) -> Option<Arc<LiveInode>> {
        self.dirty.lock().get(&key).cloned()
    }

    /// All files with dirty data.
    #[must_use]
    pub fn dirty_nodes(&self) -> Vec<Arc<LiveInode>> {
        let mut nodes: Vec<_> = self.dirty.lock().values().cloned().collect();
        nodes.sort_unstable_by_key(|node| node.ino());
        nodes
    }
}

impl FileData {
    /// The status of the blocks from `lblk` on, for at most `len` blocks.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn entry(&self, shared: &Shared, node: &LiveInode, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        let _mapping = self.mapping.read();
        let mut source = OnDisk { leaf_for: Some(&self.known), ..OnDisk::new(shared, node) };
        self.known.map(lblk, len, &mut source, Keep::Yes)
    }

    /// Same as [`entry`](Self::entry), for a caller that will change it: the result is not cached.
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

    /// Same as [`entry_to_change`](Self::entry_to_change); the caller holds `mapping`.
    ///
    /// # Errors
    /// As [`entry`](Self::entry).
    pub fn entry_now(&self, shared: &Shared, node: &LiveInode, lblk: Lblk, len: u32) -> Result<Entry, Fault> {
        self.known.map(lblk, len, &mut OnDisk::new(shared, node), Keep::No)
    }

    /// Promises space for the hole of `len` blocks from `lblk` on. Returns the number of blocks that are
    /// promised or allocated now, and whether this call promised them. The caller holds the operation lock
    /// exclusively.
    ///
    /// # Errors
    /// No space: no block is promised. Or the map cannot be read.
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

    /// Drops the cached status of blocks that were truncated or punched, or promised and not used. The
    /// caller, which changes the map, holds `mapping`.
    pub fn forget(&self, shared: &Shared, alloc: &Alloc, lblk: Lblk, len: u32) {
        self.end_reservation(shared, alloc, self.known.remove(lblk, len));
    }

    /// Caches a new state of the map on disk. The caller holds `mapping` exclusively.
    pub fn learn(
        &self,
        shared: &Shared,
        alloc: &Alloc,
        entry: Entry,
        allocation: extant_extent_status::Allocation,
    ) {
        self.end_reservation(shared, alloc, self.known.insert(entry, allocation));
    }

    /// Updates the promises. The allocation already subtracted the space of those that were used.
    fn end_reservation(&self, shared: &Shared, alloc: &Alloc, ended: EndedReservation) {
        self.promised.fetch_sub(ended.clusters().into(), Ordering::Relaxed);
        if let EndedReservation::Release(clusters) = ended {
            alloc.unclaim(u64::from(clusters) * shared.geometry.cluster_ratio());
        }
    }

    /// Compares the cached status with the map on disk, and the promises with the clusters that need them;
    /// for tests. The file must not change during the call.
    ///
    /// # Errors
    /// The differences, as text; or the map cannot be read.
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

    /// The file's bytes on the device, as the backing of the page cache.
    #[must_use]
    pub fn stored<'a>(&'a self, shared: &'a Shared, node: &'a LiveInode) -> Stored<'a> {
        Stored { shared, node, data: self }
    }
}

/// The map on disk of one file, and the space that is promised to the file.
struct OnDisk<'a> {
    shared: &'a Shared,
    node: &'a LiveInode,
    alloc: Option<(&'a Alloc, &'a AtomicU64)>,
    /// Caches all entries of a leaf that was read from the device.
    leaf_for: Option<&'a extant_extent_status::Inode>,
    /// Read on first use.
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

/// The cache entry for mapped blocks; `None` for a hole.
fn entry_of(mapped: &Mapped) -> Option<Entry> {
    // END, the last number, is not a block number.
    let len = mapped.len.min(extant_extent_status::END - mapped.lblk.0);
    let (start, status) = match mapped.state {
        MapState::Hole => return None,
        MapState::Written(start) => (start, Status::Written),
        MapState::Unwritten(start) => (start, Status::Unwritten),
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
            // Buffers that are entirely inside the extent. If the first one is not, it is read in pieces.
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
        // Bytes on the device past the end belong to no file.
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
    /// Reads a buffer that spans several extents.
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
