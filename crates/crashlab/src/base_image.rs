//! Small images that runs begin from, made by mke2fs.

use std::sync::OnceLock;

use simdisk::Image;

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
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Today, Self::Plain, Self::Listed, Self::Clusters, Self::Quotas];

    /// Has it the feature `ea_inode`?
    #[must_use]
    pub fn has_value_inodes(self) -> bool {
        matches!(self, Self::Today | Self::Quotas)
    }

    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Today => &["-b", "1024", "-O", "metadata_csum_seed,orphan_file,ea_inode"],
            Self::Plain => &["-b", "1024", "-O", "^metadata_csum,^orphan_file"],
            Self::Listed => &["-b", "1024", "-O", "^orphan_file"],
            Self::Quotas => &[
                "-b",
                "1024",
                "-O",
                "quota,project,orphan_file,ea_inode",
                "-E",
                "quotatype=usrquota:grpquota:prjquota",
            ],
            Self::Clusters => &["-b", "1024", "-O", "bigalloc,orphan_file", "-C", "16384", "-N", "512"],
        }
    }
}

/// An empty file system of this kind, 8 MiB.
///
/// # Panics
/// When mke2fs fails.
#[must_use]
pub fn base_image(kind: Kind) -> Image {
    static MADE: [OnceLock<Image>; 5] = [const { OnceLock::new() }; 5];
    let make = || {
        let scratch = testkit::scratch();
        let path = scratch.path().join("image");
        let size = if kind == Kind::Clusters { "16M" } else { "8M" };
        let name = path.to_str().expect("scratch paths are text");
        let args = ["-q", "-F", "-t", "ext4", "-J", "size=1"].iter().chain(kind.options()).copied();
        testkit::run("mke2fs", args.chain([name, size]));
        Image::from_bytes(&std::fs::read(&path).expect("just made"))
    };
    let at = Kind::ALL.iter().position(|known| *known == kind).expect("all are listed");
    MADE[at].get_or_init(make).clone()
}
