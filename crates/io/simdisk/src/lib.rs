//! A disk in memory that can lose power, and a device that injects faults: for tests and for `crashlab`.
//!
//! Owns: [`SimDisk`], a [`Device`](extant_device::Device) with a volatile write cache; [`Image`], the content
//! of a disk, which is cheap to copy; [`Recording`], all events of a disk, from which the content after a
//! power cut at any event can be computed; [`Faulty`], a wrapper around any device that fails or delays
//! chosen reads, writes and flushes; [`Part`], one of several devices that lose power together.
//!
//! Does **not** own: the software that uses the disk, what must hold after a cut, or the choice of cuts.
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
//! 1. Reads see all writes. A flush makes those writes durable that had returned before it was called. Writes
//!    during the flush stay in the cache.
//! 2. A durable write makes only its own sectors durable. It also removes older versions of these sectors
//!    from the cache: a disk that has acknowledged a version as durable does not write an older one over it.
//! 3. After a cut each sector holds one complete version: the durable one, or one of those written since the
//!    last flush. The version of each sector is chosen separately. So all sectors of a write may survive, or
//!    some, or none. Of two writes to the same sectors, one sector may have the older version and another the
//!    newer one.
//! 4. A write that does not begin and end at sector boundaries counts as a write of whole sectors. The other
//!    bytes of its first and last sectors are those that reads see. So a durable write makes these bytes
//!    durable, too.
//! 5. A discard is a write of unspecified bytes to the whole sectors of its range. A cut may lose it like any
//!    write; then the old bytes reappear.
//! 6. The time to compute the content after a cut is proportional to the number of sectors in the cache. It
//!    does not depend on the size of the disk or the length of the recording.
//! 7. Events are numbered from 0. Event `n` moves [`SimDisk::events`] from `n` to `n + 1`. A cut at `k` is a
//!    cut after the first `k` events.
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
mod cuts;
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

/// The unit of torn writes in a power cut, in bytes.
pub const SECTOR_BYTES: u64 = 512;
