//! Runs of the sweep, and the verdict on each.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::Ino;
use extant_simdisk::{EIO, Effect, Faulty, Image, Op, Rule, SimDisk};
use extant_volume::{Allocate, Fault, New, SetAttr, Volume};

use super::law::{after_abort, is_one_of, may_be_left, states_of};
use super::picture::{How, Picture, Shown, differences};
use super::step::{is_refusal, pattern};
use super::{Case, Step, World, cases};
use crate::{e2fsck_says, to_file};

type Disk = Arc<Faulty<SimDisk>>;

/// What follows the operation while faults are armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    Nothing,
    Fsync,
    Sync,
    Close,
}

/// A failure: the `n`th call of a kind fails, and maybe calls after it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failing {
    what: Op,
    effect: Effect,
    times: u64,
    tail: Tail,
}

impl Failing {
    /// All kinds of failures. A readahead may take the first failure; then the second one hits the read that
    /// needs the bytes.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let (fail, after) = (Effect::Fail(EIO), Effect::FailAfter(EIO));
        let mut all = Vec::new();
        for tail in [Tail::Nothing, Tail::Sync, Tail::Close] {
            all.extend([1, 2, u64::MAX].map(|times| Self { what: Op::Read, effect: fail, times, tail }));
        }
        for tail in [Tail::Nothing, Tail::Fsync, Tail::Sync, Tail::Close] {
            for what in [Op::Write, Op::Flush] {
                for (effect, times) in [(fail, 1), (after, 1), (fail, u64::MAX)] {
                    all.push(Self { what, effect, times, tail });
                }
            }
        }
        all
    }
}

/// The operation on the file after the failure. [`End`] is how the volume ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follow {
    Nothing,
    Reserve,
    Append,
    Grow,
    Overwrite,
    Cut,
    New,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    SyncAndClose,
    CrashAfterSync,
    CrashAfterFsync,
}

const FOLLOWS: [Follow; 7] = [
    Follow::Nothing,
    Follow::Reserve,
    Follow::Append,
    Follow::Grow,
    Follow::Overwrite,
    Follow::Cut,
    Follow::New,
];
const ENDS: [End; 4] = [End::Close, End::CrashAfterFsync, End::SyncAndClose, End::CrashAfterSync];

/// Which runs to make.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// One in this many of all pairs of a case and a failure; the seed chooses.
    pub one_in: u64,
    /// The seed.
    pub seed: u64,
    /// Only this case.
    pub case: Option<usize>,
    /// Only this failure.
    pub failing: Option<usize>,
    /// Only this number of the failing call.
    pub number: Option<u64>,
    /// e2fsck judges one in this many runs.
    pub e2fsck_one_in: u64,
}

/// Counts of runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Runs in which something failed.
    pub runs: u64,
    /// Those of them that aborted the journal.
    pub aborted: u64,
    /// Those of them that lost bytes and reported it.
    pub lost: u64,
    /// Those of them that e2fsck judged.
    pub e2fsck: u64,
}

/// The state that a case shows when nothing fails.
struct Expected {
    base: Arc<Picture>,
    before: Picture,
    after: Picture,
    answer: Result<u64, i32>,
}

/// The runs of one world.
pub struct Sweep {
    world: World,
    image: Image,
    base: Arc<Picture>,
    grid: Grid,
    /// Counts so far.
    pub counts: Counts,
    /// The violations, each with the names that repeat its run.
    pub violations: Vec<String>,
}

impl Sweep {
    /// A sweep of a world.
    ///
    /// # Panics
    /// The file system cannot be made.
    #[must_use]
    pub fn new(world: World, grid: Grid) -> Self {
        let image = world.image();
        let volume = Volume::open(disk(&image), &world.options()).expect("it was closed");
        let base = Arc::new(Picture::take(&volume).expect("memory does not fail"));
        Self { world, image, base, grid, counts: Counts::default(), violations: Vec::new() }
    }

    /// Makes all runs of the grid.
    pub fn run(&mut self) {
        for (at, case) in cases(self.world).iter().enumerate() {
            if self.grid.case.is_none_or(|only| only == at) {
                self.run_case(at, case);
            }
        }
    }

    fn run_case(&mut self, at: usize, case: &Case) {
        let mut expected = None;
        for (which, failing) in Failing::all().iter().enumerate() {
            let number = at as u64 * 64 + which as u64;
            let is_chosen = extant_fsmodel::Rng::new(number ^ self.grid.seed << 32).one_in(self.grid.one_in);
            if !is_chosen || self.grid.failing.is_some_and(|only| only != which) {
                continue;
            }
            let expected = expected.get_or_insert_with(|| self.expect(case));
            let expected = match expected {
                Ok(expected) => expected,
                Err(why) => {
                    self.violations
                        .push(format!("{:?}, case {at}, {case:?}: nothing fails: {why}", self.world));
                    return;
                }
            };
            for n in 1.. {
                if self.grid.number.is_some_and(|only| only != n) {
                    if self.grid.number.is_some_and(|only| only < n) {
                        break;
                    }
                    continue;
                }
                let follow = FOLLOWS[((number + n) % FOLLOWS.len() as u64) as usize];
                let end = ENDS[((number / 7 + n) % ENDS.len() as u64) as usize];
                let run = CrashRun { world: self.world, case, failing: *failing, n, follow, end };
                match run.judge(&self.image, expected) {
                    Ok(Done { is_hit: false, .. }) => break,
                    Ok(done) => self.note(done, &run, (at, which)),
                    Err(why) => {
                        self.counts.runs += 1;
                        self.violations.push(run.report((at, which), &why));
                    }
                }
            }
        }
    }

    fn note(&mut self, done: Done, run: &CrashRun<'_>, place: (usize, usize)) {
        self.counts.runs += 1;
        self.counts.aborted += u64::from(done.is_aborted);
        self.counts.lost += u64::from(done.is_lost);
        if done.is_sound && self.counts.runs.is_multiple_of(self.grid.e2fsck_one_in.max(1)) {
            self.counts.e2fsck += 1;
            let scratch = extant_testkit::scratch();
            let path = scratch.path().join("image");
            let said = to_file(done.disk.inner(), &path).map_err(|error| error.to_string());
            if let Err(why) = said.and_then(|()| e2fsck_says(&path)) {
                self.violations.push(run.report(place, &why));
            }
        }
    }

    fn expect(&self, case: &Case) -> Result<Expected, String> {
        let volume =
            Volume::open(disk(&self.image), &self.world.options()).map_err(|fault| fault.to_string())?;
        prepare(&volume, case)?;
        let before = Picture::take(&volume)?;
        let answer = call(&volume, case.step, STEP);
        let answer = answer.map_err(|fault| fault.errno());
        let after = Picture::take(&volume)?;
        Ok(Expected { base: Arc::clone(&self.base), before, after, answer })
    }
}

fn disk(image: &Image) -> Disk {
    Arc::new(Faulty::new(SimDisk::from_image(image.clone())))
}

/// Seeds of the bytes: of the operation, and of the operations after it.
const STEP: u32 = 2000;
const FOLLOW: u32 = 3000;

fn call(volume: &Volume, step: Step, number: u32) -> Result<u64, Fault> {
    step.call(volume, number)?(volume)
}

fn prepare(volume: &Volume, case: &Case) -> Result<(), String> {
    for (step, number) in case.before.iter().zip(1000..) {
        match call(volume, *step, number) {
            Err(fault) if !is_refusal(&fault) => return Err(format!("{step:?}: {fault}")),
            _ => {}
        }
    }
    Ok(())
}

/// The outcome of a run.
struct Done {
    is_hit: bool,
    is_aborted: bool,
    is_lost: bool,
    /// Whether e2fsck may judge the disk.
    is_sound: bool,
    disk: Disk,
}

struct CrashRun<'a> {
    world: World,
    case: &'a Case,
    failing: Failing,
    n: u64,
    follow: Follow,
    end: End,
}

impl CrashRun<'_> {
    fn report(&self, (case, failing): (usize, usize), why: &str) -> String {
        let Failing { what, effect, times, tail } = self.failing;
        let times = if times == u64::MAX { "forever".to_owned() } else { format!("{times} times") };
        format!(
            "{:?} {:?}, then {tail:?}: {what:?} {} {effect:?} {times}; then {:?}, {:?}: {why}\n    repeat: --world {:?} --case \
             {case} --failing {failing} --number {}",
            self.case.before, self.case.step, self.n, self.follow, self.end, self.world, self.n
        )
    }

    fn judge(&self, image: &Image, expected: &Expected) -> Result<Done, String> {
        let disk = disk(image);
        let volume = Volume::open(disk.clone(), &self.world.options()).map_err(|fault| fault.to_string())?;
        prepare(&volume, self.case)?;
        let step = self.case.step;
        let prepared = step.call(&volume, STEP).map_err(|fault| fault.errno());
        let Failing { what, effect, times, tail } = self.failing;
        let rule = disk.arm(Rule::new(what, effect).nth(self.n).times(times));
        let mut faults = Vec::new();
        let answer = prepared.and_then(|prepared| {
            prepared(&volume).map_err(|fault| {
                let errno = fault.errno();
                faults.push(fault.to_string());
                errno
            })
        });
        let synced = match tail {
            Tail::Nothing => Ok(()),
            Tail::Fsync => self.own(&volume).map_or(Ok(()), |ino| volume.files().fsync(ino)),
            Tail::Sync => volume.sync(),
            Tail::Close => {
                let closed = volume.close();
                let is_hit = disk.hits(rule) > 0;
                disk.disarm_all();
                return self.judge_closed(disk, is_hit, closed, answer, expected);
            }
        };
        let is_hit = disk.hits(rule) > 0;
        disk.disarm_all();
        if !is_hit {
            return Ok(Done { is_hit, is_aborted: false, is_lost: false, is_sound: false, disk });
        }
        let faults = faults.concat();
        if volume.aborted().is_some() {
            self.judge_aborted(&volume, expected)
                .map_err(|why| format!("{answer:?} {faults}, aborted: {why}"))?;
            drop(volume);
            return self
                .judge_stages(disk, expected, None, None)
                .map_err(|why| format!("{answer:?} {faults}, aborted: {why}"));
        }
        self.judge_memory(&volume, answer, expected).map_err(|why| format!("{answer:?} {faults}: {why}"))?;
        let answered = format!(
            "{answer:?} {faults}, {}",
            synced.as_ref().map_or_else(ToString::to_string, |()| "synced".to_owned())
        );
        self.go_on(volume, disk, synced.is_err(), expected).map_err(|why| format!("{answered}: {why}"))
    }

    /// The file that the case concerns, while it exists.
    fn own(&self, volume: &Volume) -> Option<Ino> {
        let path = self.case.own();
        volume
            .names()
            .resolve(path.as_bytes(), extant_volume::Follow::NotTheLast)
            .ok()
            .map(|inode| inode.ino())
    }

    /// Memory must show the state before the operation, or the state that the operation reported.
    fn judge_memory(
        &self,
        volume: &Volume,
        answer: Result<u64, i32>,
        expected: &Expected,
    ) -> Result<(), String> {
        let found = Picture::take(volume).map_err(|why| format!("cannot be looked at: {why}"))?;
        check_files(volume, &found)?;
        let step = self.case.step;
        let is_short =
            matches!((answer, expected.answer), (Ok(less), Ok(all)) if less < all) && step.may_be_short();
        let (wanted, in_parts) = match (answer, expected.answer) {
            (answer, wanted) if answer == wanted => (&expected.after, false),
            _ if is_short => (&expected.after, true),
            (Err(_), _) => (&expected.before, step.is_in_parts()),
            (Ok(_), _) => return Err(format!("where nothing fails it is {:?}", expected.answer)),
        };
        let states = [&expected.before, &expected.after];
        let stages = [&*expected.base, &expected.before, &expected.after];
        let excepted = |path: &[u8], _: &_, found: &Shown| {
            let is_part = in_parts && may_be_left(&step, path, found, states);
            // Bytes that could not be written back may have been dropped from memory.
            is_part
                || volume.files().had_errors(found.ino) && is_one_of(found, &states_of(&stages, path, found))
        };
        all_or(&differences(wanted, &found, How::Runs, &excepted), "memory")
    }

    /// An aborted volume must refuse every change and stay readable.
    fn judge_aborted(&self, volume: &Volume, expected: &Expected) -> Result<(), String> {
        Picture::take(volume).map_err(|why| format!("cannot be looked at: {why}"))?;
        let refused = |what: &str, answer: Result<(), Fault>| match answer {
            Err(fault) if matches!(fault.errno(), 5 | 30) => Ok(()),
            answer => Err(format!("{what} after the abort: {answer:?}")),
        };
        let new = volume.names().create(Ino::ROOT, b"after-abort", &New::file(0o644));
        refused("a new file", new.map(drop))?;
        let times = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let even = expected.base.get("even").expect("every world has it").ino;
        if volume.inode(even).is_ok() {
            refused("a change of mode", volume.attributes().set_attr(even, &times).map(drop))?;
            let cut = SetAttr { size: Some(7), ..SetAttr::default() };
            refused("a cut", volume.attributes().set_attr(even, &cut).map(drop))?;
            refused("fsync", volume.files().fsync(even))?;
        }
        refused("sync", volume.sync())
    }

    /// The disk must have, for each path, its state at one of the steps.
    fn judge_stages(
        &self,
        disk: Disk,
        expected: &Expected,
        whole: Option<&Picture>,
        more: Option<&Picture>,
    ) -> Result<Done, String> {
        let done = |is_sound, disk| Done { is_hit: true, is_aborted: true, is_lost: false, is_sound, disk };
        if !self.world.has_journal() {
            return Ok(done(false, disk));
        }
        let (found, volume) = self.reopen(&disk)?;
        let stages: Vec<&Picture> =
            [&*expected.base, &expected.before, &expected.after].into_iter().chain(more).collect();
        match whole {
            Some(whole) => all_or(&differences(whole, &found, How::Runs, &|_, _, _| false), "closed")?,
            None => {
                let parts = self.case.step.file().filter(|_| self.case.step.is_in_parts());
                let lines = after_abort(&found, &stages);
                let is_own =
                    |line: &String| parts.is_some_and(|own| line.starts_with(&format!("/{own} is as")));
                all_or(&lines.into_iter().filter(|line| !is_own(line)).collect::<Vec<_>>(), "opened again")?;
            }
        }
        self.conclude(volume, &disk)?;
        Ok(done(true, disk))
    }

    fn judge_closed(
        &self,
        disk: Disk,
        is_hit: bool,
        closed: Result<(), Fault>,
        answer: Result<u64, i32>,
        expected: &Expected,
    ) -> Result<Done, String> {
        if !is_hit {
            return Ok(Done { is_hit, is_aborted: false, is_lost: false, is_sound: false, disk });
        }
        let is_whole = answer == expected.answer;
        let whole = (closed.is_ok() && is_whole).then_some(&expected.after);
        let is_closed = closed.is_ok();
        let judged = self.judge_stages(disk, expected, whole, None);
        let judged = judged.map_err(|why| format!("{answer:?}, closing {closed:?}: {why}"))?;
        Ok(Done { is_aborted: !is_closed, ..judged })
    }

    /// Makes one more change to the file. The disk must then have everything that is acknowledged.
    fn go_on(
        &self,
        volume: Volume,
        disk: Disk,
        was_reported: bool,
        expected: &Expected,
    ) -> Result<Done, String> {
        let own = self.own(&volume);
        if let Some(ino) = own {
            match self.follow(&volume, ino) {
                Err(fault) if !is_refusal(&fault) && volume.aborted().is_none() => {
                    return Err(format!("afterwards: {fault}"));
                }
                _ => {}
            }
        }
        let mut is_lost = was_reported;
        let stage = Picture::take(&volume).map_err(|why| format!("cannot be looked at: {why}"))?;
        for ino in own.into_iter().chain(self.others(&volume)) {
            // Fsync reports an earlier error once.
            if volume.files().fsync(ino).is_err() {
                is_lost = true;
                if volume.aborted().is_some() {
                    drop(volume);
                    return self.judge_stages(disk, expected, None, Some(&stage));
                }
                // Without a log, what was not flushed stays unflushed.
                if !self.world.has_journal() {
                    return Ok(Done { is_hit: true, is_aborted: false, is_lost, is_sound: false, disk });
                }
                if let Err(Fault::NotFlushed(_)) = volume.files().fsync(ino) {
                    // Nothing becomes durable any more, and each fsync reports it.
                    drop(volume);
                    return self.judge_stages(disk, expected, None, Some(&stage));
                }
                volume
                    .files()
                    .fsync(ino)
                    .map_err(|fault| format!("a second fsync of inode {ino}: {fault}"))?;
            }
        }
        let is_synced = matches!(self.end, End::SyncAndClose | End::CrashAfterSync);
        if is_synced {
            if let Err(Fault::LostWrite) = volume.sync() {
                is_lost = true;
            }
            volume.sync().map_err(|fault| format!("sync afterwards: {fault}"))?;
        }
        let memory = Picture::take(&volume).map_err(|why| format!("cannot be looked at: {why}"))?;
        check_files(&volume, &memory)?;
        match self.end {
            End::Close | End::SyncAndClose => {
                volume.close().map_err(|fault| format!("close afterwards: {fault}"))?;
            }
            End::CrashAfterSync | End::CrashAfterFsync => drop(volume),
        }
        let is_crash = matches!(self.end, End::CrashAfterSync | End::CrashAfterFsync);
        if is_crash && !self.world.has_journal() {
            return Ok(Done { is_hit: true, is_aborted: false, is_lost, is_sound: false, disk });
        }
        let (found, volume) = self.reopen(&disk)?;
        let how = if is_synced { How::Disk } else { How::Durable };
        let only = (self.end == End::CrashAfterFsync).then(|| own.into_iter().collect::<Vec<_>>());
        let excepted =
            |_: &[u8], shown: &Shown, _: &Shown| only.as_ref().is_some_and(|only| !only.contains(&shown.ino));
        let lines = differences(&memory, &found, how, &excepted);
        let lines: Vec<String> =
            lines.into_iter().filter(|line| only.is_none() || !line.contains("should not")).collect();
        all_or(&lines, "opened again")?;
        self.conclude(volume, &disk)?;
        Ok(Done { is_hit: true, is_aborted: false, is_lost, is_sound: true, disk })
    }

    /// Other files that may have dirty data.
    fn others(&self, volume: &Volume) -> Vec<Ino> {
        let paths = ["even", "hard", "pieces"];
        let found = paths.iter().filter_map(|path| {
            volume
                .names()
                .resolve(path.as_bytes(), extant_volume::Follow::NotTheLast)
                .ok()
                .map(|inode| inode.ino())
        });
        found.collect()
    }

    fn follow(&self, volume: &Volume, ino: Ino) -> Result<(), Fault> {
        let bs = self.world.block_bytes();
        let size = volume.attributes().stat(&*volume.inode(ino)?).size;
        let set = |size| {
            volume.attributes().set_attr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
        };
        match self.follow {
            Follow::Nothing => Ok(()),
            Follow::Reserve => volume.files().fallocate(ino, Allocate::Reserve, size + 2 * bs, 3 * bs),
            Follow::Append => volume.files().append(ino, &pattern(FOLLOW, 0, 100)).map(drop),
            Follow::Grow => set(size + bs + 10),
            Follow::Overwrite => volume.files().write_at(ino, 0, &pattern(FOLLOW, 0, bs)).map(drop),
            Follow::Cut => set(size / 2),
            Follow::New => volume.names().create(Ino::ROOT, b"afterwards", &New::file(0o600)).map(drop),
        }
    }

    fn reopen(&self, disk: &Disk) -> Result<(Picture, Volume), String> {
        let opened = Volume::open(disk.clone(), &self.world.options());
        let volume = opened.map_err(|fault| format!("does not open again: {fault}"))?;
        if let Some(problem) = volume.recovery().problems.first() {
            return Err(format!("recovery: {problem}"));
        }
        let found = Picture::take(&volume).map_err(|why| format!("opened again: {why}"))?;
        Ok((found, volume))
    }

    fn conclude(&self, volume: Volume, disk: &Disk) -> Result<(), String> {
        volume.close().map_err(|fault| format!("closing at last: {fault}"))?;
        let options =
            extant_check::Options { threads: std::num::NonZero::new(1), ..extant_check::Options::default() };
        let report = extant_check::check(&**disk, &options).map_err(|fault| fault.to_string())?;
        if report.clean() {
            return Ok(());
        }
        let found: BTreeMap<_, _> = report.counts.iter().collect();
        let first =
            report.findings.iter().find(|finding| finding.rule.severity != extant_check::Severity::Note);
        Err(format!("check: {found:?}, first {first:?}"))
    }
}

fn check_files(volume: &Volume, shown: &Picture) -> Result<(), String> {
    shown.paths.iter().try_for_each(|(path, shown)| {
        volume.files().check_file(shown.ino).map_err(|why| format!("/{}: {why}", path.escape_ascii()))
    })
}

fn all_or(lines: &[String], what: &str) -> Result<(), String> {
    if lines.is_empty() { Ok(()) } else { Err(format!("{what}: {}", lines[..lines.len().min(3)].join("; "))) }
}
