//! The features that a target can mount, check and boot from: `--profile NAME`.
//!
//! Owns the facts about targets: their kernel, e2fsck and boot loader, and the first release of each that
//! supports a feature. Does **not** own the user's own options, which are applied on top (see
//! [`crate::options::FeatureEdit`]).
//!
//! ```text
//! mke2fs 1.47's default set
//!   - features that the target's kernel cannot mount for writing
//!   - features that its e2fsck does not support: it could not check the file system at boot
//!   - features that its boot loader cannot read
//!   - features that the distribution's own mke2fs leaves out, or whose support is not confirmed
//!   + uninit_bg in place of metadata_csum
//! ```
//!
//! Invariants
//! 1. No profile has a feature that a part of its target does not support ([`Profile::refusal`]).
//! 2. Every profile is a valid set of features without further changes.
//! 3. If support for a feature is not confirmed, the profile leaves it out and the notes say so.
//!
//! Sources: ext4(5), section "Kernel support" (first kernel without known serious bugs; hence 3.18 for
//! `metadata_csum`, because its journal format changed in that release); e2fsprogs release notes; Debian's
//! e2fsprogs changelog (1.47.0-2 and 1.47.1~rc1-1 on `orphan_file` and `metadata_csum_seed`); tests with
//! `grub-fstest` of Debian 11 and 12; U-Boot commits "Refuse to mount filesystems with 64bit feature set" and
//! "do not write on filesystem with metadata_csum feature"; the Syslinux wiki's page Filesystem; AOSP's
//! mke2fs.conf.

use std::fmt;
use std::sync::LazyLock;

use extant_base::BlockSize;
use extant_ondisk::Features;
use extant_ondisk::features::{Feature, TABLE};

use crate::options::{Generation, default_features};

/// A release: major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16, pub u16);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// The boot loader that reads the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loader {
    /// GRUB 2.02 to 2.06 as released upstream.
    Grub206,
    /// GRUB 2.12, and the patched 2.06 of Debian 12.
    Grub212,
    /// U-Boot, reading and writing.
    UBoot,
    /// Syslinux 6.03 and 6.04-pre.
    Extlinux,
}

impl Loader {
    fn name(self) -> &'static str {
        match self {
            Self::Grub206 => "GRUB 2.06",
            Self::Grub212 => "GRUB 2.12",
            Self::UBoot => "U-Boot",
            Self::Extlinux => "extlinux",
        }
    }

    /// Names of the features that it refuses, misreads, or must not write with.
    fn refuses(self) -> &'static [&'static str] {
        match self {
            Self::Grub206 => {
                &["metadata_csum_seed", "large_dir", "ea_inode", "inline_data", "casefold", "bigalloc"]
            }
            Self::Grub212 => &["ea_inode", "inline_data", "casefold", "bigalloc"],
            // U-Boot maintains neither checksums nor directory indexes, and its releases of 2016 refuse
            // 64bit.
            Self::UBoot => &[
                "dir_index",
                "64bit",
                "meta_bg",
                "mmp",
                "ea_inode",
                "metadata_csum_seed",
                "large_dir",
                "inline_data",
                "encrypt",
                "casefold",
                "uninit_bg",
                "quota",
                "bigalloc",
                "metadata_csum",
                "project",
                "verity",
                "fast_commit",
                "orphan_file",
            ],
            Self::Extlinux => &[
                "64bit",
                "meta_bg",
                "ea_inode",
                "metadata_csum_seed",
                "large_dir",
                "inline_data",
                "encrypt",
                "casefold",
                "bigalloc",
            ],
        }
    }
}

/// Per feature: its name, the first kernel that mounts it for writing, and the first e2fsck that supports it.
///
/// A feature not listed here is supported by all kernels from 2.6.28 and all e2fsck from 1.42, or by none
/// ([`NEVER`]).
const KNOWN_SINCE: &[(&str, Version, Version)] = &[
    ("mmp", Version(3, 0), Version(1, 42)),
    ("bigalloc", Version(3, 2), Version(1, 42)),
    ("quota", Version(3, 6), Version(1, 43)),
    ("inline_data", Version(3, 8), Version(1, 43)),
    ("sparse_super2", Version(3, 16), Version(1, 43)),
    ("metadata_csum", Version(3, 18), Version(1, 43)),
    ("encrypt", Version(4, 1), Version(1, 43)),
    ("metadata_csum_seed", Version(4, 4), Version(1, 43)),
    ("project", Version(4, 5), Version(1, 43)),
    ("ea_inode", Version(4, 13), Version(1, 45)),
    ("large_dir", Version(4, 13), Version(1, 45)),
    ("casefold", Version(5, 2), Version(1, 45)),
    ("verity", Version(5, 4), Version(1, 46)),
    ("stable_inodes", Version(5, 5), Version(1, 46)),
    ("fast_commit", Version(5, 10), Version(1, 46)),
    ("orphan_file", Version(5, 15), Version(1, 47)),
    ("orphan_present", Version(5, 15), Version(1, 47)),
];

/// Features that no kernel mounts for writing.
const NEVER: &[&str] = &[
    "dir_prealloc",
    "imagic_inodes",
    "lazy_bg",
    "snapshot_bitmap",
    "compression",
    "journal_dev",
    "dirdata",
    "btree_dir",
    "has_snapshot",
    "replica",
    "read-only",
    "shared_blocks",
];

/// Why a target cannot use a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its kernel is too old.
    #[error("kernel {has} does not mount {feature} for writing (known since {since})")]
    Kernel {
        /// The feature.
        feature: &'static str,
        /// The target's kernel.
        has: Version,
        /// The first kernel that supports it.
        since: Version,
    },
    /// Its e2fsck is too old.
    #[error(
        "e2fsck {has} does not know {feature} and would refuse to check the file system (known since {since})"
    )]
    Fsck {
        /// The feature.
        feature: &'static str,
        /// Its e2fsprogs.
        has: Version,
        /// The first e2fsprogs that supports it.
        since: Version,
    },
    /// Its boot loader does not support the feature.
    #[error("{loader} does not handle {feature}")]
    Loader {
        /// The feature.
        feature: &'static str,
        /// The boot loader's name.
        loader: &'static str,
    },
    /// No Linux kernel supports the feature.
    #[error("no Linux kernel mounts {feature} for writing")]
    Nobody {
        /// The feature.
        feature: &'static str,
    },
}

/// The facts about a target.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ProfileTarget {
    name: &'static str,
    describes: &'static str,
    kernel: Option<Version>,
    fsck: Option<Version>,
    loader: Option<Loader>,
    /// Features left out although every part supports them.
    withheld: &'static [&'static str],
    block_size: Option<BlockSize>,
    inode_size: Option<u16>,
    notes: &'static str,
}

/// The features and sizes that fit one target.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The name on the command line.
    pub name: &'static str,
    /// A description of the target.
    pub describes: &'static str,
    /// The features of the file system.
    pub features: Features,
    /// The block size, if only one fits.
    pub block_size: Option<BlockSize>,
    /// The inode size in bytes, if only one fits.
    pub inode_size: Option<u16>,
    /// Further notes for the user; may be empty.
    pub notes: &'static str,
    target: &'static ProfileTarget,
}

impl Profile {
    /// Every profile, distributions first.
    #[must_use]
    pub fn all() -> &'static [Profile] {
        static ALL: LazyLock<Vec<Profile>> =
            LazyLock::new(|| TARGETS.iter().map(ProfileTarget::profile).collect());
        &ALL
    }

    /// The profile of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Self::all().iter().find(|profile| profile.name == name)
    }

    /// Why the target cannot use a feature; `None` if all its parts support it.
    #[must_use]
    pub fn refusal(&self, feature: Feature) -> Option<Refusal> {
        self.target.refusal(feature)
    }

    /// All refusals of a set of features, such as the profile's own set with a user's edits applied.
    #[must_use]
    pub fn refusals(&self, features: Features) -> Vec<Refusal> {
        TABLE.iter().filter(|f| features.has(**f)).filter_map(|&f| self.refusal(f)).collect()
    }
}

impl ProfileTarget {
    const ANY: ProfileTarget = ProfileTarget {
        name: "",
        describes: "",
        kernel: None,
        fsck: None,
        loader: None,
        withheld: &[],
        block_size: None,
        inode_size: None,
        notes: "",
    };

    const fn kernel(name: &'static str, describes: &'static str, version: Version) -> Self {
        Self {
            name,
            describes,
            kernel: Some(version),
            notes: "the kernel alone: its e2fsck may be older or newer",
            ..Self::ANY
        }
    }

    fn refusal(&self, feature: Feature) -> Option<Refusal> {
        let name = feature.name;
        if NEVER.contains(&name) {
            return Some(Refusal::Nobody { feature: name });
        }
        if let Some(&(_, kernel, fsck)) = KNOWN_SINCE.iter().find(|(known, ..)| *known == name) {
            if let Some(has) = self.kernel.filter(|has| *has < kernel) {
                return Some(Refusal::Kernel { feature: name, has, since: kernel });
            }
            if let Some(has) = self.fsck.filter(|has| *has < fsck) {
                return Some(Refusal::Fsck { feature: name, has, since: fsck });
            }
        }
        self.loader
            .filter(|loader| loader.refuses().contains(&name))
            .map(|loader| Refusal::Loader { feature: name, loader: loader.name() })
    }

    fn profile(&'static self) -> Profile {
        let mut features = default_features(Generation::Ext4);
        for &feature in TABLE {
            if self.refusal(feature).is_some() || self.withheld.contains(&feature.name) {
                features.set(feature, false);
            }
        }
        if !features.metadata_csum() {
            features.incompat &= !Features::CSUM_SEED;
            // The checksum of group descriptors in file systems older than metadata_csum.
            if let Some(uninit_bg) = Feature::by_name("uninit_bg") {
                features.set(uninit_bg, self.refusal(uninit_bg).is_none());
            }
        }
        Profile {
            name: self.name,
            describes: self.describes,
            features,
            block_size: self.block_size,
            inode_size: self.inode_size,
            notes: self.notes,
            target: self,
        }
    }
}

const WITHHELD_147: &[&str] = &["orphan_file", "metadata_csum_seed"];

static TARGETS: &[ProfileTarget] = &[
    ProfileTarget {
        name: "debian-11",
        describes: "Debian 11 bullseye: kernel 5.10, e2fsprogs 1.46, GRUB 2.06",
        kernel: Some(Version(5, 10)),
        fsck: Some(Version(1, 46)),
        loader: Some(Loader::Grub206),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "debian-12",
        describes: "Debian 12 bookworm: kernel 6.1, e2fsprogs 1.47, GRUB 2.06",
        kernel: Some(Version(6, 1)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Grub212),
        withheld: WITHHELD_147,
        notes: "Debian 12 mounts, checks and boots orphan_file and metadata_csum_seed too, but its own mke2fs leaves \
                them out so that older systems can read the result",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "debian-13",
        describes: "Debian 13 trixie: kernel 6.12, e2fsprogs 1.47, GRUB 2.12",
        kernel: Some(Version(6, 12)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Grub212),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "ubuntu-20.04",
        describes: "Ubuntu 20.04 focal: kernel 5.4, e2fsprogs 1.45, GRUB 2.04",
        kernel: Some(Version(5, 4)),
        fsck: Some(Version(1, 45)),
        loader: Some(Loader::Grub206),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "ubuntu-22.04",
        describes: "Ubuntu 22.04 jammy: kernel 5.15, e2fsprogs 1.46, GRUB 2.06",
        kernel: Some(Version(5, 15)),
        fsck: Some(Version(1, 46)),
        loader: Some(Loader::Grub206),
        notes: "its kernel knows orphan_file, its e2fsck does not",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "ubuntu-24.04",
        describes: "Ubuntu 24.04 noble: kernel 6.8, e2fsprogs 1.47, GRUB 2.12",
        kernel: Some(Version(6, 8)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Grub212),
        withheld: WITHHELD_147,
        notes: "Ubuntu 24.04 can use orphan_file and metadata_csum_seed too, but its own mke2fs leaves them out",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "rhel-7",
        describes: "Red Hat Enterprise Linux 7 and rebuilds: kernel 3.10, e2fsprogs 1.42, GRUB 2.02",
        kernel: Some(Version(3, 10)),
        fsck: Some(Version(1, 42)),
        loader: Some(Loader::Grub206),
        notes: "no metadata checksums but those of group descriptors",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "rhel-8",
        describes: "Red Hat Enterprise Linux 8 and rebuilds: kernel 4.18, e2fsprogs 1.45, GRUB 2.02",
        kernel: Some(Version(4, 18)),
        fsck: Some(Version(1, 45)),
        loader: Some(Loader::Grub206),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "rhel-9",
        describes: "Red Hat Enterprise Linux 9 and rebuilds: kernel 5.14, e2fsprogs 1.46, GRUB 2.06",
        kernel: Some(Version(5, 14)),
        fsck: Some(Version(1, 46)),
        loader: Some(Loader::Grub206),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "rhel-10",
        describes: "Red Hat Enterprise Linux 10 and rebuilds: kernel 6.12, e2fsprogs 1.47, GRUB 2.12",
        kernel: Some(Version(6, 12)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Grub212),
        withheld: WITHHELD_147,
        notes: "orphan_file and metadata_csum_seed should work by the versions of its parts; left out because that is \
                not confirmed",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "fedora",
        describes: "Fedora 41 and later: kernel 6.11, e2fsprogs 1.47, GRUB 2.12",
        kernel: Some(Version(6, 11)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Grub212),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "alpine",
        describes: "Alpine 3.18 and later: kernel 6.1, e2fsprogs 1.47, extlinux",
        kernel: Some(Version(6, 1)),
        fsck: Some(Version(1, 47)),
        loader: Some(Loader::Extlinux),
        notes: "without 64bit and metadata_csum_seed for the sake of extlinux, which boots Alpine on a BIOS; with GRUB \
                or a separate /boot both can be added. Images of 16 TiB and more need 64bit",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "android",
        describes: "Android 11 and later: kernel 5.4, e2fsprogs 1.46",
        kernel: Some(Version(5, 4)),
        fsck: Some(Version(1, 46)),
        withheld: &["resize_inode", "flex_bg", "64bit", "metadata_csum", "metadata_csum_seed"],
        block_size: Some(BlockSize::KIB4),
        inode_size: Some(256),
        notes: "the set of AOSP's own mke2fs.conf. Read-only partitions (system, vendor) have no journal there: add \
                --features ^has_journal; user data usually adds encrypt, verity, quota and project on the device",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "grub-2.06",
        describes: "GRUB 2.02 to 2.06 as released, reading; any recent kernel",
        loader: Some(Loader::Grub206),
        notes: "distributions often patch theirs to read metadata_csum_seed and large_dir",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "grub-2.12",
        describes: "GRUB 2.12, reading; any recent kernel",
        loader: Some(Loader::Grub212),
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "u-boot",
        describes: "U-Boot, reading and writing; any kernel",
        loader: Some(Loader::UBoot),
        notes: "cautious: U-Boot that only reads, 2018 or later, also takes 64bit and metadata_csum. Without dir_index \
                the kernel searches large directories name by name",
        ..ProfileTarget::ANY
    },
    ProfileTarget {
        name: "kernel-3.10",
        describes: "Linux 3.10",
        kernel: Some(Version(3, 10)),
        notes: "no metadata checksums but those of group descriptors: the format of the journal's checksums was settled \
                in 3.18. The kernel alone: its e2fsck may be older or newer",
        ..ProfileTarget::ANY
    },
    ProfileTarget::kernel("kernel-4.19", "Linux 4.19", Version(4, 19)),
    ProfileTarget::kernel("kernel-5.4", "Linux 5.4", Version(5, 4)),
    ProfileTarget::kernel("kernel-5.10", "Linux 5.10", Version(5, 10)),
    ProfileTarget::kernel("kernel-5.15", "Linux 5.15", Version(5, 15)),
    ProfileTarget::kernel("kernel-6.1", "Linux 6.1", Version(6, 1)),
    ProfileTarget {
        name: "latest",
        describes: "current kernel, e2fsprogs and boot loader: what mke2fs 1.47 makes",
        ..ProfileTarget::ANY
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::FormatOptions;
    use proptest::prelude::*;

    fn names(profile: &str) -> String {
        Profile::by_name(profile).unwrap().features.to_string()
    }

    fn has(profile: &str, feature: &str) -> bool {
        Profile::by_name(profile).unwrap().features.has(Feature::by_name(feature).unwrap())
    }

    #[test]
    fn every_fact_names_a_feature_and_every_feature_has_its_fact() {
        let loaders = [Loader::Grub206, Loader::Grub212, Loader::UBoot, Loader::Extlinux];
        let listed = KNOWN_SINCE
            .iter()
            .map(|(name, ..)| name)
            .chain(NEVER)
            .chain(loaders.iter().flat_map(|loader| loader.refuses()))
            .chain(TARGETS.iter().flat_map(|target| target.withheld));
        for name in listed {
            assert_eq!(Feature::by_name(name).map(|f| f.name), Some(*name));
        }
        // All other features are as old as ext4 itself. A feature added to the table must be classified here.
        let old = TABLE
            .iter()
            .map(|feature| feature.name)
            .filter(|name| !NEVER.contains(name) && !KNOWN_SINCE.iter().any(|(known, ..)| known == name))
            .collect::<Vec<_>>();
        assert_eq!(
            old.join(" "),
            "has_journal ext_attr resize_inode dir_index filetype needs_recovery meta_bg extent 64bit flex_bg \
             sparse_super large_file huge_file uninit_bg dir_nlink extra_isize"
        );
    }

    #[test]
    fn no_profile_has_what_its_target_refuses_and_each_can_be_made() {
        for (index, profile) in Profile::all().iter().enumerate() {
            assert_eq!(profile.refusals(profile.features), [], "{}", profile.name);
            let options = FormatOptions { feature_base: Some(profile.features), ..FormatOptions::default() };
            assert_eq!(options.resolve_features(), Ok(profile.features), "{}", profile.name);
            assert!(!profile.describes.is_empty());
            assert_eq!(Profile::all().iter().position(|other| other.name == profile.name), Some(index));
            assert_eq!(Profile::by_name(profile.name), Some(profile));
        }
        assert_eq!(Profile::by_name("debian"), None);
    }

    #[test]
    fn the_sets_are_those_of_the_targets_own_mke2fs() {
        let with_csum = "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg sparse_super \
                         large_file huge_file dir_nlink extra_isize metadata_csum";
        for same in
            ["debian-11", "debian-12", "ubuntu-20.04", "ubuntu-22.04", "ubuntu-24.04", "rhel-8", "rhel-9"]
        {
            assert_eq!(names(same), with_csum, "{same}");
        }
        assert_eq!(
            names("rhel-7"),
            "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg sparse_super large_file huge_file \
             uninit_bg dir_nlink extra_isize"
        );
        assert_eq!(
            names("android"),
            "has_journal ext_attr dir_index filetype extent sparse_super large_file huge_file uninit_bg dir_nlink \
             extra_isize"
        );
        for newest in ["debian-13", "fedora", "grub-2.12", "latest", "kernel-5.15", "kernel-6.1"] {
            assert_eq!(names(newest), default_features(Generation::Ext4).to_string(), "{newest}");
        }
    }

    #[test]
    fn what_each_target_cannot_read_is_not_there() {
        for (profile, feature, expected) in [
            ("grub-2.06", "metadata_csum_seed", false),
            ("grub-2.06", "64bit", true),
            ("grub-2.06", "orphan_file", true),
            ("kernel-3.10", "metadata_csum", false),
            ("kernel-3.10", "uninit_bg", true),
            ("kernel-4.19", "metadata_csum_seed", true),
            ("kernel-5.10", "orphan_file", false),
            ("u-boot", "metadata_csum", false),
            ("u-boot", "uninit_bg", false),
            ("u-boot", "64bit", false),
            ("u-boot", "extent", true),
            ("alpine", "64bit", false),
            ("alpine", "metadata_csum", true),
        ] {
            assert_eq!(has(profile, feature), expected, "{profile} {feature}");
        }
    }

    #[test]
    fn refusals_name_the_program_and_its_version() {
        let text = |profile, feature| {
            let feature = Feature::by_name(feature).unwrap();
            Profile::by_name(profile)
                .unwrap()
                .refusal(feature)
                .map(|refusal| refusal.to_string())
                .unwrap_or_default()
        };
        assert_eq!(
            text("rhel-8", "orphan_file"),
            "kernel 4.18 does not mount orphan_file for writing (known since 5.15)"
        );
        assert!(text("ubuntu-22.04", "orphan_file").starts_with("e2fsck 1.46 does not know"));
        assert_eq!(text("grub-2.06", "large_dir"), "GRUB 2.06 does not handle large_dir");
        assert_eq!(text("latest", "compression"), "no Linux kernel mounts compression for writing");
        assert_eq!(text("debian-12", "orphan_file"), "");
    }

    proptest! {
        #[test]
        fn any_bits_and_any_name_have_an_answer(compat: u32, incompat: u32, ro_compat: u32, name in any::<String>()) {
            let features = Features { compat, incompat, ro_compat };
            for profile in Profile::all() {
                for refusal in profile.refusals(features) {
                    prop_assert!(!refusal.to_string().is_empty());
                }
            }
            prop_assert!(Profile::by_name(&name).is_none_or(|profile| profile.name == name));
        }
    }
}
