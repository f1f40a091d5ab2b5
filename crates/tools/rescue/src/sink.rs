//! Where rescued files go: a directory or a tar archive.
//!
//! Invariants
//! 1. INV-RS3: a directory sink creates every name itself, with `O_CREAT|O_EXCL` and the like, below
//!    directories that it created. So no symbolic link of the image leads out of it.

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::Inode;
use extant_tarout::{Begun, DataRun, Entry, Kind, TarFault, TarWriter, Time, Xattr};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use crate::ground::Ground;
use crate::maps::Map;
use crate::{FoundFile, RescueFault, content};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;

/// A file with all that is known of it.
pub struct Item<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) found: &'a FoundFile,
    pub(crate) inode: &'a Inode,
    /// The bytes of the inode.
    pub(crate) bytes: &'a [u8],
    pub(crate) map: &'a Map,
    /// The path of another name of the same file, which was written before.
    pub(crate) link: Option<Vec<u8>>,
    /// Bytes that the device did not return; they are zeros in the output.
    pub(crate) lost: Cell<u64>,
}

/// Data of a file.
struct Piece {
    offset: u64,
    len: u64,
    from: Source,
}

enum Source {
    Block(u64),
    Bytes(Vec<u8>),
}

impl Item<'_> {
    /// The data of a regular file: without holes and unwritten extents, within its size.
    fn pieces(&self) -> Vec<Piece> {
        if self.inode.has_flag(extant_ondisk::inode::flags::INLINE_DATA) {
            let bytes = content::inline(self.inode, self.bytes).unwrap_or_default();
            let len = bytes.len() as u64;
            let piece = Piece { offset: 0, len, from: Source::Bytes(bytes) };
            return if len == 0 { Vec::new() } else { vec![piece] };
        }
        let bs = self.ground.geometry.block_size.bytes();
        let size = self.inode.size;
        let mut pieces: Vec<Piece> = Vec::new();
        for run in self.map.runs.iter().filter(|run| !run.unwritten) {
            let offset = run.lblk * bs;
            let len = (run.len * bs).min(size.saturating_sub(offset));
            let follows = pieces.last().is_none_or(|last| last.offset + last.len <= offset);
            if len > 0 && follows {
                pieces.push(Piece { offset, len, from: Source::Block(run.pblk) });
            }
        }
        pieces
    }

    /// Passes the data of a piece on, in order.
    fn read(&self, piece: &Piece, to: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        let first = match &piece.from {
            Source::Bytes(bytes) => return to(piece.offset, bytes),
            Source::Block(block) => *block,
        };
        let bs = self.ground.geometry.block_size.len();
        let mut buf = vec![0; CHUNK.max(bs)];
        let mut done = 0;
        while done < piece.len {
            let len = (piece.len - done).min(buf.len() as u64) as usize;
            let part = &mut buf[..len];
            let block = first + done / bs as u64;
            if self.ground.read_data(block, part).is_none() {
                self.read_by_blocks(block, part);
            }
            to(piece.offset + done, part)?;
            done += len as u64;
        }
        Ok(())
    }

    /// Reads block by block, so that one that cannot be read loses only itself.
    fn read_by_blocks(&self, first: u64, part: &mut [u8]) {
        let bs = self.ground.geometry.block_size.len();
        for (block, bytes) in (first..).zip(part.chunks_mut(bs)) {
            if self.ground.read_data(block, bytes).is_none() {
                bytes.fill(0);
                self.lost.set(self.lost.get() + bytes.len() as u64);
            }
        }
    }

    fn target(&self) -> Vec<u8> {
        content::target(self.ground, self.inode, self.bytes, self.map).unwrap_or_default()
    }
}

/// Takes rescued files.
pub trait RescueSink {
    /// Writes a file. Its directory comes before.
    ///
    /// # Errors
    /// The output cannot be written.
    fn put(&mut self, item: &Item<'_>) -> Result<(), RescueFault>;
}

/// Takes nothing: files are listed only.
impl RescueSink for () {
    fn put(&mut self, _item: &Item<'_>) -> Result<(), RescueFault> {
        Ok(())
    }
}

/// Writes a tar archive.
pub struct TarSink<W: Write> {
    writer: TarWriter<W>,
}

impl<W: Write> TarSink<W> {
    /// An archive on `output`.
    pub fn new(output: W) -> Self {
        Self { writer: TarWriter::new(output) }
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// The output cannot be written.
    pub fn finish(self) -> Result<W, RescueFault> {
        self.writer.finish().map_err(archive)
    }
}

fn archive(fault: TarFault) -> RescueFault {
    let error = match fault {
        TarFault::Io(error) => error,
        other => io::Error::other(other.to_string()),
    };
    RescueFault::Output("archive".to_owned(), error)
}

impl<W: Write> RescueSink for TarSink<W> {
    fn put(&mut self, item: &Item<'_>) -> Result<(), RescueFault> {
        let inode = item.inode;
        let path = item.found.path.join(&b'/');
        let pieces = if item.found.kind == FileType::Regular { item.pieces() } else { Vec::new() };
        let runs: Vec<DataRun> =
            pieces.iter().map(|piece| DataRun { offset_bytes: piece.offset, len_bytes: piece.len }).collect();
        let target = item.target();
        let (major, minor) = inode.device();
        let kind = match (&item.link, item.found.kind) {
            (Some(path), _) => Kind::HardLink(path),
            (None, FileType::Directory) => Kind::Directory,
            (None, FileType::Symlink) => Kind::Symlink(&target),
            (None, FileType::CharDevice) => Kind::CharDevice { major, minor },
            (None, FileType::BlockDevice) => Kind::BlockDevice { major, minor },
            (None, FileType::Fifo) => Kind::Fifo,
            (None, FileType::Socket) => Kind::Socket,
            (None, _) => Kind::File { size_bytes: inode.size, runs: Some(&runs) },
        };
        let attributes = content::attributes(item.ground, inode, item.bytes);
        let xattrs: Vec<Xattr<'_>> = attributes.iter().map(|(name, value)| Xattr { name, value }).collect();
        let mtime = Time { seconds: inode.mtime.seconds, nanos: inode.mtime.nanos };
        let entry = Entry {
            mode: inode.mode & 0o7777,
            uid: inode.uid,
            gid: inode.gid,
            xattrs: if item.link.is_some() { &[] } else { &xattrs },
            ..Entry::new(&path, kind, mtime)
        };
        let begun = self.writer.entry(&entry).map_err(archive)?;
        let mut at = 0;
        for piece in &pieces {
            if begun.data_bytes() == 0 {
                break;
            }
            if matches!(begun, Begun::Whole(_)) && piece.offset > at {
                self.writer.zeros(piece.offset - at).map_err(archive)?;
            }
            let mut fault = None;
            let result = item.read(piece, &mut |_, bytes| {
                self.writer.data(bytes).map_err(|error| {
                    fault = Some(error);
                    io::Error::other("archive")
                })
            });
            if let Some(error) = fault {
                return Err(archive(error));
            }
            result.map_err(|error| RescueFault::Output("archive".to_owned(), error))?;
            at = piece.offset + piece.len;
        }
        if let Begun::Whole(bytes) = begun
            && bytes > at
        {
            self.writer.zeros(bytes - at).map_err(archive)?;
        }
        Ok(())
    }
}

/// Fills a directory.
pub struct DirectorySink {
    root: PathBuf,
    /// Directories that this sink created.
    made: HashSet<Vec<u8>>,
    /// Modes and times of directories, which are set at the end.
    pending: Vec<(PathBuf, Inode)>,
    /// Owners and attributes that this user may not set.
    pub refused: u64,
}

impl DirectorySink {
    /// An existing directory, which must be empty.
    ///
    /// # Errors
    /// It is not empty, or cannot be read.
    pub fn new(root: &Path) -> Result<Self, RescueFault> {
        let output = |error| RescueFault::Output(root.display().to_string(), error);
        if fs::read_dir(root).map_err(output)?.next().is_some() {
            return Err(output(io::Error::new(
                io::ErrorKind::DirectoryNotEmpty,
                "it is not empty; name a new directory, or an empty one",
            )));
        }
        let made = HashSet::from([Vec::new()]);
        Ok(Self { root: root.to_owned(), made, pending: Vec::new(), refused: 0 })
    }

    /// Sets modes and times of the directories.
    ///
    /// # Errors
    /// A directory cannot be changed.
    pub fn finish(mut self) -> Result<u64, RescueFault> {
        while let Some((path, inode)) = self.pending.pop() {
            self.set_metadata(&path, &inode, &[])
                .map_err(|error| RescueFault::Output(path.display().to_string(), error))?;
        }
        Ok(self.refused)
    }

    fn at(&self, path: &[Vec<u8>]) -> PathBuf {
        path.iter().fold(self.root.clone(), |at, name| at.join(OsStr::from_bytes(name)))
    }

    /// Creates the directories of a path that no rescued directory stands for.
    fn make_parents(&mut self, path: &[Vec<u8>]) -> io::Result<()> {
        for len in 1..path.len() {
            let key = path[..len].join(&b'/');
            if !self.made.contains(&key) {
                fs::create_dir(self.at(&path[..len]))?;
                self.made.insert(key);
            }
        }
        Ok(())
    }

    fn write(&mut self, item: &Item<'_>) -> io::Result<()> {
        let path = &item.found.path;
        self.make_parents(path)?;
        let at = self.at(path);
        let inode = item.inode;
        if let Some(link) = &item.link {
            let first: Vec<Vec<u8>> = link.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect();
            return fs::hard_link(self.at(&first), at);
        }
        let mode = Mode::from_raw_mode(0o600);
        match item.found.kind {
            FileType::Directory => {
                let key = path.join(&b'/');
                if self.made.insert(key) {
                    fs::create_dir(&at)?;
                }
                self.pending.push((at, inode.clone()));
                return Ok(());
            }
            FileType::Symlink => std::os::unix::fs::symlink(OsStr::from_bytes(&item.target()), &at)?,
            FileType::Fifo => rustix::fs::mknodat(CWD, &at, rustix::fs::FileType::Fifo, mode, 0)?,
            FileType::Socket => return Ok(()),
            FileType::CharDevice | FileType::BlockDevice => {
                let (major, minor) = inode.device();
                let kind = match item.found.kind {
                    FileType::CharDevice => rustix::fs::FileType::CharacterDevice,
                    _ => rustix::fs::FileType::BlockDevice,
                };
                let device = rustix::fs::makedev(major, minor);
                if rustix::fs::mknodat(CWD, &at, kind, mode, device).is_err() {
                    self.refused += 1;
                    return Ok(());
                }
            }
            _ => {
                let file = File::options().write(true).create_new(true).mode(0o600).open(&at)?;
                for piece in item.pieces() {
                    item.read(&piece, &mut |offset, bytes| file.write_all_at(bytes, offset))?;
                }
                file.set_len(inode.size)?;
            }
        }
        self.set_metadata(&at, inode, &content::attributes(item.ground, inode, item.bytes))
    }

    /// Sets owner, attributes, mode and times, in this order; the first two as far as this user may.
    fn set_metadata(
        &mut self,
        at: &Path,
        inode: &Inode,
        attributes: &[(Vec<u8>, Vec<u8>)],
    ) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(inode.uid), Gid::from_raw(inode.gid));
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        if rustix::fs::chownat(CWD, at, Some(uid), Some(gid), no_follow).is_err() {
            self.refused += 1;
        }
        for (name, value) in attributes {
            let name = OsStr::from_bytes(name);
            if rustix::fs::lsetxattr(at, name, value, XattrFlags::empty()).is_err() {
                self.refused += 1;
            }
        }
        if FileType::from_mode(inode.mode) != FileType::Symlink {
            let mode = Mode::from_raw_mode(u32::from(inode.mode & 0o7777));
            rustix::fs::chmodat(CWD, at, mode, AtFlags::empty())?;
        }
        let time = |time: extant_ondisk::time::Timestamp| Timespec {
            tv_sec: time.seconds,
            tv_nsec: i64::from(time.nanos),
        };
        let times = Timestamps { last_access: time(inode.atime), last_modification: time(inode.mtime) };
        Ok(rustix::fs::utimensat(CWD, at, &times, no_follow)?)
    }
}

impl RescueSink for DirectorySink {
    fn put(&mut self, item: &Item<'_>) -> Result<(), RescueFault> {
        self.write(item).map_err(|error| {
            let shown = String::from_utf8_lossy(&item.found.shown()).into_owned();
            RescueFault::Output(shown, error)
        })
    }
}
