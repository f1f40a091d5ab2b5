//! A disk in memory that can lose power, and faults on purpose: what the crash lab and the tests break things
//! with.
//!
//! Owns: [`SimDisk`], a [`Device`](extant_device::Device) with a volatile write cache; [`Image`], its
//! content, which is copied in no time; [`Recording`], all that happened to a disk, from which the state
//! after any event can be made; [`Faulty`], a wrapper around any device that fails or delays chosen reads,
//! writes and flushes; [`Part`], one of several devices that lose power together.
//!
//! Does **not** own: what is run on the disk, what must be true after a cut, or which cuts to try.
//!
//! # The model
//!
//! ```text
//!            write                          flush, when it ends
//!   caller ---------> cache (what reads see) -------------------> medium
//!       \             each write since the last flush               ^
//!        \--------------------- write_durable ----------------------/
//!
//!   power cut: each sector of 512 bytes holds what the medium holds, or any version of it that is in the cache
//! ```
//!
//! Invariants
//! 1. Reads see all writes. A flush makes those durable that had returned when it was called; those that came
//!    while it was under way stay in the cache.
//! 2. A durable write makes its own sectors durable, and nothing else; older versions of those sectors are
//!    gone from the cache, since a disk does not write an older version over a newer one that it has
//!    acknowledged as durable.
//! 3. After a cut each sector holds one version, whole: the durable one, or one of those written since the
//!    last flush, chosen on its own. So a write may be kept, lost or torn between sectors, and of two writes
//!    to one place either may survive, whatever became of the other.
//! 4. A write that does not begin and end at sectors' borders counts as one of whole sectors, as the cache
//!    held them after it (so a durable one makes neighbouring bytes durable).
//! 5. A discard is a write of whatever the disk likes to the whole sectors of its range: it may be lost like
//!    any write, and then what was there is back.
//! 6. Making the state after a cut costs in proportion to the sectors in the cache, not to the disk or the
//!    history.
//! 7. Event `n` is the one that moves [`SimDisk::events`] from `n` to `n + 1`; "at `k`" means after the first
//!    `k` events.
//!
//! ```
//! use extant_device::Device;
//! use extant_simdisk::{Image, SimDisk};
//! let disk = SimDisk::recording(Image::new(1 << 20));
//! disk.write_at(0, b"old").unwrap();
//! disk.flush().unwrap();
//! let acknowledged = disk.events();
//! disk.write_at(0, b"new").unwrap();
//!
//! let recording = disk.recorded().unwrap();
//! for at in acknowledged..=recording.end() {
//!     for seed in 0..10 {
//!         let after = recording.cut(at, seed);
//!         let mut bytes = [0; 3];
//!         after.read_at(0, &mut bytes).unwrap();
//!         assert!(bytes == *b"old" || bytes == *b"new", "seed {seed} at {at}");
//!     }
//! }
//! ```

#![forbid(unsafe_code)]

mod cut;
mod disk;
mod faulty;
mod image;
mod part;
mod recording;

pub use cut::{Choice, Pending, Sector, Seeded};
pub use disk::{FlushCost, SimDisk};
pub use faulty::{Counts, EIO, ENOSPC, Effect, Faulty, Op, Rule, RuleId};
pub use image::Image;
pub use part::Part;
pub use recording::{Event, EventKind, Recording};

/// The unit in which a power cut tears, in bytes.
pub const SECTOR_BYTES: u64 = 512;
