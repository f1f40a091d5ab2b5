//! Source trees for tests: one with everything that is awkward, one with very many files.
//!
//! Invariants
//! 1. Same parameters, same tree: names, bytes, modes, owners, mtimes and atimes. (btime and ctime are the
//!    kernel's.)
//! 2. What a file system or a process without privileges cannot make is left out and reported, never faked.

mod adversarial;
mod maker;
mod many;
mod random;

pub use adversarial::{Limits, adversarial, adversarial_within};
pub use maker::Report;
pub use many::{many, many_size};
pub use random::Random;
