//! Plans and writes an empty file system like that of mke2fs.

use std::sync::atomic::AtomicBool;

use extant_base::BlockSize;
use extant_device::Device;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;

use crate::options::FormatOptions;
use crate::plan::{Input, Needs, Plan, PlanFault, Style};
use crate::sizing::{self, SizingFault, Tail};
use crate::source::entry::{Metadata, Time};
use crate::tree::{InsertFault, MergeRules, Sealed, Tree};
use crate::write::{Meter, WriteFault, WriteOptions, Written, write};

/// Why no file system was made.
#[derive(Debug, thiserror::Error)]
pub enum MkfsFault {
    /// The options are invalid for this size.
    #[error(transparent)]
    Sizing(#[from] SizingFault),
    /// The layout is impossible.
    #[error("{0}")]
    Plan(#[from] PlanFault),
    /// Writing to the device failed.
    #[error(transparent)]
    Write(#[from] WriteFault),
}

impl MkfsFault {
    /// Whether the caller ended the work: `cancel` became true.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        matches!(self, Self::Write(fault) if fault.is_interrupted())
    }
}

/// The values that would otherwise be random or depend on a clock.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// UUID of the file system.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// Time of creation, seconds since 1970.
    pub time: u64,
}

/// A tree with only lost+found in it.
#[derive(Debug)]
pub struct EmptyTree {
    tree: Tree,
    sealed: Sealed,
    lost_found: u32,
}

impl EmptyTree {
    /// Builds the tree, with times of `time` and the owner `owner` (uid, gid) for the root.
    #[must_use]
    pub fn new(time: u64, owner: (u32, u32)) -> Self {
        let mut tree = Tree::new();
        let root = &mut tree.nodes[0];
        root.mtime_seconds = time as i64;
        (root.uid, root.gid) = owner;
        let lost_found = ensure_lost_found(&mut tree, time).expect("an empty root has room for a name");
        tree.count_links();
        let sealed = tree.order(None);
        Self { tree, sealed, lost_found }
    }

    /// The input of a plan.
    #[must_use]
    pub fn input<'t>(
        &'t self,
        options: &'t FormatOptions,
        identity: Identity,
        fresh_device: bool,
    ) -> Input<'t> {
        Input {
            tree: &self.tree,
            sealed: &self.sealed,
            lost_found: self.lost_found,
            options,
            uuid: identity.uuid,
            hash_seed: identity.hash_seed,
            time: identity.time,
            style: Style::LikeMke2fs,
            fresh_device,
        }
    }
}

/// Ensures that the root has a directory lost+found, and returns its node.
///
/// # Errors
/// Another type of entry has that name, or the tree is full.
pub fn ensure_lost_found(tree: &mut Tree, time: u64) -> Result<u32, InsertFault> {
    if let Some(record) = tree.lookup(0, b"lost+found") {
        let node = tree.records[record as usize].node;
        if tree.nodes[node as usize].is_dir() {
            return Ok(node);
        }
        return Err(InsertFault::LostFoundTaken);
    }
    let rules = MergeRules { layer: u16::MAX, replace_directories: false, keep_times: false };
    let metadata = Metadata {
        permissions: 0o700,
        uid: 0,
        gid: 0,
        mtime: Time { seconds: time as i64, nanos: 0 },
        atime: None,
        ctime: None,
        crtime: None,
        xattrs: Vec::new(),
    };
    let node = tree.bare_node(&metadata, FileType::Directory, rules);
    tree.add_node(0, b"lost+found", node, rules).map(|(node, _)| node)
}

/// Plans an empty file system on `bytes` bytes.
///
/// # Errors
/// The options are invalid for this size, or the layout is impossible.
pub fn plan<'t>(input: &Input<'t>, bytes: u64) -> Result<Plan<'t>, MkfsFault> {
    let block_size: BlockSize = sizing::block_size(input.options, bytes);
    let blocks = bytes / block_size.bytes();
    let sized = sizing::size(input.options, block_size, blocks, None, Tail::Drop)?;
    let needs = Needs::new(input, &sized)?;
    Ok(Plan::new(input, &sized, &needs)?)
}

/// Writes a planned empty file system.
///
/// # Errors
/// Writing to the device failed.
pub fn write_plan(plan: &Plan<'_>, device: &dyn Device, sync: bool) -> Result<Written, MkfsFault> {
    write_plan_watched(plan, device, sync, &(), &AtomicBool::new(false))
}

/// As [`write_plan`], and reports progress. The work ends when `cancel` becomes true.
///
/// # Errors
/// Writing to the device failed, or was cancelled. The device then holds no file system.
pub fn write_plan_watched(
    plan: &Plan<'_>,
    device: &dyn Device,
    sync: bool,
    meter: &dyn Meter,
    cancel: &AtomicBool,
) -> Result<Written, MkfsFault> {
    let options = WriteOptions { threads: 1, tolerate_changes: false, cancel, sync };
    Ok(write(plan, device, &[], options, meter)?)
}

/// Whether a journal was requested but left out because the device is too small.
#[must_use]
pub fn journal_was_dropped(options: &FormatOptions, plan: &Plan<'_>) -> bool {
    let asked = options.resolve_features().is_ok_and(|f| f.has_compat(Features::HAS_JOURNAL));
    asked && !plan.superblock.features.has_compat(Features::HAS_JOURNAL)
}
