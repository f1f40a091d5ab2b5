//! Reads the blocks of a log: combines device, map and block size.

use std::fmt;
use std::sync::Arc;

use extant_base::BlockSize;
use extant_device::Device;

use crate::fault::JournalFault;
use crate::map::LogMap;

/// Limit of readahead, in bytes.
const WINDOW_BYTES: usize = 512 << 10;

/// A log on a shared device.
#[derive(Clone)]
pub struct Log {
    device: Arc<dyn Device>,
    map: Arc<LogMap>,
    block_size: BlockSize,
}

impl Log {
    /// The log with map `map` on `device`.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, map: LogMap, block_size: BlockSize) -> Self {
        Self { device, map: Arc::new(map), block_size }
    }

    /// A borrowed view of the log.
    #[must_use]
    pub fn view(&self) -> LogView<'_> {
        LogView::new(&*self.device, &self.map, self.block_size)
    }

    /// The device that holds the log.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The places of its blocks.
    #[must_use]
    pub fn map(&self) -> &LogMap {
        &self.map
    }

    /// The size of its blocks.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Log({} blocks of {})", self.map.blocks(), self.block_size)
    }
}

/// A borrowed log: everything needed to read it.
#[derive(Clone, Copy)]
pub struct LogView<'a> {
    device: &'a dyn Device,
    map: &'a LogMap,
    block_size: BlockSize,
}

impl<'a> LogView<'a> {
    /// The log with map `map` on `device`.
    #[must_use]
    pub fn new(device: &'a dyn Device, map: &'a LogMap, block_size: BlockSize) -> Self {
        Self { device, map, block_size }
    }

    /// The places of its blocks.
    #[must_use]
    pub fn map(&self) -> &'a LogMap {
        self.map
    }

    /// The size of its blocks.
    #[must_use]
    pub fn block_size(&self) -> BlockSize {
        self.block_size
    }

    /// Byte offset of a log block on the device, and the number of contiguous blocks from there; `None`
    /// outside the log.
    #[must_use]
    pub fn offset_of(&self, log: u32) -> Option<(u64, u32)> {
        let (place, len) = self.map.find(log)?;
        Some((self.block_size.offset_of(place)?, len))
    }

    /// Reads one log block.
    ///
    /// # Errors
    /// [`JournalFault::Device`] if the device fails, [`JournalFault::OutsideLog`] if there is no such block.
    pub fn block(&self, log: u32) -> Result<Vec<u8>, JournalFault> {
        let (offset, _) = self.offset_of(log).ok_or(JournalFault::OutsideLog { block: log })?;
        let mut bytes = vec![0; self.block_size.len()];
        self.read(log, offset, &mut bytes)?;
        Ok(bytes)
    }

    fn read(&self, log: u32, offset: u64, bytes: &mut [u8]) -> Result<(), JournalFault> {
        self.device.read_at(offset, bytes).map_err(|source| JournalFault::Device { block: log, source })
    }
}

/// Reads log blocks mostly in order. The readahead grows while the order lasts.
pub(crate) struct Sequential<'a> {
    log: LogView<'a>,
    /// The log block of the window's first block.
    first: u32,
    window: Vec<u8>,
    ahead: u32,
}

impl<'a> Sequential<'a> {
    pub(crate) fn new(log: LogView<'a>) -> Self {
        Self { log, first: 0, window: Vec::new(), ahead: 1 }
    }

    /// One log block, valid until the next call.
    pub(crate) fn block(&mut self, log: u32) -> Result<&[u8], JournalFault> {
        let len = self.log.block_size.len();
        let held = (self.window.len() / len) as u32; // at most WINDOW_BYTES
        let mut index = log.wrapping_sub(self.first);
        if index >= held {
            let ahead_max = (WINDOW_BYTES / len) as u32;
            let in_order = held > 0 && index == held;
            self.ahead = if in_order { self.ahead.saturating_mul(4).min(ahead_max) } else { 1 };
            self.fill(log)?;
            index = 0;
        }
        let at = index as usize * len;
        Ok(&self.window[at..at + len])
    }

    pub(crate) fn view(&self) -> LogView<'a> {
        self.log
    }

    fn fill(&mut self, log: u32) -> Result<(), JournalFault> {
        let (offset, in_a_row) = self.log.offset_of(log).ok_or(JournalFault::OutsideLog { block: log })?;
        let len = self.log.block_size.len();
        let count = self.ahead.min(in_a_row);
        self.window.resize(count as usize * len, 0);
        self.first = log;
        let mut result = self.log.read(log, offset, &mut self.window);
        if result.is_err() && count > 1 {
            // The bad block may be a later one, which is possibly not needed.
            self.window.truncate(len);
            result = self.log.read(log, offset, &mut self.window);
        }
        if result.is_err() {
            self.window.clear();
        }
        result
    }
}
