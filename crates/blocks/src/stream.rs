//! Copies that do not displace other data in the CPU caches.
//!
//! For blocks that are in no cache, copied one after the other, each from its beginning to its end, so that
//! the hardware prefetcher works (a sixth less time than with software prefetch of the next block, measured
//! with blocks all over 7 GB). A group of copies is made before one is waited for.

use std::ptr::NonNull;

use crate::LINE;

#[repr(align(64))]
pub(crate) struct Line(pub(crate) [u8; LINE]);

/// Where the bytes of a copy go.
pub(crate) enum Lines<'a> {
    /// Past the caches.
    Past(Past),
    /// Of a block of an odd size, with its length: nothing is gained there.
    Odd(&'a mut Vec<u8>, usize),
}

/// A copy made by non-temporal stores. It may be shared after [`finish`].
pub(crate) struct Past {
    start: NonNull<u8>,
    len: usize,
    /// Bytes that are there, without those of `last`.
    at: usize,
    /// The beginning of a line that is not there yet, and how much it is.
    last: Line,
    rest: usize,
}

impl Past {
    /// # Safety
    /// `start` is good for `len` bytes as long as this is used, begins at a line, and they are whole lines.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, at: 0, last: Line([0; LINE]), rest: 0 }
    }

    #[inline]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len - self.at - self.rest, "a copy has no more bytes than stated");
        if self.rest == 0 && bytes.len().is_multiple_of(LINE) {
            // SAFETY: lines of what is good: there is room for what was put.
            unsafe { stream(bytes, self.start.add(self.at)) };
            self.at += bytes.len();
        } else {
            self.put_some(bytes);
        }
    }

    pub(crate) fn put_zeros(&mut self, len: usize) {
        assert!(len <= self.len - self.at - self.rest, "a copy has no more bytes than stated");
        // Up to where a line begins, whole lines, and what is left.
        let first = if self.rest == 0 { 0 } else { len.min(LINE - self.rest) };
        let lines = (len - first) / LINE * LINE;
        self.put_some(&[0; LINE][..first]);
        if lines > 0 {
            // SAFETY: lines of what is good: there is room for what was put, and a line begins here.
            unsafe { stream_zeros(lines, self.start.add(self.at)) };
            self.at += lines;
        }
        self.put_some(&[0; LINE][..len - first - lines]);
    }

    fn put_some(&mut self, mut bytes: &[u8]) {
        if self.rest > 0 {
            let (now, later) = bytes.split_at(bytes.len().min(LINE - self.rest));
            self.last.0[self.rest..self.rest + now.len()].copy_from_slice(now);
            self.rest += now.len();
            bytes = later;
            if self.rest < LINE {
                return;
            }
            // SAFETY: as above.
            unsafe { stream(&self.last.0, self.start.add(self.at)) };
            (self.at, self.rest) = (self.at + LINE, 0);
        }
        let (lines, behind) = bytes.split_at(bytes.len() / LINE * LINE);
        // SAFETY: as above.
        unsafe { stream(lines, self.start.add(self.at)) };
        self.at += lines.len();
        self.last.0[..behind.len()].copy_from_slice(behind);
        self.rest = behind.len();
    }

    pub(crate) fn is_full(&self) -> bool {
        self.at == self.len
    }
}

/// Puts whole lines there.
///
/// # Safety
/// `into` is good for as many bytes, and begins at a line.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(bytes: &[u8], into: NonNull<u8>) {
    if std::is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has these instructions; the rest is the caller's promise.
        return unsafe { stream_wide(bytes, into) };
    }
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for (at, line) in bytes.chunks_exact(LINE).enumerate() {
        for (within, piece) in line.chunks_exact(16).enumerate() {
            // SAFETY: 16 bytes of `bytes`, and as many at a multiple of 16 of `into`.
            unsafe {
                let piece = _mm_loadu_si128(piece.as_ptr().cast::<__m128i>());
                _mm_stream_si128(into.as_ptr().cast::<__m128i>().add(at * 4 + within), piece);
            }
        }
    }
}

/// # Safety
/// As [`stream`], on a CPU with AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_wide(bytes: &[u8], into: NonNull<u8>) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    for (at, line) in bytes.chunks_exact(LINE).enumerate() {
        // SAFETY: 64 bytes of `bytes`, and as many at a multiple of 64 of `into`.
        unsafe {
            let (from, to) = (line.as_ptr().cast::<__m256i>(), into.as_ptr().cast::<__m256i>().add(at * 2));
            let (first, second) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
            _mm256_stream_si256(to, first);
            _mm256_stream_si256(to.add(1), second);
        }
    }
}

/// Puts so many zeros there, whole lines.
///
/// # Safety
/// `into` is good for as many bytes, and begins at a line.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_zeros(len: usize, into: NonNull<u8>) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_stream_si128};
    for at in 0..len / 16 {
        // SAFETY: 16 bytes at a multiple of 16 of `into`.
        unsafe { _mm_stream_si128(into.as_ptr().cast::<__m128i>().add(at), _mm_setzero_si128()) };
    }
}

/// From now on other threads see the copies.
#[cfg(target_arch = "x86_64")]
pub(crate) fn finish() {
    // SAFETY: changes nothing.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

/// # Safety
/// `into` is good for as many bytes.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(bytes: &[u8], into: NonNull<u8>) {
    // SAFETY: the caller's.
    unsafe { into.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// # Safety
/// `into` is good for as many bytes.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_zeros(len: usize, into: NonNull<u8>) {
    // SAFETY: the caller's.
    unsafe { into.as_ptr().write_bytes(0, len) };
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn finish() {}
