//! One pass over many things by several threads.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Things that a thread takes at a time: some tenths of a millisecond.
const PIECE: usize = 256;
/// Threads at most, the caller's too.
const THREADS_MAX: usize = 4;

/// What `each` makes of all, piece by piece, in the same order. The caller's thread works too, and does it all while no other processor is
/// free: whoever comes takes the next piece. `busy`: threads besides the caller's that have work of their own, and would be kept from
/// it.
pub(super) fn map<T: Send, R: Send>(
    all: Vec<T>,
    busy: usize,
    each: impl Fn(Vec<T>) -> Vec<R> + Sync,
) -> Vec<R> {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    let helpers = cpus.saturating_sub(busy).min(THREADS_MAX).min(all.len() / (4 * PIECE)).saturating_sub(1);
    if helpers == 0 {
        return each(all);
    }
    // Taken from the front by the piece: what is cut off a vector's end moves, and so would all that is left, piece by piece.
    let mut rest = all.into_iter();
    let mut pieces = Vec::with_capacity(rest.len().div_ceil(PIECE));
    while rest.len() > 0 {
        let piece: Vec<T> = rest.by_ref().take(PIECE).collect();
        pieces.push(Mutex::new((piece, Vec::new())));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (from, made) = &mut *piece.lock().unwrap_or_else(PoisonError::into_inner);
            *made = each(std::mem::take(from));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            // A system that gives no thread gives its work to us.
            let _ = std::thread::Builder::new().name("extant-seal".to_owned()).spawn_scoped(scope, work);
        }
        work();
    });
    pieces
        .into_iter()
        .flat_map(|piece| piece.into_inner().unwrap_or_else(PoisonError::into_inner).1)
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_thing_is_mapped_once_and_keeps_its_place() {
        for len in [0, 1, 255, 2048, 5000, 20_001] {
            let all: Vec<usize> = (0..len).collect();
            let made = super::map(all, len % 3, |piece| piece.into_iter().map(|number| number * 3).collect());
            assert!(made.iter().copied().eq((0..len).map(|number| number * 3)), "{len}");
        }
    }
}
