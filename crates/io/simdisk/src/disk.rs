//! The disk: cache, medium, flush.

use std::convert::Infallible;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use extant_device::{Device, DeviceFault, FlushMeter, FlushStats};

use crate::SECTOR_BYTES;
use crate::image::Image;
use crate::recording::{EventKind, Logged, Mark, Recording};

/// The duration of a flush, as real time. Zero by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushCost {
    /// Of each flush, even of an empty cache.
    pub fixed: Duration,
    /// Per MiB in the cache, in proportion.
    pub per_mib: Duration,
}

/// A disk in memory with a volatile write cache. See the crate's page for the model.
///
/// Memory use: the bytes that were written, and each write since the last flush.
pub struct SimDisk {
    size: u64,
    fresh: bool,
    cost: FlushCost,
    state: RwLock<State>,
    /// Held by a flush for its duration: a disk makes one flush at a time.
    flushing: Mutex<()>,
    flushes: FlushMeter,
}

pub(crate) struct State {
    /// The content that reads see.
    view: Image,
    /// The content of the medium.
    pub(crate) durable: Image,
    /// Events from number `log_start` on: at least those that are not on the medium.
    log: Vec<Logged>,
    log_start: u64,
    /// Events below this number are on the medium.
    pub(crate) flushed: u64,
    /// Filled while recording, otherwise empty.
    marks: Vec<Mark>,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimDisk({} bytes, {} events)", self.size, self.events())
    }
}

impl SimDisk {
    /// An empty disk of `size` bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self { fresh: true, ..Self::from_image(Image::new(size)) }
    }

    /// A disk that holds `image`; all of it is durable.
    #[must_use]
    pub fn from_image(image: Image) -> Self {
        let state = State {
            view: image.clone(),
            durable: image,
            log: Vec::new(),
            log_start: 0,
            flushed: 0,
            marks: Vec::new(),
        };
        Self {
            size: state.view.size_bytes(),
            fresh: false,
            cost: FlushCost::default(),
            state: RwLock::new(state),
            flushing: Mutex::default(),
            flushes: FlushMeter::default(),
        }
    }

    /// A disk that holds `image`, all of it durable, and records from its first event on.
    #[must_use]
    pub fn recording(image: Image) -> Self {
        let disk = Self::from_image(image);
        disk.start_recording();
        disk
    }

    /// Sets the cost of flushes. Flushes are then measured.
    #[must_use]
    pub fn with_flush_cost(mut self, cost: FlushCost) -> Self {
        self.cost = cost;
        self
    }

    /// Number of events so far: writes, zeroings, discards, durable writes, finished flushes. Empty writes do
    /// not count.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.state().events()
    }

    /// Number of writes in the cache.
    #[must_use]
    pub fn pending_writes(&self) -> usize {
        let state = self.state();
        state.pending().iter().filter(|entry| entry.kind.is_cached()).count()
    }

    /// The content that reads see now, including the cache.
    #[must_use]
    pub fn image(&self) -> Image {
        self.state().view.clone()
    }

    /// The content of the medium now.
    #[must_use]
    pub fn durable_image(&self) -> Image {
        self.state().durable.clone()
    }

    /// Starts a recording and discards an earlier one. What is in the cache now can still be lost.
    pub fn start_recording(&self) {
        let mut state = self.state_mut();
        state.marks.clear();
        state.forget_flushed();
        state.mark();
    }

    /// A copy of the recording so far; the recording continues. `None` without a recording.
    #[must_use]
    pub fn recorded(&self) -> Option<Recording> {
        let state = self.state();
        let recorded =
            Recording { log_start: state.log_start, log: state.log.clone(), marks: state.marks.clone() };
        (!recorded.marks.is_empty()).then_some(recorded)
    }

    pub(crate) fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, kind: EventKind, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, bytes.len() as u64, self.size)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut state = self.state_mut();
        state.view.write(offset, bytes);
        state.log(kind, offset, bytes.len() as u64);
        if kind == EventKind::WriteDurable {
            state.finish_durable_write();
        }
        Ok(())
    }

    /// Makes durable what was written to a range of bytes since event `since`, and nothing else. Returns the
    /// `since` of the next call.
    pub(crate) fn flush_part(&self, bytes: Range<u64>, since: u64) -> u64 {
        let mut state = self.state_mut();
        let issued = state.events();
        let skip = since.saturating_sub(state.flushed) as usize;
        let of_part = |entry: &Logged| {
            let part = entry.offset.max(bytes.start)..(entry.offset + entry.len).min(bytes.end);
            (entry.kind != EventKind::WriteDurable && part.start < part.end).then_some(part)
        };
        let parts: Vec<Range<u64>> = state.pending().iter().skip(skip).filter_map(of_part).collect();
        for part in parts {
            state.log(EventKind::WriteDurable, part.start, part.end - part.start);
            state.finish_durable_write();
        }
        issued
    }

    fn flush_slowly(&self, issued: u64) {
        let _one_at_a_time = self.flushing.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(()) = self.flushes.measure(|| {
            let bytes: u64 = self.state().pending().iter().map(|entry| entry.sectors * SECTOR_BYTES).sum();
            let for_bytes = self.cost.per_mib.as_nanos().saturating_mul(bytes.into()) >> 20;
            let for_bytes = Duration::from_nanos(u64::try_from(for_bytes).unwrap_or(u64::MAX));
            std::thread::sleep(self.cost.fixed.saturating_add(for_bytes));
            self.state_mut().finish_flush(issued);
            Ok::<(), Infallible>(())
        });
    }
}

impl State {
    fn events(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// Events that no flush has moved to the medium.
    pub(crate) fn pending(&self) -> &[Logged] {
        &self.log[(self.flushed - self.log_start) as usize..]
    }

    /// Logs a change that the view already contains.
    fn log(&mut self, kind: EventKind, offset: u64, len: u64) {
        let first_sector = offset / SECTOR_BYTES;
        let sectors = (offset + len).div_ceil(SECTOR_BYTES) - first_sector;
        self.log.push(Logged { kind, offset, len, first_sector, sectors, after: self.view.clone() });
    }

    /// Moves the last logged write to the medium.
    fn finish_durable_write(&mut self) {
        if let Some(entry) = self.log.last() {
            entry.copy_all_to(&mut self.durable);
        }
        if !self.marks.is_empty() {
            self.mark();
        }
    }

    /// Ends a flush that was called when there were `issued` events.
    fn finish_flush(&mut self, issued: u64) {
        if issued == self.events() {
            self.durable = self.view.clone();
        } else if issued > self.flushed {
            let (before, since) = self.pending().split_at((issued - self.flushed) as usize);
            let mut durable = self.durable.clone();
            // Applied in order. Durable writes that came during the flush are newer than all of these.
            let newer = since.iter().filter(|entry| entry.kind == EventKind::WriteDurable);
            before.iter().chain(newer).for_each(|entry| entry.copy_all_to(&mut durable));
            self.durable = durable;
        }
        self.flushed = self.flushed.max(issued);
        self.log(EventKind::Flush, 0, 0);
        if self.marks.is_empty() {
            self.forget_flushed();
        } else {
            self.mark();
        }
    }

    fn forget_flushed(&mut self) {
        self.log.drain(..(self.flushed - self.log_start) as usize);
        self.log_start = self.flushed;
    }

    fn mark(&mut self) {
        let mark = Mark { after: self.events(), flushed: self.flushed, durable: self.durable.clone() };
        self.marks.push(mark);
    }
}

/// A hash of a number.
fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Device for SimDisk {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("read", offset, buf.len() as u64, self.size)?;
        self.state().view.read(offset, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.write(EventKind::Write, offset, bytes)
    }

    /// One write is one event.
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        match bufs {
            [one] => self.write_at(offset, one),
            _ => self.write_at(offset, &bufs.iter().flat_map(|buf| buf.iter().copied()).collect::<Vec<u8>>()),
        }
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.write(EventKind::WriteDurable, offset, bytes)
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("zero", offset, len, self.size)?;
        if len == 0 {
            return Ok(());
        }
        let mut state = self.state_mut();
        state.view.zero(offset, len);
        state.log(EventKind::Zero, offset, len);
        Ok(())
    }

    /// A write of whole sectors: each then holds zeros or garbage, depending on its number and the number of
    /// events so far.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        DeviceFault::check_len("discard", offset, len, self.size)?;
        let (first, end) = (offset.div_ceil(SECTOR_BYTES), (offset + len) / SECTOR_BYTES);
        if first >= end {
            return Ok(true);
        }
        let mut state = self.state_mut();
        let event = state.events();
        for sector in first..end {
            let mut bytes = [0; SECTOR_BYTES as usize];
            // Mostly garbage: zeros are valid in many structures.
            let chance = mixed(sector.wrapping_mul(0x9E37_79B9) ^ event);
            if !chance.is_multiple_of(4) {
                for (number, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
                    word.copy_from_slice(&mixed(chance + number).to_le_bytes());
                }
            }
            state.view.write(sector * SECTOR_BYTES, &bytes);
        }
        state.log(EventKind::Discard, first * SECTOR_BYTES, (end - first) * SECTOR_BYTES);
        Ok(true)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        if self.cost == FlushCost::default() {
            let mut state = self.state_mut();
            let issued = state.events();
            state.finish_flush(issued);
        } else {
            let issued = self.events();
            self.flush_slowly(issued);
        }
        Ok(())
    }

    fn flush_nanos(&self) -> Option<u64> {
        if self.cost == FlushCost::default() { Some(0) } else { self.flushes.average_nanos() }
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.flushes.stats()
    }

    fn is_fresh(&self) -> bool {
        self.fresh
    }
}
