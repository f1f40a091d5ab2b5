//! Tables written by `sfdisk`, intact and damaged, and random tables.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use crate::{FileDevice, MemDevice};

const GPT: &str = "\
label: gpt
label-id: 12345678-9ABC-DEF0-1122-334455667788
1: start=2048, size=2048, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=\"EFI\"
3: start=8192, size=4096, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=\"wurzel \u{e4}\", attrs=LegacyBIOSBootable
";
const MBR: &str = "\
label: dos
label-id: 0xdeadbeef
1: start=2048, size=2048, type=83, bootable
2: start=4096, size=12288, type=5
4: start=20480, size=1024, type=82
5: start=6144, size=1024, type=83
6: start=10240, size=2048, type=7
";

/// A system program; Debian installs some outside the PATH of ordinary users.
fn program(name: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let mut command = Command::new(name);
    command.env("PATH", path).env("LC_ALL", "C.UTF-8");
    command
}

/// A read-write or read-only loop device, detached on drop.
struct Loop(String);

impl Loop {
    /// Attaches a loop device; `None`, with a message, if none is available.
    fn attach(file: &std::path::Path, options: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: not root");
            return None;
        }
        let attached = program("losetup").args(options).args(["-f", "--show"]).arg(file).output();
        let name = attached.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let name = name.ok().filter(|name| name.starts_with("/dev/"));
        if name.is_none() {
            println!("skipped: no loop device");
        }
        name.map(Self)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = program("losetup").args(["-d", &self.0]).status();
    }
}

/// Writes a table with `sfdisk`; `None`, with a message, if there is no sfdisk.
fn write_table(target: &std::ffi::OsStr, script: &str) -> Option<()> {
    let mut command = program("sfdisk");
    command.args(["--quiet", "--no-reread", "--no-tell-kernel"]).arg(target);
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn() else {
        println!("skipped: not installed: sfdisk");
        return None;
    };
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "sfdisk");
    Some(())
}

/// The bytes of a disk of 16 MiB with a table written by `sfdisk`.
fn disk(script: &str) -> Option<Vec<u8>> {
    let file = blank();
    write_table(file.path().as_os_str(), script)?;
    Some(std::fs::read(file.path()).unwrap())
}

/// The same for a disk with sectors of 4096 bytes.
fn disk_of_large_sectors(script: &str) -> Option<Vec<u8>> {
    let file = blank();
    let looped = Loop::attach(file.path(), &["-b", "4096"])?;
    write_table(looped.0.as_ref(), script)?;
    let device = FileDevice::open_read_only(looped.0.as_ref()).unwrap();
    assert_eq!(device.sector_bytes(), 4096);
    assert_eq!(partitions(&device).unwrap().sector_bytes, 4096);
    drop(looped);
    Some(std::fs::read(file.path()).unwrap())
}

fn blank() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(16 << 20).unwrap();
    file
}

fn device(bytes: &[u8]) -> MemDevice {
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, bytes).unwrap();
    device
}

fn read(bytes: &[u8]) -> Result<Table, PartitionFault> {
    partitions(&device(bytes))
}

/// Number, first byte, length in bytes.
fn places(table: &Table) -> Vec<(u32, u64, u64)> {
    table.partitions.iter().map(|p| (p.number, p.offset_bytes, p.len_bytes)).collect()
}

const MIB: u64 = 1 << 20;

#[test]
fn a_gpt_of_sfdisk_is_read() {
    let Some(disk) = disk(GPT) else { return };
    let table = read(&disk).unwrap();
    let id = Guid::from_text("12345678-9ABC-DEF0-1122-334455667788").unwrap();
    assert_eq!(table.scheme, Scheme::Gpt { disk: id, from_backup: false });
    assert_eq!((table.sector_bytes, &table.remarks), (512, &vec![]));
    assert_eq!(places(&table), [(1, MIB, MIB), (3, 4 * MIB, 2 * MIB)]);
    let [efi, root] = &table.partitions[..] else { panic!("{table:?}") };
    assert_eq!(
        (efi.name.as_str(), efi.kind.to_string().as_str(), efi.bootable),
        ("EFI", "EFI System", false)
    );
    assert_eq!((root.name.as_str(), root.bootable, root.flags), ("wurzel \u{e4}", true, 4));
    assert_eq!(root.kind.to_string(), "Linux filesystem");
    assert!(root.id.is_some() && root.id != efi.id);
}

#[test]
fn a_gpt_of_large_sectors_is_found_in_an_image_that_does_not_say_so() {
    let script = "label: gpt\n2: start=512, size=256, type=L\n";
    let Some(disk) = disk_of_large_sectors(script) else { return };
    let table = read(&disk).unwrap();
    assert_eq!((table.sector_bytes, places(&table)), (4096, vec![(2, 2 * MIB, MIB)]));
    let mut damaged = disk;
    damaged[4096..8192].fill(0);
    let table = read(&damaged).unwrap();
    assert!(matches!(table.scheme, Scheme::Gpt { from_backup: true, .. }));
    assert_eq!(places(&table), [(2, 2 * MIB, MIB)]);
}

#[test]
fn the_backup_gpt_steps_in_for_a_damaged_primary() {
    let Some(disk) = disk(GPT) else { return };
    let whole = read(&disk).unwrap();
    // A header without signature, a header with a wrong field, an entry with a wrong bit.
    for (at, remark) in
        [(512, "header is gone"), (512 + 40, "header's checksum"), (1024 + 32, "entries' checksum")]
    {
        let mut damaged = disk.clone();
        damaged[at] ^= 1;
        let table = read(&damaged).unwrap();
        assert!(matches!(table.scheme, Scheme::Gpt { from_backup: true, .. }), "{at}");
        assert_eq!(table.partitions, whole.partitions, "{at}");
        assert!(table.remarks[0].contains(remark), "{:?}", table.remarks);
    }
    // The disk was enlarged: the header still has the address of its other copy.
    let mut damaged = disk.clone();
    damaged[1024 + 32] ^= 1;
    damaged.resize(20 << 20, 0);
    assert_eq!(read(&damaged).unwrap().partitions, whole.partitions);
    // Both copies damaged.
    let mut damaged = disk;
    let last = damaged.len() - 512;
    damaged[512 + 56] ^= 1;
    damaged[last + 56] ^= 1;
    let fault = read(&damaged).unwrap_err().to_string();
    assert!(
        fault.contains("primary header's checksum") && fault.contains("backup header's checksum"),
        "{fault}"
    );
}

#[test]
fn a_wiped_first_sector_does_not_hide_a_gpt_but_a_backup_alone_is_history() {
    let Some(mut disk) = disk(GPT) else { return };
    disk[..512].fill(0);
    let table = read(&disk).unwrap();
    assert_eq!((table.partitions.len(), table.remarks.len()), (2, 1));
    disk[512..1024].fill(0);
    assert!(matches!(read(&disk), Err(PartitionFault::NoTable)));
}

#[test]
fn an_mbr_of_sfdisk_is_read_with_its_logical_partitions() {
    let Some(disk) = disk(MBR) else { return };
    let table = read(&disk).unwrap();
    assert_eq!(table.scheme, Scheme::Mbr { disk: 0xdead_beef });
    assert_eq!(
        places(&table),
        [
            (1, MIB, MIB),
            (2, 2 * MIB, 6 * MIB),
            (4, 10 * MIB, MIB / 2),
            (5, 3 * MIB, MIB / 2),
            (6, 5 * MIB, MIB)
        ]
    );
    let kinds: Vec<String> = table.partitions.iter().map(|p| p.kind.to_string()).collect();
    assert_eq!(kinds, ["Linux", "Extended", "Linux swap", "Linux", "HPFS/NTFS/exFAT"]);
    let bootable: Vec<u32> = table.partitions.iter().filter(|p| p.bootable).map(|p| p.number).collect();
    assert_eq!(bootable, [1]);
    assert!(table.remarks.is_empty());
}

#[test]
fn partx_numbers_and_places_them_the_same() {
    for script in [GPT, MBR] {
        let Some(disk) = disk(script) else { return };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &disk).unwrap();
        let mut command = program("partx");
        let Ok(output) = command.args(["--raw", "-g", "-o", "NR,START,SECTORS"]).arg(file.path()).output()
        else {
            println!("skipped: not installed: partx");
            return;
        };
        let theirs = String::from_utf8(output.stdout).unwrap();
        let ours = read(&disk).unwrap().partitions;
        let line = |p: &Partition| format!("{} {} {}\n", p.number, p.offset_bytes / 512, p.len_bytes / 512);
        assert_eq!(ours.iter().map(line).collect::<String>(), theirs);
    }
}

#[test]
fn the_kernel_numbers_and_places_them_the_same() {
    for script in [GPT, MBR] {
        let Some(disk) = disk(script) else { return };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &disk).unwrap();
        let Some(looped) = Loop::attach(file.path(), &["-r", "-P"]) else { return };
        let device = FileDevice::open_read_only(looped.0.as_ref()).unwrap();
        assert_eq!((device.size_bytes(), device.sector_bytes()), (disk.len() as u64, 512));
        let table = partitions(&device).unwrap();
        let name = looped.0.trim_start_matches("/dev/");
        let of_kernel = |number: u32| {
            let field = |field: &str| {
                let path = format!("/sys/block/{name}/{name}p{number}/{field}");
                Some(512 * std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()?)
            };
            field("start").zip(field("size"))
        };
        if (1..20).all(|number| of_kernel(number).is_none()) {
            println!("skipped: this kernel does not scan the partitions of loop devices");
            return;
        }
        for number in 1..20 {
            // The kernel shows an extended partition with the length of its boot record only.
            let ours = table
                .get(number)
                .map(|p| (p.offset_bytes, if p.is_container() { 1024 } else { p.len_bytes }));
            assert_eq!(ours, of_kernel(number), "partition {number}");
        }
    }
}

#[test]
fn a_partition_is_a_window_cut_where_the_image_ends() {
    let Some(mut disk) = disk(GPT) else { return };
    disk[8192 * 512] = 7;
    disk.truncate(5 << 20);
    let image: Arc<dyn Device> = Arc::new(device(&disk));
    let table = partitions(&image).unwrap();
    let window = table.get(3).unwrap().window(Arc::clone(&image)).unwrap();
    let mut first = [0];
    window.read_at(0, &mut first).unwrap();
    assert_eq!((window.size_bytes(), first), (MIB, [7]));
    let small: Arc<dyn Device> = Arc::new(device(&disk[..3 << 20]));
    let fault = table.get(3).unwrap().window(small).unwrap_err();
    assert!(matches!(fault, PartitionFault::BeyondEnd { number: 3, .. }));
}

#[test]
fn an_extended_partition_is_no_window() {
    let Some(disk) = disk(MBR) else { return };
    let image: Arc<dyn Device> = Arc::new(device(&disk));
    let fault = partitions(&image).unwrap().get(2).unwrap().window(image).unwrap_err();
    assert!(matches!(fault, PartitionFault::Container { number: 2 }));
}

/// A boot record with these entries: type, start, sectors.
fn record(entries: &[(u8, u32, u32)]) -> [u8; 512] {
    let mut sector = [0; 512];
    for (i, (kind, start, sectors)) in entries.iter().enumerate() {
        let at = 446 + 16 * i;
        sector[at + 4] = *kind;
        sector[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        sector[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
    }
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

#[test]
fn chains_that_bite_their_tail_or_run_away_end() {
    let mut disk = vec![0; 4 << 20];
    disk[..512].copy_from_slice(&record(&[(5, 10, 8000)]));
    disk[10 * 512..11 * 512].copy_from_slice(&record(&[(0x83, 1, 5), (5, 20, 10)]));
    disk[30 * 512..31 * 512].copy_from_slice(&record(&[(0x83, 1, 5), (5, 0, 10)]));
    let table = read(&disk).unwrap();
    assert_eq!(places(&table)[1..], [(5, 11 * 512, 5 * 512), (6, 31 * 512, 5 * 512)]);
    assert!(table.remarks[0].contains("leads back"), "{:?}", table.remarks);
    // Every sector links to the next one, without and with a partition in it.
    for entry in [(0, 0, 0), (0x83, 1, 1)] {
        for sector in 10..8000u32 {
            let at = sector as usize * 512;
            disk[at..at + 512].copy_from_slice(&record(&[entry, (5, sector - 9, 1)]));
        }
        let table = read(&disk).unwrap();
        assert!(table.partitions.len() <= 252 && table.remarks.len() == 1, "{}", table.partitions.len());
    }
    disk[30 * 512..31 * 512].copy_from_slice(&record(&[(0x83, 1, 5), (5, u32::MAX, 10)]));
    assert!(read(&disk).unwrap().remarks[0].contains("past the end"));
}

#[test]
fn what_has_no_table_says_so() {
    for bytes in [vec![], vec![0; 100], vec![0; 511], vec![0; 1 << 20], vec![0xFF; 1 << 20]] {
        assert!(matches!(read(&bytes), Err(PartitionFault::NoTable)));
    }
    // The boot sector of a FAT: signed, with code at the offset of the table.
    let mut fat = vec![0xCD; 4096];
    fat[510..512].copy_from_slice(&[0x55, 0xAA]);
    assert!(matches!(read(&fat), Err(PartitionFault::NoTable)));
    // A table without entries is valid.
    let mut empty = vec![0; 4096];
    empty[..512].copy_from_slice(&record(&[]));
    assert!(read(&empty).unwrap().partitions.is_empty());
}

#[test]
fn guids_are_text_and_back() {
    let text = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";
    assert_eq!(Guid::from_text(text).unwrap().to_string(), text);
    for bad in
        ["", "0FC63DAF", "0FC63DAF-8483-4772-8E79-3D69D8477DE40", "GFC63DAF-8483-4772-8E79-3D69D8477DE4"]
    {
        assert_eq!(Guid::from_text(bad), None);
    }
    for (text, _) in guid::TYPE_NAMES {
        assert_eq!(Guid::from_text(text).unwrap().to_string(), text);
    }
}

/// A small disk with a GPT whose checksums are right; header fields are overwritten before the checksums are
/// computed.
fn sealed_gpt(edits: &[(usize, u64)], entries: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 64 << 10];
    disk[..512].copy_from_slice(&record(&[(0xEE, 1, u32::MAX)]));
    let header = &mut disk[512..1024];
    header[..8].copy_from_slice(b"EFI PART");
    let put32 =
        |header: &mut [u8], at: usize, value: u32| header[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put32(header, 12, 92);
    header[24] = 1;
    header[72] = 2;
    put32(header, 80, 64);
    put32(header, 84, 128);
    for (at, value) in edits {
        let len = 8.min(92 - at);
        header[*at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
    let len = entries.len().min(64 * 128);
    disk[1024..1024 + len].copy_from_slice(&entries[..len]);
    let sum = crc32fast::hash(&disk[1024..1024 + 64 * 128]);
    let header = &mut disk[512..1024];
    put32(header, 88, sum);
    put32(header, 16, 0);
    let size = u32::from_le_bytes([header[12], header[13], header[14], header[15]]).min(512) as usize;
    let sum = crc32fast::hash(&header[..size]);
    put32(header, 16, sum);
    disk
}

#[test]
fn names_are_utf_16_and_what_is_none_is_replaced() {
    let mut entry = [0; 128];
    entry[0] = 1;
    entry[32] = 34;
    entry[40] = 34;
    for (i, unit) in [0x61, 0xD83D, 0xDE00, 0xD83D, 0x62, 0].into_iter().enumerate() {
        entry[56 + 2 * i..58 + 2 * i].copy_from_slice(&u16::to_le_bytes(unit));
    }
    let table = read(&sealed_gpt(&[], &entry)).unwrap();
    assert_eq!(
        (table.partitions[0].name.as_str(), table.partitions[0].len_bytes),
        ("a\u{1f600}\u{fffd}b", 512)
    );
    // The last LBA is before the first.
    entry[40] = 33;
    let table = read(&sealed_gpt(&[], &entry)).unwrap();
    assert_eq!((table.partitions.len(), table.remarks.len()), (0, 1));
}

/// Reads the table, and opens the windows of all partitions.
fn exercise(bytes: &[u8]) {
    let image: Arc<dyn Device> = Arc::new(device(bytes));
    if let Ok(table) = partitions(&image) {
        assert!(table.partitions.len() <= 32768 && table.remarks.len() <= REMARKS_MAX);
        for partition in &table.partitions {
            if let Ok(window) = partition.window(Arc::clone(&image)) {
                assert!(partition.offset_bytes + window.size_bytes() <= bytes.len() as u64);
            }
            let _ = partition.kind.to_string();
        }
    }
}

proptest! {
    #[test]
    fn any_boot_sector_is_read_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 512..4096)) {
        bytes[510..512].copy_from_slice(&[0x55, 0xAA]);
        for entry in 0..4 {
            bytes[446 + 16 * entry] &= 0x80;
        }
        exercise(&bytes);
    }

    #[test]
    fn any_chain_is_followed_without_panic(
        links in proptest::collection::vec(
            proptest::collection::vec((prop_oneof![Just(5u8), any::<u8>()], 0..70u32, any::<u32>()), 0..4),
            64,
        ),
    ) {
        let bytes: Vec<u8> = links.iter().flat_map(|entries| record(entries)).collect();
        exercise(&bytes);
    }

    #[test]
    fn any_sealed_gpt_is_read_without_panic(
        edits in proptest::collection::vec((8..92usize, prop_oneof![any::<u64>(), 0..300u64]), 0..3),
        entries in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(0xFF)], 0..8192),
    ) {
        exercise(&sealed_gpt(&edits, &entries));
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_gpt_changes_no_partition(at in 512..512 * 34usize, bit in 0..8u8) {
        static DISK: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| disk(GPT));
        let Some(disk) = &*DISK else { return Ok(()) };
        let mut damaged = disk.clone();
        damaged[at] ^= 1 << bit;
        prop_assert_eq!(read(&damaged).unwrap().partitions, read(disk).unwrap().partitions);
    }
}
