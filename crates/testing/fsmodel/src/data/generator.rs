//! Random operations near offsets where file systems often fail: boundaries of blocks, clusters and pages,
//! the end of the file, the reach of direct and indirect blocks, and maximum sizes.
//!
//! The generator keeps its own model to choose useful operations. The same seed and options always give the
//! same operations.

use super::model::{Limits, Model};
use super::{DataFs, Fallocate, Op, Whence};
use crate::rng::Rng;

/// Maximum bytes of a write or read.
const IO_MAX: u64 = 300 << 10;
/// Maximum bytes that a call reserves.
const RESERVE_MAX: u64 = 4 << 20;
/// A file that has taken this many bytes is truncated to zero: rule 2 of the module.
const TAKEN_MAX: u64 = 48 << 20;

/// Options of a [`Generator`].
#[derive(Debug, Clone)]
pub struct Options {
    /// What the subjects' answers depend on.
    pub limits: Limits,
    /// Number of files, at most 256.
    pub n_files: u8,
    /// Whether to use offsets of gigabytes and near the maximum sizes.
    pub far: bool,
    /// Whether to write.
    pub writes: bool,
    /// The modes of fallocate to use.
    pub modes: Vec<Fallocate>,
    /// Whether to use [`Op::Map`] and [`Op::Reopen`].
    pub checks: bool,
}

impl Default for Options {
    /// All operations, on six files.
    fn default() -> Self {
        let modes = Fallocate::ALL.to_vec();
        Self { limits: Limits::default(), n_files: 6, far: true, writes: true, modes, checks: true }
    }
}

/// An endless iterator of operations.
#[derive(Debug, Clone)]
pub struct Generator {
    seed: u64,
    rng: Rng,
    options: Options,
    model: Model,
    /// Bytes that each file may have taken, as if none had been freed.
    taken: Vec<u64>,
}

impl Generator {
    /// The operations of a seed; it starts without files.
    #[must_use]
    pub fn new(seed: u64, options: Options) -> Self {
        let taken = vec![0; options.n_files.into()];
        Self { seed, rng: Rng::new(seed), model: Model::new(options.limits), options, taken }
    }

    /// The seed, which repeats the operations.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The files after all operations so far.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Changes the options for the following operations. The limits and the number of files stay.
    pub fn change(&mut self, change: impl FnOnce(&mut Options)) {
        let (limits, n_files) = (self.options.limits, self.options.n_files);
        change(&mut self.options);
        self.options = Options { limits, n_files, ..self.options.clone() };
    }

    /// The size of a block, a cluster or a page, in bytes.
    fn unit(&mut self) -> u64 {
        let Limits { block_size, cluster_size, .. } = self.options.limits;
        *self.rng.pick(&[block_size, block_size, cluster_size, 4096])
    }

    /// A position near `pos`: the same, or moved by a byte, by a unit, or back by up to three units.
    fn near(&mut self, pos: u64) -> u64 {
        let unit = self.unit();
        match self.rng.below(8) {
            0 => pos.saturating_add(1),
            1 => pos.saturating_sub(1),
            2 => pos.saturating_add(unit),
            3 => pos.saturating_sub(unit),
            4 => pos.saturating_sub(self.rng.below(3 * unit)),
            _ => pos,
        }
    }

    /// The reach of a file's direct, indirect and double indirect blocks; and round numbers.
    fn mark(&mut self) -> u64 {
        let block = self.options.limits.block_size;
        let n = block / 4;
        let marks = [64 << 10, 1 << 20, 2 << 20, 12 * block, (12 + n) * block, (12 + n + n * n) * block];
        let n_marks = if self.options.far { marks.len() } else { marks.len() - 1 };
        *self.rng.pick(&marks[..n_marks])
    }

    fn far(&mut self) -> u64 {
        let limits = self.options.limits;
        let (max, max_bitmap) = (limits.max_size(), limits.max_bitmap_size());
        match self.rng.below(12) {
            // Between these two limits the answer depends on whether a file has extents or lies in its inode:
            // not used.
            0..3 if limits.inline_data => max + 1 + self.rng.below(10),
            0 | 1 => max.min(max_bitmap),
            2 => max,
            3 => *self.rng.pick(&[i64::MAX as u64, u64::MAX, 1 << 63, max.saturating_mul(2)]),
            4 | 5 => 1 << 32,
            6 | 7 => 1 << 31,
            _ => (1 << 30) + (self.rng.below(3 << 30) & !1023),
        }
    }

    fn pos(&mut self, size: u64) -> u64 {
        let unit = self.unit();
        match self.rng.below(100) {
            0..25 => self.near(size),
            25..60 => {
                let pos = unit * self.rng.below(24);
                self.near(pos)
            }
            60..72 => self.rng.below((256 << 10).min(size.max(unit))),
            72..82 => {
                let mark = self.mark();
                self.near(mark)
            }
            82..84 if self.options.far => {
                let far = self.far();
                self.near(far)
            }
            _ => unit * self.rng.below(12),
        }
    }

    fn len(&mut self) -> u64 {
        let unit = self.unit();
        match self.rng.below(100) {
            0 => 0,
            1..10 => 1,
            10..25 => 1 + self.rng.below(100),
            25..45 => 1 + self.rng.below(unit),
            45..65 => unit * (1 + self.rng.below(6)),
            65..85 => {
                let whole = unit * (1 + self.rng.below(6));
                self.near(whole)
            }
            85..95 => 1 + self.rng.below(64 << 10),
            _ => {
                let whole = *self.rng.pick(&[64 << 10, 128 << 10, 256 << 10]);
                self.near(whole)
            }
        }
        .min(IO_MAX)
    }

    /// A length that often ends at the end of the file.
    fn len_from(&mut self, pos: u64, size: u64) -> u64 {
        if pos < size && self.rng.percent(20) {
            return self.near(size - pos);
        }
        self.len()
    }

    fn fallocate(&mut self, file: u8, size: u64) -> Op {
        let mut mode = *self.rng.pick(&self.options.modes);
        // These two modes are refused almost everywhere.
        if matches!(mode, Fallocate::WriteZeroes | Fallocate::Unshare) && !self.rng.one_in(4) {
            mode = *self.rng.pick(&self.options.modes);
        }
        let cluster = self.options.limits.cluster_size;
        let (pos, len) = match mode {
            Fallocate::Collapse | Fallocate::Insert if self.rng.percent(85) => {
                // Mostly whole clusters inside the file.
                let n = (size / cluster).min(24);
                let pos = cluster * self.rng.below(n + 1);
                (pos, cluster * (1 + self.rng.below(4)))
            }
            Fallocate::Punch if self.rng.one_in(30) => (self.pos(size), self.options.limits.max_size() / 2),
            Fallocate::WriteZeroes | Fallocate::Unshare => (self.rng.below(1 << 20), 1 + self.len()),
            _ => {
                let pos = self.pos(size);
                (pos, self.len_from(pos, size))
            }
        };
        let max = self.options.limits.max_size();
        let (pos, len) = match mode {
            Fallocate::Punch | Fallocate::Collapse => (pos, len),
            _ => (pos, len.min(RESERVE_MAX)),
        };
        // Blocks after the end of the file and near the last possible block would block an insert, and the
        // size does not show them.
        let is_behind = matches!(mode, Fallocate::Keep | Fallocate::ZeroKeep);
        let is_high = (max / 2..=max).contains(&pos.saturating_add(len));
        let pos = if is_behind && is_high { pos / 4 } else { pos };
        // The kernel (6.18) does not punch the last block that block numbers reach.
        let is_last = size > self.options.limits.max_bitmap_size() - self.options.limits.block_size;
        if mode == Fallocate::Punch && !self.options.limits.extents && is_last {
            return Op::Truncate { file, size: 0 };
        }
        Op::Fallocate { file, mode, pos, len }
    }

    fn op(&mut self) -> Op {
        let file = self.rng.index(self.options.n_files.into()) as u8;
        let size = self.model.size(file);
        let Some(size) = size else {
            return match self.rng.below(10) {
                0 => Op::Unlink { file },
                1 if self.options.writes => Op::Write { file, pos: 0, len: 1, seed: 1 },
                _ => Op::Create { file },
            };
        };
        if self.taken[usize::from(file)] > TAKEN_MAX {
            return if self.rng.percent(50) { Op::Truncate { file, size: 0 } } else { Op::Unlink { file } };
        }
        match self.rng.below(100) {
            0..30 if self.options.writes => {
                let pos = if self.rng.percent(20) { size } else { self.pos(size) };
                let seed = if self.rng.one_in(40) { 0 } else { self.rng.bits() as u32 | 1 };
                Op::Write { file, pos, len: self.len(), seed }
            }
            0..43 => {
                let pos = self.pos(size);
                Op::Read { file, pos, len: self.len_from(pos, size).min(IO_MAX) }
            }
            43..46 if size > 4 << 20 => Op::Truncate { file, size: self.rng.below(256 << 10) },
            43..51 => Op::Truncate { file, size: self.pos(size) },
            51..82 if !self.options.modes.is_empty() => self.fallocate(file, size),
            82..89 => {
                let whence = *self.rng.pick(&[Whence::Data, Whence::Hole]);
                Op::Seek { file, whence, pos: self.pos(size) }
            }
            89 => Op::Create { file },
            // If nothing writes the bytes again, remove them less often.
            90 if self.options.writes || self.rng.one_in(4) => Op::Unlink { file },
            91 if self.options.writes || self.rng.one_in(4) => Op::Truncate { file, size: 0 },
            93..95 => Op::Fsync { file },
            95 => Op::Fdatasync { file },
            96..99 if self.options.checks => Op::Map { file },
            99 if self.options.checks && self.rng.percent(40) => Op::Reopen,
            _ => Op::Stat { file },
        }
    }

    /// Counts the bytes that an operation may have taken.
    fn count(&mut self, op: &Op) {
        let cluster = self.options.limits.cluster_size;
        let Some(taken) = op.file().and_then(|file| self.taken.get_mut(usize::from(file))) else { return };
        match *op {
            Op::Create { .. } | Op::Truncate { size: 0, .. } => *taken = 0,
            Op::Write { len, .. } => *taken += len + 2 * cluster,
            Op::Fallocate { mode, len, .. } if !matches!(mode, Fallocate::Punch | Fallocate::Collapse) => {
                *taken += len.min(RESERVE_MAX) + 2 * cluster;
            }
            _ => {}
        }
    }
}

impl Iterator for Generator {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        let op = self.op();
        // The iterator returns operations that fail, too.
        if self.model.apply(&op).is_ok() {
            self.count(&op);
        }
        Some(op)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself() {
        let ops = |seed| Generator::new(seed, Options::default()).take(1000).collect::<Vec<_>>();
        assert_eq!(ops(7), ops(7));
        assert_ne!(ops(7), ops(8));
    }

    #[test]
    fn what_is_taken_stays_below_a_bound() {
        let mut generator = Generator::new(3, Options::default());
        for _ in 0..20_000 {
            generator.next();
            let taken: u64 = generator.taken.iter().sum();
            assert!(taken <= 6 * (TAKEN_MAX + RESERVE_MAX + (1 << 20)), "{taken} bytes");
        }
    }

    /// Each call succeeds often enough to combine with the others.
    #[test]
    fn every_operation_succeeds_and_most_refuse() {
        let mut model = Model::default();
        let mut n_ok = std::collections::BTreeMap::<_, [u64; 2]>::new();
        for op in Generator::new(5, Options::default()).take(20_000) {
            let is_ok = model.apply(&op).is_ok();
            n_ok.entry(op.name()).or_default()[usize::from(is_ok)] += 1;
        }
        for (name, [refused, ok]) in &n_ok {
            let is_never = matches!(*name, "write-zeroes" | "unshare");
            assert!(is_never || *ok >= 50, "{name}: {ok} ok, {refused} refused");
        }
        assert_eq!(n_ok.len(), 21, "{n_ok:?}");
    }
}
