//! Extended attributes: entries in inodes and blocks, shared blocks, values in inodes of their own.
//!
//! Owns: the rules of the area `XA`. Does **not** own: what a value means.
//!
//! A block is read and claimed when the first inode names it; later references are only counted. [`finish`]
//! checks what depends on all inodes: reference counts, and values in EA inodes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};

use extant_base::checksum::crc32c;
use extant_base::le::u16_at;
use extant_base::{Ino, Malformed, Pblk};
use extant_ondisk::Features;
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::xattr::{self, AttrValue, StoredAttr};

use crate::FindingPlace;
use crate::attr_table::{AttrBlock, EaRef, SHARDS};
use crate::map::{self, MapFault, MapRoot, MappedRun, Visit};
use crate::rules::xattr as rules;
use crate::state::State;

/// Byte offset of the value's place in an entry.
const VALUE_AT: usize = 2;

/// Attributes that other checks of pass 1 need.
#[derive(Debug, Default)]
pub(crate) struct InodeAttrs {
    /// The inode has an attribute block.
    pub(crate) block: bool,
    /// The inode has system.data.
    pub(crate) inline: bool,
    /// The value of system.data.
    pub(crate) inline_tail: Vec<u8>,
    /// The inode has an encryption context.
    pub(crate) encryption: bool,
    /// Bytes of values in EA inodes, charged to the owner's quota.
    pub(crate) ea_bytes: u64,
    pub(crate) ea_inodes: u64,
}

/// Checks the attribute area after the fixed fields of an inode.
pub(crate) fn in_inode(state: &State<'_>, ino: Ino, area: &[u8], attrs: &mut InodeAttrs) {
    match area.first_chunk() {
        Some(magic) if u32::from_le_bytes(*magic) == xattr::MAGIC => {}
        _ => return,
    }
    let place = FindingPlace::ino(ino);
    match xattr::decode_ibody(area) {
        Ok(entries) => {
            for entry in &entries {
                one(state, &place, (ino.0, 0), entry, area, attrs);
            }
        }
        // e2fsck and the kernel accept these two faults.
        Err(fault)
            if [xattr::NAME_WITHOUT_NUL, xattr::VALUE_ALIGNED].contains(&fault.rule) && values_fit(area) =>
        {
            state.attrs.are_unread.store(true, Ordering::Relaxed);
            state.findings.broken(&rules::ODD_ENTRY, place, fault.to_string());
        }
        Err(fault) => {
            state.attrs.are_unread.store(true, Ordering::Relaxed);
            state.findings.broken(&rules::IN_INODE, place, fault.to_string());
        }
    }
}

/// Do all entries and values lie inside the inode's attribute area? Names and alignment are not checked.
fn values_fit(area: &[u8]) -> bool {
    let Some(base) = area.get(xattr::IBODY_HEADER_LEN..) else { return false };
    let mut at = 0;
    while let Some(entry) = base.get(at..at + 16) {
        let word = |i: usize| u32::from_le_bytes([entry[i], entry[i + 1], entry[i + 2], entry[i + 3]]);
        if word(0) == 0 {
            return true;
        }
        let (offset, size) = (u64::from(word(0) >> 16), u64::from(word(8)));
        if word(4) == 0 && offset + size > base.len() as u64 {
            return false;
        }
        at += xattr::entry_len(entry[0].into());
    }
    base.get(at..at + 4).is_some_and(|end| end == [0; 4])
}

/// Checks one entry of an inode or of a block.
fn one(
    state: &State<'_>,
    place: &FindingPlace,
    from: (u32, u64),
    entry: &StoredAttr<'_>,
    area: &[u8],
    attrs: &mut InodeAttrs,
) {
    let attr = &entry.attr;
    let place = || place.clone().named(attr.name).at_offset(entry.offset as u32);
    if !entry.hash_matches() && !padded_hash_matches(entry, area) {
        state.findings.broken(&rules::HASH, place(), format!("the hash is {:#x}", entry.hash));
    }
    match (attr.index, attr.name) {
        (xattr::INDEX_SYSTEM, b"data") if entry.in_inode => {
            attrs.inline = true;
            if let AttrValue::Bytes(bytes) = attr.value {
                attrs.inline_tail = bytes.to_vec();
            }
        }
        (xattr::INDEX_ENCRYPTION, b"c") => attrs.encryption = true,
        _ => {}
    }
    if let AttrValue::Inode { ino, size, .. } = attr.value {
        if !state.image.sb.features.has_incompat(Features::EA_INODE) {
            state.findings.broken(
                &rules::EA_INODE,
                place(),
                format!("a value in inode {ino}, without the feature"),
            );
            return;
        }
        let geometry = &state.image.geometry;
        let cluster = geometry.block_size.bytes() << geometry.cluster_log;
        attrs.ea_bytes += u64::from(size).next_multiple_of(cluster);
        attrs.ea_inodes += 1;
        let (offset, name) = (entry.offset as u32, attr.name.to_vec());
        let reference = EaRef { from, offset, name, size, hash: entry.hash };
        state
            .attrs
            .ea
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(ino.0)
            .or_default()
            .push(reference);
    }
}

/// Does the hash match the value with the bytes that pad it to a multiple of 4? Drivers hash whole 32-bit
/// words, and the padding need not be zero.
fn padded_hash_matches(entry: &StoredAttr<'_>, area: &[u8]) -> bool {
    let AttrValue::Bytes(value) = entry.attr.value else { return false };
    let start = (value.as_ptr() as usize).wrapping_sub(area.as_ptr() as usize);
    let end = start.saturating_add(value.len().next_multiple_of(4));
    let Some(padded) = area.get(start..end) else { return false };
    let attr = xattr::Attr { value: AttrValue::Bytes(padded), ..entry.attr };
    [false, true].into_iter().any(|signed| xattr::entry_hash(&attr, signed) == entry.hash)
}

/// Checks the attribute block at `at`, an address where a file may have blocks.
pub(crate) fn block(state: &State<'_>, at: Pblk, attrs: &mut InodeAttrs) {
    let shard = &state.attrs.blocks[at.0 as usize % SHARDS];
    let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
    let block = shard.entry(at.0).or_insert_with(|| {
        let cluster = state.claims.cluster_of(at);
        let _ = state.claims.claim(cluster, cluster);
        read_block(state, at)
    });
    block.users += 1;
    attrs.encryption |= block.encryption;
    attrs.ea_bytes += block.ea_bytes;
    attrs.ea_inodes += block.ea_inodes;
}

fn read_block(state: &State<'_>, at: Pblk) -> AttrBlock {
    let place = FindingPlace::block(at);
    let bytes = match state.image.read_block(at) {
        Ok(bytes) => bytes,
        Err(fault) => {
            state.findings.broken(&rules::UNREADABLE, place, fault.to_string());
            return AttrBlock::default();
        }
    };
    let (header, entries) = match xattr::decode_block(&bytes) {
        Ok(decoded) => decoded,
        Err(fault) => {
            state.findings.broken(&rules::BLOCK, place, fault.to_string());
            return AttrBlock::default();
        }
    };
    if state.image.has_csum()
        && let Err(fault) = xattr::verify_block(&bytes, state.image.fs_seed, at)
    {
        state.findings.broken(&rules::CHECKSUM, place.clone(), fault.to_string());
    }
    let mut attrs = InodeAttrs::default();
    for entry in &entries {
        if entry.attr.index == 0 {
            let says = "an entry has no index of a prefix";
            state.findings.broken(&rules::BLOCK, place.clone().at_offset(entry.offset as u32), says);
        }
        // The kernel does not look at the place of an empty value; e2fsck does.
        let value_at = u16_at(&bytes, entry.offset + VALUE_AT);
        if entry.attr.value == AttrValue::Bytes(&[]) && usize::from(value_at) > bytes.len() {
            let says =
                format!("the empty value of an entry is at byte {value_at}, after the end of the block");
            state.findings.broken(&rules::BLOCK, place.clone().at_offset(entry.offset as u32), says);
        }
        one(state, &place, (0, at.0), entry, &bytes, &mut attrs);
    }
    let sorted = entries.is_sorted_by_key(|entry| (entry.attr.index, entry.attr.name.len(), entry.attr.name));
    if !sorted {
        state.findings.broken(&rules::ORDER, place, "entries are not sorted");
    }
    let (ea_bytes, ea_inodes) = (attrs.ea_bytes, attrs.ea_inodes);
    AttrBlock { users: 0, refcount: Some(header.refcount), encryption: attrs.encryption, ea_bytes, ea_inodes }
}

/// Runs the checks that need all inodes.
pub(crate) fn finish(state: &State<'_>) {
    for shard in &state.attrs.blocks {
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, block) in shard.iter() {
            if let Some(refcount) = block.refcount
                && refcount != block.users
            {
                let (stored, expected) = (refcount.into(), block.users.into());
                state.findings.differs(
                    &rules::REFCOUNT,
                    FindingPlace::block(Pblk(*at)),
                    "the count",
                    stored,
                    expected,
                );
            }
        }
    }
    let references = std::mem::take(&mut *state.attrs.ea.lock().unwrap_or_else(PoisonError::into_inner));
    let mut references: Vec<_> = references.into_iter().collect();
    references.sort_unstable();
    unused_values(state, &references);
    // Valid values do not share blocks, so their sum is less than the size of the file system.
    let geometry = &state.image.geometry;
    let mut budget = geometry.blocks.saturating_mul(geometry.block_size.bytes()).saturating_mul(4);
    for (ino, mut references) in references {
        references.sort_unstable();
        if ea_inode(state, Ino(ino), &references, &mut budget).is_break() {
            let says =
                format!("attribute values share so many blocks that they were not read from inode {ino} on");
            state.findings.broken(&crate::rules::map::ABANDONED, FindingPlace::ino(Ino(ino)), says);
            break;
        }
    }
}

/// Reports the inodes with the flag to which no attribute refers. Attributes that cannot be read may refer to
/// any of them.
fn unused_values(state: &State<'_>, references: &[(u32, Vec<EaRef>)]) {
    let mut flagged =
        std::mem::take(&mut *state.attrs.flagged.lock().unwrap_or_else(PoisonError::into_inner));
    if flagged.is_empty() || state.attrs.are_unread.load(Ordering::Relaxed) {
        return;
    }
    let is_known = |shard: &Mutex<HashMap<u64, AttrBlock>>| {
        let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.values().all(|block| block.refcount.is_some())
    };
    if !state.attrs.blocks.iter().all(is_known) {
        return;
    }
    flagged.sort_unstable();
    for ino in flagged {
        if references.binary_search_by_key(&ino, |(of, _)| *of).is_err() {
            let says = "it has the flag ea_inode, and no attribute refers to it".to_owned();
            state.findings.broken(&rules::EA_UNUSED, FindingPlace::ino(Ino(ino)), says);
        }
    }
}

/// Checks an EA inode and the attributes that refer to it; `budget` is the number of bytes that may still be
/// read.
fn ea_inode(state: &State<'_>, ino: Ino, references: &[EaRef], budget: &mut u64) -> ControlFlow<()> {
    let from = |reference: &EaRef| {
        let place = if reference.from.0 != 0 {
            FindingPlace::ino(Ino(reference.from.0))
        } else {
            FindingPlace::block(Pblk(reference.from.1))
        };
        place.named(&reference.name).at_offset(reference.offset)
    };
    let first = &references[0];
    let value = match read_value(state, ino, budget) {
        Ok(value) => value,
        Err(ValueFault::OverBudget) => return ControlFlow::Break(()),
        Err(ValueFault::Broken(fault)) => {
            state.findings.broken(&rules::EA_INODE, from(first), format!("inode {ino}: {fault}"));
            return ControlFlow::Continue(());
        }
    };
    for reference in references {
        if u64::from(reference.size) != value.inode.size {
            let says =
                format!("the value has {} bytes, inode {ino} has {}", reference.size, value.inode.size);
            state.findings.broken(&rules::EA_INODE, from(reference), says);
            continue;
        }
        let name = &reference.name;
        let fits = hash_fits(name, value.crc, reference.hash);
        if !fits && !value.legacy {
            let says =
                format!("the hash is {:#x}, which the value in inode {ino} does not give", reference.hash);
            state.findings.broken(&rules::HASH, from(reference), says);
        }
    }
    if value.legacy {
        return ControlFlow::Continue(());
    }
    if value.stored_crc != value.crc {
        let says = format!("the value's checksum is {:#x}, should be {:#x}", value.stored_crc, value.crc);
        state.findings.broken(&rules::EA_INODE, FindingPlace::ino(ino), says);
    }
    let (stored, expected) = (value.refcount, references.len() as u64);
    if stored != expected {
        state.findings.differs(&rules::EA_REFCOUNT, FindingPlace::ino(ino), "the count", stored, expected);
    }
    ControlFlow::Continue(())
}

fn hash_fits(name: &[u8], crc: u32, stored: u32) -> bool {
    let attr = xattr::Attr { index: 0, name, value: AttrValue::Inode { ino: Ino(0), size: 0, hash: crc } };
    [false, true].into_iter().any(|signed| xattr::entry_hash(&attr, signed) == stored)
}

struct Value {
    inode: Inode,
    crc: u32,
    stored_crc: u32,
    refcount: u64,
    /// Written by Lustre: the inode names its owner and has no reference count.
    legacy: bool,
}

/// Why a value cannot be read.
enum ValueFault {
    /// The inode holds no valid value; the text says why.
    Broken(String),
    /// The byte budget is spent.
    OverBudget,
}

impl From<String> for ValueFault {
    fn from(says: String) -> Self {
        Self::Broken(says)
    }
}

/// The runs that hold the first `blocks` blocks of a value.
struct ValueRuns<'b> {
    blocks: u64,
    /// The next block to be found.
    next: u64,
    runs: Vec<MappedRun>,
    block_bytes: u64,
    /// Bytes of maps and values that may still be read.
    budget: &'b mut u64,
    over_budget: bool,
}

impl ValueRuns<'_> {
    fn spend(&mut self, bytes: u64) -> bool {
        match self.budget.checked_sub(bytes) {
            Some(left) => *self.budget = left,
            None => self.over_budget = true,
        }
        !self.over_budget
    }
}

impl Visit for ValueRuns<'_> {
    fn node(&mut self, _: Pblk) -> bool {
        self.next < self.blocks && self.spend(self.block_bytes)
    }

    fn run(&mut self, mut run: MappedRun) -> ControlFlow<()> {
        if self.next >= self.blocks || u64::from(run.lblk.0) != self.next {
            return ControlFlow::Break(()); // all is found, or there is a hole
        }
        let len = u64::from(run.len).min(self.blocks - self.next);
        if !self.spend(len * self.block_bytes) {
            return ControlFlow::Break(());
        }
        run.len = len as u32; // not more than before
        self.next += len;
        self.runs.push(run);
        ControlFlow::Continue(())
    }

    fn broken(&mut self, _: MapFault) {}
}

fn read_value(state: &State<'_>, ino: Ino, budget: &mut u64) -> Result<Value, ValueFault> {
    let image = &state.image;
    let bytes = image.read_inode(ino).map_err(|fault| fault.to_string())?;
    let inode = Inode::decode(&bytes).map_err(|fault: Malformed| fault.to_string())?;
    if !inode.has_flag(flags::EA_INODE) {
        return Err("it has no flag ea_inode".to_owned().into());
    }
    if inode.mode & 0xF000 != 0x8000 || inode.links == 0 {
        return Err(format!("mode {:#o}, {} links", inode.mode, inode.links).into());
    }
    let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
    if size > xattr::STORED_VALUE_LEN_MAX as usize {
        return Err(format!("its size is {size}").into());
    }
    let seed = extant_ondisk::inode::inode_seed(image.fs_seed, ino, inode.generation);
    let root = MapRoot { ino, i_block: inode.block, extents: inode.has_flag(flags::EXTENTS), seed };
    let bs = image.geometry.block_size.len();
    let blocks = size.div_ceil(bs) as u64;
    let mut found =
        ValueRuns { blocks, next: 0, runs: Vec::new(), block_bytes: bs as u64, budget, over_budget: false };
    map::walk(image, &root, &mut found);
    if found.over_budget {
        return Err(ValueFault::OverBudget);
    }
    if found.next < blocks {
        let says = format!("block {} of its value is not mapped, the value has {blocks}", found.next);
        return Err(says.into());
    }
    let mut value = vec![0; size.next_multiple_of(bs)];
    let mut rest = value.as_mut_slice();
    for run in &found.runs {
        let (part, behind) = rest.split_at_mut(run.len as usize * bs);
        rest = behind;
        if !run.unwritten {
            image.read_blocks(run.pblk, part).map_err(|fault| fault.to_string())?;
        }
    }
    let crc = crc32c(image.fs_seed, &value[..size]);
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (stored_crc, refcount) = (word(0x08), u64::from(word(0x0C)) << 32 | u64::from(word(0x24)));
    // Lustre stores the owner's inode number in mtime and its generation in i_generation; count and checksum
    // are zero.
    let legacy = stored_crc != crc && refcount == 0;
    Ok(Value { inode, crc, stored_crc, refcount, legacy })
}
