//! What a cut may leave of a file.
//!
//! ```text
//!   steps in the surviving commits:  write: the new value, too   truncate, punch, zero, shift: only the new one   fsync: only the current one
//!   steps after them:                write: the new value, too, where the block was (in place)                    zeroed edges: zeros, too
//! ```
//!
//! A write in place is visible without a commit; everything else needs one. Steps after the surviving commits
//! may move bytes. A later write in place is then visible at the offset where the bytes were at the last
//! surviving commit: `origin`.

use std::ops::Range;

use extant_volume::Allocate;

use super::DataKind;
use super::model::{describe, token, units};
use super::run::{DataRun, Taken};
use super::step::{Step, UNIT};

/// Maximum number of units of a file, including units after its end that a step may name.
const UNITS_MAX: usize = 1 << 16;

/// The values that a unit may hold. Usually one, which needs no separate allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    first: u64,
    more: Vec<u64>,
}

impl Cell {
    const ZEROS: Self = Self::of(0);

    const fn of(unit: u64) -> Self {
        Self { first: unit, more: Vec::new() }
    }

    fn may_hold(&self, unit: u64) -> bool {
        self.first == unit || self.more.contains(&unit)
    }

    fn push(&mut self, unit: u64) {
        if !self.may_hold(unit) {
            self.more.push(unit);
        }
    }

    fn units(&self) -> impl Iterator<Item = u64> + '_ {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }
}

/// The values that each unit of a file may hold, and the sizes that it may have.
#[derive(Debug, Clone, Default)]
pub(super) struct Allowed {
    /// Units that are not listed hold zeros.
    cells: Vec<Cell>,
    /// Minimum size in units.
    low: usize,
    /// Maximum size in units.
    high: usize,
    /// Sizes that the file had in memory.
    sizes: Vec<usize>,
    /// Units that became zero by steps that no surviving commit contains.
    blanked: std::collections::BTreeSet<usize>,
    /// Contents that the file had in memory.
    shown: Vec<std::sync::Arc<Vec<u64>>>,
}

impl DataRun {
    /// The last step that had begun at this event.
    pub(super) fn last_begun(&self, event: u64) -> usize {
        self.taken.iter().rposition(|taken| taken.begun <= event).unwrap_or(0)
    }

    /// The last step that must be committed, because an acknowledged step needs it.
    pub(super) fn floor(&self, event: u64) -> usize {
        let acknowledged = self.taken.iter().enumerate().filter(|(_, taken)| taken.ended <= event);
        let needed = acknowledged.map(|(number, taken)| match taken.step {
            Step::Sync | Step::Commit => number,
            Step::Fsync(_) => self.last_change(number, taken.file, true),
            Step::Fdatasync(_) => self.last_change(number, taken.file, false),
            _ => 0,
        });
        needed.max().unwrap_or(0)
    }

    /// The last step up to `upto` that changed a file's size, or its name if `names` is set.
    fn last_change(&self, upto: usize, file: Option<u32>, names: bool) -> usize {
        let size = |number: usize| {
            file.and_then(|file| self.taken[number].memory.files.get(&file)).map(|of| of.len())
        };
        let changes = |number: usize| match self.taken[number].step {
            Step::Create(_) => true,
            // The judgement of the bytes covers what these steps do to them.
            Step::Resize(..) | Step::Allocate(..) | Step::Partly(..) => size(number) != size(number - 1),
            Step::Rename(..) => names,
            _ => false,
        };
        let is_it = |number: &usize| self.taken[*number].file == file && changes(*number);
        (0..=upto).rev().find(is_it).unwrap_or(0)
    }

    /// The allowed states of a file when power fails at `event` and the commits contain the steps up to
    /// `applied`.
    pub(super) fn allowed(&self, file: u32, applied: usize, event: u64) -> Allowed {
        let last = self.last_begun(event);
        let is_of = |taken: &Taken| taken.file == Some(file);
        let is_acknowledged = |taken: &Taken| {
            let is_sync = match taken.step {
                Step::Sync => taken.memory.files.contains_key(&file),
                Step::Fsync(_) | Step::Fdatasync(_) => is_of(taken),
                _ => false,
            };
            is_sync && taken.ended <= event
        };
        let acknowledged = self.taken[..=last].iter().rposition(is_acknowledged).unwrap_or(0);
        let applied = applied.max(acknowledged);
        let mut replay = Replay {
            allowed: Allowed::default(),
            origin: None,
            kind: self.schedule.kind,
            block: (self.schedule.kind.block_bytes() / UNIT) as usize,
        };
        let mut before = 0;
        for (number, taken) in self.taken[..=last].iter().enumerate() {
            if number == acknowledged && is_acknowledged(taken) {
                replay.acknowledge(&taken.memory.files[&file]);
            }
            if !is_of(taken) {
                continue;
            }
            let content = &taken.memory.files[&file];
            if number < acknowledged {
                // Its values are superseded by the acknowledged step.
            } else if number <= applied {
                replay.apply(number, taken.step, before, content.len(), file);
            } else {
                replay.write_in_place(number, taken.step, before, file);
            }
            before = content.len();
            if replay.allowed.sizes.last() != Some(&before) {
                replay.allowed.sizes.push(before);
            }
            replay.allowed.shown.push(content.clone());
        }
        replay.allowed
    }
}

struct Replay {
    allowed: Allowed,
    /// For each unit: its offset when the last surviving commit was made. `None`: no step has moved units
    /// yet.
    origin: Option<Vec<Option<usize>>>,
    kind: DataKind,
    /// Units of a block.
    block: usize,
}

impl Replay {
    fn acknowledge(&mut self, content: &[u64]) {
        let allowed = &mut self.allowed;
        allowed.cells = content.iter().map(|unit| Cell::of(*unit)).collect();
        (allowed.low, allowed.high) = (content.len(), content.len());
    }

    fn cell(&mut self, at: usize) -> &mut Cell {
        let cells = &mut self.allowed.cells;
        if cells.len() <= at {
            cells.resize(at + 1, Cell::ZEROS);
        }
        &mut cells[at]
    }

    fn push(&mut self, at: usize, unit: u64) {
        self.cell(at).push(unit);
    }

    /// Sets a range to zeros only.
    fn clear(&mut self, range: Range<usize>) {
        let end = range.end.min(self.allowed.cells.len());
        for cell in &mut self.allowed.cells[range.start.min(end)..end] {
            *cell = Cell::ZEROS;
        }
    }

    /// The blocks that lie completely inside a range.
    fn inside(&self, range: &Range<usize>) -> Range<usize> {
        let start = range.start.next_multiple_of(self.block);
        start..(range.end / self.block * self.block).max(start)
    }

    /// The range that a step zeroes, and the part of it that changes only the map. The rest is written.
    fn zeroed(&self, step: Step, before: usize) -> Option<(Range<usize>, Range<usize>)> {
        let (Step::Allocate(_, mode, pos, len) | Step::Partly(_, mode, pos, len)) = step else { return None };
        let range = units(pos, len);
        let range = match mode {
            Allocate::Zero | Allocate::ZeroKeep | Allocate::WriteZeroes => range,
            Allocate::Punch if range.start < before => {
                range.start..range.end.min(before.next_multiple_of(self.block))
            }
            _ => return None,
        };
        let inside = self.inside(&range);
        Some((range, inside))
    }

    fn apply(&mut self, number: usize, step: Step, before: usize, after: usize, file: u32) {
        let is_exact = match step {
            Step::Write(_, pos, len) => {
                units(pos, len).for_each(|at| self.push(at, token(file, number, at as u64)));
                false
            }
            Step::Resize(..) => {
                self.clear(after..UNITS_MAX);
                true
            }
            Step::Allocate(_, mode, pos, len) => {
                if let Some((range, inside)) = self.zeroed(step, before) {
                    self.clear(inside.clone());
                    range.filter(|at| !inside.contains(at)).for_each(|at| self.push(at, 0));
                }
                let range = units(pos, len);
                match mode {
                    Allocate::Collapse => {
                        self.cell(range.end);
                        self.allowed.cells.drain(range);
                    }
                    Allocate::Insert => {
                        self.cell(range.end);
                        let fresh = range.clone().map(|_| Cell::ZEROS);
                        self.allowed.cells.splice(range.start..range.start, fresh);
                    }
                    _ => {}
                }
                after != before
            }
            Step::Partly(_, mode, pos, len) => {
                let zeroed = self.zeroed(step, before).map(|(range, _)| range);
                let punched = (mode == Allocate::Collapse).then(|| units(pos, len));
                zeroed.or(punched).into_iter().flatten().for_each(|at| self.push(at, 0));
                after != before
            }
            _ => false,
        };
        let allowed = &mut self.allowed;
        allowed.high = if is_exact { after } else { allowed.high.max(after) };
        allowed.low = if is_exact { after } else { allowed.low };
    }

    /// Adds what can be seen of a step that no surviving commit contains.
    fn write_in_place(&mut self, number: usize, step: Step, before: usize, file: u32) {
        let put = |replay: &mut Self, at: usize, unit: u64| {
            let origin = replay.origin.as_ref().map_or(Some(at), |origin| origin.get(at).copied().flatten());
            if let Some(at) = origin {
                replay.push(at, unit);
                if unit == 0 {
                    replay.allowed.blanked.insert(at);
                }
            }
        };
        if let Some((range, inside)) = self.zeroed(step, before) {
            // These blocks may be allocated again at once, and written with zeros around the new bytes.
            let (Step::Allocate(_, mode, ..) | Step::Partly(_, mode, ..)) = step else { return };
            let is_kept = mode != Allocate::Punch || self.kind == DataKind::Clusters;
            let seen = range.filter(|at| is_kept || !inside.contains(at));
            seen.for_each(|at| put(self, at, 0));
        }
        match step {
            Step::Write(_, pos, len) => {
                units(pos, len).for_each(|at| put(self, at, token(file, number, at as u64)));
            }
            Step::Resize(_, size) => {
                let size = (size / UNIT) as usize;
                let end = if self.kind == DataKind::Clusters { before } else { size };
                let end = end.next_multiple_of(self.block);
                (size.min(end)..end).for_each(|at| put(self, at, 0));
            }
            Step::Allocate(_, Allocate::Collapse, pos, len) => {
                let origin = self.origin.get_or_insert_with(|| (0..UNITS_MAX).map(Some).collect());
                origin.drain(units(pos, len));
            }
            Step::Allocate(_, Allocate::Insert, pos, len) => {
                let origin = self.origin.get_or_insert_with(|| (0..UNITS_MAX).map(Some).collect());
                let range = units(pos, len);
                origin.splice(range.start..range.start, range.map(|_| None));
            }
            _ => {}
        }
    }
}

impl Allowed {
    /// Allows each of two states, or a mixture of them: for a step that takes several commits.
    pub(super) fn or_part_of(&self, other: &Self) -> Self {
        let longest = self.cells.len().max(other.cells.len());
        let cells = (0..longest).map(|at| {
            let mut cell = self.cells.get(at).cloned().unwrap_or(Cell::ZEROS);
            cell.push(0);
            other.cells.get(at).into_iter().flat_map(Cell::units).for_each(|unit| cell.push(unit));
            cell
        });
        Self {
            cells: cells.collect(),
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            sizes: [&self.sizes[..], &other.sizes].concat(),
            blanked: &self.blanked | &other.blanked,
            shown: [&self.shown[..], &other.shown].concat(),
        }
    }

    /// Judges the units of a file.
    ///
    /// # Errors
    /// Describes what is not allowed.
    pub(super) fn judge(&self, found: &[u64], block_bytes: u64) -> Result<(), String> {
        let size = found.len();
        let is_between = self.low < size && size < self.high;
        let is_end = (size as u64 * UNIT).is_multiple_of(block_bytes) || self.sizes.contains(&size);
        if size != self.low && size != self.high && !(is_between && is_end) {
            let [low, high, size] = [self.low, self.high, size].map(|units| units as u64 * UNIT);
            return Err(format!("its size is {size}, and may be {low} to {high}"));
        }
        let differs = |(at, unit): (usize, &u64)| match self.cells.get(at) {
            Some(cell) => !cell.may_hold(*unit),
            None => *unit != 0,
        };
        if let Some(at) = found.iter().enumerate().position(differs) {
            let cell = self.cells.get(at).cloned().unwrap_or(Cell::ZEROS);
            let may: Vec<String> = cell.units().map(describe).collect();
            let place = at as u64 * UNIT;
            return Err(format!(
                "at {place} it holds {}, and may hold {}",
                describe(found[at]),
                may.join(", or ")
            ));
        }
        // Bytes reach the device before the size.
        let is_shown = |end: usize| {
            self.blanked.contains(&end) || self.shown.iter().any(|shown| shown.get(end) == Some(&0))
        };
        match size.checked_sub(1) {
            Some(end) if size > self.low && found[end] == 0 && !is_shown(end) => {
                Err(format!("its size is {}, and the bytes before that are not there", size as u64 * UNIT))
            }
            _ => Ok(()),
        }
    }
}
