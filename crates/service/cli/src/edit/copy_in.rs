//! Copies files and trees of the host into an image: `extant cp HOST... IMG:PATH`.
//!
//! Owns: reading the host's files and creating them in the image. Does **not** own: copying out, with the
//! same choices (see [`host`](crate::look::host)).
//!
//! Invariants
//! 1. An existing file with the new name is replaced in one step, after the new file is complete. If a file
//!    cannot be copied completely, the old one stays. A directory is not replaced.
//! 2. A file that cannot be copied is reported, and the copy continues. A full image ends the copy.
//! 3. The times of a directory are set after everything in it was created.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;

use extant::{
    Error, Fault, FileSystem, FileType, Follow, Ino, InodeRef, New, Refusal, Rename, SetAttr, SetXattr,
    Timestamp,
};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::content::{PIECE, write_all};
use super::os;
use super::{FULL, UMASK, report};
use crate::exit;
use crate::inspect::format::escape;
use crate::look::host::{Choices, DestinationKind, Existing, NO_DIRECTORY};
use crate::look::progress::Progress;
use crate::look::{Session, below, code_of, shown};
use crate::voice::list;

/// The most temporary names to try for a file.
const TEMPORARY_TRIES: u32 = 1000;

/// Why a file was not copied.
enum Failure {
    /// The source cannot be read.
    Source(io::Error),
    /// The image refuses the change.
    Image(Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Source(error)
    }
}

impl From<Errno> for Failure {
    fn from(error: Errno) -> Self {
        Self::Source(error.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Image(error)
    }
}

struct Copy<'a> {
    session: &'a mut Session,
    image: String,
    fs: FileSystem,
    choices: Choices,
    recursive: bool,
    progress: Progress,
    buffer: Vec<u8>,
    /// Host files with several names, by device and inode number: the inode of the image that holds the copy,
    /// and its first name there.
    names: HashMap<(u64, u64), (Identity, Vec<u8>)>,
    is_full: bool,
}

/// Copies paths of the host to a path of an image.
pub(crate) fn copy_in(
    session: &mut Session,
    sources: &[OsString],
    destination: &OsStr,
    destination_kind: DestinationKind,
    choices: Choices,
    recursive: bool,
) {
    let Some(named) = session.named(destination) else { return };
    let there_is_dir = || {
        let there = named.fs.resolve(os(&named.path), Follow::Links);
        there.is_ok_and(|inode| inode.kind() == FileType::Directory)
    };
    let is_dir = destination_kind != DestinationKind::Name && there_is_dir();
    if destination_kind == DestinationKind::Directory && !is_dir {
        let why = format_args!("{}: {NO_DIRECTORY}", named.shown());
        return session.problem(exit::NOT_FOUND, why);
    }
    if sources.len() > 1 && !is_dir {
        let why = "several files need an existing directory to go to";
        return session.problem(exit::USAGE_CODE, format_args!("{}: {why}", named.shown()));
    }
    let mut copy = Copy {
        session,
        image: named.image.clone(),
        fs: named.fs.clone(),
        choices,
        recursive,
        progress: Progress::new("copying"),
        buffer: vec![0; PIECE],
        names: HashMap::new(),
        is_full: false,
    };
    for source in sources {
        let source = Path::new(source);
        let name = source.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').find(|part| !part.is_empty());
        let path = match name {
            // These have no name to create: their contents are copied.
            None | Some(b"." | b"..") => named.path.clone(),
            Some(name) if is_dir => below(
                named.path.strip_suffix(b"/").filter(|path| !path.is_empty()).unwrap_or(&named.path),
                name,
            ),
            Some(_) => named.path.clone(),
        };
        copy.tree(source, path);
        if copy.is_full {
            break;
        }
    }
}

/// Distinguishes an inode from a later one with its number.
type Identity = (Ino, u32);

fn identity(inode: &InodeRef) -> Identity {
    (inode.ino(), inode.fields().generation)
}

/// An unused name in the directory of `path`, for a file that is completed before it takes the name `path`.
pub(super) fn temporary(fs: &FileSystem, path: &[u8]) -> Result<Vec<u8>, Error> {
    let slash = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    for number in 0..TEMPORARY_TRIES {
        let place = [&path[..slash], format!(".extant-{number}").as_bytes()].concat();
        match fs.resolve(os(&place), Follow::NotTheLast) {
            Err(error) if error.is(Refusal::NotFound) => return Ok(place),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
    }
    Err(Error::At { path: path.to_vec(), fault: Refusal::Exists.into() })
}

/// Renames a file from its [`temporary`] name to its final one, replacing an existing file. The
/// temporary name is gone afterwards, even after an error.
pub(super) fn take_name(fs: &FileSystem, place: &[u8], path: &[u8]) -> Result<(), Error> {
    let moved = fs.rename_with(os(place), os(path), Rename::Replace);
    match fs.remove_file(os(place)) {
        // A rename between two names of one file leaves both.
        Err(error) if moved.is_ok() && !error.is(Refusal::NotFound) => Err(error),
        _ => moved,
    }
}

/// A directory that is being copied.
struct Dir {
    source: std::path::PathBuf,
    path: Vec<u8>,
    names: std::vec::IntoIter<OsString>,
    /// Set at the end; `None` for directories that existed before.
    metadata: Option<Metadata>,
}

impl Copy<'_> {
    /// Copies a file, or a directory with everything below it.
    fn tree(&mut self, source: &Path, path: Vec<u8>) {
        let metadata = if self.recursive { source.symlink_metadata() } else { source.metadata() };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => return self.report(source, &path, Failure::Source(error)),
        };
        if !metadata.is_dir() {
            return self.leaf(source, &path, &metadata);
        }
        if !self.recursive {
            let why = "is a directory; copy it with -r";
            return self.session.problem(exit::USAGE_CODE, format_args!("{}: {why}", source.display()));
        }
        let mut open: Vec<Dir> = self.enter(source.to_owned(), path, metadata).into_iter().collect();
        while let Some(dir) = open.last_mut() {
            let next = if self.is_full { None } else { dir.names.next() };
            let Some(name) = next else {
                if let Some(Dir { source, path, metadata: Some(metadata), .. }) = open.pop() {
                    let done = self.set_metadata(&source, &path, &metadata);
                    done.unwrap_or_else(|failure| self.report(&source, &path, failure));
                }
                continue;
            };
            let (source, path) = (dir.source.join(&name), below(&dir.path, name.as_bytes()));
            match source.symlink_metadata() {
                Err(error) => self.report(&source, &path, Failure::Source(error)),
                Ok(metadata) if metadata.is_dir() => open.extend(self.enter(source, path, metadata)),
                Ok(metadata) => self.leaf(&source, &path, &metadata),
            }
        }
    }

    /// Creates a directory, or uses the existing one.
    fn enter(&mut self, source: std::path::PathBuf, path: Vec<u8>, metadata: Metadata) -> Option<Dir> {
        let listed = std::fs::read_dir(&source).and_then(|names| {
            names.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()
        });
        let mut names = match listed {
            Ok(names) => names,
            Err(error) => {
                self.report(&source, &path, Failure::Source(error));
                return None;
            }
        };
        // Sorted, so that the same tree makes the same image.
        names.sort_unstable();
        let new = New { umask: UMASK, ..New::directory((metadata.mode() & 0o777) as u16) };
        let is_new = match self.fs.create_node(os(&path), &new) {
            Ok(_) => {
                self.session.did(&self.image);
                true
            }
            Err(error) if error.is(Refusal::Exists) && self.is_dir(&path) => false,
            Err(error) => {
                self.report(&source, &path, error.into());
                return None;
            }
        };
        self.progress.file();
        if is_new {
            self.list(&source, &path);
        }
        Some(Dir { source, path, names: names.into_iter(), metadata: is_new.then_some(metadata) })
    }

    fn is_dir(&self, path: &[u8]) -> bool {
        self.fs.resolve(os(path), Follow::Links).is_ok_and(|inode| inode.kind() == FileType::Directory)
    }

    /// Whether the image has a file of this name that the copy leaves as it is.
    fn stays(&self, path: &[u8], metadata: &Metadata) -> bool {
        let existing = self.choices.existing;
        if !matches!(existing, Existing::Keep | Existing::Update) {
            return false;
        }
        let Ok(inode) = self.fs.resolve(os(path), Follow::NotTheLast) else { return false };
        let attributes = self.fs.volume().attributes();
        let there = attributes.stat(&inode);
        let source = attributes.storable_time(timestamp(metadata.mtime(), metadata.mtime_nsec()));
        there.kind != FileType::Directory && existing.stays(source, there.mtime)
    }

    /// Copies a file that is not a directory.
    fn leaf(&mut self, source: &Path, path: &[u8], metadata: &Metadata) {
        if self.stays(path, metadata) {
            return;
        }
        match self.try_leaf(source, path, metadata) {
            Ok(()) => {
                self.session.did(&self.image);
                self.progress.file();
                self.list(source, path);
            }
            Err(failure) => self.report(source, path, failure),
        }
    }

    /// Prints a file that was copied, if the copy lists them.
    fn list(&self, source: &Path, path: &[u8]) {
        if self.choices.list {
            let source = escape(source.as_os_str().as_bytes());
            self.progress.suspend(|| list!("{source} -> {}", shown(&self.image, path)));
        }
    }

    fn try_leaf(&mut self, source: &Path, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        let id = (metadata.dev(), metadata.ino());
        let has_more_names = self.recursive && metadata.nlink() > 1;
        // Another source may have replaced the first name since.
        let is_there = |(became, first): &&(Identity, Vec<u8>)| {
            self.fs.resolve(os(first), Follow::NotTheLast).is_ok_and(|inode| identity(&inode) == *became)
        };
        let known = self.names.get(&id).filter(|_| has_more_names);
        let first = known.filter(is_there).map(|(_, first)| first.clone());
        // If the name is taken, the file is completed under a temporary name.
        let there = self.fs.resolve(os(path), Follow::NotTheLast);
        let place = match there {
            Ok(inode) if inode.kind() == FileType::Directory => {
                return Err(Error::At { path: path.to_vec(), fault: Refusal::IsDirectory.into() }.into());
            }
            Ok(_) if first.as_deref() == Some(path) => return Ok(()),
            Ok(_) => temporary(&self.fs, path)?,
            Err(error) if error.is(Refusal::NotFound) => path.to_vec(),
            Err(error) => return Err(error.into()),
        };
        let made = match &first {
            Some(first) => self.fs.hard_link(os(first), os(&place)).map_err(Failure::from),
            None => self.make(source, &place, metadata),
        };
        let moved = made.and_then(|()| match place == path {
            true => Ok(()),
            false => Ok(take_name(&self.fs, &place, path)?),
        });
        if moved.is_err() {
            // Only the file made here can have this name.
            let _ = self.fs.remove_file(os(&place));
        } else if has_more_names && first.is_none() {
            let inode = self.fs.resolve(os(path), Follow::NotTheLast)?;
            self.names.insert(id, (identity(&inode), path.to_vec()));
        }
        moved
    }

    fn make(&mut self, source: &Path, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        let kind = metadata.file_type();
        let mode = (metadata.mode() & 0o777) as u16;
        let new = New { umask: UMASK, ..New::file(mode) };
        let target;
        let special = |kind: FileType| New { kind, ..new };
        let new = match () {
            () if kind.is_file() => new,
            () if kind.is_symlink() => {
                target = std::fs::read_link(source)?.into_os_string().into_vec();
                New::symlink(&target)
            }
            () if kind.is_fifo() => special(FileType::Fifo),
            () if kind.is_socket() => special(FileType::Socket),
            () => {
                let number = metadata.rdev();
                let device = (rustix::fs::major(number), rustix::fs::minor(number));
                let kind = if kind.is_block_device() { FileType::BlockDevice } else { FileType::CharDevice };
                New { device, ..special(kind) }
            }
        };
        // Opened first: a file that cannot be read is not created.
        let file = if kind.is_file() { Some(File::open(source)?) } else { None };
        let ino = self.fs.create_node(os(path), &new)?.ino();
        if let Some(file) = &file {
            self.fill(file, path, ino)?;
        }
        self.set_metadata(source, path, metadata)
    }

    /// Copies the bytes of a file; holes stay holes.
    fn fill(&mut self, file: &File, path: &[u8], ino: extant_base::Ino) -> Result<(), Failure> {
        let failed = |fault: Fault| Failure::Image(Error::At { path: path.to_vec(), fault });
        let (mut at, mut end_of_data) = (0, 0);
        loop {
            if self.choices.sparse && at >= end_of_data {
                match seek(file, SeekFrom::Data(at)) {
                    Ok(start) => {
                        at = start;
                        end_of_data = seek(file, SeekFrom::Hole(start)).unwrap_or(u64::MAX);
                    }
                    // A hole up to the end.
                    Err(Errno::NXIO) => break,
                    Err(_) => end_of_data = u64::MAX,
                }
            }
            let len = if self.choices.sparse { end_of_data - at } else { u64::MAX };
            let len = usize::try_from(len).unwrap_or(PIECE).min(PIECE);
            let got = match file.read_at(&mut self.buffer[..len], at) {
                Ok(0) => break,
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            write_all(self.fs.volume(), ino, at, &self.buffer[..got]).map_err(failed)?;
            self.progress.bytes(got as u64);
            at += got as u64;
        }
        let size = file.metadata()?.len();
        if size > at {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.fs.volume().attributes().set_attr(ino, &set).map_err(failed)?;
        }
        Ok(())
    }

    /// Sets attributes, owner, mode and times, if they are to be preserved.
    fn set_metadata(&mut self, source: &Path, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        if !self.choices.metadata {
            return Ok(());
        }
        let attributes = attributes_of(source)?;
        for (name, value) in &attributes {
            match self.fs.set_xattr_with(os(path), name, value, SetXattr::Any) {
                // This does not mean that the image is full; if it is, the next file reports that.
                Err(error) if error.is(Refusal::NoSpace) => {
                    let name = escape(name);
                    let why = format!("no room for its attribute {name}, of {} bytes", value.len());
                    let shown = shown(&self.image, path);
                    self.session.problem(exit::TARGET, format_args!("{shown}: {why}"));
                }
                set => set?,
            }
        }
        // Removes the ACLs that it inherited from its directory and that the source does not have.
        for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default"] {
            if !attributes.iter().any(|(there, _)| there == name) {
                // Most files have none, so a failure is ignored.
                let _ = self.fs.remove_xattr(os(path), name);
            }
        }
        let is_link = metadata.file_type().is_symlink();
        let set = SetAttr {
            uid: Some(metadata.uid()),
            gid: Some(metadata.gid()),
            mode: (!is_link).then_some((metadata.mode() & 0o7777) as u16),
            atime: Some(timestamp(metadata.atime(), metadata.atime_nsec())),
            mtime: Some(timestamp(metadata.mtime(), metadata.mtime_nsec())),
            ..SetAttr::default()
        };
        self.fs.set_attr(os(path), Follow::NotTheLast, &set)?;
        Ok(())
    }

    fn report(&mut self, source: &Path, path: &[u8], failure: Failure) {
        match failure {
            Failure::Source(error) => {
                self.session.problem(exit::SOURCE, format_args!("{}: {error}", source.display()));
            }
            Failure::Image(Error::At { fault, .. } | Error::Between { fault, .. }) => {
                self.is_full = fault_is_full(&fault);
                let advice = match fault {
                    Fault::Refused(Refusal::NotFound) => {
                        "; the directory above is not there, `extant mkdir -p` makes it"
                    }
                    Fault::Refused(Refusal::Exists | Refusal::IsDirectory) => {
                        "; something else has that name"
                    }
                    _ => "",
                };
                let shown = crate::look::shown(&self.image, path);
                let (semicolon, full) = if self.is_full { ("; ", FULL) } else { ("", "") };
                let text = format_args!("{shown}: {fault}{advice}{semicolon}{full}");
                self.session.problem(code_of(&fault), text);
            }
            Failure::Image(error) => report(self.session, &self.image, &error, ""),
        }
    }
}

/// A time of a host file.
fn timestamp(seconds: i64, nanos: i64) -> Timestamp {
    Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or_default() }
}

fn fault_is_full(fault: &Fault) -> bool {
    fault.wants_room()
}

/// The attributes of a host file that an image can store.
fn attributes_of(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut list = vec![0; 64 << 10];
    let len = match rustix::fs::llistxattr(path, &mut list[..]) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut attributes = Vec::new();
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let known = [&b"user."[..], b"trusted.", b"security.", b"system.posix_acl_"];
        if !known.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let mut value = vec![0; 64 << 10];
        match rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                attributes.push((name.to_vec(), value));
            }
            // The attribute was removed meanwhile.
            Err(Errno::NODATA) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(attributes)
}
