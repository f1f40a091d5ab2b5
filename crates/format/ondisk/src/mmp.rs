//! The multiple-mount protection block. It names the machine that has the file system open, which rewrites it
//! every few seconds.
//!
//! | at | bytes | field | | at | bytes | field |
//! |---|---|---|---|---|---|---|
//! | 00 | 4 | magic 004D4D50 | | 50 | 32 | bdevname |
//! | 04 | 4 | seq | | 70 | 2 | check_interval |
//! | 08 | 8 | time | | 72 | 2 | pad1 |
//! | 10 | 64 | nodename | | 74 | 904 | pad2 |
//! | | | | | 3FC | 4 | checksum |
//!
//! Owns the bytes. Does **not** own the protocol (wait, re-read, claim), nor finding the block: the
//! superblock's `s_mmp_block` has its address. Reads must bypass all caches, because another machine may be
//! writing it.
//!
//! Source: kernel Documentation/filesystems/ext4/mmp.rst.

use extant_base::{Malformed, checksum::crc32c};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

const STRUCTURE: &str = "multiple-mount protection block";
const MAGIC: u32 = 0x004D_4D50;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    mmp_magic: U32,
    mmp_seq: U32,
    mmp_time: U64,
    mmp_nodename: [u8; 64],
    mmp_bdevname: [u8; 32],
    mmp_check_interval: U16,
    mmp_pad1: U16,
    mmp_pad2: [u8; 904],
    mmp_checksum: U32,
}

/// The meaning of the sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MmpState {
    /// The file system is not in use.
    Clean,
    /// A checker is running: refuse to open.
    Checking,
    /// A mount changes this number at every interval. If the number still changes, the file system is in use.
    Mounted(u32),
    /// Neither a marker nor a number that a mount may use.
    Unknown(u32),
}

/// The multiple-mount protection block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mmp {
    /// The sequence number, or one of the markers; see [`state`](Self::state).
    pub sequence: u32,
    /// When the block was written, in seconds since 1970. Informational only.
    pub time: u64,
    /// Host name of the writer, padded with zeros. Informational only.
    pub node_name: [u8; 64],
    /// Device name on the writer's machine, padded with zeros. Informational only.
    pub device_name: [u8; 32],
    /// Interval at which the writer checks the block, in seconds.
    pub check_interval: u16,
    /// Bytes 72..74, unused.
    pub reserved_72: u16,
    /// Bytes 74..3FC, unused.
    pub reserved_74: [u8; 904],
    /// Stored checksum; 0 without metadata_csum.
    pub checksum: u32,
}

impl Mmp {
    /// Length in bytes; the rest of the block is zero.
    pub const LEN: usize = 1024;
    /// Sequence number of a file system that is not in use.
    pub const SEQ_CLEAN: u32 = 0xFF4D_4D50;
    /// Sequence number while a checker is running.
    pub const SEQ_FSCK: u32 = 0xE24D_4D50;
    /// The largest sequence number that a mount may use.
    pub const SEQ_MAX: u32 = 0xE24D_4D4F;

    /// The block of a file system that is not in use, as mke2fs writes it, without a checksum. Names that do
    /// not fit are cut.
    #[must_use]
    pub fn clean(time: u64, node_name: &str, device_name: &str, check_interval: u16) -> Self {
        Self {
            sequence: Self::SEQ_CLEAN,
            time,
            node_name: padded(node_name),
            device_name: padded(device_name),
            check_interval,
            reserved_72: 0,
            reserved_74: [0; 904],
            checksum: 0,
        }
    }

    /// Decodes the first 1024 bytes of the block.
    ///
    /// # Errors
    /// The block is too short, or has another magic.
    pub fn decode(block: &[u8]) -> Result<Self, Malformed> {
        let (raw, _) = Raw::read_from_prefix(block)
            .map_err(|_| Malformed::new(STRUCTURE, "must have at least 1024 bytes", block.len() as u64))?;
        let magic = raw.mmp_magic.get();
        Malformed::unless(magic == MAGIC, STRUCTURE, "magic must be 0x004D4D50", magic)?;
        Ok(Self {
            sequence: raw.mmp_seq.get(),
            time: raw.mmp_time.get(),
            node_name: raw.mmp_nodename,
            device_name: raw.mmp_bdevname,
            check_interval: raw.mmp_check_interval.get(),
            reserved_72: raw.mmp_pad1.get(),
            reserved_74: raw.mmp_pad2,
            checksum: raw.mmp_checksum.get(),
        })
    }

    /// Encodes the 1024 bytes, with the checksum of the value unchanged.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let raw = Raw {
            mmp_magic: MAGIC.into(),
            mmp_seq: self.sequence.into(),
            mmp_time: self.time.into(),
            mmp_nodename: self.node_name,
            mmp_bdevname: self.device_name,
            mmp_check_interval: self.check_interval.into(),
            mmp_pad1: self.reserved_72.into(),
            mmp_pad2: self.reserved_74,
            mmp_checksum: self.checksum.into(),
        };
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The checksum of these fields: CRC-32C from the file system's seed over bytes 0..3FC.
    #[must_use]
    pub fn computed_checksum(&self, fs_seed: u32) -> u32 {
        crc32c(fs_seed, &self.encode()[..Self::LEN - 4])
    }

    /// Stores the checksum. For file systems with metadata_csum only; without it the field stays 0.
    pub fn seal(&mut self, fs_seed: u32) {
        self.checksum = self.computed_checksum(fs_seed);
    }

    /// Whether the stored checksum is right.
    #[must_use]
    pub fn verify(&self, fs_seed: u32) -> bool {
        self.checksum == self.computed_checksum(fs_seed)
    }

    /// The meaning of the sequence number.
    #[must_use]
    pub fn state(&self) -> MmpState {
        match self.sequence {
            Self::SEQ_CLEAN => MmpState::Clean,
            Self::SEQ_FSCK => MmpState::Checking,
            number if number <= Self::SEQ_MAX => MmpState::Mounted(number),
            number => MmpState::Unknown(number),
        }
    }
}

/// `text` as a field of `N` bytes; a longer text is cut.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// File systems made by e2fsprogs, for the tests of this crate that compare bytes.
#[cfg(test)]
pub(crate) mod real_image {
    use std::{
        fs::File,
        os::unix::fs::FileExt,
        path::PathBuf,
        process::{Command, Output},
    };

    use extant_base::checksum::crc32c;

    pub(crate) struct RealImage {
        dir: tempfile::TempDir,
    }

    /// A little-endian number of `len` bytes.
    pub(crate) fn le(bytes: &[u8], at: usize, len: usize) -> u64 {
        bytes[at..at + len].iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    impl RealImage {
        /// A new ext4 of `bytes` bytes, on a sparse file.
        pub(crate) fn mke2fs(bytes: u64, options: &[&str]) -> Self {
            let image = Self { dir: tempfile::tempdir().unwrap() };
            File::create(image.path()).unwrap().set_len(bytes).unwrap();
            image.tool("mke2fs", &[&["-q", "-F", "-t", "ext4"], options].concat());
            image
        }

        pub(crate) fn path(&self) -> PathBuf {
            self.dir.path().join("image")
        }

        /// Runs a program of e2fsprogs on the image.
        pub(crate) fn tool(&self, program: &str, options: &[&str]) -> Output {
            let mut command = Command::new(format!("/usr/sbin/{program}"));
            command.args(options).arg(self.path());
            let output = command.output().expect("e2fsprogs is installed");
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
            output
        }

        /// The output of a debugfs request.
        pub(crate) fn debugfs(&self, request: &str) -> String {
            String::from_utf8(self.tool("debugfs", &["-w", "-R", request]).stdout).unwrap()
        }

        /// The content of an inode, named in debugfs's syntax (`<3>`).
        pub(crate) fn content(&self, inode: &str) -> Vec<u8> {
            let copy = self.dir.path().join("copy");
            self.debugfs(&format!("dump {inode} {}", copy.display()));
            std::fs::read(copy).unwrap()
        }

        /// The physical blocks of an inode, without mapping blocks.
        pub(crate) fn blocks(&self, inode: &str) -> Vec<u64> {
            let list = self.debugfs(&format!("blocks {inode}"));
            list.split_whitespace().map(|word| word.parse().unwrap()).collect()
        }

        pub(crate) fn read(&self, offset_bytes: u64, len: usize) -> Vec<u8> {
            let mut bytes = vec![0; len];
            File::open(self.path()).unwrap().read_exact_at(&mut bytes, offset_bytes).unwrap();
            bytes
        }

        /// The seed of metadata checksums of a file system without metadata_csum_seed.
        pub(crate) fn fs_seed(&self) -> u32 {
            crc32c(!0, &self.read(1024 + 0x68, 16))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        real_image::{RealImage, le},
        *,
    };

    #[test]
    fn the_block_of_mke2fs_is_understood_and_rewritten() {
        for block_size in [1024, 4096] {
            let image = RealImage::mke2fs(32 << 20, &["-b", &block_size.to_string(), "-O", "mmp"]);
            let place = le(&image.read(1024 + 0x168, 8), 0, 8);
            let block = image.read(place * block_size, block_size as usize);
            let found = Mmp::decode(&block).unwrap();
            assert!(found.verify(image.fs_seed()));
            assert_eq!((found.state(), found.check_interval), (MmpState::Clean, 5));

            let name = |field: &[u8]| String::from_utf8(field.to_vec()).unwrap();
            let mut again = Mmp::clean(
                found.time,
                &name(&found.node_name),
                &name(&found.device_name),
                found.check_interval,
            );
            again.seal(image.fs_seed());
            let mut bytes = again.encode().to_vec();
            bytes.resize(block_size as usize, 0);
            assert_eq!(bytes, block);
        }
    }

    #[test]
    fn sequence_numbers_have_three_meanings() {
        let state = |sequence| Mmp { sequence, ..Mmp::clean(0, "", "", 5) }.state();
        assert_eq!(state(Mmp::SEQ_CLEAN), MmpState::Clean);
        assert_eq!(state(Mmp::SEQ_FSCK), MmpState::Checking);
        assert_eq!(state(Mmp::SEQ_MAX), MmpState::Mounted(Mmp::SEQ_MAX));
        assert_eq!(state(0xE24D_4D51), MmpState::Unknown(0xE24D_4D51));
    }

    #[test]
    fn long_names_are_cut() {
        let mmp = Mmp::clean(0, &"n".repeat(100), &"d".repeat(100), 5);
        assert_eq!((mmp.node_name, mmp.device_name), ([b'n'; 64], [b'd'; 32]));
    }

    proptest! {
        #[test]
        fn every_byte_is_kept(mut bytes in prop::collection::vec(any::<u8>(), 1024)) {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            let mmp = Mmp::decode(&bytes).unwrap();
            prop_assert_eq!(&mmp.encode()[..], &bytes[..]);
            let mut sealed = mmp.clone();
            sealed.seal(7);
            prop_assert!(sealed.verify(7) && !sealed.verify(8));
        }

        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..1100)) {
            let _ = Mmp::decode(&bytes);
        }
    }
}
