//! The operations of each command on its paths.
//!
//! Owns: the order of a command's operations, and the advice after a refusal. Does **not** own: the
//! operations.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use extant::walk::Order;
use extant::{
    Error, Fault, FileSystem, FileType, Follow, InodeRef, New, Refusal, Rename, SetAttr, SetXattr, Timestamp,
    flags,
};

use super::args::{
    Change, ChmodArgs, ChownArgs, LinksArg, LnArgs, MkdirArgs, MknodArgs, MvArgs, ProjectArgs, Resize,
    RmArgs, TouchArgs, TruncateArgs, XattrArgs, XattrCommand,
};
use super::copy_in::{take_name, temporary};
use super::mode::ModeChange;
use super::{UMASK, content, os, report};
use crate::exit;
use crate::imagearg::is_of_host;
use crate::inspect::format::{escape, hex, quote};
use crate::look::{ExistingFile, Named, Session, below, code_of, output, shown};
use crate::manners::lists_files;
use crate::voice::list;

/// Prefixes of the attribute names that can be read and set.
const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];

/// Runs a command. Problems are reported to the session; an error is a failure of the output.
pub(super) fn run_change(session: &mut Session, change: &Change) -> io::Result<()> {
    match change {
        Change::Mkdir(args) => mkdir(session, args),
        Change::Mknod(args) => mknod(session, args),
        Change::Mkfifo(args) => {
            for path in &args.paths {
                make_special(session, path, args.mode.as_ref(), FileType::Fifo, (0, 0));
            }
        }
        Change::Rm(args) => rm(session, args),
        Change::Mv(args) => mv(session, args),
        Change::Ln(args) => ln(session, args),
        Change::Chmod(args) => chmod(session, args),
        Change::Chown(args) => chown(session, args),
        Change::Project(args) => project(session, args),
        Change::Xattr(args) => return xattr(session, args),
        Change::Put(args) => content::put(session, args),
        Change::Truncate(args) => truncate(session, args),
        Change::Fallocate(args) => content::fallocate(session, args),
        Change::Touch(args) => touch(session, args),
    }
    Ok(())
}

/// The last component of a path, without trailing slashes.
fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    path[..end].rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    if slash == 0 { b"/" } else { &path[..slash] }
}

fn is_dir(fs: &FileSystem, path: &[u8]) -> bool {
    fs.resolve(os(path), Follow::Links).is_ok_and(|inode| inode.kind() == FileType::Directory)
}

fn mkdir(session: &mut Session, args: &MkdirArgs) {
    let (mode, umask) = match &args.mode {
        Some(change) => (change.apply(0o777, true), 0),
        None => (0o777, UMASK),
    };
    let new = New { umask, ..New::directory(mode) };
    for arg in &args.paths {
        let Some(named) = session.named(arg) else { continue };
        let made = match args.parents {
            true if is_dir(&named.fs, &named.path) => Ok(()),
            true => named
                .fs
                .create_dir_all(os(parent(&named.path)), 0o777 & !UMASK)
                .and_then(|_| named.fs.create_node(os(&named.path), &new).map(drop)),
            false => named.fs.create_node(os(&named.path), &new).map(drop),
        };
        // Parent directories may have been created even if this one failed.
        if made.is_ok() || args.parents {
            session.did(&named.image);
        }
        if let Err(error) = made {
            let advice = match () {
                () if error.is(Refusal::NotFound) => "-p makes the directories above too",
                () if error.is(Refusal::Exists) && is_dir(&named.fs, &named.path) => {
                    "-p does not mind directories that are there"
                }
                () => "",
            };
            report(session, &named.image, &error, advice);
        }
    }
}

fn mknod(session: &mut Session, args: &MknodArgs) {
    let kind = match args.kind.as_str() {
        "b" => FileType::BlockDevice,
        "p" => FileType::Fifo,
        "s" => FileType::Socket,
        _ => FileType::CharDevice,
    };
    let is_device = matches!(kind, FileType::BlockDevice | FileType::CharDevice);
    if !is_device && args.major.is_some() {
        let why = "only devices have numbers; pipes and sockets are made without";
        return session.problem(exit::USAGE_CODE, why);
    }
    let number = (args.major.unwrap_or(0), args.minor.unwrap_or(0));
    make_special(session, &args.path, args.mode.as_ref(), kind, number);
}

/// Creates a pipe, a socket or a device.
fn make_special(
    session: &mut Session,
    path: &OsStr,
    mode: Option<&ModeChange>,
    kind: FileType,
    device: (u32, u32),
) {
    let (mode, umask) = match mode {
        Some(change) => (change.apply(0o666, false), 0),
        None => (0o666, UMASK),
    };
    let Some(named) = session.named(path) else { return };
    let new = New { kind, umask, device, ..New::file(mode) };
    match named.fs.create_node(os(&named.path), &new) {
        Ok(_) => session.did(&named.image),
        Err(error) => {
            let advice = match () {
                () if error.is(Refusal::NotFound) => "`extant mkdir -p` makes the directories above",
                () if error.is(Refusal::Exists) => "`extant rm` removes what has it",
                () => "",
            };
            report(session, &named.image, &error, advice);
        }
    }
}

fn rm(session: &mut Session, args: &RmArgs) {
    let found: Vec<ExistingFile> = if args.force {
        let mut found = Vec::new();
        for arg in &args.paths {
            found.extend(session.targets_if_there(arg, Follow::NotTheLast));
        }
        found
    } else {
        session.targets(&args.paths, Follow::NotTheLast)
    };
    let lists = lists_files(args.verbose);
    // In reverse order: a match below a matched directory is removed before the directory.
    for target in found.iter().rev() {
        let (fs, path) = (&target.fs, os(&target.path));
        let is_dir = target.inode.kind() == FileType::Directory;
        let removed = match () {
            () if target.path == b"/" => {
                let why = "the root directory cannot be removed; /* are the names in it";
                session.problem(exit::TARGET, format_args!("{}: {why}", target.shown()));
                continue;
            }
            () if is_dir && args.recursive => fs.remove_dir_all_with(path, &mut |path, kind| {
                if lists {
                    list_removed(&target.image, path.as_os_str().as_bytes(), kind);
                }
            }),
            () if is_dir && args.dir => fs.remove_dir(path),
            () => fs.remove_file(path),
        };
        // Even after an error a part of the tree may be removed.
        if removed.is_ok() || (is_dir && args.recursive) {
            session.did(&target.image);
        }
        match removed {
            Err(error) if args.force && error.is(Refusal::NotFound) => {}
            Err(error) => {
                let advice = match () {
                    () if error.is(Refusal::IsDirectory) => {
                        "-r removes it with everything below, -d when it is empty"
                    }
                    () if error.is(Refusal::NotEmpty) => "-r removes it with everything below",
                    () => advice_on_flags(&error),
                };
                report(session, &target.image, &error, advice);
            }
            // A tree was listed while it was removed.
            Ok(()) if lists && !(is_dir && args.recursive) => {
                list_removed(&target.image, &target.path, target.inode.kind());
            }
            Ok(()) => {}
        }
    }
}

fn list_removed(image: &str, path: &[u8], kind: FileType) {
    let what = if kind == FileType::Directory { "directory " } else { "" };
    list!("removed {what}{}", shown(image, path));
}

fn advice_on_flags(error: &Error) -> &'static str {
    if error.is(Refusal::NotPermitted) { "`extant stat` shows the flags" } else { "" }
}

/// The destination of the sources: a directory that takes them, or a new name for a single one.
struct Destination {
    named: Named,
    is_dir: bool,
}

/// The destination that the last path names; `None` after reporting a problem.
fn destination(session: &mut Session, last: &OsStr, sources: usize, is_name: bool) -> Option<Destination> {
    let named = session.named(last)?;
    let is_dir = !is_name && is_dir(&named.fs, &named.path);
    if sources > 1 && !is_dir {
        let why = "several files need an existing directory to go to";
        session.problem(exit::USAGE_CODE, format_args!("{}: {why}", named.shown()));
        return None;
    }
    Some(Destination { named, is_dir })
}

impl Destination {
    /// The path in the destination of a source with this name.
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        if self.is_dir { below(without_slash(&self.named.path), name) } else { self.named.path.clone() }
    }

    /// Whether `target` is in the destination's image; if not, this is reported.
    fn check_image(&self, session: &mut Session, target: &ExistingFile, what: &str) -> bool {
        if target.image == self.named.image {
            return true;
        }
        let (from, to) = (target.shown(), self.named.shown());
        session.problem(exit::USAGE_CODE, format_args!("{from} -> {to}: {what} stay inside of one image"));
        false
    }
}

fn without_slash(path: &[u8]) -> &[u8] {
    match path.strip_suffix(b"/") {
        Some(b"") | None => path,
        Some(rest) => rest,
    }
}

/// Whether a path to be moved or linked is in no image. If so, reports it and names the commands to use.
fn is_outside(session: &mut Session, paths: &[OsString], what: &str) -> bool {
    // All paths of a script are in its image.
    let mut outside = paths.iter().filter(|path| session.image.is_none() && is_of_host(path));
    let Some(path) = outside.next() else { return false };
    let path = escape(path.as_bytes());
    let why = format_args!(
        "{path}: is in no image, and {what}; `extant cp` copies into an image and out of one, and `rm` or `extant rm` \
         then removes what was copied"
    );
    session.problem(exit::USAGE_CODE, why);
    true
}

fn mv(session: &mut Session, args: &MvArgs) {
    let Some((last, sources)) = args.paths.split_last() else { return };
    if is_outside(session, &args.paths, "mv stays inside of one") {
        return;
    }
    let before = session.problems;
    let found = session.targets(sources, Follow::NotTheLast);
    if found.is_empty() && session.problems > before {
        return;
    }
    let is_name = args.no_target_directory || args.exchange;
    let Some(destination) = destination(session, last, found.len().max(sources.len()), is_name) else {
        return;
    };
    let how = match () {
        () if args.exchange => Rename::Exchange,
        () if args.no_clobber => Rename::NoReplace,
        () => Rename::Replace,
    };
    for target in &found {
        if !destination.check_image(session, target, "files") {
            continue;
        }
        let to = destination.path_of(target.name());
        let moved = target.fs.rename_with(os(&target.path), os(&to), how);
        if moved.is_ok() {
            session.did(&target.image);
        }
        if let Err(error) = moved {
            let advice = match () {
                () if error.is(Refusal::Invalid) => "a directory cannot be moved into itself",
                () if error.is(Refusal::NotEmpty) => {
                    "remove what is in the way first, or move to another name"
                }
                () if error.is(Refusal::NotFound) && args.exchange => "both must be there to be exchanged",
                () if error.is(Refusal::NotFound) && !is_dir(&target.fs, parent(&to)) => {
                    "the directory above is not there, `extant mkdir -p` makes it"
                }
                () => advice_on_flags(&error),
            };
            report(session, &target.image, &error, advice);
        }
    }
}

fn ln(session: &mut Session, args: &LnArgs) {
    let Some((last, sources)) = args.paths.split_last() else { return };
    if args.symbolic {
        let is_name = args.no_target_directory;
        let Some(destination) = destination(session, last, sources.len(), is_name) else { return };
        for text in sources.iter().map(|text| text.as_bytes()) {
            let path = destination.path_of(last_part(text));
            let new = New::symlink(text);
            let fs = &destination.named.fs;
            let image = &destination.named.image;
            make_link(session, image, fs, &path, args.force, |path| fs.create_node(os(path), &new).map(drop));
        }
        return;
    }
    if is_outside(session, &args.paths, "hard links stay inside of one") {
        return;
    }
    let found = session.targets(sources, Follow::NotTheLast);
    if found.is_empty() {
        return;
    }
    let Some(destination) = destination(session, last, found.len(), args.no_target_directory) else { return };
    for target in &found {
        if !destination.check_image(session, target, "hard links") {
            continue;
        }
        if target.inode.kind() == FileType::Directory {
            let why = "is a directory, which has one name only; -s makes a symbolic link to it";
            session.problem(exit::NOT_FOUND, format_args!("{}: {why}", target.shown()));
            continue;
        }
        let path = destination.path_of(target.name());
        let fs = &target.fs;
        make_link(session, &target.image, fs, &path, args.force, |path| {
            fs.hard_link(os(&target.path), os(path))
        });
    }
}

/// Creates a link; with `force` it replaces an existing name.
fn make_link(
    session: &mut Session,
    image: &str,
    fs: &FileSystem,
    path: &[u8],
    force: bool,
    make: impl Fn(&[u8]) -> Result<(), Error>,
) {
    let made = match make(path) {
        Err(error) if force && error.is(Refusal::Exists) => {
            // The link is complete before it takes the name: the file that it replaces may be the one that it
            // links.
            temporary(fs, path).and_then(|place| {
                make(&place)?;
                take_name(fs, &place, path)
            })
        }
        made => made,
    };
    if made.is_ok() {
        session.did(image);
    }
    if let Err(error) = made {
        let advice = if error.is(Refusal::Exists) { "-f replaces it" } else { "" };
        report(session, image, &error, advice);
    }
}

/// Changes the inodes of the targets and, if `recursive`, of everything below them. Symbolic links below are
/// skipped, or changed themselves if `links_below`. `unsupported`: advice if the change is not supported.
fn each_inode(
    session: &mut Session,
    targets: &[ExistingFile],
    recursive: bool,
    links_below: bool,
    unsupported: &str,
    mut change: impl FnMut(&FileSystem, &InodeRef) -> Result<(), Fault>,
) {
    for target in targets {
        let mut apply = |session: &mut Session, path: &[u8], inode: &InodeRef| {
            let changed = change(&target.fs, inode);
            if changed.is_ok() {
                session.did(&target.image);
            }
            if let Err(fault) = changed {
                let place = shown(&target.image, path);
                let advice = match fault {
                    Fault::Refused(Refusal::NotPermitted) => "; `extant stat` shows the flags",
                    Fault::Refused(Refusal::NotSupported) => unsupported,
                    _ => "",
                };
                session.problem(code_of(&fault), format_args!("{place}: {fault}{advice}"));
            }
        };
        if !recursive || target.inode.kind() != FileType::Directory {
            apply(session, &target.path, &target.inode);
            continue;
        }
        let walk = target.fs.walk_inode(InodeRef::clone(&target.inode)).order(Order::Names);
        for entry in walk {
            match entry {
                Ok(entry) => match entry.inode() {
                    Ok(inode) if inode.kind() == FileType::Symlink && !links_below => {}
                    Ok(inode) => apply(session, &below(&target.path, entry.path()), &inode),
                    Err(fault) => {
                        session.fault(shown(&target.image, &below(&target.path, entry.path())), &fault)
                    }
                },
                Err(fault) => session.walk_fault(target, &fault),
            }
        }
    }
}

fn chmod(session: &mut Session, args: &ChmodArgs) {
    let targets = session.targets(&args.paths, Follow::Links);
    each_inode(session, &targets, args.recursive, false, "", |fs, inode| {
        // An earlier path may have changed the inode.
        let now = fs.volume().inode(inode.ino())?;
        let mode = args.mode.apply(now.fields().mode, now.kind() == FileType::Directory);
        fs.volume()
            .attributes()
            .set_attr(inode.ino(), &SetAttr { mode: Some(mode), ..SetAttr::default() })
            .map(drop)
    });
}

fn chown(session: &mut Session, args: &ChownArgs) {
    let targets = session.targets(&args.paths, links(args.links));
    let set = SetAttr { uid: args.owner.uid, gid: args.owner.gid, ..SetAttr::default() };
    each_inode(session, &targets, args.recursive, true, "", |fs, inode| {
        fs.volume().attributes().set_attr(inode.ino(), &set).map(drop)
    });
}

fn project(session: &mut Session, args: &ProjectArgs) {
    let targets = session.targets(&args.paths, links(args.links));
    let needs = "; the file system needs the feature project";
    each_inode(session, &targets, args.recursive, true, needs, |fs, inode| {
        let now = fs.volume().inode(inode.ino())?;
        let had = now.fields().flags;
        let flags = match now.kind() == FileType::Directory {
            true if args.inherit => Some(had | flags::PROJINHERIT),
            true if args.no_inherit => Some(had & !flags::PROJINHERIT),
            _ => None,
        };
        let set = SetAttr { project: Some(args.id), flags, ..SetAttr::default() };
        fs.volume().attributes().set_attr(inode.ino(), &set).map(drop)
    });
}

fn links(arg: LinksArg) -> Follow {
    if arg.no_dereference { Follow::NotTheLast } else { Follow::Links }
}

fn xattr(session: &mut Session, args: &XattrArgs) -> io::Result<()> {
    let targets =
        |session: &mut Session, paths: &[OsString], arg: LinksArg| session.targets(paths, links(arg));
    match &args.command {
        XattrCommand::Get { raw, links, name, paths } => {
            let targets = targets(session, paths, *links);
            let mut out = output();
            for target in &targets {
                match target.fs.volume().attributes().xattr(&target.inode, name.as_bytes()) {
                    Ok(value) if *raw => out.write_all(&value)?,
                    Ok(value) if targets.len() == 1 => writeln!(out, "{}", value_text(&value))?,
                    Ok(value) => writeln!(out, "{}: {}", escape(&target.path), value_text(&value))?,
                    Err(fault) => report_attribute(session, target, name, &fault),
                }
            }
            out.flush()
        }
        XattrCommand::List { links, paths } => {
            let targets = targets(session, paths, *links);
            let mut out = output();
            for target in &targets {
                let attributes = match target.fs.volume().attributes().xattrs(&target.inode) {
                    Ok(attributes) => attributes,
                    Err(fault) => {
                        session.fault(target.shown(), &fault);
                        continue;
                    }
                };
                for attribute in &attributes {
                    if targets.len() > 1 {
                        write!(out, "{}: ", escape(&target.path))?;
                    }
                    writeln!(out, "{} = {}", escape(&attribute.name), value_text(&attribute.value))?;
                }
            }
            out.flush()
        }
        XattrCommand::Set { create, replace, links, name, value, paths } => {
            let how = match (create, replace) {
                (true, _) => SetXattr::Create,
                (_, true) => SetXattr::Replace,
                _ => SetXattr::Any,
            };
            match parse_value(value.as_bytes()) {
                Ok(value) => {
                    for target in &targets(session, paths, *links) {
                        let ino = target.inode.ino();
                        match target.fs.volume().attributes().set_xattr(ino, name.as_bytes(), &value, how) {
                            Ok(()) => session.did(&target.image),
                            Err(fault) => report_attribute(session, target, name, &fault),
                        }
                    }
                }
                Err(why) => session.problem(exit::USAGE_CODE, why),
            }
            Ok(())
        }
        XattrCommand::Remove { links, name, paths } => {
            for target in &targets(session, paths, *links) {
                match target.fs.volume().attributes().remove_xattr(target.inode.ino(), name.as_bytes()) {
                    Ok(()) => session.did(&target.image),
                    Err(fault) => report_attribute(session, target, name, &fault),
                }
            }
            Ok(())
        }
    }
}

fn report_attribute(session: &mut Session, target: &ExistingFile, name: &OsStr, fault: &Fault) {
    let mut code = code_of(fault);
    let advice: &dyn Display = match fault {
        Fault::Refused(Refusal::NotSupported) => {
            let is_name = NAMESPACES.iter().any(|space| name.as_bytes().starts_with(space));
            code = if is_name { code } else { exit::USAGE_CODE };
            &"; names begin with user., trusted., security. or system.posix_acl_, and user. is for files and directories"
        }
        Fault::Refused(Refusal::NoSpace) => {
            &"; the attributes of a file have little room, or the file system is full"
        }
        Fault::Refused(Refusal::NoAttribute) => &"; `extant xattr list` shows those that it has",
        Fault::Refused(Refusal::Exists) => {
            let text = format_args!("{}: {}: it has this attribute", target.shown(), escape(name.as_bytes()));
            return session.problem(exit::EXISTS, text);
        }
        _ => &"",
    };
    let (place, name) = (target.shown(), escape(name.as_bytes()));
    session.problem(code, format_args!("{place}: {name}: {fault}{advice}"));
}

/// Parses a value: text, or bytes in hex after `0x`.
fn parse_value(text: &[u8]) -> Result<Vec<u8>, String> {
    let Some(digits) = text.strip_prefix(b"0x") else { return Ok(text.to_vec()) };
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2 && pair.is_ascii())?;
        text.bytes().all(|c| c.is_ascii_hexdigit()).then(|| u8::from_str_radix(text, 16).ok())?
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    bytes.ok_or_else(|| {
        let text = escape(text);
        format!("{text}: behind 0x stand pairs of hex digits; to set this very text, write it in hex")
    })
}

/// Quoted text if the value is text, otherwise hex.
fn value_text(value: &[u8]) -> String {
    let body = value.strip_suffix(b"\0").unwrap_or(value);
    let is_text = std::str::from_utf8(body).is_ok_and(|text| !text.chars().any(char::is_control));
    if is_text { quote(value) } else { format!("0x{}", hex(value)) }
}

/// The targets of an argument. A missing file is created, unless `no_create` is set. Empty if there is none;
/// a failure is reported.
fn there_or_made(session: &mut Session, arg: &OsStr, follow: Follow, no_create: bool) -> Vec<ExistingFile> {
    let found = session.targets_if_there(arg, follow);
    if !found.is_empty() || no_create {
        return found;
    }
    let before = session.problems;
    let Some(named) = session.named(arg) else { return Vec::new() };
    if session.problems > before {
        return Vec::new();
    }
    let new = New { umask: UMASK, ..New::file(0o666) };
    match named.fs.create_node(os(&named.path), &new) {
        Ok(inode) => {
            session.did(&named.image);
            vec![ExistingFile { image: named.image, fs: named.fs, path: named.path, inode }]
        }
        Err(error) => {
            let advice = match () {
                () if error.is(Refusal::Exists) => "it is a symbolic link that leads nowhere",
                () if error.is(Refusal::NotFound) => "the directory is not there; `mkdir -p` makes it",
                () => "",
            };
            report(session, &named.image, &error, advice);
            Vec::new()
        }
    }
}

fn truncate(session: &mut Session, args: &TruncateArgs) {
    for arg in &args.paths {
        for target in there_or_made(session, arg, Follow::Links, args.no_create) {
            let size = match args.size {
                Resize::To(size) => size,
                Resize::By(more) if more < 0 => target.inode.size().saturating_sub(more.unsigned_abs()),
                Resize::By(more) => target.inode.size().saturating_add(more.unsigned_abs()),
            };
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            match target.fs.volume().attributes().set_attr(target.inode.ino(), &set) {
                Ok(_) => session.did(&target.image),
                Err(fault) => session.fault(target.shown(), &fault),
            }
        }
    }
}

fn touch(session: &mut Session, args: &TouchArgs) {
    let time = args.date.unwrap_or_else(now);
    let both = args.access == args.modification;
    let set = SetAttr {
        atime: (both || args.access).then_some(time),
        mtime: (both || args.modification).then_some(time),
        ..SetAttr::default()
    };
    for arg in &args.paths {
        for target in there_or_made(session, arg, links(args.links), args.no_create) {
            match target.fs.volume().attributes().set_attr(target.inode.ino(), &set) {
                Ok(_) => session.did(&target.image),
                Err(fault) => session.fault(target.shown(), &fault),
            }
        }
    }
}

fn now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp { seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX), nanos: now.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        for (path, above, last) in
            [("/a", "/", "a"), ("/a/b", "/a", "b"), ("/a/b/", "/a", "b"), ("/", "/", ""), ("a", "/", "a")]
        {
            assert_eq!(parent(path.as_bytes()), above.as_bytes(), "{path}");
            assert_eq!(last_part(path.as_bytes()), last.as_bytes(), "{path}");
        }
    }

    #[test]
    fn values_are_text_or_hex() {
        assert_eq!(parse_value(b"text"), Ok(b"text".to_vec()));
        assert_eq!(parse_value(b"0x00fF"), Ok(vec![0, 255]));
        assert_eq!(parse_value(b"0x"), Ok(vec![]));
        for wrong in [&b"0x1"[..], b"0xg0", b"0x+1", b"0x\xff\xff"] {
            assert!(parse_value(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(value_text(b"plain"), "\"plain\"");
        assert_eq!(value_text(b"\x01\xff"), "0x01ff");
    }
}
