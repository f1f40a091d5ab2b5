//! The small images, made by mke2fs, on which runs start.

use std::sync::OnceLock;

use extant_fsmodel::Rng;
use extant_simdisk::Image;

/// Kinds of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Blocks of 1 KiB, the default features of mke2fs, an orphan file, EA inodes.
    Today,
    /// No metadata checksums.
    Plain,
    /// Blocks of 1 KiB, an orphan list.
    Listed,
    /// Clusters of 16 blocks.
    Clusters,
    /// Quotas of users, groups and projects.
    Quotas,
    /// Directory indexes of up to three levels.
    LargeDir,
    /// Fast commits.
    Fast,
}

/// The UUID of all images, and the hash seed of their directories: with a fixed seed, a run changes an index
/// in the same way each time.
const UUID: &str = "b0a71c5e-5eed-4c0d-8e5e-7c1a5b10c4e5";

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Today, Self::Plain, Self::Listed, Self::Clusters, Self::Quotas, Self::LargeDir, Self::Fast];

    /// The kind for the run of this number. Chosen by a random generator, so that it is independent of other
    /// choices that depend on the number.
    #[must_use]
    pub fn of_run(number: u64) -> Self {
        *Rng::new(number).pick(&Self::ALL)
    }

    /// Whether the image has the feature `ea_inode`.
    #[must_use]
    pub fn has_value_inodes(self) -> bool {
        matches!(self, Self::Today | Self::Quotas)
    }

    /// Maximum number of levels of nodes below the root of a directory's index.
    #[must_use]
    pub fn levels_max(self) -> u64 {
        if self == Self::LargeDir { 2 } else { 1 }
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Today => &["-b", "1024", "-O", "metadata_csum_seed,orphan_file,ea_inode"],
            Self::Plain => &["-b", "1024", "-O", "^metadata_csum,^orphan_file"],
            Self::Listed => &["-b", "1024", "-O", "^orphan_file"],
            Self::Quotas => &["-b", "1024", "-O", "quota,project,orphan_file,ea_inode"],
            Self::LargeDir => &["-b", "1024", "-O", "large_dir,metadata_csum_seed,orphan_file"],
            Self::Fast => &["-b", "1024", "-O", "fast_commit,orphan_file"],
            Self::Clusters => &["-b", "1024", "-O", "bigalloc,orphan_file", "-C", "16384", "-N", "512"],
        }
    }

    fn extended_options(self) -> String {
        let quotas = if self == Self::Quotas { ",quotatype=usrquota:grpquota:prjquota" } else { "" };
        format!("hash_seed={UUID}{quotas}")
    }
}

/// An empty file system of this kind, of 8 MiB (16 MiB with clusters).
///
/// # Panics
/// mke2fs fails.
#[must_use]
pub fn base_image(kind: Kind) -> Image {
    static MADE: [OnceLock<Image>; Kind::ALL.len()] = [const { OnceLock::new() }; Kind::ALL.len()];
    let make = || {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let size = if kind == Kind::Clusters { "16M" } else { "8M" };
        let name = path.to_str().expect("scratch paths are text");
        let extended = kind.extended_options();
        let common = ["-q", "-F", "-t", "ext4", "-J", "size=1", "-U", UUID, "-E", &extended];
        extant_testkit::run("mke2fs", common.iter().chain(kind.options()).copied().chain([name, size]));
        Image::from_bytes(&std::fs::read(&path).expect("just made"))
    };
    let at = Kind::ALL.iter().position(|known| *known == kind).expect("all are listed");
    MADE[at].get_or_init(make).clone()
}
