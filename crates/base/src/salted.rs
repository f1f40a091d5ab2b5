//! Tables whose keys are numbers that an image chooses: hashed quickly, and under a secret.
//!
//! No image can be made whose blocks or inodes all fall into one bucket. Does **not** own the secret: the
//! maker of a table draws one.

use std::hash::{BuildHasher, Hasher};

/// Spreads close numbers far: multiplied, both halves of the product folded together.
#[inline]
#[must_use]
pub fn spread(number: u64) -> u64 {
    let product = u128::from(number) * 0x9E37_79B9_7F4A_7C15;
    (product as u64) ^ (product >> 64) as u64
}

/// Hashes numbers under a secret.
#[derive(Debug, Clone, Copy)]
pub struct Salted(u64);

impl Salted {
    /// Under this secret.
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
