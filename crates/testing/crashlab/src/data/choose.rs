//! Random steps.

use extant_fsmodel::Rng;
use extant_volume::Allocate;

use super::model::Memory;
use super::step::{NAMES, Step, UNIT};
use super::{DataKind, Space};

impl Step {
    /// A random step that the current files allow.
    pub(super) fn any(random: &mut Rng, memory: &Memory, of: (DataKind, Space)) -> Self {
        let name = match of.1 {
            Space::Plenty | Space::Reused => random.index(NAMES),
            // Low numbers are more frequent, so that these files collect many dirty bytes.
            Space::Short => random.index(NAMES).min(random.index(NAMES)),
        };
        let Some(file) = memory.names[name] else { return Self::Create(name) };
        let size = memory.files[&file].len() as u64 * UNIT;
        match of.1 {
            Space::Plenty | Space::Reused => Self::any_small(random, (name, size), of),
            Space::Short => Self::any_large(random, (name, size), of),
        }
    }

    fn any_small(random: &mut Rng, (name, size): (usize, u64), of: (DataKind, Space)) -> Self {
        match random.below(100) {
            0..30 => {
                let pos = if random.one_in(3) { size } else { place(random, size, of) };
                let len = length(random, of);
                Self::write(name, pos, len, of)
            }
            30..42 => Self::Resize(name, place(random, size, of)),
            42..58 => allocate(random, (name, size), of),
            58..61 => Self::Unlink(name),
            61..64 => Self::rename(random, name),
            64..74 => Self::Fsync(name),
            74..79 => Self::Fdatasync(name),
            79..81 => Self::Sync,
            81..93 => Self::write_back(random, of.0),
            93..98 => Self::Commit,
            _ => Self::Checkpoint,
        }
    }

    /// A step for [`Space::Short`]: files grow by large amounts, and commits without write-back are frequent.
    fn any_large(random: &mut Rng, (name, size): (usize, u64), of: (DataKind, Space)) -> Self {
        match random.below(100) {
            0..50 => {
                let pos = match random.below(8) {
                    0..5 => size,
                    5 => size + UNIT * random.below(2 * of.0.block_bytes() / UNIT),
                    _ => place(random, size, of),
                };
                let len = length(random, of);
                Self::write(name, pos, len, of)
            }
            50..58 => Self::Resize(name, place(random, size, of)),
            58..67 => allocate(random, (name, size), of),
            67..71 => Self::Unlink(name),
            71..73 => Self::rename(random, name),
            73..78 => Self::Fsync(name),
            78..80 => Self::Fdatasync(name),
            80..81 => Self::Sync,
            81..86 => Self::write_back(random, of.0),
            86..98 => Self::Commit,
            _ => Self::Checkpoint,
        }
    }

    fn write(name: usize, pos: u64, len: u64, (kind, space): (DataKind, Space)) -> Self {
        match len.min(kind.bytes_max(space).saturating_sub(pos)) {
            0 => Self::Resize(name, 0),
            len => Self::Write(name, pos, len),
        }
    }

    fn rename(random: &mut Rng, name: usize) -> Self {
        let to = random.index(NAMES);
        if to == name { Self::Commit } else { Self::Rename(name, to) }
    }

    fn write_back(random: &mut Rng, kind: DataKind) -> Self {
        let bytes = *random.pick(&[kind.block_bytes(), 4 * kind.block_bytes(), u64::MAX]);
        let may = kind.lets_commits_between();
        Self::WriteBack(bytes, [may && random.one_in(2), may && random.one_in(2)])
    }
}

/// An offset that is likely to be a boundary of something.
fn place(random: &mut Rng, size: u64, (kind, space): (DataKind, Space)) -> u64 {
    let (bs, cluster, max) = (kind.block_bytes(), kind.cluster_bytes(), kind.bytes_max(space));
    let near = match random.below(6) {
        // Sizes around the room in an inode.
        1..4 if kind == DataKind::Inline => random.below(160),
        0 => size,
        1 => random.below(max / cluster) * cluster,
        2 => random.below(max / 512) * 512,
        3 => random.below(max),
        _ => random.below(max / bs) * bs,
    };
    let moved = match random.below(4) {
        0 => near + UNIT * random.below(4),
        1 => near.saturating_sub(UNIT * random.below(4)),
        _ => near,
    };
    moved.min(max) / UNIT * UNIT
}

fn length(random: &mut Rng, (kind, space): (DataKind, Space)) -> u64 {
    let bs = kind.block_bytes();
    if space == Space::Short && !random.one_in(3) {
        return UNIT * (1 + random.below(kind.bytes_max(space) / UNIT / 2));
    }
    match random.below(4) {
        2 if kind == DataKind::Inline => UNIT * (1 + random.below(8)),
        0 => UNIT * (1 + random.below(32)),
        1 => bs,
        2 => bs * (1 + random.below(6)),
        _ => UNIT * (1 + random.below(5 * bs / UNIT)),
    }
}

fn allocate(random: &mut Rng, (name, size): (usize, u64), of: (DataKind, Space)) -> Step {
    use Allocate::{Collapse, Insert, Keep, Punch, Reserve, WriteZeroes, Zero, ZeroKeep};
    let kind = of.0;
    let max = kind.bytes_max(of.1);
    let modes = [Punch, Punch, Reserve, Keep, Zero, ZeroKeep, WriteZeroes, Collapse, Insert];
    let mode = if kind.has_extents() { *random.pick(&modes) } else { Punch };
    let pos = place(random, size, of);
    let len = length(random, of).min(max.saturating_sub(pos)).max(UNIT);
    let cluster = kind.cluster_bytes();
    match mode {
        Collapse | Insert => {
            let len = cluster * (1 + random.below(2));
            let pos = random.below(size / cluster + 1) * cluster;
            let fits = if mode == Collapse { pos + len < size } else { pos < size && size + len <= max };
            if fits { Step::Allocate(name, mode, pos, len) } else { Step::Write(name, 0, cluster) }
        }
        mode => Step::Allocate(name, mode, pos, len),
    }
}
