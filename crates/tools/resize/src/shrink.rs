//! Shrinking: what is after the new end moves to free blocks before it; then the end moves.
//!
//! ```text
//! bitmaps and tables of groups that stay move, if they are after the new end (see `metadata`)
//! inodes of groups that go get numbers in groups that stay (see `inodes`)
//! for each inode with blocks after the new end (see `mover`):
//!     copy blocks | flush | switch: the map's block or the inode, bitmaps, descriptors
//! last switch: superblock, the last group's bitmap, metadata of groups that go, resize inode
//! ```
//!
//! A switch contains as many moves as fit the journal. Each ends with a sound file system of the old size, so
//! the state of a shrink is in the file system itself, and another call continues.
//!
//! With bigalloc, bits of bitmaps are clusters: blocks are allocated and freed in whole clusters, and a block
//! keeps its offset in its cluster (see `mover/clusters.rs`).
//!
//! Owns: the order of these phases. Does **not** own: what they change until the next switch (see `pending`),
//! the choice of free blocks (see `space`), the order of writes (see [`switch`](crate::switch)).
//!
//! Invariants
//! 1. INV-RZ3: blocks before the new end that become free are free for allocation only after the switch. So a
//!    copy never overwrites a block that the file system on the device still uses.
//! 2. Each phase begins with nothing pending, except for files and attribute blocks, which share switches.
//!
//! Source: kernel Documentation/filesystems/ext4/ifork.rst, attributes.rst, orphan.rst.

mod inodes;
mod metadata;
mod mover;
mod order;
mod pending;
mod space;

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_base::{Ino, Pblk};
use extant_ondisk::inode;
use extant_ondisk::{Features, Geometry, xattr};

use crate::fault::ResizeFault;
use crate::fs::Fs;
use crate::size::keeps_inodes;
use crate::switch::Switcher;
use inodes::{new_numbers, renumber};
use mover::{Root, move_inode};
pub(crate) use order::order_inodes;
use pending::Pending;

const MODE_AT: usize = 0;
const SIZE_AT: usize = 4;
const BLOCKS_AT: usize = 28;
const FLAGS_AT: usize = 32;
const MAP: Range<usize> = 40..100;
const GENERATION_AT: usize = 100;
const ACL_AT: usize = 104;
const BLOCKS_HIGH_AT: usize = 116;
const ACL_HIGH_AT: usize = 118;

/// What has moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Moved {
    /// Blocks.
    pub(crate) blocks: u64,
    /// Inodes.
    pub(crate) inodes: u64,
    /// Switches made.
    pub(crate) switches: u32,
}

/// Gives a switcher for the place where the journal is now.
type Reopen<'r> = &'r dyn Fn(&Fs) -> Result<Switcher, ResizeFault>;

/// Moves everything in use from `geometry`'s end on to free blocks before it. Returns also the moves whose
/// switch is made.
pub(crate) fn evacuate(
    fs: &mut Fs,
    switcher: Switcher,
    geometry: &Geometry,
    reopen: Reopen<'_>,
    check: &dyn Fn() -> Result<(), ResizeFault>,
    progress: &mut dyn FnMut(u64),
) -> (Moved, Result<Switcher, ResizeFault>) {
    let mut change = match Pending::new(fs, switcher, geometry, check) {
        Ok(change) => change,
        Err(fault) => return (Moved::default(), Err(fault)),
    };
    let mut done = move_all(&mut change, reopen, progress);
    let is_out_of_space = matches!(
        done,
        Err(ResizeFault::TooFragmented { .. } | ResizeFault::NoSpace | ResizeFault::NoRun { .. })
    );
    if is_out_of_space && !change.is_in_part {
        // What has moved is whole; another attempt continues from there.
        done = change.commit().and(done);
    }
    (change.durable, done.map(|()| change.switcher))
}

fn move_all(
    change: &mut Pending<'_>,
    reopen: Reopen<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ResizeFault> {
    let sb = &change.fs.sb;
    if sb.features.has_incompat(Features::MMP) && sb.mmp_block >= change.space.limit {
        return Err(ResizeFault::CannotShrink("its multiple-mount protection block would have to move"));
    }
    if change.space.ratio > 1 && has_block_map(change.fs)? {
        return Err(ResizeFault::CannotShrink("it has bigalloc and a file with a block map"));
    }
    metadata::move_metadata(change)?;
    let numbers = new_numbers(change.fs, change.space.groups)?;
    if let Some(why) = keeps_inodes(change.fs, false).filter(|_| !numbers.is_empty()) {
        return Err(ResizeFault::CannotShrink(why));
    }
    renumber(change, &numbers)?;
    move_journal(change, reopen)?;
    let mut shared: BTreeMap<u64, Vec<Ino>> = BTreeMap::new();
    let journal = change.fs.sb.journal_inum;
    for group in 0..change.space.groups {
        // An inode changes only when its turn comes, so its stored bytes are those of now.
        for (ino, stored) in change.fs.stored_inodes(group)?.iter() {
            if ino.0 == journal {
                continue;
            }
            if let Some(block) = move_inode(change, ino, stored)? {
                shared.entry(block).or_default().push(ino);
            }
        }
        progress(u64::from(group));
    }
    for (block, owners) in shared {
        move_attribute_block(change, block, &owners)?;
    }
    change.commit()
}

/// Whether an inode has a block map that names blocks. The inodes that describe the file system do not count.
fn has_block_map(fs: &Fs) -> Result<bool, ResizeFault> {
    for group in 0..fs.geometry.groups {
        let inodes = fs.stored_inodes(group)?;
        if inodes.iter().any(|(ino, stored)| {
            let has_map = Root::of(stored).is_block_map && stored[MAP].iter().any(|byte| *byte != 0);
            has_map && ino != Ino::BAD_BLOCKS && ino != Ino::RESIZE
        }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Moves the journal, while there are long runs of free blocks: its map changes as a whole.
fn move_journal(change: &mut Pending<'_>, reopen: Reopen<'_>) -> Result<(), ResizeFault> {
    let journal = Ino(change.fs.sb.journal_inum);
    if journal.0 == 0 {
        return Ok(());
    }
    change.is_in_part = true;
    let (block, at) = change.fs.inode_place(journal)?;
    let stored = change.fs.block(block)?[at].to_vec();
    move_inode(change, journal, &stored)?;
    let has_moved = !change.blocks.is_empty();
    if has_moved && change.fs.sb.jnl_backup_type == 1 {
        let bytes = change.inode_mut(journal)?[MAP].to_vec();
        for (word, value) in change.sb.jnl_blocks.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32_at(value, 0);
        }
    }
    change.commit_with_last(Some(block))?;
    change.is_in_part = false;
    if has_moved {
        change.switcher = reopen(change.fs)?;
    }
    Ok(())
}

/// Moves an attribute block with all its owners.
fn move_attribute_block(change: &mut Pending<'_>, block: u64, owners: &[Ino]) -> Result<(), ResizeFault> {
    if change.blocks.len() + owners.len() + 4 > change.room / 2 {
        change.commit()?;
    }
    if owners.len() + 8 > change.room / 2 {
        return Err(ResizeFault::CannotShrink("more files share an attribute block than the journal holds"));
    }
    let mut bytes = change.fs.block(block)?;
    let (seed, seals_inodes) = (change.fs.sb.fs_seed(), change.fs.sb.seals_inodes());
    let has_checksums = change.fs.sb.features.metadata_csum();
    if has_checksums {
        xattr::verify_block(&bytes, seed, Pblk(block))?;
    }
    let place = change.allocate(1, 0)?.start;
    if has_checksums {
        xattr::seal_block(&mut bytes, seed, Pblk(place));
    }
    change.write(place, &bytes)?;
    change.free(block..block + 1)?;
    change.moved.blocks += 1;
    for ino in owners {
        let bytes = change.inode_mut(*ino)?;
        put_u32(bytes, ACL_AT, place as u32);
        put_u16(bytes, ACL_HIGH_AT, (place >> 32) as u16);
        if seals_inodes {
            inode::seal(bytes, inode::inode_seed(seed, *ino, u32_at(bytes, GENERATION_AT)));
        }
    }
    change.commit_if_full()
}
