//! `extant put` and `fallocate`: write bytes into a file of an image, and allocate blocks for it.
//!
//! Owns: the source, and the position of the writes. Does **not** own: copies of trees (see
//! [`copy_in`](super::copy_in)), holding writes back until the command is done (see
//! [`staged`](super::staged)).

use std::fs::File;
use std::io::{self, IsTerminal, Read};

use extant::{Allocate, Fault, Follow, New, Refusal, SetAttr, Volume};
use extant_base::Ino;

use super::args::{FallocateArgs, PutArgs};
use super::os;
use super::{FULL, UMASK, report};
use crate::exit;
use crate::look::{Named, Session};
use crate::usage::near;
use crate::voice::say;

/// Bytes per read and write.
pub(super) const PIECE: usize = 1 << 20;

/// Writes all of `bytes` into a file, from byte `pos` on.
///
/// # Errors
/// As [`Files::write_at`](extant_volume::Files::write_at); a part may have been written.
pub(super) fn write_all(volume: &Volume, ino: Ino, pos: u64, bytes: &[u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes.len() {
        match volume.files().write_at(ino, pos + done as u64, &bytes[done..])? {
            0 => return Err(Refusal::NoSpace.into()),
            len => done += len,
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the source ends; returns the number of bytes read.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match source.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

pub(super) fn put(session: &mut Session, args: &PutArgs) {
    let mut from_file = None;
    let shown = match &args.from {
        Some(path) => match File::open(path) {
            Ok(file) => {
                from_file = Some(file);
                path.display().to_string()
            }
            Err(error) => {
                return session.problem(exit::SOURCE, near::not_opened(path, &error));
            }
        },
        None if session.image.is_some() => {
            let why = "in a script, put takes its bytes from a file: put --from FILE PATH";
            return session.problem(exit::USAGE_CODE, why);
        }
        None => "standard input".to_owned(),
    };
    let Some(named) = session.named(&args.path) else { return };
    let mut stdin = io::stdin().lock();
    if from_file.is_none() && stdin.is_terminal() {
        say!("reading from the terminal; Ctrl-D ends it");
    }
    let source: &mut dyn Read = match &mut from_file {
        Some(file) => file,
        None => &mut stdin,
    };
    // Read first, so that an unreadable source changes nothing.
    let mut buffer = vec![0; PIECE];
    let mut len = match fill(source, &mut buffer) {
        Ok(len) => len,
        Err(error) => return session.problem(exit::SOURCE, format_args!("{shown}: {error}")),
    };
    let Some((ino, mut pos)) = target_of(session, &named, args) else { return };
    let volume = named.fs.volume();
    loop {
        if let Err(fault) = write_all(volume, ino, pos, &buffer[..len]) {
            if matches!(&fault, Fault::Refused(Refusal::NoSpace)) {
                let text = format_args!("{}: {fault}; {FULL}", named.shown());
                return session.problem(exit::NO_SPACE, text);
            }
            return session.fault(named.shown(), &fault);
        }
        if len < buffer.len() {
            break;
        }
        pos += len as u64;
        len = match fill(source, &mut buffer) {
            Ok(len) => len,
            Err(error) => return session.problem(exit::SOURCE, format_args!("{shown}: {error}")),
        };
    }
    if let Some(change) = &args.mode {
        let changed = volume.inode(ino).and_then(|inode| {
            let mode = change.apply(inode.fields().mode, false);
            volume.attributes().set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })
        });
        if let Err(fault) = changed {
            session.fault(named.shown(), &fault);
        }
    }
}

/// The file to write, created or emptied, and the position of the first write. `None` if there is none, which
/// was reported.
fn target_of(session: &mut Session, named: &Named, args: &PutArgs) -> Option<(Ino, u64)> {
    let path = os(&named.path);
    let found = match named.fs.resolve(path, Follow::Links) {
        Ok(inode) if args.append => {
            session.did(&named.image);
            return Some((inode.ino(), inode.size()));
        }
        Ok(inode) => {
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            match named.fs.volume().attributes().set_attr(inode.ino(), &empty) {
                Ok(inode) => Ok(inode),
                Err(fault) => {
                    session.fault(named.shown(), &fault);
                    return None;
                }
            }
        }
        Err(error) if error.is(Refusal::NotFound) => {
            named.fs.create_node(path, &New { umask: UMASK, ..New::file(0o666) })
        }
        Err(error) => Err(error),
    };
    match found {
        Ok(inode) => {
            session.did(&named.image);
            Some((inode.ino(), 0))
        }
        Err(error) => {
            let advice = match () {
                () if error.is(Refusal::Exists) => "it is a symbolic link that leads nowhere",
                () if error.is(Refusal::NotFound) => "the directory is not there; `mkdir -p` makes it",
                () => "",
            };
            report(session, &named.image, &error, advice);
            None
        }
    }
}

pub(super) fn fallocate(session: &mut Session, args: &FallocateArgs) {
    let how = match () {
        () if args.punch => Allocate::Punch,
        () if args.zero && args.keep_size => Allocate::ZeroKeep,
        () if args.zero => Allocate::Zero,
        () if args.collapse => Allocate::Collapse,
        () if args.insert => Allocate::Insert,
        () if args.keep_size => Allocate::Keep,
        () => Allocate::Reserve,
    };
    for target in session.targets(std::slice::from_ref(&args.path), Follow::Links) {
        let done = target.fs.volume().files().fallocate(target.inode.ino(), how, args.offset, args.len);
        // If space runs out, a part may be done.
        if !matches!(&done, Err(Fault::Refused(refusal)) if *refusal != Refusal::NoSpace) {
            session.did(&target.image);
        }
        let Err(fault) = done else { continue };
        let advice = match fault {
            Fault::Refused(Refusal::Invalid) if args.collapse || args.insert => {
                "; offset and length are whole blocks (with bigalloc: clusters), and inside of the file"
            }
            Fault::Refused(Refusal::Invalid) => "; the length is at least 1",
            Fault::Refused(Refusal::NotSupported) => "; a file without extents can only be --punch'ed",
            Fault::Refused(Refusal::NoSpace) => {
                session.problem(crate::exit::NO_SPACE, format_args!("{}: {fault}; {FULL}", target.shown()));
                continue;
            }
            _ => "",
        };
        session.problem(crate::look::code_of(&fault), format_args!("{}: {fault}{advice}", target.shown()));
    }
}
