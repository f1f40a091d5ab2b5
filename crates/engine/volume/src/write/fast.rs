//! Fast commits: what the operations of the running transaction have changed, as records.
//!
//! | change | records |
//! |---|---|
//! | a regular file is created | INODE, its ranges, CREAT |
//! | a file gets another name | LINK, INODE |
//! | a file loses a name | UNLINK; INODE if it has others |
//! | a file is renamed, also over another | UNLINK of the other one, LINK, UNLINK, INODE |
//! | a range of a file gets blocks, or its unwritten blocks become written | ADD_RANGE and DEL_RANGE, INODE |
//! | times, mode, owner, a larger size of a file | INODE |
//! | a file without a name is changed or deleted | none: recovery deletes it |
//!
//! *File* stands for a regular file with extents and without an attribute block. All other changes need a
//! full commit: directories that are created, removed, renamed or that grow, other inodes, extended
//! attributes, flags, smaller sizes, holes and shifts, journaled data, block maps, inline data, the reuse of
//! an inode number that the same transaction has freed, and changes of features in the superblock. A
//! transaction also needs a full commit after more than [`ENTRIES_MAX`] names and inodes have changed since
//! its last fast commit. On a file system with quotas, project quotas, bigalloc, verity or an external
//! journal, without extents or large_file, or with `nobuffered_iomap`, every commit is a full one.
//!
//! An INODE record has all bytes of the inode, so it includes attributes in the inode. It contains the state
//! at the time of the fast commit. The records of names come first, in the order in which the names changed;
//! a CREAT record directly follows the INODE record and the ranges of its new file. Each record of a name
//! changes a link count. The records of the other inodes come last, and have the final counts.
//!
//! Invariants
//! 1. An operation describes all its changes as the last step under its handle. If it does not, its
//!    transaction needs a full commit.
//! 2. Records describe changes since the last fast commit of the same transaction, or since the transaction
//!    began.
//!
//! Owns: the choice of records. Does **not** own: when they are written (`journal`), what recovery makes of
//! them (`mount/fast_commit`).
//!
//! Source: kernel Documentation/filesystems/ext4/journal.rst, "Fast commits".

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use extant_base::{Ino, Lblk, Tid};
use extant_buffer::ReadFault;
use extant_inode::{Change, DataPath, InodeCache, LiveInode, OrphanState};
use extant_jbd2_format::fast_commit::{NameChange, Record, RecordError, Writer as Records};
use extant_journal::{Bug, Described, Sabotage};
use extant_mapping::{MapState, Mapped};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::{Features, Superblock};
use parking_lot::Mutex;

/// Most names and inodes between two fast commits.
const ENTRIES_MAX: usize = 1024;
/// Most pieces of a file's map in one fast commit.
const PIECES_MAX: usize = 256;
/// Longest written extent, in blocks; the longest unwritten one has a block less.
const WRITTEN_MAX: u32 = 32_768;

/// The changes of the running transaction.
pub(crate) struct FastCommits {
    is_on: bool,
    loses_names: bool,
    tracked: Mutex<Tracked>,
}

#[derive(Default)]
struct Tracked {
    /// The transaction that all entries belong to.
    transaction: Tid,
    names: Vec<ChangedName>,
    inodes: BTreeMap<Ino, Touched>,
    /// Inodes freed in this transaction, also before the last fast commit.
    freed: HashSet<Ino>,
    /// Data was written to the device for them.
    has_data: bool,
    /// There were too many: the transaction needs a full commit, and its changes are not tracked any more.
    is_over: bool,
}

struct ChangedName {
    change: NameChange,
    dir: Ino,
    ino: Ino,
    name: Vec<u8>,
}

#[derive(Default)]
struct Touched {
    /// Created since the last fast commit.
    is_new: bool,
    /// All changed blocks are in this range.
    blocks: Option<Range<u64>>,
}

impl Touched {
    fn add(&mut self, blocks: Range<u64>) {
        let all = self.blocks.get_or_insert(blocks.clone());
        *all = all.start.min(blocks.start)..all.end.max(blocks.end);
    }
}

impl FastCommits {
    /// Whether fast commits can be written to this file system.
    pub(crate) fn are_possible(sb: &Superblock, data: DataPath, is_external: bool) -> bool {
        let features = &sb.features;
        let refused = Features::QUOTA | Features::PROJECT | Features::BIGALLOC | Features::VERITY;
        features.has_compat(Features::FAST_COMMIT)
            && features.has_compat(Features::HAS_JOURNAL)
            && features.has_incompat(Features::EXTENTS)
            // Otherwise the first large file changes the superblock.
            && features.has_ro_compat(Features::LARGE_FILE)
            && features.ro_compat & refused == 0
            && matches!(data, DataPath::Iomap)
            && !is_external
    }

    pub(crate) fn new(is_on: bool, sabotage: Sabotage) -> Self {
        let loses_names = sabotage.has(Bug::FastLosesNames);
        Self { is_on, loses_names, tracked: Mutex::default() }
    }

    /// Adds to the changes of the handle's transaction, all of which are described then.
    fn track(&self, change: &Change<'_>, add: impl FnOnce(&mut Tracked)) {
        if !self.is_on {
            return;
        }
        let mut tracked = self.tracked.lock();
        let tracked = tracked.of(change.edit.transaction());
        if tracked.is_over {
            return;
        }
        add(tracked);
        match tracked.names.len() + tracked.inodes.len() <= ENTRIES_MAX {
            true => change.edit.mark_described(),
            false => {
                // Of an operation with several entries, the first one has marked it.
                change.edit.mark_undescribed();
                *tracked = Tracked { transaction: tracked.transaction, is_over: true, ..Tracked::default() };
            }
        }
    }

    /// A change that needs no record: nothing was changed, or an inode without links was.
    pub(super) fn nothing(&self, change: &Change<'_>) {
        if self.is_on {
            change.edit.mark_described();
        }
    }

    /// A file was created with this name.
    pub(super) fn created(&self, change: &Change<'_>, dir: Ino, name: &[u8], node: &LiveInode) {
        if !self.is_on || !has_records(node) {
            return;
        }
        let ino = node.ino();
        let is_again = self.tracked.lock().has_freed(change, ino);
        if is_again {
            return;
        }
        self.track(change, |tracked| {
            tracked.inodes.insert(ino, Touched { is_new: true, ..Touched::default() });
            tracked.name(NameChange::Create, dir, ino, name);
        });
    }

    /// A file got this name.
    pub(super) fn linked(&self, change: &Change<'_>, dir: Ino, name: &[u8], node: &LiveInode) {
        if !self.is_on || !has_records(node) {
            return;
        }
        self.track(change, |tracked| {
            tracked.inodes.entry(node.ino()).or_default();
            tracked.name(NameChange::Link, dir, node.ino(), name);
        });
    }

    /// A file lost this name. If that was its last one, it was freed or is an orphan.
    pub(super) fn unlinked(&self, change: &Change<'_>, dir: Ino, name: &[u8], node: &LiveInode) {
        if !self.is_on {
            return;
        }
        let is_gone = node.values().fields.links == 0;
        if !is_gone && !has_records(node) {
            return;
        }
        let ino = node.ino();
        self.track(change, |tracked| {
            if is_gone && tracked.inodes.get(&ino).is_some_and(|touched| touched.is_new) {
                // No fast commit knows it, and none will.
                tracked.names.retain(|name| name.ino != ino);
            } else {
                tracked.name(NameChange::Unlink, dir, ino, name);
            }
            match is_gone {
                true => drop(tracked.inodes.remove(&ino)),
                false => drop(tracked.inodes.entry(ino).or_default()),
            }
        });
    }

    /// A file was renamed, and has replaced another.
    pub(super) fn renamed(
        &self,
        change: &Change<'_>,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        node: &LiveInode,
        replaced: Option<&LiveInode>,
    ) {
        let is_describable = |node: &LiveInode| node.values().fields.links == 0 || has_records(node);
        if !self.is_on || !has_records(node) || !replaced.is_none_or(is_describable) {
            return;
        }
        if let Some(replaced) = replaced {
            self.unlinked(change, to_dir, to, replaced);
        }
        self.linked(change, to_dir, to, node);
        self.unlinked(change, from_dir, from, node);
    }

    /// An inode was freed. Does not describe the other changes of the operation.
    pub(super) fn freed(&self, change: &Change<'_>, ino: Ino) {
        if self.is_on {
            let transaction = change.edit.transaction();
            self.tracked.lock().of(transaction).freed.insert(ino);
        }
    }

    /// Fields of an inode were changed. `has_data`: data was written to the device before.
    pub(super) fn touched(&self, change: &Change<'_>, node: &LiveInode, has_data: bool) {
        self.touched_in(change, node, None, has_data);
    }

    /// Blocks of a file in this range were mapped or converted, after data was written to them.
    pub(super) fn mapped(&self, change: &Change<'_>, node: &LiveInode, blocks: Range<u64>) {
        self.touched_in(change, node, Some(blocks), true);
    }

    fn touched_in(&self, change: &Change<'_>, node: &LiveInode, blocks: Option<Range<u64>>, has_data: bool) {
        if !self.is_on {
            return;
        }
        if node.values().fields.links == 0 {
            return self.nothing(change);
        }
        if !has_records(node) {
            return;
        }
        self.track(change, |tracked| {
            tracked.has_data |= has_data;
            let touched = tracked.inodes.entry(node.ino()).or_default();
            if let Some(blocks) = blocks {
                touched.add(blocks);
            }
        });
    }

    /// Writes the records of all changes since the last call.
    pub(super) fn describe(
        &self,
        live: &InodeCache,
        transaction: Tid,
        records: &mut Records,
    ) -> Result<Described, ReadFault> {
        let (names, inodes, has_data) = {
            let mut tracked = self.tracked.lock();
            if tracked.transaction != transaction || tracked.names.is_empty() && tracked.inodes.is_empty() {
                return Ok(Described::Nothing);
            }
            (
                std::mem::take(&mut tracked.names),
                std::mem::take(&mut tracked.inodes),
                std::mem::take(&mut tracked.has_data),
            )
        };
        let names = if self.loses_names { Vec::new() } else { names };
        let mut of = Writing { live, records };
        match of.all(&names, &inodes) {
            Ok(()) => Ok(Described::All { has_data }),
            Err(Stopped::Read(fault)) => Err(fault),
            Err(Stopped::Unfit) => Ok(Described::No),
        }
    }
}

impl Tracked {
    /// The changes of this transaction; those of an earlier one are dropped.
    fn of(&mut self, transaction: Tid) -> &mut Self {
        if self.transaction != transaction {
            *self = Self { transaction, ..Self::default() };
        }
        self
    }

    fn name(&mut self, change: NameChange, dir: Ino, ino: Ino, name: &[u8]) {
        self.names.push(ChangedName { change, dir, ino, name: name.to_vec() });
    }

    fn has_freed(&self, change: &Change<'_>, ino: Ino) -> bool {
        self.transaction == change.edit.transaction() && self.freed.contains(&ino)
    }
}

/// Whether an INODE record can describe this inode, and whether its blocks can be described.
///
/// The kernel's replay reads the i_block of every inode as an extent tree, and counts no attribute block.
fn has_records(node: &LiveInode) -> bool {
    let values = node.values();
    let special = flags::INLINE_DATA | flags::EA_INODE | flags::ENCRYPT | flags::VERITY | flags::JOURNAL_DATA;
    values.kind() == FileType::Regular
        && values.has_flag(flags::EXTENTS)
        && !values.has_flag(special)
        && values.fields.file_acl == 0
        // Later fields are kept by a commit, and would be zeros in a record.
        && usize::from(values.fields.extra_isize) <= extant_ondisk::inode::EXTRA_SIZE
        // An orphan's record would contain its link in the list of orphans.
        && node.orphan() == OrphanState::None
}

/// Why there are no records.
enum Stopped {
    Read(ReadFault),
    /// A record cannot be written, or there would be too many.
    Unfit,
}

impl From<RecordError> for Stopped {
    fn from(_: RecordError) -> Self {
        Self::Unfit
    }
}

struct Writing<'a> {
    live: &'a InodeCache,
    records: &'a mut Records,
}

impl Writing<'_> {
    fn all(&mut self, names: &[ChangedName], inodes: &BTreeMap<Ino, Touched>) -> Result<(), Stopped> {
        for ChangedName { change, dir, ino, name } in names {
            if *change == NameChange::Create
                && let Some(touched) = inodes.get(ino)
            {
                let node = self.node(*ino)?;
                self.inode(&node)?;
                self.ranges(&node, touched)?;
            }
            self.records.push(&Record::Name { change: *change, parent: *dir, ino: *ino, name })?;
        }
        for (ino, touched) in inodes {
            let node = self.node(*ino)?;
            let links = node.values().fields.links;
            // An inode that lost its last name after the change: recovery deletes it.
            // A new file has its record already, except for what follows from later ones: links and blocks.
            if links == 0 || touched.is_new && links == 1 && touched.blocks.is_none() {
                continue;
            }
            if !touched.is_new {
                self.ranges(&node, touched)?;
            }
            self.inode(&node)?;
        }
        Ok(())
    }

    /// Changed inodes stay in memory until their transaction is committed.
    fn node(&self, ino: Ino) -> Result<Arc<LiveInode>, Stopped> {
        self.live.cached(ino).ok_or(Stopped::Unfit)
    }

    fn inode(&mut self, node: &LiveInode) -> Result<(), Stopped> {
        let raw = self.live.encoded(node);
        Ok(self.records.push(&Record::Inode { ino: node.ino(), raw: &raw })?)
    }

    fn ranges(&mut self, node: &LiveInode, touched: &Touched) -> Result<(), Stopped> {
        let Some(blocks) = &touched.blocks else { return Ok(()) };
        let map = node.values().map();
        let (mut pieces, mut is_too_many) = (Vec::new(), false);
        let first = Lblk(u32::try_from(blocks.start).map_err(|_| Stopped::Unfit)?);
        let walked = map.walk_until(&self.live.shared().buffers, first, blocks.end, &mut |piece: Mapped| {
            is_too_many = pieces.len() >= PIECES_MAX;
            pieces.push(piece);
            (!is_too_many).then_some(())
        });
        walked.map_err(Stopped::Read)?;
        if is_too_many {
            return Err(Stopped::Unfit);
        }
        let mut at = blocks.start;
        for piece in &pieces {
            let (start, end) = (u64::from(piece.lblk.0).max(at), piece.end().min(blocks.end));
            if start >= end || piece.state == MapState::Hole {
                continue;
            }
            self.hole(node.ino(), at..start)?;
            self.range(node.ino(), piece, start..end)?;
            at = end;
        }
        self.hole(node.ino(), at..blocks.end)
    }

    fn hole(&mut self, ino: Ino, blocks: Range<u64>) -> Result<(), Stopped> {
        if blocks.is_empty() {
            return Ok(());
        }
        let len_blocks = u32::try_from(blocks.end - blocks.start).map_err(|_| Stopped::Unfit)?;
        Ok(self.records.push(&Record::DelRange { ino, lblk: Lblk(blocks.start as u32), len_blocks })?)
    }

    fn range(&mut self, ino: Ino, piece: &Mapped, blocks: Range<u64>) -> Result<(), Stopped> {
        let (start, unwritten) = match piece.state {
            MapState::Written(start) => (start, false),
            MapState::Unwritten(start) => (start, true),
            MapState::Hole => return Ok(()),
        };
        let most = u64::from(if unwritten { WRITTEN_MAX - 1 } else { WRITTEN_MAX });
        let mut at = blocks.start;
        while at < blocks.end {
            let len = (blocks.end - at).min(most);
            let pblk = start.checked_add(at - u64::from(piece.lblk.0)).ok_or(Stopped::Unfit)?;
            let lblk = Lblk(at as u32);
            self.records.push(&Record::AddRange { ino, lblk, len_blocks: len as u16, unwritten, pblk })?;
            at += len;
        }
        Ok(())
    }
}
