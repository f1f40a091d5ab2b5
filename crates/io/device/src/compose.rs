//! Combines devices so that each byte is on exactly one of them: one after the other ([`Linear`]), or in
//! turns ([`Stripe`]).
//!
//! Does **not** own redundancy (see [`Mirror`](crate::Mirror)), nor a table of the members on disk: the
//! caller passes them in the right order each time.
//!
//! Invariants
//! 1. Every byte is on exactly one member. A range is one contiguous piece on each member, in the same order.
//! 2. Therefore a transfer makes at most one transfer on each member. If one fails, others may be done.
//! 3. A flush reaches every distinct device among the members once, even if others fail; it returns the first
//!    fault.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::flush::{flush_each, slowest_nanos, slowest_stats};
use crate::{Device, DeviceFault, FlushStats, total_len};

/// Why devices cannot be combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ComposeFault {
    /// There are no members.
    #[error("a device needs at least one member")]
    Empty,
    /// The total size exceeds 2^64 bytes.
    #[error("the members are together larger than a device can be")]
    TooLarge,
    /// The chunk length of a stripe is invalid.
    #[error("a stripe's chunk cannot have {chunk_bytes} bytes: it must be a multiple of 512, and above 0")]
    Chunk {
        /// The requested length.
        chunk_bytes: u64,
    },
}

/// The location of a byte.
struct MemberOffset {
    member: usize,
    /// Byte offset on the member.
    offset: u64,
    /// Number of bytes from there that are contiguous on the member; at least 1.
    run: u64,
}

trait Layout: Send + Sync {
    fn size(&self) -> u64;
    fn members(&self) -> &[Arc<dyn Device>];
    /// The location of the byte at `offset`, which is below the size.
    fn locate(&self, offset: u64) -> MemberOffset;

    /// Splits a checked range into pieces that are each on one member, in order.
    fn pieces(&self, mut offset: u64, mut len: u64) -> impl Iterator<Item = MemberOffset> {
        std::iter::from_fn(move || {
            if len == 0 {
                return None;
            }
            let mut place = self.locate(offset);
            place.run = place.run.min(len);
            (offset, len) = (offset + place.run, len - place.run);
            Some(place)
        })
    }

    /// The location of a checked range on each member: (first byte, length), or (0, 0) if the member has no
    /// part of it.
    fn shares(&self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let mut shares = vec![(0, 0); self.members().len()];
        for place in self.pieces(offset, len) {
            let share = &mut shares[place.member];
            if share.1 == 0 {
                share.0 = place.offset;
            }
            share.1 += place.run;
        }
        shares
    }

    /// The member that contains all of a range, and the offset there; `None` for several members, or an empty
    /// range.
    fn one_home(&self, offset: u64, len: u64) -> Option<(&Arc<dyn Device>, u64)> {
        let place = (len > 0).then(|| self.locate(offset))?;
        (len <= place.run).then(|| (&self.members()[place.member], place.offset))
    }

    fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        DeviceFault::check_len("read", offset, len, self.size())?;
        if let Some((member, at)) = self.one_home(offset, len) {
            return member.read_vectored_at(at, bufs);
        }
        let mut shares: Vec<(u64, Vec<IoSliceMut<'_>>)> =
            self.members().iter().map(|_| (0, Vec::new())).collect();
        let mut at = offset;
        for buf in bufs {
            let mut rest: &mut [u8] = buf;
            for place in self.pieces(at, rest.len() as u64) {
                let (part, after) = rest.split_at_mut(place.run as usize);
                rest = after;
                at += place.run;
                let share = &mut shares[place.member];
                if share.1.is_empty() {
                    share.0 = place.offset;
                }
                share.1.push(IoSliceMut::new(part));
            }
        }
        let mut filled = self.members().iter().zip(&mut shares).filter(|(_, share)| !share.1.is_empty());
        filled.try_for_each(|(member, share)| member.read_vectored_at(share.0, &mut share.1))
    }

    fn write(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        DeviceFault::check_len("write", offset, len, self.size())?;
        if let Some((member, at)) = self.one_home(offset, len) {
            return member.write_vectored_at(at, bufs);
        }
        let mut shares: Vec<(u64, Vec<IoSlice<'_>>)> =
            self.members().iter().map(|_| (0, Vec::new())).collect();
        let mut at = offset;
        for buf in bufs {
            let mut rest: &[u8] = buf;
            for place in self.pieces(at, rest.len() as u64) {
                let (part, after) = rest.split_at(place.run as usize);
                rest = after;
                at += place.run;
                let share = &mut shares[place.member];
                if share.1.is_empty() {
                    share.0 = place.offset;
                }
                share.1.push(IoSlice::new(part));
            }
        }
        let mut filled = self.members().iter().zip(&shares).filter(|(_, share)| !share.1.is_empty());
        filled.try_for_each(|(member, share)| member.write_vectored_at(share.0, &share.1))
    }

    fn write_durable(&self, offset: u64, mut bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, bytes.len() as u64, self.size())?;
        for place in self.pieces(offset, bytes.len() as u64) {
            let (part, rest) = bytes.split_at(place.run as usize);
            bytes = rest;
            self.members()[place.member].write_durable_at(place.offset, part)?;
        }
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("zero", offset, len, self.size())?;
        let shares = self.shares(offset, len);
        let mut filled = self.members().iter().zip(shares).filter(|(_, (_, len))| *len > 0);
        filled.try_for_each(|(member, (at, len))| member.zero_at(at, len))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        DeviceFault::check_len("discard", offset, len, self.size())?;
        let shares = self.shares(offset, len);
        let mut filled = self.members().iter().zip(shares).filter(|(_, (_, len))| *len > 0);
        filled.try_fold(false, |can, (member, (at, len))| Ok(member.discard_at(at, len)? || can))
    }

    fn hint(&self, offset: u64, len: u64) {
        let len = len.min(self.size().saturating_sub(offset));
        for (member, (at, len)) in self.members().iter().zip(self.shares(offset, len)) {
            if len > 0 {
                member.prefetch(at, len);
            }
        }
    }

    /// The members without duplicates: a device that appears twice needs one flush.
    fn distinct(&self) -> impl Iterator<Item = &dyn Device> {
        let members = self.members();
        let seen = |index: usize| members[..index].iter().any(|other| Arc::ptr_eq(other, &members[index]));
        (0..members.len()).filter(move |index| !seen(*index)).map(|index| &*members[index])
    }
}

/// Devices one after the other.
#[derive(Debug)]
pub struct Linear {
    members: Vec<Arc<dyn Device>>,
    /// First byte after each member.
    ends: Vec<u64>,
}

impl Linear {
    /// Concatenates all of `members`, in order.
    ///
    /// # Errors
    /// [`ComposeFault::Empty`], [`ComposeFault::TooLarge`].
    pub fn new(members: Vec<Arc<dyn Device>>) -> Result<Self, ComposeFault> {
        if members.is_empty() {
            return Err(ComposeFault::Empty);
        }
        let mut end: u64 = 0;
        let mut ends = Vec::with_capacity(members.len());
        for member in &members {
            end = end.checked_add(member.size_bytes()).ok_or(ComposeFault::TooLarge)?;
            ends.push(end);
        }
        Ok(Self { members, ends })
    }
}

impl Layout for Linear {
    fn size(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn members(&self) -> &[Arc<dyn Device>] {
        &self.members
    }

    fn locate(&self, offset: u64) -> MemberOffset {
        let member = self.ends.partition_point(|end| *end <= offset); // skips empty members too
        let start = member.checked_sub(1).map_or(0, |before| self.ends[before]);
        MemberOffset { member, offset: offset - start, run: self.ends[member] - offset }
    }
}

/// Devices in turns, one chunk each (RAID0): chunk `i` is chunk `i / n` of member `i % n`.
///
/// ```text
/// chunk    0   1   2   3   4   5
/// member   A0  B0  C0  A1  B1  C1
/// ```
///
/// Each member provides as many whole chunks as the smallest one has; the rest of larger members is unused.
#[derive(Debug)]
pub struct Stripe {
    members: Vec<Arc<dyn Device>>,
    chunk: u64,
    size: u64,
}

impl Stripe {
    /// Combines `members` in turns of `chunk_bytes`.
    ///
    /// # Errors
    /// [`ComposeFault`].
    pub fn new(members: Vec<Arc<dyn Device>>, chunk_bytes: u64) -> Result<Self, ComposeFault> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(512) {
            return Err(ComposeFault::Chunk { chunk_bytes });
        }
        let smallest = members.iter().map(|member| member.size_bytes()).min().ok_or(ComposeFault::Empty)?;
        let each = smallest - smallest % chunk_bytes;
        let size = each.checked_mul(members.len() as u64).ok_or(ComposeFault::TooLarge)?;
        Ok(Self { members, chunk: chunk_bytes, size })
    }

    /// Length of a chunk in bytes.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk
    }
}

impl Layout for Stripe {
    fn size(&self) -> u64 {
        self.size
    }

    fn members(&self) -> &[Arc<dyn Device>] {
        &self.members
    }

    fn locate(&self, offset: u64) -> MemberOffset {
        let (chunk, within) = (offset / self.chunk, offset % self.chunk);
        let count = self.members.len() as u64;
        MemberOffset {
            member: (chunk % count) as usize,
            offset: chunk / count * self.chunk + within,
            run: self.chunk - within,
        }
    }
}

macro_rules! device_by_layout {
    ($($of:ty),*) => {$(
        impl Device for $of {
            fn size_bytes(&self) -> u64 {
                self.size()
            }

            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
                self.read(offset, &mut [IoSliceMut::new(buf)])
            }

            fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
                self.read(offset, bufs)
            }

            fn prefetch(&self, offset: u64, len: u64) {
                self.hint(offset, len);
            }

            fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
                self.write(offset, &[IoSlice::new(bytes)])
            }

            fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
                self.write(offset, bufs)
            }

            fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
                self.write_durable(offset, bytes)
            }

            fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
                self.zero(offset, len)
            }

            fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
                self.discard(offset, len)
            }

            fn flush(&self) -> Result<(), DeviceFault> {
                flush_each(&self.distinct().collect::<Vec<_>>()).into_iter().collect()
            }

            fn flush_nanos(&self) -> Option<u64> {
                slowest_nanos(self.distinct())
            }

            fn flush_stats(&self) -> Option<FlushStats> {
                slowest_stats(self.distinct())
            }

            fn sector_bytes(&self) -> u32 {
                self.members.iter().map(|member| member.sector_bytes()).max().unwrap_or(512)
            }

            fn is_fresh(&self) -> bool {
                self.members.iter().all(|member| member.is_fresh())
            }
        }
    )*};
}
device_by_layout!(Linear, Stripe);
