//! Partition tables: where on a disk its partitions lie, by GPT or MBR.
//!
//! ```text
//! sector 0 ── no signature 55 AA ───────── a sound primary GPT behind it? ── yes: GPT   no: no table
//!          ├─ an entry of type EE at 1 ─── GPT: the primary table, else the backup at the disk's end
//!          └─ else ─────────────────────── MBR: four entries, and the chain behind each extended one
//! ```
//!
//! Owns: finding, verifying and reading tables; the numbers of partitions; names of common types. Does
//! **not** own: what is inside a partition, any writing of tables, tables inside of partitions (BSD,
//! Solaris).
//!
//! Invariants
//! 1. Numbers are those of Linux: GPT entries by their place from 1, MBR entries 1 to 4, logical ones from 5
//!    on in the order of their chain. An empty slot leaves a gap.
//! 2. Whatever the bytes: a table or a [`PartitionFault`], after a bounded number of reads (chains at most
//!    [`EBRS_MAX`] links, tables at most [`GPT_TABLE_BYTES_MAX`] bytes), without a panic.
//! 3. A GPT is believed only if the checksums of its header and of its entries are right.
//!
//! Source: UEFI specification 2.10 chapter 5 (GPT); for MBR the layout that every tool agrees on, and Linux's
//! numbers as `sfdisk` shows them.
//!
//! ```
//! use extant_device::{MemDevice, partition::{PartitionFault, partitions}};
//! assert!(matches!(partitions(&MemDevice::new(1 << 20)), Err(PartitionFault::NoTable)));
//! ```

mod gpt;
mod guid;
mod mbr;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::{Device, DeviceFault, Window};

pub use guid::Guid;

/// Most links of MBR chains that are followed.
pub const EBRS_MAX: usize = 1024;
/// Largest table of GPT entries that is read: 32,768 entries of the usual 128 bytes; disks come with 128
/// entries.
pub const GPT_TABLE_BYTES_MAX: u64 = 4 << 20;
/// Highest number that a logical partition can have in Linux.
const NUMBER_MAX: u32 = 255;
/// Remarks that are kept.
const REMARKS_MAX: usize = 16;

/// Why there are no partitions to be had.
#[derive(Debug, thiserror::Error)]
pub enum PartitionFault {
    /// The device cannot be read.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// There is neither a GPT nor an MBR.
    #[error("there is no partition table")]
    NoTable,
    /// There is a GPT, and neither of its copies can be believed.
    #[error("the partition table (GPT) is damaged: {primary}; {backup}")]
    Damaged {
        /// What is wrong with the copy at the start.
        primary: String,
        /// What is wrong with the copy at the end.
        backup: String,
    },
    /// The partition begins behind the end of the device: the image was cut, or is of another disk.
    #[error(
        "partition {number} begins at byte {offset_bytes}, and the image ends at byte {size_bytes}: it was cut off"
    )]
    BeyondEnd {
        /// Number of the partition.
        number: u32,
        /// Where it begins, in bytes.
        offset_bytes: u64,
        /// Size of the device in bytes.
        size_bytes: u64,
    },
    /// The partition is an extended one, which only holds others.
    #[error("partition {number} is an extended one, which only holds the logical partitions from 5 on")]
    Container {
        /// Number of the partition.
        number: u32,
    },
}

/// Which kind of table a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// GUID Partition Table.
    Gpt {
        /// The disk's own GUID.
        disk: Guid,
        /// The primary copy is damaged and the backup at the disk's end was read.
        from_backup: bool,
    },
    /// Master Boot Record ("DOS").
    Mbr {
        /// The disk's signature (byte 440).
        disk: u32,
    },
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt { .. } => "GPT",
            Self::Mbr { .. } => "MBR",
        })
    }
}

/// A partition table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// GPT or MBR.
    pub scheme: Scheme,
    /// The unit in which it counts, in bytes: 512 or 4096.
    pub sector_bytes: u32,
    /// Entries in use, by number.
    pub partitions: Vec<Partition>,
    /// What is odd about the table, each a sentence; the first few.
    pub remarks: Vec<String>,
}

impl Table {
    /// The partition of that number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.number == number)
    }

    fn remark(&mut self, remark: String) {
        if self.remarks.len() < REMARKS_MAX {
            self.remarks.push(remark);
        }
    }
}

/// What a partition says it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// GPT: the type's GUID.
    Gpt(Guid),
    /// MBR: the type's number.
    Mbr(u8),
}

impl fmt::Display for Kind {
    /// The usual name, else the number itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpt(guid) => match guid.type_name() {
                Some(name) => f.write_str(name),
                None => write!(f, "type {guid}"),
            },
            Self::Mbr(byte) => match mbr::type_name(*byte) {
                Some(name) => f.write_str(name),
                None => write!(f, "type {byte:#04x}"),
            },
        }
    }
}

/// One entry of a table, as it stands there: it may reach past the end of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Linux's number: the N of `/dev/sdaN`.
    pub number: u32,
    /// First byte on the disk.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// What it says it is for.
    pub kind: Kind,
    /// Its own GUID (GPT only).
    pub id: Option<Guid>,
    /// Its name (GPT only, else empty); bytes that are no UTF-16 are replaced.
    pub name: String,
    /// A boot loader is to start from it: MBR byte 0x80, GPT attribute 2.
    pub bootable: bool,
    /// GPT: the attribute bits. MBR: 0.
    pub flags: u64,
}

impl Partition {
    /// Is it an extended MBR partition, which only holds others?
    #[must_use]
    pub fn is_container(&self) -> bool {
        matches!(self.kind, Kind::Mbr(byte) if mbr::is_extended(byte))
    }

    /// The partition as a device. Where it reaches past the end of `disk` (an image that was cut off), it
    /// ends there.
    ///
    /// # Errors
    /// [`PartitionFault::BeyondEnd`] when nothing of it is there, [`PartitionFault::Container`].
    pub fn window(&self, disk: Arc<dyn Device>) -> Result<Window<Arc<dyn Device>>, PartitionFault> {
        if self.is_container() {
            return Err(PartitionFault::Container { number: self.number });
        }
        let size_bytes = disk.size_bytes();
        let beyond =
            PartitionFault::BeyondEnd { number: self.number, offset_bytes: self.offset_bytes, size_bytes };
        let here = size_bytes.checked_sub(self.offset_bytes).filter(|here| *here > 0).ok_or(beyond)?;
        Ok(Window::owned(disk, self.offset_bytes, self.len_bytes.min(here))?)
    }
}

/// Reads a disk's partition table.
///
/// # Errors
/// See [`PartitionFault`]; a device that is too small for a table has none.
pub fn partitions(device: &dyn Device) -> Result<Table, PartitionFault> {
    let mut sector = [0; mbr::SIZE];
    match device.read_at(0, &mut sector) {
        Ok(()) => {}
        Err(DeviceFault::OutOfRange { .. }) => return Err(PartitionFault::NoTable),
        Err(fault) => return Err(fault.into()),
    }
    if !mbr::is_signed(&sector) {
        // Wiped? Only the copy next to it counts: one at the end may be left over from an earlier life of the
        // disk.
        let mut table = gpt::read_primary(device).map_err(|_| PartitionFault::NoTable)?;
        table.remark("sector 0 lacks the protective MBR, so Linux would not see this table".to_owned());
        return Ok(table);
    }
    let entries = mbr::entries(&sector);
    if !mbr::is_table(&entries) {
        return Err(PartitionFault::NoTable);
    }
    if mbr::is_protective(&entries) { gpt::read(device) } else { mbr::read(device, &sector, &entries) }
}
