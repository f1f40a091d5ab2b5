//! Applies the same operations to two subjects and finds the first difference.

use std::collections::BTreeMap;
use std::fmt;

use crate::Subject;
use crate::errno::Errno;
use crate::generator::Generator;
use crate::op::Op;
use crate::tree::diff;

/// Operations shown with a difference.
const N_SHOWN: usize = 12;
/// Differences of trees shown.
const N_LINES: usize = 20;

/// Counters of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations applied.
    pub n_ops: u64,
    /// Those of them that succeeded.
    pub n_ok: u64,
    /// Trees compared.
    pub n_trees: u64,
    /// How often each operation gave each answer. `("mkdir", None)` counts successful mkdirs.
    pub answers: BTreeMap<(&'static str, Option<Errno>), u64>,
}

impl Report {
    fn count(&mut self, op: &Op, answer: Result<(), Errno>) {
        self.n_ops += 1;
        self.n_ok += u64::from(answer.is_ok());
        *self.answers.entry((op.name(), answer.err())).or_default() += 1;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} operations, {} successful, {} trees equal", self.n_ops, self.n_ok, self.n_trees)?;
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

/// The first difference between two subjects.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Seed of the generator; `None` for a recorded list.
    pub seed: Option<u64>,
    /// The number, from 0, of the operation with different answers, or of the last one before the trees
    /// differed.
    pub op_number: u64,
    /// The two answers, or lines of [`diff`].
    pub what: Vec<String>,
    /// All operations up to and including that one.
    pub ops: Vec<Op>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}, ")?;
        }
        writeln!(f, "operation {}:", self.op_number)?;
        for line in self.what.iter().take(N_LINES) {
            writeln!(f, "  {line}")?;
        }
        if self.what.len() > N_LINES {
            writeln!(f, "  … and {} more", self.what.len() - N_LINES)?;
        }
        writeln!(f, "the last operations:")?;
        let start = self.ops.len().saturating_sub(N_SHOWN);
        for (n, op) in self.ops.iter().enumerate().skip(start) {
            writeln!(f, "  {n}: {op:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Difference {}

/// Applies the next `n_ops` operations of the generator to both subjects. It compares the answers of each
/// operation, and the trees after every `check_every` operations and at the end.
///
/// # Errors
/// The first difference, with all operations that led to it.
pub fn compare(
    left: &mut dyn Subject,
    right: &mut dyn Subject,
    generator: &mut Generator,
    n_ops: u64,
    check_every: u64,
) -> Result<Report, Box<Difference>> {
    let start = generator.clone();
    let ops = generator.by_ref().take(usize::try_from(n_ops).unwrap_or(usize::MAX));
    run(left, right, ops, check_every).map_err(|(op_number, what)| {
        // Generates the operations again instead of keeping them: a million operations take much memory.
        let n = usize::try_from(op_number + 1).unwrap_or(usize::MAX);
        let seed = Some(start.seed());
        Box::new(Difference { seed, op_number, what, ops: start.take(n).collect() })
    })
}

/// As [`compare`], for a list of operations.
///
/// # Errors
/// The first difference.
pub fn replay(
    left: &mut dyn Subject,
    right: &mut dyn Subject,
    ops: &[Op],
    check_every: u64,
) -> Result<Report, Box<Difference>> {
    run(left, right, ops.iter().cloned(), check_every).map_err(|(op_number, what)| {
        let n = usize::try_from(op_number + 1).unwrap_or(usize::MAX).min(ops.len());
        Box::new(Difference { seed: None, op_number, what, ops: ops[..n].to_vec() })
    })
}

fn run(
    left: &mut dyn Subject,
    right: &mut dyn Subject,
    ops: impl Iterator<Item = Op>,
    check_every: u64,
) -> Result<Report, (u64, Vec<String>)> {
    let mut report = Report::default();
    let mut n_unchecked = 0;
    for op in ops {
        let (answer, other) = (left.apply(&op), right.apply(&op));
        if answer != other {
            return Err((
                report.n_ops,
                vec![format!("{op:?}: {} != {}", answer_text(answer), answer_text(other))],
            ));
        }
        report.count(&op, answer);
        n_unchecked += 1;
        if n_unchecked >= check_every.max(1) {
            check(left, right, &mut report)?;
            n_unchecked = 0;
        }
    }
    if n_unchecked > 0 || report.n_ops == 0 {
        check(left, right, &mut report)?;
    }
    Ok(report)
}

fn check(
    left: &mut dyn Subject,
    right: &mut dyn Subject,
    report: &mut Report,
) -> Result<(), (u64, Vec<String>)> {
    let lines = diff(&left.tree(), &right.tree());
    report.n_trees += 1;
    if lines.is_empty() { Ok(()) } else { Err((report.n_ops.saturating_sub(1), lines)) }
}

fn answer_text(answer: Result<(), Errno>) -> String {
    answer.map_or_else(|errno| errno.to_string(), |()| "ok".to_owned())
}

/// Removes operations from a list as long as the subjects still differ (delta debugging, Zeller 2002): first
/// half of the list, finally single operations.
///
/// `begin` creates two fresh subjects for each attempt. A short list compares answers and trees after every
/// operation, a long one only at the end. A list without a difference is returned unchanged.
pub fn shrink<L: Subject, R: Subject>(ops: &[Op], mut begin: impl FnMut() -> (L, R)) -> Vec<Op> {
    let mut part = |ops: &[Op]| {
        let (mut left, mut right) = begin();
        let check_every = if ops.len() <= 100 { 1 } else { ops.len() as u64 };
        replay(&mut left, &mut right, ops, check_every).err().map(|difference| difference.ops)
    };
    // Operations after the first difference have no effect.
    let Some(mut ops) = part(ops) else { return ops.to_vec() };
    let mut len = ops.len().div_ceil(2);
    while len > 0 {
        let mut start = 0;
        let mut is_shorter = false;
        while start < ops.len() {
            let end = (start + len).min(ops.len());
            let fewer: Vec<Op> = ops[..start].iter().chain(&ops[end..]).cloned().collect();
            match part(&fewer) {
                Some(left_over) => {
                    ops = left_over;
                    is_shorter = true;
                }
                None => start = end,
            }
        }
        // Tries single operations again until none can be removed.
        len = match len {
            1 if is_shorter => 1,
            1 => 0,
            _ => len.div_ceil(2),
        };
    }
    ops
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{At, Limits, Model, Options, Tree};

    /// A model that omits one of two links if the link is called "b" and is in a directory.
    struct Planted(Model);

    impl Subject for Planted {
        fn apply(&mut self, op: &Op) -> Result<(), Errno> {
            self.0.apply(op)
        }

        fn tree(&mut self) -> Tree {
            let mut tree = self.0.tree();
            let wrong = tree.nodes.iter_mut().filter(|(path, node)| path.ends_with(b"/b") && node.nlink == 2);
            wrong.for_each(|(_, node)| node.nlink = 1);
            tree
        }
    }

    #[test]
    fn a_planted_fault_is_found_and_shrunk() {
        let mut generator = Generator::new(1, Options::default());
        let (mut model, mut planted) = (Model::default(), Planted(Model::default()));
        let found = compare(&mut model, &mut planted, &mut generator, 100_000, 100).unwrap_err();
        assert_eq!(found.ops.len() as u64, found.op_number + 1);
        let ops = shrink(&found.ops, || (Model::default(), Planted(Model::default())));
        assert!(ops.len() <= 5, "{ops:#?}");
        assert!(replay(&mut Model::default(), &mut Planted(Model::default()), &ops, 1).is_err());
    }

    #[test]
    fn equal_subjects_do_not_part() {
        let limits = Limits { ea_inode: true, ..Limits::default() };
        let mut generator = Generator::new(2, Options { limits, ..Options::default() });
        let (mut left, mut right) = (Model::new(limits), Model::new(limits));
        let report = compare(&mut left, &mut right, &mut generator, 5_000, 500).unwrap();
        assert_eq!((report.n_ops, report.n_trees), (5_000, 10));
        assert!(report.n_ok > 2_000, "{report}");
        let ops = [Op::Stat { at: At::new("no") }];
        assert_eq!(shrink(&ops, || (Model::default(), Model::default())), ops);
    }
}
