//! Reads everything of an image, whatever its bytes: the readers must succeed or fail in bounded time.

use std::collections::HashSet;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::Device;
use extant_ondisk::filetype::FileType;
use extant_volume::{Cursor, Follow, Inode, OpenOptions, Seek, Volume};

/// Maximum number of directories, entries and extents to read: a damaged image may claim billions.
const BUDGET: usize = 20_000;
/// Maximum number of bytes to read of each file.
const READ_MAX: usize = 64 << 10;

/// Result of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walked {
    /// Whether the image opened.
    pub opened: bool,
    /// Directory entries read.
    pub entries: usize,
    /// Calls that returned an error.
    pub errors: usize,
}

/// Opens the image and reads all names, attributes and maps, and some content.
pub fn walk(device: Arc<dyn Device>) -> Walked {
    let mut walked = Walked::default();
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
    let Ok(volume) = Volume::open_read_only(device, &options) else { return walked };
    walked.opened = true;
    walked.errors += usize::from(volume.statfs().is_err());
    let mut seen = HashSet::new();
    let mut dirs = vec![Ino::ROOT];
    let mut left = BUDGET;
    while let Some(ino) = dirs.pop() {
        let Ok(dir) = volume.inode(ino) else {
            walked.errors += 1;
            continue;
        };
        look(&volume, &dir, &mut left, &mut walked);
        if dir.kind() != FileType::Directory {
            continue;
        }
        let mut names: Vec<(Vec<u8>, Ino)> = Vec::new();
        let mut damaged = 0;
        let mut position = Cursor::START;
        // Reads in several calls, like a mount.
        loop {
            let before = names.len();
            let (from, mut piece) = (position, 0);
            let listed = volume.names().read_dir(
                &dir,
                from,
                &mut |entry| {
                    names.push((entry.name.to_vec(), entry.ino));
                    position = entry.next;
                    piece += 1;
                    if piece >= 100 || names.len() >= left {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                },
                &mut |_| damaged += 1,
            );
            walked.errors += usize::from(listed.is_err());
            if listed.is_err() || names.len() == before || names.len() >= left {
                break;
            }
        }
        left = left.saturating_sub(names.len());
        walked.entries += names.len();
        walked.errors += damaged;
        for (name, ino) in names {
            let found = volume.names().lookup(&dir, &name);
            walked.errors += usize::from(found.is_err());
            let is_dots = name == b"." || name == b"..";
            if !is_dots && seen.insert(ino) && left > 0 {
                dirs.push(ino);
            }
        }
        let _ = volume.names().lookup(&dir, b"no such name");
    }
    let _ = volume.names().resolve(b"/a/b/../c", Follow::Links);
    walked
}

fn look(volume: &Volume, inode: &Inode, left: &mut usize, walked: &mut Walked) {
    let _ = volume.attributes().stat(inode);
    walked.errors += usize::from(volume.attributes().xattrs(inode).is_err());
    walked.errors += usize::from(volume.attributes().xattr_names(inode).is_err());
    let _ = volume.attributes().xattr(inode, b"user.no");
    match inode.kind() {
        FileType::Symlink => walked.errors += usize::from(volume.files().read_link(inode).is_err()),
        FileType::Regular => {
            let mut buf = vec![0; READ_MAX];
            let end = inode.size().saturating_sub(READ_MAX as u64 / 2);
            for offset in [0, inode.size() / 2, end, inode.size()] {
                walked.errors += usize::from(volume.files().read(inode, offset, &mut buf).is_err());
            }
            for what in [Seek::Data, Seek::Hole] {
                let _ = volume.files().seek(inode, 0, what);
                let _ = volume.files().seek(inode, inode.size() / 2, what);
            }
        }
        _ => {}
    }
    let listed = volume.files().extents(inode, 0, u64::MAX, &mut |_| {
        *left = left.saturating_sub(1);
        (*left > 0).then_some(())
    });
    walked.errors += usize::from(listed.is_err());
}

/// Runs the checker over the image with one thread. Returns the codes of the errors that it found (none for a
/// sound image), or `None` if the image cannot be opened.
pub fn verify(device: &dyn Device) -> Option<Vec<&'static str>> {
    let options = extant_check::Options { threads: NonZero::new(1), ..extant_check::Options::default() };
    let report = extant_check::check(device, &options).ok().filter(|report| report.opened)?;
    let errors =
        report.findings.iter().filter(|finding| finding.rule.severity != extant_check::Severity::Note);
    Some(errors.map(|finding| finding.rule.code).collect())
}
