//! The two checksums of ext4: CRC-32C chained by value (metadata_csum) and CRC-16 (gdt_csum).

use crc_fast::{CrcAlgorithm, Digest};

/// CRC-32C (Castagnoli, reflected) of `bytes`, continued from `seed`, without the customary final inversion.
///
/// ext4 chains checksums by value: `crc32c(crc32c(!0, a), b)` is the checksum of `a` followed by `b`.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, seed.into());
    digest.update(bytes);
    !(digest.finalize() as u32)
}

/// The seed from which [`crc32c`] of `bytes` gives `sum`. There is exactly one.
#[must_use]
pub fn crc32c_seed(sum: u32, bytes: &[u8]) -> u32 {
    // A step shifts out one byte and adds its entry of the table; the high bytes of all entries differ.
    let table: [u32; 256] = std::array::from_fn(|at| crc32c(at as u32, &[0]));
    let mut of_high = [0u8; 256];
    for (at, entry) in (0..=u8::MAX).zip(table) {
        of_high[(entry >> 24) as usize] = at;
    }
    bytes.iter().rev().fold(sum, |after, byte| {
        let at = of_high[(after >> 24) as usize];
        (after ^ table[usize::from(at)]) << 8 | u32::from(at ^ byte)
    })
}

/// Converts the CRC-32C of `len` bytes from one seed to another seed without reading the bytes again. This
/// works because `crc32c(a, bytes) ^ crc32c(b, bytes)` depends only on the seeds and on the number of bytes.
#[derive(Debug, Clone)]
pub struct Reseed {
    len: usize,
    /// The change of the checksum for each group of four bits of `from ^ to`, and for each value of the
    /// group.
    parts: [[u32; 16]; 8],
}

impl Reseed {
    /// Creates the tables for checksums of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let zeros = vec![0; len];
        let bits: [u32; 32] = std::array::from_fn(|bit| crc32c(1 << bit, &zeros));
        let of = |part: usize, value: usize| {
            (0..4).filter(|bit| value >> bit & 1 == 1).fold(0, |sum, bit| sum ^ bits[part * 4 + bit])
        };
        Self { len, parts: std::array::from_fn(|part| std::array::from_fn(|value| of(part, value))) }
    }

    /// Number of bytes that the checksums cover.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "not of what this has")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Converts `known`, the checksum of the bytes from the seed `from`, to the checksum from the seed `to`.
    #[must_use]
    pub fn change(&self, known: u32, from: u32, to: u32) -> u32 {
        let differs = from ^ to;
        let parts = self.parts.iter().enumerate();
        parts.fold(known, |sum, (i, part)| sum ^ part[(differs >> (i * 4) & 15) as usize])
    }
}

/// Computes how a change of a few bytes affects the CRC-32C of many bytes, without reading the other bytes.
/// Two checksums from the same seed over the same length differ by the checksum, from seed 0, of the
/// difference of their bytes.
#[derive(Debug, Clone)]
pub struct Difference {
    /// The factor for each number of words of zeros that follow the changed bytes: multiplied with the
    /// checksum of those bytes from seed 0.
    factors: Box<[u32]>,
}

/// Bytes in a word.
const WORD: usize = 4;
/// The polynomial of CRC-32C and the constant 1 in reflected form: the highest power is in the lowest bit.
const POLYNOMIAL: u32 = 0x82F6_3B78;
const ONE: u32 = 1 << 31;

/// Multiplies by x.
const fn next_power(value: u32) -> u32 {
    if value & 1 == 1 { value >> 1 ^ POLYNOMIAL } else { value >> 1 }
}

/// The remainder for each value of the four lowest bits, which a multiplication by x^4 shifts out.
const SHIFTED_OUT: [u32; 16] = {
    let mut table = [0; 16];
    let mut bits = 0;
    while bits < table.len() {
        table[bits] = next_power(next_power(next_power(next_power(bits as u32))));
        bits += 1;
    }
    table
};

fn multiply(a: u32, b: u32) -> u32 {
    // All multiples of `b` by polynomials of degree below 4.
    let powers = [b, next_power(b), next_power(next_power(b)), next_power(next_power(next_power(b)))];
    let mut multiples = [0; 16];
    for bits in 1..16usize {
        let lowest = bits.trailing_zeros() as usize;
        multiples[bits] = multiples[bits & (bits - 1)] ^ powers[3 - lowest];
    }
    (0..8).fold(0, |product: u32, i| {
        let shifted = product >> 4 ^ SHIFTED_OUT[(product & 15) as usize];
        shifted ^ multiples[(a >> (i * 4) & 15) as usize]
    })
}

impl Difference {
    /// Creates the table for checksums of `len` bytes; `len` must be a multiple of 4.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let word = |before: &u32| Some((0..32).fold(*before, |value, _| next_power(value)));
        Self { factors: std::iter::successors(Some(ONE), word).take(len / WORD + 1).collect() }
    }

    /// Number of bytes that the checksums cover.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "not of what this has")]
    pub fn len(&self) -> usize {
        (self.factors.len() - 1) * WORD
    }

    /// The value to XOR into the checksum when the bytes from `at` are XORed with `differ`. Both `at` and the
    /// length of `differ` are multiples of 4.
    ///
    /// # Panics
    /// If `at` or the length is not a multiple of 4, or the change reaches past the end.
    #[must_use]
    pub fn of(&self, at: usize, differ: &[u8]) -> u32 {
        let is_whole = |len: usize| len.is_multiple_of(WORD);
        assert!(is_whole(at) && is_whole(differ.len()), "changes are in whole words");
        let behind = self.len() - at - differ.len();
        multiply(crc32c(0, differ), self.factors[behind / WORD])
    }
}

/// CRC-16 (polynomial 0x8005, reflected) of `bytes`, continued from `seed`; group descriptors start at
/// 0xFFFF.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    let mut crc = seed;
    for &byte in bytes {
        crc = (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)];
    }
    crc
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { (crc >> 1) ^ 0xA001 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_matches_the_published_check_value_before_its_final_inversion() {
        assert_eq!(crc32c(!0, b"123456789"), !0xE306_9283);
    }

    #[test]
    fn crc32c_chains_by_value() {
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), crc32c(!0, b"123456789"));
    }

    #[test]
    fn the_seed_is_known_from_bytes_and_checksum() {
        let bytes: Vec<u8> = (0..300u32).map(|i| ((i * i) >> 3) as u8).collect();
        for seed in [0, 1, !0, 0xDEAD_BEEF] {
            assert_eq!(crc32c_seed(crc32c(seed, &bytes), &bytes), seed);
        }
    }

    #[test]
    fn a_checksum_from_another_seed_is_known_without_the_bytes() {
        let bytes: Vec<u8> = (0..4084u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in [0, 1, 12, 1012, 4084] {
            let reseed = Reseed::new(len);
            for (from, to) in [(0, 0), (1, !0), (0xDEAD_BEEF, 0x0BAD_CAFE), (!0, 0x8000_0000)] {
                let known = crc32c(from, &bytes[..len]);
                assert_eq!(reseed.change(known, from, to), crc32c(to, &bytes[..len]));
            }
        }
    }

    #[test]
    fn what_a_change_does_to_a_checksum_is_known_without_the_rest() {
        let mut bytes: Vec<u8> = (0..4084u32).map(|i| ((i * i) >> 3) as u8).collect();
        let difference = Difference::new(bytes.len());
        assert_eq!(difference.len(), bytes.len());
        let mut known = crc32c(0xDEAD_BEEF, &bytes);
        for (at, len) in [(0, 4), (0, 4084), (4080, 4), (12, 24), (2048, 0), (1000, 264), (4, 4080)] {
            let differ: Vec<u8> = (0..len).map(|i| (i * 37 + at) as u8 | 1).collect();
            bytes[at..at + len].iter_mut().zip(&differ).for_each(|(byte, differs)| *byte ^= differs);
            known ^= difference.of(at, &differ);
            assert_eq!(known, crc32c(0xDEAD_BEEF, &bytes), "{len} bytes at {at}");
        }
    }

    #[test]
    fn crc16_matches_the_published_check_values() {
        assert_eq!(crc16(0, b"123456789"), 0xBB3D); // CRC-16/ARC
        assert_eq!(crc16(0xFFFF, b"123456789"), 0x4B37); // CRC-16/MODBUS
    }
}
