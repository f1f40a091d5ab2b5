//! What a power cut leaves: for each sector in the cache a choice among its versions.

use std::fmt;

use crate::image::Image;
use crate::recording::{EventKind, Logged};
use crate::{SECTOR_BYTES, SimDisk};

/// A write that was in the cache when the power went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Its event's number.
    pub event: u64,
    /// First sector, in units of 512 bytes.
    pub first_sector: u64,
    /// Number of sectors, at least 1.
    pub sectors: u64,
}

/// A sector with more than one version, as a [`Choice`] sees it.
#[derive(Debug, Clone, Copy)]
pub struct Sector<'a> {
    /// Its number, in units of 512 bytes.
    pub number: u64,
    /// The writes in the cache that wrote it, as indices into `pending`, oldest first; never empty.
    pub versions: &'a [u32],
    /// All writes in the cache, oldest first.
    pub pending: &'a [Pending],
}

/// Chooses what survives of a sector: 0 the durable version, `n` the one of `versions[n - 1]`; anything
/// larger is the newest. Asked once for each sector in the cache, from the lowest on.
pub type Choice<'c> = dyn FnMut(&Sector<'_>) -> usize + 'c;

/// The disk after a cut: `durable`, with what survives of `log`, whose first event has the number
/// `first_event`. When `in_flight`, the last event was not finished: even a durable write may be torn or
/// missing.
pub(crate) fn survivors(
    durable: &Image,
    log: &[Logged],
    first_event: u64,
    in_flight: bool,
    choice: &mut Choice<'_>,
) -> SimDisk {
    let mut pending = Vec::new();
    let mut entries: Vec<&Logged> = Vec::new(); // of each pending write
    // (sector, index in `pending`, true) of each version. A durable write cuts off the older ones of its
    // sectors: it has the index of the next pending write, and false.
    let mut touched: Vec<(u64, u32, bool)> = Vec::new();
    for (index, entry) in log.iter().enumerate() {
        let finished = !(in_flight && index + 1 == log.len());
        let is_barrier = entry.kind == EventKind::WriteDurable && finished;
        let sectors = entry.first_sector..entry.first_sector + entry.sectors;
        touched.extend(sectors.map(|sector| (sector, pending.len() as u32, !is_barrier)));
        if entry.sectors > 0 && !is_barrier {
            let (first_sector, sectors) = (entry.first_sector, entry.sectors);
            pending.push(Pending { event: first_event + index as u64, first_sector, sectors });
            entries.push(entry);
        }
    }
    // A barrier sorts before the pending write of its index, which is newer. Each write is a run in order
    // already, which the stable sort makes use of.
    touched.sort();

    let mut image = durable.clone();
    let mut run: Option<(u32, u64, u64)> = None; // (write, first sector, one after the last) chosen and not yet copied
    let mut copy = |(write, from, to): (u32, u64, u64)| entries[write as usize].copy_to(&mut image, from, to);
    let mut versions: Vec<u32> = Vec::new();
    let mut rest = touched.as_slice();
    while let Some(&(sector, ..)) = rest.first() {
        let count = rest.iter().take_while(|(other, ..)| *other == sector).count();
        let (here, after) = rest.split_at(count);
        rest = after;
        versions.clear();
        for &(_, write, is_version) in here {
            if is_version {
                versions.push(write);
            } else {
                versions.clear();
            }
        }
        if versions.is_empty() {
            continue;
        }
        let chosen = choice(&Sector { number: sector, versions: &versions, pending: &pending });
        let chosen = chosen.checked_sub(1).map(|index| versions[index.min(versions.len() - 1)]);
        run = match (run, chosen) {
            (Some((write, from, to)), Some(chosen)) if write == chosen && to == sector => {
                Some((write, from, sector + 1))
            }
            (before, chosen) => {
                if let Some(before) = before {
                    copy(before);
                }
                chosen.map(|write| (write, sector, sector + 1))
            }
        };
    }
    if let Some(last) = run {
        copy(last);
    }
    SimDisk::from_image(image)
}

impl Logged {
    /// Copies its sectors `from..to`, which it has, to an image.
    pub(crate) fn copy_to(&self, image: &mut Image, from: u64, to: u64) {
        let end = to.saturating_mul(SECTOR_BYTES).min(image.size_bytes()); // the last sector may be shorter
        image.copy_range(&self.after, from * SECTOR_BYTES, end);
    }

    /// Copies all of its sectors, if any, to an image.
    pub(crate) fn copy_all_to(&self, image: &mut Image) {
        if self.sectors > 0 {
            self.copy_to(image, self.first_sector, self.first_sector + self.sectors);
        }
    }
}

/// How a seed's cut looks; each finds other mistakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Each write is lost with this chance in 256. Of several that survive, the newest wins, or, `reordered`,
    /// any. With `torn`, a quarter of those kept survive in part.
    Writes { lost: u8, reordered: bool, torn: bool },
    /// Each sector holds any of its versions, on its own.
    Sectors,
    /// Writes reached the medium in order up to some point; the one there is torn.
    InOrder,
    /// All but one, chosen, survive: finds the missing barrier between two writes.
    OneLost,
    /// One, chosen, survives alone.
    OneKept,
}

/// A [`Choice`] made from a seed: the same seed chooses the same of the same events, on every machine.
///
/// Seeds are spread over several distributions: few writes lost, half, most; in order or reordered among
/// overlapping writes; whole or torn; every sector on its own; a clean prefix; exactly one write lost;
/// exactly one kept.
#[derive(Clone, Copy)]
pub struct Seeded {
    seed: u64,
    shape: Shape,
}

impl fmt::Debug for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {:?}", self.seed, self.shape)
    }
}

/// Spreads 64 bits well (the finaliser of SplitMix64, public domain).
fn spread(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl Seeded {
    /// The choices of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let bits = spread(seed.wrapping_add(0x9E37_79B9_7F4A_7C15));
        let (reordered, torn) = (bits & 0x100 != 0, bits & 0x600 == 0);
        let shape = match bits % 16 {
            0..=2 => Shape::Writes { lost: 32, reordered, torn },
            3..=5 => Shape::Writes { lost: 128, reordered, torn },
            6..=8 => Shape::Writes { lost: 224, reordered, torn },
            9..=10 => Shape::Sectors,
            11..=12 => Shape::InOrder,
            13..=14 => Shape::OneLost,
            _ => Shape::OneKept,
        };
        Self { seed: bits, shape }
    }

    /// A number that depends on the seed, on what it is for, and on what it is about.
    fn bits(&self, purpose: u64, about: u64) -> u64 {
        spread(spread(self.seed ^ purpose.wrapping_mul(0xA076_1D64_78BD_642F)).wrapping_add(about))
    }

    /// What survives of a sector; see [`Choice`].
    #[must_use]
    pub fn choose(&self, sector: &Sector<'_>) -> usize {
        let count = sector.pending.len() as u64;
        let one = self.bits(1, 0) % count.max(1); // the special write of the shapes that have one
        let newest = |survives: &dyn Fn(u32) -> bool| {
            sector.versions.iter().rposition(|write| survives(*write)).map_or(0, |index| index + 1)
        };
        match self.shape {
            Shape::Sectors => (self.bits(2, sector.number) % (sector.versions.len() as u64 + 1)) as usize,
            Shape::OneLost => newest(&|write| u64::from(write) != one),
            Shape::OneKept => newest(&|write| u64::from(write) == one),
            Shape::InOrder => newest(&|write| match u64::from(write).cmp(&one) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => self.torn_keeps(sector, write),
                std::cmp::Ordering::Greater => false,
            }),
            Shape::Writes { lost, reordered, torn } => {
                let survives = |write: u32| {
                    let bits = self.bits(3, write.into());
                    let whole = !torn || bits & 0x300 != 0;
                    bits as u8 >= lost && (whole || self.torn_keeps(sector, write))
                };
                if !reordered {
                    return newest(&survives);
                }
                let alive = sector.versions.iter().enumerate().filter(|(_, write)| survives(**write));
                // The same order among writes in all their sectors.
                let last = alive.max_by_key(|(_, write)| self.bits(4, u64::from(**write)));
                last.map_or(0, |(index, _)| index + 1)
            }
        }
    }

    /// Does a torn write keep this sector? It keeps its beginning, its end, or any of its sectors.
    fn torn_keeps(&self, sector: &Sector<'_>, write: u32) -> bool {
        let of = sector.pending[write as usize];
        let bits = self.bits(5, write.into());
        let within = sector.number - of.first_sector;
        let border = (bits >> 8) % (of.sectors + 1);
        match bits % 4 {
            0 | 1 => within < border,
            2 => within >= border,
            _ => self.bits(6 + u64::from(write), sector.number) & 1 == 0,
        }
    }
}
