//! What the verdicts of each study mean, in words for readers: the limits are those of the studies' `judge`.

/// When a claim of a posting gets which verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Of [`Verdict::Confirmed`](crate::report::Verdict::Confirmed).
    pub confirmed: &'static str,
    /// Of [`Verdict::Beaten`](crate::report::Verdict::Beaten).
    pub beaten: &'static str,
    /// Of [`Verdict::Refuted`](crate::report::Verdict::Refuted).
    pub refuted: &'static str,
    /// Of [`Verdict::Open`](crate::report::Verdict::Open).
    pub open: &'static str,
}

impl Rules {
    /// Each verdict with its rule, in the order of the tables.
    #[must_use]
    pub fn all(&self) -> [(crate::report::Verdict, &'static str); 4] {
        use crate::report::Verdict::{Beaten, Confirmed, Open, Refuted};
        [(Confirmed, self.confirmed), (Beaten, self.beaten), (Refuted, self.refuted), (Open, self.open)]
    }
}

pub(super) const SHRINKER: Rules = Rules {
    confirmed: "times: shorter at 95 %, by at least a third of the posting's factor. Own times: shorter \
                by a factor of 2, or by 20 % if the runs differ at 95 %, too. Hits: more at 95 %, by \
                any number. \"About as long\": the whole interval is within 20 %",
    beaten: "confirmed, and es-chunk is better than es-gc in the same table by the same rule",
    refuted: "times: longer by the same rule, at scale 1. Hits: fewer, or no difference. \"About as \
              long\": a change of more than 20 %",
    open: "times: no difference, less than a third of the factor, or a scale below 1. A run that ended early \
           and does not decide; waits for a lock, which one worker does not have; an interval that reaches \
           beyond 20 %",
};

pub(super) const BUFFERED: Rules = Rules {
    confirmed: "each row of the claim gains at 95 %, and its mean gain is at least half of the posting's. \
                The whole grid: the mean gain of each row in which the posting gains 10 % or more is at \
                least half of the posting's. Not slower: no row is slower at 95 %, and no interval contains \
                a loss of 10 %. Small gain: no row gains more than the posting's largest, at 95 %. Faster \
                disk: reads of each size gain more on the ramdisk, at 95 %. Software stack: saved CPU time \
                is at least half of the saved time in nine of ten rows",
    beaten: "the whole interval of each row exceeds the posting's gain",
    refuted: "each row loses at 95 %, or each interval is within 10 %. The whole grid: fewer than half of \
              the rows have half of the gain. Not slower: a row is slower at 95 %. Small gain: more than \
              half of the rows gain more than the posting's largest",
    open: "all else, and forms of I/O that have no counterpart here",
};

pub(super) const ORPHANS: Rules = Rules {
    confirmed: "the whole 95 % interval reaches half of the posting's change, on as many CPUs as the \
                posting's processes need (10 at most), or with one process alone, too. Counts of \
                acquisitions are judged on any machine. Most contended: waits take more than half of the \
                processes' time",
    beaten: "not used: claims about forms of ours are beyond the posting; held if the whole interval exceeds \
             the posting's full change, by the rule of CPUs",
    refuted: "the whole interval is less than half of the posting's change, or has the other sign, by the \
              rule of CPUs",
    open: "the interval contains half of the posting's change, or there are too few CPUs",
};

pub(super) const LARGE_DIR: Rules = Rules {
    confirmed: "a fall of the rate: its whole 95 % interval reaches half of the posting's fall, by this \
                cause alone. Memory for leaves: a quarter with leaves read first has less than half of the \
                rate, on both drives. CPU: below 50 % of one on both drives. Bytes: within 20 %. TEA: less \
                than half of the leaves. Other figures: the sign, at 95 % where there are several runs",
    beaten: "a fall of the rate: with deferred reads it is less. Memory for leaves: with deferred reads, the \
             slowest window has at least 50 % of the fastest one with memory for all leaves, on both \
             drives",
    refuted: "the whole interval is less than half of the posting's fall. CPU: 50 % or more on both drives. \
              TEA: 90 % of the leaves or more. Other figures: the opposite sign",
    open: "the interval contains half of the posting's fall; the directory has 16 extents or fewer \
           (bigalloc); rates themselves, because drives and CPU are others; not measured",
};

pub(super) const FSYNC: Rules = Rules {
    confirmed: "costs, in points within runs: the effect at 95 % on more than half of the devices of the \
                kind, the opposite on none. Size of the saving: at most 67 % of the mean cost is left (the \
                posting leaves 35 %; half of its saving leaves 67 %). One thread: the interval is within 5 \
                %. Sharing: half of the flushes or fewer. CPU: less than half of the rate without a device, \
                in each row",
    beaten: "not used: that the mode epoch costs less than seed is a claim beyond the posting",
    refuted: "the opposite on more than half of the devices; \"no effect\" needs intervals within 2 points. \
              Size of the saving: on more than half of the devices, the whole interval is less than half of \
              the posting's saving",
    open: "all else: an interval of more than 2 points, an effect below what the study can resolve, a cause \
           that the models do not have, not measured",
};
