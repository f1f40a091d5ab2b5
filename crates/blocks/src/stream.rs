//! Copies that leave the processor's caches to others.

use std::ptr::NonNull;

use crate::LINE;

#[repr(align(64))]
struct Line([u8; LINE]);

/// Fills `into` with `bytes`, but the last ones with `end`, which fits into a line.
///
/// # Safety
/// `into` is good for as many bytes, and begins at a multiple of a line; `bytes` are a multiple of a line.
pub(crate) unsafe fn copy_with_end(bytes: &[u8], end: &[u8], into: NonNull<u8>) {
    let last_at = bytes.len() - LINE;
    let mut last = Line([0; LINE]);
    last.0.copy_from_slice(&bytes[last_at..]);
    last.0[LINE - end.len()..].copy_from_slice(end);
    // SAFETY: both parts lie in `into`, at multiples of a line.
    unsafe {
        stream(&bytes[..last_at], into);
        stream(&last.0, into.add(last_at));
    }
    finish();
}

/// # Safety
/// As [`copy_with_end`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(bytes: &[u8], into: NonNull<u8>) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    for (at, piece) in bytes.chunks_exact(16).enumerate() {
        // SAFETY: 16 bytes of `bytes`, and as many at a multiple of 16 of `into`.
        unsafe {
            let piece = _mm_loadu_si128(piece.as_ptr().cast::<__m128i>());
            _mm_stream_si128(into.as_ptr().cast::<__m128i>().add(at), piece);
        }
    }
}

/// Whoever is told of the bytes from now on finds them.
#[cfg(target_arch = "x86_64")]
fn finish() {
    // SAFETY: changes nothing.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(bytes: &[u8], into: NonNull<u8>) {
    // SAFETY: the caller's.
    unsafe { into.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

#[cfg(not(target_arch = "x86_64"))]
fn finish() {}
