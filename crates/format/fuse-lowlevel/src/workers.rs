//! The threads that serve /dev/fuse.
//!
//! Most requests take a few microseconds; to wake a sleeping CPU takes many times that. So while one thread
//! is enough, one thread, the leader, serves alone, on the CPU where its client runs (see [`placement`]):
//! client and leader take turns, and no other CPU is woken. The other threads are parked.
//!
//! ```text
//!  alone:    leader, bound to the client's CPU: read handle | read handle ...   the others: parked
//!     |  when the leader reads a request, others are pending (several clients, readahead)
//!     v
//!  shared:   all threads, on any CPU: read handle | read handle ...
//!     |  after a while the leader serves alone again, as a trial
//!     v
//!  alone
//! ```
//!
//! Another thread, the watcher, detects a leader that blocks in a request or gets no CPU: a caller has waited
//! for a whole [`TICK`], for the leader's reply or for its request to be read, and the leader made no
//! progress. The watcher releases the leader and reads the pending requests; then all threads share. A leader
//! that has replied and gets no CPU is not such a case, because its client is computing. If the leader cannot
//! be bound, threads always share.
//!
//! Invariants
//! 1. A request that arrives while a thread blocks is read by another thread: at once if threads share,
//!    otherwise within three [`TICK`]s.
//! 2. No thread wakes up periodically while there are no requests.
//!
//! [`placement`]: crate::placement

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::placement::Bound;
use crate::session::{Config, Handler, Session};

/// How often the watcher checks the leader.
const TICK: Duration = Duration::from_millis(2);
/// After this number of ticks without requests the watcher sleeps until the next request.
const IDLE_TICKS: u32 = 8;
/// Number of requests between decisions whether to share.
const WINDOW: u32 = 16;
/// Threads share if this many requests of a window are heavy, or have others pending behind them.
const WINDOW_WAITED: u32 = 4;
/// A longer interval between two requests means that a sleeping CPU was woken.
const SLOW: Duration = Duration::from_micros(50);
/// Number of slow requests between checks of the client's CPU: initial and largest value.
const PATIENCE: (u32, u32) = (4, 1024);
/// Number of requests between these checks if the client changes.
const LOOK_REQUESTS: u32 = 8;
/// Requests of this many bytes are heavy.
const HEAVY_LEN: usize = 32 << 10;
/// How long threads share before the leader serves alone again: initial and largest value.
const SHARED_FOR: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What the threads of a session share.
struct Crew {
    state: Mutex<State>,
    woken: Condvar,
    /// Wakes the watcher: readable after the end, or a change to sharing.
    bell: OwnedFd,
    /// Odd while the leader handles a request.
    leads: AtomicU64,
    /// The connection's count of replies when the leader read its request.
    replies_before: AtomicU64,
    is_shared: AtomicBool,
    /// A caller waited for a leader that blocked or got no CPU.
    has_starved: AtomicBool,
    bound: Mutex<Option<Arc<Bound>>>,
}

#[derive(Default)]
struct State {
    has_ended: bool,
    failed: Option<io::Error>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crew {
    fn end(&self, failed: Option<io::Error>) {
        let mut state = locked(&self.state);
        state.has_ended = true;
        state.failed = state.failed.take().or(failed);
        self.woken.notify_all();
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn has_ended(&self) -> bool {
        locked(&self.state).has_ended
    }

    fn share(&self) {
        if !self.is_shared.swap(true, Ordering::AcqRel) {
            let _state = locked(&self.state);
            self.woken.notify_all();
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// Serves a session until it is unmounted.
pub(crate) fn run<H: Handler>(session: &Session<H>, config: Config) -> io::Result<()> {
    let crew = Crew {
        state: Mutex::default(),
        woken: Condvar::new(),
        bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        leads: AtomicU64::new(0),
        replies_before: AtomicU64::new(0),
        is_shared: AtomicBool::new(false),
        has_starved: AtomicBool::new(false),
        bound: Mutex::default(),
    };
    let threads = config.threads.max(1);
    std::thread::scope(|scope| {
        // The watcher first, because the leader must not be bound without it. If other threads cannot be
        // started, the session is served by fewer.
        let mut has_watcher = false;
        for number in (1..threads).chain([0]) {
            let crew = &crew;
            let work = move || {
                let served = match number {
                    0 => lead(session, crew, has_watcher),
                    1 => watch(session, crew),
                    _ => follow(session, crew),
                };
                crew.end(served.err());
            };
            let started =
                std::thread::Builder::new().name(format!("fuse-{number}")).spawn_scoped(scope, work);
            match started {
                Err(error) if number == 0 => {
                    crew.end(None);
                    return Err(error);
                }
                Err(_) => {}
                Ok(_) => has_watcher |= number == 1,
            }
        }
        Ok(())
    })?;
    let failed = locked(&crew.state).failed.take();
    failed.map_or(Ok(()), Err)
}

/// Decides, window by window, whether threads share.
struct Judge {
    requests: u32,
    waited: u32,
    shared_until: Option<Instant>,
    shared_for: Duration,
}

impl Judge {
    fn new() -> Self {
        Self { requests: 0, waited: 0, shared_until: None, shared_for: SHARED_FOR.0 }
    }

    fn is_alone(&self) -> bool {
        self.shared_until.is_none()
    }

    /// Starts sharing, for `shared_for`.
    fn share(&mut self) {
        self.shared_until = Some(Instant::now() + self.shared_for);
        self.shared_for = (self.shared_for * 2).min(SHARED_FOR.1);
    }

    /// Counts a request; `waits`: it is heavy, or was pending while another was served. Returns whether to
    /// share, at the end of a window only.
    fn note(&mut self, waits: bool) -> Option<bool> {
        self.requests += 1;
        self.waited += u32::from(waits);
        if self.requests < WINDOW {
            return None;
        }
        let waited = self.waited;
        (self.requests, self.waited) = (0, 0);
        match self.shared_until {
            Some(until) if Instant::now() < until => Some(true),
            Some(_) => {
                self.shared_until = None;
                Some(false)
            }
            None if waited >= WINDOW_WAITED => {
                self.share();
                Some(true)
            }
            None => {
                self.shared_for = SHARED_FOR.0;
                Some(false)
            }
        }
    }
}

/// Decides when the leader checks its client's CPU. A check costs as much as several requests, so it is made
/// only if the client changed, or if requests are slow, which they are after the client moved to another CPU.
struct Pursuit {
    client: u32,
    last: Instant,
    requests: u32,
    slow: u32,
    /// Number of slow requests until the next check.
    patience: u32,
}

impl Pursuit {
    fn new() -> Self {
        Self { client: 0, last: Instant::now(), requests: 0, slow: 0, patience: PATIENCE.0 }
    }

    fn follow(&mut self, bound: &Bound, client: u32) {
        let now = Instant::now();
        self.requests += 1;
        self.slow += u32::from(now - self.last > SLOW);
        self.last = now;
        let is_other = self.client != client || !bound.is_bound();
        if self.slow < self.patience && !(is_other && self.requests >= LOOK_REQUESTS) {
            return;
        }
        let stays = bound.bind(client) && self.client == client;
        self.patience = if stays { (2 * self.patience).min(PATIENCE.1) } else { PATIENCE.0 };
        (self.client, self.requests, self.slow) = (client, 0, 0);
        self.last = Instant::now();
    }
}

/// The sender of a request, and whether it waits for the reply.
struct Sender {
    thread: u32,
    waits: bool,
    /// The request keeps other threads of the server busy, which would not let a SCHED_IDLE leader run.
    is_heavy: bool,
    /// A thread may send several of these at the same time: READ, for readahead, and WRITE, for writeback.
    is_data: bool,
}

impl Sender {
    fn of(request: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let four = request.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_ne_bytes(four))
        };
        // The senders of FORGET, RELEASE, RELEASEDIR and BATCH_FORGET do not wait.
        let waits = !matches!(word(4)?, 2 | 18 | 29 | 42);
        // FSYNC, FSYNCDIR, FALLOCATE and SYNCFS; writes of many bytes.
        let is_heavy = matches!(word(4)?, 20 | 30 | 43 | 50) || request.len() >= HEAVY_LEN;
        let is_data = matches!(word(4)?, 15 | 16);
        Some(Self { thread: word(32)?, waits, is_heavy, is_data })
    }

    /// Returns whether the threads should share: the request is heavy, or was pending while another one was
    /// served. `pending_behind` is the sender of the request before this one, if something was pending then.
    /// That may have been a FORGET, and this request of the same thread came later.
    fn has_waited(&self, pending_behind: Option<u32>) -> bool {
        let is_pending = pending_behind.is_some_and(|thread| self.is_data || thread != self.thread);
        self.is_heavy || self.waits && is_pending
    }
}

fn lead<H: Handler>(session: &Session<H>, crew: &Crew, has_others: bool) -> io::Result<()> {
    let bound = if has_others { Bound::new().map(Arc::new) } else { None };
    locked(&crew.bound).clone_from(&bound);
    let served = lead_bound(session, crew, has_others, bound.as_deref());
    // After the thread's end its number may be reused.
    *locked(&crew.bound) = None;
    served
}

fn lead_bound<H: Handler>(
    session: &Session<H>,
    crew: &Crew,
    has_others: bool,
    bound: Option<&Bound>,
) -> io::Result<()> {
    let connection = session.connection();
    let mut buffer = vec![0; session.buffer_len()];
    // With a single CPU, client and server share it without being bound.
    let may_be_alone =
        bound.is_some() || std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1);
    if has_others && !may_be_alone {
        crew.share();
        return read_and_answer(session, &mut buffer, || true);
    }
    let mut judge = Judge::new();
    let mut pursuit = Pursuit::new();
    // The sender of the last request, if it waits and another request was pending when that one was read.
    let mut pending_behind = None;
    loop {
        let Some(len) = connection.read(&mut buffer)? else { return Ok(()) };
        let begun = session.begin(&buffer[..len]);
        crew.replies_before.store(connection.replies(), Ordering::Release);
        crew.leads.fetch_add(1, Ordering::AcqRel);
        let sender = Sender::of(&buffer[..len]);
        let has_waited = sender.as_ref().is_some_and(|sender| sender.has_waited(pending_behind));
        let is_alone = has_others && judge.is_alone();
        pending_behind = sender
            .as_ref()
            .filter(|sender| is_alone && sender.waits && connection.has_request())
            .map(|sender| sender.thread);
        let is_shared = if crew.has_starved.swap(false, Ordering::AcqRel) {
            judge.share();
            Some(true)
        } else {
            judge.note(is_alone && has_waited)
        };
        if is_shared == Some(true) {
            if let Some(bound) = bound {
                bound.release();
            }
            crew.share();
        } else if is_shared == Some(false) {
            crew.is_shared.store(false, Ordering::Release);
        }
        session.answer(&buffer[..len], begun);
        crew.leads.fetch_add(1, Ordering::AcqRel);
        // After the reply: a client that executes a program keeps its files in /proc locked while it waits.
        if let (Some(bound), Some(sender), true) = (bound, &sender, judge.is_alone())
            && sender.waits
            && sender.thread != 0
        {
            pursuit.follow(bound, sender.thread);
        }
    }
}

/// Serves while `goes_on`, which is called before each read, returns true.
fn read_and_answer<H: Handler>(
    session: &Session<H>,
    buffer: &mut Vec<u8>,
    goes_on: impl Fn() -> bool,
) -> io::Result<()> {
    buffer.resize(session.buffer_len(), 0);
    while goes_on() {
        let Some(len) = session.connection().read(buffer)? else { return Ok(()) };
        session.answer(&buffer[..len], session.begin(&buffer[..len]));
    }
    Ok(())
}

fn follow<H: Handler>(session: &Session<H>, crew: &Crew) -> io::Result<()> {
    let mut buffer = Vec::new();
    let mut state = locked(&crew.state);
    while !state.has_ended {
        if !crew.is_shared.load(Ordering::Acquire) {
            state = crew.woken.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        drop(state);
        let is_shared = || crew.is_shared.load(Ordering::Acquire) && !session.connection().has_ended();
        read_and_answer(session, &mut buffer, is_shared)?;
        if session.connection().has_ended() {
            return Ok(());
        }
        state = locked(&crew.state);
    }
    Ok(())
}

/// As [`follow`], and also takes over from a leader that makes no progress while a request is pending.
fn watch<H: Handler>(session: &Session<H>, crew: &Crew) -> io::Result<()> {
    let connection = session.connection();
    let mut buffer = Vec::new();
    let (mut seen, mut idle, mut has_waited) = (u64::MAX, 0, false);
    while !crew.has_ended() && !session.connection().has_ended() {
        if crew.is_shared.load(Ordering::Acquire) {
            let is_shared = || crew.is_shared.load(Ordering::Acquire) && !session.connection().has_ended();
            read_and_answer(session, &mut buffer, is_shared)?;
            (seen, idle, has_waited) = (u64::MAX, 0, false);
            continue;
        }
        let leads = crew.leads.load(Ordering::Acquire);
        let is_unanswered =
            leads % 2 == 1 && connection.replies() == crew.replies_before.load(Ordering::Acquire);
        let waits = leads == seen && (is_unanswered || connection.has_request());
        if waits && has_waited {
            if is_unanswered {
                crew.has_starved.store(true, Ordering::Release);
            }
            if let Some(bound) = &*locked(&crew.bound) {
                bound.release();
            }
            buffer.resize(session.buffer_len(), 0);
            while crew.leads.load(Ordering::Acquire) == leads {
                // Until the leader continues, no other thread reads requests.
                let Some(len) = connection.read(&mut buffer)? else { return Ok(()) };
                // Requests without a waiting sender may stay pending while the client computes on the
                // leader's CPU.
                if Sender::of(&buffer[..len]).is_some_and(|sender| sender.waits) {
                    crew.has_starved.store(true, Ordering::Release);
                }
                session.answer(&buffer[..len], session.begin(&buffer[..len]));
            }
            (seen, idle, has_waited) = (u64::MAX, 0, false);
            continue;
        }
        idle = if leads == seen && !waits { idle + 1 } else { 0 };
        (seen, has_waited) = (leads, waits);
        if idle >= IDLE_TICKS {
            connection.wait(crew.bell.as_fd());
            let _ = rustix::io::read(&crew.bell, &mut [0; 8]);
            idle = 0;
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forget_between_the_requests_of_one_thread_is_no_reason_to_share() {
        let sender = |opcode: u32, thread: u32| {
            let mut header = [0; 40];
            header[4..8].copy_from_slice(&opcode.to_ne_bytes());
            header[32..36].copy_from_slice(&thread.to_ne_bytes());
            Sender::of(&header).unwrap()
        };
        const UNLINK: u32 = 10;
        const FORGET: u32 = 2;
        const READ: u32 = 15;
        const FSYNC: u32 = 20;
        assert!(!sender(UNLINK, 7).has_waited(None));
        assert!(!sender(UNLINK, 7).has_waited(Some(7)));
        assert!(!sender(FORGET, 0).has_waited(Some(7)));
        assert!(sender(UNLINK, 8).has_waited(Some(7)), "of another client");
        assert!(sender(READ, 7).has_waited(Some(7)), "readahead");
        assert!(sender(FSYNC, 7).has_waited(None), "heavy");
    }

    #[test]
    fn threads_share_while_requests_wait_and_the_leader_tries_it_alone_again() {
        let mut judge = Judge::new();
        let mut window = |waited: u32| (0..WINDOW).filter_map(|number| judge.note(number < waited)).last();
        assert_eq!(window(WINDOW_WAITED - 1), Some(false));
        assert_eq!(window(WINDOW_WAITED), Some(true));
        assert_eq!(window(0), Some(true), "for a while");
        std::thread::sleep(SHARED_FOR.0);
        assert_eq!(window(WINDOW), Some(false), "tried");
        assert_eq!(window(WINDOW), Some(true));
    }
}
