//! Is a file in use by the kernel, as the storage of a loop device that is mounted?
//!
//! Owns: the question. Does **not** own: locks between programs (see [`FileDevice`](crate::FileDevice)), block devices, whose
//! users the kernel itself tells apart.
//!
//! What cannot be read (no sysfs, another mount namespace) counts as not in use: this is a guard against a mistake, and the
//! kernel offers nothing better for files.
//!
//! Source: `Documentation/ABI/testing/sysfs-block` (dev), proc(5) (mountinfo); `loop/backing_file` is shown by losetup.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A loop device that is mounted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoopMount {
    /// `/dev/loop3`, or a partition of it.
    pub(crate) device: PathBuf,
    /// Where it is mounted.
    pub(crate) on: PathBuf,
}

/// The mount of a loop device that stores in this file, if there is one.
pub(crate) fn loop_mount_of(file: &fs::Metadata) -> Option<LoopMount> {
    let blocks = fs::read_dir("/sys/block").ok()?;
    for block in blocks.flatten() {
        if !block.file_name().as_bytes().starts_with(b"loop") || !stores_in(&block.path(), file) {
            continue;
        }
        let mounts = fs::read("/proc/self/mountinfo").ok()?;
        if let Some(found) = mounted(&block.path(), &mounts) {
            return Some(found);
        }
    }
    None
}

fn stores_in(block: &Path, file: &fs::Metadata) -> bool {
    // Devices without a file have no such attribute.
    let Ok(text) = fs::read(block.join("loop/backing_file")) else { return false };
    let path = text.strip_suffix(b"\n").unwrap_or(&text);
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (file.dev(), file.ino()))
}

/// Looks for a block device, or one of its partitions, among the lines of mountinfo.
fn mounted(block: &Path, mountinfo: &[u8]) -> Option<LoopMount> {
    let mut candidates = vec![block.to_owned()];
    let below = fs::read_dir(block).into_iter().flatten().flatten().map(|entry| entry.path());
    candidates.extend(below.filter(|path| path.join("partition").exists()));
    for candidate in candidates {
        let Ok(number) = fs::read_to_string(candidate.join("dev")) else { continue };
        if let Some(on) = mount_point(mountinfo, number.trim()) {
            let device = Path::new("/dev").join(candidate.file_name().unwrap_or_default());
            return Some(LoopMount { device, on });
        }
    }
    None
}

/// The first mount point of the device `major:minor`. A line is `id parent major:minor root point options ...`.
fn mount_point(mountinfo: &[u8], number: &str) -> Option<PathBuf> {
    mountinfo.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ').skip(2);
        let of_device = fields.next()? == number.as_bytes();
        let point = fields.nth(1)?;
        of_device.then(|| PathBuf::from(std::ffi::OsString::from_vec(unescaped(point))))
    })
}

/// mountinfo writes blanks, tabs, newlines and backslashes as `\ooo`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        rest = after;
        plain.push(*first);
        if *first == b'\\'
            && let Some((digits, behind)) = after.split_at_checked(3)
            && let Some(byte) = octal(digits)
        {
            plain.pop();
            plain.push(byte);
            rest = behind;
        }
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_found_by_its_device_number() {
        let lines = b"22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
            35 22 7:3 / /mnt/a\\040b\\134 rw shared:1 - ext4 /dev/loop3 rw\n\
            36 22 7:30 / /other rw - ext4 /dev/loop30 rw\nshort\n";
        assert_eq!(mount_point(lines, "7:3"), Some(PathBuf::from("/mnt/a b\\")));
        assert_eq!(mount_point(lines, "7:30"), Some(PathBuf::from("/other")));
        assert_eq!(mount_point(lines, "7:4"), None);
        assert_eq!(unescaped(b"\\"), b"\\");
        assert_eq!(unescaped(b"\\9999"), b"\\9999");
    }

    #[test]
    fn a_file_that_no_loop_device_has_is_not_in_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(loop_mount_of(&file.as_file().metadata().unwrap()), None);
    }
}
