//! Small images that runs begin from, made by mke2fs.

use std::sync::OnceLock;

use extant_fsmodel::Rng;
use extant_simdisk::Image;

/// Kinds of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Blocks of 1 KiB, everything that mke2fs turns on today, orphan file, value inodes.
    Today,
    /// Without checksums of metadata.
    Plain,
    /// Blocks of 1 KiB, an orphan list.
    Listed,
    /// Clusters of 16 blocks.
    Clusters,
    /// Users', groups' and projects' usage counted.
    Quotas,
    /// Indexes of directories may have three levels.
    LargeDir,
}

/// The UUID of all images, and the seed of their directories' hashes: what a seed does to an index repeats
/// itself.
const UUID: &str = "b0a71c5e-5eed-4c0d-8e5e-7c1a5b10c4e5";

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Today, Self::Plain, Self::Listed, Self::Clusters, Self::Quotas, Self::LargeDir];

    /// One of them, for a run of this number: each after some runs, whatever else goes by the number.
    #[must_use]
    pub fn of_run(number: u64) -> Self {
        *Rng::new(number).pick(&Self::ALL)
    }

    /// Has it the feature `ea_inode`?
    #[must_use]
    pub fn has_value_inodes(self) -> bool {
        matches!(self, Self::Today | Self::Quotas)
    }

    /// Levels of nodes below the root that the index of a directory may have.
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
            Self::Clusters => &["-b", "1024", "-O", "bigalloc,orphan_file", "-C", "16384", "-N", "512"],
        }
    }

    fn extended_options(self) -> String {
        let quotas = if self == Self::Quotas { ",quotatype=usrquota:grpquota:prjquota" } else { "" };
        format!("hash_seed={UUID}{quotas}")
    }
}

/// An empty file system of this kind, 8 MiB.
///
/// # Panics
/// When mke2fs fails.
#[must_use]
pub fn base_image(kind: Kind) -> Image {
    static MADE: [OnceLock<Image>; 6] = [const { OnceLock::new() }; 6];
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
