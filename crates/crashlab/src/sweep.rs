//! The failure sweep: every operation of the engine, and the N-th read, write or flush of it fails, for every
//! N.
//!
//! ```text
//!   cold volume -> steps before -> [ the operation (-> sync | fsync | close) ] -> what memory shows -> more steps, fsync -> end
//!                                    one read, write or flush fails here                                close or crash |
//!                                                                                                                      v
//!                                                        what the disk shows after it is opened again, `check`, e2fsck
//! ```
//!
//! Owns: the table of operations ([`cases`]), the small file systems ([`World`]), the verdict on one run
//! ([`Sweep::run`]). Does **not** own: faults (see `extant_simdisk::Faulty`), power cuts (see the rest of
//! this crate).
//!
//! What a run must show
//! 1. An operation that fails leaves in memory what was there before it, or the journal is aborted. Of
//!    operations that are documented to be done in parts (fallocate, a short write) the bytes of the one file
//!    may be part-way.
//! 2. An operation that succeeds though something failed shows what it shows when nothing fails.
//! 3. What memory shows after a later fsync or sync that succeeded is what the disk shows when it is opened
//!    again: names, attributes, sizes, bytes, counts of blocks and times. Bytes that a failed fsync or sync
//!    had reported as lost are excepted until they are written again.
//! 4. After an abort every change is refused, reading goes on, and the disk has for each file what it had at
//!    one of the steps.
//! 5. `check` has no finding after the image was opened and closed; neither has e2fsck, of a sample.
//!
//! A run is named by its world, case, fault and number; the same name repeats it.

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
