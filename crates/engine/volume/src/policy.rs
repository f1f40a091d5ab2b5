//! Which features a volume may have to be read. Refusals name the features.
//!
//! | may be read | refused |
//! |---|---|
//! | every compat bit | - |
//! | every ro_compat bit: reading does not need to maintain them | - |
//! | incompat bits of [`FEATURES`] | compression, dirdata, journal_dev, every unknown bit |
//!
//! Source: kernel Documentation/filesystems/ext4/super.rst.

use extant_ondisk::features::{TABLE, Word};
use extant_ondisk::{Features, Superblock};

use Access::{Ignored, Read, Refused, Written};

/// What extant does with file systems that have a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// They cannot be opened.
    Refused,
    /// They can be read only.
    Read,
    /// They can be written; the feature means nothing to Linux either.
    Ignored,
    /// They can be written.
    Written,
}

/// The support of a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FeatureSupport {
    /// Its name, as mke2fs has it.
    pub name: &'static str,
    /// What is done with file systems that have it.
    pub access: Access,
    /// What writing maintains.
    pub maintains: &'static str,
    /// An image of the tests that has it, or lacks it where all others have it; empty if there is none.
    pub tested: &'static str,
}

const fn support(
    name: &'static str,
    access: Access,
    maintains: &'static str,
    tested: &'static str,
) -> FeatureSupport {
    FeatureSupport { name, access, maintains, tested }
}

/// The support of each feature that has a name. docs/features.md shows this table.
pub const FEATURES: &[FeatureSupport] = &[
    support("dir_prealloc", Ignored, "", ""),
    support("imagic_inodes", Ignored, "", ""),
    support("has_journal", Written, "all changes are transactions; see the crate `journal`", "crash-ordered"),
    support("ext_attr", Written, "attributes are written with or without it", "xattrs-4k"),
    support("resize_inode", Written, "changed by `extant resize` only", "no-resize-inode"),
    support("dir_index", Written, "new and growing directories get an index", "htree-4k"),
    support("lazy_bg", Ignored, "", ""),
    support("snapshot_bitmap", Ignored, "", ""),
    support("sparse_super2", Written, "backups in the two groups that the superblock names", "sparse-super2"),
    support("fast_commit", Written, "fast commits are replayed, and written by fsync", "crash-fast-commit"),
    support(
        "stable_inodes",
        Written,
        "`extant tune` refuses a new UUID, `extant resize` keeps inode numbers",
        "stable-inodes",
    ),
    support("orphan_file", Written, "orphans are recorded in it", "crash-orphan-file"),
    support("compression", Refused, "", ""),
    support("filetype", Written, "each directory entry", "no-filetype"),
    support("needs_recovery", Written, "set while the file system is open for writing", "crash-ordered"),
    support(
        "journal_dev",
        Refused,
        "it is no file system; `journal_dev=` names it for the one that it belongs to",
        "external-journal",
    ),
    support("meta_bg", Written, "where group descriptors lie", "meta-bg"),
    support("extent", Written, "maps of new files", "extents-depth-3"),
    support("64bit", Written, "all block numbers", "no-64bit"),
    support("mmp", Written, "the MMP block is claimed, and written while the file system is open", "mmp"),
    support("flex_bg", Written, "where bitmaps and inode tables lie", "flex-bg-256"),
    support("ea_inode", Written, "attribute values that do not fit elsewhere", "ea-inode"),
    support("dirdata", Refused, "", ""),
    support("metadata_csum_seed", Written, "all checksums", "csum-seed-new-uuid"),
    support("large_dir", Written, "three levels of an index, directories of 2 GiB and more", "large-dir"),
    support(
        "inline_data",
        Written,
        "contents and directories move out of the inode when they grow",
        "inline-data",
    ),
    support(
        "encrypt",
        Written,
        "names are read as ciphertext; encrypted files and directories refuse changes",
        "encrypted-tree",
    ),
    support(
        "casefold",
        Written,
        "names are compared as the encoding says; casefolded directories refuse changes",
        "casefold",
    ),
    support("sparse_super", Written, "which groups have backups", "no-sparse-super"),
    support("large_file", Written, "set when a file reaches 2 GiB", "no-large-file"),
    support("btree_dir", Read, "", ""),
    support("huge_file", Written, "block counts of inodes", "huge-file"),
    support("uninit_bg", Written, "descriptors' checksums and flags", "uninit-bg"),
    support("dir_nlink", Written, "a link count of 1 above 65,000 subdirectories", "subdirectories-65010"),
    support("extra_isize", Written, "times with nanoseconds, birth times", "inode-size-grown"),
    support("has_snapshot", Read, "", ""),
    support(
        "quota",
        Written,
        "usage is counted in the quota files; limits are not enforced",
        "quota-all-types",
    ),
    support("bigalloc", Written, "allocation by clusters", "bigalloc-64k"),
    support("metadata_csum", Written, "all checksums", "no-metadata-csum"),
    support("replica", Read, "", ""),
    support("read-only", Read, "", ""),
    support("project", Written, "project IDs of new files", "project"),
    support("shared_blocks", Read, "", ""),
    support("verity", Written, "protected files are not changed", "verity"),
    support("orphan_present", Written, "set while the orphan file may have entries", "crash-orphan-file"),
];

/// The bits of a word that can be read, or written as well.
fn supported(word: Word, writing: bool) -> u32 {
    let is_supported = |name: &str| {
        let access = FEATURES.iter().find(|row| row.name == name).map(|row| row.access);
        match access {
            Some(Written | Ignored) => true,
            Some(Read) => !writing,
            Some(Refused) | None => false,
        }
    };
    let features = TABLE.iter().filter(|feature| feature.word == word && is_supported(feature.name));
    features.fold(0, |bits, feature| bits | feature.bit)
}

/// The names of the features that prevent reading; empty if the volume can be read.
#[must_use]
pub fn unreadable(features: &Features) -> Vec<String> {
    let incompat = features.word(Word::Incompat) & !supported(Word::Incompat, false);
    Features { incompat, ..Features::default() }.names()
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

/// Features that file systems of the Hurd cannot have, because its inodes use those bytes otherwise: as the
/// kernel.
const NOT_HURDS: u32 = Features::BIT64 | Features::EA_INODE;

/// The names of the features that prevent writing.
#[must_use]
pub fn unwritable(sb: &Superblock) -> Vec<String> {
    let features = &sb.features;
    let unknown = features.word(Word::Incompat) & !supported(Word::Incompat, true);
    let clashing = if sb.is_hurd() { features.word(Word::Incompat) & NOT_HURDS } else { 0 };
    let ro_compat = features.word(Word::RoCompat) & !supported(Word::RoCompat, true);
    let names = Features { incompat: unknown, ro_compat, ..Features::default() }.names();
    let clashing = Features { incompat: clashing, ..Features::default() }.names();
    names.into_iter().chain(clashing.into_iter().map(|name| format!("{name} on the GNU Hurd"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each named feature has one row, and its image exists. The page shows the same rows.
    #[test]
    fn every_feature_has_a_row_and_the_page_shows_it() {
        let names: Vec<&str> = FEATURES.iter().map(|row| row.name).collect();
        let known: Vec<&str> = TABLE.iter().map(|feature| feature.name).collect();
        assert_eq!(names, known);
        let recipes: Vec<&str> = extant_testkit::matrix::recipes().iter().map(|recipe| recipe.name).collect();
        let page = include_str!("../../../../docs/features.md");
        for row in FEATURES {
            assert!(row.tested.is_empty() || recipes.contains(&row.tested), "{}", row.tested);
            let access = match row.access {
                Refused => "refused",
                Read => "read only",
                Ignored => "ignored",
                Written => "read, written",
            };
            let tested = if row.tested.is_empty() { String::new() } else { format!("`{}`", row.tested) };
            let line = format!("| `{}` | {access} | {} | {tested} |\n", row.name, row.maintains);
            assert!(page.contains(&line), "docs/features.md lacks: {line}");
        }
    }

    #[test]
    fn a_refusal_names_the_bit() {
        let incompat = Features::EXTENTS | Features::COMPRESSION | 0x8000_0000;
        let mut features = Features { incompat, ..Features::default() };
        let names = unreadable(&features);
        assert_eq!(names[0], "compression");
        assert_eq!(names.len(), 2, "{names:?}");
        features.incompat = supported(Word::Incompat, false);
        features.ro_compat = u32::MAX;
        features.compat = u32::MAX;
        assert!(unreadable(&features).is_empty());
    }
}
