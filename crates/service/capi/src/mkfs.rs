//! Empty file systems.

use std::ffi::c_int;
use std::mem::offset_of;

use facade::BlockSize;
use facade::mkfs::{
    FeatureEdit, FormatOptions, Generation, Made, MkfsImageFault, mkfs_image_watched, mkfs_watched,
    random_identity,
};

use crate::border::{Array, Context, ErrorOut, Growing, Options, Out, Text, call};
use crate::error::Failure;
use crate::step::{Steps, extant_step};
use crate::storage::{Storage, as_device};

pub type Uuid = Array<u8>;

/// For extant_mkfs_options.generation: no journal, block maps.
pub const EXTANT_EXT2: u32 = 2;
/// For extant_mkfs_options.generation: ext2 with a journal.
pub const EXTANT_EXT3: u32 = 3;
/// For extant_mkfs_options.generation: the default.
pub const EXTANT_EXT4: u32 = 4;

/// Options of an empty file system. What is zero or NULL has the default of mke2fs 1.47.
#[repr(C)]
pub struct extant_mkfs_options {
    /// sizeof(extant_mkfs_options).
    pub size: usize,
    /// EXTANT_EXT2, EXTANT_EXT3 or EXTANT_EXT4.
    pub generation: u32,
    /// Bytes in a block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// At most 16 bytes.
    pub label: Text,
    /// As for mke2fs -O: names separated by commas, with ^ before those to leave out.
    pub features: Text,
    /// 16 bytes; NULL for a random UUID.
    pub uuid: Uuid,
    /// Bytes of the file system for each inode.
    pub inode_ratio: u64,
    /// Passed to the function below.
    pub user: Context,
    /// Called with the state of the work. Any result but 0 ends it with the error EXTANT_CODE_CANCELLED: then
    /// there is no new file, or no file system on the storage. May be NULL.
    pub progress: Option<extern "C" fn(user: Context, step: *const extant_step) -> c_int>,
}

// SAFETY: `repr(C)`, the size first, and only integers, pointers and a nullable function.
unsafe impl Growing for extant_mkfs_options {
    const SIZE_MIN: usize = offset_of!(Self, user);
}

/// What was made.
#[repr(C)]
#[derive(Default)]
pub struct extant_mkfs_report {
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub blocks_free: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Bytes in a block.
    pub block_size: u32,
    /// The number of inodes that the file system has room for.
    pub inodes: u32,
    /// The UUID.
    pub uuid: [u8; 16],
    /// Zero.
    pub reserved: [u64; 4],
}

impl From<Made> for extant_mkfs_report {
    fn from(made: Made) -> Self {
        Self {
            blocks: made.blocks,
            blocks_free: made.blocks_free,
            written_bytes: made.written_bytes,
            block_size: made.block_size,
            inodes: made.inodes,
            uuid: made.uuid,
            reserved: [0; 4],
        }
    }
}

pub type MkfsOptions = Options<extant_mkfs_options>;
pub type MkfsReportOut = Out<extant_mkfs_report>;

/// The options that mkfs and a build share.
pub(crate) fn format(
    block_size: u32,
    label: &Text,
    features: &Text,
    uuid: &Uuid,
) -> Result<FormatOptions, Failure> {
    let block_size = match block_size {
        0 => None,
        bytes => Some(BlockSize::from_bytes(bytes.into()).ok_or_else(|| {
            Failure::argument(format!("a block of {bytes} bytes: must be a power of two from 1024 to 65536"))
        })?),
    };
    let label = label.get().unwrap_or_default().to_vec();
    if label.len() > 16 {
        return Err(Failure::argument(format!("the label has {} bytes; at most 16 fit", label.len())));
    }
    let features = FeatureEdit::parse_list(features.utf8("features")?.unwrap_or_default())
        .map_err(|name| Failure::argument(format!("there is no feature {name:?}")))?;
    // SAFETY: the header demands 16 bytes.
    let uuid = unsafe { uuid.first::<16>() };
    Ok(FormatOptions { block_size, label, features, uuid, ..FormatOptions::default() })
}

fn read(options: &MkfsOptions) -> Result<(FormatOptions, Steps), Failure> {
    let options = options.get_or_zeros("options")?;
    let generation = match options.generation {
        0 | EXTANT_EXT4 => Generation::Ext4,
        EXTANT_EXT3 => Generation::Ext3,
        EXTANT_EXT2 => Generation::Ext2,
        other => return Err(Failure::argument(format!("generation {other} is not 2, 3 or 4"))),
    };
    let inode_ratio = (options.inode_ratio != 0).then_some(options.inode_ratio);
    let format = format(options.block_size, &options.label, &options.features, &options.uuid)?;
    let steps = Steps::new(options.progress, options.user);
    Ok((FormatOptions { generation, inode_ratio, ..format }, steps))
}

/// Makes an empty file system of `bytes` bytes in a new file. An existing file is replaced when the new
/// one is complete, unless it is in use. `options` and `report` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_mkfs(
    image: Text,
    bytes: u64,
    options: MkfsOptions,
    report: MkfsReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let (image, (format, steps)) = (image.path()?, read(&options)?);
        let failed = |source| MkfsImageFault::Image { image: image.to_owned(), source };
        let identity = random_identity(&format).map_err(failed)?;
        let made = mkfs_image_watched(image, bytes, &format, identity, true, &steps, &steps.cancel)?;
        report.set(made.into());
        Ok(())
    })
}

/// Makes an empty file system on all of the caller's storage, whose old content is lost.
#[unsafe(no_mangle)]
pub extern "C" fn extant_mkfs_storage(
    storage: Storage,
    options: MkfsOptions,
    report: MkfsReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let (options, steps) = read(&options)?;
        let device = as_device(&storage, true)?;
        let identity = random_identity(&options).map_err(|source| {
            let errno = source.raw_os_error().unwrap_or(crate::border::EIO);
            Failure::new(crate::error::extant_code::Image, errno, format!("no random bytes: {source}"))
        })?;
        report.set(mkfs_watched(&device, &options, identity, &steps, &steps.cancel)?.into());
        Ok(())
    })
}
