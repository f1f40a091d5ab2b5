//! Writes a planned image: each thread takes the next part of the device and writes it with large writes.
//!
//! Owns the bytes of metadata (descriptors, bitmaps, inode tables, directories) and the copying of contents.
//! Does **not** own block addresses: the plan determines all of them. Therefore the threads need no locks,
//! and the bytes do not depend on the number of threads.
//!
//! Contents, directories and tables are written in any order, and the superblock last. Before that, the
//! device holds no file system.
//!
//! Invariants
//! 1. Each block is written at most once. On a device with old content, the first 4 KiB are zeroed first.
//! 2. On a fresh device, blocks of zeros are not written: holes stay holes.
//! 3. If the size of a content changes while it is read, the whole build fails and reports all such files,
//!    unless the caller tolerates changes.

mod contents;
mod groups;

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use extant_base::Ino;
use extant_device::{Device, DeviceFault};
use extant_ondisk::inode::inode_seed;

use crate::dirpack::Name;
use crate::plan::Plan;
use crate::tree::ROOT;

pub use contents::{Problem, SourceRoot};

/// Most bytes that are zeroed between two looks at [`WriteOptions::cancel`].
const ZERO_BYTES: u64 = 64 << 20;

/// Receives progress reports of writing, from all threads.
pub trait Meter: Sync {
    /// `bytes` more bytes and `files` more files of contents were written.
    fn wrote(&self, bytes: u64, files: u64);

    /// `done` of `total` units of the work `name` are done: blocks of "zeroing", which only a device with old
    /// content needs, then batches of "writing".
    fn advanced(&self, _name: &'static str, _done: u64, _total: u64) {}
}

/// Ignores the reports.
impl Meter for () {
    fn wrote(&self, _bytes: u64, _files: u64) {}
}

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteFault {
    /// Writing to the device failed.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// All files of the source that could not be read, or that changed while they were read.
    #[error("{} files could not be copied", .0.len())]
    Problems(Vec<Problem>),
    /// The work was cancelled.
    #[error("interrupted")]
    Interrupted,
}

impl WriteFault {
    /// Whether the caller ended the work: [`WriteOptions::cancel`] became true.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}

/// Statistics of a write.
#[derive(Debug, Clone, Copy, Default)]
pub struct Written {
    /// Bytes passed to the device.
    pub bytes: u64,
    /// Files that were padded or cut because their size changed while they were read (only if tolerated).
    pub changed_files: u64,
}

/// Options of a write.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions<'w> {
    /// Number of threads, at least one.
    pub threads: usize,
    /// Whether to pad or cut files that change size while they are read, instead of failing.
    pub tolerate_changes: bool,
    /// Set by another thread to stop the write.
    pub cancel: &'w AtomicBool,
    /// Whether to make everything durable at the end.
    pub sync: bool,
}

/// State that the threads share.
struct Writer<'w, 't> {
    plan: &'w Plan<'t>,
    device: &'w dyn Device,
    roots: &'w [SourceRoot],
    options: WriteOptions<'w>,
    meter: &'w dyn Meter,
    bytes: AtomicU64,
    /// Jobs that are done.
    finished: AtomicU64,
    /// Nodes whose files changed while they were read.
    changed: Mutex<HashSet<u32>>,
    problems: Mutex<Vec<Problem>>,
    /// The first fault of the device; it stops all threads.
    fault: Mutex<Option<DeviceFault>>,
    stop: AtomicBool,
}

/// A unit of work. Threads take jobs in order.
enum Job {
    /// Contents of `plan.by_ino[start..end]`, contiguous on the device.
    Files { start: u32, end: u32 },
    /// Part of one large file: the blocks of this extent.
    Part { node: u32, extent: extant_ondisk::extent::Extent },
    /// Directories `sealed.directories[start..end]`.
    Directories { start: u32, end: u32 },
    /// The inode table of a group.
    Table { group: u32 },
}

/// Writes the whole image.
///
/// # Errors
/// See [`WriteFault`]. The device then holds no file system.
pub fn write(
    plan: &Plan<'_>,
    device: &dyn Device,
    roots: &[SourceRoot],
    options: WriteOptions<'_>,
    meter: &dyn Meter,
) -> Result<Written, WriteFault> {
    let writer = Writer {
        plan,
        device,
        roots,
        options,
        meter,
        bytes: AtomicU64::new(0),
        finished: AtomicU64::new(0),
        changed: Mutex::new(HashSet::new()),
        problems: Mutex::new(Vec::new()),
        fault: Mutex::new(None),
        stop: AtomicBool::new(false),
    };
    writer.invalidate_old()?;
    let jobs = writer.jobs();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| writer.work(&jobs, &next));
        }
    });
    if let Some(fault) = writer.fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take() {
        return Err(fault.into());
    }
    if options.cancel.load(Ordering::Relaxed) {
        return Err(WriteFault::Interrupted);
    }
    let mut problems = writer.problems.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !problems.is_empty() {
        let mut list = std::mem::take(&mut *problems);
        list.sort_by(|a, b| a.path.cmp(&b.path));
        return Err(WriteFault::Problems(list));
    }
    writer.write_fixed_blocks()?;
    writer.write_groups()?;
    if options.sync {
        device.flush()?;
    }
    writer.write_superblock()?;
    if options.sync {
        device.flush()?;
    }
    Ok(Written {
        bytes: writer.bytes.load(Ordering::Relaxed),
        changed_files: writer.changed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len() as u64,
    })
}

impl Writer<'_, '_> {
    fn bs(&self) -> usize {
        self.plan.geometry().block_size.len()
    }

    fn put(&self, block: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_at(block << self.plan.geometry().block_size.log2(), bytes)
    }

    /// On a device with old content: removes the old superblock, and writes zeros where the plan requires
    /// them.
    fn invalidate_old(&self) -> Result<(), WriteFault> {
        if self.plan.fresh_device {
            return Ok(());
        }
        let log2 = self.plan.geometry().block_size.log2();
        // Zero the boot sectors and the superblock. The last few KiB of the device may hold a RAID or GPT
        // label, which does not belong to the file system.
        self.device.zero_at(0, 4096.min(self.device.size_bytes()))?;
        let total = self.plan.zero_runs.iter().map(|run| run.len).sum();
        let (mut done, part_max) = (0, ZERO_BYTES >> log2);
        for run in &self.plan.zero_runs {
            let end = run.start + run.len;
            let mut start = run.start;
            while start < end {
                if self.options.cancel.load(Ordering::Relaxed) {
                    return Err(WriteFault::Interrupted);
                }
                let len = part_max.min(end - start);
                self.device.zero_at(start << log2, len << log2)?;
                (start, done) = (start + len, done + len);
                self.meter.advanced("zeroing", done, total);
            }
        }
        Ok(())
    }

    fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        self.plan_file_jobs(&mut jobs);
        let directories = self.plan.sealed.directories.len() as u32;
        let mut start = 0;
        let mut blocks = 0;
        for i in 0..directories {
            let node = self.plan.sealed.directories[i as usize];
            blocks += self.plan.dense_blocks(node);
            if blocks as usize * self.bs() >= contents::BATCH_BYTES || i + 1 == directories {
                jobs.push(Job::Directories { start, end: i + 1 });
                (start, blocks) = (i + 1, 0);
            }
        }
        jobs.extend(
            (0..self.plan.geometry().groups)
                .filter(|&g| self.table_in_use(g))
                .map(|group| Job::Table { group }),
        );
        jobs
    }

    fn work(&self, jobs: &[Job], next: &AtomicUsize) {
        let mut copier = contents::Copier::new(self);
        loop {
            let stop = self.stop.load(Ordering::Relaxed) || self.options.cancel.load(Ordering::Relaxed);
            let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !stop) else { return };
            let done = match *job {
                Job::Files { start, end } => copier.copy_files(start, end),
                Job::Part { node, extent } => copier.copy_part(node, extent),
                Job::Directories { start, end } => self.write_directories(start, end),
                Job::Table { group } => self.write_table(group),
            };
            if let Err(fault) = done {
                self.stop.store(true, Ordering::Relaxed);
                self.fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(fault);
                return;
            }
            let finished = self.finished.fetch_add(1, Ordering::Relaxed) + 1;
            self.meter.advanced("writing", finished, jobs.len() as u64);
        }
    }

    fn write_directories(&self, start: u32, end: u32) -> Result<(), DeviceFault> {
        let (plan, tree) = (self.plan, self.plan.tree);
        let mut batch = Batch::new(self);
        for &node_index in &plan.sealed.directories[start as usize..end as usize] {
            let dir = tree.nodes[node_index as usize].content;
            let names = plan.sealed.children_of(dir).iter().map(|&record| {
                let record = &tree.records[record as usize];
                Name {
                    ino: Ino(plan.ino_of[record.node as usize]),
                    file_type: tree.nodes[record.node as usize].file_type(),
                    bytes: tree.name(record),
                }
            });
            let ino = Ino(plan.ino_of[node_index as usize]);
            let parent = if node_index == ROOT { ROOT } else { plan.sealed.parents[dir as usize] };
            let parent = Ino(plan.ino_of[parent as usize]);
            let extents = plan.extents_of(node_index);
            let mut places = extents.iter().flat_map(|e| e.start..e.start + u64::from(e.len));
            plan.packer.encode(plan.dirs[dir as usize], ino, parent, names, &mut |block| {
                batch.push(places.next().expect("planned as many blocks"), block)
            })?;
        }
        batch.flush()
    }

    /// Number of used inodes in a group. They are the first ones of the group.
    fn inodes_in_use(&self, group: u32) -> u32 {
        let ipg = self.plan.geometry().inodes_per_group;
        self.plan.last_ino().saturating_sub(group * ipg).min(ipg)
    }

    fn table_in_use(&self, group: u32) -> bool {
        self.inodes_in_use(group) > 0
    }

    /// Writes the used part of a group's inode table, and the tree blocks of its files.
    fn write_table(&self, group: u32) -> Result<(), DeviceFault> {
        let plan = self.plan;
        let geometry = plan.geometry();
        let inode_size = geometry.inode_size;
        let fs_seed = plan.superblock.fs_seed();
        let csum = plan.superblock.features.metadata_csum();
        let place = plan.layout.places[group as usize];
        let first = group * geometry.inodes_per_group + 1;
        let used = self.inodes_in_use(group);
        let mut batch = Batch::new(self);
        let per_block = geometry.inodes_per_block();
        let mut block = vec![0; self.bs()];
        for block_index in 0..used.div_ceil(per_block) {
            block.fill(0);
            for slot in 0..per_block {
                let ino = Ino(first + block_index * per_block + slot);
                if ino.0 >= first + used {
                    break;
                }
                let bytes = &mut block[slot as usize * inode_size..][..inode_size];
                let Some(generation) = self.encode_inode(ino, bytes, &mut batch)? else { continue };
                if csum {
                    extant_ondisk::inode::seal(bytes, inode_seed(fs_seed, ino, generation));
                }
            }
            batch.push(place.inode_table + u64::from(block_index), &block)?;
        }
        batch.flush()
    }

    /// Encodes one inode without its checksum. Returns its generation, or `None` if the inode stays all zero.
    fn encode_inode(
        &self,
        ino: Ino,
        bytes: &mut [u8],
        batch: &mut Batch<'_, '_, '_>,
    ) -> Result<Option<u32>, DeviceFault> {
        let plan = self.plan;
        let node = match ino.0 {
            2 => ROOT,
            11 => plan.lost_found,
            n if n >= plan.first_tree_ino => plan.by_ino[(n - plan.first_tree_ino) as usize],
            _ => {
                if let Some(special) = plan.specials.iter().find(|s| s.ino == ino) {
                    special.inode.encode(bytes);
                    return Ok(Some(special.inode.generation));
                }
                // Reserved inodes are sealed although they are empty: the kernel verifies the boot loader's
                // inode when it is requested.
                return Ok((ino < Ino::FIRST).then_some(0));
            }
        };
        let (inode, tree_blocks) = plan.inode_of(node);
        inode.encode(bytes);
        let set = plan.tree.nodes[node as usize].xattrs;
        if set != 0 && !plan.xattrs.sets[set as usize].is_empty() {
            plan.xattrs.encode_ibody(set, &mut bytes[inode.xattr_offset()..]);
        }
        for (place, block) in tree_blocks {
            batch.push(place.0, &block)?;
        }
        Ok(Some(inode.generation))
    }

    fn write_fixed_blocks(&self) -> Result<(), DeviceFault> {
        let mut order: Vec<usize> = (0..self.plan.blocks.len()).collect();
        order.sort_by_key(|&i| self.plan.blocks[i].0);
        let mut batch = Batch::new(self);
        for i in order {
            let (place, block) = &self.plan.blocks[i];
            batch.push(place.0, block)?;
        }
        batch.flush()
    }
}

/// Collects contiguous blocks into large writes. On a fresh device it skips blocks of zeros.
struct Batch<'b, 'w, 't> {
    writer: &'b Writer<'w, 't>,
    start: u64,
    bytes: Vec<u8>,
}

impl<'b, 'w, 't> Batch<'b, 'w, 't> {
    fn new(writer: &'b Writer<'w, 't>) -> Self {
        Self { writer, start: 0, bytes: Vec::new() }
    }

    fn push(&mut self, block: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if self.writer.plan.fresh_device && bytes.iter().all(|&b| b == 0) {
            return Ok(());
        }
        let end = self.start + (self.bytes.len() / self.writer.bs()) as u64;
        if block != end || self.bytes.len() + bytes.len() > contents::BATCH_BYTES {
            self.flush()?;
            self.start = block;
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DeviceFault> {
        if !self.bytes.is_empty() {
            self.writer.put(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}
