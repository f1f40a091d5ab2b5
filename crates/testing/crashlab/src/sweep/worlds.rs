//! Small file systems with files of every kind.

use std::sync::{Arc, OnceLock};

use extant_base::Ino;
use extant_simdisk::{Image, SimDisk};
use extant_volume::{Allocate, DataPath, New, OpenOptions, Refusal, SetXattr, Volume, WriteOptions};

use super::step::{acl, pattern};

/// Kinds of file systems for the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum World {
    /// Blocks of 1 KiB, extents, an orphan file, EA inodes.
    Blocks1K,
    /// Blocks of 4 KiB, extents, an orphan list.
    Blocks4K,
    /// Block-by-block writing, `data=ordered`.
    Ordered,
    /// Writing through the journal, `data=journal`.
    Journaled,
    /// Block maps instead of extents.
    Indirect,
    /// Small files inside their inodes.
    Inline,
    /// Clusters of 4 blocks.
    Clusters,
    /// Quotas of users, groups and projects.
    Quotas,
    /// No journal.
    Bare,
}

impl World {
    /// All worlds.
    pub const ALL: [Self; 9] = [
        Self::Blocks1K,
        Self::Blocks4K,
        Self::Ordered,
        Self::Journaled,
        Self::Indirect,
        Self::Inline,
        Self::Clusters,
        Self::Quotas,
        Self::Bare,
    ];

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        if self == Self::Blocks4K { 4096 } else { 1024 }
    }

    /// Bytes of an allocation unit.
    #[must_use]
    pub fn cluster_bytes(self) -> u64 {
        if self == Self::Clusters { 4096 } else { self.block_bytes() }
    }

    /// Whether files can have unwritten blocks.
    #[must_use]
    pub fn has_extents(self) -> bool {
        self != Self::Indirect
    }

    /// Whether a log makes operations atomic.
    #[must_use]
    pub fn has_journal(self) -> bool {
        self != Self::Bare
    }

    fn path(self) -> DataPath {
        match self {
            Self::Ordered => DataPath::Ordered,
            Self::Journaled => DataPath::Journal,
            _ => DataPath::Iomap,
        }
    }

    /// The options with which its volumes are opened.
    pub(super) fn options(self) -> OpenOptions {
        let write = WriteOptions { no_committer: true, data: self.path(), ..WriteOptions::default() };
        OpenOptions { write, ..OpenOptions::default() }
    }

    fn features(self) -> &'static [&'static str] {
        match self {
            Self::Blocks1K => {
                &["-b", "1024", "-J", "size=1", "-O", "orphan_file,ea_inode,metadata_csum_seed"]
            }
            Self::Blocks4K => &["-b", "4096", "-J", "size=4", "-O", "^orphan_file"],
            Self::Ordered | Self::Journaled => &["-b", "1024", "-J", "size=1", "-O", "orphan_file"],
            Self::Indirect => &["-b", "1024", "-J", "size=1", "-O", "^extents,^64bit,^huge_file"],
            Self::Inline => &["-b", "1024", "-J", "size=1", "-O", "inline_data"],
            Self::Clusters => &["-b", "1024", "-J", "size=1", "-O", "bigalloc", "-C", "4096", "-N", "512"],
            Self::Quotas => &[
                "-b",
                "1024",
                "-J",
                "size=1",
                "-O",
                "quota,project,ea_inode",
                "-E",
                "quotatype=usrquota:grpquota:prjquota",
            ],
            Self::Bare => &["-b", "1024", "-O", "^has_journal"],
        }
    }

    fn size(self) -> &'static str {
        match self {
            Self::Blocks4K => "16M",
            Self::Clusters => "12M",
            _ => "6M",
        }
    }

    /// The file system on which every run of this world starts.
    ///
    /// # Panics
    /// mke2fs or the volume fails.
    #[must_use]
    pub fn image(self) -> Image {
        static MADE: [OnceLock<Image>; World::ALL.len()] = [const { OnceLock::new() }; World::ALL.len()];
        let at = Self::ALL.iter().position(|known| *known == self).expect("all are listed");
        MADE[at].get_or_init(|| self.make()).clone()
    }

    fn make(self) -> Image {
        let scratch = extant_testkit::scratch();
        let path = scratch.path().join("image");
        let name = path.to_str().expect("scratch paths are text");
        let args = ["-q", "-F", "-t", "ext4", "-I", "256"].iter().chain(self.features()).copied();
        extant_testkit::run("mke2fs", args.chain([name, self.size()]));
        let disk =
            Arc::new(SimDisk::from_image(Image::from_bytes(&std::fs::read(&path).expect("just made"))));
        let volume = Volume::open(disk.clone(), &self.options()).expect("it is new");
        Builder { volume: &volume, world: self }.fill();
        volume.close().expect("memory does not fail");
        disk.image()
    }
}

/// Extents of the file `many`: more than a leaf of 1 KiB holds.
const MANY: u64 = 90;

struct Builder<'a> {
    volume: &'a Volume,
    world: World,
}

impl Builder<'_> {
    fn fill(&self) {
        let bs = self.world.block_bytes();
        self.file("even", &[(0, 5 * bs + bs / 2 + 4)]);
        // A map that needs more than its root.
        let pieces: Vec<_> = (0..12).map(|at| (at * 2 * bs, if at == 11 { 300 } else { bs })).collect();
        self.file("pieces", &pieces);
        let pieces: Vec<_> =
            (0..MANY).map(|at| (at * 2 * bs, if at == MANY - 1 { 300 } else { bs })).collect();
        self.file("many", &pieces);
        let unwritten = self.file("unwritten", &[(2 * bs, bs), (5 * bs, bs / 2)]);
        if self.world.has_extents() {
            self.volume.files().fallocate(unwritten, Allocate::Keep, 0, 9 * bs).expect("there is room");
        }
        self.file("empty", &[]);
        self.file("tiny", &[(0, 40)]);
        self.file("small", &[(0, 120)]);
        let file = self.file("hard", &[(0, bs + 10)]);
        self.link(file, Ino::ROOT, b"harder");
        let dir = self.make(Ino::ROOT, "d", &New::directory(0o755));
        self.make(dir, "a", &New::file(0o600));
        self.make(dir, "b", &New::file(0o600));
        self.make(dir, "sub", &New::directory(0o700));
        let other = self.make(Ino::ROOT, "e", &New::directory(0o755));
        self.make(other, "c", &New::file(0o600));
        // Large enough for an index. All names link to one inode.
        let large = self.make(Ino::ROOT, "large", &New::directory(0o755));
        for number in 0..self.names_of_large() {
            self.link(file, large, large_name(number).as_bytes());
        }
        self.make(Ino::ROOT, "short-link", &New::symlink(b"even"));
        self.make(Ino::ROOT, "long-link", &New::symlink(&[b'l'; 200]));
        self.make(Ino::ROOT, "fifo", &New { kind: extant_volume::FileType::Fifo, ..New::file(0o600) });
        for name in ["attr", "attr-too"] {
            let file = self.file(name, &[(0, 100)]);
            self.attribute(file, b"user.shared", &pattern(7, 0, 500));
        }
        let inside = self.file("attr-inside", &[]);
        self.attribute(inside, b"user.short", b"value");
        if matches!(self.world, World::Blocks1K | World::Quotas) {
            for name in ["value", "value-too"] {
                let file = self.file(name, &[]);
                self.attribute(file, b"user.large", &pattern(9, 0, 3000));
            }
        }
        let with_acl = self.file("acl", &[]);
        self.attribute(with_acl, b"system.posix_acl_access", &acl(6));
        let dir = self.make(Ino::ROOT, "acl-dir", &New::directory(0o755));
        self.attribute(dir, b"system.posix_acl_default", &acl(6));
    }

    fn names_of_large(&self) -> usize {
        if self.world.block_bytes() == 4096 { 110 } else { 40 }
    }

    fn make(&self, dir: Ino, name: &str, new: &New<'_>) -> Ino {
        self.volume.names().create(dir, name.as_bytes(), new).expect("there is room").ino()
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8]) {
        self.volume.names().link(ino, dir, name).expect("there is room");
    }

    /// A file with bytes in these ranges; each range is written back separately.
    fn file(&self, name: &str, ranges: &[(u64, u64)]) -> Ino {
        let ino = self.make(Ino::ROOT, name, &New::file(0o644));
        for &(pos, len) in ranges {
            let bytes = pattern(ino.0, pos, len);
            assert_eq!(self.volume.files().write_at(ino, pos, &bytes).expect("there is room"), bytes.len());
            self.volume.files().fsync(ino).expect("memory does not fail");
        }
        ino
    }

    fn attribute(&self, ino: Ino, name: &[u8], value: &[u8]) {
        match self.volume.attributes().set_xattr(ino, name, value, SetXattr::Any) {
            Ok(()) => {}
            Err(fault) if fault.is(Refusal::NoSpace) => panic!("no room for {}", name.escape_ascii()),
            Err(fault) => panic!("{fault}"),
        }
    }
}

/// A name in the directory `large`.
pub(super) fn large_name(number: usize) -> String {
    format!("{number:03}-a-name-that-takes-some-room-in-its-leaf")
}
