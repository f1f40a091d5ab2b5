//! The remedy for a path that is not in an image.
//!
//! Does **not** own: the distance between names (see [`near`]).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use extant::walk::Order;
use extant::{FileSystem, FileType, Follow};

use super::{below, shown};
use crate::inspect::format::escape;
use crate::usage::near::{self, NAMES_MAX};

/// The remedy for a path that is not in an image: a similar path that is, or the command that lists the
/// deepest directory. `image`: the image as the command line spells it.
pub(super) fn remedy(image: &str, fs: &FileSystem, path: &[u8]) -> String {
    let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).collect();
    let mut dir = b"/".to_vec();
    for (at, part) in parts.iter().enumerate() {
        let next = below(&dir, part);
        if fs.resolve(OsStr::from_bytes(&next), Follow::Links).is_ok() {
            dir = next;
            continue;
        }
        let names = names_in(fs, &dir);
        let near = str::from_utf8(part).ok().and_then(|part| near::nearest(part, names));
        let meant = near.map(|near| below(&below(&dir, near.as_bytes()), &parts[at + 1..].join(&b'/')));
        match meant.filter(|meant| fs.resolve(OsStr::from_bytes(meant), Follow::Links).is_ok()) {
            Some(meant) => return format!("did you mean {}?", shown(image, &meant)),
            None => break,
        }
    }
    format!("`extant ls {}:{}` lists what is there", escape(image.as_bytes()), escape(&dir))
}

/// The names in a directory of an image, as far as they can be read and are UTF-8.
fn names_in(fs: &FileSystem, dir: &[u8]) -> Vec<String> {
    let Ok(inode) = fs.resolve(OsStr::from_bytes(dir), Follow::Links) else { return Vec::new() };
    if inode.kind() != FileType::Directory {
        return Vec::new();
    }
    let walk = fs.walk_inode(inode).order(Order::Names).inodes(false).depth_max(1);
    let entries = walk.into_iter().filter_map(Result::ok).filter(|entry| entry.depth() == 1).take(NAMES_MAX);
    entries.filter_map(|entry| String::from_utf8(entry.name().to_vec()).ok()).collect()
}
