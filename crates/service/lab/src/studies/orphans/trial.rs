//! A claim about several processes on a machine with fewer CPUs: rules 1 and 2 of [`super::judge`], and
//! their sentences.
//!
//! Owns: what an interval shows, the rule of CPUs. Does **not** own: the claims (see [`super::claims`]).

use crate::report::{Change, Verdict};

/// CPUs that are enough for a verdict on any number of processes: the posting's lockstat table has 10
/// processes.
pub(super) const CPUS_ENOUGH: usize = 10;

/// How the reason of a claim begins that is open for lack of CPUs.
pub(super) const NEEDED: &str = "A verdict needs ";

/// A difference in per cent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delta {
    pub(super) percent: f64,
    /// Half of the 95 % interval; none for single runs.
    pub(super) half: Option<f64>,
}

/// What a [`Delta`] shows at 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It reaches the goal.
    Effect,
    /// It falls short of the goal.
    Less,
    /// It has the other sign than the goal.
    Opposite,
    /// Its interval includes the goal, or it has none.
    Unclear,
}

impl Delta {
    pub(super) fn of(change: &Change) -> Self {
        Self { percent: change.percent, half: change.plus_minus_percent }
    }

    /// `goal`: a negative number of per cent.
    pub(super) fn seen(self, goal: f64) -> Seen {
        let Some(half) = self.half else { return Seen::Unclear };
        match self.percent {
            percent if percent + half <= goal => Seen::Effect,
            percent if percent - half > 0.0 => Seen::Opposite,
            percent if percent - half > goal => Seen::Less,
            _ => Seen::Unclear,
        }
    }
}

impl std::fmt::Display for Delta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.half {
            Some(half) if half > 0.0 => write!(f, "{:+.1} ± {half:.1} %", self.percent),
            _ => write!(f, "{:+.1} %", self.percent),
        }
    }
}

/// A claim about several processes, as rules 1 and 2 need it.
pub(super) struct Trial {
    pub(super) processes: usize,
    /// The change with these processes.
    pub(super) many: Delta,
    /// The change with one process; none if one process alone shows nothing (rule 2).
    pub(super) alone: Option<Delta>,
    /// The change that counts as the effect, in per cent.
    pub(super) goal: f64,
}

/// The words for a trial in sentences.
pub(super) struct Words {
    /// The goal, such as "half of the posting's change".
    goal: &'static str,
    /// What a lack of CPUs adds to the figures, as the end of a sentence.
    lack: &'static str,
}

const HALF: &str = "half of the posting's change";

pub(super) const TIMES: Words = Words { goal: HALF, lack: "" };

pub(super) const WAITS: Words =
    Words { goal: HALF, lack: ", so a wait for the lock includes a wait for a CPU" };

pub(super) const HOLDS: Words =
    Words { goal: HALF, lack: ", so a hold time includes time in which the holder has no CPU" };

pub(super) const BEYOND: Words = Words { goal: "the posting's full change", lack: "" };

impl Trial {
    pub(super) fn cpus_needed(&self) -> usize {
        self.processes.min(CPUS_ENOUGH)
    }

    pub(super) fn seen(&self) -> (Seen, Seen) {
        (self.many.seen(self.goal), self.alone.map_or(Seen::Unclear, |alone| alone.seen(self.goal)))
    }

    pub(super) fn verdict(&self, cpus: usize) -> Verdict {
        match self.seen() {
            (Seen::Effect, _) if cpus >= self.cpus_needed() => Verdict::Confirmed,
            (Seen::Less | Seen::Opposite, _) if cpus >= self.cpus_needed() => Verdict::Refuted,
            (Seen::Effect, Seen::Effect) => Verdict::Confirmed,
            (Seen::Opposite, Seen::Opposite) => Verdict::Refuted,
            _ => Verdict::Open,
        }
    }

    pub(super) fn why(&self, cpus: usize, words: &Words) -> String {
        let Words { goal, lack } = words;
        let (processes, (many, alone)) = (self.processes, self.seen());
        if cpus >= self.cpus_needed() {
            return match many {
                Seen::Effect => format!("At 95 % confidence, the change reaches {goal}."),
                Seen::Less => format!("At 95 % confidence, the change does not reach {goal}."),
                Seen::Opposite => "At 95 % confidence, the change is in the other direction.".to_owned(),
                Seen::Unclear if self.many.half.is_none() => {
                    "A single run has no confidence interval.".to_owned()
                }
                Seen::Unclear => format!("The 95 % interval includes {goal}, so this run decides nothing."),
            };
        }
        let one = self.alone.map_or(String::new(), |alone| format!(" ({alone})"));
        let found = match (many, alone) {
            (Seen::Effect, Seen::Effect) => {
                return format!(
                    "{processes} processes reach {goal}, and so does one process alone{one}, so the number \
                     of CPUs does not explain it."
                );
            }
            (Seen::Opposite, Seen::Opposite) => {
                return format!(
                    "The change is in the other direction with {processes} processes and with one process \
                     alone{one}, so the number of CPUs does not explain it."
                );
            }
            _ if self.alone.is_none() => return self.too_few_cpus(cpus, lack),
            (Seen::Effect, _) => {
                format!("{processes} processes reach {goal}, but one process alone does not.")
            }
            (_, Seen::Effect) => {
                format!("One process alone reaches {goal}, but {processes} processes do not.")
            }
            _ => format!("Neither {processes} processes nor one process alone reach {goal}."),
        };
        format!("{} {found}", self.too_few_cpus(cpus, lack))
    }

    pub(super) fn too_few_cpus(&self, cpus: usize, lack: &str) -> String {
        let needed = self.cpus_needed();
        let or_one = if self.alone.is_some() { " or the same result with one process alone" } else { "" };
        format!("{NEEDED}{needed} CPUs (this machine has {cpus}){or_one}{lack}.")
    }
}
