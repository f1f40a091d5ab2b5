//! A device that fails, waits or returns wrong data on request.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use extant_device::{Device, DeviceFault, FlushStats};

/// Input/output error, a Linux error number.
pub const EIO: i32 = 5;
/// No space left on device, a Linux error number.
pub const ENOSPC: i32 = 28;

/// The calls that a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads, vectored or not.
    Read,
    /// Writes: plain, vectored, durable; and zeroings.
    Write,
    /// Durable writes only.
    WriteDurable,
    /// Flushes; they have no range.
    Flush,
}

/// The effect of a rule on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The call fails with this error number, and nothing of it reaches the device.
    Fail(i32),
    /// The call fails with this error number after it was done: the device holds data that the caller
    /// believes was not written.
    FailAfter(i32),
    /// The call waits for this time, and is then done.
    Delay(Duration),
    /// The call succeeds without being done: a lost write, a flush without effect. A read returns zeros.
    Lie,
    /// The call panics, as a defect in the caller would: the caller's locks and invariants are unwound.
    Panic,
}

/// A fault and its condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    op: Op,
    effect: Effect,
    /// The first call to hit, counted from 1; those before it pass.
    first: u64,
    /// Number of calls to hit from then on.
    times: u64,
    range: Option<Range<u64>>,
}

impl Rule {
    /// Hits only the next call.
    #[must_use]
    pub fn new(op: Op, effect: Effect) -> Self {
        Self { op, effect, first: 1, times: 1, range: None }
    }

    /// The next call fails with an error number.
    #[must_use]
    pub fn fail(op: Op, errno: i32) -> Self {
        Self::new(op, Effect::Fail(errno))
    }

    /// The next call takes longer.
    #[must_use]
    pub fn delay(op: Op, time: Duration) -> Self {
        Self::new(op, Effect::Delay(time))
    }

    /// Hits the `n`th call instead of the next. The count starts at 1 when the rule is armed, and includes
    /// only calls that the rule applies to.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.first = n.max(1);
        self
    }

    /// Hits this many calls in a row.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }

    /// Hits all calls from then on.
    #[must_use]
    pub fn from_then_on(self) -> Self {
        self.times(u64::MAX)
    }

    /// Hits only calls that touch these bytes.
    #[must_use]
    pub fn within(mut self, bytes: Range<u64>) -> Self {
        self.range = Some(bytes);
        self
    }
}

/// Identifies an armed rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RuleId(u64);

struct Armed {
    id: RuleId,
    rule: Rule,
    /// Number of calls so far that the rule applies to.
    met: u64,
    hits: u64,
}

/// Number of calls that reached a [`Faulty`], including those that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Reads, vectored or not.
    pub reads: u64,
    /// Writes: plain, vectored, durable.
    pub writes: u64,
    /// Durable writes among them.
    pub durable_writes: u64,
    /// Zeroings.
    pub zeros: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Bytes passed to writes.
    pub write_bytes: u64,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    durable_writes: AtomicU64,
    zeros: AtomicU64,
    flushes: AtomicU64,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
}

fn count(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// Passes calls to the inner device, except where a [`Rule`] hits. If several rules hit one call, their
/// delays add up, and the first armed of the others decides.
pub struct Faulty<D> {
    inner: D,
    rules: Mutex<Vec<Armed>>,
    next_id: AtomicU64,
    counters: Counters,
}

impl<D: Device> std::fmt::Debug for Faulty<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Faulty({} bytes, {:?})", self.inner.size_bytes(), self.counts())
    }
}

impl<D: Device> Faulty<D> {
    /// A device without rules.
    pub fn new(inner: D) -> Self {
        let (rules, next_id) = (Mutex::default(), AtomicU64::new(0));
        Self { inner, rules, next_id, counters: Counters::default() }
    }

    /// The inner device.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Arms a rule: it starts to count.
    pub fn arm(&self, rule: Rule) -> RuleId {
        let id = RuleId(self.next_id.fetch_add(1, Ordering::Relaxed));
        self.rules().push(Armed { id, rule, met: 0, hits: 0 });
        id
    }

    /// Disarms a rule. Has no effect on a rule that is not armed.
    pub fn disarm(&self, id: RuleId) {
        self.rules().retain(|armed| armed.id != id);
    }

    /// Disarms all rules.
    pub fn disarm_all(&self) {
        self.rules().clear();
    }

    /// How often a rule has hit; 0 for a rule that is not armed.
    #[must_use]
    pub fn hits(&self, id: RuleId) -> u64 {
        self.rules().iter().find(|armed| armed.id == id).map_or(0, |armed| armed.hits)
    }

    /// The call counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            reads: get(&self.counters.reads),
            writes: get(&self.counters.writes),
            durable_writes: get(&self.counters.durable_writes),
            zeros: get(&self.counters.zeros),
            flushes: get(&self.counters.flushes),
            read_bytes: get(&self.counters.read_bytes),
            write_bytes: get(&self.counters.write_bytes),
        }
    }

    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Armed>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies the rules to a call: waits for their delays, and returns the deciding effect.
    fn meet(&self, is: impl Fn(Op) -> bool, range: Option<Range<u64>>) -> Option<Effect> {
        let mut wait = Duration::ZERO;
        let mut decided = None;
        for armed in self.rules().iter_mut().filter(|armed| is(armed.rule.op)) {
            let touches = match (&armed.rule.range, &range) {
                (Some(of), Some(range)) => range.start < of.end && of.start < range.end,
                (Some(_), None) | (None, _) => true,
            };
            if !touches {
                continue;
            }
            armed.met += 1;
            let Some(since) = armed.met.checked_sub(armed.rule.first) else { continue };
            if since >= armed.rule.times {
                continue;
            }
            armed.hits += 1;
            match armed.rule.effect {
                Effect::Delay(time) => wait = wait.saturating_add(time),
                effect => decided = decided.or(Some(effect)),
            }
        }
        // No lock is held here: other calls continue while this one waits.
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        decided
    }

    /// Runs a call under the rules.
    fn run(
        &self,
        what: &'static str,
        is: impl Fn(Op) -> bool,
        range: Option<Range<u64>>,
        call: impl FnOnce() -> Result<(), DeviceFault>,
    ) -> Result<(), DeviceFault> {
        let (offset, end) =
            range.as_ref().map_or((0, self.inner.size_bytes()), |range| (range.start, range.end));
        let fault = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            Err(DeviceFault::Io { what, offset, len: end.saturating_sub(offset), source })
        };
        match self.meet(is, range) {
            None | Some(Effect::Delay(_)) => call(),
            Some(Effect::Fail(errno)) => fault(errno),
            Some(Effect::FailAfter(errno)) => call().and_then(|()| fault(errno)),
            Some(Effect::Lie) => Ok(()),
            Some(Effect::Panic) => panic!("{what} at {offset}: a planted panic"),
        }
    }

    fn run_write(
        &self,
        offset: u64,
        len: u64,
        durable: bool,
        call: impl FnOnce() -> Result<(), DeviceFault>,
    ) -> Result<(), DeviceFault> {
        count(&self.counters.writes, 1);
        count(&self.counters.durable_writes, durable.into());
        count(&self.counters.write_bytes, len);
        let is = |op| op == Op::Write || durable && op == Op::WriteDurable;
        self.run("write", is, Some(offset..offset.saturating_add(len)), call)
    }

    fn count_read(&self, len: u64) {
        count(&self.counters.reads, 1);
        count(&self.counters.read_bytes, len);
    }
}

impl<D: Device> Device for Faulty<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        self.read_vectored_at(offset, &mut [IoSliceMut::new(buf)])
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), DeviceFault> {
        let len = bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64));
        self.count_read(len);
        let range = offset..offset.saturating_add(len);
        let mut done = false;
        self.run(
            "read",
            |op| op == Op::Read,
            Some(range),
            || {
                done = true;
                self.inner.read_vectored_at(offset, bufs)
            },
        )?;
        if !done {
            bufs.iter_mut().for_each(|buf| buf.fill(0));
        }
        Ok(())
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.run_write(offset, bytes.len() as u64, false, || self.inner.write_at(offset, bytes))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), DeviceFault> {
        let len = bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64));
        self.run_write(offset, len, false, || self.inner.write_vectored_at(offset, bufs))
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.run_write(offset, bytes.len() as u64, true, || self.inner.write_durable_at(offset, bytes))
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        count(&self.counters.zeros, 1);
        let range = offset..offset.saturating_add(len);
        self.run("zero", |op| op == Op::Write, Some(range), || self.inner.zero_at(offset, len))
    }

    /// A discard is a hint: no fault would show.
    fn discard_at(&self, offset: u64, len: u64) -> Result<bool, DeviceFault> {
        self.inner.discard_at(offset, len)
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        count(&self.counters.flushes, 1);
        self.run("flush", |op| op == Op::Flush, None, || self.inner.flush())
    }

    fn flush_nanos(&self) -> Option<u64> {
        self.inner.flush_nanos()
    }

    fn flush_stats(&self) -> Option<FlushStats> {
        self.inner.flush_stats()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }

    fn is_fresh(&self) -> bool {
        self.inner.is_fresh()
    }
}
