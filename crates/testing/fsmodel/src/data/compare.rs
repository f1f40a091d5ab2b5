//! Applies the same operations to a model and to subjects, and finds the first difference.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::generator::Generator;
use super::model::Model;
use super::{Answer, DataFs, Op, Whence, map_by_seeks};
use crate::errno::Errno;

/// Maximum bytes of one read of a check, and bytes read at the beginning of each file.
const READ_MAX: u64 = 1 << 20;
/// Operations on the file that are shown with a difference, the last ones.
const N_SHOWN: usize = 40;

/// Counters of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations applied.
    pub n_ops: u64,
    /// Those of them that succeeded.
    pub n_ok: u64,
    /// Comparisons of all bytes of all files.
    pub n_checks: u64,
    /// How often each operation gave each answer. `("punch", None)` counts successful punches.
    pub answers: BTreeMap<(&'static str, Option<Errno>), u64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations, {} successful, all bytes equal {} times",
            self.n_ops, self.n_ok, self.n_checks
        )?;
        let mut last = "";
        for ((op, answer), n) in &self.answers {
            if *op != last {
                write!(f, "\n{op:>12}:")?;
                last = op;
            }
            match answer {
                None => write!(f, " ok {n}")?,
                Some(errno) => write!(f, " {errno} {n}")?,
            }
        }
        Ok(())
    }
}

/// The first difference of a subject from the model, or between subjects.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Seed of the generator; `None` for a recorded list.
    pub seed: Option<u64>,
    /// Index of the subject.
    pub subject: usize,
    /// The file; `None` if the difference concerns all files.
    pub file: Option<u8>,
    /// What differs.
    pub what: String,
    /// All operations up to the one that showed it.
    pub ops: Vec<Op>,
}

impl Difference {
    /// The operations that can have caused it: those on its file since that was created, and those on all
    /// files.
    #[must_use]
    pub fn ops_of_file(&self) -> Vec<Op> {
        let Some(file) = self.file else { return self.ops.clone() };
        let of_file = |op: &&Op| op.file().is_none_or(|of| of == file);
        let ops: Vec<Op> = self.ops.iter().filter(of_file).copied().collect();
        // Starts after the last unlink: a create that was refused looks the same as one that succeeded.
        let start = ops.iter().rposition(|op| matches!(op, Op::Unlink { .. })).map_or(0, |n| n + 1);
        // The unlink itself may show the difference.
        let start = if start == ops.len() { 0 } else { start };
        ops[start..].to_vec()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}, ")?;
        }
        writeln!(
            f,
            "operation {}, subject {}: {}",
            self.ops.len().saturating_sub(1),
            self.subject,
            self.what
        )?;
        let ops = self.ops_of_file();
        let n_left_out = ops.len().saturating_sub(N_SHOWN);
        match (self.file, n_left_out) {
            (Some(file), 0) => writeln!(f, "the operations on file {file} since it was created:")?,
            (Some(file), n) => writeln!(f, "the last operations on file {file}, {n} more before them:")?,
            (None, n) => writeln!(f, "the last operations, {n} more before them:")?,
        }
        for op in &ops[n_left_out..] {
            writeln!(f, "  {op:?},")?;
        }
        Ok(())
    }
}

impl std::error::Error for Difference {}

/// How subjects are compared.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Compares all bytes of all files after this many operations, and at the end.
    pub check_every: u64,
    /// Requires the same answer to [`Op::Map`] from all subjects.
    pub same_maps: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { check_every: 500, same_maps: true }
    }
}

/// Applies the next `n_ops` operations of the generator to the model and to all subjects. [`Model::judge`]
/// must accept each answer.
///
/// # Errors
/// The first difference, with all operations that led to it.
pub fn compare(
    model: &mut Model,
    subjects: &mut [&mut dyn DataFs],
    generator: &mut Generator,
    n_ops: u64,
    rules: Rules,
) -> Result<Report, Box<Difference>> {
    let start = generator.clone();
    let ops = generator.by_ref().take(usize::try_from(n_ops).unwrap_or(usize::MAX));
    let mut report = Report::default();
    run(model, subjects, ops, rules, &mut report).map_err(|(subject, file, what)| {
        let n = usize::try_from(report.n_ops).unwrap_or(usize::MAX);
        let seed = Some(start.seed());
        Box::new(Difference { seed, subject, file, what, ops: start.take(n).collect() })
    })?;
    Ok(report)
}

/// As [`compare`], for a list of operations.
///
/// # Errors
/// The first difference.
pub fn replay(
    model: &mut Model,
    subjects: &mut [&mut dyn DataFs],
    ops: &[Op],
    rules: Rules,
) -> Result<Report, Box<Difference>> {
    let mut report = Report::default();
    run(model, subjects, ops.iter().copied(), rules, &mut report).map_err(|(subject, file, what)| {
        let n = usize::try_from(report.n_ops).unwrap_or(usize::MAX).min(ops.len());
        Box::new(Difference { seed: None, subject, file, what, ops: ops[..n].to_vec() })
    })?;
    Ok(report)
}

type Parted = (usize, Option<u8>, String);

fn run(
    model: &mut Model,
    subjects: &mut [&mut dyn DataFs],
    ops: impl Iterator<Item = Op>,
    rules: Rules,
    report: &mut Report,
) -> Result<(), Parted> {
    let mut n_unchecked = 0;
    for op in ops {
        let expected = model.apply(&op);
        report.n_ops += 1;
        report.n_ok += u64::from(expected.is_ok());
        *report.answers.entry((op.name(), expected.as_ref().err().copied())).or_default() += 1;
        let mut first = None;
        for (n, subject) in subjects.iter_mut().enumerate() {
            let answer = subject.apply(&op);
            model.judge(&op, &expected, &answer).map_err(|what| (n, op.file(), what))?;
            let first = first.get_or_insert_with(|| answer.clone());
            if rules.same_maps && matches!(op, Op::Map { .. }) && *first != answer {
                let what = format!("{op:?}: the first subject answers {first:?}, this one {answer:?}");
                return Err((n, op.file(), what));
            }
        }
        n_unchecked += 1;
        if n_unchecked >= rules.check_every.max(1) {
            check(model, subjects, report)?;
            n_unchecked = 0;
        }
    }
    if n_unchecked > 0 || report.n_ops == 0 { check(model, subjects, report) } else { Ok(()) }
}

/// Compares the bytes of each file: in the model's ranges, in the subject's data ranges, and at the
/// beginning.
fn check(model: &mut Model, subjects: &mut [&mut dyn DataFs], report: &mut Report) -> Result<(), Parted> {
    report.n_checks += 1;
    let files: Vec<u8> = model.files().collect();
    for file in files {
        for (n, subject) in subjects.iter_mut().enumerate() {
            let own = model.ranges(file);
            // `ask` compares each answer with the model's.
            let mut ask = |op: Op| {
                let (expected, answer) = (model.apply(&op), subject.apply(&op));
                let what = |what| (n, Some(file), format!("at the check of all bytes: {what}"));
                model.judge(&op, &expected, &answer).map_err(what)?;
                Ok(answer)
            };
            let _size = ask(Op::Stat { file })?;
            let mut parted = None;
            let seek = |whence: Whence, pos| match ask(Op::Seek { file, whence, pos }) {
                Ok(answer) => answer.map(|answer| if let Answer::Place(pos) = answer { pos } else { 0 }),
                Err(what) => {
                    parted = Some(what);
                    Err(Errno::ENXIO)
                }
            };
            let mapped = map_by_seeks(seek);
            if let Some(parted) = parted {
                return Err(parted);
            }
            let mapped =
                mapped.map_err(|errno| (n, Some(file), format!("seeks through the file: {errno}")))?;
            let beginning = std::iter::once(0..READ_MAX);
            for Range { start, end } in mapped.into_iter().chain(own).chain(beginning) {
                let mut pos = start;
                while pos < end {
                    let len = (end - pos).min(READ_MAX);
                    let _bytes = ask(Op::Read { file, pos, len })?;
                    pos += len;
                }
            }
        }
    }
    Ok(())
}

/// Removes operations from a list as long as the subjects from `begin` still differ from the model (delta
/// debugging, Zeller 2002).
///
/// It starts with the operations on the difference's file if they are sufficient. A list that no longer shows
/// the difference is returned unchanged.
pub fn shrink<S: DataFs>(
    found: &Difference,
    model: &Model,
    rules: Rules,
    mut begin: impl FnMut() -> Vec<S>,
) -> Vec<Op> {
    let mut part = |ops: &[Op]| {
        let mut subjects = begin();
        let mut faces: Vec<&mut dyn DataFs> =
            subjects.iter_mut().map(|subject| subject as &mut dyn DataFs).collect();
        let mut model = Model::new(model.limits());
        let check_every = if ops.len() <= 200 { 1 } else { rules.check_every };
        let rules = Rules { check_every, ..rules };
        replay(&mut model, &mut faces, ops, rules).err().map(|difference| difference.ops)
    };
    let Some(mut ops) = part(&found.ops_of_file()).or_else(|| part(&found.ops)) else {
        return found.ops.clone();
    };
    let mut len = ops.len().div_ceil(2);
    while len > 0 {
        let (mut start, mut is_shorter) = (0, false);
        while start < ops.len() {
            let end = (start + len).min(ops.len());
            match part(&[&ops[..start], &ops[end..]].concat()) {
                Some(left_over) => {
                    ops = left_over;
                    is_shorter = true;
                }
                None => start = end,
            }
        }
        len = match len {
            // Tries single operations again until none can be removed.
            1 if is_shorter => 1,
            1 => 0,
            _ => len.div_ceil(2),
        };
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::super::{Fallocate, Limits, Options};
    use super::*;

    /// A model that does not zero the last byte of a punched hole.
    #[derive(Default)]
    struct Planted(Model);

    impl DataFs for Planted {
        fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
            match *op {
                Op::Fallocate { file, mode: mode @ Fallocate::Punch, pos, len: len @ 2.. } => {
                    self.0.apply(&Op::Fallocate { file, mode, pos, len: len - 1 })
                }
                _ => self.0.apply(op),
            }
        }
    }

    #[test]
    fn a_planted_fault_is_found_and_shrunk() {
        let mut generator = Generator::new(1, Options::default());
        let (mut model, mut planted) = (Model::default(), Planted::default());
        let rules = Rules::default();
        let found = compare(&mut model, &mut [&mut planted], &mut generator, 5_000, rules).unwrap_err();
        let ops = shrink(&found, &model, rules, || vec![Planted::default()]);
        assert!(ops.len() <= 4, "{ops:#?}");
        assert!(replay(&mut Model::default(), &mut [&mut Planted::default()], &ops, rules).is_err());
    }

    /// A model that reports the first block of every file as a hole.
    #[derive(Default)]
    struct Holey(Model);

    impl DataFs for Holey {
        fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
            match (op, self.0.apply(op)?) {
                (Op::Map { .. }, Answer::Ranges(ranges))
                    if ranges.first().is_some_and(|first| first.start == 0) =>
                {
                    Ok(Answer::Ranges(ranges[1..].to_vec()))
                }
                (_, answer) => Ok(answer),
            }
        }
    }

    #[test]
    fn bytes_in_a_hole_are_found() {
        for (fills, words) in [(true, "in a reported hole"), (false, "is expected")] {
            let mut generator = Generator::new(1, Options::default());
            let mut model = Model::new(Limits { fills, ..Limits::default() });
            let mut subjects: [&mut dyn DataFs; 1] = [&mut Holey::default()];
            let found =
                compare(&mut model, &mut subjects, &mut generator, 5_000, Rules::default()).unwrap_err();
            assert!(found.what.contains(words), "{found}");
        }
    }

    #[test]
    fn equal_subjects_do_not_part() {
        let mut generator = Generator::new(2, Options::default());
        let (mut model, mut subject) = (Model::default(), Model::default());
        let report =
            compare(&mut model, &mut [&mut subject], &mut generator, 5_000, Rules::default()).unwrap();
        assert_eq!((report.n_ops, report.n_checks), (5_000, 10));
        assert!(report.n_ok > 3_000, "{report}");
    }
}
