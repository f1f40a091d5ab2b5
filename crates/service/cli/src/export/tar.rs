//! Writes a tree as a tar archive.
//!
//! ```text
//! contents of a walk, read ahead -> headers, small files  ─┐
//! large files: one thread reads pieces of 1 MiB ahead ─────┴─> TarWriter -> file or pipe
//! ```
//!
//! Does **not** own: the format (see `tarout`), walking (see `extant::walk`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::mpsc;

use extant::walk::{Data, Loaded};
use extant::{Attribute, Fault, FileSystem, FileType, InodeRef, Timestamp};
use extant_base::Ino;
use extant_device::NewFile;
use extant_tarout::{Begun, DataRun, Entry, Kind, TarFault, TarWriter, Time, Xattr};

use super::ExportArgs;
use super::compress::{self, Compression, Output};
use crate::exit;
use crate::look::host::data_runs;
use crate::look::outside::Outside;
use crate::look::progress::Progress;
use crate::look::{ExistingFile, Session, below, is_special, shown};
use crate::usage::near;

/// Bytes per read of a large file.
const PIECE: usize = 1 << 20;
/// Pieces of a large file to read ahead.
const PIECES_AHEAD: usize = 4;
/// Bytes from which on a thread of its own reads a file.
const AHEAD_MIN: u64 = 4 << 20;

/// Writes the archive. An error is a failure of the output; everything else is reported to the session.
pub(super) fn export(
    args: &ExportArgs,
    session: &mut Session,
    target: &ExistingFile,
    file: &Path,
) -> io::Result<()> {
    if file.as_os_str() == "-" {
        let out = io::stdout();
        if out.is_terminal() {
            let why = "an archive makes no sense on a terminal; pipe it to a program, or give a file";
            session.problem(exit::USAGE_CODE, why);
            return Ok(());
        }
        // A larger pipe buffer: the reader gets fewer, larger pieces. No effect unless the output is a pipe.
        let _ = rustix::pipe::fcntl_setpipe_size(&out, 1 << 20);
        let out = Output::new(File::from(rustix::io::dup(&out)?), Compression::None)?;
        return write(args, session, target, out).map(drop);
    }
    if is_special(file) {
        let out = Output::new(File::options().write(true).open(file)?, Compression::None)?;
        return write(args, session, target, out).map(drop);
    }
    let compression = match compress::by_name(file) {
        Ok(compression) => compression,
        Err(program) => {
            let file = file.display();
            let why = format!(
                "{file}: this compression is not written here; --tar - | {program} > {file} makes it"
            );
            session.problem(exit::USAGE_CODE, why);
            return Ok(());
        }
    };
    if !args.force && file.symlink_metadata().is_ok() {
        session.problem(
            exit::EXISTS,
            format_args!("{} exists already; use --force to replace it", file.display()),
        );
        return Ok(());
    }
    let refused = |session: &mut Session, error: io::Error| {
        let code = match error.kind() {
            io::ErrorKind::StorageFull => exit::NO_SPACE,
            io::ErrorKind::ResourceBusy => exit::BUSY,
            _ => exit::TARGET,
        };
        session.problem(code, near::not_made(file, &error));
    };
    let written = NewFile::create(file).and_then(|new| {
        let copy = Output::new(new.file().try_clone()?, compression)?;
        if write(args, session, target, copy)? { new.publish(args.force, false) } else { Ok(()) }
    });
    if let Err(error) = written {
        refused(session, error);
    }
    Ok(())
}

/// Writes the whole archive; returns false if it must be discarded.
fn write(args: &ExportArgs, session: &mut Session, target: &ExistingFile, out: Output) -> io::Result<bool> {
    let mut archive = Archive {
        args,
        session,
        target,
        tar: TarWriter::new(out),
        progress: Progress::new("exporting"),
        large: Vec::new(),
        sockets: 0,
        outside: Outside::default(),
        first_names: HashMap::new(),
    };
    for loaded in target.fs.walk_inode(target.inode.clone()).contents() {
        match loaded {
            Ok(mut loaded) => {
                if args.leave_out.apply(&mut loaded) {
                    archive.add(loaded)?;
                }
            }
            Err(fault) => archive.session.walk_fault(target, &fault),
        }
    }
    let Archive { tar, sockets, progress, .. } = archive;
    if sockets > 0 {
        let line = format!(
            "extant: note: {} left out: archives cannot hold them",
            crate::inspect::format::count(sockets, "socket")
        );
        progress.line(&line);
    }
    match tar.finish() {
        Ok(out) => out.finish().map(|()| true),
        Err(TarFault::Io(error)) => Err(error),
        Err(other) => {
            session.problem(exit::TARGET, other);
            Ok(false)
        }
    }
}

struct Archive<'a> {
    args: &'a ExportArgs,
    session: &'a mut Session,
    target: &'a ExistingFile,
    tar: TarWriter<Output>,
    progress: Progress,
    /// Buffer for files that this thread reads.
    large: Vec<u8>,
    sockets: u64,
    outside: Outside,
    /// Files with several names: the archive path of the first name, or `None` if it was left out.
    first_names: HashMap<Ino, Option<Vec<u8>>>,
}

fn time(time: Timestamp) -> Time {
    Time { seconds: time.seconds, nanos: time.nanos.min(999_999_999) }
}

impl Archive<'_> {
    fn shown(&self, loaded: &Loaded) -> String {
        shown(&self.target.image, &below(&self.target.path, loaded.entry.path()))
    }

    /// Adds an entry, unless it is a further name of a file that was left out. Errors are failures of the
    /// output.
    fn add(&mut self, loaded: Loaded) -> io::Result<()> {
        self.progress.file();
        let path = self.outside.next(&loaded).path;
        let (ino, kind) = (loaded.stat.ino, loaded.stat.kind);
        if loaded.link_of.is_none() {
            let has_more = loaded.stat.links > 1 && kind != FileType::Directory;
            let added = self.add_as(loaded, &path, None)?;
            if has_more {
                self.first_names.insert(ino, added.then_some(path));
            }
            return Ok(());
        }
        match self.first_names.get(&ino).cloned().flatten() {
            Some(first) => drop(self.add_as(loaded, &path, Some(&first))?),
            None if kind == FileType::Socket => self.sockets += 1,
            None => {
                let why = "left out like the file's first name";
                self.session.problem(exit::DAMAGED, format_args!("{}: {why}", self.shown(&loaded)));
            }
        }
        Ok(())
    }

    /// Adds an entry under `path`. `link`: the path of the file's first name. Returns false if the entry was
    /// left out; the reason is reported.
    fn add_as(&mut self, mut loaded: Loaded, path: &[u8], link: Option<&[u8]>) -> io::Result<bool> {
        let attributes = match std::mem::replace(&mut loaded.xattrs, Ok(Vec::new())) {
            Ok(attributes) => attributes,
            Err(fault) => {
                self.session.fault(format_args!("{}: attributes", self.shown(&loaded)), &fault);
                Vec::new()
            }
        };
        let size_bytes = loaded.stat.size;
        let target;
        let runs;
        let kind = match (loaded.stat.kind, &loaded.data) {
            _ if link.is_some() => Kind::HardLink(link.unwrap_or_default()),
            (_, Data::Failed(fault)) => {
                self.session.fault(self.shown(&loaded), fault);
                return Ok(false);
            }
            (FileType::Symlink, Data::Target(to)) => {
                target = to.clone();
                Kind::Symlink(&target)
            }
            (FileType::Directory, _) => Kind::Directory,
            (FileType::Regular, _) => {
                match self.runs(&loaded) {
                    Ok(found) => runs = found,
                    Err(fault) => {
                        self.session.fault(self.shown(&loaded), &fault);
                        return Ok(false);
                    }
                }
                Kind::File { size_bytes, runs: runs.as_deref() }
            }
            (FileType::CharDevice, _) => {
                Kind::CharDevice { major: loaded.stat.device.0, minor: loaded.stat.device.1 }
            }
            (FileType::BlockDevice, _) => {
                Kind::BlockDevice { major: loaded.stat.device.0, minor: loaded.stat.device.1 }
            }
            (FileType::Fifo, _) => Kind::Fifo,
            (FileType::Socket, _) => Kind::Socket,
            (FileType::Symlink | FileType::Unknown, _) => {
                self.session.problem(
                    exit::DAMAGED,
                    format_args!("{}: of no known type; left out", self.shown(&loaded)),
                );
                return Ok(false);
            }
        };
        let begun = match self.begin(&loaded, path, kind, &attributes) {
            Ok(begun) => begun,
            Err(TarFault::Io(error)) => return Err(error),
            Err(other) => {
                self.session.problem(exit::DAMAGED, format_args!("{}: {other}", self.shown(&loaded)));
                return Ok(false);
            }
        };
        let data = match (begun, kind) {
            (Begun::Skipped, _) => {
                self.sockets += 1;
                return Ok(false);
            }
            (_, Kind::File { runs: Some(runs), .. }) if matches!(begun, Begun::Runs(_)) => {
                self.data(&loaded, runs)
            }
            (_, Kind::File { .. }) if size_bytes > 0 => {
                self.data(&loaded, &[DataRun { offset_bytes: 0, len_bytes: size_bytes }])
            }
            _ => return Ok(true),
        };
        data.map(|()| true).map_err(|fault| match fault {
            TarFault::Io(error) => error,
            other => io::Error::other(other),
        })
    }

    fn begin(
        &mut self,
        loaded: &Loaded,
        path: &[u8],
        kind: Kind<'_>,
        attributes: &[Attribute],
    ) -> Result<Begun, TarFault> {
        let stat = &loaded.stat;
        let xattrs: Vec<Xattr<'_>> =
            attributes.iter().map(|Attribute { name, value }| Xattr { name, value }).collect();
        let all = self.args.times != "mtime";
        let birth = self.args.times == "birth";
        // A file that is exported by itself gets its own name.
        let path =
            if loaded.entry.depth() == 0 && kind != Kind::Directory { self.target.name() } else { path };
        self.tar.entry(&Entry {
            path,
            kind,
            mode: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            mtime: time(stat.mtime),
            atime: all.then(|| time(stat.atime)),
            ctime: all.then(|| time(stat.ctime)),
            crtime: stat.crtime.filter(|_| birth).map(time),
            xattrs: &xattrs,
        })
    }

    /// The runs of data, if the file has holes to preserve.
    fn runs(&self, loaded: &Loaded) -> Result<Option<Vec<DataRun>>, Fault> {
        let stat = &loaded.stat;
        if self.args.no_sparse || stat.size == 0 || stat.blocks_512.saturating_mul(512) >= stat.size {
            return Ok(None);
        }
        let runs = data_runs(&self.target.fs, loaded)?;
        let run = |&(begin, end): &(u64, u64)| DataRun { offset_bytes: begin, len_bytes: end - begin };
        Ok(Some(runs.iter().map(run).collect()))
    }

    /// Writes the data of the current member. Parts that cannot be read become zeros, since the header with
    /// the size is already written.
    fn data(&mut self, loaded: &Loaded, runs: &[DataRun]) -> Result<(), TarFault> {
        if let Data::Ready(bytes) = &loaded.data {
            for run in runs {
                let from = run.offset_bytes as usize;
                self.tar.data(&bytes[from..from + run.len_bytes as usize])?;
                self.progress.bytes(run.len_bytes);
            }
            return Ok(());
        }
        let fs = self.target.fs.clone();
        let mut failed = None;
        if loaded.stat.size >= AHEAD_MIN {
            self.data_ahead(&fs, &loaded.inode, runs, &mut failed)?;
        } else {
            let mut large = std::mem::take(&mut self.large);
            large.resize(PIECE, 0);
            for run in runs {
                for (offset, len) in pieces(*run) {
                    read_piece(&fs, &loaded.inode, offset, &mut large[..len], &mut failed);
                    self.tar.data(&large[..len])?;
                    self.progress.bytes(len as u64);
                }
            }
            self.large = large;
        }
        if let Some(fault) = failed {
            let why = "parts that cannot be read are zeros in the archive";
            self.session.fault(format_args!("{}: {why}", self.shown(loaded)), &fault);
        }
        Ok(())
    }

    /// As [`data`](Self::data), while another thread reads ahead.
    fn data_ahead(
        &mut self,
        fs: &FileSystem,
        inode: &InodeRef,
        runs: &[DataRun],
        failed: &mut Option<Fault>,
    ) -> Result<(), TarFault> {
        let (give, take) = mpsc::sync_channel::<Vec<u8>>(PIECES_AHEAD);
        let (back, empty) = mpsc::channel::<Vec<u8>>();
        std::thread::scope(|scope| {
            let reader = move || {
                let mut failed = None;
                let mut made = 0;
                for (offset, len) in runs.iter().flat_map(|run| pieces(*run)) {
                    let mut piece = if made <= PIECES_AHEAD {
                        made += 1;
                        vec![0; PIECE]
                    } else {
                        empty.recv().unwrap_or_default()
                    };
                    piece.resize(len, 0);
                    read_piece(fs, inode, offset, &mut piece, &mut failed);
                    if give.send(piece).is_err() {
                        break; // the writer stopped
                    }
                }
                failed
            };
            let reader = scope.spawn(reader);
            let mut written = Ok(());
            for piece in &take {
                written = self.tar.data(&piece);
                if written.is_err() {
                    break;
                }
                self.progress.bytes(piece.len() as u64);
                let _ = back.send(piece);
            }
            drop((take, back));
            *failed = reader.join().ok().flatten();
            written
        })
    }
}

/// Splits a run into pieces; yields offset and length of each.
fn pieces(run: DataRun) -> impl Iterator<Item = (u64, usize)> {
    let end = run.offset_bytes + run.len_bytes;
    let step = PIECE as u64;
    (run.offset_bytes..end).step_by(PIECE).map(move |at| (at, (end - at).min(step) as usize))
}

/// Reads a piece of a file. Bytes that cannot be read become zeros; `failed` keeps the first fault.
fn read_piece(fs: &FileSystem, inode: &InodeRef, offset: u64, piece: &mut [u8], failed: &mut Option<Fault>) {
    let mut done = 0;
    while done < piece.len() {
        match fs.volume().files().read(inode, offset + done as u64, &mut piece[done..]) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(fault) => {
                failed.get_or_insert(fault);
                break;
            }
        }
    }
    piece[done..].fill(0);
}
