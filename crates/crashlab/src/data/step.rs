//! Steps: what a run does to files.

use fsmodel::Rng;
use volume::Allocate;

use super::DataKind;
use super::model::Memory;

/// Names that files have.
pub(super) const NAMES: usize = 4;
/// Bytes of a unit: it tells who wrote it. Places and sizes are multiples of it.
pub(super) const UNIT: u64 = 8;

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A new file with this name, which nobody has.
    Create(usize),
    /// Bytes, from a place on; a length.
    Write(usize, u64, u64),
    /// A new size in bytes.
    Resize(usize, u64),
    /// Another map from a place on, for a length.
    Allocate(usize, Allocate, u64, u64),
    /// The name goes, and the file.
    Unlink(usize),
    /// The second name becomes the first's file's; who had it goes.
    Rename(usize, usize),
    /// The file is made durable.
    Fsync(usize),
    /// Its bytes are.
    Fdatasync(usize),
    /// Everything is.
    Sync,
    /// So many dirty bytes at most are written back. What runs may be committed before they are on the device, and after.
    WriteBack(u64, [bool; 2]),
    /// A commit, for which no bytes are written back.
    Commit,
    /// The log is written home.
    Checkpoint,
}

impl Step {
    /// The name of the file that it changes or makes durable.
    pub(super) fn name(self) -> Option<usize> {
        match self {
            Self::Create(name)
            | Self::Write(name, ..)
            | Self::Resize(name, _)
            | Self::Allocate(name, ..)
            | Self::Unlink(name)
            | Self::Rename(name, _)
            | Self::Fsync(name)
            | Self::Fdatasync(name) => Some(name),
            Self::Sync | Self::WriteBack(..) | Self::Commit | Self::Checkpoint => None,
        }
    }

    /// One that the files in memory allow.
    pub(super) fn any(random: &mut Rng, memory: &Memory, kind: DataKind) -> Self {
        let name = random.index(NAMES);
        let Some(file) = memory.names[name] else { return Self::Create(name) };
        let size = memory.files[&file].len() as u64 * UNIT;
        match random.below(100) {
            0..30 => {
                let pos = if random.one_in(3) { size } else { place(random, size, kind) };
                let len = length(random, kind).min(max_bytes(kind).saturating_sub(pos));
                if len == 0 { Self::Resize(name, 0) } else { Self::Write(name, pos, len) }
            }
            30..42 => Self::Resize(name, place(random, size, kind)),
            42..58 => allocate(random, name, size, kind),
            58..61 => Self::Unlink(name),
            61..64 => {
                let to = random.index(NAMES);
                if to == name { Self::Commit } else { Self::Rename(name, to) }
            }
            64..74 => Self::Fsync(name),
            74..79 => Self::Fdatasync(name),
            79..81 => Self::Sync,
            81..93 => {
                let bytes = *random.pick(&[kind.block_bytes(), 4 * kind.block_bytes(), u64::MAX]);
                let may = kind.lets_commits_between();
                Self::WriteBack(bytes, [may && random.one_in(2), may && random.one_in(2)])
            }
            93..98 => Self::Commit,
            _ => Self::Checkpoint,
        }
    }
}

fn max_bytes(kind: DataKind) -> u64 {
    if matches!(kind, DataKind::Blocks4K | DataKind::Clusters | DataKind::Indirect) {
        64 << 10
    } else {
        24 << 10
    }
}

/// A place that is likely one where something begins or ends.
fn place(random: &mut Rng, size: u64, kind: DataKind) -> u64 {
    let (bs, cluster) = (kind.block_bytes(), kind.cluster_bytes());
    let near = match random.below(6) {
        // What an inode has room for.
        1..4 if kind == DataKind::Inline => random.below(160),
        0 => size,
        1 => random.below(max_bytes(kind) / cluster) * cluster,
        2 => random.below(max_bytes(kind) / 512) * 512,
        3 => random.below(max_bytes(kind)),
        _ => random.below(max_bytes(kind) / bs) * bs,
    };
    let moved = match random.below(4) {
        0 => near + UNIT * random.below(4),
        1 => near.saturating_sub(UNIT * random.below(4)),
        _ => near,
    };
    moved.min(max_bytes(kind)) / UNIT * UNIT
}

fn length(random: &mut Rng, kind: DataKind) -> u64 {
    let bs = kind.block_bytes();
    match random.below(4) {
        2 if kind == DataKind::Inline => UNIT * (1 + random.below(8)),
        0 => UNIT * (1 + random.below(32)),
        1 => bs,
        2 => bs * (1 + random.below(6)),
        _ => UNIT * (1 + random.below(5 * bs / UNIT)),
    }
}

fn allocate(random: &mut Rng, name: usize, size: u64, kind: DataKind) -> Step {
    use Allocate::{Collapse, Insert, Keep, Punch, Reserve, WriteZeroes, Zero, ZeroKeep};
    let modes = [Punch, Punch, Reserve, Keep, Zero, ZeroKeep, WriteZeroes, Collapse, Insert];
    let mode = if kind.has_extents() { *random.pick(&modes) } else { Punch };
    let pos = place(random, size, kind);
    let len = length(random, kind).min(max_bytes(kind).saturating_sub(pos)).max(UNIT);
    let cluster = kind.cluster_bytes();
    match mode {
        Collapse | Insert => {
            let len = cluster * (1 + random.below(2));
            let pos = random.below(size / cluster + 1) * cluster;
            let fits =
                if mode == Collapse { pos + len < size } else { pos < size && size + len <= max_bytes(kind) };
            if fits { Step::Allocate(name, mode, pos, len) } else { Step::Write(name, 0, cluster) }
        }
        mode => Step::Allocate(name, mode, pos, len),
    }
}
