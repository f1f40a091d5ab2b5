//! Output of names and inodes, for the commands that look into an image.

use std::io::{self, Write};

use extant::{FileType, InodeRef, Stat, Volume};
use serde_json::{Map, Value, json};

use crate::inspect::format::{flags_json, json_bytes, mode_letters, time_json};
use crate::schema::tagged;

/// A JSON list with one item per line; items are printed as they arrive.
///
/// Each item has the id of its schema.
pub(crate) struct JsonList<'w> {
    out: &'w mut dyn Write,
    schema: &'static str,
    used: bool,
}

impl<'w> JsonList<'w> {
    pub(crate) fn new(out: &'w mut dyn Write, schema: &'static str) -> Self {
        Self { out, schema, used: false }
    }

    pub(crate) fn item(&mut self, item: &Value) -> io::Result<()> {
        self.out.write_all(if self.used { b",\n" } else { b"[\n" })?;
        self.used = true;
        serde_json::to_writer(&mut self.out, &tagged(self.schema, item)).map_err(io::Error::from)
    }

    pub(crate) fn finish(self) -> io::Result<()> {
        self.out.write_all(if self.used { b"\n]\n" } else { b"[]\n" })?;
        self.out.flush()
    }
}

/// The file type in stat(1)'s words, such as `regular file`.
pub(crate) fn kind_words(stat: &Stat) -> &'static str {
    match stat.kind {
        FileType::Regular if stat.size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Unknown => "of no known type",
    }
}

/// Whether this is a device node.
pub(crate) fn is_device(kind: FileType) -> bool {
    matches!(kind, FileType::CharDevice | FileType::BlockDevice)
}

/// All stat fields, for JSON.
pub(crate) fn stat_json(stat: &Stat) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| drop(map.insert(key.to_owned(), value));
    put("type", stat.kind.to_string().into());
    put("inode", stat.ino.0.into());
    put("mode", format!("{:04o}", stat.mode & 0o7777).into());
    put("permissions", mode_letters(stat.mode).into());
    put("links", stat.links.into());
    put("uid", stat.uid.into());
    put("gid", stat.gid.into());
    put("size", stat.size.into());
    put("blocks_512", stat.blocks_512.into());
    if is_device(stat.kind) {
        put("device", json!({"major": stat.device.0, "minor": stat.device.1}));
    }
    put("atime", time_json(stat.atime));
    put("mtime", time_json(stat.mtime));
    put("ctime", time_json(stat.ctime));
    put("crtime", stat.crtime.map_or(Value::Null, time_json));
    put("generation", stat.generation.into());
    put("flags", flags_json(stat.flags, extant::flags::NAMES));
    put("project", stat.project.into());
    map
}

/// Adds a symbolic link's target; null if it cannot be read.
pub(crate) fn put_target(map: &mut Map<String, Value>, volume: &Volume, inode: &InodeRef) {
    if inode.kind() == FileType::Symlink {
        let target = volume.files().read_link(inode).map_or(Value::Null, |target| json_bytes(&target));
        map.insert("target".to_owned(), target);
    }
}

/// A size as `ls -h` prints it, such as `1.5K`: one decimal below 10, rounded up.
pub(crate) fn short_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    let mut scale = 1u128;
    let bytes = u128::from(bytes);
    while bytes >= scale * 1024 && unit + 1 < UNITS.len() {
        scale *= 1024;
        unit += 1;
    }
    if unit == 0 {
        return bytes.to_string();
    }
    let tenths = (bytes * 10).div_ceil(scale);
    match tenths {
        0..100 => format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit]),
        _ if bytes.div_ceil(scale) == 1024 && unit + 1 < UNITS.len() => format!("1.0{}", UNITS[unit + 1]),
        _ => format!("{}{}", bytes.div_ceil(scale), UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sizes_are_those_of_ls() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) + 1, "11K"),
            ((1 << 20) - 1, "1.0M"),
            (3 << 30, "3.0G"),
        ] {
            assert_eq!(short_size(bytes), text, "{bytes}");
        }
    }
}
