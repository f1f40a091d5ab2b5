//! The data in memory of a file besides its inode. The first page of `data` explains it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::Tid;
use extant_base::rank::{self, RwLock};
use extant_memory::Budget;
use parking_lot::Mutex;

use crate::unconverted::Unconverted;

/// How bytes get from memory to the device. Chosen for the volume, and for each file when its data is first
/// cached: a file whose map has no extents is always written block by block.
///
/// (The kernel writes block by block on the whole file system if it may have inline data, encryption or
/// verity. Here inline data is moved out of the inode before it is written by ranges, and encrypted and
/// verity files cannot be written.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DataPath {
    /// By ranges, in large folios: blocks are allocated unwritten, and converted together with the size after
    /// the bytes are on the device. No commit waits for data. The kernel's `buffered_iomap`.
    #[default]
    Iomap,
    /// Block by block, in pages: blocks are allocated as written, and the commit of that allocation waits
    /// until their bytes are on the device. The kernel's `nobuffered_iomap` with `data=ordered`.
    Ordered,
    /// Same as [`Ordered`](Self::Ordered), but commits do not wait: after a crash a file may contain the old
    /// content of its blocks. The kernel's `data=writeback`.
    Writeback,
    /// Bytes go through the journal, like metadata, and are written home later: after a crash each block has
    /// the bytes of one write or of the next. The device receives the bytes twice. The kernel's
    /// `data=journal`; without a journal same as [`Writeback`](Self::Writeback).
    Journal,
}

/// Memory of a file with cached data, excluding that data and its inode: this structure, and its entries in
/// the page cache (one chunk and one folio) and in the extent-status cache.
pub(crate) const FILE_BYTES: usize = size_of::<FileData>() + 2048;

/// The data in memory of a file besides its inode. See the module's first page.
pub struct FileData {
    /// Charged with [`FILE_BYTES`] during the lifetime of this value.
    budget: Arc<Budget>,
    path: DataPath,
    /// The cached bytes of the file.
    pub pages: extant_page_cache::Handle,
    /// The cached status of its blocks.
    pub known: extant_extent_status::Inode,
    /// Held exclusively while the map changes, shared by readers of the map.
    pub mapping: RwLock<(), { rank::MAPPING }>,
    /// Blocks of unwritten extents that were written and not converted yet.
    pub unconverted: Unconverted,
    pub(crate) size: AtomicU64,
    /// Clusters that are promised to its delayed blocks.
    pub(crate) promised: AtomicU64,
    /// The last transaction that changed its size or map.
    mapped_in: AtomicU64,
    pub(crate) is_listed: AtomicBool,
    /// Ranges of bytes that could not be written back: the device lacks bytes that memory has.
    pub(crate) lost: Mutex<Vec<Range<u64>>>,
    pub(crate) has_lost: AtomicBool,
}

impl Drop for FileData {
    fn drop(&mut self) {
        self.budget.release(FILE_BYTES);
    }
}

impl FileData {
    /// The data of a file that has nothing in memory yet, of `size` bytes. `changed_in` is the last
    /// transaction that changed its inode, possibly its size.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        path: DataPath,
        pages: extant_page_cache::Handle,
        known: extant_extent_status::Inode,
        size: u64,
        changed_in: Tid,
    ) -> Self {
        Self {
            budget: Arc::clone(budget),
            path,
            pages,
            unconverted: Unconverted::default(),
            known,
            mapping: RwLock::new(()),
            size: AtomicU64::new(size),
            promised: AtomicU64::new(0),
            mapped_in: AtomicU64::new(changed_in.0),
            is_listed: AtomicBool::new(false),
            lost: Mutex::default(),
            has_lost: AtomicBool::new(false),
        }
    }

    /// Charges the budget for this value. Call it once, without a lock that a shrinker takes.
    pub(crate) fn charge(&self) {
        self.budget.charge(FILE_BYTES);
    }

    /// Whether the data can be evicted and read again from the device, if the inode's size is `on_disk`: it
    /// has no dirty data, no delayed allocation and no error to report.
    pub(crate) fn is_idle(&self, on_disk: u64) -> bool {
        let is_clean = !self.is_listed.load(Ordering::Acquire) && self.pages.is_clean();
        is_clean && self.promised() == 0 && self.size() == on_disk && !self.pages.had_errors()
    }

    /// How its bytes get to the device.
    #[must_use]
    pub fn path(&self) -> DataPath {
        self.path
    }

    /// Size of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Changes [`size`](Self::size). The caller holds the operation lock exclusively, and to shrink the file
    /// also `mapping`.
    pub fn set_size(&self, size: u64) {
        self.pages.cut_end(size);
        self.size.store(size, Ordering::Release);
    }

    /// Number of clusters that are promised to its delayed blocks.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised.load(Ordering::Relaxed)
    }

    /// Adds to the number of promised clusters.
    pub(crate) fn note_promised(&self, clusters: u64) {
        self.promised.fetch_add(clusters, Ordering::Relaxed);
    }

    /// The last transaction that changed its size or map, or a later one; 0 if none did since it is in
    /// memory.
    #[must_use]
    pub fn mapped_in(&self) -> Tid {
        Tid(self.mapped_in.load(Ordering::Acquire))
    }

    /// Whether memory has bytes that could not be written back.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }

    /// Records that this transaction changed its size or map.
    pub fn note_mapped(&self, transaction: Tid) {
        self.mapped_in.fetch_max(transaction.0, Ordering::AcqRel);
    }

    /// If a run of bytes after the block at the end on disk must wait for that block, returns the bytes of
    /// the block before the end. The block is dirty or being written, so its bytes on the device after that
    /// end are undefined, and the size on disk must not pass it yet.
    #[must_use]
    pub fn end_in_front_of(&self, on_disk: u64, run: &Range<u64>, block_bytes: u64) -> Option<Range<u64>> {
        let block = on_disk & !(block_bytes - 1);
        let must_wait = block < on_disk && on_disk < run.start && self.pages.is_held(block..on_disk);
        must_wait.then_some(block..on_disk)
    }
}
