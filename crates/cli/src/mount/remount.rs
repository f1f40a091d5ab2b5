//! `extant mount -o remount,...`: switches of a mount that stands. Whatever else is asked for has to be as it is already: mount(8)
//! repeats all options that it finds in the table of mounts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use device::mount_table::mounted_at;
use fuse::{Remount, remount};

use super::MountError;
use crate::exit;

/// Is it not a new mount that is asked for?
pub(super) fn is_asked(lists: &[OsString]) -> bool {
    words(lists).any(|word| word == b"remount")
}

fn words(lists: &[OsString]) -> impl Iterator<Item = &[u8]> {
    lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b','))
}

pub(super) fn run(dir: &Path, lists: &[OsString]) -> Result<(), MountError> {
    let fail = |text: &dyn std::fmt::Display| MountError::new(exit::TARGET, text);
    let dir = dir.canonicalize().map_err(|error| fail(&format_args!("{}: {error}", dir.display())))?;
    let entry = mounted_at(&dir).map_err(|error| fail(&error))?;
    let there = entry.map(|entry| entry.options).unwrap_or_default();
    let change = parse(lists, &there)
        .map_err(|text| MountError::new(exit::USAGE_CODE, format!("-o remount: {text}")))?;
    remount(&dir, change).map_err(|fault| fail(&fault))
}

/// What the words change; `there`: the options that it has.
fn parse(lists: &[OsString], there: &str) -> Result<Remount, String> {
    let mut change = Remount::default();
    for word in words(lists) {
        match word {
            b"ro" => change.read_only = Some(true),
            b"rw" => change.read_only = Some(false),
            b"dev" | b"nodev" => change.dev = Some(word == b"dev"),
            b"suid" | b"nosuid" => change.suid = Some(word == b"suid"),
            b"exec" | b"noexec" => change.exec = Some(word == b"exec"),
            b"" | b"remount" | b"defaults" | b"noatime" | b"relatime" | b"async" => {}
            same if there.split(',').any(|option| option.as_bytes() == same) => {}
            other => {
                let word = String::from_utf8_lossy(other);
                return Err(format!(
                    "\"{word}\" cannot be changed while it is mounted; unmount it, and mount it anew"
                ));
            }
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_change_and_all_else_is_as_it_was() {
        let there = "rw,nosuid,nodev,relatime,rw,user_id=0,group_id=0,allow_other,max_read=1048576";
        let parsed = |text: &str| parse(&[text.into()], there);
        let change = parsed(&format!("{there},remount,ro,exec")).unwrap();
        let expected =
            Remount { read_only: Some(true), dev: Some(false), suid: Some(false), exec: Some(true) };
        assert_eq!(change, expected);
        assert_eq!(parsed("remount"), Ok(Remount::default()));
        assert!(parsed("remount,noload").unwrap_err().contains("noload"));
        assert!(is_asked(&["a,remount".into()]) && !is_asked(&["remounts".into()]));
    }
}
