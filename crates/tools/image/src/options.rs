//! The options of a file system, with mke2fs's defaults.
//!
//! Owns the options and the feature sets. Does **not** own the numbers that are computed from them (see
//! [`crate::sizing`]).

use extant_base::BlockSize;
use extant_ondisk::Features;
use extant_ondisk::features::Feature;

/// The generations of the file system, as in mke2fs's `-t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Generation {
    /// No journal, block maps.
    Ext2,
    /// ext2 with a journal.
    Ext3,
    /// Extents, checksums and all other features.
    #[default]
    Ext4,
}

/// mke2fs's `-T`: the intended use, which determines block size and inode ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Usage {
    /// Below 3 MiB.
    Floppy,
    /// Below 512 MiB.
    Small,
    /// All sizes in between.
    Default,
    /// From 4 TiB.
    Big,
    /// From 16 TiB.
    Huge,
    /// Many small files.
    News,
    /// One inode per MiB.
    Largefile,
    /// One inode per 4 MiB.
    Largefile4,
}

impl Usage {
    /// The usage with this name in mke2fs.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Some(match name {
            "floppy" => Self::Floppy,
            "small" => Self::Small,
            "default" => Self::Default,
            "big" => Self::Big,
            "huge" => Self::Huge,
            "news" => Self::News,
            "largefile" => Self::Largefile,
            "largefile4" => Self::Largefile4,
            _ => return None,
        })
    }

    /// The default of mke2fs for a device of this many bytes.
    #[must_use]
    pub fn for_size(bytes: u64) -> Self {
        match bytes >> 20 {
            0..3 => Self::Floppy,
            3..512 => Self::Small,
            512..0x40_0000 => Self::Default,
            0x40_0000..0x100_0000 => Self::Big,
            _ => Self::Huge,
        }
    }

    /// Default block size in bytes.
    #[must_use]
    pub fn block_size(self) -> BlockSize {
        match self {
            Self::Floppy | Self::Small => BlockSize::MIN,
            _ => BlockSize::KIB4,
        }
    }

    /// Default inode ratio: bytes of the device per inode.
    #[must_use]
    pub fn inode_ratio(self) -> u64 {
        match self {
            Self::Floppy => 8192,
            Self::Small | Self::News => 4096,
            Self::Default => 16_384,
            Self::Big => 32_768,
            Self::Huge => 65_536,
            Self::Largefile => 1 << 20,
            Self::Largefile4 => 4 << 20,
        }
    }
}

/// The quota files to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaTypes {
    /// Per user.
    pub user: bool,
    /// Per group.
    pub group: bool,
    /// Per project; `None` follows the project feature.
    pub project: Option<bool>,
}

impl Default for QuotaTypes {
    fn default() -> Self {
        Self { user: true, group: true, project: None }
    }
}

/// The size of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JournalSize {
    /// mke2fs's default for the size of the file system.
    #[default]
    Auto,
    /// This many MiB, as in `-J size=`.
    MiB(u32),
}

/// All options of a file system. A field that is `None` has the default of mke2fs 1.47.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FormatOptions {
    /// `-t`.
    pub generation: Generation,
    /// `-T`; if `None`, it depends on the size.
    pub usage: Option<Usage>,
    /// `-O`, in order.
    pub features: Vec<FeatureEdit>,
    /// A complete set of features that replaces the generation's defaults. `features` edits it.
    pub feature_base: Option<Features>,
    /// `-b`.
    pub block_size: Option<BlockSize>,
    /// `-C`, in bytes; with bigalloc.
    pub cluster_size: Option<u64>,
    /// `-g`, in blocks; with bigalloc, in clusters.
    pub blocks_per_group: Option<u32>,
    /// `-G`, in groups.
    pub groups_per_flex: Option<u32>,
    /// `-i`, in bytes.
    pub inode_ratio: Option<u64>,
    /// `-I`, in bytes.
    pub inode_size: Option<u16>,
    /// `-N`.
    pub inodes: Option<u64>,
    /// `-m`, in percent.
    pub reserved_percent: Option<f64>,
    /// `-L`, at most 16 bytes.
    pub label: Vec<u8>,
    /// `-M`, at most 64 bytes.
    pub last_mounted: Vec<u8>,
    /// `-U`. The caller sets it if it must not be random.
    pub uuid: Option<[u8; 16]>,
    /// `-e`: 1 continue, 2 remount read-only, 3 panic.
    pub errors: Option<u16>,
    /// `-J size=`.
    pub journal_size: JournalSize,
    /// `-E stride=`, in blocks.
    pub stride: u16,
    /// `-E stripe_width=`, in blocks.
    pub stripe_width: u32,
    /// `-E resize=`: number of blocks up to which the file system can grow online.
    pub resize_blocks: Option<u64>,
    /// The same in bytes (`-E resize=16G`).
    pub resize_bytes: Option<u64>,
    /// Size in bytes up to which the file system will be grown (`--grow-to`): descriptors, inodes and the
    /// journal are made for that size.
    pub grow_to_bytes: Option<u64>,
    /// Inode ratio for the minimum number of inodes per group: bytes of a full group per inode. When a file
    /// system grows, new groups have as many inodes as the first.
    pub group_inode_ratio: Option<u64>,
    /// `-E packed_meta_blocks`: all bitmaps and inode tables, and the journal, are at the beginning; needs
    /// flex_bg.
    pub packed_metadata: bool,
    /// `-E num_backup_sb=`, 0 to 2; needs sparse_super2.
    pub num_backup_sb: Option<u8>,
    /// `-E mmp_update_interval=`, in seconds.
    pub mmp_interval: Option<u16>,
    /// `-E hash_seed=`.
    pub hash_seed: Option<[u8; 16]>,
    /// `-E root_owner=uid:gid`.
    pub root_owner: Option<(u32, u32)>,
    /// `-E quotatype=`.
    pub quota_types: QuotaTypes,
    /// `-E test_fs`.
    pub test_fs: bool,
    /// `-E orphan_file_size=`, in bytes.
    pub orphan_file_bytes: Option<u64>,
    /// `-E lazy_itable_init=`: lets the kernel zero the tables of unused groups (only on devices with old
    /// content).
    pub lazy_itable_init: Option<bool>,
}

/// One entry of `-O`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureEdit {
    /// `none`: clears all features so far.
    None,
    /// `name` or `^name`.
    Set(Feature, bool),
}

impl FeatureEdit {
    /// Parses the value of `-O`: `a,b,^c`, separated by commas or blanks.
    ///
    /// # Errors
    /// The first word that is not a feature.
    pub fn parse_list(list: &str) -> Result<Vec<Self>, String> {
        list.split([',', ' ']).filter(|word| !word.is_empty()).map(Self::parse).collect()
    }

    fn parse(word: &str) -> Result<Self, String> {
        if word == "none" {
            return Ok(Self::None);
        }
        let (name, on) = match word.strip_prefix('^') {
            Some(name) => (name, false),
            None => (word, true),
        };
        Feature::by_name(name).map(|feature| Self::Set(feature, on)).ok_or_else(|| name.to_owned())
    }
}

/// The `base_features` of mke2fs.conf.
const BASE: Features = Features {
    compat: Features::RESIZE_INODE | Features::DIR_INDEX | Features::EXT_ATTR,
    incompat: Features::FILETYPE,
    ro_compat: Features::SPARSE_SUPER | Features::LARGE_FILE,
};

/// The default features of a generation. Those of ext4 are the defaults of e2fsprogs 1.47.4 (with
/// `orphan_file` and `metadata_csum_seed`).
#[must_use]
pub fn default_features(generation: Generation) -> Features {
    let mut features = BASE;
    match generation {
        Generation::Ext2 => {}
        Generation::Ext3 => features.compat |= Features::HAS_JOURNAL,
        Generation::Ext4 => {
            features.compat |= Features::HAS_JOURNAL | Features::ORPHAN_FILE;
            features.incompat |=
                Features::EXTENTS | Features::FLEX_BG | Features::BIT64 | Features::CSUM_SEED;
            features.ro_compat |=
                Features::HUGE_FILE | Features::METADATA_CSUM | Features::DIR_NLINK | Features::EXTRA_ISIZE;
        }
    }
    features
}

/// Why a set of features is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeatureFault {
    /// extant does not support the feature.
    #[error("feature {name} cannot be made: {reason}")]
    Unsupported {
        /// mke2fs's name.
        name: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// Two features exclude each other, or one requires another.
    #[error("{0}")]
    Conflict(&'static str),
}

const REFUSED: &[(&str, &str)] = &[
    ("casefold", "case-insensitive names need full Unicode tables, which extant does not have yet"),
    ("encrypt", "encrypted directories need keys, which extant does not handle yet"),
    ("verity", "fs-verity files are made on a mounted file system"),
    ("shared_blocks", "shared blocks make a file system that cannot be written"),
    ("journal_dev", "a journal device is not a file system; external journals are not made yet"),
    ("needs_recovery", "a new file system has nothing to recover"),
    ("orphan_present", "a new file system has no orphans"),
    ("has_snapshot", "Linux has no driver for it"),
    ("compression", "Linux has no driver for it"),
    ("dirdata", "Linux has no driver for it"),
    ("dir_prealloc", "Linux has no driver for it"),
    ("imagic_inodes", "Linux has no driver for it"),
    ("btree_dir", "Linux has no driver for it"),
    ("replica", "Linux has no driver for it"),
    ("lazy_bg", "Linux has no driver for it"),
    ("snapshot_bitmap", "Linux has no driver for it"),
];

impl FormatOptions {
    /// Number of blocks up to which the file system can grow online, if it was set.
    #[must_use]
    pub fn grow_blocks(&self, block_size: BlockSize) -> Option<u64> {
        let bytes = self.resize_bytes.or(self.grow_to_bytes);
        self.resize_blocks.or(bytes.map(|bytes| bytes / block_size.bytes()))
    }

    /// The requested features, made consistent as in mke2fs.
    ///
    /// # Errors
    /// Features that exclude each other, and features that extant does not support.
    pub fn resolve_features(&self) -> Result<Features, FeatureFault> {
        let mut features = self.feature_base.unwrap_or_else(|| default_features(self.generation));
        for edit in &self.features {
            match *edit {
                FeatureEdit::None => features = Features::default(),
                FeatureEdit::Set(feature, on) => features.set(feature, on),
            }
        }
        let asked = |name: &str, on: bool| {
            let last = self.features.iter().rev().find_map(|edit| match edit {
                FeatureEdit::Set(feature, set) if feature.name == name => Some(*set),
                _ => None,
            });
            last == Some(on)
        };
        for &(name, reason) in REFUSED {
            if Feature::by_name(name).is_some_and(|feature| features.has(feature)) {
                return Err(FeatureFault::Unsupported { name, reason });
            }
        }
        if features.has_ro_compat(Features::QUOTA) && self.quota_types.project == Some(true) {
            features.ro_compat |= Features::PROJECT;
        }
        // A feature whose prerequisite is missing is dropped silently, unless it was requested by name.
        if features.metadata_csum() {
            features.ro_compat &= !Features::GDT_CSUM;
        } else if features.has_incompat(Features::CSUM_SEED) {
            if asked("metadata_csum_seed", true) {
                return Err(FeatureFault::Conflict("metadata_csum_seed needs metadata_csum"));
            }
            features.incompat &= !Features::CSUM_SEED;
        }
        if self.journal_size != JournalSize::Auto {
            if asked("has_journal", false) {
                return Err(FeatureFault::Conflict("a journal size needs has_journal"));
            }
            features.compat |= Features::HAS_JOURNAL;
        }
        if !features.has_compat(Features::HAS_JOURNAL) {
            if asked("orphan_file", true) {
                return Err(FeatureFault::Conflict("orphan_file needs has_journal"));
            }
            if asked("fast_commit", true) {
                return Err(FeatureFault::Conflict("fast_commit needs has_journal"));
            }
            features.compat &= !(Features::ORPHAN_FILE | Features::FAST_COMMIT);
        }
        let extents = features.has_incompat(Features::EXTENTS);
        if features.has_ro_compat(Features::BIGALLOC) && !extents {
            return Err(FeatureFault::Conflict("bigalloc needs extent"));
        }
        if features.has_incompat(Features::BIT64) && !extents {
            if asked("64bit", true) {
                return Err(FeatureFault::Conflict("64bit needs extent"));
            }
            features.incompat &= !Features::BIT64;
        }
        if features.has_incompat(Features::META_BG) && features.has_compat(Features::RESIZE_INODE) {
            if asked("resize_inode", true) {
                return Err(FeatureFault::Conflict(
                    "resize_inode and meta_bg exclude each other: reserved descriptor blocks have no place in meta groups",
                ));
            }
            features.compat &= !Features::RESIZE_INODE;
        }
        let sparse =
            features.has_ro_compat(Features::SPARSE_SUPER) || features.has_compat(Features::SPARSE_SUPER2);
        if features.has_compat(Features::RESIZE_INODE) && !sparse {
            if asked("resize_inode", true) {
                return Err(FeatureFault::Conflict("resize_inode needs sparse_super"));
            }
            features.compat &= !Features::RESIZE_INODE;
        }
        if self.packed_metadata && !features.has_incompat(Features::FLEX_BG) {
            return Err(FeatureFault::Conflict("packed_meta_blocks needs flex_bg"));
        }
        if self.cluster_size.is_some() && !features.has_ro_compat(Features::BIGALLOC) {
            return Err(FeatureFault::Conflict("a cluster size needs the bigalloc feature"));
        }
        for (bit, conflict) in [
            (Features::INLINE_DATA, "inline_data needs ext_attr"),
            (Features::EA_INODE, "ea_inode needs ext_attr"),
        ] {
            if features.has_incompat(bit) && !features.has_compat(Features::EXT_ATTR) {
                return Err(FeatureFault::Conflict(conflict));
            }
        }
        Ok(features)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(list: &str) -> Result<Features, FeatureFault> {
        FormatOptions { features: FeatureEdit::parse_list(list).unwrap(), ..FormatOptions::default() }
            .resolve_features()
    }

    #[test]
    fn the_default_set_is_that_of_e2fsprogs_1_47_4() {
        let names = resolve("").unwrap().to_string();
        assert_eq!(
            names,
            "has_journal ext_attr resize_inode dir_index orphan_file filetype extent 64bit flex_bg metadata_csum_seed \
             sparse_super large_file huge_file dir_nlink extra_isize metadata_csum"
        );
    }

    #[test]
    fn what_a_missing_feature_carries_goes_with_it_unless_it_was_asked_for() {
        assert!(!resolve("^metadata_csum").unwrap().has_incompat(Features::CSUM_SEED));
        assert!(resolve("^metadata_csum,metadata_csum_seed").is_err());
        assert!(!resolve("^has_journal").unwrap().has_compat(Features::ORPHAN_FILE));
        assert!(resolve("^has_journal,orphan_file").is_err());
        assert!(resolve("bigalloc,^extent").is_err());
        assert!(!resolve("meta_bg").unwrap().has_compat(Features::RESIZE_INODE));
    }

    #[test]
    fn casefold_is_refused_with_its_reason() {
        let fault = resolve("casefold").unwrap_err();
        assert!(fault.to_string().contains("Unicode"), "{fault}");
        assert_eq!(FeatureEdit::parse_list("extent,nonsense"), Err("nonsense".to_owned()));
    }
}
