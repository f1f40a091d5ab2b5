//! Tar archives: one walk from the first header to the end that returns each member as an [`Entry`].
//!
//! Owns: the order of headers (extended headers, then the member's own, then its content), their precedence,
//! the rules for names, and the refusals. `tar/header.rs` parses one header, `tar/sparse.rs` the maps of
//! sparse files, `pax` the extended records; `tar/input.rs` provides the bytes.
//!
//! Does **not** own: how an entry is stored in an image, the order of sources, or the check that a hard
//! link's target exists.
//!
//! ```text
//! [g: records for all] [x: records for the next] [L: long name] [K: long target]  header  content  padding
//! '----------------------- zero or more, any order -----------------------------'
//! ... 512 zeros 512 zeros  (anything after them is ignored)
//! ```
//! Precedence for a path: `GNU.sparse.name`, pax `path`, GNU long name, the header's name. For everything
//! else: pax, then the header. Exception: an access ACL determines the permission bits, as when it is set
//! through the kernel.
//!
//! This module does not use the `tar` crate, which does not return sparse maps (it reads holes as zeros, and
//! supports only the old GNU form), has no global headers and no fractional or negative times, drops nothing
//! and refuses nothing on its own, and reads each header with separate system calls. All of this file would
//! still be needed on top of it; parsing a header of 512 bytes is its smallest part.
//!
//! Invariants
//! 1. The content of an uncompressed archive in a regular file is neither read nor copied; the payload's
//!    backing is the archive.
//! 2. No allocation depends on a size in a header alone: names and records grow with the bytes that are
//!    present, up to a limit (`NAME_BYTES_MAX`, `pax::LOCAL_BYTES_MAX`, `pax::SPARSE_RUNS_MAX`).
//! 3. Every step consumes bytes, so the walk ends with the archive.
//! 4. Any input leads to an entry, a warning or a [`SourceFault`], never to a panic.
//!
//! Source: POSIX.1-2017 pax; GNU tar manual, "Tar Internals"; star(5); libarchive tar(5).

mod header;
mod input;
mod sparse;

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use self::header::{BLOCK, Block, Dialect, Header};
pub(super) use self::input::read_full;
pub use self::input::{Compression, TarInput, Unpacking};
use self::input::{Input, InputFault, Stored};
use super::acltext;
use super::blob::Blob;
use super::entry::{DataRun, Entry, Kind, Metadata, Payload, Xattr};
use super::fault::{Rule, ShownPath, SourceFault, Warning};
use super::oci::Hash;
use super::pax::{Attributes, Globals, LOCAL_BYTES_MAX, SPARSE_RUNS_MAX};
use super::spool::Spool;

/// Maximum length of a path or link target in an archive: far above PATH_MAX, and small enough for memory.
const NAME_BYTES_MAX: u64 = 1 << 20;
/// The advice of a fault because an archive unpacks to more bytes than [`Unpacking`] allows.
pub const ALLOW_MORE: &str = "if it is meant to be so large, allow it to unpack to more";
/// Maximum length of one directory entry's name in ext4.
const COMPONENT_BYTES_MAX: usize = 255;

/// Statistics of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarReport {
    /// The archive's name in messages.
    pub archive: String,
    /// The archive's compression.
    pub compression: Compression,
    /// Number of entries returned.
    pub entries: u64,
    /// Bytes of content of these entries, excluding holes.
    pub content_bytes: u64,
    /// Bytes of the unpacked archive up to its end mark.
    pub archive_bytes: u64,
}

/// Walks an archive and passes every entry to `sink` and every warning to `warn`.
///
/// Payloads may be read after this function has returned. Before that, the spool may still hold them in
/// memory.
///
/// # Errors
/// A [`SourceFault`] of the archive or the spool, or an error of `sink`, which ends the walk.
pub fn read_tar<E: From<SourceFault>>(
    input: TarInput,
    unpacking: Unpacking,
    spool: &mut Spool,
    sink: &mut dyn FnMut(Entry) -> Result<(), E>,
    warn: &mut dyn FnMut(Warning),
) -> Result<TarReport, E> {
    let mut reader = TarReader::open(input, unpacking)?;
    while let Some(entry) = reader.next_entry(spool, warn)? {
        sink(entry)?;
    }
    spool.flush()?;
    Ok(reader.report())
}

/// An archive during a walk.
pub struct TarReader {
    input: Input,
    /// Name for messages. It says so if byte offsets count decompressed bytes.
    archive: String,
    path: Option<PathBuf>,
    compression: Compression,
    globals: Globals,
    /// Number of the current entry.
    entry_no: u64,
    /// Byte offset of the current header or content.
    offset: u64,
    content_bytes: u64,
    ended: bool,
    warned_absolute: bool,
    warned_absolute_target: bool,
    warned_prefix: bool,
}

/// The extended headers of the member that follows them.
#[derive(Default)]
struct Extensions {
    /// Records of an `x` header.
    local: Option<Vec<u8>>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

/// A member's header and everything that extends it.
struct Member<'a> {
    header: Header<'a>,
    attributes: Attributes,
    /// As spelled in the archive.
    raw_path: Vec<u8>,
    raw_link: Vec<u8>,
    /// Bytes of content according to the header or its extension.
    stored_bytes: u64,
    /// Whether there is an `x` header.
    is_pax: bool,
}

/// The content that follows the header of a regular file.
struct Content {
    /// The positions of the bytes in the file, unless they are contiguous from its start on.
    map: Option<SparseMap>,
    /// Number of bytes.
    bytes: u64,
}

/// The map of a sparse file.
struct SparseMap {
    /// Offset, length, offset, length...
    numbers: Vec<u64>,
    /// The file's size including holes.
    real_size: u64,
}

impl TarReader {
    /// Opens an archive and detects its compression.
    ///
    /// # Errors
    /// The file cannot be opened or read; or it is empty, a directory, or compressed in an unsupported
    /// format.
    pub fn open(input: TarInput, unpacking: Unpacking) -> Result<Self, SourceFault> {
        match input {
            TarInput::Path(path) => {
                let name = ShownPath::of(&path).to_string();
                let file = File::open(&path).map_err(|e| SourceFault::io("open", &path, e))?;
                Self::over_file(name, path, file, unpacking)
            }
            TarInput::Stdin => {
                let path = PathBuf::from("standard input");
                let handle = io::stdin().as_fd().try_clone_to_owned();
                let file = handle.map(File::from).map_err(|e| SourceFault::io("open", &path, e))?;
                Self::over_file("standard input".into(), path, file, unpacking)
            }
            TarInput::Reader { name, reader } => Self::over_stream(name, None, reader, unpacking),
        }
    }

    /// Opens a part of a file, with a name for messages. `hash` computes the digest of the unpacked bytes.
    pub(super) fn open_blob(
        name: String,
        blob: &Blob,
        unpacking: Unpacking,
        hash: Option<Hash>,
    ) -> Result<Self, SourceFault> {
        let unreadable = |e| SourceFault::io("read", &blob.path, e);
        let mut reader = blob.reader();
        let mut first = vec![0; BLOCK];
        let got = read_full(&mut reader, &mut first).map_err(unreadable)?;
        first.truncate(got);
        let compression = recognised(&name, &first)?;
        let input = match compression {
            Compression::None => Input::file(Arc::clone(&blob.file), blob.start, blob.start + blob.len),
            packed => Input::stream(first, Box::new(reader), packed, unpacking, hash).map_err(unreadable)?,
        };
        Ok(Self::over(input, name, Some(blob.path.clone()), compression))
    }

    /// The digest of all unpacked bytes, once the archive has ended.
    pub(super) fn take_digest(&mut self) -> Option<String> {
        self.input.take_digest()
    }

    fn over_file(
        name: String,
        path: PathBuf,
        mut file: File,
        unpacking: Unpacking,
    ) -> Result<Self, SourceFault> {
        let unreadable = |e| SourceFault::io("read", &path, e);
        let metadata = file.metadata().map_err(unreadable)?;
        if metadata.is_dir() {
            return Err(unreadable(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        if !metadata.is_file() {
            return Self::over_stream(name, Some(path), Box::new(file), unpacking);
        }
        // The position of standard input may be anywhere in its file.
        let start = file.stream_position().map_err(unreadable)?;
        let mut first = [0; BLOCK];
        let got = read_full(&mut file, &mut first).map_err(unreadable)?;
        let compression = recognised(&name, &first[..got])?;
        if compression == Compression::None {
            let input = Input::file(Arc::new(file), start, metadata.len());
            return Ok(Self::over(input, name, Some(path), compression));
        }
        let first = first[..got].to_vec();
        let input = Input::stream(first, Box::new(file), compression, unpacking, None).map_err(unreadable)?;
        Ok(Self::over(input, name, Some(path), compression))
    }

    fn over_stream(
        name: String,
        path: Option<PathBuf>,
        mut reader: Box<dyn Read + Send>,
        unpacking: Unpacking,
    ) -> Result<Self, SourceFault> {
        let unreadable = |e| SourceFault::io("read", path.clone().unwrap_or_else(|| name.clone().into()), e);
        let mut first = vec![0; BLOCK];
        let got = read_full(&mut *reader, &mut first).map_err(unreadable)?;
        first.truncate(got);
        let compression = recognised(&name, &first)?;
        let input = Input::stream(first, reader, compression, unpacking, None).map_err(unreadable)?;
        Ok(Self::over(input, name, path, compression))
    }

    fn over(input: Input, name: String, path: Option<PathBuf>, compression: Compression) -> Self {
        let archive = match compression {
            Compression::None => name,
            packed => format!("{name} (unpacked by {})", packed.name()),
        };
        Self {
            offset: input.position(),
            input,
            archive,
            path,
            compression,
            globals: Globals::default(),
            entry_no: 1,
            content_bytes: 0,
            ended: false,
            warned_absolute: false,
            warned_absolute_target: false,
            warned_prefix: false,
        }
    }

    /// Statistics up to the current position.
    #[must_use]
    pub fn report(&self) -> TarReport {
        TarReport {
            archive: self.archive.clone(),
            compression: self.compression,
            entries: self.entry_no - 1,
            content_bytes: self.content_bytes,
            archive_bytes: self.offset,
        }
    }

    /// The next entry; `None` at the archive's end. A payload in the spool can be read after
    /// [`Spool::flush`].
    ///
    /// # Errors
    /// See the module's documentation. After an error the walk cannot continue.
    pub fn next_entry(
        &mut self,
        spool: &mut Spool,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Option<Entry>, SourceFault> {
        if self.ended {
            return Ok(None);
        }
        let mut extensions = Extensions::default();
        loop {
            self.offset = self.input.position();
            let Some(block) = self.header_block(warn)? else {
                if extensions.local.is_some()
                    || extensions.long_name.is_some()
                    || extensions.long_link.is_some()
                {
                    return Err(self.fault(&[], Rule::damaged("the archive ends behind an extended header")));
                }
                self.ended = true;
                self.input.drain().map_err(|e| self.unreadable(&[], e))?;
                return Ok(None);
            };
            let Some(header) = Header::verified(&block) else {
                return Err(self.fault(&[], self.not_a_header()));
            };
            let size = || header.size().map_err(|rule| self.fault(&[], rule));
            match header.typeflag() {
                b'x' | b'X' => {
                    let records = self.records(size()?)?;
                    extensions.local = Some(records);
                }
                b'g' => {
                    let records = self.records(size()?)?;
                    self.globals.merge(&records).map_err(|rule| self.fault(&[], rule))?;
                }
                b'L' => extensions.long_name = Some(self.long_text(size()?)?),
                b'K' => extensions.long_link = Some(self.long_text(size()?)?),
                b'V' => {
                    // The label of a volume is not a member.
                    let size = size()?;
                    self.skip_content(&[], size)?;
                }
                b'M' => return Err(self.fault(&header.path(), multi_volume())),
                _ => {
                    let member = self.member(header, extensions)?;
                    let entry = self.entry(member, spool, warn)?;
                    self.entry_no += 1;
                    return Ok(Some(entry));
                }
            }
        }
    }

    /// The next block that is not all zeros. Returns `None` at the archive's end, with a warning if the end
    /// mark is missing.
    fn header_block(&mut self, warn: &mut dyn FnMut(Warning)) -> Result<Option<Block>, SourceFault> {
        let mut block = [0; BLOCK];
        let got = self.input.block(&mut block).map_err(|e| self.unreadable(&[], e))?;
        let is_zero = block == [0; BLOCK];
        if got < BLOCK {
            if !is_zero {
                let rule = format!("the archive ends in the middle of a header, after {got} bytes of it");
                return Err(self.fault(&[], cut(rule)));
            }
            self.warn(
                warn,
                &[],
                "the archive ends without its end mark (two blocks of zeros); it may be cut off",
            );
            return Ok(None);
        }
        if !is_zero {
            return Ok(Some(block));
        }
        let got = self.input.block(&mut block).map_err(|e| self.unreadable(&[], e))?;
        if got == BLOCK && block != [0; BLOCK] {
            self.warn(warn, &[], "a single block of zeros ends the archive here; what follows is ignored");
        }
        Ok(None)
    }

    fn not_a_header(&self) -> Rule {
        if self.entry_no == 1 && self.content_bytes == 0 && self.offset == 0 {
            return Rule::new(
                "this is not a tar archive",
                "give a tar archive, plain or packed by gzip, zstd or xz",
            );
        }
        Rule::damaged("the header's checksum is wrong")
    }

    /// Reads the records of an extended header.
    fn records(&mut self, size: u64) -> Result<Vec<u8>, SourceFault> {
        self.small_content("extended header", size, LOCAL_BYTES_MAX)
    }

    /// Reads a GNU long name or link target, which ends at its first NUL.
    fn long_text(&mut self, size: u64) -> Result<Vec<u8>, SourceFault> {
        let mut text = self.small_content("long name", size, NAME_BYTES_MAX)?;
        if let Some(end) = text.iter().position(|&b| b == 0) {
            text.truncate(end);
        }
        Ok(text)
    }

    fn small_content(&mut self, what: &str, size: u64, size_max: u64) -> Result<Vec<u8>, SourceFault> {
        if size > size_max {
            let rule = format!("it has {what} of {size} bytes; the limit is {size_max}");
            return Err(self.fault(&[], Rule::damaged(rule)));
        }
        let mut bytes = Vec::new();
        self.input.read(&mut bytes, size).map_err(|e| self.unreadable(&[], e))?;
        if (bytes.len() as u64) < size {
            return Err(self.fault(&[], cut(format!("the archive ends in the middle of its {what}"))));
        }
        self.skip_padding(&[], size)?;
        Ok(bytes)
    }

    /// Skips content that is not used.
    fn skip_content(&mut self, path: &[u8], size: u64) -> Result<(), SourceFault> {
        if !self.input.skip(size).map_err(|e| self.unreadable(path, e))? {
            return Err(self.fault(path, content_cut(size)));
        }
        self.skip_padding(path, size)
    }

    /// Skips the zeros that fill a block. They may be missing at the very end. The end mark is then missing
    /// too, which causes a warning.
    fn skip_padding(&mut self, path: &[u8], size: u64) -> Result<(), SourceFault> {
        let padding = size.wrapping_neg() % BLOCK as u64;
        self.input.skip(padding).map_err(|e| self.unreadable(path, e))?;
        Ok(())
    }

    /// Combines a header and its extensions.
    fn member<'a>(&self, header: Header<'a>, extensions: Extensions) -> Result<Member<'a>, SourceFault> {
        let is_pax = extensions.local.is_some();
        let local = extensions.local.unwrap_or_default();
        let mut attributes =
            Attributes::of(&self.globals, &local).map_err(|rule| self.fault(&header.path(), rule))?;
        let raw_path = (attributes.sparse.name.take())
            .or(attributes.path.take())
            .or(extensions.long_name)
            .unwrap_or_else(|| header.path());
        let raw_link = (attributes.link_path.take())
            .or(extensions.long_link)
            .unwrap_or_else(|| header.link_name().to_vec());
        if attributes.volume_offset != 0 {
            return Err(self.fault(&raw_path, multi_volume()));
        }
        let stored_bytes = match attributes.size {
            Some(size) => size,
            None => header.size().map_err(|rule| self.fault(&raw_path, rule))?,
        };
        Ok(Member { header, attributes, raw_path, raw_link, stored_bytes, is_pax })
    }

    /// Converts a member to an entry and advances past its content.
    fn entry(
        &mut self,
        mut member: Member<'_>,
        spool: &mut Spool,
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Entry, SourceFault> {
        let raw_path = std::mem::take(&mut member.raw_path);
        let (path, was_absolute) = normalised(&raw_path).map_err(|rule| self.fault(&raw_path, rule))?;
        if member.header.has_docker_prefix() && !self.warned_prefix {
            self.warned_prefix = true;
            let text = "its name goes on where GNU tar has times, as Docker up to 17.05 wrote it; it is read as Docker reads it, \
                        here and further on";
            self.warn(warn, &raw_path, text);
        }
        if was_absolute && !self.warned_absolute {
            self.warned_absolute = true;
            self.warn(warn, &raw_path, "the leading / of member names is removed, here and further on");
        }
        let mut metadata = metadata(&mut member).map_err(|rule| self.fault(&raw_path, rule))?;
        for text in std::mem::take(&mut member.attributes.left_out) {
            self.warn(warn, &raw_path, &text);
        }
        let is_file = |flag| matches!(flag, b'0' | 0 | b'7' | b'S');
        let flag = match member.header.typeflag() {
            // A GNU incremental directory: its content is a list of names.
            b'D' => b'D',
            // Before tar had a type for directories, a trailing slash marked them.
            flag if is_file(flag) && raw_path.ends_with(b"/") => b'D',
            flag @ (b'1'..=b'6') => flag,
            flag if is_file(flag) => flag,
            unknown => {
                let text = format!(
                    "entry type '{}' is not known; taken as a regular file, as POSIX asks",
                    ShownPath(&[unknown])
                );
                self.warn(warn, &raw_path, &text);
                b'0'
            }
        };
        let kind = match flag {
            b'1' => {
                let target = self.link_target(&member.raw_link, &raw_path, warn)?;
                if self.hard_link_has_content(&member)? {
                    self.skip_content(&raw_path, member.stored_bytes)?;
                }
                Kind::HardLink(target)
            }
            b'2' => self.symlink(std::mem::take(&mut member.raw_link), &raw_path)?,
            b'3' | b'4' => self.device(&member, &raw_path)?,
            // The size is not the length of content: some writers store a link's length or a directory's
            // blocks in the field.
            b'5' => Kind::Directory,
            b'D' => {
                self.skip_content(&raw_path, member.stored_bytes)?;
                Kind::Directory
            }
            b'6' => Kind::Fifo,
            _ => self.file(&member, flag, &raw_path, spool)?,
        };
        if path.is_empty() && !matches!(kind, Kind::Directory) {
            let rule = Rule::damaged("the root of the tree is not a directory");
            return Err(self.fault(&raw_path, rule));
        }
        if !matches!(kind, Kind::Directory) {
            let before = metadata.xattrs.len();
            metadata.xattrs.retain(|xattr| xattr.name != b"system.posix_acl_default");
            if metadata.xattrs.len() < before {
                self.warn(warn, &raw_path, "its default ACL is left out: only directories have one");
            }
        }
        Ok(Entry { path, metadata, kind })
    }

    fn link_target(
        &mut self,
        raw_target: &[u8],
        raw_path: &[u8],
        warn: &mut dyn FnMut(Warning),
    ) -> Result<Vec<u8>, SourceFault> {
        let shown = ShownPath(raw_target);
        let (target, was_absolute) = normalised(raw_target).map_err(|rule| {
            let rule = Rule::new(format!("it is a hard link to \"{shown}\": {}", rule.rule), rule.advice);
            self.fault(raw_path, rule)
        })?;
        if target.is_empty() {
            return Err(self.fault(raw_path, Rule::damaged(format!("it is a hard link to \"{shown}\""))));
        }
        if was_absolute && !self.warned_absolute_target {
            self.warned_absolute_target = true;
            self.warn(warn, raw_path, "the leading / of hard link targets is removed, here and further on");
        }
        Ok(target)
    }

    /// Whether content follows a hard link. PAX archives may repeat the content of the file; other archives
    /// record its size but omit the content.
    ///
    /// Without a PAX header, the next block decides: if it is a header or the end mark, the link has no
    /// content.
    fn hard_link_has_content(&mut self, member: &Member<'_>) -> Result<bool, SourceFault> {
        if member.stored_bytes == 0 || member.is_pax {
            return Ok(member.stored_bytes > 0);
        }
        let block = self.input.peek().map_err(|e| self.unreadable(&member.raw_path, e))?;
        Ok(block.is_some_and(|block| block != [0; BLOCK] && Header::verified(&block).is_none()))
    }

    fn symlink(&self, target: Vec<u8>, raw_path: &[u8]) -> Result<Kind, SourceFault> {
        if target.is_empty() {
            return Err(self.fault(raw_path, Rule::damaged("it is a symbolic link without a target")));
        }
        Ok(Kind::Symlink(target))
    }

    fn device(&self, member: &Member<'_>, raw_path: &[u8]) -> Result<Kind, SourceFault> {
        let attributes = &member.attributes;
        let half = |said: Option<u32>, header: Result<u32, Rule>| match said {
            Some(number) => Ok(number),
            None => header.map_err(|rule| self.fault(raw_path, rule)),
        };
        let major = half(attributes.dev_major, member.header.dev_major())?;
        let minor = half(attributes.dev_minor, member.header.dev_minor())?;
        Ok(match member.header.typeflag() {
            b'3' => Kind::CharDevice { major, minor },
            _ => Kind::BlockDevice { major, minor },
        })
    }

    /// A regular file: reads its map if it is sparse, and stores its content for later reading.
    fn file(
        &mut self,
        member: &Member<'_>,
        flag: u8,
        raw_path: &[u8],
        spool: &mut Spool,
    ) -> Result<Kind, SourceFault> {
        let Content { map, bytes: content } = self.content(member, flag, raw_path)?;
        let stored = match self.input.store(content, spool) {
            Ok(stored) => stored,
            Err(InputFault::Read(fault)) => return Err(self.unreadable(raw_path, fault)),
            Err(InputFault::Spool(fault)) => return Err(fault),
        };
        let Stored::At(backing, start) = stored else {
            return Err(self.fault(raw_path, content_cut(content)));
        };
        let (size, runs) = match map {
            None if content == 0 => (0, Vec::new()),
            None => (content, vec![DataRun { file_offset: 0, len: content, backing_offset: start }]),
            Some(SparseMap { numbers, real_size }) => {
                let runs = sparse::runs(&numbers, real_size, content, start);
                (real_size, runs.map_err(|rule| self.fault(raw_path, rule))?)
            }
        };
        self.content_bytes += content;
        self.skip_padding(raw_path, content)?;
        Ok(Kind::File { size, payload: Payload { backing, runs } })
    }

    /// The map of a sparse file, wherever the archive stores it, and the number of content bytes that follow.
    fn content(&mut self, member: &Member<'_>, flag: u8, raw_path: &[u8]) -> Result<Content, SourceFault> {
        let stored = member.stored_bytes;
        let sparse =
            |numbers, real_size, bytes| Content { map: Some(SparseMap { numbers, real_size }), bytes };
        if flag == b'S' {
            if member.header.dialect != Dialect::Gnu {
                return Err(self.fault(raw_path, unknown_sparse("star's own sparse format".into())));
            }
            let (mut map, mut more, real_size) =
                member.header.old_sparse().map_err(|rule| self.fault(raw_path, rule))?;
            while more {
                let block = self.sparse_block(raw_path)?;
                more = header::old_sparse_extension(&block, &mut map)
                    .map_err(|rule| self.fault(raw_path, rule))?;
                if map.len() / 2 > SPARSE_RUNS_MAX {
                    let rule = format!("a sparse file has more than {SPARSE_RUNS_MAX} data runs");
                    return Err(self.fault(raw_path, Rule::damaged(rule)));
                }
            }
            return Ok(sparse(map, real_size, stored));
        }
        let keys = &member.attributes.sparse;
        let version = match (keys.major, keys.minor, keys.real_size) {
            (None, None, None) => return Ok(Content { map: None, bytes: stored }),
            (major, minor, Some(real_size)) => (major.unwrap_or(0), minor.unwrap_or(0), real_size),
            (_, _, None) => {
                let rule = "its records say that it is sparse, but not how large it is";
                return Err(self.fault(raw_path, Rule::damaged(rule)));
            }
        };
        match version {
            (0, 0 | 1, real_size) => Ok(sparse(keys.map.clone(), real_size, stored)),
            (1, 0, real_size) => {
                let mut reader = sparse::MapReader::default();
                let mut left = stored;
                loop {
                    let rest = left.checked_sub(BLOCK as u64);
                    left = rest.ok_or_else(|| {
                        self.fault(
                            raw_path,
                            Rule::damaged("the sparse map is longer than the content it stands in"),
                        )
                    })?;
                    let block = self.sparse_block(raw_path)?;
                    if reader.take(&block).map_err(|rule| self.fault(raw_path, rule))? {
                        return Ok(sparse(reader.into_map(), real_size, left));
                    }
                }
            }
            (major, minor, _) => {
                Err(self.fault(raw_path, unknown_sparse(format!("the PAX sparse format {major}.{minor}"))))
            }
        }
    }

    fn sparse_block(&mut self, raw_path: &[u8]) -> Result<Block, SourceFault> {
        let mut block = [0; BLOCK];
        let got = self.input.block(&mut block).map_err(|e| self.unreadable(raw_path, e))?;
        if got < BLOCK {
            return Err(self.fault(raw_path, cut("the archive ends in the middle of a sparse map".into())));
        }
        Ok(block)
    }

    /// A warning about the entry that was returned last.
    pub(super) fn warning_of_last(&self, path: &[u8], text: &str) -> Warning {
        Warning {
            archive: self.archive.clone(),
            entry_no: self.entry_no - 1,
            offset: self.offset,
            path: path.to_vec(),
            text: text.to_owned(),
        }
    }

    /// A broken rule at the current position.
    fn fault(&self, path: &[u8], rule: Rule) -> SourceFault {
        SourceFault::Archive {
            archive: self.archive.clone(),
            entry_no: self.entry_no,
            offset: self.offset,
            path: path.to_vec(),
            rule: rule.rule.into_owned(),
            advice: rule.advice,
        }
    }

    /// A failed read: either a system error, or an error of the decompressor, which is a fault of the
    /// archive.
    fn unreadable(&self, path: &[u8], fault: io::Error) -> SourceFault {
        if self.compression == Compression::None || fault.raw_os_error().is_some() {
            let file = self.path.clone().unwrap_or_else(|| self.archive.clone().into());
            return SourceFault::io("read", file, fault);
        }
        let words = fault.to_string();
        if fault.get_ref().is_some_and(|inner| inner.is::<input::TooMuch>()) {
            return self.fault(path, Rule::new(words, ALLOW_MORE));
        }
        let advice = match words.contains("memory") {
            // A decoder exceeded its memory limit: see `tar/input.rs`.
            true => "unpack it first and give the plain archive",
            false => "the archive is cut off or damaged: fetch or create it again",
        };
        let rule = format!("the {} data cannot be unpacked ({words})", self.compression.name());
        self.fault(path, Rule::new(rule, advice))
    }

    fn warn(&self, warn: &mut dyn FnMut(Warning), path: &[u8], text: &str) {
        warn(Warning {
            archive: self.archive.clone(),
            entry_no: self.entry_no,
            offset: self.offset,
            path: path.to_vec(),
            text: text.to_owned(),
        });
    }
}

/// Detects the compression. An unsupported one is an error that names it.
fn recognised(name: &str, first: &[u8]) -> Result<Compression, SourceFault> {
    let refuse = |rule: String, advice| SourceFault::Archive {
        archive: name.to_owned(),
        entry_no: 1,
        offset: 0,
        path: Vec::new(),
        rule,
        advice,
    };
    if first.is_empty() {
        return Err(refuse(
            "the archive has no bytes at all".into(),
            "see whether the program that should have written it failed",
        ));
    }
    Compression::of(first).map_err(|other| {
        let rule = format!("it is packed by {other}, which is not supported");
        refuse(rule, "unpack it first and give the plain archive, or pack it with gzip, zstd or xz")
    })
}

/// The metadata without the type. Records have priority over the header.
fn metadata(member: &mut Member<'_>) -> Result<Metadata, Rule> {
    let header = &member.header;
    let attributes = &mut member.attributes;
    let (header_atime, header_ctime) = header.atime_and_ctime();
    let or = |said: Option<u32>, header: Result<u32, Rule>| said.map_or(header, Ok);
    let mut permissions = header.permissions()?;
    let access_acl = attributes.xattrs.iter().find(|xattr| xattr.name == b"system.posix_acl_access");
    if let Some(bits) = access_acl.and_then(|acl| acltext::permissions_of(&acl.value)) {
        permissions = permissions & !0o777 | bits;
    }
    Ok(Metadata {
        permissions,
        uid: or(attributes.uid, header.uid())?,
        gid: or(attributes.gid, header.gid())?,
        mtime: attributes.mtime.map_or_else(|| header.mtime(), Ok)?,
        atime: attributes.atime.or(header_atime),
        ctime: attributes.ctime.or(header_ctime),
        crtime: attributes.crtime,
        xattrs: std::mem::take::<Vec<Xattr>>(&mut attributes.xattrs),
    })
}

/// Converts a member's name to a path below the root. Also returns whether the name began with a slash.
///
/// Empty components and `.` are removed. `..` is an error, because its meaning depends on symbolic links.
fn normalised(raw: &[u8]) -> Result<(Vec<u8>, bool), Rule> {
    if raw.is_empty() {
        return Err(Rule::damaged("it has no name"));
    }
    if raw.contains(&0) {
        return Err(Rule::damaged("its name holds a NUL byte"));
    }
    let mut path = Vec::with_capacity(raw.len());
    for component in raw.split(|&b| b == b'/') {
        match component {
            b"" | b"." => continue,
            b".." => {
                return Err(Rule::new(
                    "its name holds the component \"..\"",
                    "create the archive with names that stay below its root",
                ));
            }
            long if long.len() > COMPONENT_BYTES_MAX => {
                let rule = format!("its name has a component of {} bytes", long.len());
                return Err(Rule::new(rule, "ext4 holds names of up to 255 bytes: rename it in the source"));
            }
            _ => {}
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(component);
    }
    Ok((path, raw[0] == b'/'))
}

fn cut(rule: String) -> Rule {
    Rule::new(rule, "the archive is cut off: fetch or create it again")
}

fn content_cut(size: u64) -> Rule {
    cut(format!("the archive ends in the middle of its {size} bytes of content"))
}

fn multi_volume() -> Rule {
    Rule::new(
        "it goes on from another volume of a multi-volume archive",
        "join the volumes by unpacking them with GNU tar, or create the archive without --multi-volume",
    )
}

fn unknown_sparse(what: String) -> Rule {
    Rule::new(
        format!("it is stored in {what}, which is not known here"),
        "create the archive with GNU tar --sparse",
    )
}
