//! Readahead: which bytes to read before they are requested.
//!
//! ```text
//! read 0..64K missed, at the start          window 64K..320K      (four times the read)
//! read 64K..128K: enters the window         next    320K..832K    (twice as much, up to the largest)
//! read 320K..: enters that                  next    832K..
//! read 7M..7M+4K: outside of all            no window
//! ```
//!
//! The start of a window is the *marker*. When the reader gets there, the next window is due, so that it is
//! in flight while this one is being read. Folios grow by two orders each time.
//!
//! Concurrent readers of one file are distinguished by position, not by open file, because not every caller
//! reports opens (a mount that does not get open requests sees one file). So one open file that is read at
//! two places in turn has two windows, too:
//!
//! ```text
//! 0..64K, 8M..8M+64K, 64K..128K, 8M+64K..8M+128K      stream 1: 0..128K      stream 2: 8M..8M+128K
//! ```
//!
//! Source: Documentation/core-api/mm-api (readahead), spec "read path": the first window from the request,
//! doubling up to the largest.

use crate::Order;

/// Bytes to read in, in folios up to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// The largest folios for it.
    pub order: Order,
}

/// Maximum number of streams. A random read starts a new stream each time and replaces the least recently
/// used one.
const STREAMS_MAX: usize = 8;

/// The read history of one file, by all its readers.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Most recently used first; as many as there were.
    streams: Vec<Readahead>,
}

impl Streams {
    /// Records a read; returns the window to read in next. See [`Readahead::after_read`].
    pub(crate) fn after_read(
        &mut self,
        pos: u64,
        len: u64,
        has_missed: bool,
        len_max: u64,
    ) -> Option<Window> {
        let known = self.streams.iter().position(|stream| stream.goes_on_at(pos));
        let at = known.unwrap_or_else(|| {
            if self.streams.len() < STREAMS_MAX {
                self.streams.push(Readahead::default());
            }
            let last = self.streams.len() - 1;
            self.streams[last] = Readahead::default();
            last
        });
        self.streams[..=at].rotate_right(1);
        self.streams[0].after_read(pos, len, has_missed, len_max)
    }
}

/// The read history of one stream.
#[derive(Debug, Clone, Copy, Default)]
struct Readahead {
    /// End of the last read.
    last_end: u64,
    /// The latest window, empty if the last reads are not sequential.
    start: u64,
    len: u64,
    order: u8,
}

impl Readahead {
    /// Whether a read at `pos` follows the last one or is inside the window.
    fn goes_on_at(&self, pos: u64) -> bool {
        pos == self.last_end || self.len != 0 && (self.last_end..=self.start + self.len).contains(&pos)
    }

    /// Records a read; returns the window to read in next. `has_missed`: some of the read was not cached.
    /// Windows are up to `len_max` bytes; 0 disables them.
    fn after_read(&mut self, pos: u64, len: u64, has_missed: bool, len_max: u64) -> Option<Window> {
        let (end, last_end) = (pos + len, self.last_end);
        self.last_end = end;
        if len == 0 || len_max == 0 {
            return None;
        }
        let window_end = self.start + self.len;
        if self.len != 0 && end > self.start && pos <= window_end {
            // At or after the marker. A reader that went past the window continues from its own position.
            self.start = window_end.max(end);
            self.len = grown(self.len, len_max);
            self.order = Order::new(self.order + 2).exponent();
            return Some(self.window());
        }
        if self.len != 0 && pos >= last_end && end <= self.start {
            return None; // on the way to the marker
        }
        let is_next = pos == last_end || pos == 0;
        self.len = 0;
        if !(is_next && has_missed) {
            return None;
        }
        self.start = end;
        self.len = first(len, len_max);
        self.order = Order::within(len).exponent();
        Some(self.window())
    }

    fn window(&self) -> Window {
        let order = Order::new(self.order).min(Order::within(self.len));
        Window { start: self.start, len_bytes: self.len, order }
    }
}

fn first(len: u64, len_max: u64) -> u64 {
    let len = len.next_power_of_two();
    if len <= len_max / 32 {
        len * 4
    } else if len <= len_max / 4 {
        len * 2
    } else {
        len_max
    }
}

fn grown(len: u64, len_max: u64) -> u64 {
    if len < len_max / 16 { len * 4 } else { (len * 2).min(len_max) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 2 << 20;

    #[test]
    fn windows_follow_each_other_and_grow() {
        let mut state = Readahead::default();
        let mut end_of_ahead = 4096;
        let mut lens = Vec::new();
        for at in 0..4096 {
            if let Some(window) = state.after_read(at * 4096, 4096, at * 4096 >= end_of_ahead || at == 0, MAX)
            {
                assert_eq!(window.start, end_of_ahead, "no byte twice, none left out");
                end_of_ahead += window.len_bytes;
                lens.push((window.len_bytes >> 10, window.order.exponent()));
            }
            assert!(end_of_ahead >= (at + 1) * 4096);
        }
        assert_eq!(lens[..6], [(16, 0), (64, 2), (256, 4), (512, 6), (1024, 8), (2048, 9)]);
        assert!(lens[6..].iter().all(|window| *window == (2048, 9)));
    }

    #[test]
    fn reads_here_and_there_get_nothing() {
        let mut state = Readahead::default();
        for at in [9, 3, 77, 20, 60, 2] {
            assert_eq!(state.after_read(at << 20, 4096, true, MAX), None);
        }
        assert!(state.after_read((2 << 20) + 4096, 4096, true, MAX).is_some(), "two in a row do");
        assert_eq!(state.after_read(40 << 20, 4096, true, MAX), None);
        assert_eq!(state.after_read(5 << 20, 4096, false, 0), None, "switched off");
    }

    #[test]
    fn readers_at_different_places_have_a_window_each() {
        let mut streams = Streams::default();
        let mut alone = [Readahead::default(); 3];
        for step in 0..300 {
            for (reader, alone) in alone.iter_mut().enumerate() {
                let pos = (reader as u64) * (1 << 30) + step * 65536;
                assert_eq!(
                    streams.after_read(pos, 65536, true, MAX),
                    alone.after_read(pos, 65536, true, MAX),
                    "reader {reader}, step {step}"
                );
            }
            // A random reader in between.
            assert_eq!(streams.after_read((step * 7 + 5) << 33, 4096, true, MAX), None);
        }
        assert_eq!(streams.streams.len(), STREAMS_MAX);
    }

    #[test]
    fn what_is_here_already_is_not_brought_again() {
        let mut state = Readahead::default();
        for at in 0..100 {
            assert_eq!(state.after_read(at * 65536, 65536, false, MAX), None);
        }
    }

    #[test]
    fn reads_larger_than_the_window_go_on_behind_themselves() {
        let mut state = Readahead::default();
        let window = state.after_read(0, 8 << 20, true, MAX).unwrap();
        assert_eq!((window.start, window.len_bytes), (8 << 20, MAX));
        let window = state.after_read(8 << 20, 8 << 20, true, MAX).unwrap();
        assert_eq!((window.start, window.len_bytes), (16 << 20, MAX));
    }
}
