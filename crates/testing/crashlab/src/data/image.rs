//! Images whose free blocks hold old bytes.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use extant_base::Ino;
use extant_ondisk::Features;
use extant_ondisk::superblock::{self, Superblock};
use extant_simdisk::{Image, SimDisk};
use extant_volume::{Allocate, DataPath, New, OpenOptions, Volume, WriteOptions};

/// Kinds of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataKind {
    /// Blocks of 4 KiB.
    Blocks4K,
    /// Blocks of 2 KiB.
    Blocks2K,
    /// Blocks of 1 KiB.
    Blocks1K,
    /// Clusters of 16 blocks of 1 KiB.
    Clusters,
    /// Block maps instead of extents, blocks of 1 KiB.
    Indirect,
    /// Block maps instead of extents, blocks of 4 KiB.
    Indirect4K,
    /// Small files inside their inodes.
    Inline,
    /// Block-by-block writing, `data=ordered`.
    Ordered,
    /// Block-by-block writing, `data=ordered`, blocks of 4 KiB.
    Ordered4K,
    /// Writing through the journal, `data=journal`.
    Journaled,
    /// An external log.
    ExternalLog,
    /// Fast commits, blocks of 1 KiB.
    Fast1K,
    /// Fast commits, blocks of 4 KiB.
    Fast4K,
}

/// How much of an image is free at the start of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Space {
    /// More than a run needs.
    Plenty,
    /// Enough, but so little that freed blocks are soon reused.
    Reused,
    /// Less than the files may take: writes are not delayed any more, are cut short, and are refused.
    Short,
}

/// Bytes of an external log.
const LOG_BYTES: u64 = 1 << 20;

/// Bytes left free for [`Space::Reused`].
const REUSED_BYTES: u64 = 640 << 10;

impl Space {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Plenty, Self::Reused, Self::Short];
}

impl DataKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Blocks4K,
        Self::Blocks2K,
        Self::Blocks1K,
        Self::Clusters,
        Self::Indirect,
        Self::Indirect4K,
        Self::Inline,
        Self::Ordered,
        Self::Ordered4K,
        Self::Journaled,
        Self::ExternalLog,
        Self::Fast1K,
        Self::Fast4K,
    ];

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        match self {
            Self::Blocks4K | Self::Indirect4K | Self::Ordered4K | Self::Fast4K => 4096,
            Self::Blocks2K => 2048,
            _ => 1024,
        }
    }

    /// Bytes of an allocation unit.
    #[must_use]
    pub fn cluster_bytes(self) -> u64 {
        if self == Self::Clusters { 16 << 10 } else { self.block_bytes() }
    }

    /// Whether its files can have unwritten blocks.
    #[must_use]
    pub fn has_extents(self) -> bool {
        !matches!(self, Self::Indirect | Self::Indirect4K)
    }

    /// Whether a commit can come between the steps of write-back. Not where write-back runs under a handle,
    /// because the commit would wait for that handle.
    #[must_use]
    pub fn lets_commits_between(self) -> bool {
        self.has_extents() && self.path() != DataPath::Ordered
    }

    /// Whether fast commits are written.
    #[must_use]
    pub fn has_fast_commits(self) -> bool {
        matches!(self, Self::Fast1K | Self::Fast4K)
    }

    /// Bytes at the end of the disk that form the log device.
    #[must_use]
    pub fn log_bytes(self) -> Option<u64> {
        (self == Self::ExternalLog).then_some(LOG_BYTES)
    }

    /// How file data reaches the device.
    #[must_use]
    pub fn path(self) -> DataPath {
        match self {
            Self::Ordered | Self::Ordered4K => DataPath::Ordered,
            Self::Journaled => DataPath::Journal,
            _ => DataPath::Iomap,
        }
    }

    /// Options of mke2fs except sizes.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Blocks4K | Self::Blocks2K => &[],
            Self::Blocks1K | Self::Ordered | Self::Ordered4K | Self::Journaled => &["-O", "orphan_file"],
            // The log is added later.
            Self::ExternalLog => &["-O", "^has_journal"],
            Self::Clusters => &["-O", "bigalloc", "-C", "16384", "-N", "256"],
            Self::Indirect | Self::Indirect4K => &["-O", "^extents,^64bit,^huge_file"],
            Self::Inline => &["-O", "inline_data"],
            Self::Fast1K | Self::Fast4K => &["-O", "fast_commit"],
        }
    }

    /// MiB of the log and of the whole image. A log has at least 1024 blocks. [`Space::Short`] images are
    /// small: a fiftieth of their blocks is kept for maps, and while that is much, delayed blocks take little
    /// compared with free space.
    fn mib(self, space: Space) -> (u64, u64) {
        let is_short = space == Space::Short;
        match self.block_bytes() {
            4096 => (4, if is_short { 10 } else { 24 }),
            2048 => (2, if is_short { 6 } else { 12 }),
            _ if self == Self::Clusters => (1, if is_short { 8 } else { 16 }),
            _ => (1, if is_short { 4 } else { 8 }),
        }
    }

    /// Maximum bytes of a file.
    #[must_use]
    pub fn bytes_max(self, space: Space) -> u64 {
        match self {
            Self::Clusters if space == Space::Short => 320 << 10,
            _ if space == Space::Short => match self.block_bytes() {
                4096 => 400 << 10,
                2048 => 240 << 10,
                _ => 160 << 10,
            },
            Self::Blocks4K
            | Self::Ordered4K
            | Self::Fast4K
            | Self::Clusters
            | Self::Indirect
            | Self::Indirect4K => 64 << 10,
            Self::Blocks2K => 48 << 10,
            _ => 24 << 10,
        }
    }
}

/// The unit that fills a free block.
pub(super) fn stale(block: u64) -> u64 {
    0xA5A5_A5A5 << 32 | block
}

/// A file system of this kind with this much free space. A kind whose blocks must be written to be allocated
/// gets [`Space::Plenty`] instead of [`Space::Reused`].
///
/// # Panics
/// mke2fs, dumpe2fs or the volume fails.
#[must_use]
pub fn data_image(kind: DataKind, space: Space) -> Image {
    const SPACES: usize = Space::ALL.len();
    static MADE: [OnceLock<Image>; SPACES * DataKind::ALL.len()] =
        [const { OnceLock::new() }; SPACES * DataKind::ALL.len()];
    let at = DataKind::ALL.iter().position(|known| *known == kind).expect("all are listed");
    let of = Space::ALL.iter().position(|known| *known == space).expect("all are listed");
    MADE[at * SPACES + of].get_or_init(|| make(kind, space)).clone()
}

fn make(kind: DataKind, space: Space) -> Image {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().expect("scratch paths are text");
    let (log, size) = kind.mib(space);
    let (block, log, size) = (kind.block_bytes().to_string(), format!("size={log}"), format!("{size}M"));
    let mut args = vec!["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0", "-b", &block];
    if kind != DataKind::ExternalLog {
        args.extend(["-J", &log]);
    }
    if space == Space::Short {
        args.extend(["-m", "0"]);
    }
    extant_testkit::run(
        "mke2fs",
        args.into_iter().chain(kind.options().iter().copied()).chain([name, &size]),
    );
    let mut image = Image::from_bytes(&std::fs::read(&path).expect("just made"));
    let left = match space {
        Space::Plenty => None,
        Space::Reused => kind.has_extents().then_some(REUSED_BYTES),
        // More than four times the space kept for maps: with less, delayed blocks never take much compared
        // with free space. Three files of the largest size do not fit.
        Space::Short => Some(kind.bytes_max(space) * 9 / 4),
    };
    if let Some(left) = left {
        image = fill(image, kind, left);
        let bytes = crate::cut::to_file(&SimDisk::from_image(image.clone()), &path);
        bytes.expect("scratch can be written");
    }
    let bs = kind.block_bytes();
    for block in free_blocks(&path, kind.cluster_bytes() / bs).into_iter().flatten() {
        let bytes: Vec<u8> = stale(block).to_le_bytes().repeat(bs as usize / 8);
        image.write(block * bs, &bytes);
    }
    if kind.log_bytes().is_some() { with_log_behind(&image, bs, &path) } else { image }
}

/// Appends a log to a file system without one, as `tune2fs -J device=` does with two devices.
fn with_log_behind(image: &Image, block_bytes: u64, scratch: &Path) -> Image {
    let size = image.size_bytes();
    let name = scratch.to_str().expect("scratch paths are text");
    let (block_size, log_size) = (block_bytes.to_string(), format!("{}K", LOG_BYTES >> 10));
    std::fs::remove_file(scratch).expect("it was written");
    extant_testkit::run("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", &block_size, name, &log_size]);
    let mut log = std::fs::read(scratch).expect("just made");
    let mut bytes = [0; superblock::SIZE];
    image.read(superblock::OFFSET, &mut bytes);
    let mut sb = Superblock::decode(&bytes).expect("it was made by mke2fs");
    let uuid_at = superblock::OFFSET as usize + 0x68;
    sb.journal_uuid.copy_from_slice(&log[uuid_at..uuid_at + 16]);
    sb.features.compat |= Features::HAS_JOURNAL;
    // One user: this file system.
    let log_sb = 2 * block_bytes as usize;
    log[log_sb + 0x40..log_sb + 0x44].copy_from_slice(&1_u32.to_be_bytes());
    log[log_sb + 0x100..log_sb + 0x110].copy_from_slice(&sb.uuid);
    let mut whole = Image::new(size + LOG_BYTES);
    let mut content = vec![0; size as usize];
    image.read(0, &mut content);
    whole.write(0, &content);
    whole.write(superblock::OFFSET, &sb.sealed());
    whole.write(size, &log);
    whole
}

/// Allocates all blocks except `left` bytes; as unwritten blocks where the kind has them.
fn fill(image: Image, kind: DataKind, left: u64) -> Image {
    let disk = Arc::new(SimDisk::from_image(image));
    let write = WriteOptions { no_committer: true, ..WriteOptions::default() };
    let options = OpenOptions { write, ..OpenOptions::default() };
    let volume = Volume::open(disk.clone(), &options).expect("it is new");
    let ino = volume.names().create(Ino::ROOT, b"filler", &New::file(0o600)).expect("there is room").ino();
    let stat = volume.statfs().expect("it is new");
    let bytes = (stat.blocks_available * u64::from(stat.block_size)).saturating_sub(left);
    if kind.has_extents() {
        volume.files().fallocate(ino, Allocate::Keep, 0, bytes).expect("there is room");
    } else {
        let written = volume.files().write_at(ino, 0, &vec![0xF1; bytes as usize]).expect("there is room");
        assert_eq!(written as u64, bytes, "there is room");
    }
    volume.close().expect("memory does not fail");
    disk.image()
}

/// The free blocks that dumpe2fs lists; it names a cluster by its first block.
fn free_blocks(path: &Path, cluster: u64) -> Vec<RangeInclusive<u64>> {
    let output = extant_testkit::command("dumpe2fs").arg(path).output().expect("dumpe2fs runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lists = text.lines().filter_map(|line| line.trim_start().strip_prefix("Free blocks: "));
    let number = |text: &str| -> u64 { text.trim().parse().expect("a block's number") };
    lists
        .flat_map(|list| list.split(',').filter(|part| !part.trim().is_empty()))
        .map(|part| match part.split_once('-') {
            Some((first, last)) => number(first)..=number(last) + cluster - 1,
            None => number(part)..=number(part) + cluster - 1,
        })
        .collect()
}
