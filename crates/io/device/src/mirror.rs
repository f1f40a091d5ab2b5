//! The same bytes on several devices (RAID1).
//!
//! The effect of a member's failure, as in Linux's md:
//!
//! | a member fails at | another succeeds | none succeeds |
//! |---|---|---|
//! | read | the other's bytes are returned; the member stays in use | the last fault is returned |
//! | write, zero, flush | the member is excluded for good | the last fault is returned; none is excluded |
//!
//! A member that fails a read stays in use, because its other bytes may be good. A member that fails a write
//! no longer contains what the others contain.
//!
//! If none succeeds, the contents of the range are undefined until it is written again, as after any failed
//! write.
//!
//! Does **not** own a table on disk: the set of excluded members is lost with the value, and members that
//! differ after a power cut between the writes to them are not resynchronised. Reads use the first member
//! that is not excluded, so that such a difference does not appear as bytes that change from read to read.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::flush::{flush_each, slowest_nanos, slowest_stats};
use crate::{ComposeFault, Device, DeviceFault, FlushStats, total_len};

#[derive(Debug)]
struct Member {
    device: Arc<dyn Device>,
    /// Set once, before the first result that depends on it is returned.
    out: AtomicBool,
    read_faults: AtomicU64,
}

impl Member {
    fn is_out(&self) -> bool {
        self.out.load(Ordering::SeqCst)
    }
}

/// Several devices with the same contents, as large as the smallest of them.
#[derive(Debug)]
pub struct Mirror {
    members: Vec<Member>,
    size: u64,
    /// Held while a member is excluded, so that one always stays.
    leaving: Mutex<()>,
}

impl Mirror {
    /// Creates a mirror of `members`, which must already have the same contents.
    ///
    /// # Errors
    /// [`ComposeFault::Empty`].
    pub fn new(members: Vec<Arc<dyn Device>>) -> Result<Self, ComposeFault> {
        let size = members.iter().map(|member| member.size_bytes()).min().ok_or(ComposeFault::Empty)?;
        let member = |device| Member { device, out: AtomicBool::new(false), read_faults: AtomicU64::new(0) };
        Ok(Self { members: members.into_iter().map(member).collect(), size, leaving: Mutex::new(()) })
    }

    /// The excluded members, by their position in the list passed to [`new`](Self::new).
    #[must_use]
    pub fn failed(&self) -> Vec<usize> {
        let out = |(index, member): (usize, &Member)| member.is_out().then_some(index);
        self.members.iter().enumerate().filter_map(out).collect()
    }

    /// Number of failed reads of a member.
    #[must_use]
    pub fn read_faults(&self, member: usize) -> u64 {
        self.members.get(member).map_or(0, |member| member.read_faults.load(Ordering::Relaxed))
    }

    /// The members that are not excluded; at least one.
    fn working(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.is_out())
    }

    fn devices(&self) -> impl Iterator<Item = &dyn Device> {
        self.working().map(|member| &*member.device)
    }

    fn first(&self, mut read: impl FnMut(&dyn Device) -> Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        let mut answer = Ok(());
        for member in self.working() {
            answer = read(&*member.device);
            if answer.is_ok() {
                break;
            }
            member.read_faults.fetch_add(1, Ordering::Relaxed);
        }
        answer
    }

    fn all(&self, change: impl Fn(&dyn Device) -> Result<(), DeviceFault>) -> Result<(), DeviceFault> {
        self.exclude_failed(self.working().map(|member| (member, change(&*member.device))).collect())
    }

    /// Excludes the members that failed if another member succeeded, and returns the result.
    fn exclude_failed(&self, results: Vec<(&Member, Result<(), DeviceFault>)>) -> Result<(), DeviceFault> {
        if results.iter().all(|(_, result)| result.is_ok()) {
            return Ok(());
        }
        let _one_at_a_time = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        // A member that succeeded may have been excluded meanwhile, because another thread's write failed on
        // it. If it was the only one that succeeded, no member in use has this write, and excluding the
        // others would leave none.
        let done = |(member, result): &(&Member, Result<(), DeviceFault>)| result.is_ok() && !member.is_out();
        if results.iter().any(done) {
            for (member, _) in results.iter().filter(|(_, result)| result.is_err()) {
                member.out.store(true, Ordering::SeqCst);
            }
            return Ok(());
        }
        results.into_iter().rev().find_map(|(_, result)| result.err()).map_or(Ok(()), Err)
    }
}

impl Device for Mirror {
    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("read", offset, buf.len(), self.size)?;
        self.first(|member| member.read_at(offset, buf))
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = total_len(bufs);
        DeviceFault::check_len("read", offset, len, self.size)?;
        self.first(|member| member.read_vectored_at(offset, bufs))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let len = len.min(self.size.saturating_sub(offset));
        if let Some(member) = self.devices().next().filter(|_| len > 0) {
            member.prefetch(offset, len);
        }
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        self.devices().for_each(|member| member.forget_cached(offset, len));
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("write", offset, bytes.len(), self.size)?;
        self.all(|member| member.write_at(offset, bytes))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("write", offset, total_len(bufs), self.size)?;
        self.all(|member| member.write_vectored_at(offset, bufs))
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_range("write", offset, bytes.len(), self.size)?;
        self.all(|member| member.write_durable_at(offset, bytes))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        DeviceFault::check_len("zero", offset, len, self.size)?;
        self.all(|member| member.zero_at(offset, len))
    }

    /// A failure excludes no member: members may differ in unused ranges.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        DeviceFault::check_len("discard", offset, len, self.size)?;
        self.devices().try_fold(false, |can, member| Ok(member.discard_at(offset, len)? || can))
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        let working: Vec<&Member> = self.working().collect();
        let devices: Vec<&dyn Device> = working.iter().map(|member| &*member.device).collect();
        self.exclude_failed(working.into_iter().zip(flush_each(&devices)).collect())
    }

    fn flush_nanos(&self) -> Option<u64> {
        slowest_nanos(self.devices())
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        slowest_stats(self.devices())
    }

    fn sector_bytes(&self) -> u32 {
        self.members.iter().map(|member| member.device.sector_bytes()).max().unwrap_or(512)
    }

    fn is_fresh(&self) -> bool {
        self.members.iter().all(|member| member.device.is_fresh())
    }
}
