//! A device that holds writes back until they are committed or discarded.
//!
//! ```text
//! read:  the pages written, over the bytes of the device
//! write: into memory, and into a list with the flushes between
//! write_out: the list, in order, to the device
//! ```
//!
//! The engine writes in an order in which a power cut does no harm. The list keeps that order, so a power cut
//! during [`Staged::write_out`] does no harm either. Before it the device has not changed by a byte.
//!
//! Owns: the list. Does **not** own: the meaning of the writes, locks on the image.
//!
//! Invariants
//! 1. Nothing reaches the device before [`Staged::write_out`], unless the limit is exceeded and the mode is
//!    [`HoldPolicy::UntilFull`].
//! 2. Memory is bounded by the limit: the list holds the written bytes once, the pages hold them again,
//!    rounded to whole pages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extant::{Device, DeviceFault};

use crate::sizes::human;

/// The limit in bytes for [`HoldPolicy::All`]. Larger changes are more than one edit.
const HELD_MAX: u64 = 1 << 30;
/// The limit in bytes if changes may also be written before the end.
const HELD_AT_EASE: u64 = 128 << 20;
/// Bytes per page.
const PAGE: u64 = 4096;

/// What to do with writes beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldPolicy {
    /// They are refused.
    All,
    /// Writes the held ones out; later writes go through.
    UntilFull,
    /// No write is held back at all.
    Nothing,
}

/// See the [module](self).
pub(crate) struct Staged {
    inner: Arc<dyn Device>,
    hold_policy: HoldPolicy,
    /// The most bytes of writes to hold.
    held_max: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Written pages, by page number.
    pages: HashMap<u64, Box<[u8]>>,
    list: Vec<Event>,
    held: u64,
    /// Writes go through from now on.
    is_through: bool,
    /// A write was refused because it exceeds the limit.
    is_full: bool,
}

enum Event {
    Write(u64, Box<[u8]>),
    Durable(u64, Box<[u8]>),
    Flush,
}

impl Staged {
    pub(crate) fn new(inner: Arc<dyn Device>, hold_policy: HoldPolicy) -> Self {
        let held_max = if hold_policy == HoldPolicy::All { HELD_MAX } else { HELD_AT_EASE };
        Self { inner, hold_policy, held_max, state: Mutex::default() }
    }

    /// Whether all writes so far are still held back.
    pub(crate) fn is_held(&self) -> bool {
        !self.state().is_through
    }

    /// A message if a write was refused because it exceeds the limit.
    pub(crate) fn full(&self) -> Option<String> {
        self.state().is_full.then(|| {
            format!(
                "the changes need more than {} of memory to be made all together or not at all: nothing was changed; split them, \
                 or have them written as they come, with --keep-going",
                human(self.held_max)
            )
        })
    }

    /// Writes the held list out; later writes go through.
    ///
    /// # Errors
    /// The device refused a write; the writes before it are done.
    pub(crate) fn write_out(&self) -> Result<(), DeviceFault> {
        self.release(&mut self.state())
    }

    fn release(&self, state: &mut State) -> Result<(), DeviceFault> {
        for event in std::mem::take(&mut state.list) {
            match event {
                Event::Write(offset, bytes) => self.inner.write_at(offset, &bytes)?,
                Event::Durable(offset, bytes) => self.inner.write_durable_at(offset, &bytes)?,
                Event::Flush => self.inner.flush()?,
            }
        }
        state.pages = HashMap::new();
        state.is_through = true;
        Ok(())
    }

    /// The lock may be poisoned: after a panic the list still contains whole events.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a write back and returns true. Returns false if the write must go through.
    fn keep(&self, offset: u64, bytes: &[u8], is_durable: bool) -> Result<bool, DeviceFault> {
        let len = bytes.len() as u64;
        DeviceFault::check_len("write", offset, len, self.size_bytes())?;
        let mut state = self.state();
        if !state.is_through && state.held.saturating_add(len) > self.held_max {
            if self.hold_policy == HoldPolicy::All {
                state.is_full = true;
                let source = std::io::ErrorKind::OutOfMemory.into();
                return Err(DeviceFault::Io { what: "hold back", offset, len, source });
            }
            self.release(&mut state)?;
        }
        if state.is_through {
            return Ok(false);
        }
        let mut done = 0;
        while done < len {
            let at = offset + done;
            let (number, within) = (at / PAGE, (at % PAGE) as usize);
            let part = ((PAGE as usize - within) as u64).min(len - done) as usize;
            let page = match state.pages.entry(number) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    let start = number * PAGE;
                    let mut page = vec![0; (self.inner.size_bytes() - start).min(PAGE) as usize];
                    if part < page.len() {
                        self.inner.read_at(start, &mut page)?;
                    }
                    entry.insert(page.into_boxed_slice())
                }
            };
            page[within..within + part].copy_from_slice(&bytes[done as usize..done as usize + part]);
            done += part as u64;
        }
        state.held += len;
        let event = if is_durable { Event::Durable } else { Event::Write };
        state.list.push(event(offset, bytes.into()));
        Ok(true)
    }
}

impl Device for Staged {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let state = self.state();
        self.inner.read_at(offset, buf)?;
        if state.pages.is_empty() || buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u64; // the device checked the range
        for number in offset / PAGE..=(end - 1) / PAGE {
            if let Some(page) = state.pages.get(&number) {
                let start = number * PAGE;
                let (from, to) = (offset.max(start), end.min(start + page.len() as u64));
                let part = &page[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if self.keep(offset, bytes, false)? { Ok(()) } else { self.inner.write_at(offset, bytes) }
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        if self.keep(offset, bytes, true)? { Ok(()) } else { self.inner.write_durable_at(offset, bytes) }
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("zero", offset, len, self.size_bytes())?;
        let zeros = vec![0; len.min(1 << 20) as usize];
        let mut done = 0;
        while done < len {
            let part = (len - done).min(zeros.len() as u64);
            if !self.keep(offset + done, &zeros[..part as usize], false)? {
                return self.inner.zero_at(offset + done, len - done);
            }
            done += part;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        let mut state = self.state();
        if state.is_through {
            drop(state);
            return self.inner.flush();
        }
        // A second flush without a write in between has no effect.
        if !matches!(state.list.last(), None | Some(Event::Flush)) {
            state.list.push(Event::Flush);
        }
        Ok(())
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }
}

#[cfg(test)]
mod tests {
    use extant::MemDevice;

    use super::*;

    fn staged(hold_policy: HoldPolicy, held_max: u64) -> (Arc<MemDevice>, Staged) {
        let memory = Arc::new(MemDevice::new(10_000));
        memory.write_at(0, &[7; 10_000]).unwrap();
        let staged = Staged { held_max, ..Staged::new(Arc::<MemDevice>::clone(&memory), hold_policy) };
        (memory, staged)
    }

    fn all(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; device.size_bytes() as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn nothing_is_written_before_it_is_meant_and_all_of_it_then() {
        let (memory, staged) = staged(HoldPolicy::All, 1 << 20);
        let mut expected = vec![7; 10_000];
        for (offset, byte, len) in
            [(0, 1, 1), (4000, 2, 200), (8190, 3, 1810), (4096, 4, 4096), (9_999, 5, 1)]
        {
            staged.write_at(offset, &vec![byte; len]).unwrap();
            expected[offset as usize..offset as usize + len].fill(byte);
        }
        staged.flush().unwrap();
        staged.zero_at(100, 5000).unwrap();
        expected[100..5100].fill(0);
        staged.write_durable_at(50, b"durable").unwrap();
        expected[50..57].copy_from_slice(b"durable");
        assert_eq!(all(&staged), expected);
        let mut part = [0; 10];
        staged.read_at(4095, &mut part).unwrap();
        assert_eq!(part, expected[4095..4105]);
        assert_eq!(all(&*memory), [7; 10_000]);
        assert!(staged.write_at(9_999, b"ab").is_err());

        staged.write_out().unwrap();
        assert_eq!(all(&*memory), expected);
        staged.write_at(3, b"through").unwrap();
        assert_eq!(all(&*memory)[3..10], *b"through");
        assert_eq!(all(&staged), all(&*memory));
    }

    #[test]
    fn too_much_is_refused_or_goes_through() {
        let (memory, refusing) = staged(HoldPolicy::All, 100);
        refusing.write_at(0, &[1; 60]).unwrap();
        assert_eq!(refusing.full(), None);
        refusing.write_at(60, &[1; 60]).unwrap_err();
        assert!(refusing.full().unwrap().contains("--keep-going"));
        assert_eq!(all(&*memory), [7; 10_000]);

        let (memory, passing) = staged(HoldPolicy::UntilFull, 100);
        passing.write_at(0, &[1; 60]).unwrap();
        assert!(passing.is_held());
        passing.write_at(30, &[2; 60]).unwrap();
        assert!(!passing.is_held());
        let expected = [vec![1; 30], vec![2; 60], vec![7; 9_910]].concat();
        assert_eq!(all(&*memory), expected);
        assert_eq!(all(&passing), expected);
    }
}
