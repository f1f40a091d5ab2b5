//! Compares quota files with the usage that pass 1 counted.
//!
//! Does **not** own: limits and grace times, which the administrator sets; the form of the quota inodes (pass
//! 1).
//!
//! Source: kernel Documentation/filesystems/ext4/special_inodes.rst.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use extant_base::Ino;
use extant_ondisk::Features;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags, inode_seed};
use extant_ondisk::quota::{BLOCK_LEN, QuotaFile, QuotaKind};

use crate::FindingPlace;
use crate::map::{MapRoot, data_runs};
use crate::rules::quota as rules;
use crate::state::{State, Used};

/// Larger quota files are not read: this size holds more than 7,000,000 ids.
const LEN_MAX: u64 = 512 << 20;

/// Checks each quota file that the superblock names.
pub(crate) fn run(state: &State<'_>) {
    let sb = &state.image.sb;
    if !sb.features.has_ro_compat(Features::QUOTA) {
        return;
    }
    let usage = &state.usage;
    check(state, QuotaKind::User, sb.usr_quota_inum, &usage.user);
    check(state, QuotaKind::Group, sb.grp_quota_inum, &usage.group);
    if sb.features.has_ro_compat(Features::PROJECT) {
        check(state, QuotaKind::Project, sb.prj_quota_inum, &usage.project);
    }
}

fn check(state: &State<'_>, kind: QuotaKind, ino: u32, counted: &Mutex<HashMap<u32, Used>>) {
    if ino == 0 {
        return; // this kind is not counted
    }
    let ino = Ino(ino);
    let bytes = match read(state, ino) {
        Ok(bytes) => bytes,
        Err(says) => return state.findings.broken(&rules::INODE, FindingPlace::ino(ino), says),
    };
    let file = match check_header(&bytes)
        .and_then(|()| QuotaFile::decode(kind, &bytes).map_err(|fault| fault.to_string()))
    {
        Ok(file) => file,
        Err(says) => return state.findings.broken(&rules::FILE, FindingPlace::ino(ino), says),
    };
    let counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
    let what = match kind {
        QuotaKind::User => "user",
        QuotaKind::Group => "group",
        QuotaKind::Project => "project",
    };
    for (id, entry) in &file.entries {
        let used = counted.get(id).copied().unwrap_or_default();
        let numbers = [("bytes", entry.space_bytes, used.bytes), ("inodes", entry.inodes, used.inodes)];
        for (unit, stored, expected) in numbers {
            if stored != expected {
                let number = format!("the number of {unit} of {what} {id}");
                state.findings.differs(&rules::USAGE, FindingPlace::ino(ino), &number, stored, expected);
            }
        }
    }
    let mut missing: Vec<_> = counted.iter().filter(|(id, _)| !file.entries.contains_key(id)).collect();
    missing.sort_unstable_by_key(|(id, _)| **id);
    for (id, used) in missing {
        let says =
            format!("{what} {id} uses {} bytes and {} inodes, and has no entry", used.bytes, used.inodes);
        state.findings.broken(&rules::MISSING, FindingPlace::ino(ino), says);
    }
}

/// Checks the block numbers in the header; only writers use them.
fn check_header(bytes: &[u8]) -> Result<(), String> {
    let word = |at: usize| bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let blocks = word(20);
    for (what, block) in [("free block", word(24)), ("leaf with room", word(28))] {
        if block != 0 && block >= blocks {
            return Err(format!("the first {what} is block {block}, the file has {blocks}"));
        }
    }
    Ok(())
}

/// Reads the whole file.
fn read(state: &State<'_>, ino: Ino) -> Result<Vec<u8>, String> {
    let image = &state.image;
    let raw = image.read_inode(ino).map_err(|_| format!("inode {ino} does not exist"))?;
    let inode = Inode::decode(&raw).map_err(|fault| fault.to_string())?;
    if FileType::from_mode(inode.mode) != FileType::Regular || inode.links == 0 {
        return Err(format!("mode {:#o} with {} links is no regular file", inode.mode, inode.links));
    }
    let block_size = image.geometry.block_size;
    let seed = inode_seed(image.fs_seed, ino, inode.generation);
    let root = MapRoot { ino, i_block: inode.block, extents: inode.has_flag(flags::EXTENTS), seed };
    // The mapped blocks bound the allocation, not the size in the inode.
    let mut mapped = 0u64;
    let mut end = 0u64;
    data_runs(image, &root, &mut |run| {
        mapped += u64::from(run.len);
        end = u64::from(run.lblk.0) + u64::from(run.len);
        Some(())
    });
    let len = inode.size.min(end << block_size.log2());
    if len > LEN_MAX || len > (2 * mapped + 1024) << block_size.log2() {
        return Err(format!("a quota file of {} bytes is too large to be one", inode.size));
    }
    let mut bytes = vec![0; (block_size.blocks_for(len) << block_size.log2()) as usize];
    let mut failed = None;
    data_runs(image, &root, &mut |run| {
        let start = (run.lblk.0 as usize).checked_mul(block_size.len())?;
        let end = (start + run.len as usize * block_size.len()).min(bytes.len());
        if !run.unwritten
            && let Err(fault) = image.read_blocks(run.pblk, bytes.get_mut(start..end)?)
        {
            failed = Some(fault.to_string());
        }
        Some(())
    });
    if let Some(fault) = failed {
        return Err(fault);
    }
    bytes.truncate(len as usize / BLOCK_LEN * BLOCK_LEN);
    Ok(bytes)
}
