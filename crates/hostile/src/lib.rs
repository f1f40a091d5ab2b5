//! Damages images on purpose, with right checksums, and drives the readers over them.
//!
//! Owns: where the metadata of a sound image is ([`map()`]), making checksums right again after bytes were
//! changed ([`seal()`]), seeded damage ([`Mutator`]), and using everything of a damaged image ([`walk()`],
//! [`verify`]), changing it ([`change()`]). Does **not** own: judging what the readers answer; outside judges
//! (see the tests).
//!
//! Invariants
//! 1. The same seed gives the same damage.
//! 2. [`walk()`] and [`verify`] use bounded time and memory whatever the image: they are what is tested.
//! 3. Damage can be undone: a sound image serves many rounds.

#![forbid(unsafe_code)]

mod change;
mod drive;
mod mutate;
mod regions;
mod rng;
mod seal;
mod soak;

pub use change::{Changed, change};
pub use drive::{Walked, verify, walk};
pub use mutate::{Damage, Mutator};
pub use regions::{Region, Sealed, map};
pub use rng::Rng;
pub use seal::seal;
pub use soak::{Soak, Soaked, soak};
