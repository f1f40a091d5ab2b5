//! The GPT: a header and a table of entries at the disk's start, and again at its end.
//!
//! ```text
//! LBA 0 protective MBR │ 1 header │ 2.. entries │ partitions ... │ entries │ last: backup header
//!
//! header  0  8  "EFI PART"                  56 16  disk GUID
//!        12  4  size of the header, from 92  72  8  LBA of the entries
//!        16  4  CRC-32 of the header, taken with this field 0
//!        24  8  LBA of this copy             80  4  number of entries
//!        32  8  LBA of the other copy        84  4  size of an entry, 128 * 2^n
//!        40  8  first usable LBA             88  4  CRC-32 of the entries
//!        48  8  last usable LBA
//! entry   0 16  type GUID, zero is empty     40  8  last LBA, included
//!        16 16  its own GUID                 48  8  attributes; bit 2 bootable
//!        32  8  first LBA                    56 72  name, UTF-16
//! ```
//! Numbers are little-endian. An LBA is the number of a sector of 512 or 4096 bytes. An image file does not
//! store the sector size; it is determined by the offset at which a valid header is found.
//!
//! Source: UEFI specification 2.10, section 5.3.

use super::{GPT_TABLE_BYTES_MAX, Guid, Kind, Partition, PartitionFault, Scheme, Table};
use crate::{Device, DeviceFault};

const HEADER_BYTES_MIN: u32 = 92;
const ENTRY_BYTES: u32 = 128;
const ENTRY_BYTES_MAX: u32 = 4096;
/// Attribute "legacy BIOS bootable".
const BOOTABLE: u64 = 1 << 2;
/// Entries are read and checksummed in parts of this size, a multiple of any entry size.
const PART_BYTES: u64 = 64 << 10;

/// A header with a right checksum.
struct Header {
    other_lba: u64,
    disk: Guid,
    entries_lba: u64,
    entries: u32,
    entry_bytes: u32,
    entries_crc: u32,
}

/// Why a copy is not accepted.
enum Broken {
    Device(DeviceFault),
    /// There is no header.
    Missing,
    /// A sentence without its subject.
    Rule(String),
}

impl Broken {
    fn rule(text: impl Into<String>) -> Self {
        Self::Rule(text.into())
    }
}

/// Reads the table after a protective MBR.
pub(super) fn read(device: &dyn Device) -> Result<Table, PartitionFault> {
    let primary = match primary(device) {
        Ok(table) => return Ok(table),
        Err(broken) => broken,
    };
    let backup = match backup(device, &primary) {
        Ok(table) => return Ok(table),
        Err(broken) => broken,
    };
    let words = |copy: &str, broken| match broken {
        Broken::Device(fault) => Err(PartitionFault::Device(fault)),
        Broken::Missing => Ok(format!("there is no {copy} header")),
        Broken::Rule(rule) => Ok(format!("the {copy} {rule}")),
    };
    Err(PartitionFault::Damaged { primary: words("primary", primary.why)?, backup: words("backup", backup)? })
}

/// Reads only the primary copy.
pub(super) fn read_primary(device: &dyn Device) -> Result<Table, ()> {
    primary(device).map_err(|_| ())
}

/// The result of reading a damaged primary copy.
struct Primary {
    why: Broken,
    /// Sector size and LBA of the backup, if the header is valid and only its entries are damaged.
    backup: Option<(u32, u64)>,
}

/// Sector sizes to try, the most likely first.
fn sector_sizes(device: &dyn Device) -> impl Iterator<Item = u32> + use<> {
    let own = device.sector_bytes();
    let other = if own == 512 { 4096 } else { 512 };
    [own, other].into_iter().filter(|bytes| bytes.is_power_of_two() && (512..=4096).contains(bytes))
}

fn primary(device: &dyn Device) -> Result<Table, Primary> {
    let mut found = Primary { why: Broken::Missing, backup: None };
    for sector_bytes in sector_sizes(device) {
        match Header::read(device, sector_bytes, 1) {
            Ok(header) => match header.table(device, sector_bytes, false) {
                Ok(table) => return Ok(table),
                Err(why) => return Err(Primary { why, backup: Some((sector_bytes, header.other_lba)) }),
            },
            Err(Broken::Missing) => {}
            Err(why) => found.why = why,
        }
    }
    Err(found)
}

fn backup(device: &dyn Device, primary: &Primary) -> Result<Table, Broken> {
    let at_the_end = sector_sizes(device).filter_map(|sector_bytes| {
        let sectors = device.size_bytes() / u64::from(sector_bytes);
        Some((sector_bytes, sectors.checked_sub(1)?))
    });
    let mut why = Broken::Missing;
    for (sector_bytes, lba) in primary.backup.into_iter().chain(at_the_end) {
        let table = Header::read(device, sector_bytes, lba)
            .and_then(|header| header.table(device, sector_bytes, true));
        match table {
            Ok(mut table) => {
                let what = match &primary.why {
                    Broken::Device(fault) => format!("cannot be read ({fault})"),
                    Broken::Missing => "header is gone".to_owned(),
                    Broken::Rule(rule) => rule.clone(),
                };
                table.remark(format!("the primary {what}; the backup at the disk's end is used"));
                return Ok(table);
            }
            Err(Broken::Missing) => {}
            Err(broken) => why = broken,
        }
    }
    Err(why)
}

impl Header {
    /// Reads and verifies the header at `lba`.
    fn read(device: &dyn Device, sector_bytes: u32, lba: u64) -> Result<Self, Broken> {
        let offset = lba.checked_mul(sector_bytes.into()).ok_or(Broken::Missing)?;
        let mut sector = vec![0; sector_bytes as usize];
        match device.read_at(offset, &mut sector) {
            Ok(()) => {}
            Err(DeviceFault::OutOfRange { .. }) => return Err(Broken::Missing),
            Err(fault) => return Err(Broken::Device(fault)),
        }
        if sector[..8] != *b"EFI PART" {
            return Err(Broken::Missing);
        }
        let size = u32_at(&sector, 12);
        if !(HEADER_BYTES_MIN..=sector_bytes).contains(&size) {
            return Err(Broken::rule(format!("header says that it is {size} bytes long")));
        }
        let stored = u32_at(&sector, 16);
        sector[16..20].fill(0);
        if crc32fast::hash(&sector[..size as usize]) != stored {
            return Err(Broken::rule("header's checksum is wrong"));
        }
        let own_lba = u64_at(&sector, 24);
        if own_lba != lba {
            return Err(Broken::rule(format!("header at LBA {lba} says that it is that of LBA {own_lba}")));
        }
        let (entries, entry_bytes) = (u32_at(&sector, 80), u32_at(&sector, 84));
        let table_bytes = u64::from(entries) * u64::from(entry_bytes);
        if !(ENTRY_BYTES..=ENTRY_BYTES_MAX).contains(&entry_bytes)
            || !entry_bytes.is_power_of_two()
            || table_bytes > GPT_TABLE_BYTES_MAX
        {
            return Err(Broken::rule(format!("header counts {entries} entries of {entry_bytes} bytes")));
        }
        Ok(Self {
            other_lba: u64_at(&sector, 32),
            disk: guid_at(&sector, 56),
            entries_lba: u64_at(&sector, 72),
            entries,
            entry_bytes,
            entries_crc: u32_at(&sector, 88),
        })
    }

    /// Reads and verifies the entries.
    fn table(&self, device: &dyn Device, sector_bytes: u32, from_backup: bool) -> Result<Table, Broken> {
        let scheme = Scheme::Gpt { disk: self.disk, from_backup };
        let mut table = Table { scheme, sector_bytes, partitions: Vec::new(), remarks: Vec::new() };
        let len = u64::from(self.entries) * u64::from(self.entry_bytes);
        let start = self.entries_lba.checked_mul(sector_bytes.into());
        let inside = start.and_then(|start| start.checked_add(len)).filter(|end| *end <= device.size_bytes());
        let (Some(start), Some(_)) = (start, inside) else {
            return Err(Broken::rule(format!(
                "entries at LBA {} lie past the end of the image",
                self.entries_lba
            )));
        };
        let mut sum = crc32fast::Hasher::new();
        let mut number = 1;
        let mut done = 0;
        while done < len {
            let mut part = vec![0; (len - done).min(PART_BYTES) as usize];
            device.read_at(start + done, &mut part).map_err(Broken::Device)?;
            sum.update(&part);
            for entry in part.chunks_exact(self.entry_bytes as usize) {
                table.take(number, entry);
                number += 1;
            }
            done += part.len() as u64;
        }
        if sum.finalize() != self.entries_crc {
            return Err(Broken::rule("entries' checksum is wrong"));
        }
        Ok(table)
    }
}

impl Table {
    /// Adds one GPT entry of at least [`ENTRY_BYTES`].
    fn take(&mut self, number: u32, entry: &[u8]) {
        let kind = guid_at(entry, 0);
        if kind == Guid::NONE {
            return;
        }
        let (first, last, flags) = (u64_at(entry, 32), u64_at(entry, 40), u64_at(entry, 48));
        let sector_bytes = u64::from(self.sector_bytes);
        let place = last.checked_sub(first).and_then(|more| {
            let len_bytes = more.checked_add(1)?.checked_mul(sector_bytes)?;
            let offset_bytes = first.checked_mul(sector_bytes)?;
            offset_bytes.checked_add(len_bytes)?;
            Some((offset_bytes, len_bytes))
        });
        let Some((offset_bytes, len_bytes)) = place else {
            self.remark(format!("partition {number} is left out: it goes from LBA {first} to {last}"));
            return;
        };
        let (units, _) = entry[56..128].as_chunks::<2>();
        let units = units.iter().map(|unit| u16::from_le_bytes(*unit)).take_while(|unit| *unit != 0);
        let name = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        self.partitions.push(Partition {
            number,
            offset_bytes,
            len_bytes,
            kind: Kind::Gpt(kind),
            id: Some(guid_at(entry, 16)),
            name,
            bootable: flags & BOOTABLE != 0,
            flags,
        });
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn guid_at(bytes: &[u8], at: usize) -> Guid {
    Guid(array_at(bytes, at))
}

/// Copies `N` bytes. Callers pass offsets inside buffers whose length they chose.
fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[at..at + N]);
    array
}
