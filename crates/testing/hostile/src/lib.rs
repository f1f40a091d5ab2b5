//! Deliberate damage of images, with correct checksums, and test drivers that run the readers over them.
//!
//! Owns: the map of metadata in a sound image ([`map()`]), computing checksums again after a change
//! ([`seal()`]), seeded damage ([`Mutator`]), reading everything of a damaged image ([`walk()`], [`verify`]),
//! changing it ([`change()`]), and repairing it ([`repair`]). Does **not** own: the verdict on the readers'
//! results; external tools decide that (see the tests).
//!
//! Invariants
//! 1. The same seed gives the same damage.
//! 2. [`walk()`] and [`verify`] use bounded time and memory for any image: this is what the tests check.
//! 3. Damage can be undone: one sound image is used for many rounds.

#![forbid(unsafe_code)]

mod change;
mod drive;
mod mutate;
mod regions;
mod repairs;
mod rng;
mod seal;
mod soak;

pub use change::{Changed, change};
pub use drive::{Walked, verify, walk};
pub use mutate::{Damage, Mutator};
pub use regions::{Region, Sealed, map};
pub use repairs::{Content, Repaired, Repairs, files, repair};
pub use rng::Rng;
pub use seal::seal;
pub use soak::{Soak, Soaked, soak};
