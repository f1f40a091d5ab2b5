//! Access to the blocks of a directory, from the device or from memory.

use extant_base::{Lblk, Pblk};

use super::block::Dir;
use crate::map::{MappedRun, data_runs_where};
use crate::rules::directory as rules;
use crate::{FindingPlace, image::Image};

/// The largest read, in bytes.
pub(super) const READ_LEN: usize = 1 << 20;

/// The mapped blocks of a directory, up to its size.
#[derive(Debug, Default)]
pub(super) struct Layout {
    /// Sorted and disjoint, cut at the directory's size.
    pub(super) runs: Vec<MappedRun>,
    /// Total blocks of all runs.
    pub(super) mapped: u64,
}

impl Layout {
    /// Maps the blocks of `dir`, at most as many as the file system has, and reports holes.
    pub(super) fn read(&mut self, dir: &Dir<'_>) {
        if self.find_runs(dir).is_none() {
            let most = dir.state.image.geometry.blocks;
            let says =
                format!("the directory has more blocks than the file system, {most}; the rest was left out");
            dir.broken(&rules::TOO_MUCH, FindingPlace::ino(dir.note.ino), says);
        }
        self.check_holes(dir);
    }

    /// Maps the blocks of `dir`. `None` if there were more than the file system has; the runs end there.
    pub(super) fn find_runs(&mut self, dir: &Dir<'_>) -> Option<()> {
        self.runs.clear();
        self.mapped = 0;
        let end = dir.blocks;
        let most = dir.state.image.geometry.blocks;
        let mut too_much = false;
        let may_enter = |block| dir.state.may_enter_shared(block);
        data_runs_where(&dir.state.image, &dir.note.root, &may_enter, &mut |run| {
            let next = self.runs.last().map_or(0, |last| last.lblk.0 + last.len);
            let len = run.len.min(end.saturating_sub(run.lblk.0));
            if run.lblk.0 < next || len == 0 && run.lblk.0 < end {
                return Some(()); // out of order: pass 1 said so
            }
            if run.lblk.0 >= end {
                return None; // behind the size, as all that follows
            }
            if self.mapped + u64::from(len) > most {
                too_much = true;
                return None;
            }
            self.mapped += u64::from(len);
            self.runs.push(MappedRun { len, ..run });
            Some(())
        });
        (!too_much).then_some(())
    }

    fn check_holes(&self, dir: &Dir<'_>) {
        let mut next = 0;
        let ends =
            self.runs.iter().map(|run| (run.lblk.0, run.lblk.0 + run.len)).chain([(dir.blocks, dir.blocks)]);
        for (start, end) in ends {
            // A hole at the end is a wrong size, which pass 1 reports.
            if start > next && start < dir.blocks {
                let says = format!("the {} blocks from block {next} on are not mapped", start - next);
                dir.broken(&rules::HOLE, FindingPlace::ino(dir.note.ino).at_lblk(Lblk(next)), says);
            }
            next = end;
        }
    }

    /// The address of a logical block.
    pub(super) fn find(&self, lblk: u32) -> Option<Pblk> {
        let at = self.runs.partition_point(|run| run.lblk.0 + run.len <= lblk);
        let run = self.runs.get(at).filter(|run| run.lblk.0 <= lblk)?;
        Some(Pblk(run.pblk.0 + u64::from(lblk - run.lblk.0)))
    }

    /// Splits `range`, which counts mapped blocks, into pieces for one read each.
    pub(super) fn pieces(
        &self,
        range: std::ops::Range<u64>,
        blocks_at_once: u32,
    ) -> impl Iterator<Item = MappedRun> + '_ {
        let mut before = 0;
        self.runs
            .iter()
            .filter_map(move |run| {
                let (start, end) = (before, before + u64::from(run.len));
                before = end;
                let (from, to) = (range.start.max(start), range.end.min(end));
                (from < to).then(|| MappedRun {
                    lblk: Lblk(run.lblk.0 + (from - start) as u32),
                    pblk: Pblk(run.pblk.0 + (from - start)),
                    len: (to - from) as u32,
                    unwritten: run.unwritten,
                })
            })
            .flat_map(move |run| {
                (0..run.len).step_by(blocks_at_once as usize).map(move |done| MappedRun {
                    lblk: Lblk(run.lblk.0 + done),
                    pblk: Pblk(run.pblk.0 + u64::from(done)),
                    len: blocks_at_once.min(run.len - done),
                    unwritten: run.unwritten,
                })
            })
    }
}

/// Gives blocks of a directory by logical number, for a second pass over them.
pub(super) trait Source {
    /// One block; `None` if it is a hole or cannot be read.
    fn block(&mut self, lblk: u32) -> Option<&[u8]>;
}

/// Reads blocks from the device on demand.
pub(super) struct Reread<'a> {
    image: &'a Image<'a>,
    layout: &'a Layout,
    bytes: Vec<u8>,
}

impl<'a> Reread<'a> {
    pub(super) fn new(image: &'a Image<'a>, layout: &'a Layout) -> Self {
        Self { image, layout, bytes: vec![0; image.geometry.block_size.len()] }
    }
}

impl Source for Reread<'_> {
    fn block(&mut self, lblk: u32) -> Option<&[u8]> {
        self.image.read_blocks(self.layout.find(lblk)?, &mut self.bytes).ok()?;
        Some(&self.bytes)
    }
}

/// All blocks in memory, in logical order from the first.
pub(super) struct InMemory<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) block_len: usize,
    pub(super) layout: &'a Layout,
}

impl Source for InMemory<'_> {
    fn block(&mut self, lblk: u32) -> Option<&[u8]> {
        self.layout.find(lblk)?;
        let at = (lblk as usize).checked_mul(self.block_len)?;
        self.bytes.get(at..at + self.block_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lblk: u32, pblk: u64, len: u32) -> MappedRun {
        MappedRun { lblk: Lblk(lblk), pblk: Pblk(pblk), len, unwritten: false }
    }

    #[test]
    fn pieces_count_what_is_mapped() {
        let layout = Layout { runs: vec![run(0, 100, 5), run(8, 200, 1), run(9, 300, 4)], mapped: 10 };
        let pieces: Vec<MappedRun> = layout.pieces(3..8, 3).collect();
        assert_eq!(pieces, [run(3, 103, 2), run(8, 200, 1), run(9, 300, 2)]);
        let pieces: Vec<MappedRun> = layout.pieces(0..10, 2).collect();
        assert_eq!(
            pieces,
            [run(0, 100, 2), run(2, 102, 2), run(4, 104, 1), run(8, 200, 1), run(9, 300, 2), run(11, 302, 2)]
        );
        assert_eq!(
            [4, 5, 8, 12, 13].map(|lblk| layout.find(lblk)),
            [Some(Pblk(104)), None, Some(Pblk(200)), Some(Pblk(303)), None]
        );
    }
}
