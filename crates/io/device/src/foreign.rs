//! Recognises the contents of a device that is not ext2, ext3 or ext4 by magic numbers: containers, archives,
//! other file systems.
//!
//! Owns: the table of magic numbers, and the remedy for each format. Does **not** own: any layout after the
//! magic number, partition tables (see [`crate::partition`]), and the decision that there is no ext4: a
//! caller uses this module after it found no superblock.
//!
//! Invariants
//! 1. Bounded: at most one short read for each row of the table. Bytes past the end of the device match
//!    nothing.
//! 2. The first matching row is the result, so containers are listed before formats that they may contain.
//!
//! ```
//! use extant_device::{Device, MemDevice, foreign};
//! let device = MemDevice::new(1 << 20);
//! device.write_at(0, b"QFI\xfb\0\0\0\x03").unwrap();
//! let found = foreign::identify(&device).unwrap();
//! assert_eq!(found.name, "a qcow2 disk image");
//! ```

use std::fmt;

use crate::Device;

/// A format that is not an ext file system.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Its name, with the article: "a qcow2 disk image".
    pub name: &'static str,
    /// How to make a raw ext4 image of it, or how to read it instead.
    pub remedy: &'static str,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this is {}; {}", self.name, self.remedy)
    }
}

/// The position of a magic number.
enum At {
    /// Offset from the first byte.
    Start(u64),
    /// Distance before the end.
    End(u64),
}

struct Row {
    at: At,
    magic: &'static [u8],
    is: Foreign,
}

const fn row(at: u64, magic: &'static [u8], name: &'static str, remedy: &'static str) -> Row {
    Row { at: At::Start(at), magic, is: Foreign { name, remedy } }
}

/// Maximum length of a magic number in the table.
const MAGIC_LEN_MAX: usize = 32;

const DISK_IMAGE: &str =
    "`qemu-img convert -O raw IMAGE raw.img` makes a raw image, whose partitions are raw.img#1 ...";
const MOUNT: &str = "mount it with the kernel's driver";
const RAID: &str = "`mdadm --assemble` puts it together; the file system is on /dev/mdN";
const DOS: &str = "mtools (`mdir -i`) or the kernel's vfat reads it";
const UBI: &str = "write it to flash, or use ubireader";

/// Containers first, then archives, then file systems. Each row is from the format's own specification.
const TABLE: &[Row] = &[
    row(
        0,
        b"\x3a\xff\x26\xed",
        "an Android sparse image",
        "`simg2img IMAGE raw.img` makes a raw image of it",
    ),
    row(
        4096,
        b"gDla",
        "an Android super image (dynamic partitions)",
        "`lpunpack IMAGE DIR` takes its partitions out",
    ),
    row(0, b"CrAU", "an Android OTA payload", "`payload-dumper-go IMAGE` takes its partitions out"),
    row(
        0,
        b"ANDROID!",
        "an Android boot image",
        "`unpack_bootimg --boot_img IMAGE` takes kernel and ramdisk out",
    ),
    row(0, b"QFI\xfb", "a qcow2 disk image", DISK_IMAGE),
    row(0, b"QED\0", "a QED disk image", DISK_IMAGE),
    row(0, b"vhdxfile", "a VHDX disk image", DISK_IMAGE),
    row(0, b"conectix", "a VHD disk image", DISK_IMAGE),
    row(0, b"KDMV", "a VMDK disk image", DISK_IMAGE),
    row(0, b"COWD", "a VMDK disk image", DISK_IMAGE),
    row(0, b"# Disk DescriptorFile", "a VMDK descriptor", DISK_IMAGE),
    row(0x40, b"\x7f\x10\xda\xbe", "a VDI disk image", DISK_IMAGE),
    row(0, b"WithoutFreeSpace", "a Parallels disk image", DISK_IMAGE),
    row(0, b"WithouFreSpacExt", "a Parallels disk image", DISK_IMAGE),
    Row { at: At::End(512), magic: b"koly", is: Foreign { name: "a DMG disk image", remedy: DISK_IMAGE } },
    row(
        0,
        b"LUKS\xba\xbe",
        "a LUKS encrypted volume",
        "`cryptsetup open IMAGE NAME` decrypts it; use /dev/mapper/NAME",
    ),
    row(
        0,
        b"SKUL\xba\xbe",
        "a LUKS header copy",
        "`cryptsetup open IMAGE NAME` decrypts it; use /dev/mapper/NAME",
    ),
    row(3, b"-FVE-FS-", "a BitLocker encrypted volume", "`cryptsetup bitlkOpen IMAGE NAME` decrypts it"),
    row(0, b"LABELONE", "an LVM physical volume", LVM),
    row(512, b"LABELONE", "an LVM physical volume", LVM),
    row(1024, b"LABELONE", "an LVM physical volume", LVM),
    row(1536, b"LABELONE", "an LVM physical volume", LVM),
    row(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0", "a member of a Linux software RAID", RAID),
    row(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0", "a member of a Linux software RAID", RAID),
    row(0, b"\x1f\x8b\x08", "gzip-compressed", "`gzip -dc IMAGE > raw.img` unpacks it"),
    row(0, b"\xfd7zXZ\0", "xz-compressed", "`xz -dc IMAGE > raw.img` unpacks it"),
    row(0, b"\x28\xb5\x2f\xfd", "zstd-compressed", "`zstd -dc IMAGE > raw.img` unpacks it"),
    row(0, b"BZh", "bzip2-compressed", "`bzip2 -dc IMAGE > raw.img` unpacks it"),
    row(0, b"\x04\x22\x4d\x18", "lz4-compressed", "`lz4 -dc IMAGE > raw.img` unpacks it"),
    row(0, b"\x02\x21\x4c\x18", "lz4-compressed", "`lz4 -dc IMAGE > raw.img` unpacks it"),
    row(0, b"LZIP", "lzip-compressed", "`lzip -dc IMAGE > raw.img` unpacks it"),
    row(0, b"\x89LZO\0\r\n\x1a\n", "lzop-compressed", "`lzop -dc IMAGE > raw.img` unpacks it"),
    row(0, b"PK\x03\x04", "a zip archive", "`unzip IMAGE` unpacks it"),
    row(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "`7z x IMAGE` unpacks it"),
    row(0, b"Rar!\x1a\x07", "a RAR archive", "`unrar x IMAGE` unpacks it"),
    row(257, b"ustar", "a tar archive", "`extant build --tar IMAGE -o raw.img` makes an image of it"),
    row(0, b"070701", "a cpio archive", "`cpio -id < IMAGE` unpacks it"),
    row(0, b"!<arch>\n", "an ar archive", "`ar x IMAGE` unpacks it"),
    row(
        0,
        b"version https://git-lfs",
        "a Git LFS pointer",
        "`git lfs pull` fetches the file that it stands for",
    ),
    row(0, b"\x7fELF", "a program (ELF)", "an ext4 image is needed"),
    row(0, b"XFSB", "an XFS file system", MOUNT),
    row(
        0x1_0040,
        b"_BHRfS_M",
        "a Btrfs file system",
        "mount it with the kernel's driver, or use `btrfs restore`",
    ),
    row(0, b"hsqs", "a SquashFS file system", "`unsquashfs IMAGE` unpacks it"),
    row(0, b"sqsh", "a SquashFS file system", "`unsquashfs IMAGE` unpacks it"),
    row(1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system", "`fsck.erofs --extract=DIR IMAGE` unpacks it"),
    row(1024, b"\x10\x20\xf5\xf2", "an F2FS file system", MOUNT),
    row(3, b"NTFS    ", "an NTFS file system", MOUNT),
    row(3, b"EXFAT   ", "an exFAT file system", MOUNT),
    row(82, b"FAT32   ", "a FAT file system", DOS),
    row(54, b"FAT16   ", "a FAT file system", DOS),
    row(54, b"FAT12   ", "a FAT file system", DOS),
    row(
        0x8001,
        b"CD001",
        "an ISO 9660 file system",
        "`xorriso -osirrox on -indev IMAGE -extract / DIR` unpacks it",
    ),
    row(0x8001, b"BEA01", "a UDF file system", MOUNT),
    row(0x8000, b"JFS1", "a JFS file system", MOUNT),
    row(0x1_0034, b"ReIsEr", "a ReiserFS file system", MOUNT),
    row(1024 + 6, b"\x34\x34", "a NILFS2 file system", MOUNT),
    row(4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f", "a bcachefs file system", MOUNT),
    row(4096 + 24, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9", "a bcachefs file system", MOUNT),
    row(
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf7\x7f",
        "a bcache device",
        "register it; use /dev/bcacheN",
    ),
    row(32, b"NXSB", "an APFS container", "apfs-fuse reads it"),
    row(1024, b"H+", "an HFS+ file system", MOUNT),
    row(1024, b"HX", "an HFS+ file system", MOUNT),
    row(0, b"\x45\x3d\xcd\x28", "a cramfs file system", MOUNT),
    row(0, b"-rom1fs-", "a romfs file system", MOUNT),
    row(0, b"UBI#", "a UBI image", UBI),
    row(0, b"\x31\x18\x10\x06", "a UBIFS file system", UBI),
    row(0, b"\x85\x19", "a JFFS2 file system", "jefferson unpacks it"),
    row(4096 - 10, b"SWAPSPACE2", "swap space", "there are no files in it"),
];

const LVM: &str = "`vgchange -ay` brings its logical volumes up; the file system is on /dev/VG/LV";

/// The format of the device's contents, if its start (or its end) matches a row of the table.
#[must_use]
pub fn identify(device: &dyn Device) -> Option<&'static Foreign> {
    TABLE.iter().find(|row| holds(device, row)).map(|row| &row.is)
}

fn holds(device: &dyn Device, row: &Row) -> bool {
    let offset = match row.at {
        At::Start(offset) => Some(offset),
        At::End(before) => device.size_bytes().checked_sub(before),
    };
    let Some(offset) = offset else { return false };
    let mut bytes = [0; MAGIC_LEN_MAX];
    let bytes = &mut bytes[..row.magic.len()];
    let inside = offset.saturating_add(bytes.len() as u64) <= device.size_bytes();
    inside && device.read_at(offset, bytes).is_ok() && bytes == row.magic
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;

    /// Each row alone on a device: the result is that row's format. No earlier row shadows it.
    #[test]
    fn every_row_is_recognised_and_shadowed_by_none() {
        for row in TABLE {
            let device = MemDevice::new(1 << 17);
            let at = match row.at {
                At::Start(at) => at,
                At::End(before) => device.size_bytes() - before,
            };
            device.write_at(at, row.magic).unwrap();
            assert_eq!(identify(&device), Some(&row.is), "{}", row.is);
        }
    }

    /// A truncated download may be shorter than any offset of the table: nothing is read past the end.
    #[test]
    fn short_and_unknown_devices_are_nothing() {
        assert_eq!(identify(&MemDevice::new(0)), None);
        assert_eq!(identify(&MemDevice::new(3)), None);
        assert_eq!(identify(&MemDevice::new(1 << 17)), None);
        let short = MemDevice::new(3);
        short.write_at(0, b"\x1f\x8b\x08").unwrap();
        assert_eq!(identify(&short).map(|found| found.name), Some("gzip-compressed"));
    }
}
