//! The verdict on one cut.

use std::path::Path;
use std::sync::Arc;

use extant_fsmodel::{Tree, diff};
use extant_simdisk::SimDisk;
use extant_volume::{OpenOptions, Refusal, Volume, WriteOptions};

use crate::{CrashRun, Engine, TOP};

/// The verdict on a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The tree is one of the allowed trees, and no judge reports a problem.
    Right,
    /// Describes the violation.
    Violation(String),
}

/// Counts of judged cuts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Cuts judged by the engine's recovery and the checker.
    pub cuts: u64,
    /// Those of them with a second cut during recovery.
    pub twice: u64,
    /// Those of them that e2fsck judged after the engine's recovery.
    pub e2fsck: u64,
    /// Cuts that the kernel recovered.
    pub kernel: u64,
    /// Cuts not given to the kernel, because the superblock was torn.
    pub torn: u64,
}

impl CrashRun {
    /// Judges a power cut during event `event`, or just after it, depending on the seed. The seed also
    /// chooses which sectors survive. With `again`, power fails once more during recovery. Also returns the
    /// disk after the engine's recovery, for other judges.
    #[must_use]
    pub fn judge(&self, event: u64, seed: u64, again: bool) -> (Verdict, Option<Arc<SimDisk>>) {
        let torn = event < self.events() && seed.is_multiple_of(2);
        let cut = if torn { self.recording.cut_during(event, seed) } else { self.recording.cut(event, seed) };
        let mut disk = Arc::new(cut);
        if again {
            disk.start_recording();
            if let Err(why) = self.recover(&disk) {
                return (self.violation(event, seed, &format!("recovery: {why}")), None);
            }
            let Some(recording) = disk.recorded() else { return (Verdict::Right, None) };
            let span = recording.end() - recording.start() + 1;
            let at = recording.start() + seed / 2 % span;
            disk = Arc::new(recording.cut(at, seed.rotate_left(17)));
        }
        match self.judge_disk(&disk, event) {
            Ok(()) => (Verdict::Right, Some(disk)),
            Err(why) => (self.violation(event, seed, &why), None),
        }
    }

    /// The disk after the cut, before any recovery.
    #[must_use]
    pub fn cut_disk(&self, event: u64, seed: u64) -> SimDisk {
        let torn = event < self.events() && seed.is_multiple_of(2);
        if torn { self.recording.cut_during(event, seed) } else { self.recording.cut(event, seed) }
    }

    fn violation(&self, event: u64, seed: u64, why: &str) -> Verdict {
        let ops = self.ops.iter().zip(&self.steps[1..]).map(|(op, step)| {
            let meanwhile = if step.is_meanwhile { ", in the middle of a commit or checkpoint" } else { "" };
            format!("    {op:?}{meanwhile}")
        });
        let ops: Vec<String> = ops.collect();
        let event_text = self.recording.event(event).map(|event| event.to_string()).unwrap_or_default();
        Verdict::Violation(format!(
            "cut at event {event} ({event_text}), survivors by seed {seed}: {why}\n  {:?}\n{}",
            self.schedule,
            ops.join("\n")
        ))
    }

    /// Opens the disk with the cache size of the run.
    fn open(&self, disk: &Arc<SimDisk>) -> Result<Engine, String> {
        let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
        let cache_bytes = self.schedule.cache_bytes;
        Engine::open_with(disk.clone(), OpenOptions { write, cache_bytes, ..OpenOptions::default() })
    }

    fn recover(&self, disk: &Arc<SimDisk>) -> Result<(), String> {
        self.open(disk)?.close()
    }

    /// The tree that a read-only open shows; `None` if it has no top directory yet.
    fn shown(&self, disk: &Arc<SimDisk>) -> Result<Option<Tree>, String> {
        let options = OpenOptions { cache_bytes: self.schedule.cache_bytes, ..OpenOptions::default() };
        let text = |fault: &dyn std::fmt::Display| format!("open for reading: {fault}");
        let volume = Volume::open_read_only(disk.clone(), &options).map_err(|fault| text(&fault))?;
        let top = volume.root().and_then(|root| volume.names().lookup(&root, TOP));
        match top {
            Err(fault) if fault.is(Refusal::NotFound) => Ok(None),
            _ => crate::tree(&volume).map(Some).map_err(|fault| text(&fault)),
        }
    }

    fn judge_disk(&self, disk: &Arc<SimDisk>, event: u64) -> Result<(), String> {
        let events = disk.events();
        let shown = self.shown(disk)?;
        if disk.events() != events {
            return Err("open for reading wrote to the disk".to_owned());
        }
        let mut engine = self.open(disk).map_err(|why| format!("does not open: {why}"))?;
        let problems = &engine.volume().recovery().problems;
        if let Some(problem) = problems.iter().find(|problem| !problem.contains("first sector")) {
            return Err(format!("recovery: {problem}"));
        }
        let tree = crate::tree(engine.volume()).map_err(|why| format!("cannot be read: {why}"))?;
        self.judge_tree(&tree, event)?;
        if let Some(first) = shown.and_then(|shown| diff(&shown, &tree).into_iter().next()) {
            return Err(format!("open for reading showed another tree than recovery left: {first}"));
        }
        // The volume must accept changes.
        let probe = extant_fsmodel::Op::Mkdir { at: extant_fsmodel::At::new("after-the-cut"), mode: 0o755 };
        extant_fsmodel::Subject::apply(&mut engine, &probe)
            .map_err(|errno| format!("mkdir after recovery: {errno}"))?;
        engine.close().map_err(|why| format!("close: {why}"))?;
        let report = extant_check::check(&**disk, &extant_check::Options::default())
            .map_err(|fault| fault.to_string())?;
        if report.exit_code() != 0 {
            let first =
                report.findings.iter().find(|finding| finding.rule.severity != extant_check::Severity::Note);
            return Err(format!("check: {} findings, first: {first:?}", report.findings.len()));
        }
        Ok(())
    }

    /// Judges whether `tree` is one of the trees allowed when power fails at this event.
    ///
    /// # Errors
    /// `tree` is not allowed; the text has the differences from the nearest allowed tree.
    pub fn judge_tree(&self, tree: &Tree, event: u64) -> Result<(), String> {
        let synced = |step: &crate::schedule::Step| step.synced.is_some_and(|synced| synced <= event);
        let first = self.steps.iter().rposition(synced).unwrap_or(0);
        let last = self.steps.iter().rposition(|step| step.begun <= event).unwrap_or(0).max(first);
        let mut tree = tree.clone();
        let dirs =
            tree.nodes.values_mut().filter(|node| self.is_fast && node.kind == extant_fsmodel::Kind::Dir);
        dirs.for_each(|node| node.mtime = None);
        let mut nearest: Option<(usize, Vec<String>)> = None;
        for (at, step) in self.steps.iter().enumerate().take(last + 1).skip(first) {
            let lines = diff(&step.tree, &tree);
            if lines.is_empty() {
                return Ok(());
            }
            if nearest.as_ref().is_none_or(|(_, known)| lines.len() < known.len()) {
                nearest = Some((at, lines));
            }
        }
        let (at, lines) = nearest.unwrap_or_default();
        let shown = lines[..lines.len().min(8)].join("\n    ");
        Err(format!("no tree of operations {first}..={last}; nearest is the one after {at}:\n    {shown}"))
    }
}

/// Writes a disk to a file, for e2fsck and the kernel.
///
/// # Errors
/// The file cannot be written.
pub fn to_file(disk: &SimDisk, path: &Path) -> std::io::Result<()> {
    let image = disk.image();
    let mut bytes = vec![0; image.size_bytes() as usize];
    image.read(0, &mut bytes);
    std::fs::write(path, bytes)
}
