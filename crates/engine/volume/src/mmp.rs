//! Multiple-mount protection (feature `mmp`): keeps other programs on this machine, and other machines that
//! share the disk, from opening a file system that is open for writing.
//!
//! ```text
//! claim:  clean? ------------------------------> write our number -> read it back -> held
//!         a number? wait: does it still change? -- no --^         (not clean before: after a second wait)
//!                                               -- yes -> it is in use: refused
//! held:   every few seconds: is it still our number? then the next one; otherwise lost: stop writing
//! drop:   clean
//! ```
//!
//! Owns: the protocol, and a thread while the guard is held. Does **not** own: the block's layout
//! (`extant_ondisk::mmp`), the reaction to a lost guard: its holder decides that.
//!
//! Invariants
//! 1. The block is read past this machine's caches if the device can do that ([`Device::forget_cached`]), and
//!    written durably.
//! 2. INV-EN15: a guard that is lost writes the block no more.
//!
//! Source: kernel Documentation/filesystems/ext4/mmp.rst.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use extant_device::{Device, DeviceFault};
use extant_ondisk::mmp::{Mmp, MmpState};
use extant_ondisk::superblock::{Superblock, until_nul};
use extant_ondisk::{Features, Geometry};
use parking_lot::{Condvar, Mutex};

use crate::OpenFault;
use crate::mount::probe::probe_for_log;

/// Least seconds between two checks of the block. Other machines derive their wait from it.
const CHECK_MIN: u16 = 5;
/// Most seconds of waiting in addition to one check interval.
const WAIT_MORE_MAX: u16 = 60;
/// Most seconds between updates, as in tune2fs and the kernel. The check interval that other machines read
/// from the block is at most twice this.
const UPDATE_MAX: u16 = 300;
/// How often the caller is notified during a wait.
const NOTIFY_EVERY: Duration = Duration::from_secs(1);

/// A wait to find out whether another machine writes the file system.
#[derive(Debug, Clone)]
pub struct Waiting {
    /// The longest time that remains.
    pub left: Duration,
    /// The last writer: names of a host and a device.
    pub by: String,
}

/// Called when a wait begins, and then every second.
pub type OnWait<'t> = dyn Fn(&Waiting) + Send + Sync + 't;

/// The right to write a file system that other machines could open, too. Dropping it releases the file
/// system.
pub struct MountGuard {
    held: Arc<GuardShared>,
    thread: Option<JoinHandle<()>>,
}

struct GuardShared {
    place: MmpLocation,
    every: Duration,
    state: Mutex<State>,
    is_over: Condvar,
}

struct State {
    block: Mmp,
    is_over: bool,
    lost: Option<String>,
    when_lost: Option<OnLost>,
    /// The bytes of the block after the release, if they are not those of a clean block of this program.
    after: Option<[u8; Mmp::LEN]>,
}

/// Called with the reason when the guard is lost.
type OnLost = Box<dyn FnOnce(&str) + Send>;

struct MmpLocation {
    device: Arc<dyn Device>,
    offset: u64,
    seed: Option<u32>,
}

impl MmpLocation {
    fn read(&self) -> Result<Mmp, OpenFault> {
        let mut bytes = [0; Mmp::LEN];
        self.device.forget_cached(self.offset, Mmp::LEN as u64);
        self.device.read_at(self.offset, &mut bytes)?;
        let damaged = |why: &dyn std::fmt::Display| {
            OpenFault::Damaged(format!("{why}; `e2fsck -f` writes the multiple-mount protection block anew"))
        };
        let block = Mmp::decode(&bytes).map_err(|fact| damaged(&fact))?;
        match self.seed {
            Some(seed) if !block.verify(seed) => {
                Err(damaged(&"multiple-mount protection block: its checksum is wrong"))
            }
            _ => Ok(block),
        }
    }

    fn write(&self, block: &mut Mmp) -> Result<(), DeviceFault> {
        block.time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        if let Some(seed) = self.seed {
            block.seal(seed);
        }
        self.device.write_durable_at(self.offset, &block.encode())
    }
}

impl MountGuard {
    /// Claims the file system on `device`. This takes seconds up to minutes if its last writer did not close
    /// it. `None` if it has no such protection.
    ///
    /// # Errors
    /// [`OpenFault::InUse`]; as [`Volume::open`](crate::Volume::open).
    pub fn claim(device: &Arc<dyn Device>, on_wait: &OnWait<'_>) -> Result<Option<Self>, OpenFault> {
        let probed = probe_for_log(&**device)?;
        Self::claim_with(device, &probed.sb, &probed.geometry, on_wait)
    }

    /// As [`claim`](Self::claim), for a repair. If the superblock of `device` cannot be used, that of
    /// `repaired` has the address of the block. With `is_over_check`, a block that e2fsck has left is claimed
    /// after a wait: the caller has planned to replace it.
    ///
    /// # Errors
    /// As [`claim`](Self::claim).
    pub fn claim_to_repair(
        device: &Arc<dyn Device>,
        repaired: &dyn Device,
        is_over_check: bool,
        on_wait: &OnWait<'_>,
    ) -> Result<Option<Self>, OpenFault> {
        let probed = match probe_for_log(&**device) {
            Err(OpenFault::Device(fault)) => return Err(fault.into()),
            Err(_) => probe_for_log(repaired)?,
            Ok(probed) => probed,
        };
        Self::claim_at(device, &probed.sb, &probed.geometry, is_over_check, on_wait)
    }

    /// As [`claim`](Self::claim), with a superblock that was read already.
    pub(crate) fn claim_with(
        device: &Arc<dyn Device>,
        sb: &Superblock,
        geometry: &Geometry,
        on_wait: &OnWait<'_>,
    ) -> Result<Option<Self>, OpenFault> {
        Self::claim_at(device, sb, geometry, false, on_wait)
    }

    fn claim_at(
        device: &Arc<dyn Device>,
        sb: &Superblock,
        geometry: &Geometry,
        is_over_check: bool,
        on_wait: &OnWait<'_>,
    ) -> Result<Option<Self>, OpenFault> {
        if !sb.features.has_incompat(Features::MMP) {
            return Ok(None);
        }
        if sb.mmp_block <= u64::from(geometry.first_data_block) || sb.mmp_block >= geometry.blocks {
            let why = format!(
                "the multiple-mount protection block, {}, lies outside of the file system",
                sb.mmp_block
            );
            return Err(OpenFault::Damaged(why));
        }
        let place = MmpLocation {
            device: Arc::clone(device),
            offset: sb.mmp_block * geometry.block_size.bytes(),
            seed: sb.features.metadata_csum().then(|| sb.fs_seed()),
        };
        let update = sb.mmp_interval.max(1);
        let wait = |pause: Duration, after: Duration, by: &str| sleep(pause, after, by, on_wait);
        let block = claim_block(&place, update.max(CHECK_MIN), is_over_check, &wait)?;
        let state = State { block, is_over: false, lost: None, when_lost: None, after: None };
        let held = Arc::new(GuardShared {
            place,
            every: Duration::from_secs(u64::from(update.min(CHECK_MIN))),
            state: Mutex::new(state),
            is_over: Condvar::new(),
        });
        let in_thread = Arc::clone(&held);
        let thread = std::thread::Builder::new()
            .name("extant-mmp".to_owned())
            .spawn(move || in_thread.keep())
            .expect("a thread can be made");
        Ok(Some(Self { held, thread: Some(thread) }))
    }

    /// Why the file system must not be written any more; `None` while the guard is held.
    #[must_use]
    pub fn lost(&self) -> Option<String> {
        self.held.state.lock().lost.clone()
    }

    /// The first byte of the block on the device. Nothing else may write its [`Mmp::LEN`] bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.held.place.offset
    }

    /// Releases the file system: with these bytes in the block, those of a clean block or of one that was
    /// there before and was not clean, or else with a clean block.
    ///
    /// # Errors
    /// The guard was lost, or the block cannot be written.
    pub fn release_as(mut self, bytes: Option<[u8; Mmp::LEN]>) -> Result<(), String> {
        self.held.state.lock().after = bytes;
        self.end()
    }

    /// Ends the thread and writes the block, at the first call.
    fn end(&mut self) -> Result<(), String> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.held.state.lock().is_over = true;
        self.held.is_over.notify_all();
        let _ = thread.join();
        let mut state = self.held.state.lock();
        if state.lost.is_none() {
            state.lost = self.held.why_not_ours(&state.block);
        }
        if let Some(why) = &state.lost {
            return Err(why.clone());
        }
        state.block.sequence = Mmp::SEQ_CLEAN;
        let place = &self.held.place;
        let written = match state.after.take() {
            Some(bytes) => place.device.write_durable_at(place.offset, &bytes),
            None => place.write(&mut state.block),
        };
        written.map_err(|fault| format!("the MMP block cannot be written: {fault}"))
    }

    /// Registers a callback for the loss of the guard.
    pub(crate) fn when_lost(&self, on_lost: impl FnOnce(&str) + Send + 'static) {
        let mut state = self.held.state.lock();
        match &state.lost {
            Some(why) => on_lost(why),
            None => state.when_lost = Some(Box::new(on_lost)),
        }
    }
}

/// Sleeps for `pause`. `after` is the length of the wait that follows.
fn sleep(pause: Duration, after: Duration, by: &str, on_wait: &OnWait<'_>) {
    let end = Instant::now() + pause;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        on_wait(&Waiting { left: left + after, by: by.to_owned() });
        std::thread::sleep(left.min(NOTIFY_EVERY));
    }
}

/// Claims the block. `wait` gets the length of a wait, the length of the wait after it, and the last writer.
/// `is_over_check` as for [`MountGuard::claim_to_repair`].
fn claim_block(
    place: &MmpLocation,
    update: u16,
    is_over_check: bool,
    wait: &dyn Fn(Duration, Duration, &str),
) -> Result<Mmp, OpenFault> {
    let mut block = place.read()?;
    let was_clean = block.state() == MmpState::Clean;
    let asked = update.max(block.check_interval);
    // A clean block needs no wait, and its times are set anew.
    let check = if was_clean { asked.min(2 * UPDATE_MAX) } else { asked };
    let pause = Duration::from_secs(u64::from(check) + (u64::from(check) + 1).min(WAIT_MORE_MAX.into()));
    let by = |block: &Mmp| {
        let text = |field: &[u8]| String::from_utf8_lossy(until_nul(field)).escape_debug().to_string();
        format!("\"{}\" ({})", text(&block.node_name), text(&block.device_name))
    };
    match block.state() {
        MmpState::Clean => {}
        // The number of an e2fsck does not change, so the wait after the claim suffices.
        MmpState::Checking if is_over_check => {}
        MmpState::Checking => {
            let why = "e2fsck is checking it, or was killed; if no e2fsck runs, use `tune2fs -E clear_mmp`"
                .to_owned();
            return Err(OpenFault::InUse(why));
        }
        MmpState::Unknown(number) => {
            let why = format!("multiple-mount protection block: its number is {number:#x}");
            return Err(OpenFault::Damaged(why));
        }
        MmpState::Mounted(_) if update > UPDATE_MAX || block.check_interval > 2 * UPDATE_MAX => {
            let why = format!(
                "multiple-mount protection: its interval is {asked} seconds, and at most {UPDATE_MAX} can be set. If no other \
                 machine uses the file system, `tune2fs -f -E clear_mmp` ends the wait, and `tune2fs -E mmp_update_interval=5` \
                 mends the interval"
            );
            return Err(OpenFault::Damaged(why));
        }
        MmpState::Mounted(number) => {
            wait(pause, pause, &by(&block));
            let now = place.read()?;
            if now.sequence != number {
                return Err(OpenFault::InUse(format!("{} writes it", by(&now))));
            }
        }
    }
    let mut ours = Mmp::clean(0, &node_name(), "extant", check);
    ours.sequence = any_number();
    place.write(&mut ours)?;
    // If two machines claim at the same time, the second write wins. As the kernel: no wait after a clean
    // block.
    if !was_clean {
        wait(pause, Duration::ZERO, &by(&block));
    }
    block = place.read()?;
    if block.sequence != ours.sequence {
        return Err(OpenFault::InUse(format!("{} claimed it at the same time", by(&block))));
    }
    Ok(ours)
}

/// Returns whether both have the same writer and number.
fn is_same(found: &Mmp, ours: &Mmp) -> bool {
    (found.sequence, found.node_name) == (ours.sequence, ours.node_name)
}

fn any_number() -> u32 {
    let salt = std::collections::hash_map::RandomState::new();
    std::hash::BuildHasher::hash_one(&salt, 0) as u32 % Mmp::SEQ_MAX + 1
}

impl GuardShared {
    fn keep(&self) {
        let mut state = self.state.lock();
        while !state.is_over && state.lost.is_none() {
            if self.is_over.wait_for(&mut state, self.every).timed_out() {
                self.refresh(&mut state);
            }
        }
    }

    /// Why the block is not ours any more; `None` if it is.
    fn why_not_ours(&self, ours: &Mmp) -> Option<String> {
        match self.place.read() {
            Ok(block) if is_same(&block, ours) => None,
            Ok(_) => Some("another machine opened it for writing".to_owned()),
            Err(fault) => Some(format!(
                "the MMP block cannot be read, so use by another machine cannot be excluded: {fault}"
            )),
        }
    }

    /// Checks that the block is still ours, and writes the next number.
    fn refresh(&self, state: &mut State) {
        let why = self.why_not_ours(&state.block).or_else(|| {
            let next = if state.block.sequence >= Mmp::SEQ_MAX { 1 } else { state.block.sequence + 1 };
            state.block.sequence = next;
            let written = self.place.write(&mut state.block);
            // A device that lost other data refuses all writes from then on. That aborts the journal; here it
            // only matters that other machines see our number.
            let fault = written.err().filter(|_| self.why_not_ours(&state.block).is_some())?;
            Some(format!(
                "the MMP block cannot be written, so other machines would not see the mount: {fault}"
            ))
        });
        let Some(why) = why else { return };
        if let Some(on_lost) = state.when_lost.take() {
            on_lost(&why);
        }
        state.lost = Some(why);
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        // If this fails, the next claim waits and finds out.
        let _ = self.end();
    }
}

/// The name of this machine.
#[cfg(unix)]
fn node_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The system has no name for this machine.
#[cfg(not(unix))]
fn node_name() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use extant_device::MemDevice;

    use super::*;

    const BLOCK: u64 = 77;

    fn place(device: &Arc<dyn Device>) -> MmpLocation {
        MmpLocation { device: Arc::clone(device), offset: BLOCK * 1024, seed: Some(5) }
    }

    /// A device with a multiple-mount protection block with this number.
    fn device(number: u32) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        write(&device, number);
        device
    }

    fn write(device: &Arc<dyn Device>, number: u32) {
        let mut block = Mmp::clean(0, "elsewhere", "sdz", 5);
        block.sequence = number;
        place(device).write(&mut block).unwrap();
    }

    fn refused(device: &Arc<dyn Device>, wait: &dyn Fn(Duration)) -> String {
        claim_block(&place(device), CHECK_MIN, false, &|pause, _, _| wait(pause)).unwrap_err().to_string()
    }

    /// An interval of 65,535 seconds made a command wait for a day and a half without any message.
    #[test]
    fn an_interval_that_nothing_sets_is_refused_at_once_and_a_clean_one_gets_a_right_one() {
        let never = |_: Duration, _: Duration, _: &str| panic!("no wait is needed");
        for number in [1000, Mmp::SEQ_CLEAN] {
            for (update, check) in [(u16::MAX, 5), (5, u16::MAX), (301, 5), (5, 601)] {
                let device = device(number);
                let mut block = place(&device).read().unwrap();
                block.check_interval = check;
                place(&device).write(&mut block).unwrap();
                match claim_block(&place(&device), update, false, &never) {
                    Ok(block) => assert!(number == Mmp::SEQ_CLEAN && block.check_interval <= 600),
                    Err(fault) => {
                        assert_eq!(number, 1000);
                        assert!(fault.to_string().contains("mmp_update_interval=5"), "{fault}");
                    }
                }
            }
        }
    }

    #[test]
    fn waits_are_reported() {
        let waits = Mutex::new(Vec::new());
        let on_wait = |waiting: &Waiting| waits.lock().push((waiting.left, waiting.by.clone()));
        sleep(Duration::from_millis(5), Duration::from_secs(9), "a host", &on_wait);
        let (left, by) = waits.lock()[0].clone();
        assert!(left > Duration::from_secs(9) && left <= Duration::from_millis(9005) && by == "a host");
    }

    #[test]
    fn a_clean_one_is_claimed_at_once() {
        let device = device(Mmp::SEQ_CLEAN);
        let block =
            claim_block(&place(&device), CHECK_MIN, false, &|_, _, _| panic!("no machine to wait for"))
                .unwrap();
        assert!(matches!(block.state(), MmpState::Mounted(_)));
        assert_eq!(place(&device).read().unwrap(), block);
    }

    #[test]
    fn a_dead_owner_is_waited_for_and_a_live_one_is_left_alone() {
        let waits = std::cell::RefCell::new(Vec::new());
        let dead = device(1000);
        let wait = |time: Duration, _: Duration, _: &str| waits.borrow_mut().push(time.as_secs());
        claim_block(&place(&dead), CHECK_MIN, false, &wait).unwrap();
        assert_eq!(*waits.borrow(), [11, 11]);
        let alive = device(1000);
        let reason = refused(&alive, &|_| write(&alive, 1001));
        assert!(reason.contains("\"elsewhere\" (sdz) writes it"), "{reason}");
        assert_eq!(place(&alive).read().unwrap().sequence, 1001, "its block is as it was");
        // Another machine claims it during the second wait.
        let both = device(1000);
        let wait = |_| {
            if place(&both).read().unwrap().sequence != 1000 {
                write(&both, 7)
            }
        };
        assert!(refused(&both, &wait).contains("at the same time"));
        assert!(refused(&device(Mmp::SEQ_FSCK), &|_| {}).contains("e2fsck is checking it"));
    }

    #[test]
    fn a_repair_claims_the_block_of_an_e2fsck_after_a_wait() {
        let waits = std::cell::RefCell::new(Vec::new());
        let left = device(Mmp::SEQ_FSCK);
        let wait = |time: Duration, _: Duration, _: &str| waits.borrow_mut().push(time.as_secs());
        let block = claim_block(&place(&left), CHECK_MIN, true, &wait).unwrap();
        assert_eq!((waits.into_inner(), place(&left).read().unwrap()), (vec![11], block));
    }

    #[test]
    fn an_overrun_owner_stops_and_writes_no_more() {
        let device = device(Mmp::SEQ_CLEAN);
        let block = claim_block(&place(&device), CHECK_MIN, false, &|_, _, _| {}).unwrap();
        let first = block.sequence;
        let state = State { block, is_over: false, lost: None, when_lost: None, after: None };
        let held = GuardShared {
            place: place(&device),
            every: Duration::from_secs(3600),
            state: Mutex::new(state),
            is_over: Condvar::new(),
        };
        held.refresh(&mut held.state.lock());
        assert_ne!(place(&device).read().unwrap().sequence, first);
        write(&device, 9);
        let reason = Arc::new(Mutex::new(String::new()));
        let guard = MountGuard { held: Arc::new(held), thread: None };
        let put = Arc::clone(&reason);
        guard.when_lost(move |why| *put.lock() = why.to_owned());
        guard.held.refresh(&mut guard.held.state.lock());
        assert_eq!(*reason.lock(), "another machine opened it for writing");
        assert_eq!(guard.lost(), Some(reason.lock().clone()));
        drop(guard);
        assert_eq!(place(&device).read().unwrap().sequence, 9);
    }
}
