//! A fast, salted hash for tables whose keys are numbers that an image chooses.
//!
//! The secret salt prevents an attack: an image cannot choose its block or inode numbers so that all of them
//! fall into one bucket. This module does **not** own the salt: the creator of a table draws a random one.

use std::hash::{BuildHasher, Hasher};

/// Spreads numbers that are close: multiplies, and XORs the two halves of the product.
#[inline]
#[must_use]
pub fn spread(number: u64) -> u64 {
    let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15;
    (product as u64) ^ (product >> 64) as u64
}

/// A hasher of numbers with a secret salt.
#[derive(Debug, Clone, Copy)]
pub struct Salted(u64);

impl Salted {
    /// Creates a hasher with this salt.
    #[must_use]
    pub fn new(salt: u64) -> Self {
        Self(salt)
    }
}

impl BuildHasher for Salted {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for Salted {
    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.0 = spread(number ^ self.0.rotate_left(17));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}
