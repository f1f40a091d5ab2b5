//! One side of a comparison: an image, or a tree gathered from a directory or an archive.
//!
//! Owns: names, metadata, attributes and runs of data in one form for all kinds of sides. Does **not** own:
//! comparing.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_base::Ino;
use extant_image::build::{BuildFault, BuildOptions, Gathered, Source, read_sources};
use extant_image::content::{ContentReader, data_runs};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::flags;
use extant_ondisk::time::Timestamp;
use extant_volume::{Attribute, Cursor, Fault, Follow, InodeRef, Refusal};

use super::{Cause, Meta};
use crate::{FileSystem, list, spelled};

/// Names per piece of a listing.
const NAMES_PIECE: usize = 4096;

/// One side of a comparison.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::diff::{DiffOptions, Side, compare};
///
/// // A part of an image against all of it.
/// let etc = fs.resolve("/etc", extant::Follow::Links)?;
/// let (a, b) = (Side::image_at(fs.clone(), etc)?, Side::image(fs)?);
/// assert!(!compare(&a, &b, &DiffOptions::default(), &(), &Default::default()).is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Side {
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    Image(ImageSide),
    Tree(Box<Gathered>),
}

pub(crate) struct ImageSide {
    pub(super) fs: FileSystem,
    pub(super) root: InodeRef,
    /// Whether data may be read directly from the device.
    pub(super) is_plain: bool,
}

/// A file of a side.
#[derive(Clone)]
pub(crate) enum Node {
    Image(InodeRef),
    Tree(u32),
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.key())
    }
}

impl Node {
    /// A number that no other file of the side has.
    pub(super) fn key(&self) -> u64 {
        match self {
            Self::Image(inode) => inode.ino().0.into(),
            Self::Tree(node) => u64::from(*node),
        }
    }

    /// Whether the content is encrypted.
    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self, Self::Image(inode) if inode.has_flag(flags::ENCRYPT))
    }
}

/// A name in a directory, with the number of its file.
pub(super) struct Name {
    pub(super) name: Vec<u8>,
    pub(super) key: u64,
}

/// A run of data of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset of the first byte on the device, if it can be read there.
    pub(super) physical: Option<u64>,
}

/// Reads files of a side; each thread has its own.
pub(super) struct Reader<'s> {
    side: &'s Side,
    contents: Option<ContentReader<'s>>,
}

impl Side {
    /// An image, from its root.
    ///
    /// # Errors
    /// The root directory cannot be read.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// assert!(extant::diff::Side::image(fs)?.warnings().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn image(fs: FileSystem) -> Result<Self, Fault> {
        let root = fs.volume().root()?;
        Self::image_at(fs, root)
    }

    /// The part of an image below a directory.
    ///
    /// # Errors
    /// The inode is not a directory.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let etc = fs.resolve("/etc", extant::Follow::Links)?;
    /// let side = extant::diff::Side::image_at(fs, etc)?;
    /// assert_eq!(side.problems().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn image_at(fs: FileSystem, root: InodeRef) -> Result<Self, Fault> {
        if root.kind() != FileType::Directory {
            return Err(Refusal::NotDirectory.into());
        }
        let is_plain = fs.plain_device().is_some() && !fs.is_writable();
        Ok(Self { kind: Kind::Image(ImageSide { fs, root, is_plain }) })
    }

    /// What [`build`](crate::build::build) would make of these sources. `spool_dir`: where a temporary file
    /// for unpacked contents is made, which has no name. `read`: called by any thread with the number of
    /// entries read since the last call.
    ///
    /// # Errors
    /// See [`BuildFault`]. [`problems`](Self::problems) has the entries that could not be read.
    ///
    /// ```
    /// # let tree = tempfile::tempdir()?;
    /// use extant::build::{BuildOptions, Source};
    /// use extant::diff::Side;
    ///
    /// let (options, spool_dir) = (BuildOptions::default(), std::env::temp_dir());
    /// let sources = vec![Source::Dir(tree.path().to_owned())];
    /// let side = Side::sources(&options, sources, &spool_dir, &Default::default(), &|_| ())?;
    /// assert_eq!(side.problems().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sources(
        options: &BuildOptions,
        sources: Vec<Source>,
        spool_dir: &Path,
        cancel: &AtomicBool,
        read: &(dyn Fn(u64) + Sync),
    ) -> Result<Self, BuildFault> {
        let gathered = read_sources(options, sources, spool_dir, &[], cancel, read)?;
        Ok(Self { kind: Kind::Tree(Box::new(gathered)) })
    }

    /// Entries of the sources that could not be read, and are missing in the comparison: path and reason.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let side = extant::diff::Side::image(fs)?;
    /// for (path, why) in side.problems() {
    ///     println!("{path}: {why}");
    /// }
    /// assert_eq!(side.problems().count(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let problems = match &self.kind {
            Kind::Image(_) => &[][..],
            Kind::Tree(gathered) => &gathered.problems,
        };
        problems.iter().map(|problem| (problem.path.as_str(), problem.why.as_str()))
    }

    /// Findings about the sources that the user should see.
    ///
    /// ```
    /// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
    /// # let (_kept, image) = example::example_image();
    /// # let fs = extant::open(&image)?;
    /// let side = extant::diff::Side::image(fs)?;
    /// assert!(side.warnings().is_empty(), "only sources have some");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        match &self.kind {
            Kind::Image(_) => &[],
            Kind::Tree(gathered) => &gathered.warnings,
        }
    }

    pub(super) fn as_image(&self) -> Option<&ImageSide> {
        match &self.kind {
            Kind::Image(image) => Some(image),
            Kind::Tree(_) => None,
        }
    }

    /// Whether bytes of files can be read directly from a device.
    pub(super) fn is_plain(&self) -> bool {
        self.as_image().is_some_and(|image| image.is_plain)
    }

    /// Fills `buf` from a byte of the device on. False if that fails.
    pub(super) fn read_device(&self, at: u64, buf: &mut [u8]) -> bool {
        let device = self.as_image().and_then(|image| image.fs.plain_device());
        device.is_some_and(|device| device.read_at(at, buf).is_ok())
    }

    /// Whether the metadata of the root is known.
    pub(super) fn has_root(&self) -> bool {
        match &self.kind {
            Kind::Image(_) => true,
            Kind::Tree(gathered) => gathered.has_root,
        }
    }

    /// Whether times have fractions of seconds.
    pub(super) fn has_nanoseconds(&self) -> bool {
        match &self.kind {
            Kind::Image(image) => image.fs.volume().attributes().time_granularity().subsec_nanos() == 1,
            Kind::Tree(_) => true,
        }
    }

    /// The unit of holes in bytes.
    pub(super) fn block_bytes(&self) -> u64 {
        match &self.kind {
            Kind::Image(image) => image.fs.volume().geometry().block_size.bytes(),
            Kind::Tree(_) => 512,
        }
    }

    pub(super) fn root(&self) -> Node {
        match &self.kind {
            Kind::Image(image) => Node::Image(Arc::clone(&image.root)),
            Kind::Tree(_) => Node::Tree(extant_image::tree::ROOT),
        }
    }

    /// The file with this number.
    pub(super) fn node(&self, key: u64) -> Result<Node, Fault> {
        match &self.kind {
            Kind::Image(image) => {
                let ino = u32::try_from(key).unwrap_or(0);
                image.fs.volume().inode(Ino(ino)).map(Node::Image)
            }
            Kind::Tree(_) => Ok(Node::Tree(key as u32)), // it was made from one
        }
    }

    /// The names of a directory, in order. Passes parts that cannot be read to `damage`.
    pub(super) fn names(&self, dir: &Node, damage: &mut dyn FnMut(Fault)) -> Result<Vec<Name>, Fault> {
        let mut names = Vec::new();
        match (&self.kind, dir) {
            (Kind::Image(image), Node::Image(inode)) => {
                let is_encrypted = dir.is_encrypted();
                let mut next = Some(Cursor::default());
                while let Some(from) = next {
                    let piece = list::piece(image.fs.volume(), inode, from, NAMES_PIECE)?;
                    piece.damage.into_iter().for_each(&mut *damage);
                    names.extend(piece.names.into_iter().map(|found| Name {
                        name: match is_encrypted {
                            true => spelled::spell(&found.name).into_owned(),
                            false => found.name,
                        },
                        key: found.ino.0.into(),
                    }));
                    next = piece.next;
                }
            }
            (Kind::Tree(gathered), Node::Tree(node)) => {
                let tree = &gathered.tree;
                names.extend(tree.children(tree.nodes[*node as usize].content).map(|record| {
                    let record = &tree.records[record as usize];
                    Name { name: tree.name(record).to_vec(), key: record.node.into() }
                }));
            }
            _ => {}
        }
        names.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(names)
    }

    /// A hint that the files of these names are needed soon.
    pub(super) fn prefetch(&self, names: &[Name]) {
        if let Kind::Image(image) = &self.kind {
            let inos: Vec<Ino> = names.iter().map(|name| Ino(name.key as u32)).collect();
            image.fs.volume().prefetch_inodes(&inos);
        }
    }

    pub(super) fn meta(&self, node: &Node) -> Meta {
        match (&self.kind, node) {
            (Kind::Image(image), Node::Image(inode)) => {
                let stat = image.fs.volume().attributes().stat(inode);
                let has_size = matches!(stat.kind, FileType::Regular | FileType::Symlink);
                Meta {
                    kind: stat.kind,
                    mode: stat.mode & 0o7777,
                    uid: stat.uid,
                    gid: stat.gid,
                    size: if has_size { stat.size } else { 0 },
                    mtime: stat.mtime,
                    links: stat.links,
                    device: stat.device,
                }
            }
            (Kind::Tree(gathered), Node::Tree(node)) => {
                let node = &gathered.tree.nodes[*node as usize];
                let kind = node.file_type();
                let has_size = matches!(kind, FileType::Regular | FileType::Symlink);
                Meta {
                    kind,
                    mode: node.mode & 0o7777,
                    uid: node.uid,
                    gid: node.gid,
                    size: if has_size { node.size } else { 0 },
                    mtime: Timestamp { seconds: node.mtime_seconds, nanos: node.mtime_nanos },
                    links: node.links,
                    device: node.device(),
                }
            }
            _ => unreachable!("a node is used with its own side"),
        }
    }

    /// The extended attributes, in the order of their names.
    pub(super) fn xattrs(&self, node: &Node) -> Result<Vec<Attribute>, Fault> {
        let mut found = match (&self.kind, node) {
            (Kind::Image(image), Node::Image(inode)) => image.fs.volume().attributes().xattrs(inode)?,
            (Kind::Tree(gathered), Node::Tree(node)) => {
                let set = gathered.tree.nodes[*node as usize].xattrs;
                let set = gathered.tree.xattr_sets[set as usize].iter();
                set.map(|xattr| Attribute { name: xattr.name.clone(), value: xattr.value.clone() }).collect()
            }
            _ => Vec::new(),
        };
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// The target of a symbolic link.
    pub(super) fn target(&self, node: &Node) -> Result<Vec<u8>, Fault> {
        match (&self.kind, node) {
            (Kind::Image(image), Node::Image(inode)) => image.fs.volume().files().read_link(inode),
            (Kind::Tree(gathered), Node::Tree(node)) => {
                let tree = &gathered.tree;
                Ok(tree.symlink_target(&tree.nodes[*node as usize]).to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The runs of data of a regular file from byte `from` on, at most `max`. Returns the offset up to which
    /// they are complete.
    pub(super) fn runs(&self, node: &Node, from: u64, max: usize, out: &mut Vec<Run>) -> Result<u64, Fault> {
        let (image, inode) = match (&self.kind, node) {
            (Kind::Image(image), Node::Image(inode)) => (image, inode),
            (Kind::Tree(gathered), Node::Tree(node)) => {
                let runs = data_runs(&gathered.tree, *node).into_iter();
                let size = gathered.tree.nodes[*node as usize].size;
                out.extend(runs.filter(|(_, end)| *end > from).map(|(start, end)| Run {
                    start: start.max(from),
                    end: end.min(size),
                    physical: None,
                }));
                return Ok(u64::MAX);
            }
            _ => return Ok(u64::MAX),
        };
        let size = inode.size();
        let mut at = from;
        let mut is_cut = false;
        image.fs.volume().files().extents(inode, from, size.saturating_sub(from), &mut |extent| {
            if out.len() >= max {
                is_cut = true;
                return None;
            }
            // Extents of a damaged map may overlap.
            let start = extent.offset.max(at);
            let end = extent.offset.saturating_add(extent.len).min(size);
            if !extent.unwritten && start < end {
                let physical = image.is_plain && !extent.inline;
                let physical = physical.then(|| extent.physical.saturating_add(start - extent.offset));
                out.push(Run { start, end, physical });
            }
            at = at.max(end);
            Some(())
        })?;
        Ok(if is_cut { at } else { u64::MAX })
    }

    /// The file at a path, whose components are names as [`names`](Self::names) returns them.
    pub(super) fn find(&self, path: &[u8]) -> Result<Node, Fault> {
        let mut at = self.root();
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            at = match (&self.kind, &at) {
                (Kind::Image(image), Node::Image(inode)) if !at.is_encrypted() => {
                    Node::Image(image.fs.volume().names().lookup(inode, part)?)
                }
                (Kind::Tree(gathered), Node::Tree(node)) => {
                    let tree = &gathered.tree;
                    let found = tree.lookup(tree.nodes[*node as usize].content, part);
                    let record = found.ok_or(Fault::Refused(Refusal::NotFound))?;
                    Node::Tree(tree.records[record as usize].node)
                }
                _ => {
                    let names = self.names(&at, &mut |_| {})?;
                    let found = names.iter().find(|name| name.name == part);
                    self.node(found.ok_or(Fault::Refused(Refusal::NotFound))?.key)?
                }
            };
        }
        Ok(at)
    }

    /// Whether the directory `lost+found` of the root has nothing in it. A file system has one, and the tree
    /// that it was made from usually has none.
    pub(super) fn has_empty_lost_found(&self) -> bool {
        let Some(image) = self.as_image() else { return false };
        let found =
            image.fs.volume().names().resolve_at(Arc::clone(&image.root), b"lost+found", Follow::NotTheLast);
        let Ok(found) = found else { return false };
        image.root.ino() == Ino::ROOT
            && found.kind() == FileType::Directory
            && self.names(&Node::Image(found), &mut |_| {}).is_ok_and(|names| names.is_empty())
    }

    /// Whether the root has a name `lost+found`.
    pub(super) fn has_lost_found(&self) -> bool {
        self.find(b"lost+found").is_ok()
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        let contents = match &self.kind {
            Kind::Image(_) => None,
            Kind::Tree(gathered) => Some(ContentReader::new(gathered)),
        };
        Reader { side: self, contents }
    }
}

impl Reader<'_> {
    /// Fills `buf` with the bytes of a regular file from `offset` on, which lie inside one run of
    /// [`Side::runs`]. `physical`: their place on the device.
    pub(super) fn read(
        &mut self,
        node: &Node,
        offset: u64,
        physical: Option<u64>,
        buf: &mut [u8],
    ) -> Result<(), Cause> {
        let image_fault = |fault: Fault| Cause::Image(fault.into());
        match (&self.side.kind, node) {
            (Kind::Image(image), Node::Image(inode)) => {
                if let (Some(at), Some(device)) = (physical, image.fs.plain_device()) {
                    return device.read_at(at, buf).map_err(|fault| image_fault(Fault::Device(fault)));
                }
                let mut done = 0;
                while done < buf.len() {
                    let got = image.fs.volume().files().read(inode, offset + done as u64, &mut buf[done..]);
                    match got.map_err(image_fault)? {
                        0 => break,
                        got => done += got,
                    }
                }
                buf[done..].fill(0);
                Ok(())
            }
            (Kind::Tree(_), Node::Tree(node)) => match &mut self.contents {
                Some(contents) => contents.read_at(*node, offset, buf).map_err(Cause::Source),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
