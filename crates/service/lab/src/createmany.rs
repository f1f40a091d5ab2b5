//! Creates very many names in one directory, as fast as possible: the driver of the study of large
//! directories.
//!
//! The lines and totals of its protocol are those of createmany of the Lustre test suite, the tool of the
//! original study, so that the figures can be compared:
//!
//! ```text
//!  - create 10000 (time 1700000000.12 total 0.01 last 912345.67)      every 10,000 objects, or after 10 seconds
//! total: 20000 create in 0.02 seconds: 905432.10 ops/second
//! ```

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::ClockId;
use serde::Serialize;

use crate::names::NameFormat;
use crate::summary::rate;
use crate::{Failed, Watch, WorkDir};

/// Objects between two lines of the protocol.
pub const LINE_OBJECTS: u64 = 10_000;
/// After this time the load prints a line even for fewer objects.
const LINE_TIME: Duration = Duration::from_secs(10);
/// Links per target before the next target is used: two less than ext4's limit, which counts the target's own
/// name.
pub const LINKS_PER_TARGET: u64 = 64_998;
/// Objects between two reads of the clock.
const CLOCK_OBJECTS: u64 = 64;

/// The operation for each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// open(O_CREAT|O_RDWR, 0644) and close.
    Open,
    /// open; the file stays open until the end.
    OpenKeep,
    /// mknod(S_IFREG|0444).
    Mknod,
    /// mkdir(0755).
    Mkdir,
    /// link(TARGET, name).
    Link,
    /// unlink(name), of names that are there.
    Unlink,
}

impl Operation {
    /// The operation's name in the protocol.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Open | Self::OpenKeep => "open",
            Self::Mknod => "create",
            Self::Mkdir => "mkdir",
            Self::Link => "link",
            Self::Unlink => "unlink",
        }
    }
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Job {
    /// The operation for each name.
    pub operation: Operation,
    /// The names.
    pub format: NameFormat,
    /// The first number.
    pub start: i64,
    /// Number of names. `None`: until the time is up or an operation fails.
    pub count: Option<u64>,
    /// Stop after this time.
    pub time: Option<Duration>,
    /// The target of [`Operation::Link`].
    pub target: Vec<u8>,
    /// Create missing targets, and switch to a new one (TARGET.1, TARGET.2, ...) after this many links.
    pub renew_target: Option<u64>,
    /// Remove each object immediately, by the name that this format gives.
    pub unlink: Option<NameFormat>,
    /// After each object, remove an older one; its number is larger than the object's by this.
    pub unlink_at: Option<i64>,
    /// Give each object a second name.
    pub alias: Option<NameFormat>,
    /// After all are created, remove them in the same order, measured separately.
    pub then_unlink: bool,
    /// Workers; if there are several, each has its own directory, `thread-N`.
    pub threads: usize,
    /// Names that the driver announces before it creates or removes them
    /// ([`extant_volume::Names::prefetch_names`]); 0: none.
    pub ahead: usize,
}

impl Job {
    /// A job without a limit and without extras.
    ///
    /// # Panics
    /// If `format` is not a valid name format; the function is for constants.
    #[must_use]
    pub fn new(operation: Operation, format: &str) -> Self {
        Self {
            operation,
            format: NameFormat::parse(format).expect("a format of names"),
            start: 0,
            count: None,
            time: None,
            target: b"target".to_vec(),
            renew_target: None,
            unlink: None,
            unlink_at: None,
            alias: None,
            then_unlink: false,
            threads: 1,
            ahead: 0,
        }
    }

    /// The operation's name in the protocol, and that of an immediate removal.
    #[must_use]
    pub fn word(&self) -> String {
        let removed = match (&self.unlink, self.operation) {
            (None, _) => "",
            (Some(_), Operation::Mkdir) => "/rmdir",
            (Some(_), _) => "/unlink",
        };
        format!("{}{removed}", self.operation.word())
    }
}

/// The results of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The operation, as in the protocol.
    pub operation: String,
    /// Objects created by all workers.
    pub done: u64,
    /// Wall-clock time from the start of the first worker to the end of the last one.
    pub seconds: f64,
    /// Objects per second.
    pub per_s: f64,
    /// CPU time of the workers, without CPU time that other threads spend for them (a journal's commits).
    pub cpu_s: f64,
    /// CPU time of this process's other threads during the run: in process, the commits.
    pub others_cpu_s: f64,
    /// Workers.
    pub threads: usize,
    /// The removal of all objects, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removal: Option<Removal>,
    /// Why a worker stopped early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// The results of the second pass.
#[derive(Debug, Clone, Serialize)]
pub struct Removal {
    /// Objects removed.
    pub done: u64,
    /// Wall-clock time, in seconds.
    pub seconds: f64,
    /// Objects per second.
    pub per_s: f64,
    /// CPU time of the workers, in seconds.
    pub cpu_s: f64,
    /// As [`Report::others_cpu_s`].
    pub others_cpu_s: f64,
}

impl Report {
    /// The last lines of the protocol.
    #[must_use]
    pub fn totals(&self) -> String {
        let total = |done: u64, word: &str, seconds: f64, per_s: f64| {
            format!("total: {done} {word} in {seconds:.2} seconds: {per_s:.2} ops/second\n")
        };
        let mut text = total(self.done, &self.operation, self.seconds, self.per_s);
        if let Some(removal) = &self.removal {
            let word = if self.operation == "mkdir" { "rmdir" } else { "unlink" };
            text += &total(removal.done, word, removal.seconds, removal.per_s);
        }
        text
    }
}

/// Runs a job in a directory. A worker stops at its first error; the report contains the work done and the
/// reason.
///
/// # Errors
/// The workers' directories cannot be created.
pub fn run<P: WorkDir>(job: &Job, place: &mut P, watch: &dyn Watch) -> Result<Report, Failed> {
    if job.threads <= 1 {
        let worked = Worker::new(job, 0, watch).work(place);
        return Ok(report(job, vec![worked]));
    }
    let numbers = 0..job.threads;
    let places = numbers.map(|number| place.below(format!("thread-{number}").as_bytes()));
    Ok(in_places(job, places.collect::<Result<_, _>>()?, watch))
}

/// Runs a job with one worker per directory.
pub(crate) fn in_places<P: WorkDir>(job: &Job, places: Vec<P>, watch: &dyn Watch) -> Report {
    let all = Mutex::new(Vec::new());
    // No worker removes names before all workers have created theirs: each clock measures one phase.
    let passed = std::sync::Barrier::new(places.len());
    std::thread::scope(|scope| {
        for (number, mut place) in places.into_iter().enumerate() {
            let (all, passed) = (&all, &passed);
            scope.spawn(move || {
                let mut worker = Worker::new(job, number, watch);
                worker.passed = Some(passed);
                let worked = worker.work(&mut place);
                all.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(worked);
            });
        }
    });
    report(job, all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn report(job: &Job, workers: Vec<Worked>) -> Report {
    let span = |pass: fn(&Worked) -> Pass| {
        let begun = workers.iter().map(|worked| pass(worked).begun).min();
        let ended = workers.iter().map(|worked| pass(worked).ended).max();
        let done = workers.iter().map(|worked| pass(worked).done).sum();
        let seconds = begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_secs_f64());
        let cpu_s: f64 = workers.iter().map(|worked| pass(worked).cpu).sum();
        let all_begun = workers.iter().map(|worked| pass(worked).all_cpu.0).fold(f64::INFINITY, f64::min);
        let all_ended = workers.iter().map(|worked| pass(worked).all_cpu.1).fold(0.0, f64::max);
        let others_cpu_s = (all_ended - all_begun - cpu_s).max(0.0);
        Removal { done, seconds, per_s: rate(done, seconds), cpu_s, others_cpu_s }
    };
    let Removal { done, seconds, per_s, cpu_s, others_cpu_s } = span(|worked| worked.made);
    let removal = job.then_unlink.then(|| span(|worked| worked.removed));
    let failed = workers.iter().find_map(|worked| worked.failed.as_ref().map(ToString::to_string));
    Report {
        operation: job.word(),
        done,
        seconds,
        per_s,
        cpu_s,
        others_cpu_s,
        threads: job.threads.max(1),
        removal,
        failed,
    }
}

/// One pass of one worker.
#[derive(Clone, Copy)]
struct Pass {
    done: u64,
    begun: Instant,
    ended: Instant,
    /// Seconds of CPU time of the worker, including system time.
    cpu: f64,
    /// Seconds of CPU time of all threads of the process, at the start and the end of the pass.
    all_cpu: (f64, f64),
}

struct Worked {
    made: Pass,
    removed: Pass,
    failed: Option<Failed>,
}

/// CPU time in seconds, of this thread or of the process.
pub(crate) fn seconds_of(clock: ClockId) -> f64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

struct Worker<'a> {
    job: &'a Job,
    number: usize,
    watch: &'a dyn Watch,
    passed: Option<&'a std::sync::Barrier>,
    begun: Instant,
    /// Time and count of the last line.
    last: (Instant, u64),
}

impl<'a> Worker<'a> {
    fn new(job: &'a Job, number: usize, watch: &'a dyn Watch) -> Self {
        let begun = Instant::now();
        Self { job, number, watch, passed: None, begun, last: (begun, 0) }
    }

    fn work<P: WorkDir>(mut self, place: &mut P) -> Worked {
        let job = self.job;
        let mut kept = Vec::new();
        let make = |worker: &Self, place: &mut P, name: &[u8], other: &mut Vec<u8>, done| {
            worker.make(place, name, other, done, &mut kept)
        };
        let (made, mut failed) = self.pass(&job.word(), job.count, job.time, place, make);
        if let Some(passed) = self.passed {
            passed.wait();
        }
        let mut removed = Pass { done: 0, ..made };
        if job.then_unlink && failed.is_none() {
            let word = if job.operation == Operation::Mkdir { "rmdir" } else { "unlink" };
            if self.number == 0 {
                self.watch.part(word, Some(made.done * job.threads as u64));
            }
            let remove =
                |worker: &Self, place: &mut P, name: &[u8], _: &mut Vec<u8>, _| worker.remove(place, name);
            (removed, failed) = self.pass(word, Some(made.done), None, place, remove);
        }
        for file in kept {
            if let Err(fault) = place.close(file) {
                failed.get_or_insert(fault);
            }
        }
        Worked { made, removed, failed }
    }

    /// Calls `each` with each name, a spare buffer for another name, and the count so far. Ends when `each`
    /// fails, or the count or the time is reached.
    fn pass<P: WorkDir>(
        &mut self,
        word: &str,
        count: Option<u64>,
        time: Option<Duration>,
        place: &mut P,
        mut each: impl FnMut(&Self, &mut P, &[u8], &mut Vec<u8>, u64) -> Result<(), Failed>,
    ) -> (Pass, Option<Failed>) {
        let job = self.job;
        // While one batch is processed, the next one is announced: see `Names::prefetch_names`.
        let batch = job.ahead.max(1);
        let mut names = vec![Vec::with_capacity(256); 2 * batch];
        let mut other = Vec::with_capacity(256);
        let count = count.unwrap_or(u64::MAX);
        let cpu = [ClockId::ThreadCPUTime, ClockId::ProcessCPUTime].map(seconds_of);
        self.begun = Instant::now();
        self.last = (self.begun, 0);
        let (mut done, mut made) = (0, 0);
        let mut failed = None;
        while done < count {
            while made < count && made <= done + batch as u64 {
                let next = &mut names[(made % (2 * batch as u64)) as usize..][..batch];
                let len = (count - made).min(batch as u64) as usize;
                for (name, number) in next[..len].iter_mut().zip(made..) {
                    job.format.write(job.start.wrapping_add(number as i64), name);
                }
                if job.ahead > 0 {
                    place.prefetch_names(&next[..len]);
                }
                made += len as u64;
            }
            let name = &names[(done % names.len() as u64) as usize];
            if let Err(fault) = each(self, place, name, &mut other, done) {
                failed = Some(fault);
                break;
            }
            done += 1;
            if done.is_multiple_of(CLOCK_OBJECTS) || done.is_multiple_of(LINE_OBJECTS) {
                let now = Instant::now();
                if done - self.last.1 >= LINE_OBJECTS || now - self.last.0 >= LINE_TIME {
                    self.line(word, done, now);
                }
                if time.is_some_and(|time| now - self.begun >= time) {
                    break;
                }
            }
        }
        let ended = Instant::now();
        self.watch.advance(done - self.last.1);
        let [thread, all] = cpu;
        let all_cpu = (all, seconds_of(ClockId::ProcessCPUTime));
        let cpu = seconds_of(ClockId::ThreadCPUTime) - thread;
        (Pass { done, begun: self.begun, ended, cpu, all_cpu }, failed)
    }

    fn line(&mut self, word: &str, done: u64, now: Instant) {
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let total = (now - self.begun).as_secs_f64();
        let last = rate(done - self.last.1, (now - self.last.0).as_secs_f64());
        let who = if self.job.threads > 1 { format!("[{}]", self.number) } else { String::new() };
        self.watch.line(&format!("{who} - {word} {done} (time {clock:.2} total {total:.2} last {last:.2})"));
        self.watch.advance(done - self.last.1);
        self.last = (now, done);
    }

    fn make<P: WorkDir>(
        &self,
        place: &mut P,
        name: &[u8],
        other: &mut Vec<u8>,
        done: u64,
        kept: &mut Vec<P::File>,
    ) -> Result<(), Failed> {
        let job = self.job;
        match job.operation {
            Operation::Open => {
                let file = place.open(name)?;
                place.close(file)?;
            }
            Operation::OpenKeep => kept.push(place.open(name)?),
            Operation::Mknod => place.mknod(name)?,
            Operation::Mkdir => place.mkdir(name)?,
            Operation::Link => {
                self.target(done, other);
                if job.renew_target.is_some_and(|links| done.is_multiple_of(links.max(1))) {
                    let file = place.open(other)?;
                    place.close(file)?;
                }
                place.link(other, name)?;
            }
            Operation::Unlink => place.unlink(name)?,
        }
        let number = job.start.wrapping_add(done as i64);
        if let Some(alias) = &job.alias {
            alias.write(number, other);
            place.link(name, other)?;
        }
        if let Some(unlink) = &job.unlink {
            unlink.write(number, other);
            self.remove(place, other)?;
        }
        if let Some(distance) = job.unlink_at {
            job.format.write(number.wrapping_add(distance), other);
            self.remove(place, other)?;
        }
        Ok(())
    }

    fn remove<P: WorkDir>(&self, place: &mut P, name: &[u8]) -> Result<(), Failed> {
        if self.job.operation == Operation::Mkdir { place.rmdir(name) } else { place.unlink(name) }
    }

    /// The target of the `done`-th link.
    fn target(&self, done: u64, target: &mut Vec<u8>) {
        use std::io::Write as _;
        target.clear();
        target.extend_from_slice(&self.job.target);
        match self.job.renew_target.map(|links| done / links.max(1)) {
            None | Some(0) => {}
            // A write to a vector cannot fail.
            Some(number) => drop(write!(target, ".{number}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::Ground;
    use crate::{Engine, Kernel, Quiet};

    struct Lines(Mutex<Vec<String>>);

    impl Watch for Lines {
        fn line(&self, text: &str) {
            self.0.lock().unwrap().push(text.to_owned());
        }
    }

    fn job(operation: Operation, count: u64) -> Job {
        Job { count: Some(count), ..Job::new(operation, "name%06ld") }
    }

    #[test]
    fn each_operation_in_process_leaves_a_sound_file_system() {
        let ground = Ground::memory(256 << 20, &extant_image::options::FormatOptions::default()).unwrap();
        let volume = ground.open(&extant_volume::OpenOptions::default()).unwrap();
        let mut root = Engine::root(&volume);
        let run_in = |dir: &[u8], job: &Job, root: &mut Engine<'_>| {
            let report = run(job, &mut root.below(dir).unwrap(), &Quiet).unwrap();
            assert_eq!(
                (report.done, report.failed.as_deref()),
                (job.count.unwrap() * job.threads as u64, None)
            );
            report
        };
        run_in(b"open", &job(Operation::Open, 500), &mut root);
        run_in(b"keep", &job(Operation::OpenKeep, 500), &mut root);
        run_in(b"two", &Job { threads: 2, ..job(Operation::Mknod, 2000) }, &mut root);
        run_in(
            b"alias",
            &Job { alias: Some(NameFormat::parse("a%d").unwrap()), ..job(Operation::Mknod, 50) },
            &mut root,
        );
        run_in(b"mkdir", &Job { then_unlink: true, ..job(Operation::Mkdir, 300) }, &mut root);
        let at_once =
            Job { unlink: Some(NameFormat::parse("name%06ld").unwrap()), ..job(Operation::Mknod, 100) };
        assert_eq!(run_in(b"at once", &at_once, &mut root).operation, "create/unlink");
        run_in(
            b"link",
            &Job { renew_target: Some(LINKS_PER_TARGET), ..job(Operation::Link, 70_000) },
            &mut root,
        );
        let removed =
            run_in(b"gone", &Job { then_unlink: true, ..job(Operation::Mknod, 3000) }, &mut root).removal;
        assert_eq!(removed.unwrap().done, 3000);
        volume.close().unwrap();
        let report = ground.check().unwrap();
        assert!(report.clean(), "{:?}", report.findings);
    }

    #[test]
    fn lines_come_every_ten_thousand_and_an_error_ends_with_what_was_done() {
        let ground = Ground::memory(256 << 20, &extant_image::options::FormatOptions::default()).unwrap();
        let volume = ground.open(&extant_volume::OpenOptions::default()).unwrap();
        let lines = Lines(Mutex::default());
        let mut root = Engine::root(&volume);
        root.mknod(b"name015000").unwrap();
        let report = run(&job(Operation::Mknod, 30_000), &mut root, &lines).unwrap();
        assert_eq!(report.done, 15_000);
        assert!(report.failed.as_deref().unwrap().contains("mknod name015000: the name exists (errno 17)"));
        assert!(report.totals().starts_with("total: 15000 create in "), "{}", report.totals());
        let lines = lines.0.into_inner().unwrap();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with(" - create 10000 (time "), "{}", lines[0]);
    }

    #[test]
    fn the_same_loop_runs_on_a_directory_of_the_system() {
        let scratch = tempfile::tempdir().unwrap();
        let mut place = Kernel::at(scratch.path()).unwrap();
        let job = Job { time: Some(Duration::from_secs(60)), start: 5, ..job(Operation::Open, 10) };
        assert_eq!(run(&job, &mut place, &Quiet).unwrap().done, 10);
        assert!(scratch.path().join("name000014").exists() && !scratch.path().join("name000004").exists());
        let ended =
            run(&Job { time: Some(Duration::ZERO), count: None, start: 100, ..job }, &mut place, &Quiet)
                .unwrap();
        assert_eq!(ended.done, CLOCK_OBJECTS);
    }
}
