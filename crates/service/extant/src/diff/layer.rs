//! Writes a comparison as a layer of a container image: the archive that makes side B of side A.
//!
//! | side A has | side B has | the layer has |
//! |---|---|---|
//! | | a file | the file |
//! | a file | another file | the whole file of side B |
//! | a file or directory | nothing | `.wh.NAME`, an empty file |
//! | a directory with names | the directory with other names only | `.wh..wh..opq` in it |
//! | a directory | a file | the file, which replaces the directory |
//!
//! Each member comes with its directories, which have the metadata of side B. If a file has several names and
//! one of them is in the layer, all are.
//!
//! Does **not** own: the format of archives (see `tarout`), compression.
//!
//! Invariants
//! 1. The same sides make the same bytes: members are in the order of paths, and have only the time of the
//!    last change of the content.
//! 2. The layer is whole, or writing it returns an error.
//!
//! Source: OCI Image Layer Filesystem Changeset, "Whiteouts".

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::sync::Arc;

use extant_ondisk::filetype::FileType;
use extant_tarout::{Begun, DataRun, Entry, Kind, TarFault, TarWriter, Time, Xattr};
use extant_volume::Fault;

use super::side::{Node, Reader, Run, Side};
use super::{Cause, Diff, DiffObserver, Difference, Meta, Status};
use crate::error::Shown;

/// The prefix of names of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// The name of the marker of a directory whose earlier names are all removed.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Bytes per read.
const PIECE_BYTES: usize = 1 << 20;

/// What a layer contains.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare, layer::{LayerReport, write_layer}};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let (_tar, report): (Vec<u8>, LayerReport) = write_layer(&diff, &b, Vec::new(), &())?;
/// assert_eq!((report.opaque, report.whiteouts, report.sockets), (1, 0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LayerReport {
    /// Files and directories, with those that only lead to others.
    pub entries: u64,
    /// Whiteouts of single names.
    pub whiteouts: u64,
    /// Markers of directories.
    pub opaque: u64,
    /// Sockets that are missing, because archives cannot hold them.
    pub sockets: u64,
}

/// Why a layer cannot be written.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare, layer::{LayerFault, write_layer}};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let full = &mut [][..]; // no room for a byte
/// let failed = write_layer(&diff, &b, full, &());
/// assert!(matches!(failed, Err(LayerFault::Output(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum LayerFault {
    /// The output failed.
    #[error("cannot write the layer: {0}")]
    Output(#[from] io::Error),
    /// A file of side B cannot be read.
    #[error("{}: {cause}", Shown(.path))]
    Read {
        /// Its path.
        path: Vec<u8>,
        /// The reason.
        cause: Cause,
    },
    /// A name of side B that means something else in a layer.
    #[error("{}: a layer cannot hold this name, because it means the removal of another file", Shown(.path))]
    Name {
        /// The path.
        path: Vec<u8>,
    },
    /// The archive cannot hold a file.
    #[error("{}: {fault}", Shown(.path))]
    Member {
        /// Its path.
        path: Vec<u8>,
        /// The reason.
        fault: TarFault,
    },
    /// Parts of the sides could not be compared, so the layer would be incomplete.
    #[error("no layer is written, because parts of the sides could not be compared")]
    Incomplete,
}

/// A member of the layer, by its place in the order.
enum Member {
    File(Node),
    /// A further name of a file; its first name in the layer.
    Link(Node, Arc<[u8]>),
    Whiteout,
    Opaque,
}

/// The order of members: components of the path, where an opaque marker is the first name of its directory.
type Key = Vec<Vec<u8>>;

fn key_of(path: &[u8]) -> Key {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec).collect()
}

/// Writes the layer of a comparison. `b`: its second side. Returns the output, and what was written.
///
/// # Errors
/// See [`LayerFault`]. What was written until then is no layer.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare, layer::write_layer};
///
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image(fs.clone())?, Side::image_at(fs, etc)?);
/// let diff = compare(&a, &b, &DiffOptions::default(), &(), &Default::default());
/// let (tar, report) = write_layer(&diff, &b, Vec::new(), &())?;
/// assert_eq!((tar.len() % 512, report.opaque), (0, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_layer<W: Write>(
    diff: &Diff,
    b: &Side,
    output: W,
    observer: &dyn DiffObserver,
) -> Result<(W, LayerReport), LayerFault> {
    if !diff.problems.is_empty() {
        return Err(LayerFault::Incomplete);
    }
    let mut report = LayerReport::default();
    let members = members(diff, b, &mut report)?;
    let mut layer = Layer {
        tar: TarWriter::new(output),
        side: b,
        reader: b.reader(),
        observer,
        buffer: vec![0; PIECE_BYTES],
    };
    for (key, member) in members {
        let path = key.join(&b'/');
        match member {
            Member::File(node) => layer.file(&path, &node, None, &mut report)?,
            Member::Link(node, first) => layer.file(&path, &node, Some(&first), &mut report)?,
            Member::Whiteout => {
                layer.marker(&path, |dir, name| [dir, WHITEOUT, name].concat())?;
                report.whiteouts += 1;
            }
            Member::Opaque => {
                // The key ends with an empty name.
                layer.marker(&path, |dir, _| [dir, OPAQUE].concat())?;
                report.opaque += 1;
            }
        }
    }
    let output = layer.tar.finish().map_err(|fault| match fault {
        TarFault::Io(error) => LayerFault::Output(error),
        fault => LayerFault::Member { path: Vec::new(), fault },
    })?;
    Ok((output, report))
}

/// Collects the members.
fn members(diff: &Diff, b: &Side, report: &mut LayerReport) -> Result<BTreeMap<Key, Member>, LayerFault> {
    let mut members = BTreeMap::new();
    // Directories whose earlier contents need no whiteouts.
    let mut gone: Vec<&[u8]> = Vec::new();
    let is_below = |path: &[u8], dir: &[u8]| {
        path.len() > dir.len() && path.starts_with(dir) && (dir.is_empty() || path[dir.len()] == b'/')
    };
    let parent_of = |path: &[u8]| path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at);
    let mut changed: HashSet<&[u8]> = HashSet::new();
    for change in &diff.changes {
        let path = &change.path[..];
        // Changes are in order, so what is below the last directory follows it at once.
        gone.truncate(gone.iter().rposition(|dir| is_below(path, dir)).map_or(0, |at| at + 1));
        let is_socket = change.b.as_ref().is_some_and(|meta| meta.kind == FileType::Socket);
        if change.status == Status::Deleted || (is_socket && change.a.is_some()) {
            report.sockets += u64::from(is_socket);
            let parent = &path[..parent_of(path)];
            let is_marked = diff.emptied.binary_search_by(|dir| super::path_order(dir, parent)).is_ok();
            if gone.is_empty() && !is_marked {
                add(&mut members, b, path, Member::Whiteout)?;
            }
            gone.push(path);
            continue;
        }
        if is_socket {
            report.sockets += 1;
            continue;
        }
        if change.status == Status::TypeChanged
            && change.a.as_ref().is_some_and(|meta| meta.kind == FileType::Directory)
        {
            gone.push(path);
        }
        let only_fewer_links = matches!(change.differences[..], [Difference::Links { only_fewer: true, .. }]);
        if let Some(node) = change.node.as_ref().filter(|_| !only_fewer_links) {
            changed.insert(path);
            add(&mut members, b, path, Member::File(node.clone()))?;
        }
    }
    for dir in &diff.emptied {
        let mut key = key_of(dir);
        key.push(Vec::new());
        if !dir.is_empty() {
            add_parents(&mut members, b, dir, true)?;
        }
        members.insert(key, Member::Opaque);
    }
    for group in diff.groups.iter().filter(|group| group.iter().any(|name| changed.contains(&name[..]))) {
        let node = found(b, &group[0])?;
        for (at, name) in group.iter().enumerate() {
            let member = match at {
                0 => Member::File(node.clone()),
                _ => Member::Link(node.clone(), Arc::clone(&group[0])),
            };
            add(&mut members, b, name, member)?;
        }
    }
    Ok(members)
}

fn found(b: &Side, path: &[u8]) -> Result<Node, LayerFault> {
    b.find(path).map_err(|fault| read_fault(path, fault))
}

fn read_fault(path: &[u8], fault: Fault) -> LayerFault {
    LayerFault::Read { path: path.to_vec(), cause: Cause::Image(fault.into()) }
}

/// Adds a member with its directories.
fn add(members: &mut BTreeMap<Key, Member>, b: &Side, path: &[u8], member: Member) -> Result<(), LayerFault> {
    add_parents(members, b, path, false)?;
    let key = key_of(path);
    let is_reserved = |name: &Vec<u8>| name.starts_with(WHITEOUT);
    if key.iter().any(is_reserved) {
        return Err(LayerFault::Name { path: path.to_vec() });
    }
    members.insert(key, member);
    Ok(())
}

/// Adds the directories that lead to a path, and with `itself` the path.
fn add_parents(
    members: &mut BTreeMap<Key, Member>,
    b: &Side,
    path: &[u8],
    itself: bool,
) -> Result<(), LayerFault> {
    let ends = (0..path.len()).filter(|at| path[*at] == b'/').chain(itself.then_some(path.len()));
    for end in ends {
        if let Slot::Vacant(slot) = members.entry(key_of(&path[..end])) {
            slot.insert(Member::File(found(b, &path[..end])?));
        }
    }
    Ok(())
}

/// The archive while it is written.
struct Layer<'s, W> {
    tar: TarWriter<W>,
    side: &'s Side,
    reader: Reader<'s>,
    observer: &'s dyn DiffObserver,
    buffer: Vec<u8>,
}

impl<W: Write> Layer<'_, W> {
    fn member_fault(path: &[u8]) -> impl Fn(TarFault) -> LayerFault + '_ {
        move |fault| match fault {
            TarFault::Io(error) => LayerFault::Output(error),
            fault => LayerFault::Member { path: path.to_vec(), fault },
        }
    }

    /// Writes an empty file beside or in place of a path. `name`: makes its path of the directory, with a
    /// slash at its end, and the name.
    fn marker(&mut self, path: &[u8], name: impl Fn(&[u8], &[u8]) -> Vec<u8>) -> Result<(), LayerFault> {
        let at = path.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let marker = name(&path[..at], &path[at..]);
        let kind = Kind::File { size_bytes: 0, runs: None };
        let entry = Entry { mode: 0o644, ..Entry::new(&marker, kind, Time::default()) };
        self.tar.entry(&entry).map_err(Self::member_fault(path))?;
        Ok(())
    }

    fn file(
        &mut self,
        path: &[u8],
        node: &Node,
        link_of: Option<&[u8]>,
        report: &mut LayerReport,
    ) -> Result<(), LayerFault> {
        let unreadable = |fault: Fault| read_fault(path, fault);
        let meta = self.side.meta(node);
        let attributes = match link_of {
            None => self.side.xattrs(node).map_err(unreadable)?,
            Some(_) => Vec::new(),
        };
        let xattrs: Vec<Xattr<'_>> =
            attributes.iter().map(|found| Xattr { name: &found.name, value: &found.value }).collect();
        let (target, runs);
        let kind = match (link_of, meta.kind) {
            (Some(first), _) => Kind::HardLink(first),
            (None, FileType::Directory) => Kind::Directory,
            (None, FileType::Symlink) => {
                target = self.side.target(node).map_err(unreadable)?;
                Kind::Symlink(&target)
            }
            (None, FileType::CharDevice) => Kind::CharDevice { major: meta.device.0, minor: meta.device.1 },
            (None, FileType::BlockDevice) => Kind::BlockDevice { major: meta.device.0, minor: meta.device.1 },
            (None, FileType::Fifo) => Kind::Fifo,
            (None, FileType::Socket | FileType::Unknown) => {
                report.sockets += 1;
                return Ok(());
            }
            (None, FileType::Regular) => {
                runs = self.runs(node, meta.size).map_err(unreadable)?;
                Kind::File { size_bytes: meta.size, runs: Some(&runs) }
            }
        };
        let begun = self.tar.entry(&entry(path, kind, &meta, &xattrs)).map_err(Self::member_fault(path))?;
        report.entries += 1;
        match (begun, kind) {
            (Begun::Runs(_), Kind::File { runs: Some(runs), .. }) => self.data(path, node, runs),
            (Begun::Whole(size), Kind::File { runs: Some(runs), .. }) if size > 0 => {
                // Zeros take the places of the holes.
                let mut at = 0;
                for run in runs {
                    self.tar.zeros(run.offset_bytes - at).map_err(Self::member_fault(path))?;
                    self.data(path, node, std::slice::from_ref(run))?;
                    at = run.offset_bytes + run.len_bytes;
                }
                self.tar.zeros(size - at).map_err(Self::member_fault(path))
            }
            _ => Ok(()),
        }
    }

    /// The runs of data of a file, joined where they touch.
    fn runs(&self, node: &Node, size: u64) -> Result<Vec<DataRun>, Fault> {
        let mut runs: Vec<DataRun> = Vec::new();
        let mut from = 0;
        while from < size {
            let mut some: Vec<Run> = Vec::new();
            from = self.side.runs(node, from, 4096, &mut some)?;
            for run in some {
                match runs.last_mut() {
                    Some(last) if last.offset_bytes + last.len_bytes == run.start => {
                        last.len_bytes += run.end - run.start;
                    }
                    _ => runs.push(DataRun { offset_bytes: run.start, len_bytes: run.end - run.start }),
                }
            }
        }
        Ok(runs)
    }

    fn data(&mut self, path: &[u8], node: &Node, runs: &[DataRun]) -> Result<(), LayerFault> {
        for run in runs {
            let mut done = 0;
            while done < run.len_bytes {
                let len = (run.len_bytes - done).min(PIECE_BYTES as u64) as usize;
                let piece = &mut self.buffer[..len];
                self.reader
                    .read(node, run.offset_bytes + done, None, piece)
                    .map_err(|cause| LayerFault::Read { path: path.to_vec(), cause })?;
                self.tar.data(piece).map_err(Self::member_fault(path))?;
                self.observer.bytes(len as u64);
                done += len as u64;
            }
        }
        Ok(())
    }
}

fn entry<'e>(path: &'e [u8], kind: Kind<'e>, meta: &Meta, xattrs: &'e [Xattr<'e>]) -> Entry<'e> {
    let mtime = Time { seconds: meta.mtime.seconds, nanos: meta.mtime.nanos.min(999_999_999) };
    Entry { mode: meta.mode, uid: meta.uid, gid: meta.gid, xattrs, ..Entry::new(path, kind, mtime) }
}
