//! Quotas: the usage of each user, group and project, stored in the hidden quota files.
//!
//! ```text
//!   an inode's values ---- charge(): owners, bytes, inodes -----.
//!   its last recorded cost (Values::charged) -------------------'--> the commit adds the difference to the
//!                                                                    entries of the files
//! ```
//!
//! Operations do not count. An inode's cost follows from its values, and the commit that writes the inode
//! adds the difference to its last recorded cost. So every change, and every undo of one, is counted
//! correctly.
//!
//! An owner gets its entry before the operation that gives it its first inode ([`Quota::admit`]). That is the
//! last moment to refuse: entries need blocks, and a commit must not run out of space. An entry stays when
//! its usage returns to zero.
//!
//! Does **not** own: limits. They are kept and not enforced, as on a kernel's mount without quota options.
//!
//! Invariants
//! 1. The root directory and inodes that are not reserved count. The file system's own inodes do not, and
//!    neither do attribute values in separate inodes: those count for each inode that refers to them.
//! 2. An inode counts from its first commit until the commit that frees it, even as an orphan.
//! 3. An entry never moves within its file.
//! 4. Locks: a handle, then a file's `places`, then inodes' values, then `pending`.
//!
//! Source: kernel Documentation/filesystems/ext4/special_inodes.rst; e2fsck's and the kernel's counts of the
//! same images.

mod admit;

use std::collections::HashMap;
use std::sync::Arc;

use extant_base::rank::{self, Mutex};
use extant_base::{Ino, Lblk, Malformed, Pblk};
use extant_buffer::{Edit, Kind, Owner, ReadFault, Seal};
use extant_mapping::MapState;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::quota::QuotaKind;
use extant_ondisk::quota::tree::{self, Block};

use crate::node::{Charge, LiveInode, OrphanState, Owners, Values};
use crate::{Fault, Shared};

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
/// Maximum number of cached entry addresses for each kind.
const PLACES_MAX: usize = 1 << 16;

/// The quota files of a volume that is open for writing.
pub struct Quota {
    files: [Option<File>; 3],
    /// Bytes and inodes that the next commit adds, by kind and id. Owners that may get some until then have
    /// an element with zeros.
    pending: Mutex<HashMap<(usize, u32), (i64, i64)>, { rank::QUOTA_PENDING }>,
}

struct File {
    kind: QuotaKind,
    node: Arc<LiveInode>,
    /// Block and byte offset of each entry.
    places: Mutex<HashMap<u32, (Pblk, usize)>, { rank::QUOTA_FILE }>,
}

/// Why an entry cannot be read.
enum WalkFault {
    Read(ReadFault),
    Rule(Malformed),
}

impl From<Malformed> for WalkFault {
    fn from(fact: Malformed) -> Self {
        Self::Rule(fact)
    }
}

impl Quota {
    /// Number of blocks with entries that an operation may change: for a directory and three inodes, one of
    /// which changes its owners.
    pub const CREDITS: u32 = 5 * 3;
    /// Number of blocks that [`admit`](Self::admit) may change: blocks of one file, bitmaps, the map of that
    /// file.
    pub const ADMIT_CREDITS: u32 = tree::CHANGED_MAX + 4 * 2 + 16;

    /// Opens the quota files that the superblock names, with the inodes that `get` returns; `None` if the
    /// file system does not count usage.
    ///
    /// # Errors
    /// One of them is not a quota file, or cannot be read: writing to it would add to the damage.
    pub(crate) fn open(
        shared: &Shared,
        get: &dyn Fn(Ino) -> Result<Arc<LiveInode>, Fault>,
    ) -> Result<Option<Self>, Fault> {
        let sb = &shared.sb;
        if !sb.features.has_ro_compat(Features::QUOTA) {
            return Ok(None);
        }
        let of_projects = if sb.features.has_ro_compat(Features::PROJECT) { sb.prj_quota_inum } else { 0 };
        let mut files = [const { None }; 3];
        for (at, ino) in [sb.usr_quota_inum, sb.grp_quota_inum, of_projects].into_iter().enumerate() {
            if ino == 0 {
                continue; // no file for this kind
            }
            let node = get(Ino(ino))?;
            let kind = node.values().kind();
            Malformed::unless(kind == FileType::Regular, "quota file", "must be a regular file", ino)
                .map_err(|fact| Fault::corrupt(Ino(ino), fact))?;
            let file = File { kind: KINDS[at], node, places: Mutex::default() };
            file.check(shared).map_err(|fault| file.fault(fault))?;
            files[at] = Some(file);
        }
        Ok(Some(Self { files, pending: Mutex::default() }))
    }

    /// Whether each of these owners has an entry.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn knows(&self, shared: &Shared, owners: Owners) -> Result<bool, Fault> {
        for (file, id) in self.files.iter().zip(owners) {
            let Some(file) = file else { continue };
            if file.place(shared, id).map_err(|fault| file.fault(fault))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Upper bound of the number of quota file blocks that the commit will write.
    pub(crate) fn blocks_to_come(&self) -> u32 {
        self.pending.lock().len() as u32
    }

    /// Records that the running transaction changes an inode.
    pub(crate) fn touch_owners_of(&self, shared: &Shared, node: &LiveInode, values: &Values) {
        let charged = values.charged().or_else(|| charge(shared, node, values));
        if let Some(charge) = charged {
            self.touch(charge.owners);
        }
    }

    /// Records that the running transaction gives an inode to these owners.
    pub fn touch(&self, owners: Owners) {
        let mut pending = self.pending.lock();
        for kind in (0..KINDS.len()).filter(|kind| self.files[*kind].is_some()) {
            pending.entry((kind, owners[kind])).or_default();
        }
    }

    /// Counts the current cost of an inode. Called when the commit writes it.
    pub(crate) fn update_charge(&self, shared: &Shared, node: &LiveInode, values: &mut Values) {
        let now = charge(shared, node, values);
        let before = values.charged();
        if before == now {
            return;
        }
        values.set_charged(now);
        let mut pending = self.pending.lock();
        for (charge, sign) in [(before, -1), (now, 1)] {
            let Some(charge) = charge else { continue };
            for kind in (0..KINDS.len()).filter(|kind| self.files[*kind].is_some()) {
                let sum = pending.entry((kind, charge.owners[kind])).or_default();
                sum.0 = sum.0.saturating_add(sign * charge.bytes.cast_signed());
                sum.1 = sum.1.saturating_add(sign * charge.inodes.cast_signed());
            }
        }
    }

    /// Writes the pending differences into the files. No other handle is open.
    ///
    /// # Errors
    /// A block cannot be read.
    pub(crate) fn write(&self, shared: &Shared, edit: &dyn Edit) -> Result<(), ReadFault> {
        let pending = std::mem::take(&mut *self.pending.lock());
        for ((kind, id), (bytes, inodes)) in pending {
            let Some(file) = self.files[kind].as_ref().filter(|_| (bytes, inodes) != (0, 0)) else {
                continue;
            };
            let place = match file.place(shared, id) {
                Ok(place) => place,
                Err(WalkFault::Read(fault)) => return Err(fault),
                // The owner of an inode has an entry, unless the file was already wrong. Then it stays wrong,
                // for e2fsck to repair.
                Err(WalkFault::Rule(_)) => None,
            };
            let Some((block, at)) = place else { continue };
            edit.change(block, file.seal(), &mut |all| {
                if let Some(entry) = all.get_mut(at..at + tree::ENTRY_BYTES) {
                    // An entry that belongs to another id is damage, too.
                    let _ = tree::count(entry, id, bytes, inodes);
                }
            })?;
        }
        Ok(())
    }
}

/// The cost of an inode; `None` if it is free or does not count.
fn charge(shared: &Shared, node: &LiveInode, values: &Values) -> Option<Charge> {
    let fields = &values.fields;
    let is_free = fields.links == 0 && fields.dtime != 0 && node.orphan() == OrphanState::None;
    if is_free { None } else { charge_in_use(shared, node.ino(), values) }
}

/// The cost of an inode that is in use or an orphan; `None` if it does not count.
pub(crate) fn charge_in_use(shared: &Shared, ino: Ino, values: &Values) -> Option<Charge> {
    if shared.is_special(ino) || values.has_flag(flags::EA_INODE) {
        return None;
    }
    let fields = &values.fields;
    Some(Charge {
        owners: [fields.uid, fields.gid, fields.projid],
        // A damaged count may have any value.
        bytes: shared.sectors(fields).saturating_mul(512).min(i64::MAX as u64),
        inodes: 1 + u64::from(values.value_inodes()),
    })
}

impl File {
    fn owner(&self) -> Owner {
        Owner { kind: Kind::Other, ino: self.node.ino().0 }
    }

    fn seal(&self) -> Seal {
        Seal { owner: self.owner(), seed: None }
    }

    fn fault(&self, fault: WalkFault) -> Fault {
        match fault {
            WalkFault::Read(fault) => Fault::of(self.node.ino())(fault),
            WalkFault::Rule(fact) => Fault::corrupt(self.node.ino(), fact),
        }
    }

    fn check(&self, shared: &Shared) -> Result<(), WalkFault> {
        let blocks = tree::check_header(self.kind, &self.read(shared, 0)?)?;
        let size = self.node.values().fields.size;
        let holds = u64::from(blocks) * tree::BLOCK_BYTES <= size;
        Ok(Malformed::unless(holds, "quota file", "the file must hold the blocks it counts", blocks)?)
    }

    /// The position of a block of the quota tree: the block of the file, and the byte offset in it.
    fn lblk(shared: &Shared, number: u32) -> (u64, usize) {
        let at = u64::from(number) * tree::BLOCK_BYTES;
        let bs = shared.geometry.block_size;
        (at >> bs.log2(), (at & (bs.bytes() - 1)) as usize)
    }

    /// The physical block of a block of the file; `None` for a hole.
    fn find(&self, shared: &Shared, values: &Values, lblk: u64) -> Result<Option<Pblk>, WalkFault> {
        let rule = "its blocks must be written";
        let lblk = u32::try_from(lblk).map_err(|_| Malformed::new("quota file", rule, lblk))?;
        match values.map().find(&shared.buffers, Lblk(lblk), 1).map_err(WalkFault::Read)?.state {
            MapState::Written(block) => Ok(Some(block)),
            MapState::Hole => Ok(None),
            MapState::Unwritten(_) => Err(Malformed::new("quota file", rule, lblk).into()),
        }
    }

    fn read(&self, shared: &Shared, number: u32) -> Result<Block, WalkFault> {
        let (lblk, at) = Self::lblk(shared, number);
        let place = self.find(shared, &self.node.values(), lblk)?;
        let mut block = [0; _];
        if let Some(place) = place {
            let held = shared.buffers.get(place, self.owner(), |_| Ok(())).map_err(WalkFault::Read)?;
            let len = block.len();
            block.copy_from_slice(&held[at..at + len]);
        }
        Ok(block)
    }

    /// The address of the entry of `id`.
    fn place(&self, shared: &Shared, id: u32) -> Result<Option<(Pblk, usize)>, WalkFault> {
        let mut places = self.places.lock();
        if let Some(known) = places.get(&id) {
            return Ok(Some(*known));
        }
        let found = tree::find(self.kind, id, &mut |number| self.read(shared, number))?;
        let Some(found) = found else { return Ok(None) };
        let (lblk, at) = Self::lblk(shared, found.block);
        let block = self.find(shared, &self.node.values(), lblk)?;
        let Some(block) = block else { return Ok(None) };
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        places.insert(id, (block, at + found.at));
        Ok(Some((block, at + found.at)))
    }
}

impl Shared {
    /// Whether this is one of the file system's own inodes, which no operation may change.
    #[must_use]
    pub fn is_special(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        let first = if sb.rev_level == 0 { 11 } else { sb.first_ino };
        let has_quotas = sb.features.has_ro_compat(Features::QUOTA);
        ino.0 < first && ino != Ino::ROOT
            || [sb.journal_inum, sb.orphan_file_inum].contains(&ino.0)
            || has_quotas && [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum].contains(&ino.0)
    }

    /// Sums up an inode's attribute values in separate inodes.
    ///
    /// # Errors
    /// The attribute block cannot be read.
    pub fn values_in_inodes(&self, body: &[u8], block: Pblk) -> Result<ValuesInInodes, ReadFault> {
        let mut sum = ValuesInInodes::default();
        if !self.sb.features.has_incompat(Features::EA_INODE) {
            return Ok(sum);
        }
        let ratio = self.geometry.cluster_ratio();
        let mut add = |all: Vec<extant_ondisk::xattr::StoredAttr<'_>>| {
            for stored in all {
                if let extant_ondisk::xattr::AttrValue::Inode { size, .. } = stored.attr.value {
                    sum.blocks += self.geometry.block_size.blocks_for(size.into()).next_multiple_of(ratio);
                    sum.count += 1;
                }
            }
        };
        add(extant_ondisk::xattr::decode_ibody(body).unwrap_or_default());
        if block.0 != 0 {
            let owner = Owner { kind: Kind::Xattr, ino: 0 };
            let held = self.buffers.get(block, owner, |_| Ok(()))?;
            add(extant_ondisk::xattr::decode_block(&held).map(|(_, all)| all).unwrap_or_default());
        }
        Ok(sum)
    }
}

/// Attribute values in separate inodes. The inode that refers to them counts their blocks as its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ValuesInInodes {
    /// Number of their blocks, in whole clusters each.
    pub blocks: u64,
    /// Number of values.
    pub count: u32,
}
