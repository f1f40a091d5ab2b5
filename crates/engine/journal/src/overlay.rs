//! A device that shows its base with some blocks replaced by copies in a log or by bytes in memory.
//!
//! Copies are read from the log on demand. A range without replaced blocks costs one search in a sorted list,
//! and then the same read that the base would do.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use extant_base::{BlockSize, Pblk};
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::MAGIC;

use crate::fault::JournalFault;
use crate::log::Log;
use crate::plan::ReplayPlan;

/// The source of a replaced block.
#[derive(Clone)]
enum Source {
    /// At this byte offset of the log's device.
    Log {
        offset: u64,
        escaped: bool,
    },
    Memory(Arc<[u8]>),
}

struct Entry {
    /// First byte of the block on the base.
    start: u64,
    source: Source,
}

/// A read-only device that shows its base as it will be after the replay.
pub struct Overlay {
    base: Arc<dyn Device>,
    log: Option<Arc<dyn Device>>,
    block_len: u64,
    /// Sorted by `start`, each block once.
    entries: Vec<Entry>,
}

/// Collects the blocks of an [`Overlay`].
pub struct OverlayBuilder {
    base: Arc<dyn Device>,
    block_size: BlockSize,
    log: Option<Arc<dyn Device>>,
    blocks: BTreeMap<u64, Source>,
}

impl Overlay {
    /// An overlay of `base` that replaces no block yet.
    #[must_use]
    pub fn builder(base: Arc<dyn Device>, block_size: BlockSize) -> OverlayBuilder {
        OverlayBuilder { base, block_size, log: None, blocks: BTreeMap::new() }
    }

    /// The base device.
    #[must_use]
    pub fn base(&self) -> &Arc<dyn Device> {
        &self.base
    }

    /// Number of replaced blocks.
    #[must_use]
    pub fn replaced_blocks(&self) -> usize {
        self.entries.len()
    }

    /// The replaced blocks that overlap a range.
    fn entries_in(&self, offset: u64, len: u64) -> Result<&[Entry], DeviceFault> {
        let size = self.size_bytes();
        let end = offset.checked_add(len).filter(|end| *end <= size);
        let end = end.ok_or(DeviceFault::OutOfRange { what: "read", offset, len, size })?;
        // The first block that ends after the start of the range.
        let from = self.entries.partition_point(|entry| entry.start.saturating_add(self.block_len) <= offset);
        let to = from + self.entries[from..].partition_point(|entry| entry.start < end);
        Ok(if len == 0 { &[] } else { &self.entries[from..to] })
    }

    /// Fills `buf` with replaced bytes from `at` on, as many as one read provides: at least to the end of the
    /// first block, at most to the end of `buf`. Returns the number of bytes, and of entries.
    fn read_replaced(
        &self,
        entries: &[Entry],
        at: u64,
        buf: &mut [u8],
    ) -> Result<(usize, usize), DeviceFault> {
        let first = &entries[0];
        let within = at - first.start; // below one block
        let in_block = |entry: &Entry| (entry.start + self.block_len - at).min(buf.len() as u64) as usize;
        let (offset, log) = match (&first.source, &self.log) {
            (Source::Log { offset, .. }, Some(log)) => (*offset, log),
            (Source::Memory(bytes), _) => {
                let len = in_block(first);
                buf[..len].copy_from_slice(&bytes[within as usize..][..len]);
                return Ok((len, 1));
            }
            (Source::Log { .. }, None) => unreachable!("the builder sets the log with its blocks"),
        };
        let follows = |n: usize, entry: &Entry| {
            let distance = n as u64 * self.block_len;
            let in_order =
                matches!(entry.source, Source::Log { offset: next, .. } if next == offset + distance);
            in_order && entry.start == first.start + distance && entry.start < at + buf.len() as u64
        };
        let count = entries.iter().enumerate().take_while(|(n, entry)| follows(*n, entry)).count();
        let len = in_block(&entries[count - 1]);
        log.read_at(offset + within, &mut buf[..len])?;
        for entry in &entries[..count] {
            if matches!(entry.source, Source::Log { escaped: true, .. }) {
                for (byte, place) in MAGIC.to_be_bytes().into_iter().zip(entry.start..) {
                    let target = place.checked_sub(at).and_then(|index| buf[..len].get_mut(index as usize));
                    if let Some(target) = target {
                        *target = byte;
                    }
                }
            }
        }
        Ok((len, count))
    }
}

impl OverlayBuilder {
    /// Replaces the plan's homes by their copies in the log.
    ///
    /// # Errors
    /// [`JournalFault::OutsideLog`] if the plan does not belong to this log.
    ///
    /// # Panics
    /// If the overlay already has a log.
    pub fn replay(mut self, log: &Log, plan: &ReplayPlan) -> Result<Self, JournalFault> {
        assert!(self.log.is_none(), "an overlay shows one log");
        for home in &plan.homes {
            let outside = JournalFault::OutsideLog { block: home.log_block };
            let (offset, _) = log.view().offset_of(home.log_block).ok_or(outside)?;
            // Homes lie inside the target, so their byte offsets fit into 64 bits.
            if let Some(start) = self.block_size.offset_of(home.block) {
                self.blocks.insert(start, Source::Log { offset, escaped: home.escaped });
            }
        }
        self.log = Some(log.device().clone());
        Ok(self)
    }

    /// Replaces a block by bytes in memory, even if it is already replaced.
    ///
    /// # Panics
    /// If `bytes` is not exactly one block, or the block lies past byte 2^64.
    #[must_use]
    pub fn patch(mut self, block: Pblk, bytes: Arc<[u8]>) -> Self {
        assert_eq!(bytes.len(), self.block_size.len(), "a patch is one block");
        let start = self.block_size.offset_of(block).expect("a block of a device");
        self.blocks.insert(start, Source::Memory(bytes));
        self
    }

    /// Builds the device.
    #[must_use]
    pub fn build(self) -> Overlay {
        let entries = self.blocks.into_iter().map(|(start, source)| Entry { start, source }).collect();
        Overlay { base: self.base, log: self.log, block_len: self.block_size.bytes(), entries }
    }
}

impl Device for Overlay {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let mut entries = self.entries_in(offset, buf.len() as u64)?;
        let (mut at, mut rest) = (offset, buf);
        while let Some(first) = entries.first() {
            if at < first.start {
                let gap;
                (gap, rest) = rest.split_at_mut((first.start - at) as usize);
                self.base.read_at(at, gap)?;
                at = first.start;
            }
            let (len, count) = self.read_replaced(entries, at, rest)?;
            rest = &mut rest[len..];
            at += len as u64;
            entries = &entries[count..];
        }
        if rest.is_empty() { Ok(()) } else { self.base.read_at(at, rest) }
    }

    fn file_at(&self, offset: u64, len: u64) -> Option<(BorrowedFd<'_>, u64)> {
        if self.entries_in(offset, len).ok()?.is_empty() { self.base.file_at(offset, len) } else { None }
    }

    fn read_vectored_at(&self, mut offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = bufs.iter().fold(0u64, |sum, buf| sum.saturating_add(buf.len() as u64));
        if self.entries_in(offset, len)?.is_empty() {
            return self.base.read_vectored_at(offset, bufs);
        }
        for buf in bufs {
            self.read_at(offset, buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.base.prefetch(offset, len);
    }

    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        Err(refused("write", offset, bytes.len() as u64))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        Err(refused("zero", offset, len))
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Err(refused("flush", 0, self.size_bytes()))
    }
}

fn refused(what: &'static str, offset: u64, len: u64) -> DeviceFault {
    let why = "the device is read-only, since its journal is shown replayed but is not";
    DeviceFault::Io { what, offset, len, source: io::Error::new(io::ErrorKind::ReadOnlyFilesystem, why) }
}

impl fmt::Debug for Overlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Overlay({} blocks of {} bytes replaced)", self.entries.len(), self.block_len)
    }
}

#[cfg(test)]
mod tests;
