//! The superblock's default mount options: `tune2fs -o` and `-E mount_opts=`, as the kernel's mount applies
//! them.
//!
//! | `tune2fs -o` | here |
//! |---|---|
//! | `debug` | nothing: it is for the kernel's log |
//! | `bsdgroups` | new inodes get their directory's group |
//! | `user_xattr`, `acl` | nothing: both are always on, as in the kernel |
//! | `uid16` | owners have 16 bits: see [`Superblock::has_short_ids`] |
//! | `journal_data` | [`DataPath::Journal`] |
//! | `journal_data_ordered` | [`DataPath::Ordered`] with `nodelalloc`, otherwise nothing |
//! | `journal_data_writeback` | [`DataPath::Writeback`] with `nodelalloc`, otherwise nothing |
//! | `nobarrier` | no flushes |
//! | `block_validity` | nothing: it is always checked |
//! | `discard` | freed blocks are discarded |
//! | `nodelalloc` | allocation block by block |
//!
//! Without `nodelalloc` the ordered and writeback modes do not differ: no commit exposes blocks before their
//! data is written.
//!
//! Options as text (`s_mount_opts`) override these, and the caller's options override both. If the text has
//! an unknown word, the whole text is ignored, as in the kernel. Only ext4's own options are read from the
//! text: an image must not decide which devices are opened, or which users may access them. The superblock
//! also has the error policy: see [`OnError`].

use extant_device::Device;
use extant_inode::DataPath;
use extant_ondisk::superblock::{self, Superblock, default_options, until_nul};

use super::{OnError, WriteOptions};

/// The default options of a superblock.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of mount(8), one each")]
pub struct DefaultOptions {
    /// The journal's data mode.
    pub data: Option<DataPath>,
    /// Allocate block by block (`nodelalloc`).
    pub block_by_block: bool,
    /// No flushes.
    pub no_barriers: bool,
    /// Discard freed blocks.
    pub discard: bool,
    /// New inodes get their directory's group.
    pub dir_groups: bool,
    /// Replaced file contents get no early writeback.
    pub no_auto_da_alloc: bool,
    /// The error policy, if the text sets it.
    pub errors: Option<OnError>,
    /// Why the text is ignored.
    pub refused: Option<String>,
}

impl DefaultOptions {
    /// The default options of the superblock on a device. All defaults if no superblock can be read: opening
    /// the volume reports why.
    #[must_use]
    pub fn of_device(device: &dyn Device) -> Self {
        let mut bytes = [0; superblock::SIZE];
        let read = device.read_at(superblock::OFFSET, &mut bytes);
        read.ok().and_then(|()| Superblock::decode(&bytes).ok()).map_or(Self::default(), |sb| Self::of(&sb))
    }

    /// The default options of this superblock.
    #[must_use]
    pub fn of(sb: &Superblock) -> Self {
        let has = |bit| sb.default_mount_opts & bit != 0;
        let data = match sb.default_mount_opts & default_options::JOURNAL_MODE {
            default_options::JOURNAL_DATA => Some(DataPath::Journal),
            default_options::JOURNAL_ORDERED => Some(DataPath::Ordered),
            default_options::JOURNAL_WRITEBACK => Some(DataPath::Writeback),
            _ => None,
        };
        let flags = Self {
            data,
            block_by_block: has(default_options::NODELALLOC),
            no_barriers: has(default_options::NOBARRIER),
            discard: has(default_options::DISCARD),
            dir_groups: has(default_options::BSD_GROUPS),
            ..Self::default()
        };
        let mut with_text = flags.clone();
        match with_text.read(&String::from_utf8_lossy(until_nul(&sb.mount_opts))) {
            Ok(()) => with_text,
            Err(word) => {
                let refused = format!(
                    "the superblock's mount options have \"{}\", which is not known: none of them count; `tune2fs -E mount_opts=` changes them",
                    word.escape_debug()
                );
                Self { refused: Some(refused), ..flags }
            }
        }
    }

    /// Reads options as text. The error is the unknown word.
    fn read<'t>(&mut self, text: &'t str) -> Result<(), &'t str> {
        for word in text.split(',') {
            match word {
                "barrier" | "barrier=1" => self.no_barriers = false,
                "nobarrier" | "barrier=0" => self.no_barriers = true,
                "discard" => self.discard = true,
                "nodiscard" => self.discard = false,
                "grpid" | "bsdgroups" => self.dir_groups = true,
                "nogrpid" | "sysvgroups" => self.dir_groups = false,
                "delalloc" => self.block_by_block = false,
                "nodelalloc" => self.block_by_block = true,
                "auto_da_alloc" => self.no_auto_da_alloc = false,
                "noauto_da_alloc" => self.no_auto_da_alloc = true,
                "data=journal" => self.data = Some(DataPath::Journal),
                "data=ordered" => self.data = Some(DataPath::Ordered),
                "data=writeback" => self.data = Some(DataPath::Writeback),
                "errors=continue" => self.errors = Some(OnError::Continue),
                "errors=remount-ro" => self.errors = Some(OnError::ReadOnly),
                "errors=panic" => self.errors = Some(OnError::Panic),
                word if is_for_the_kernel(word) => {}
                word => return Err(word),
            }
        }
        Ok(())
    }

    /// How file data gets to the device. The order of data and commits only matters with block-by-block
    /// allocation.
    #[must_use]
    pub fn data_path(&self) -> DataPath {
        match self.data.unwrap_or(DataPath::Ordered) {
            DataPath::Journal => DataPath::Journal,
            path if self.block_by_block => path,
            _ => DataPath::Iomap,
        }
    }

    /// Write options with these defaults.
    #[must_use]
    pub fn write_options(&self) -> WriteOptions {
        WriteOptions {
            data: self.data_path(),
            no_barriers: self.no_barriers,
            discard: self.discard,
            dir_groups: self.dir_groups,
            no_auto_da_alloc: self.no_auto_da_alloc,
            errors: self.errors,
            ..WriteOptions::default()
        }
    }
}

/// An option of the kernel's ext4 that has no effect here: it is always on, or concerns only the kernel.
fn is_for_the_kernel(word: &str) -> bool {
    const PLAIN: [&str; 25] = [
        "",
        "debug",
        "user_xattr",
        "acl",
        "noacl",
        "block_validity",
        "noblock_validity",
        "dioread_nolock",
        "dioread_lock",
        "dioread_unlock",
        "nodioread_nolock",
        "i_version",
        "lazytime",
        "nolazytime",
        "minixdf",
        "bsddf",
        "oldalloc",
        "orlov",
        "nouid32",
        "journal_checksum",
        "nojournal_checksum",
        "journal_async_commit",
        "init_itable",
        "noinit_itable",
        "prefetch_block_bitmaps",
    ];
    const WITH_NUMBER: [&str; 13] = [
        "commit",
        "stripe",
        "resuid",
        "resgid",
        "sb",
        "init_itable",
        "inode_readahead_blks",
        "journal_ioprio",
        "max_batch_time",
        "min_batch_time",
        "max_dir_size_kb",
        "auto_da_alloc",
        "mb_optimize_scan",
    ];
    let number = |value: &str| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    PLAIN.contains(&word)
        || word == "data_err=abort"
        || word == "data_err=ignore"
        || word.split_once('=').is_some_and(|(key, value)| WITH_NUMBER.contains(&key) && number(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bits: u32, text: &str) -> DefaultOptions {
        let mut sb = Superblock { default_mount_opts: bits, ..Superblock::default() };
        sb.mount_opts[..text.len()].copy_from_slice(text.as_bytes());
        DefaultOptions::of(&sb)
    }

    /// Each bit of `tune2fs -o`.
    #[test]
    fn each_bit_does_what_its_name_says() {
        for quiet in [default_options::DEBUG, default_options::XATTR_USER, default_options::ACL, 0x10, 0x200]
        {
            assert_eq!(of(quiet, ""), DefaultOptions::default(), "{quiet:#x}");
        }
        assert!(of(default_options::BSD_GROUPS, "").dir_groups);
        assert!(of(default_options::NOBARRIER, "").write_options().no_barriers);
        assert!(of(default_options::DISCARD, "").write_options().discard);
        let path = |bits| of(bits, "").data_path();
        assert_eq!(
            [path(0), path(0x20), path(0x40), path(0x60)],
            [DataPath::Iomap, DataPath::Journal, DataPath::Iomap, DataPath::Iomap]
        );
        assert_eq!(
            [path(0x800), path(0x820), path(0x860)],
            [DataPath::Ordered, DataPath::Journal, DataPath::Writeback]
        );
    }

    #[test]
    fn text_comes_after_the_bits_and_counts_as_a_whole_or_not_at_all() {
        let asked = of(default_options::NOBARRIER, "barrier,discard,data=journal,errors=continue,commit=30");
        assert!(!asked.no_barriers && asked.discard && asked.refused.is_none());
        assert_eq!((asked.data_path(), asked.errors), (DataPath::Journal, Some(OnError::Continue)));
        let wrong = of(default_options::NOBARRIER, "barrier,discard,frobnicate");
        assert!(wrong.no_barriers && !wrong.discard && wrong.refused.unwrap().contains("frobnicate"));
        // An image must not set these.
        for word in ["suid", "dev", "allow_other", "journal_path=/dev/sda", "rw", "commit=x"] {
            assert!(of(0, word).refused.is_some(), "{word}");
        }
    }
}
