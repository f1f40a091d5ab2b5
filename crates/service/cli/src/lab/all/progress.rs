//! Progress of a study: a bar on a terminal, otherwise a line for each part and at least two a minute.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use extant_lab::Watch;

use super::super::Shown;
use crate::manners::{draws_progress, is_quiet};
use crate::voice::say;

const BEAT: Duration = Duration::from_secs(30);
/// Parts that begin sooner after the last line print none.
const PAUSE: Duration = Duration::from_secs(2);

/// Shows the progress of one study until it is dropped.
pub(super) struct Progress {
    shown: Box<dyn Watch>,
}

impl Progress {
    pub(super) fn new(study: &'static str) -> Self {
        let shown: Box<dyn Watch> = match draws_progress() || is_quiet() {
            true => Box::new(Shown::new(true, false)),
            false => Box::new(Lines::new(study)),
        };
        Self { shown }
    }
}

impl std::ops::Deref for Progress {
    type Target = dyn Watch;

    fn deref(&self) -> &Self::Target {
        &*self.shown
    }
}

/// Lines on standard error.
struct Lines {
    study: &'static str,
    begun: Instant,
    state: Arc<Mutex<State>>,
    stop: Option<Sender<()>>,
    beats: Option<JoinHandle<()>>,
}

struct State {
    part: String,
    done: u64,
    total: Option<u64>,
    last: Instant,
}

impl Lines {
    fn new(study: &'static str) -> Self {
        let begun = Instant::now();
        let state = State { part: String::new(), done: 0, total: None, last: begun };
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = channel::<()>();
        let of_beats = Arc::clone(&state);
        let beats = std::thread::spawn(move || {
            while stopped.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                let mut state = of_beats.lock().unwrap_or_else(PoisonError::into_inner);
                if state.last.elapsed() >= BEAT / 2 {
                    print(study, begun, &mut state);
                }
            }
        });
        Self { study, begun, state, stop: Some(stop), beats: Some(beats) }
    }
}

fn print(study: &str, begun: Instant, state: &mut State) {
    state.last = Instant::now();
    let of_total = match state.total.filter(|total| *total > 0) {
        Some(total) if state.done > 0 => format!(", {} %", (state.done * 100 / total).min(100)),
        _ => String::new(),
    };
    say!("{study}: {:4.0} s: {}{of_total}", begun.elapsed().as_secs_f64(), state.part);
}

impl Watch for Lines {
    fn advance(&self, objects: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).done += objects;
    }

    fn part(&self, what: &str, total: Option<u64>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.part, state.done, state.total) = (what.to_owned(), 0, total);
        if state.last.elapsed() >= PAUSE {
            print(self.study, self.begun, &mut state);
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(beats) = self.beats.take() {
            let _ = beats.join();
        }
    }
}
