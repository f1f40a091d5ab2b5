//! The claims of the posting and the notes of the tables, computed from the tables of a report.
//!
//! Owns: the rules of the verdicts, and most sentences. Does **not** own: the tables and the figures of the
//! posting in them (see [`super`]), the verdict of one trial and its sentences (see [`super::trial`]).

use super::trial::{BEYOND, CPUS_ENOUGH, Delta, HOLDS, NEEDED, Seen, TIMES, Trial, WAITS, Words};
use super::{LOCKSTAT_WORKERS, QUESTION, label, posting, strings};
use crate::Summary;
use crate::orphans::{FILE_BYTES, FILES, Mode, WIDTHS};
use crate::report::{Change, Claim, Row, StudyReport, Verdict, figure};

/// Contentions of a run below which two modes are not compared.
const CONTENTIONS_MIN: f64 = 100.0;

/// Twice the processes should take about twice the time; from this factor on it is a jump.
const JUMP: f64 = 4.0;

/// Writes the claims, the notes of the tables, what is known about the posting, and after the question why
/// claims are open for lack of CPUs.
///
/// Rules
/// 1. *Effect.* A change has the posting's effect if its whole 95 % interval reaches at least half of the
///    posting's change, and lacks it if the whole interval is less than half. In between, the claim is open.
/// 2. *CPUs.* N processes contend as in the posting only on min(N, 10) CPUs or more. With fewer CPUs,
///    processes also wait for a CPU, and the holder of the lock can lose its CPU, so waits and hold times
///    include that time. Then a claim about N processes is open, unless one process alone, which never
///    contends, shows the same: both have the effect (confirmed), or both have its opposite (refuted). This
///    rule holds for all N. Lock statistics have no such exception: one process never waits, and holds of one
///    process are shorter, because no cache line moves between CPUs.
/// 3. *Counts.* The number of acquisitions depends on neither CPUs nor time: it is judged on any machine.
/// 4. *Beyond the posting.* A claim about a form of ours is beaten if its whole interval exceeds the
///    posting's full change; the rule of CPUs holds here, too.
/// 5. *No effect.* With 1 or 2 processes the posting saves almost nothing; confirmed if neither is slower.
/// 6. *Most contended.* Confirmed if waits for this lock take more than half of the processes' time, by the
///    rule of CPUs: then no other lock can take more.
///
/// Lock statistics of one process are sums over all runs, so they have no interval.
pub fn judge(report: &mut StudyReport) {
    let figures = Figures { report };
    let claims = figures.claims();
    let notes = figures.notes();
    let on_cpus = figures.on_cpus(&claims);
    report.question = QUESTION.to_owned() + on_cpus.as_deref().unwrap_or_default();
    report.posting = posting();
    report.claims = claims;
    for (table, note) in notes {
        report.note(table, note);
    }
}

/// The figures of a report.
struct Figures<'a> {
    report: &'a StudyReport,
}

/// A count with commas: 16,381,236.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that fits it.
fn time(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", figure(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", figure(us / 1e3)),
        us if us >= 1.0 => format!("{} us", figure(us)),
        us => format!("{} us", format!("{us:.3}").trim_end_matches('0').trim_end_matches('.')),
    }
}

/// Seconds, always in this unit.
fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{value:.3} s") } else { format!("{} s", figure(value)) }
}

/// "a, b and c".
fn listed(texts: &[String]) -> String {
    match texts {
        [] => String::new(),
        [one] => one.clone(),
        [all @ .., last] => format!("{} and {last}", all.join(", ")),
    }
}

fn percent(this: f64, that: f64) -> f64 {
    if that == 0.0 { 0.0 } else { (this / that - 1.0) * 100.0 }
}

/// A statistic of lockstat in list-v0 and list-v3: the posting's, ours in the runs of 10 processes, and ours
/// in all runs of one process.
struct Statistic {
    posting: [f64; 2],
    ours: [Summary; 2],
    alone: [f64; 2],
}

impl Statistic {
    fn posted_percent(&self) -> f64 {
        percent(self.posting[1], self.posting[0])
    }

    fn delta(&self) -> Delta {
        Delta::of(&Change::between(&self.ours[1], &self.ours[0], "list-v0"))
    }

    /// One process alone does not replace missing CPUs here (rule 2).
    fn trial(&self) -> Trial {
        let goal = self.posted_percent() / 2.0;
        Trial { processes: LOCKSTAT_WORKERS, many: self.delta(), alone: None, goal }
    }

    /// Why a hold time has its verdict.
    fn why_of_hold(&self, cpus: usize) -> String {
        let trial = self.trial();
        let why = trial.why(cpus, &HOLDS);
        let [v0, v3] = self.alone;
        if cpus >= trial.cpus_needed() || v0 == 0.0 {
            return why;
        }
        format!(
            "{why} One process alone shows {:+.1} %, but decides nothing: no cache line moves between CPUs \
             there, which makes holds shorter.",
            percent(v3, v0)
        )
    }

    fn posting_text(&self, text: fn(f64) -> String) -> String {
        let [orig, patched] = self.posting.map(text);
        format!("{orig} to {patched} ({:+.1} %)", self.posted_percent())
    }

    fn ours_text(&self, text: fn(f64) -> String) -> String {
        let [v0, v3] = self.ours.map(|runs| text(runs.avg));
        format!("{v0} to {v3} ({})", self.delta())
    }
}

impl<'a> Figures<'a> {
    fn cpus(&self) -> usize {
        self.report.machine.cpus
    }

    fn row(&self, table: &str, processes: usize, mode: Mode) -> Option<&'a Row> {
        self.report.table(table)?.row(&[&processes.to_string(), &label(mode)])
    }

    /// The change of the seconds against list-v0.
    fn saving(&self, processes: usize, mode: Mode) -> Option<Delta> {
        Some(Delta::of(self.row("seconds", processes, mode)?.change.as_ref()?))
    }

    fn posted_percent(&self, processes: usize) -> Option<f64> {
        self.row("seconds", processes, Mode::ListV3)?.posting_change_percent
    }

    fn trial(&self, processes: usize, mode: Mode, goal: f64) -> Option<Trial> {
        let (many, alone) = (self.saving(processes, mode)?, self.saving(1, mode)?);
        Some(Trial { processes, many, alone: Some(alone), goal })
    }

    /// "1.18 s to 0.22 s (-81.0 ± 2.6 %)".
    fn seconds_text(&self, processes: usize, mode: Mode) -> Option<String> {
        let v0 = self.row("seconds", processes, Mode::ListV0)?.ours?.avg;
        let this = self.row("seconds", processes, mode)?.ours?.avg;
        Some(format!("{} to {} ({})", seconds(v0), seconds(this), self.saving(processes, mode)?))
    }

    fn posting_seconds_text(&self, processes: usize) -> Option<String> {
        let posted = |mode| Some(self.row("seconds", processes, mode)?.posting?.avg);
        let (vanilla, patched) = (posted(Mode::ListV0)?, posted(Mode::ListV3)?);
        let percent = self.posted_percent(processes)?;
        Some(format!("{} to {} ({percent:+.1} %)", seconds(vanilla), seconds(patched)))
    }

    fn lock_row(&self, name: &str, mode: Mode) -> Option<&'a Row> {
        let table = self.report.table("lockstat")?;
        let name_of = |row: &Row| row.labels[0].split(" [").next() == Some(name);
        table.rows.iter().find(|row| name_of(row) && row.labels[1] == label(mode))
    }

    /// A statistic of all runs of one mode with these processes.
    fn lock_of_all(&self, name: &str, mode: Mode, processes: usize) -> Option<f64> {
        self.report.table("lockstat-all")?.extra(&[&label(mode), &processes.to_string()], name)
    }

    fn statistic(&self, name: &str) -> Option<Statistic> {
        let (v0, v3) = (self.lock_row(name, Mode::ListV0)?, self.lock_row(name, Mode::ListV3)?);
        let alone = |mode| self.lock_of_all(name, mode, 1);
        Some(Statistic {
            posting: [v0.posting?.avg, v3.posting?.avg],
            ours: [v0.ours?, v3.ours?],
            alone: [alone(Mode::ListV0)?, alone(Mode::ListV3)?],
        })
    }

    fn claims(&self) -> Vec<Claim> {
        let mut claims = vec![self.halved(), self.no_cost()];
        claims.extend([4, 10, 20, 40].map(|processes| self.faster(processes)));
        claims.extend([self.contentions(), self.waits(), self.longest_wait(), self.most_contended()]);
        claims.extend([self.work_under_lock(), self.average_hold()]);
        claims.extend([Mode::File, Mode::SingleHandle].map(|mode| self.beyond(mode)));
        claims.push(self.no_lock());
        claims.into_iter().flatten().collect()
    }

    /// What stands above the claims: why some are open for lack of CPUs.
    fn on_cpus(&self, claims: &[Claim]) -> Option<String> {
        let lacks_cpus = |claim: &&Claim| claim.verdict == Verdict::Open && claim.why.contains(NEEDED);
        let open = claims.iter().filter(lacks_cpus).count();
        let alone = self.saving(1, Mode::ListV3).filter(|_| open > 0)?;
        Some(format!(
            " Of all {} claims, {open} are open because this machine has {} CPU{}: N processes contend as in \
             the posting only on N CPUs, or on {CPUS_ENOUGH} if N is larger. Without contention the patches \
             save what one process saves ({alone}); more can only come from contention.",
            claims.len(),
            self.cpus(),
            if self.cpus() == 1 { "" } else { "s" }
        ))
    }

    /// How the time of list-v0 grows from 20 to 40 processes, if by far more than twofold, and what of it is
    /// explained.
    fn jump(&self) -> Option<String> {
        let v0 = |processes| self.row("seconds", processes, Mode::ListV0);
        let (twenty, forty) = (v0(20)?, v0(40)?);
        let (ours, its) = ([twenty.ours?.avg, forty.ours?.avg], [twenty.posting?.avg, forty.posting?.avg]);
        let held = [20, 40].map(|processes| {
            let runs = self.report.number("runs")?;
            Some(self.lock_of_all("holdtime-total", Mode::ListV0, processes)? / 1e6 / runs)
        });
        let [Some(held_twenty), Some(held_forty)] = held else { return None };
        (ours[1] > JUMP * ours[0]).then(|| {
            format!(
                " Not explained: from 20 to 40 processes the time of list-v0 grows from {} to {} (posting: \
                 {} to {}), but the time that its lock is held only from {} to {}; without a list (none) \
                 there is no such jump.",
                seconds(ours[0]),
                seconds(ours[1]),
                seconds(its[0]),
                seconds(its[1]),
                seconds(held_twenty),
                seconds(held_forty)
            )
        })
    }

    fn halved(&self) -> Option<Claim> {
        let all = self.statistic("acquisitions")?;
        let [v0, v3] = all.ours.map(|runs| runs.avg);
        let ratio = v3 / v0.max(1.0);
        let per_truncate = |mode| self.per_truncate("acquisitions", mode);
        Some(Claim {
            claim: "The patches halve the number of acquisitions of the lock (10 processes).".to_owned(),
            posting: all.posting_text(count),
            ours: all.ours_text(count),
            kernel: None,
            verdict: match () {
                () if v0 == 0.0 => Verdict::Open,
                () if (0.45..=0.55).contains(&ratio) => Verdict::Confirmed,
                () => Verdict::Refuted,
            },
            why: format!(
                "A truncate takes the lock {} times in list-v0 and {} times in list-v3. These counts do not \
                 depend on the number of CPUs.",
                figure(per_truncate(Mode::ListV0)?),
                figure(per_truncate(Mode::ListV3)?)
            ),
            tables: strings(&["lockstat"]),
        })
    }

    /// With one process and with two the posting has no effect; so there must be no loss.
    fn no_cost(&self) -> Option<Claim> {
        let changes = [self.saving(1, Mode::ListV3)?, self.saving(2, Mode::ListV3)?];
        let is_slower = |change: &Delta| change.half.map(|half| change.percent - half > 0.0);
        let slower = changes.iter().map(is_slower).collect::<Option<Vec<bool>>>();
        let (verdict, why) = match slower.as_deref() {
            None => (Verdict::Open, "A single run has no confidence interval."),
            Some([false, false]) => {
                (Verdict::Confirmed, "At 95 % confidence, neither is slower than list-v0.")
            }
            Some(_) => (Verdict::Refuted, "At 95 % confidence, one of them is slower than list-v0."),
        };
        let texts = |of: &dyn Fn(usize) -> Option<String>| Some(format!("{}; {}", of(1)?, of(2)?));
        Some(Claim {
            claim: "With 1 or 2 processes the patches do not slow the test program down.".to_owned(),
            posting: texts(&|processes| self.posting_seconds_text(processes))?,
            ours: texts(&|processes| self.seconds_text(processes, Mode::ListV3))?,
            kernel: self.patched_kernel(),
            verdict,
            why: why.to_owned(),
            tables: strings(&["seconds", "against-v0"]),
        })
    }

    fn faster(&self, processes: usize) -> Option<Claim> {
        let posted = self.posted_percent(processes)?;
        let trial = self.trial(processes, Mode::ListV3, posted / 2.0)?;
        Some(Claim {
            claim: format!("With {processes} processes the patches save {:.0} % of the time.", -posted),
            posting: self.posting_seconds_text(processes)?,
            ours: self.seconds_text(processes, Mode::ListV3)?,
            kernel: self.patched_kernel(),
            verdict: trial.verdict(self.cpus()),
            why: trial.why(self.cpus(), &TIMES)
                + self.jump().filter(|_| processes == 40).as_deref().unwrap_or_default(),
            tables: strings(&["seconds", "against-v0"]),
        })
    }

    /// The kernel's column of a claim that compares list-v3 with list-v0.
    fn patched_kernel(&self) -> Option<String> {
        self.row("seconds", LOCKSTAT_WORKERS, Mode::File)?.kernel?;
        Some("no comparison: this kernel has the patches".to_owned())
    }

    /// A claim about contention or waits, if list-v0 has enough of them.
    fn on_contention(&self, all: &Statistic, words: &Words, claim: Claim) -> Option<Claim> {
        let contentions = self.lock_row("contentions", Mode::ListV0)?.ours?.avg;
        let cpus = self.cpus();
        let trial = all.trial();
        if contentions < CONTENTIONS_MIN {
            let why = format!("A run of list-v0 has {contentions:.0} contentions, too few to compare.");
            return Some(Claim { verdict: Verdict::Open, why, ..claim });
        }
        Some(Claim { verdict: trial.verdict(cpus), why: trial.why(cpus, words), ..claim })
    }

    /// A claim about the lock with 10 processes that is still without a verdict.
    fn about_lock(claim: &str, posting: String, ours: String) -> Claim {
        Claim {
            claim: claim.to_owned(),
            posting,
            ours,
            kernel: None,
            verdict: Verdict::Open,
            why: String::new(),
            tables: strings(&["lockstat", "lockstat-all"]),
        }
    }

    fn contentions(&self) -> Option<Claim> {
        let all = self.statistic("contentions")?;
        let [on_another, acquired] = [self.statistic("con-bounces")?, self.statistic("acq-bounces")?];
        let text = |of: &dyn Fn(&Statistic) -> String| {
            let [all, on_another, acquired] = [&all, &on_another, &acquired].map(of);
            format!("{all}; con-bounces {on_another}; acq-bounces {acquired}")
        };
        let claim = Self::about_lock(
            "The patches reduce the contentions of the lock significantly (10 processes).",
            text(&|statistic| statistic.posting_text(count)),
            text(&|statistic| statistic.ours_text(count)),
        );
        let contended = |[contentions, all]: [f64; 2]| contentions / all.max(1.0) * 100.0;
        let taken = self.statistic("acquisitions")?;
        let mut claim = self.on_contention(&all, &TIMES, claim)?;
        claim.why += &format!(
            " Of the acquisitions of list-v0, {:.0} % are contended, in the posting {:.0} %.",
            contended([all.ours[0].avg, taken.ours[0].avg]),
            contended([all.posting[0], taken.posting[0]])
        );
        Some(claim)
    }

    fn waits(&self) -> Option<Claim> {
        let (total, average) = (self.statistic("waittime-total")?, self.statistic("waittime-avg")?);
        let claim = Self::about_lock(
            "The patches reduce the total wait for the lock (10 processes).",
            format!("{} in total; {} on average", total.posting_text(time), average.posting_text(time)),
            format!("{} in total; {} on average", total.ours_text(time), average.ours_text(time)),
        );
        self.on_contention(&total, &WAITS, claim)
    }

    fn longest_wait(&self) -> Option<Claim> {
        let longest = self.statistic("waittime-max")?;
        let claim = Self::about_lock(
            "The patches remove the longest waits for the lock (10 processes).",
            longest.posting_text(time),
            longest.ours_text(time),
        );
        self.on_contention(&longest, &WAITS, claim)
    }

    /// Of all time of the processes, the part that is a wait for the lock, in per cent. Above a half, no
    /// other lock can have more.
    fn wait_percent(&self, mode: Mode) -> Option<f64> {
        let seconds = self.row("seconds", LOCKSTAT_WORKERS, mode)?.ours?.avg;
        Some(self.lock_row("waittime-total", mode)?.ours?.avg / 1e4 / (seconds * LOCKSTAT_WORKERS as f64))
    }

    fn most_contended(&self) -> Option<Claim> {
        let (v0, v3) = (self.wait_percent(Mode::ListV0)?, self.wait_percent(Mode::ListV3)?);
        let (cpus, trial) = (self.cpus(), self.statistic("waittime-total")?.trial());
        let claim = Self::about_lock(
            "The orphan lock is the most contended lock, also with the patches (10 processes).",
            "first in both lockstat reports".to_owned(),
            format!("waits for it take {v0:.0} % of the processes' time in list-v0, {v3:.0} % in list-v3"),
        );
        let (verdict, why) = match () {
            () if cpus < trial.cpus_needed() => (
                Verdict::Open,
                format!(
                    "{} With {cpus}, each process waits {:.0} % of the time in any case, for the lock or for \
                     a CPU.",
                    trial.too_few_cpus(cpus, ""),
                    (1.0 - cpus as f64 / LOCKSTAT_WORKERS as f64) * 100.0
                ),
            ),
            () if v0.min(v3) > 50.0 => (
                Verdict::Confirmed,
                "The processes wait for this lock more than half of the time, so no other lock can take \
                 more."
                    .to_owned(),
            ),
            () => (Verdict::Open, "The waits for other locks are not measured.".to_owned()),
        };
        Some(Claim { verdict, why, ..claim })
    }

    fn work_under_lock(&self) -> Option<Claim> {
        let all = self.statistic("holdtime-total")?;
        let (trial, cpus) = (all.trial(), self.cpus());
        let claim = Self::about_lock(
            "The patches reduce the total hold time of the lock significantly (10 processes).",
            all.posting_text(time),
            all.ours_text(time),
        );
        Some(Claim { verdict: trial.verdict(cpus), why: all.why_of_hold(cpus), ..claim })
    }

    fn average_hold(&self) -> Option<Claim> {
        let (all, shortest) = (self.statistic("holdtime-avg")?, self.statistic("holdtime-min")?);
        let (trial, cpus) = (all.trial(), self.cpus());
        let mut why = all.why_of_hold(cpus);
        let [v0, v3] = shortest.ours.map(|runs| runs.avg);
        if trial.seen().0 == Seen::Opposite && v3 > v0 {
            why += &format!(
                " list-v3 leaves out the short holds (the shortest takes {} in list-v0, {} in list-v3), so \
                 the average of the others is higher here. In the posting, the shortest takes {} without \
                 the patches and {} with them.",
                time(v0),
                time(v3),
                time(shortest.posting[0]),
                time(shortest.posting[1])
            );
        }
        let claim = Self::about_lock(
            "The patches reduce the average hold time of the lock somewhat (10 processes).",
            all.posting_text(time),
            all.ours_text(time),
        );
        Some(Claim { verdict: trial.verdict(cpus), why, ..claim })
    }

    /// The savings of a mode of ours with 10 and with 40 processes, against the full savings of the posting.
    fn beyond(&self, mode: Mode) -> Option<Claim> {
        let posted = [self.posted_percent(10)?, self.posted_percent(40)?];
        let trials = [self.trial(10, mode, posted[0])?, self.trial(40, mode, posted[1])?];
        let cpus = self.cpus();
        let verdicts = trials.each_ref().map(|trial| trial.verdict(cpus));
        let verdict = match verdicts {
            [Verdict::Confirmed, Verdict::Confirmed] => Verdict::Beaten,
            all if all.contains(&Verdict::Refuted) => Verdict::Refuted,
            _ => Verdict::Open,
        };
        let alone = trials[0].alone?;
        let mut why = match verdict {
            Verdict::Beaten if alone.seen(posted[0].min(posted[1])) == Seen::Effect => format!(
                "At 95 % confidence, both savings exceed the posting's. One process alone saves more than \
                 that, too ({alone}), so the number of CPUs does not explain it."
            ),
            Verdict::Beaten => "At 95 % confidence, both savings exceed the posting's.".to_owned(),
            _ => {
                let at = usize::from(verdicts[0] == Verdict::Confirmed);
                trials[at].why(cpus, &BEYOND)
            }
        };
        let name = match mode {
            Mode::SingleHandle => {
                why += " Here each truncate is a single transaction, for which the default records nothing.";
                "the default (single-handle)"
            }
            _ => "the orphan file",
        };
        why += self.jump().map_or("", |_| {
            " The jump of list-v0 at 40 processes, which is not explained, \
                                           makes the saving there larger."
        });
        let kernel = |processes| self.row("seconds", processes, Mode::File)?.kernel;
        let kernel = kernel(10).zip(kernel(40)).map(|(ten, forty)| {
            format!(
                "{} with 10 processes, {} with 40 (orphan file, system calls included)",
                seconds(ten.avg),
                seconds(forty.avg)
            )
        });
        Some(Claim {
            claim: format!(
                "Beyond the posting: {name} saves more time than the patches did, with 10 processes and with \
                 40."
            ),
            posting: format!("{:+.1} % with 10 processes, {:+.1} % with 40", posted[0], posted[1]),
            ours: format!(
                "{} with 10 processes, {} with 40",
                self.seconds_text(10, mode)?,
                self.seconds_text(40, mode)?
            ),
            kernel,
            verdict,
            why,
            tables: strings(&["seconds", "against-v0"]),
        })
    }

    fn no_lock(&self) -> Option<Claim> {
        let table = self.report.table("lockstat-all")?;
        let rows = table.rows.iter().filter(|row| row.labels[0] == label(Mode::File));
        let most = rows.filter_map(|row| Some(row.ours?.max)).reduce(f64::max)?;
        let all = self.statistic("acquisitions")?;
        Some(Claim {
            claim: "Beyond the posting: the orphan file never takes the lock.".to_owned(),
            posting: format!(
                "{} acquisitions with the patches, half of those without",
                count(all.posting[1])
            ),
            ours: format!(
                "{} with 1 to 40 processes; list-v3 {} with 10",
                if most == 0.0 { "no acquisition".to_owned() } else { format!("up to {}", count(most)) },
                count(all.ours[1].avg)
            ),
            kernel: None,
            verdict: if most == 0.0 { Verdict::Beaten } else { Verdict::Refuted },
            why: match most {
                0.0 => "Each orphan has its own slot in the orphan file, so there is no common list to lock.",
                _ => "The orphan file was full, and orphans went to the list.",
            }
            .to_owned(),
            tables: strings(&["lockstat", "lockstat-all"]),
        })
    }

    fn per_truncate(&self, name: &str, mode: Mode) -> Option<f64> {
        self.report.table("lockstat")?.extra(&[name, &label(mode)], "per truncate")
    }

    fn notes(&self) -> Vec<(&'static str, String)> {
        let notes = [
            ("seconds", self.note_on_seconds()),
            ("against-v0", self.note_on_changes()),
            ("lockstat", self.note_on_lockstat()),
            ("lockstat-all", self.note_on_all_locks()),
            ("creat-clo", self.note_on_creations()),
        ];
        notes.into_iter().filter_map(|(table, note)| Some((table, note?))).collect()
    }

    fn note_on_seconds(&self) -> Option<String> {
        let table = self.report.table("seconds")?;
        let loops = self.report.number("loops of a process")?;
        let mut note = format!(
            "In each of its {loops} loops, a process truncates its file of {FILE_BYTES} bytes by 1 byte \
             until 1 byte is left. The seconds depend on the number of loops, which the posting does not \
             give: compare modes with each other, not our seconds with the posting's."
        );
        if table.rows.iter().any(|row| row.kernel.is_some()) {
            note += " The kernel's ext4 stands in the rows \"file\", because `--kernel` without a directory \
                     mounts a file system with an orphan file. The kernel's times include system calls.";
        }
        note += self.jump().as_deref().unwrap_or_default();
        Some(note)
    }

    /// Where list-v3 saves at least half of what the posting's patches save, and where less. One process and
    /// two are apart: the posting saves almost nothing there.
    fn note_on_changes(&self) -> Option<String> {
        let table = self.report.table("against-v0")?;
        let (mut small, mut enough, mut less) = (Vec::new(), Vec::new(), Vec::new());
        for processes in WIDTHS {
            let Some(row) = self.row("against-v0", processes, Mode::ListV3) else { continue };
            let (Some(ours), Some(posting)) = (row.ours, row.posting) else { continue };
            let text = (processes, format!("(ours {:+.1} %, posting {:+.1} %)", ours.avg, posting.avg));
            match () {
                () if processes <= 2 => small.push(text),
                () if ours.avg <= posting.avg / 2.0 => enough.push(text),
                () => less.push(text),
            }
        }
        let mut note = String::new();
        for (those, start) in [
            (&enough, "list-v3 reaches at least half of the posting's saving with"),
            (&less, "It reaches less than half of that saving with"),
            (&small, "The posting saves almost nothing with"),
        ] {
            let Some((last, _)) = those.last() else { continue };
            let with_unit = |(processes, text): &(usize, String)| {
                let unit = if processes == last { " processes" } else { "" };
                format!("{processes}{unit} {text}")
            };
            let those: Vec<String> = those.iter().map(with_unit).collect();
            note += &format!("{start} {}. ", listed(&those));
        }
        note += "Each change is the mean of the changes against list-v0 in the same run. The claims compare \
                 the means of all runs, as the posting does.";
        if table.rows.iter().any(|row| row.kernel.is_some()) {
            note += " The kernel's figures compare the kernel's ext4 (orphan file, system calls included) \
                     with our list-v0, not with a kernel without the patches.";
        }
        Some(note)
    }

    fn note_on_lockstat(&self) -> Option<String> {
        let per_truncate = |mode| Some(figure(self.per_truncate("acquisitions", mode)?));
        let (shortest, longest) = (self.statistic("holdtime-min")?, self.statistic("holdtime-max")?);
        let posted = |all: &Statistic| all.posting.map(time).join(" to ");
        let ours = |all: &Statistic| all.ours.map(|runs| time(runs.avg)).join(" to ");
        Some(format!(
            "A truncate takes the lock {} times in list-v0, {} times in list-v3 and {} times in file. The \
             posting's counts are 4 and 2 for each truncate, if its processes made 100 loops. A bounce is \
             an acquisition (acq-bounces) or a contention (con-bounces) on another CPU than the acquisition \
             before it. From list-v0 to list-v3, the shortest hold goes from {} (posting: {}), and the \
             longest from {} (posting: {}).",
            per_truncate(Mode::ListV0)?,
            per_truncate(Mode::ListV3)?,
            per_truncate(Mode::File)?,
            ours(&shortest),
            posted(&shortest),
            ours(&longest),
            posted(&longest)
        ))
    }

    fn note_on_all_locks(&self) -> Option<String> {
        self.report.table("lockstat-all")?;
        Some(
            "The first figure is the number of acquisitions of one run. The columns of lockstat are over all \
             runs: sums of counts and of total times, the smallest minimum, the largest maximum, and \
             averages. The modes single-handle and none never record an orphan here, so they have no rows."
                .to_owned(),
        )
    }

    fn note_on_creations(&self) -> Option<String> {
        let loops = self.report.number("loops of a process, creat-clo")?;
        let most = WIDTHS.into_iter().rev().find(|processes| {
            self.row("creat-clo", *processes, Mode::ListV3).is_some_and(|row| row.change.is_some())
        })?;
        let change = |mode| Some(Delta::of(self.row("creat-clo", most, mode)?.change.as_ref()?).to_string());
        Some(format!(
            "The posting has no such load. In each of its {loops} loops, a process creates and closes \
             {FILES} files and then unlinks them. With {most} processes, the rate changes against list-v0 \
             by {} in list-v3, {} in file and {} in single-handle.",
            change(Mode::ListV3)?,
            change(Mode::File)?,
            change(Mode::SingleHandle)?
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::report;
    use super::*;
    use crate::orphans::{Load, Report, Study, run};
    use crate::report::Machine;
    use crate::studies::Size;

    /// Two reports of one process, with the rows of the other numbers of processes copied from it.
    fn measured() -> (Report, Report) {
        let study = Study { runs: 2, loops: Some(1), size: 64 << 20, widths: vec![1], ..Study::default() };
        let creat = Study { load: Load::CreatClo, ..study.clone() };
        let [truncate, creat] = [study, creat].map(|study| {
            let mut all = run(&study, &crate::Quiet).unwrap();
            let of_one = all.rows.clone();
            for workers in &WIDTHS[1..] {
                all.rows.extend(
                    of_one.iter().cloned().map(|row| crate::orphans::Row { workers: *workers, ..row }),
                );
            }
            all
        });
        (truncate, creat)
    }

    /// The seconds of a mode with some numbers of processes, and its total hold times in all runs.
    fn set(all: &mut Report, mode: Mode, is_those: impl Fn(usize) -> bool, factor: f64) {
        for row in all.rows.iter_mut().filter(|row| row.mode == mode && is_those(row.workers)) {
            row.runs = vec![factor, factor * 1.001];
            row.seconds = Summary::of(&row.runs);
            for (at, lock) in row.locks.iter_mut().enumerate() {
                lock.hold_total_us = 1e6 * row.runs[at];
            }
            if let Some(lock) = &mut row.lock {
                lock.hold_total_us = 2e6 * factor;
            }
        }
    }

    fn judged((truncate, creat): &(Report, Report), cpus: usize) -> StudyReport {
        let machine = Machine { cpus, ..Machine::this() };
        let mut report = report(truncate, creat, machine, Size::Quick);
        judge(&mut report);
        report
    }

    /// The verdicts on the time with 4, 10, 20 and 40 processes, and on the total hold time with 10.
    fn verdicts(measured: &(Report, Report), cpus: usize) -> Vec<Verdict> {
        let report = judged(measured, cpus);
        let is_one =
            |claim: &&Claim| claim.claim.contains("of the time.") || claim.claim.contains("total hold time");
        report.claims.iter().filter(is_one).map(|claim| claim.verdict).collect()
    }

    #[test]
    fn one_rule_about_cpus_for_all_numbers_of_processes() {
        use Verdict::{Confirmed, Open, Refuted};
        let mut all = measured();
        set(&mut all.0, Mode::ListV0, |_| true, 1.0);
        set(&mut all.0, Mode::ListV3, |_| true, 1.0);
        // No effect: open as long as CPUs are missing.
        assert_eq!(verdicts(&all, 2), [Open; 5]);
        assert_eq!(verdicts(&all, 4), [Refuted, Open, Open, Open, Open]);
        assert_eq!(verdicts(&all, 10), [Refuted; 5]);
        // The posting's effect, but not with one process.
        set(&mut all.0, Mode::ListV3, |workers| workers > 1, 0.3);
        assert_eq!(verdicts(&all, 2), [Open; 5]);
        assert_eq!(verdicts(&all, 4), [Confirmed, Open, Open, Open, Open]);
        assert_eq!(verdicts(&all, 10), [Confirmed; 5]);
        // With one process, too: the number of CPUs does not matter for times. Hold times need CPUs.
        set(&mut all.0, Mode::ListV3, |_| true, 0.3);
        assert_eq!(verdicts(&all, 2), [Confirmed, Confirmed, Confirmed, Confirmed, Open]);
        // The opposite, with one process, too.
        set(&mut all.0, Mode::ListV3, |_| true, 1.5);
        assert_eq!(verdicts(&all, 2), [Refuted, Refuted, Refuted, Refuted, Open]);
    }

    #[test]
    fn a_form_of_ours_beats_the_posting_only_by_its_full_saving() {
        let mut all = measured();
        set(&mut all.0, Mode::ListV0, |_| true, 1.0);
        let verdict = |all: &(Report, Report), cpus| {
            let report = judged(all, cpus);
            let claim = report.claims.iter().find(|claim| claim.claim.contains("the orphan file saves"));
            claim.unwrap().verdict
        };
        set(&mut all.0, Mode::File, |_| true, 0.7);
        assert_eq!((verdict(&all, 2), verdict(&all, 10)), (Verdict::Open, Verdict::Refuted));
        set(&mut all.0, Mode::File, |workers| workers > 1, 0.5);
        assert_eq!((verdict(&all, 2), verdict(&all, 10)), (Verdict::Open, Verdict::Beaten));
        set(&mut all.0, Mode::File, |_| true, 0.5);
        assert_eq!(verdict(&all, 2), Verdict::Beaten);
    }

    /// Claims and notes need nothing but what a report on disk has. (The test of the committed reports in
    /// extant-lab-report reads them back from JSON.)
    #[test]
    fn a_report_without_claims_and_notes_gets_the_same_again() {
        let report = judged(&measured(), 2);
        assert_eq!(report.claims.len(), 15);
        assert_eq!(report.claims[0].verdict, Verdict::Confirmed, "{:?}", report.claims[0]);
        assert!(report.claims.iter().all(|claim| !claim.why.is_empty() && !claim.tables.is_empty()));
        let mut again = report.clone();
        again.claims.clear();
        for table in &mut again.tables {
            assert!(!table.note.is_empty(), "{}", table.id);
            table.note.clear();
        }
        for _ in 0..2 {
            judge(&mut again);
            assert!(again == report);
        }
        assert!(report.question.contains("open because this machine has 2 CPUs"), "{}", report.question);
        assert!(!report.claims.iter().any(|claim| claim.why.contains("claims")), "{:?}", report.claims);
        // A report without tables, such as one of another version, has no claims.
        again.tables.clear();
        judge(&mut again);
        assert!(again.claims.is_empty());
    }

    #[test]
    fn counts_have_commas() {
        assert_eq!([0.0, 999.0, 1000.0, 16_381_236.0].map(count), ["0", "999", "1,000", "16,381,236"]);
    }
}
