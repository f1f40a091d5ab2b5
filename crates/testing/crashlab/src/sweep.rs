//! The failure sweep: for every operation of the engine, and for every N, the N-th read, write or flush of it
//! fails.
//!
//! ```text
//!   cold volume -> steps before -> [ the operation (-> sync | fsync | close) ] -> what memory shows -> more steps, fsync -> end
//!                                    one read, write or flush fails here                                close or crash |
//!                                                                                                                      v
//!                                                        what the disk shows after a reopen, `check`, e2fsck
//! ```
//!
//! Owns: the table of operations ([`cases`]), the small file systems ([`World`]), the verdict on one run
//! ([`Sweep::run`]). Does **not** own: faults (see `extant_simdisk::Faulty`), power cuts (see the other
//! modules of this crate).
//!
//! What a run must show
//! 1. After an operation that failed, memory shows the state before it, or the journal is aborted. Operations
//!    that are documented to be done in parts (fallocate, a short write) may leave the bytes of their one
//!    file part-way.
//! 2. After an operation that succeeded despite a failure, memory shows the same as when nothing fails.
//! 3. After a later fsync or sync succeeded, the reopened disk shows what memory showed: names, attributes,
//!    sizes, bytes, block counts and times. Exempt are bytes that a failed fsync or sync reported as lost,
//!    until they are written again.
//! 4. After an abort the volume refuses every change and stays readable, and the disk has, for each file, its
//!    state at one of the steps.
//! 5. `check` finds nothing after the image was opened and closed. For a sample, e2fsck finds nothing either.
//!
//! World, case, fault and number name a run and repeat it.

mod cases;
mod law;
mod picture;
mod runs;
mod step;
mod worlds;

pub use cases::{Case, cases};
pub use runs::{Counts, Failing, Grid, Sweep};
pub use step::Step;
pub use worlds::World;
