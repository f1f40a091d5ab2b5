//! The conversion that turns the checksums of all metadata on or off.
//!
//! Owns: going through everything that has a checksum. Does **not** own: the layout of the checksums (see
//! `ondisk`), what else follows from the feature, which the remedies of a repair write.

use extant_base::{Group, Ino, Pblk};
use extant_ondisk::group_desc::INODE_UNINIT;
use extant_ondisk::inode::{self, flags};
use extant_ondisk::{Features, extent, xattr};

use super::ConversionFault;
use crate::dirs::Dir;
use crate::fs::Fs;
use crate::{counts, orphans};

/// Turns metadata_csum on or off, and seals everything or removes the checksums.
pub(super) fn change(fs: &mut Fs<'_>, on: bool) -> Result<(), ConversionFault> {
    fs.put_superblock(|sb| match on {
        true => {
            sb.features.ro_compat |= Features::METADATA_CSUM;
            sb.features.ro_compat &= !Features::GDT_CSUM;
            sb.checksum_type = 1;
        }
        false => {
            // Parts of inode tables that were never used are known by a descriptor's checksum.
            sb.features.ro_compat |= Features::GDT_CSUM;
            sb.features.ro_compat &= !Features::METADATA_CSUM;
            sb.features.incompat &= !Features::CSUM_SEED;
            (sb.checksum_type, sb.checksum_seed) = (0, 0);
        }
    })?;
    for group in (0..fs.geometry.groups).map(Group) {
        counts::settle_group(fs, group)?;
        if !on && let Some(mut desc) = fs.stored_desc(group) {
            (desc.block_bitmap_csum, desc.inode_bitmap_csum) = (0, 0);
            let _ = fs.put_desc(group, &desc);
        }
        let Some(desc) = fs.stored_desc(group).filter(|desc| !desc.has_flag(INODE_UNINIT)) else {
            continue;
        };
        let per_group = fs.geometry.inodes_per_group;
        let first = group.0 * per_group + 1;
        for ino in (first..first + (per_group - desc.itable_unused.min(per_group))).map(Ino) {
            seal_inode(fs, ino)?;
        }
    }
    if fs.sb.features.has_compat(Features::ORPHAN_FILE) {
        orphans::empty(fs)?;
    }
    Ok(())
}

/// Seals an inode, the nodes of its map, its attributes, and the blocks of a directory; without
/// metadata_csum, it removes their checksums.
fn seal_inode(fs: &mut Fs<'_>, ino: Ino) -> Result<(), ConversionFault> {
    let has_csum = fs.has_csum();
    // Free inodes have checksums as well.
    fs.edit_inode(ino, |bytes| {
        if !has_csum {
            inode::clear_checksum(bytes);
        }
    });
    let is_used = fs.notes.noted(ino).is_some_and(|note| note.used);
    let Some(found) = fs.inode(ino).filter(|_| is_used) else { return Ok(()) };
    if found.mode & 0xF000 == 0x4000 && !fs.is_inline(&found) {
        // Its blocks get a tail or lose it, so entries move.
        let mut dir = Dir::gather(fs, ino).ok_or(ConversionFault::NoSpace("directories"))?;
        dir.put(fs).ok_or(ConversionFault::NoSpace("directories"))?;
    }
    let Some(inode) = fs.inode(ino) else { return Ok(()) };
    let seed = inode::inode_seed(fs.sb.fs_seed(), ino, inode.generation);
    let is_mapped = inode.has_flag(flags::EXTENTS) && !fs.is_inline(&inode);
    for node in if is_mapped { fs.walk(ino, &inode).nodes } else { Vec::new() } {
        let mut bytes = fs.read_block(node)?;
        // Nothing reads what is after the entries if there are no checksums.
        if has_csum {
            extent::seal(&mut bytes, seed);
        }
        fs.write_block(node, &bytes)?;
    }
    if inode.file_acl != 0 {
        let place = Pblk(inode.file_acl);
        let mut bytes = fs.read_block(place)?;
        match has_csum {
            true => xattr::seal_block(&mut bytes, fs.sb.fs_seed(), place),
            false => xattr::clear_checksum(&mut bytes),
        }
        fs.write_block(place, &bytes)?;
    }
    Ok(())
}
