//! Which features a volume may have to be read. Refusals name the features.
//!
//! | may be read | refused |
//! |---|---|
//! | every compat bit | - |
//! | every ro_compat bit: reading does not need to maintain them | - |
//! | incompat bits of [`READABLE`] | compression, dirdata, journal_dev, every unknown bit |
//!
//! Source: kernel Documentation/filesystems/ext4/super.rst.

use extant_ondisk::features::Word;
use extant_ondisk::{Features, Superblock};

/// The incompat features that reading supports.
pub const READABLE: u32 = Features::FILETYPE
    | Features::RECOVER
    | Features::META_BG
    | Features::EXTENTS
    | Features::BIT64
    | Features::MMP
    | Features::FLEX_BG
    | Features::EA_INODE
    | Features::CSUM_SEED
    | Features::LARGEDIR
    | Features::INLINE_DATA
    | Features::ENCRYPT
    | Features::CASEFOLD;

/// The names of the features that prevent reading; empty if the volume can be read.
#[must_use]
pub fn unreadable(features: &Features) -> Vec<String> {
    Features { incompat: features.word(Word::Incompat) & !READABLE, ..Features::default() }.names()
}

/// An impossible combination of features, as text.
#[must_use]
pub fn contradiction(features: &Features) -> Option<&'static str> {
    let incompat = |bit| features.has_incompat(bit);
    if features.has_ro_compat(Features::BIGALLOC) && !incompat(Features::EXTENTS) {
        return Some("bigalloc needs extent");
    }
    if incompat(Features::CSUM_SEED) && !features.metadata_csum() {
        return Some("metadata_csum_seed needs metadata_csum");
    }
    if incompat(Features::META_BG) && features.has_compat(Features::RESIZE_INODE) {
        return Some("resize_inode and meta_bg exclude each other");
    }
    None
}

/// The read-only compatible features that writing maintains.
pub const WRITABLE: u32 = Features::SPARSE_SUPER
    | Features::LARGE_FILE
    | Features::HUGE_FILE
    | Features::GDT_CSUM
    | Features::DIR_NLINK
    | Features::EXTRA_ISIZE
    | Features::QUOTA
    | Features::BIGALLOC
    | Features::METADATA_CSUM
    | Features::PROJECT
    | Features::VERITY
    | Features::ORPHAN_PRESENT;

/// Features that file systems of the Hurd cannot have, because its inodes use those bytes otherwise: as the
/// kernel.
const NOT_HURDS: u32 = Features::BIT64 | Features::EA_INODE;

/// The names of the features that prevent writing.
#[must_use]
pub fn unwritable(sb: &Superblock) -> Vec<String> {
    let features = &sb.features;
    let unknown = features.word(Word::Incompat) & !READABLE;
    let clashing = if sb.is_hurd() { features.word(Word::Incompat) & NOT_HURDS } else { 0 };
    let ro_compat = features.word(Word::RoCompat) & !WRITABLE;
    let names = Features { incompat: unknown, ro_compat, ..Features::default() }.names();
    let clashing = Features { incompat: clashing, ..Features::default() }.names();
    names.into_iter().chain(clashing.into_iter().map(|name| format!("{name} on the GNU Hurd"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_bit() {
        let incompat = Features::EXTENTS | Features::COMPRESSION | 0x8000_0000;
        let mut features = Features { incompat, ..Features::default() };
        let names = unreadable(&features);
        assert_eq!(names[0], "compression");
        assert_eq!(names.len(), 2, "{names:?}");
        features.incompat = READABLE;
        features.ro_compat = u32::MAX;
        features.compat = u32::MAX;
        assert!(unreadable(&features).is_empty());
    }
}
