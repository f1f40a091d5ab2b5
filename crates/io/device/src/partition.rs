//! Partition tables: finds the partitions of a disk, with GPT or MBR.
//!
//! ```text
//! sector 0 ── no signature 55 AA ───────── a valid primary GPT after it? ─── yes: GPT   no: no table
//!          ├─ an entry of type EE at 1 ─── GPT: the primary table, else the backup at the disk's end
//!          └─ else ─────────────────────── MBR: four entries, and the chain of each extended one
//! ```
//!
//! Owns: finding, verifying and reading tables; the numbers of partitions; names of common types. Does
//! **not** own: the content of a partition, writing tables, tables inside partitions (BSD, Solaris).
//!
//! Invariants
//! 1. Numbers are those of Linux: GPT entries by their position from 1, MBR entries 1 to 4, logical ones from
//!    5 on in the order of their chain. An empty slot leaves a gap.
//! 2. For any bytes the result is a table or a [`PartitionFault`], after a bounded number of reads (chains
//!    have at most [`EBRS_MAX`] links, tables at most [`GPT_TABLE_BYTES_MAX`] bytes), without a panic.
//! 3. A GPT is accepted only if the checksums of its header and of its entries are right.
//!
//! Source: UEFI specification 2.10 chapter 5 (GPT); for MBR the layout on which all tools agree, and Linux's
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

/// Maximum number of links of MBR chains that are followed.
pub const EBRS_MAX: usize = 1024;
/// Maximum size of a table of GPT entries: 32,768 entries of the usual 128 bytes. Disks normally have 128
/// entries.
pub const GPT_TABLE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of a logical partition in Linux.
const NUMBER_MAX: u32 = 255;
/// Maximum number of remarks that are kept.
const REMARKS_MAX: usize = 16;

/// Why the partitions cannot be listed or used.
#[derive(Debug, thiserror::Error)]
pub enum PartitionFault {
    /// The device cannot be read.
    #[error(transparent)]
    Device(#[from] DeviceFault),
    /// There is neither a GPT nor an MBR.
    #[error("there is no partition table")]
    NoTable,
    /// There is a GPT, but both copies are damaged.
    #[error("the partition table (GPT) is damaged: {primary}; {backup}")]
    Damaged {
        /// The defect of the copy at the start.
        primary: String,
        /// The defect of the copy at the end.
        backup: String,
    },
    /// The partition begins after the end of the device: the image is truncated, or is of another disk.
    #[error(
        "partition {number} begins at byte {offset_bytes}, and the image ends at byte {size_bytes}: it was cut off"
    )]
    BeyondEnd {
        /// Number of the partition.
        number: u32,
        /// Its first byte.
        offset_bytes: u64,
        /// Size of the device in bytes.
        size_bytes: u64,
    },
    /// The partition is an extended one, which only contains others.
    #[error("partition {number} is an extended one, which only holds the logical partitions from 5 on")]
    Container {
        /// Number of the partition.
        number: u32,
    },
}

/// The kind of a disk's partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// GUID Partition Table.
    Gpt {
        /// The disk's own GUID.
        disk: Guid,
        /// The primary copy is damaged, and the backup at the disk's end was read.
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
    /// The sector size in bytes, the unit of its numbers: 512 or 4096.
    pub sector_bytes: u32,
    /// Entries in use, by number.
    pub partitions: Vec<Partition>,
    /// Oddities of the table, one sentence each; the first few only.
    pub remarks: Vec<String>,
}

impl Table {
    /// The partition with this number.
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

/// The type of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// GPT: the type's GUID.
    Gpt(Guid),
    /// MBR: the type's number.
    Mbr(u8),
}

impl fmt::Display for Kind {
    /// The usual name, or else the number.
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

/// One entry of a table, unchanged: it may reach past the end of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Linux's number: the N of `/dev/sdaN`.
    pub number: u32,
    /// First byte on the disk.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Its type.
    pub kind: Kind,
    /// Its own GUID (GPT only).
    pub id: Option<Guid>,
    /// Its name (GPT only, else empty); invalid UTF-16 is replaced.
    pub name: String,
    /// Whether a boot loader starts from it: MBR byte 0x80, GPT attribute 2.
    pub bootable: bool,
    /// GPT: the attribute bits. MBR: 0.
    pub flags: u64,
}

impl Partition {
    /// Whether it is an extended MBR partition, which only contains others.
    #[must_use]
    pub fn is_container(&self) -> bool {
        matches!(self.kind, Kind::Mbr(byte) if mbr::is_extended(byte))
    }

    /// The partition as a device. If it reaches past the end of `disk` (a truncated image), it ends there.
    ///
    /// # Errors
    /// [`PartitionFault::BeyondEnd`] if `disk` has no byte of it, [`PartitionFault::Container`].
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
/// See [`PartitionFault`]; a device that is too small for a table has no table.
pub fn partitions(device: &dyn Device) -> Result<Table, PartitionFault> {
    let mut sector = [0; mbr::SIZE];
    match device.read_at(0, &mut sector) {
        Ok(()) => {}
        Err(DeviceFault::OutOfRange { .. }) => return Err(PartitionFault::NoTable),
        Err(fault) => return Err(fault.into()),
    }
    if !mbr::is_signed(&sector) {
        // Possibly wiped. Only the primary copy counts: a copy at the end may be left over from an earlier
        // use of the disk.
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
