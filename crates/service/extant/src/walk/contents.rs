//! A walk that also returns the contents of files, read ahead.
//!
//! Owns: combining neighbouring files into one read, buffers, the amount of readahead. Does **not** own:
//! large files, which the caller reads in pieces itself.
//!
//! ```text
//!  walk -> entries in order -> files that are neighbours on the device:       one read of up to 1 MiB
//!                           -> small but fragmented, sparse or inline files:  a separate read
//!                           -> large files:                                   Data::Large
//!       -> batches of 1 MiB or 1024 entries -> at most 24 batches ahead of the caller
//! ```
//!
//! Invariants
//! 1. Memory is bounded by the batches ahead of the caller, whatever the sizes of the files.
//! 2. A file that cannot be read is an entry with a fault instead of data; its neighbours are not affected.
//! 3. The loader reads the device directly only if no journal is replayed over it in memory.

use std::collections::HashMap;
use std::ops::{Deref, Range};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use extant_base::Ino;
use extant_ondisk::inode::flags;
use extant_volume::{Attribute, Fault, FileType, InodeRef, Stat};

use super::{Entries, Entry, WalkFault};
use crate::FileSystem;

/// Bytes per buffer.
const CHUNK: usize = 1 << 20;
/// Files up to this size are read ahead.
const SMALL_MAX: u64 = 256 << 10;
/// Maximum number of bytes between two files that are read and discarded, instead of starting another read.
const GAP_MAX: u64 = 32 << 10;
/// Entries per batch.
const BATCH_ENTRIES: usize = 1024;
/// Batches ahead of the caller.
const BATCHES_AHEAD: usize = 24;

/// An entry of a walk with its contents.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Loaded;
///
/// let motd: Loaded = fs.walk("/etc/motd")?.contents().next().unwrap()?;
/// assert_eq!((motd.stat.size, motd.link_of, motd.xattrs?.len()), (6, None, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Loaded {
    /// The name.
    pub entry: Entry,
    /// Its inode.
    pub inode: InodeRef,
    /// The result of lstat(2).
    pub stat: Stat,
    /// For a further name of the same file: the path (see [`Entry::path`]) of its first name in this walk.
    pub link_of: Option<Arc<[u8]>>,
    /// Extended attributes; empty for a further name of a file.
    pub xattrs: Result<Vec<Attribute>, Fault>,
    /// The content.
    pub data: Data,
}

/// The content of an entry.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Data;
///
/// let link = fs.walk("/lib")?.contents().next().unwrap()?;
/// assert!(matches!(link.data, Data::Target(target) if target == b"usr/lib"));
/// let large = fs.walk("/usr/lib/large")?.contents().next().unwrap()?;
/// assert!(matches!(large.data, Data::Large));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub enum Data {
    /// No content: a directory, a device, an empty file, a further name of a file.
    None,
    /// The target of a symbolic link.
    Target(Vec<u8>),
    /// All bytes of a regular file.
    Ready(Bytes),
    /// A regular file of more than 256 KiB; the caller reads it in pieces from the volume.
    Large,
    /// The content cannot be read.
    Failed(Fault),
}

/// The bytes of a file, in a buffer shared with neighbouring files.
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::{Bytes, Data};
///
/// let motd = fs.walk("/etc/motd")?.contents().next().unwrap()?;
/// let Data::Ready(bytes) = motd.data else { panic!("it is small") };
/// let bytes: Bytes = bytes;
/// assert_eq!(&bytes[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Bytes {
    chunk: Arc<Chunk>,
    range: Range<usize>,
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.chunk.bytes[self.range.clone()]
    }
}

/// A buffer; dropping it returns its memory to the pool for the next batch.
struct Chunk {
    bytes: Vec<u8>,
    pool: Pool,
}

type Pool = Arc<Mutex<Vec<Vec<u8>>>>;

impl Drop for Chunk {
    fn drop(&mut self) {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.len() < BATCHES_AHEAD {
            pool.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// An iterator over the entries of a walk with their contents; created by
/// [`Walk::contents`](super::Walk::contents).
///
/// ```
/// # mod example { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/example/image.rs")); }
/// # let (_kept, image) = example::example_image();
/// # let fs = extant::open(&image)?;
/// use extant::walk::Contents;
///
/// let mut all: Contents = fs.walk("/etc")?.contents();
/// let root = all.next().unwrap()?;
/// assert_eq!((root.entry.depth(), all.count()), (0, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Contents {
    source: Source,
    batch: std::vec::IntoIter<Item>,
}

type Item = Result<Loaded, WalkFault>;

enum Source {
    /// A thread reads ahead of the caller.
    Thread(Option<Receiver<Vec<Item>>>, Option<JoinHandle<()>>),
    /// The caller reads; no thread could be started.
    Inline(Box<Loader>),
}

impl Contents {
    pub(super) fn start(fs: FileSystem, entries: Entries) -> Self {
        let loader = Box::new(Loader::new(fs, entries));
        let (give, take) = mpsc::channel::<Box<Loader>>();
        let (send, receive) = mpsc::sync_channel(BATCHES_AHEAD);
        let thread = std::thread::Builder::new().name("extant-load".to_owned()).spawn(move || {
            let Ok(mut loader) = take.recv() else { return };
            while let Some(batch) = loader.batch() {
                if send.send(batch).is_err() {
                    return; // the receiver is gone
                }
            }
        });
        let source = match thread {
            Err(_) => Source::Inline(loader),
            Ok(thread) => match give.send(loader) {
                Ok(()) => Source::Thread(Some(receive), Some(thread)),
                Err(back) => Source::Inline(back.0),
            },
        };
        Self { source, batch: Vec::new().into_iter() }
    }
}

impl Iterator for Contents {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        loop {
            if let Some(item) = self.batch.next() {
                return Some(item);
            }
            let batch = match &mut self.source {
                Source::Thread(receive, _) => receive.as_ref()?.recv().ok()?,
                Source::Inline(loader) => loader.batch()?,
            };
            self.batch = batch.into_iter();
        }
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        if let Source::Thread(receive, thread) = &mut self.source {
            drop(receive.take()); // otherwise the thread blocks while the channel is full
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

/// Creates the batches.
struct Loader {
    fs: FileSystem,
    entries: Entries,
    pool: Pool,
    /// First names of files that have several names, with the number of names still to come.
    links: HashMap<Ino, (Arc<[u8]>, u32)>,
    /// An entry that did not fit into the previous batch.
    held: Option<(Entry, InodeRef)>,
}

/// A batch under construction.
struct Draft {
    bytes: Vec<u8>,
    /// Reserved bytes of the buffer.
    used: usize,
    /// Each item, with the range of the buffer for its data.
    items: Vec<(Item, Option<Range<usize>>)>,
    /// A read that may still grow.
    run: Option<ReadRun>,
}

/// Files that are neighbours on the device.
struct ReadRun {
    physical: u64,
    /// Where the run begins in the buffer.
    at: usize,
    len: usize,
    /// Indexes in `items`.
    members: Vec<usize>,
}

impl Loader {
    fn new(fs: FileSystem, entries: Entries) -> Self {
        Self { fs, entries, pool: Pool::default(), links: HashMap::new(), held: None }
    }

    /// The next batch; `None` at the end.
    fn batch(&mut self) -> Option<Vec<Item>> {
        let bytes = self.pool.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let bytes = bytes.unwrap_or_else(|| vec![0; CHUNK]);
        let mut draft = Draft { bytes, used: 0, items: Vec::new(), run: None };
        while draft.items.len() < BATCH_ENTRIES {
            let next = match self.held.take() {
                Some(held) => Ok(held),
                None => match self.entries.next() {
                    None => break,
                    Some(Err(fault)) => Err(fault),
                    Some(Ok(entry)) => match entry.inode() {
                        Ok(inode) => Ok((entry, inode)),
                        Err(fault) => Err(WalkFault {
                            path: entry.path().to_vec(),
                            problem: super::Problem::Fault(fault),
                        }),
                    },
                },
            };
            match next {
                Err(fault) => draft.items.push((Err(fault), None)),
                Ok((entry, inode)) => {
                    if inode.kind() == FileType::Regular
                        && inode.size() <= SMALL_MAX
                        && draft.used + room(inode.size()) > CHUNK
                    {
                        self.held = Some((entry, inode));
                        break;
                    }
                    self.add(&mut draft, entry, inode);
                }
            }
        }
        self.read_run(&mut draft);
        let chunk = Arc::new(Chunk { bytes: draft.bytes, pool: Arc::clone(&self.pool) });
        let finish = |(mut item, range): (Item, Option<Range<usize>>)| {
            if let (Ok(Loaded { data: data @ Data::None, .. }), Some(range)) = (&mut item, range) {
                *data = Data::Ready(Bytes { chunk: Arc::clone(&chunk), range });
            }
            item
        };
        let items: Vec<Item> = draft.items.into_iter().map(finish).collect();
        (!items.is_empty()).then_some(items)
    }

    fn add(&mut self, draft: &mut Draft, entry: Entry, inode: InodeRef) {
        let volume = self.fs.volume();
        let stat = volume.attributes().stat(&inode);
        let link_of = self.link_of(&entry, &stat);
        let volume = self.fs.volume();
        let xattrs = if link_of.is_none() { volume.attributes().xattrs(&inode) } else { Ok(Vec::new()) };
        let data = match stat.kind {
            _ if link_of.is_some() => Data::None,
            FileType::Symlink => volume.files().read_link(&inode).map_or_else(Data::Failed, Data::Target),
            FileType::Regular if stat.size > SMALL_MAX => Data::Large,
            FileType::Regular if stat.size > 0 => {
                let loaded = Loaded { entry, inode, stat, link_of, xattrs, data: Data::None };
                self.add_small(draft, loaded);
                return;
            }
            _ => Data::None,
        };
        draft.items.push((Ok(Loaded { entry, inode, stat, link_of, xattrs, data }), None));
    }

    /// The path of the first name of this file, if `entry` is a further name.
    fn link_of(&mut self, entry: &Entry, stat: &Stat) -> Option<Arc<[u8]>> {
        if stat.links < 2 || stat.kind == FileType::Directory {
            return None;
        }
        let Some((first, left)) = self.links.get_mut(&stat.ino) else {
            self.links.insert(stat.ino, (Arc::clone(&entry.path), stat.links - 1));
            return None;
        };
        let first = Arc::clone(first);
        *left -= 1;
        if *left == 0 {
            self.links.remove(&stat.ino);
        }
        Some(first)
    }

    /// Adds a file that fits into the buffer: to the run of its neighbours, or with a separate read.
    fn add_small(&mut self, draft: &mut Draft, loaded: Loaded) {
        let len = loaded.stat.size as usize; // at most SMALL_MAX
        let Some(physical) = self.one_piece(&loaded) else {
            // The run cannot grow past the bytes that are reserved next, so read it now.
            self.read_run(draft);
            let range = draft.reserve(len);
            let item = match read_whole(&self.fs, &loaded.inode, &mut draft.bytes[range.clone()]) {
                Ok(()) => (Ok(loaded), Some(range)),
                Err(fault) => (Ok(Loaded { data: Data::Failed(fault), ..loaded }), None),
            };
            draft.items.push(item);
            return;
        };
        let place = draft.items.len();
        let joins = draft.run.as_ref().and_then(|run| {
            let gap = physical
                .checked_sub(run.physical.saturating_add(run.len as u64))
                .filter(|gap| *gap <= GAP_MAX)? as usize;
            (run.at + run.len + gap + room(len as u64) <= CHUNK).then_some(gap)
        });
        let at = match (joins, &mut draft.run) {
            (Some(gap), Some(run)) => {
                let at = run.at + run.len + gap;
                run.len += gap + len;
                run.members.push(place);
                draft.used = (run.at + run.len).next_multiple_of(ALIGN);
                at
            }
            _ => {
                self.read_run(draft);
                let at = draft.reserve(len).start;
                draft.run = Some(ReadRun { physical, at, len, members: vec![place] });
                at
            }
        };
        draft.items.push((Ok(loaded), Some(at..at + len)));
    }

    /// The position of a file on the device, if it is contiguous and not encrypted.
    fn one_piece(&self, loaded: &Loaded) -> Option<u64> {
        self.fs.plain_device()?;
        if loaded.stat.flags & flags::ENCRYPT != 0 {
            return None;
        }
        let mut first = None;
        let mut take_first = |extent: extant_volume::Extent| {
            let is_new = first.is_none();
            first = first.or(Some(extent));
            is_new.then_some(())
        };
        self.fs.volume().files().extents(&loaded.inode, 0, loaded.stat.size, &mut take_first).ok()?;
        let extent = first?;
        let whole =
            extent.offset == 0 && extent.len >= loaded.stat.size && !extent.unwritten && !extent.inline;
        whole.then_some(extent.physical)
    }

    /// Reads the gathered files in one read. If that fails, reads each file separately, so that the fault is
    /// attributed to the right file.
    fn read_run(&self, draft: &mut Draft) {
        let Some(run) = draft.run.take() else { return };
        let into = &mut draft.bytes[run.at..run.at + run.len];
        if self.fs.plain_device().is_some_and(|device| device.read_at(run.physical, into).is_ok()) {
            return;
        }
        for place in run.members {
            let Some((Ok(loaded), Some(range))) = draft.items.get_mut(place) else { continue };
            if let Err(fault) = read_whole(&self.fs, &loaded.inode, &mut draft.bytes[range.clone()]) {
                loaded.data = Data::Failed(fault);
            }
        }
    }
}

/// Alignment in a buffer of files that are read separately.
const ALIGN: usize = 64;

/// Bytes that a file takes in a buffer.
fn room(len: u64) -> usize {
    (len as usize).next_multiple_of(ALIGN)
}

impl Draft {
    /// Reserves bytes after all others. There is space: see [`Loader::batch`].
    fn reserve(&mut self, len: usize) -> Range<usize> {
        let at = self.used;
        self.used = at + room(len as u64);
        at..at + len
    }
}

/// Fills `into`, which has the file's whole size. If the file ends earlier (another state of the same inode),
/// the rest is filled with zeros.
fn read_whole(fs: &FileSystem, inode: &InodeRef, into: &mut [u8]) -> Result<(), Fault> {
    let mut done = 0;
    while done < into.len() {
        match fs.volume().files().read(inode, done as u64, &mut into[done..])? {
            0 => break,
            got => done += got,
        }
    }
    into[done..].fill(0);
    Ok(())
}
