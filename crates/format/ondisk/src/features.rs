//! The three feature words of the superblock, with e2fsprogs' names for the bits.
//!
//! Source: kernel Documentation/filesystems/ext4/super.rst.

use std::fmt;

/// The three feature words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Features that a driver may ignore.
    pub compat: u32,
    /// Features that a driver must know to mount.
    pub incompat: u32,
    /// Features that a driver must know to write.
    pub ro_compat: u32,
}

/// One of the three feature words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Word {
    /// `s_feature_compat`
    Compat,
    /// `s_feature_incompat`
    Incompat,
    /// `s_feature_ro_compat`
    RoCompat,
}

/// One named feature bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Feature {
    /// The name that mke2fs and dumpe2fs use.
    pub name: &'static str,
    /// The word that contains it.
    pub word: Word,
    /// Its bit within the word.
    pub bit: u32,
}

macro_rules! features {
    ($( $(#[$doc:meta])* $word:ident $konst:ident = $bit:literal, $name:literal; )*) => {
        impl Features {
            $( $(#[$doc])* pub const $konst: u32 = $bit; )*
        }
        /// All feature bits that have a name, in dumpe2fs's order.
        pub const TABLE: &[Feature] = &[ $( Feature { name: $name, word: Word::$word, bit: $bit } ),* ];
    };
}

features! {
    /// Directory block preallocation (never implemented by Linux).
    Compat DIR_PREALLOC = 0x1, "dir_prealloc";
    /// AFS "imagic" inodes.
    Compat IMAGIC = 0x2, "imagic_inodes";
    /// The file system has a journal.
    Compat HAS_JOURNAL = 0x4, "has_journal";
    /// Extended attributes.
    Compat EXT_ATTR = 0x8, "ext_attr";
    /// Inode 7 owns the reserved group-descriptor blocks.
    Compat RESIZE_INODE = 0x10, "resize_inode";
    /// Hashed directory indexes.
    Compat DIR_INDEX = 0x20, "dir_index";
    /// Obsolete lazy block groups.
    Compat LAZY_BG = 0x40, "lazy_bg";
    /// Obsolete snapshot exclusion bitmap.
    Compat EXCLUDE_BITMAP = 0x100, "snapshot_bitmap";
    /// At most two backup superblocks, named in `s_backup_bgs`.
    Compat SPARSE_SUPER2 = 0x200, "sparse_super2";
    /// The journal has a fast-commit area.
    Compat FAST_COMMIT = 0x400, "fast_commit";
    /// Inode numbers and UUID never change (encryption depends on them).
    Compat STABLE_INODES = 0x800, "stable_inodes";
    /// The file system has an orphan file.
    Compat ORPHAN_FILE = 0x1000, "orphan_file";

    /// Compressed files (never implemented by Linux).
    Incompat COMPRESSION = 0x1, "compression";
    /// Directory entries store the file type.
    Incompat FILETYPE = 0x2, "filetype";
    /// The journal must be replayed.
    Incompat RECOVER = 0x4, "needs_recovery";
    /// This is an external journal device.
    Incompat JOURNAL_DEV = 0x8, "journal_dev";
    /// Group descriptors are stored in their own meta block groups.
    Incompat META_BG = 0x10, "meta_bg";
    /// Files may be mapped by extents.
    Incompat EXTENTS = 0x40, "extent";
    /// Block numbers have 64 bits.
    Incompat BIT64 = 0x80, "64bit";
    /// Multiple-mount protection.
    Incompat MMP = 0x100, "mmp";
    /// Bitmaps and tables of several groups are packed together.
    Incompat FLEX_BG = 0x200, "flex_bg";
    /// Large extended-attribute values are stored in inodes of their own.
    Incompat EA_INODE = 0x400, "ea_inode";
    /// Data in directory entries (Lustre).
    Incompat DIRDATA = 0x1000, "dirdata";
    /// The checksum seed is stored instead of derived from the UUID.
    Incompat CSUM_SEED = 0x2000, "metadata_csum_seed";
    /// Directories may exceed 2 GiB and have three index levels.
    Incompat LARGEDIR = 0x4000, "large_dir";
    /// Small files are stored in their inode.
    Incompat INLINE_DATA = 0x8000, "inline_data";
    /// Encrypted inodes.
    Incompat ENCRYPT = 0x10000, "encrypt";
    /// Case-insensitive directories.
    Incompat CASEFOLD = 0x20000, "casefold";

    /// Backup superblocks only in groups 0, 1 and powers of 3, 5, 7.
    RoCompat SPARSE_SUPER = 0x1, "sparse_super";
    /// Some file is larger than 2 GiB - 1.
    RoCompat LARGE_FILE = 0x2, "large_file";
    /// Never implemented.
    RoCompat BTREE_DIR = 0x4, "btree_dir";
    /// Block counts of inodes are 48 bits wide.
    RoCompat HUGE_FILE = 0x8, "huge_file";
    /// Group descriptors have CRC-16 checksums and may be uninitialised.
    RoCompat GDT_CSUM = 0x10, "uninit_bg";
    /// Directories may have more than 65,000 subdirectories.
    RoCompat DIR_NLINK = 0x20, "dir_nlink";
    /// Inodes have space beyond 128 bytes.
    RoCompat EXTRA_ISIZE = 0x40, "extra_isize";
    /// Obsolete snapshots.
    RoCompat HAS_SNAPSHOT = 0x80, "has_snapshot";
    /// Quota files are hidden inodes.
    RoCompat QUOTA = 0x100, "quota";
    /// Allocation in clusters of several blocks.
    RoCompat BIGALLOC = 0x200, "bigalloc";
    /// Every metadata block has a CRC-32C.
    RoCompat METADATA_CSUM = 0x400, "metadata_csum";
    /// Never implemented by Linux.
    RoCompat REPLICA = 0x800, "replica";
    /// The file system must never be written.
    RoCompat READONLY = 0x1000, "read-only";
    /// Inodes have a project ID.
    RoCompat PROJECT = 0x2000, "project";
    /// Files share blocks; read-only.
    RoCompat SHARED_BLOCKS = 0x4000, "shared_blocks";
    /// Files may be protected by fs-verity.
    RoCompat VERITY = 0x8000, "verity";
    /// The orphan file may hold live entries.
    RoCompat ORPHAN_PRESENT = 0x10000, "orphan_present";
}

/// Aliases that mke2fs accepts for the same bits.
const ALIASES: &[(&str, &str)] = &[
    ("extents", "extent"),
    ("gdt_csum", "uninit_bg"),
    ("largedir", "large_dir"),
    ("csum_seed", "metadata_csum_seed"),
    ("snapshot", "has_snapshot"),
];

impl Feature {
    /// Finds a feature by its e2fsprogs name or an alias.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Feature> {
        let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, real)| real);
        TABLE.iter().copied().find(|feature| feature.name == name)
    }
}

impl Features {
    /// Whether this bit of the compat word is set.
    #[must_use]
    pub fn has_compat(&self, bit: u32) -> bool {
        self.compat & bit != 0
    }

    /// Whether this bit of the incompat word is set.
    #[must_use]
    pub fn has_incompat(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// Whether this bit of the ro_compat word is set.
    #[must_use]
    pub fn has_ro_compat(&self, bit: u32) -> bool {
        self.ro_compat & bit != 0
    }

    /// Whether this feature is set.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.word(feature.word) & feature.bit != 0
    }

    /// Sets or clears a feature.
    pub fn set(&mut self, feature: Feature, on: bool) {
        let word = match feature.word {
            Word::Compat => &mut self.compat,
            Word::Incompat => &mut self.incompat,
            Word::RoCompat => &mut self.ro_compat,
        };
        *word = if on { *word | feature.bit } else { *word & !feature.bit };
    }

    /// One of the three words.
    #[must_use]
    pub fn word(&self, word: Word) -> u32 {
        match word {
            Word::Compat => self.compat,
            Word::Incompat => self.incompat,
            Word::RoCompat => self.ro_compat,
        }
    }

    /// Whether metadata_csum is on: every metadata block has a CRC-32C.
    #[must_use]
    pub fn metadata_csum(&self) -> bool {
        self.has_ro_compat(Self::METADATA_CSUM)
    }

    /// Names of all set bits, as dumpe2fs prints them. A bit without a name becomes `FEATURE_C31` (initial of
    /// the word, number of the bit).
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (word, initial) in [(Word::Compat, 'C'), (Word::Incompat, 'I'), (Word::RoCompat, 'R')] {
            for bit_number in 0..32 {
                let bit = 1u32 << bit_number;
                if self.word(word) & bit == 0 {
                    continue;
                }
                match TABLE.iter().find(|f| f.word == word && f.bit == bit) {
                    Some(feature) => names.push(feature.name.to_owned()),
                    None => names.push(format!("FEATURE_{initial}{bit_number}")),
                }
            }
        }
        names
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_bits_are_unique_within_a_word() {
        for (i, a) in TABLE.iter().enumerate() {
            assert!(a.bit.is_power_of_two());
            for b in &TABLE[i + 1..] {
                assert_ne!(a.name, b.name);
                assert!(a.word != b.word || a.bit != b.bit, "{} and {}", a.name, b.name);
            }
        }
    }

    #[test]
    fn unknown_bits_are_still_named() {
        let features = Features { compat: 1 << 31, incompat: Features::FILETYPE, ro_compat: 0 };
        assert_eq!(features.to_string(), "FEATURE_C31 filetype");
    }

    #[test]
    fn aliases_reach_their_feature() {
        assert_eq!(Feature::by_name("extents"), Feature::by_name("extent"));
        assert_eq!(Feature::by_name("gdt_csum").unwrap().bit, Features::GDT_CSUM);
        assert_eq!(Feature::by_name("nonsense"), None);
    }
}
