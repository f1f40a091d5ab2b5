//! One pass over many items by several threads.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};

/// Items that a thread takes at a time: a few tenths of a millisecond of work.
const PIECE: usize = 256;
/// The most threads, including the caller's.
const THREADS_MAX: usize = 4;

/// Calls `each` for all items, piece by piece. The caller's thread works, too, and does everything if its CPU
/// is the only free one: each thread takes the next piece when it is done. `busy`: other threads that have
/// work of their own. They keep their CPUs, unless they occupy all of them.
pub(super) fn each<T: Send>(all: &mut [T], busy: usize, each: impl Fn(&mut [T]) + Sync) {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    // If no CPU is free, helpers start as if all were: the scheduler keeps the caller on one CPU, where its
    // single thread would fall back compared to the others.
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
            // If no thread can be started, the caller does its work.
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
