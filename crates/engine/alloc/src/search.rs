//! Chooses a range inside one group. A pure function; it marks nothing.

use std::ops::Range;

use crate::bits;

/// Number of runs long enough after which the search stops with the best of them.
const ENOUGH: u32 = 10;

/// What to search for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunRequest {
    /// Where to start.
    pub(crate) from: u32,
    /// Clusters.
    pub(crate) want: u32,
    /// Prefer a start that is a multiple of `want`, which is a power of two.
    pub(crate) aligned: bool,
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FoundRun {
    /// A run of `want` clusters.
    Fits(Range<u32>),
    /// No run is long enough; this is the longest, maybe empty.
    Longest(Range<u32>),
}

/// The best run of `want` clear bits in a group of `bits` bits, searched from `request.from` on and around.
///
/// Adds the number of runs it visited to `runs`. The best run is the shortest that is long enough, of the
/// first [`ENOUGH`]: that leaves long runs for large requests.
pub(crate) fn best(
    words: &[u64],
    bits: u32,
    first_free: u32,
    request: RunRequest,
    runs: &mut u64,
) -> FoundRun {
    let from = match request.from >= bits {
        true => 0,
        // If it is inside a run, start with that run: otherwise its two parts would count as two runs.
        false if !bits::test(words, request.from) => bits::run_start(words, request.from),
        false => request.from,
    };
    let mut best = 0..0;
    let mut longest = 0..0;
    let mut fits = 0;
    for half in [from..bits, first_free.min(from)..from] {
        let mut at = half.start;
        while let Some(start) = bits::next_clear(words, at, half.end) {
            let end = bits::next_set(words, start, half.end);
            at = end;
            *runs += 1;
            let len = end - start;
            if len >= request.want {
                if len == request.want && !request.aligned {
                    return FoundRun::Fits(start..end);
                }
                if request.aligned {
                    let aligned = start.next_multiple_of(request.want);
                    if aligned + request.want <= end {
                        return FoundRun::Fits(aligned..aligned + request.want);
                    }
                }
                if best.is_empty() || len < best.end - best.start {
                    best = start..end;
                }
                fits += 1;
                if fits >= ENOUGH {
                    return FoundRun::Fits(best.start..best.start + request.want);
                }
            } else if len > longest.end - longest.start {
                longest = start..end;
            }
        }
    }
    if best.is_empty() {
        FoundRun::Longest(longest)
    } else {
        FoundRun::Fits(best.start..best.start + request.want)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_free(bits: u32, free: &[Range<u32>]) -> Box<[u64]> {
        let mut words = bits::clear_words(bits);
        bits::set(&mut words, 0..bits);
        for run in free {
            bits::clear(&mut words, run.clone());
        }
        words
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_wins() {
        let words = with_free(1000, &[10..12, 20..30, 100..104, 500..900]);
        let best = |from, want, aligned| best(&words, 1000, 10, RunRequest { from, want, aligned }, &mut 0);
        assert_eq!(best(0, 4, false), FoundRun::Fits(100..104));
        assert_eq!(best(0, 3, false), FoundRun::Fits(100..103));
        assert_eq!(best(600, 8, false), FoundRun::Fits(20..28));
        assert_eq!(best(0, 8, true), FoundRun::Fits(504..512));
        assert_eq!(best(0, 401, false), FoundRun::Longest(500..900));
        assert_eq!(
            best(700, 401, false),
            FoundRun::Longest(500..900),
            "one run, though the search begins inside"
        );
        assert_eq!(best(5000, 2, false), FoundRun::Fits(10..12));
    }

    #[test]
    fn a_full_group_has_nothing() {
        let words = with_free(100, &[]);
        let request = RunRequest { from: 7, want: 1, aligned: false };
        assert_eq!(best(&words, 100, 100, request, &mut 0), FoundRun::Longest(0..0));
    }
}
