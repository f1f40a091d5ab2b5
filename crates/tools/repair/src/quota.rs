//! Quota files: written anew from the limits that can be read and the usage that the survey counted.

use extant_base::{Ino, Lblk, Pblk};
use extant_check::survey::Run;
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use extant_ondisk::quota::{QuotaFile, QuotaKind};

use crate::fs::Fs;
use crate::maps::Map;
use crate::runs;

/// Most bytes of a hole in a quota file that are read.
const HOLE_MAX: usize = 512 << 20;

/// Writes a quota file. `None` if the inode is none, or if there is no space.
pub(crate) fn write(fs: &mut Fs<'_>, ino: Ino) -> Option<()> {
    let kind = match ino.0 {
        number if number == fs.sb.usr_quota_inum => QuotaKind::User,
        number if number == fs.sb.grp_quota_inum => QuotaKind::Group,
        number if number == fs.sb.prj_quota_inum => QuotaKind::Project,
        _ => return None,
    };
    let known = fs.inode(ino).filter(|inode| inode.mode & 0xF000 == 0x8000 && inode.links != 0);
    let old = known.as_ref().map_or_else(Map::default, |inode| Map::read(fs, ino, inode));
    let content = content(fs, kind, &old, known.as_ref().map_or(0, |inode| inode.size))?;
    let block_len = fs.block_len();
    let runs = place(fs, &old, content.len().div_ceil(block_len) as u32)?;
    let mut blocks = content.chunks(block_len);
    for run in &runs {
        for i in 0..run.len {
            let mut block = blocks.next()?.to_vec();
            block.resize(block_len, 0);
            fs.write_block(Pblk(run.pblk.0 + u64::from(i)), &block).ok()?;
        }
    }
    if known.is_none() {
        let with_extents = fs.sb.features.has_incompat(Features::EXTENTS);
        let extents = if with_extents { flags::EXTENTS } else { 0 };
        fs.empty_file(ino, flags::IMMUTABLE | flags::NOATIME | extents)?;
    }
    if runs != old.runs || known.is_none() {
        let inode = fs.inode(ino)?;
        Map { runs, ..old }.put(fs, ino, &inode)?;
    }
    fs.put_size(ino, content.len() as u64);
    Some(())
}

/// The new content: the limits of the old one, with the usage counted.
fn content(fs: &Fs<'_>, kind: QuotaKind, old: &Map, size: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for run in &old.runs {
        let start = u64::from(run.lblk.0) << fs.geometry.block_size.log2();
        bytes.resize((start as usize).min(HOLE_MAX), 0);
        for i in 0..run.len {
            bytes.extend_from_slice(&fs.read_block(Pblk(run.pblk.0 + u64::from(i))).ok()?);
        }
    }
    bytes.truncate(size as usize);
    let mut file = QuotaFile::decode(kind, &bytes).unwrap_or_else(|_| QuotaFile::new(kind));
    let usage = fs.notes.usage(kind);
    for (id, entry) in &mut file.entries {
        let used = usage.get(id).copied().unwrap_or_default();
        (entry.space_bytes, entry.inodes) = (used.bytes, used.inodes);
    }
    for (id, used) in &usage {
        let entry = file.entries.entry(*id).or_default();
        (entry.space_bytes, entry.inodes) = (used.bytes, used.inodes);
    }
    Some(file.encode())
}

/// Where the content goes: first the blocks that the file has, then free ones.
fn place(fs: &mut Fs<'_>, old: &Map, needed: u32) -> Option<Vec<Run>> {
    let ratio = fs.geometry.cluster_ratio();
    let mut runs: Vec<Run> = Vec::new();
    let mut have = 0;
    for run in &old.runs {
        if run.lblk.0 != have || have >= needed || fs.notes.is_claimed_twice(run.pblk, run.len.into()) {
            break;
        }
        let len = run.len.min(needed - have);
        runs.push(Run { len, unwritten: false, ..*run });
        have += len;
    }
    while have < needed {
        let pblk = match runs.last() {
            Some(last) if u64::from(have) % ratio != 0 => Pblk(last.pblk.0 + u64::from(last.len)),
            last => fs.space.block(last.map(|run| run.pblk))?,
        };
        runs::push(&mut runs, Run { lblk: Lblk(have), pblk, len: 1, unwritten: false });
        have += 1;
    }
    Some(runs)
}
