//! Orphans: inodes that a crash left partly deleted or partly truncated, on the orphan list or in the orphan
//! file.
//!
//! Owns: the set of orphans ([`State::orphans`]), and the rules of the list and of the file. Does **not**
//! own: inodes without links that are in neither (pass 1).
//!
//! Invariants
//! 1. The walk of the list takes at most as many steps as there are inodes, and visits an inode once.
//! 2. At most 512 blocks of the orphan file are read.
//!
//! Source: kernel Documentation/filesystems/ext4/orphan.rst.

use std::collections::HashSet;

use extant_base::{Ino, Lblk, Pblk};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags, inode_seed};
use extant_ondisk::orphan_file::{MAX_BLOCKS, OrphanBlock};
use extant_ondisk::{Features, orphan_file};

use crate::FindingPlace;
use crate::map::{MapRoot, data_runs};
use crate::rules::orphan as rules;
use crate::state::State;

/// Finds all orphans.
pub(crate) fn run(state: &State<'_>) {
    let mut orphans = HashSet::new();
    let list = follow_list(state, &mut orphans);
    let file = read_file(state, &mut orphans);
    if !orphans.is_empty() {
        let says =
            format!("{list} inodes on the orphan list and {file} in the orphan file wait for the next mount");
        state.findings.broken(&rules::PENDING, FindingPlace::default(), says);
    }
    // `set` fails only if `run` was called before; the first result stays.
    let _ = state.orphans.set(orphans);
}

/// May this inode be an orphan?
fn is_possible(state: &State<'_>, ino: u32) -> bool {
    let first = if state.image.sb.rev_level == 0 { Ino::FIRST.0 } else { state.image.sb.first_ino };
    (first..=state.image.geometry.inodes()).contains(&ino)
}

/// Walks the list; returns the number of its members.
fn follow_list(state: &State<'_>, orphans: &mut HashSet<u32>) -> usize {
    let mut next = state.image.sb.last_orphan;
    let mut from = FindingPlace::default();
    let mut rule = &rules::LIST_HEAD;
    while next != 0 {
        if !is_possible(state, next) {
            let says = format!("the orphan list goes on with inode {next}, which files do not have");
            state.findings.broken(rule, from, says);
            break;
        }
        from = FindingPlace::ino(Ino(next));
        if orphans.contains(&next) {
            let says = "the orphan list comes back to this inode";
            state.findings.broken(&rules::LIST_LINK, from, says);
            break;
        }
        let inode = state.image.read_inode(Ino(next)).ok().and_then(|bytes| Inode::decode(&bytes).ok());
        let Some(inode) = inode.filter(|inode| inode.mode != 0) else {
            let says = format!("the orphan list goes on with inode {next}, which is not in use");
            state.findings.broken(rule, from, says);
            break;
        };
        orphans.insert(next);
        next = inode.dtime;
        rule = &rules::LIST_LINK;
    }
    orphans.len()
}

/// Reads the orphan file; returns the number of orphans in it.
fn read_file(state: &State<'_>, orphans: &mut HashSet<u32>) -> usize {
    let (sb, findings) = (&state.image.sb, &state.findings);
    let ino = Ino(sb.orphan_file_inum);
    let present = sb.features.has_ro_compat(Features::ORPHAN_PRESENT);
    if !sb.features.has_compat(Features::ORPHAN_FILE) {
        if ino.0 != 0 {
            let says = format!("the superblock names inode {ino}, the feature orphan_file is not set");
            findings.broken(&rules::FILE_UNEXPECTED, FindingPlace::ino(ino), says);
        }
        return 0;
    }
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        let says = "the feature orphan_file is set, the feature has_journal is not";
        findings.broken(&rules::FILE_WITHOUT_JOURNAL, FindingPlace::ino(ino), says);
    }
    let file = match File::open(state, ino) {
        Ok(file) => file,
        Err(says) => {
            findings.broken(&rules::FILE_INODE, FindingPlace::ino(ino), says);
            return 0;
        }
    };
    let mut count = 0;
    for (lblk, pblk) in file.blocks.iter().enumerate() {
        let place = FindingPlace::ino(ino).at_lblk(Lblk(lblk as u32)).in_block(*pblk);
        match state.image.read_block(*pblk) {
            Ok(bytes) => count += read_slots(state, &file, *pblk, &bytes, &place, orphans),
            Err(fault) => findings.broken(&rules::FILE_BLOCK, place, fault.to_string()),
        }
    }
    if !present && count != 0 {
        let says = format!("{count} inodes are in the orphan file, the feature orphan_present is not set");
        findings.broken(&rules::FILE_NOT_EMPTY, FindingPlace::ino(ino), says);
    }
    // A mount sets the feature before it has orphans, so an empty file is correct while the journal needs
    // recovery.
    if present && count == 0 && !sb.features.has_incompat(Features::RECOVER) {
        let says = "the orphan file is empty, the feature orphan_present is set";
        findings.broken(&rules::FILE_EMPTY, FindingPlace::ino(ino), says);
    }
    count
}

/// The orphan file's blocks, in order.
struct File {
    blocks: Vec<Pblk>,
    seed: u32,
}

impl File {
    fn open(state: &State<'_>, ino: Ino) -> Result<Self, String> {
        let image = &state.image;
        let bytes = image.read_inode(ino).map_err(|_| format!("inode {ino} does not exist"))?;
        let inode = Inode::decode(&bytes).map_err(|fault| fault.to_string())?;
        if FileType::from_mode(inode.mode) != FileType::Regular || inode.links == 0 {
            return Err(format!("mode {:#o} with {} links is no regular file", inode.mode, inode.links));
        }
        let block_size = image.geometry.block_size;
        let len = inode.size >> block_size.log2();
        if len << block_size.log2() != inode.size || len > MAX_BLOCKS {
            let bytes = block_size.bytes();
            return Err(format!(
                "a size of {} bytes, not 0 to {MAX_BLOCKS} whole blocks of {bytes}",
                inode.size
            ));
        }
        let seed = inode_seed(image.fs_seed, ino, inode.generation);
        let root = MapRoot { ino, i_block: inode.block, extents: inode.has_flag(flags::EXTENTS), seed };
        let mut blocks = Vec::new();
        data_runs(image, &root, &mut |run| {
            let whole = run.lblk.0 as usize == blocks.len() && !run.unwritten;
            let wanted = (len as usize).saturating_sub(blocks.len());
            blocks.extend((0..run.len).take(wanted).map(|i| Pblk(run.pblk.0 + u64::from(i))));
            (whole && blocks.len() < len as usize).then_some(())
        });
        if blocks.len() < len as usize {
            return Err(format!("block {} of {len} is not mapped", blocks.len()));
        }
        Ok(Self { blocks, seed: orphan_file::inode_seed(image.fs_seed, ino, inode.generation) })
    }
}

fn read_slots(
    state: &State<'_>,
    file: &File,
    pblk: Pblk,
    bytes: &[u8],
    place: &FindingPlace,
    orphans: &mut HashSet<u32>,
) -> usize {
    let findings = &state.findings;
    let block = match OrphanBlock::decode(bytes) {
        Ok(block) => block,
        Err(fault) => {
            findings.broken(&rules::FILE_BLOCK, place.clone(), fault.to_string());
            return 0;
        }
    };
    let stored = block.stored_checksum();
    let right = if state.image.has_csum() { orphan_file::checksum(file.seed, pblk, bytes) } else { 0 };
    if stored != right {
        findings.differs(&rules::FILE_CHECKSUM, place.clone(), "the checksum", stored.into(), right.into());
    }
    let mut count = 0;
    for (slot, ino) in block.orphans() {
        count += 1;
        if is_possible(state, ino.0) {
            orphans.insert(ino.0);
        } else {
            let says = format!("slot {slot} holds inode {ino}, which files do not have");
            findings.broken(&rules::FILE_SLOT, place.clone().at_offset(4 * slot as u32), says);
        }
    }
    count
}
