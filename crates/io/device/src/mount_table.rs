//! The mount table of a process, as /proc/self/mountinfo shows it.
//!
//! Source: kernel Documentation/filesystems/proc.rst, section 3.5.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file-system type of extant's FUSE mounts in the kernel, unless another subtype was chosen.
pub const TYPE: &str = "fuse.extant";

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountEntry {
    /// The ID of this mount; a bind mount of it has another ID.
    pub id: u64,
    /// The ID of the parent mount.
    pub parent: u64,
    /// Major and minor number of the mount's device; for FUSE 0 and a unique number.
    pub device: (u32, u32),
    /// The mount point, an absolute path.
    pub dir: PathBuf,
    /// "fuse.extant".
    pub fs_type: String,
    /// The mounted image.
    pub source: OsString,
    /// The mount's options, then the file system's, separated by commas.
    pub options: String,
    /// Whether changes reach the file system. A single mount of it may still be read-only.
    pub is_writable: bool,
}

/// The topmost mount on exactly this directory (an absolute path without symbolic links).
///
/// # Errors
/// The table cannot be read.
pub fn mounted_at(dir: &Path) -> io::Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().rfind(|entry| entry.dir == dir))
}

/// All mounts that this process sees, later ones on top of earlier ones.
///
/// # Errors
/// The table cannot be read.
pub fn mounts() -> io::Result<Vec<MountEntry>> {
    mounts_of("self")
}

/// All mounts that another process sees. `process` is its ID.
///
/// # Errors
/// The process has ended, or its table cannot be read.
pub fn mounts_of(process: &str) -> io::Result<Vec<MountEntry>> {
    let table = std::fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(table.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// `36 35 0:45 / /mnt rw,noatime master:1 - fuse.extant /images/a.img rw,user_id=0`
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(words.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = std::str::from_utf8(words.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let dir = unescape(words.nth(1)?);
    let of_mount = String::from_utf8_lossy(words.next()?);
    // Optional fields end at a single dash.
    words.find(|word| *word == b"-")?;
    let fs_type = String::from_utf8_lossy(words.next()?).into_owned();
    let source = OsString::from_vec(unescape(words.next()?));
    let of_fs = String::from_utf8_lossy(words.next()?);
    let is_writable = of_fs.split(',').any(|option| option == "rw");
    let options = format!("{of_mount},{of_fs}");
    let device = (major.parse().ok()?, minor.parse().ok()?);
    let dir = OsString::from_vec(dir).into();
    Some(MountEntry { id, parent, device, dir, fs_type, source, options, is_writable })
}

/// Blank, tab, newline and backslash are escaped as a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = (first == b'\\').then(|| behind.get(..3)).flatten();
        let value = octal
            .filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)))
            .map(|digits| digits.iter().fold(0u32, |sum, digit| sum << 3 | u32::from(digit - b'0')))
            .and_then(|value| u8::try_from(value).ok());
        match value {
            Some(byte) => {
                plain.push(byte);
                rest = &behind[3..];
            }
            None => {
                plain.push(first);
                rest = behind;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_understood_with_blanks_in_its_path() {
        let line = br"36 35 0:45 / /mnt/a\040b\134c rw,noatime master:1 shared:2 - fuse.extant /i/x\011.img ro,user_id=0";
        let entry = parse(line).unwrap();
        assert_eq!(entry.device, (0, 45));
        assert_eq!(entry.dir, Path::new(r"/mnt/a b\c"));
        assert_eq!(entry.fs_type, TYPE);
        assert_eq!(entry.source, "/i/x\t.img");
        assert_eq!(entry.options, "rw,noatime,ro,user_id=0");
        assert_eq!((entry.id, entry.parent, entry.is_writable), (36, 35, false));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"36 35 0:45 / /mnt rw"), None);
        assert_eq!(unescape(br"a\999b\"), br"a\999b\");
    }

    #[test]
    fn the_root_is_mounted_somewhere_and_a_file_is_not() {
        assert!(mounted_at(Path::new("/proc")).unwrap().is_some());
        assert_eq!(mounted_at(Path::new("/proc/self/no-such-thing")).unwrap(), None);
    }
}
