//! The MBR: four entries in sector 0, and chains of sectors for logical partitions.
//!
//! ```text
//! offset  len  field                     entry: 0  1  0x80 bootable, else 0
//!    440    4  disk signature                   4  1  type, 0 is empty
//!    446   64  four entries of 16 bytes         8  4  first sector
//!    510    2  55 AA                           12  4  number of sectors
//!
//! extended partition E ┬─ EBR at E:    entry 0  a logical partition, counted from this EBR
//!                      │               entry 1  the next EBR, counted from E ──┐
//!                      └─ EBR at E+n:  entry 0 ... <────────────────────────────┘
//! ```
//! Numbers are little-endian. The CHS fields are ignored, as in all systems.

use std::collections::HashSet;

use super::{EBRS_MAX, Kind, NUMBER_MAX, Partition, PartitionFault, Scheme, Table};
use crate::Device;

/// Size of a boot record; on disks with larger sectors the rest of the sector is unused.
pub(super) const SIZE: usize = 512;
/// Number of the first logical partition.
const FIRST_LOGICAL: u32 = 5;

/// One entry, unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    boot: u8,
    kind: u8,
    start: u32,
    sectors: u32,
}

/// Whether it ends with the signature of boot records.
pub(super) fn is_signed(sector: &[u8; SIZE]) -> bool {
    sector[510..] == [0x55, 0xAA]
}

/// The four entries.
pub(super) fn entries(sector: &[u8; SIZE]) -> [Entry; 4] {
    std::array::from_fn(|i| {
        let at = 446 + 16 * i;
        let number =
            |at: usize| u32::from_le_bytes([sector[at], sector[at + 1], sector[at + 2], sector[at + 3]]);
        Entry { boot: sector[at], kind: sector[at + 4], start: number(at + 8), sectors: number(at + 12) }
    })
}

/// Whether these are the entries of a table. In the boot sector of a FAT or NTFS these bytes are code or
/// text.
pub(super) fn is_table(entries: &[Entry; 4]) -> bool {
    entries.iter().all(|entry| matches!(entry.boot, 0 | 0x80))
}

/// Whether this MBR only protects a GPT. It may also repeat some of the GPT's partitions.
pub(super) fn is_protective(entries: &[Entry; 4]) -> bool {
    entries.iter().any(|entry| entry.kind == 0xEE && entry.start == 1)
}

/// Whether a partition of this type contains a chain of logical ones.
pub(super) fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x05 | 0x0F | 0x85)
}

/// The name of this partition type, as in `sfdisk`.
pub(super) fn type_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        0x01 => "FAT12",
        0x04 | 0x06 | 0x0E => "FAT16",
        0x05 | 0x0F => "Extended",
        0x07 => "HPFS/NTFS/exFAT",
        0x0B | 0x0C => "FAT32",
        0x82 => "Linux swap",
        0x83 => "Linux",
        0x85 => "Linux extended",
        0x8E => "Linux LVM",
        0xA5 => "FreeBSD",
        0xEE => "GPT guard",
        0xEF => "EFI System",
        0xFD => "Linux RAID",
        _ => return None,
    })
}

/// Reads the partitions of an MBR with a valid table.
pub(super) fn read(
    device: &dyn Device,
    sector: &[u8; SIZE],
    entries: &[Entry; 4],
) -> Result<Table, PartitionFault> {
    let disk = u32::from_le_bytes([sector[440], sector[441], sector[442], sector[443]]);
    let sector_bytes = device.sector_bytes();
    let scheme = Scheme::Mbr { disk };
    let mut table = Table { scheme, sector_bytes, partitions: Vec::new(), remarks: Vec::new() };
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| entry.is_used()) {
        table.partitions.push(entry.partition(number, u64::from(entry.start), sector_bytes));
    }
    let mut chain = Chain { device, next: FIRST_LOGICAL, seen: HashSet::new(), table };
    for entry in entries.iter().filter(|entry| entry.is_used() && is_extended(entry.kind)) {
        chain.follow(u64::from(entry.start), u64::from(entry.sectors))?;
    }
    Ok(chain.table)
}

impl Entry {
    /// Whether the entry is used. Like Linux, it checks only the length.
    fn is_used(&self) -> bool {
        self.sectors != 0
    }

    /// Converts the entry; `start` is counted from the start of the disk. Numbers are below 2^34 sectors, so
    /// nothing overflows.
    fn partition(&self, number: u32, start: u64, sector_bytes: u32) -> Partition {
        Partition {
            number,
            offset_bytes: start * u64::from(sector_bytes),
            len_bytes: u64::from(self.sectors) * u64::from(sector_bytes),
            kind: Kind::Mbr(self.kind),
            id: None,
            name: String::new(),
            bootable: self.boot & 0x80 != 0,
            flags: 0,
        }
    }
}

/// The state of a walk through the chains of logical partitions.
struct Chain<'d> {
    device: &'d dyn Device,
    /// Number of the next logical partition.
    next: u32,
    /// Sectors of all links read so far: a repeated link would be a cycle.
    seen: HashSet<u64>,
    table: Table,
}

impl Chain<'_> {
    /// Follows the chain of the extended partition that begins at sector `first`.
    fn follow(&mut self, first: u64, sectors: u64) -> Result<(), PartitionFault> {
        let (mut at, mut here) = (first, sectors);
        loop {
            let broken = if !self.seen.insert(at) {
                "leads back to where it was"
            } else if self.seen.len() > EBRS_MAX {
                "has too many links"
            } else if self.next > NUMBER_MAX {
                "has more partitions than Linux has numbers"
            } else {
                match self.link(at)? {
                    Ok(entries) => {
                        self.take(&entries, at, here, first..first + sectors);
                        let link = entries.iter().find(|entry| entry.is_used() && is_extended(entry.kind));
                        let Some(link) = link else { return Ok(()) };
                        (at, here) = (first + u64::from(link.start), u64::from(link.sectors));
                        continue;
                    }
                    Err(broken) => broken,
                }
            };
            let remark = format!("the chain of logical partitions {broken} at sector {at}, and ends there");
            self.table.remark(remark);
            return Ok(());
        }
    }

    /// One link's entries, or the description of its defect.
    fn link(&self, at: u64) -> Result<Result<[Entry; 4], &'static str>, PartitionFault> {
        let mut sector = [0; SIZE];
        let offset = at * u64::from(self.table.sector_bytes); // `at` is below 2^33
        if offset.checked_add(SIZE as u64).is_none_or(|end| end > self.device.size_bytes()) {
            return Ok(Err("leads past the end of the image"));
        }
        self.device.read_at(offset, &mut sector)?;
        Ok(if is_signed(&sector) { Ok(entries(&sector)) } else { Err("has a link without signature") })
    }

    /// Adds the logical partitions of the link at sector `at`, which is `here` sectors long, in an extended
    /// partition that covers `whole`.
    fn take(&mut self, entries: &[Entry; 4], at: u64, here: u64, whole: std::ops::Range<u64>) {
        for (i, entry) in entries.iter().enumerate() {
            if !entry.is_used() || is_extended(entry.kind) || self.next > NUMBER_MAX {
                continue;
            }
            let start = at + u64::from(entry.start);
            let end = start + u64::from(entry.sectors);
            // Only the first two should be in use. Some tools leave garbage in the others, and some use them.
            let plausible = u64::from(entry.start) + u64::from(entry.sectors) <= here
                && whole.contains(&start)
                && end <= whole.end;
            if i < 2 || plausible {
                let partition = entry.partition(self.next, start, self.table.sector_bytes);
                self.table.partitions.push(partition);
                self.next += 1;
            }
        }
    }
}
