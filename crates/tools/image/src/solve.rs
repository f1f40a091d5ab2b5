//! Finds the size: the smallest file system that holds the tree, or a check that a given size is sufficient.
//!
//! The plan is a function of the number of blocks, and determines the last used block. If the device ends
//! directly after that block, the file system is smaller, and its plan ends earlier or at the same block. The
//! search continues downward until nothing changes. Descriptor tables, inode tables and the journal shrink in
//! steps, so the search tries these steps separately at the end.

use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::BlockSize;

use crate::options::{FormatOptions, JournalSize, Usage};
use crate::plan::{Input, Needs, Plan, PlanFault};
use crate::sizing::{self, Sized, SizingFault, Tail};

/// Why no size was found.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SolveFault {
    /// The options are invalid.
    #[error(transparent)]
    Sizing(#[from] SizingFault),
    /// The tree cannot be stored at any size.
    #[error(transparent)]
    Plan(PlanFault),
    /// The work was cancelled.
    #[error("interrupted")]
    Interrupted,
    /// The given size is too small.
    #[error("the image needs {needed_bytes} bytes, and {given_bytes} were given")]
    TooSmall {
        /// Bytes given.
        given_bytes: u64,
        /// The exact size needed.
        needed_bytes: u64,
    },
}

impl SolveFault {
    /// Whether the caller ended the work: `cancel` became true.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Interrupted)
    }
}

/// Sizes in blocks below which mke2fs chooses a smaller journal.
const JOURNAL_STEPS: [u64; 8] = [2048, 32 << 10, 256 << 10, 512 << 10, 4 << 20, 8 << 20, 16 << 20, 32 << 20];

/// Maximum size of a file system in blocks.
const BLOCKS_MAX: u64 = 1 << 48;

struct Solver<'s, 't> {
    input: &'s Input<'t>,
    options: &'s FormatOptions,
    block_size: BlockSize,
    needs: Needs,
    cancel: &'s AtomicBool,
}

impl<'t> Solver<'_, 't> {
    fn sized(&self, blocks: u64, inodes: u64) -> Result<Sized, SizingFault> {
        sizing::size(self.options, self.block_size, blocks, Some(inodes), Tail::Keep)
    }

    /// A plan for exactly this many blocks; `None` if the tree does not fit.
    fn attempt(&self, blocks: u64, inodes: u64) -> Result<Option<Plan<'t>>, SolveFault> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(SolveFault::Interrupted);
        }
        let sized = match self.sized(blocks, inodes) {
            Ok(sized) => sized,
            Err(SizingFault::TooSmall { .. } | SizingFault::TooManyInodes { .. }) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        // If a tail too small for its own metadata was cut off, the file system does not have the requested
        // size.
        let whole = blocks & !(sized.geometry.cluster_ratio() - 1);
        if sized.geometry.blocks != whole {
            return Ok(None);
        }
        match Plan::new(self.input, &sized, &self.needs) {
            Ok(plan) => Ok(Some(plan)),
            Err(PlanFault::Full | PlanFault::NoRoom(_)) => Ok(None),
            Err(fault) => Err(SolveFault::Plan(fault)),
        }
    }

    /// The smallest number of blocks.
    fn smallest(&self, inodes: u64) -> Result<u64, SolveFault> {
        let tables = inodes * u64::from(self.options.inode_size.unwrap_or(256)) / self.block_size.bytes();
        let mut guess = self.needs.blocks + tables + tables / 8 + 4096;
        guess += guess / 32 + u64::from(extant_jbd2_format::default_journal_blocks(guess).unwrap_or(0));
        let mut best = loop {
            if let Some(plan) = self.attempt(guess, inodes)? {
                break self.descend(plan, inodes)?;
            }
            guess += guess / 8 + 1024;
            if guess > BLOCKS_MAX {
                return Err(SolveFault::Plan(PlanFault::Full));
            }
        };
        // The descent ends where one block less does not fit. But below a step, where some metadata is no
        // longer needed, the tree may fit again.
        loop {
            let steps = self.steps_below(best, inodes)?;
            let mut lower = None;
            for step in steps {
                if let Some(plan) = self.attempt(step, inodes)? {
                    lower = Some(self.descend(plan, inodes)?);
                    break;
                }
            }
            match lower {
                Some(blocks) => best = blocks,
                None => return Ok(best),
            }
        }
    }

    /// Sizes below `blocks` at which a file system has less metadata than directly above: the last ones with
    /// a smaller journal (or none), and the last one with one group less.
    fn steps_below(&self, blocks: u64, inodes: u64) -> Result<Vec<u64>, SolveFault> {
        let mut steps = Vec::new();
        if self.options.journal_size == JournalSize::Auto {
            steps.extend(JOURNAL_STEPS.iter().map(|step| step - 1).filter(|&step| step < blocks));
        }
        let geometry = self.sized(blocks, inodes)?.geometry;
        let (first, group) = (u64::from(geometry.first_data_block), u64::from(geometry.blocks_per_group));
        let borders = (blocks.saturating_sub(first + 1)) / group;
        if borders > 0 {
            steps.push(first + borders * group);
        }
        Ok(steps)
    }

    /// The smallest number of blocks, at least `from`, that fits.
    fn at_least(&self, from: u64, inodes: u64) -> Result<u64, SolveFault> {
        if self.attempt(from, inodes)?.is_some() {
            return Ok(from);
        }
        let mut step = 1;
        while self.attempt(from + step, inodes)?.is_none() {
            step *= 2;
            if from + step > BLOCKS_MAX {
                return Err(SolveFault::Plan(PlanFault::Full));
            }
        }
        self.between(from + step / 2, from + step, inodes)
    }

    /// Descends from a plan that fits to a size where one block less does not fit.
    fn descend(&self, plan: Plan<'t>, inodes: u64) -> Result<u64, SolveFault> {
        let mut fits = plan.geometry().blocks;
        // A plan that ends at the end of the device may still fit with one block less: the number of
        // descriptors reserved for growth depends on the size, and may decrease by one.
        let mut next = plan.used_end().min(fits - 1);
        drop(plan);
        loop {
            match self.attempt(next, inodes)? {
                Some(plan) => (fits, next) = (next, plan.used_end().min(next - 1)),
                None => return self.between(next, fits, inodes),
            }
        }
    }

    /// The smallest size above `fails` that fits; `fits` is an upper bound. Doubles the step, then bisects.
    fn between(&self, mut fails: u64, mut fits: u64, inodes: u64) -> Result<u64, SolveFault> {
        let mut step = 1;
        while fails + step < fits {
            if self.attempt(fails + step, inodes)?.is_some() {
                fits = fails + step;
                break;
            }
            fails += step;
            step *= 2;
        }
        while fits - fails > 1 {
            let middle = fails + (fits - fails) / 2;
            if self.attempt(middle, inodes)?.is_some() {
                fits = middle;
            } else {
                fails = middle;
            }
        }
        Ok(fits)
    }
}

/// How to choose the size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SizeChoice {
    /// The smallest size, plus room for later files.
    Smallest {
        /// Additional blocks and inodes in percent.
        headroom_percent: f64,
        /// Additional bytes after that.
        more_bytes: u64,
    },
    /// Exactly this many bytes.
    Bytes(u64),
}

impl Default for SizeChoice {
    fn default() -> Self {
        Self::Smallest { headroom_percent: 0.0, more_bytes: 0 }
    }
}

/// Bytes of a group per inode in an image of the smallest size. Such an image is often grown on the target,
/// and its number of inodes per group never changes.
const SMALLEST_GROUP_RATIO: u64 = 64 << 10;

/// The minimum inode ratio of the groups of an image, in bytes per inode: the given ratio, or mke2fs's
/// default for the size to grow to. With neither, an image of the smallest size gets a quarter of the usual
/// number of inodes. `None` if the number of inodes is given, or if the size is given without a size to grow
/// to.
#[must_use]
pub fn group_ratio(options: &FormatOptions, choice: SizeChoice) -> Option<u64> {
    if options.inodes.is_some() {
        return None;
    }
    let usual =
        options.grow_to_bytes.map(|bytes| options.usage.unwrap_or(Usage::for_size(bytes)).inode_ratio());
    let chosen = options.inode_ratio.or(usual);
    match choice {
        SizeChoice::Smallest { .. } => Some(chosen.unwrap_or(SMALLEST_GROUP_RATIO)),
        SizeChoice::Bytes(_) => chosen.filter(|_| options.grow_to_bytes.is_some()),
    }
}

/// The default number of inodes of mke2fs for a file system of `blocks` blocks.
fn usual_inodes(options: &FormatOptions, blocks: u64, block_size: BlockSize) -> u64 {
    let bytes = blocks.saturating_mul(block_size.bytes());
    let usage = options.usage.unwrap_or(Usage::for_size(bytes));
    bytes / options.inode_ratio.unwrap_or(usage.inode_ratio()).max(block_size.bytes())
}

/// Plans the tree for the chosen size. Returns the plan and the image's length in bytes. Another thread can
/// set `cancel` to end the search.
///
/// # Errors
/// See [`SolveFault`].
pub fn solve<'t>(
    input: &Input<'t>,
    block_size: BlockSize,
    choice: SizeChoice,
    cancel: &AtomicBool,
) -> Result<(Plan<'t>, u64), SolveFault> {
    let options = input.options;
    // The requirements of the tree do not depend on the size. 2^20 blocks have room for every feature, and a
    // single inode fits any group.
    let sample = sizing::size(options, block_size, 1 << 20, Some(1), Tail::Keep)?;
    let needs = Needs::new(input, &sample).map_err(SolveFault::Plan)?;
    let solver = Solver { input, options, block_size, needs, cancel };
    let least_inodes = solver.needs.inodes.max(options.inodes.unwrap_or(0));
    match choice {
        SizeChoice::Smallest { headroom_percent, more_bytes } => {
            let blocks = solver.smallest(least_inodes)?;
            if headroom_percent > 0.0 || more_bytes > 0 {
                let percent = |n: u64| n + (n as f64 * headroom_percent / 100.0).ceil() as u64;
                let grow = |n: u64| percent(n).saturating_add(more_bytes.div_ceil(block_size.bytes()));
                // There will be more files: use the number of inodes that a file system of this size usually
                // has.
                let inodes = match options.inodes {
                    Some(_) => percent(least_inodes),
                    None => percent(least_inodes).max(usual_inodes(options, grow(blocks), block_size)),
                };
                let roomy = solver.smallest(inodes)?.max(grow(blocks));
                let plan = solver.attempt(solver.at_least(roomy, inodes)?, inodes)?;
                let plan = plan.ok_or(SolveFault::Plan(PlanFault::Full))?;
                let blocks = plan.geometry().blocks;
                return Ok((plan, blocks * block_size.bytes()));
            }
            let plan = solver.attempt(blocks, least_inodes)?.ok_or(SolveFault::Plan(PlanFault::Full))?;
            let blocks = plan.geometry().blocks;
            Ok((plan, blocks * block_size.bytes()))
        }
        SizeChoice::Bytes(bytes) => {
            let blocks = bytes / block_size.bytes();
            let usage = options.usage.unwrap_or(crate::options::Usage::for_size(bytes));
            let ratio = options.inode_ratio.unwrap_or(usage.inode_ratio()).max(block_size.bytes());
            let usual = options.inodes.unwrap_or(bytes / ratio);
            for inodes in [least_inodes.max(usual), least_inodes] {
                // A last group that is too small is left out, as everywhere else.
                let kept = match solver.sized(blocks, inodes) {
                    Ok(sized) => sized.geometry.blocks,
                    Err(SizingFault::TooSmall { .. } | SizingFault::TooManyInodes { .. }) => continue,
                    Err(fault) => return Err(fault.into()),
                };
                if let Some(plan) = solver.attempt(kept, inodes)? {
                    return Ok((plan, bytes));
                }
            }
            let needed = solver.smallest(least_inodes)?;
            if needed <= blocks {
                // The tree fits a smaller device, which has a smaller journal: make that file system within
                // the given size.
                if let Some(plan) = solver.attempt(needed, least_inodes)? {
                    return Ok((plan, bytes));
                }
            }
            Err(SolveFault::TooSmall { given_bytes: bytes, needed_bytes: needed * block_size.bytes() })
        }
    }
}
