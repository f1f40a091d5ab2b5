//! The state after a power cut: each sector in the cache keeps one of its versions.

use std::fmt;

use crate::SECTOR_BYTES;
use crate::image::Image;
use crate::recording::{EventKind, Logged};

/// A write that was in the cache at the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Number of its event.
    pub event: u64,
    /// First sector, in units of 512 bytes.
    pub first_sector: u64,
    /// Number of sectors, at least 1.
    pub sectors: u64,
}

/// A sector with more than one version, as passed to a [`Choice`].
#[derive(Debug, Clone, Copy)]
pub struct Sector<'a> {
    /// Its number, in units of 512 bytes.
    pub number: u64,
    /// The writes in the cache that wrote it, as indices into `pending`, oldest first; never empty.
    pub versions: &'a [u32],
    /// All writes in the cache, oldest first.
    pub pending: &'a [Pending],
}

/// Chooses the surviving version of a sector: 0 is the durable version, `n` the one of `versions[n - 1]`; a
/// larger number is the newest. It is called once for each sector in the cache, in ascending order.
pub type Choice<'c> = dyn FnMut(&Sector<'_>) -> usize + 'c;

/// The medium after a cut: `durable` plus the survivors of `log`, whose first event has the number
/// `first_event`. With `in_flight` the last event was not finished: even a durable write may be torn or
/// missing.
pub(crate) fn survivors(
    durable: &Image,
    log: &[Logged],
    first_event: u64,
    in_flight: bool,
    choice: &mut Choice<'_>,
) -> Image {
    let mut pending = Vec::new();
    let mut entries: Vec<&Logged> = Vec::new(); // the entry of each pending write
    // (sector, index in `pending`, true) of each version. A durable write removes the older versions of its
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
    // A barrier sorts before the pending write with the same index, which is newer. Each write is already a
    // sorted run; the stable sort uses that.
    touched.sort();

    let mut image = durable.clone();
    let mut run: Option<(u32, u64, u64)> = None; // (write, first sector, end): chosen, not copied yet
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
    image
}

impl Logged {
    /// Copies its sectors `from..to` to an image. It must have these sectors.
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

/// The distribution of survivors for a seed; each shape finds other defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Each write is lost with this probability in 256. If several survive, the newest wins, or any of them
    /// if `reordered`. With `torn`, a quarter of the surviving writes survives only in part.
    Writes { lost: u8, reordered: bool, torn: bool },
    /// Each sector independently keeps any of its versions.
    Sectors,
    /// Writes reached the medium in order up to some write, which is torn.
    InOrder,
    /// All writes but a random one survive. This finds a missing barrier between two writes.
    OneLost,
    /// Only one random write survives.
    OneKept,
}

/// A [`Choice`] made from a seed. The same seed and events give the same choices on every machine.
///
/// Seeds select one of several distributions: few writes lost, half, or most; overlapping writes in order or
/// reordered; writes whole or torn; each sector independent; a prefix in order; exactly one write lost;
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

/// Mixes 64 bits (the finaliser of SplitMix64, public domain).
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

    /// A pseudo-random number from the seed, the purpose and the object.
    fn bits(&self, purpose: u64, about: u64) -> u64 {
        spread(spread(self.seed ^ purpose.wrapping_mul(0xA076_1D64_78BD_642F)).wrapping_add(about))
    }

    /// The surviving version of a sector; see [`Choice`].
    #[must_use]
    pub fn choose(&self, sector: &Sector<'_>) -> usize {
        let count = sector.pending.len() as u64;
        let one = self.bits(1, 0) % count.max(1); // the special write of shapes that have one
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
                // The order among writes is the same in all their sectors.
                let last = alive.max_by_key(|(_, write)| self.bits(4, u64::from(**write)));
                last.map_or(0, |(index, _)| index + 1)
            }
        }
    }

    /// Whether a torn write keeps this sector. It keeps its beginning, its end, or random sectors.
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
