//! One pass over many things by several threads.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

/// Things that a thread takes at a time: some tenths of a millisecond.
const PIECE: usize = 256;
/// Threads at most, the caller's too.
const THREADS_MAX: usize = 4;

/// Calls `each` for all, piece by piece. Idle threads take the next piece; the caller's thread works too, and
/// does everything if no other CPU is idle. `busy`: the number of other threads with work of their own. They
/// keep their CPUs, unless they occupy all of them.
pub(super) fn each<T: Send>(all: &mut [T], busy: usize, each: impl Fn(&mut [T]) + Sync) {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    // Where none is free each gives a part: a system leaves the caller on one, whose own thread would fall
    // behind the others.
    let free = if busy < cpus { cpus - busy } else { cpus };
    let helpers = free.min(THREADS_MAX).min(all.len() / (4 * PIECE)).saturating_sub(1);
    if helpers == 0 {
        return each(all);
    }
    let pieces = Mutex::new(all.chunks_mut(PIECE));
    let work = || {
        let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(piece) = next() {
            each(piece);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // A system that gives no thread gives its work to us.
            let _ = std::thread::Builder::new().name("extant-seal".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_thing_is_gone_over_once() {
        for len in [0, 1, 255, 2048, 5000, 20_001] {
            let mut all: Vec<usize> = (0..len).collect();
            super::each(&mut all, len % 3, |piece| piece.iter_mut().for_each(|number| *number *= 3));
            assert!(all.into_iter().eq((0..len).map(|number| number * 3)), "{len}");
        }
    }
}
