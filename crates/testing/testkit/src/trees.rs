//! Source trees for tests: one with every difficult case, one with very many files.
//!
//! Invariants
//! 1. The same parameters give the same tree: names, bytes, modes, owners, mtimes and atimes. (The kernel
//!    sets btime and ctime.)
//! 2. What a file system, or a process without privileges, cannot create is omitted and reported, never
//!    faked.

mod adversarial;
mod maker;
mod many;
mod random;

pub use adversarial::{Limits, adversarial, adversarial_within};
pub use maker::Report;
pub use many::{many, many_size};
pub use random::Random;
