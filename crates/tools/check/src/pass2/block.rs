//! One directory block: its checksum, its chain of entries, and the content of each entry.
//!
//! Does **not** own: the index (see [`super::index`]), duplicate names in different blocks (see
//! [`super::twice`]).

use extant_base::{BlockSize, Ino, Lblk, Pblk};
use extant_ondisk::dirent::{TAIL_LEN, decode_rec_len, tail_checksum, verify_tail};
use extant_ondisk::hash::{HashVersion, dirhash, seed_words};
use extant_ondisk::inode::flags;
use extant_ondisk::{Features, casefold, filetype::FileType};

use super::entries::{Broken, Raw, entries};
use super::names::{Key, Table};
use crate::rules::directory as rules;
use crate::state::{DirNote, State};
use crate::tree::Tree;
use crate::{FindingPlace, Rule};

/// The length of the shortest encrypted name.
const ENCRYPTED_NAME_MIN: usize = 16;
/// `s_encoding_flags`: names that are not valid in the encoding are refused.
const STRICT_ENCODING: u16 = 1;

/// A directory under check.
pub(super) struct Dir<'a> {
    pub(super) state: &'a State<'a>,
    pub(super) tree: &'a Tree,
    pub(super) note: &'a DirNote,
    pub(super) block_size: BlockSize,
    /// Blocks according to its size.
    pub(super) blocks: u32,
    /// The INDEX flag is set.
    pub(super) indexed: bool,
    /// Encrypted and casefolded: entries store their hash.
    pub(super) hashed: bool,
    pub(super) encrypted: bool,
    pub(super) casefold: bool,
    /// Casefolded, and the superblock demands valid names (`s_encoding_flags`, strict mode).
    strict: bool,
    /// The hash of its index; `None` without an index, or if the hash cannot be computed here.
    pub(super) hash: Option<HashVersion>,
    filetype: bool,
    csum: bool,
    hash_seed: [u32; 4],
    first_ino: u32,
    inodes: u32,
    key: Key,
}

/// The location of a block, or of one part of an inline directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Where {
    pub(super) lblk: Lblk,
    /// `None`: inline, in the inode.
    pub(super) pblk: Option<Pblk>,
    /// The offset of the area within the block or the directory.
    pub(super) offset: usize,
}

/// What the check of the index needs to know about a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Seen {
    /// A hole, or unreadable.
    #[default]
    Nothing,
    /// It has the form of an index block.
    Node,
    /// It may hold names: the smallest and largest hash. `min` is above `max` if it holds no name with a
    /// known hash.
    Leaf { min: u32, max: u32 },
}

/// Buffers reused for every block.
pub(super) struct Scratch {
    table: Table,
    /// Keys of names, for a directory whose duplicate names may lie in different blocks.
    pub(super) keys: Vec<u64>,
    /// Collect keys?
    pub(super) collect: bool,
}

impl Scratch {
    pub(super) fn new(block_size: BlockSize) -> Self {
        Self { table: Table::new(block_size.len()), keys: Vec::new(), collect: false }
    }
}

impl<'a> Dir<'a> {
    pub(super) fn new(state: &'a State<'a>, tree: &'a Tree, note: &'a DirNote, key: Key) -> Self {
        let (sb, geometry) = (&state.image.sb, &state.image.geometry);
        let has = |flag| note.flags & flag != 0;
        let (encrypted, casefold) = (has(flags::ENCRYPT), has(flags::CASEFOLD));
        // Only with large_dir is the high half of the size valid for directories.
        let size =
            if sb.features.has_incompat(Features::LARGEDIR) { note.size } else { note.size & 0xFFFF_FFFF };
        Self {
            state,
            tree,
            note,
            block_size: geometry.block_size,
            blocks: u32::try_from(size >> geometry.block_size.log2()).unwrap_or(u32::MAX),
            indexed: has(flags::INDEX) && !has(flags::INLINE_DATA),
            hashed: encrypted && casefold,
            encrypted,
            casefold,
            strict: casefold && sb.encoding_flags & STRICT_ENCODING != 0,
            hash: None,
            filetype: sb.features.has_incompat(Features::FILETYPE),
            csum: sb.features.metadata_csum(),
            hash_seed: seed_words(&sb.hash_seed),
            first_ino: if sb.rev_level == 0 { Ino::FIRST.0 } else { sb.first_ino },
            inodes: geometry.inodes(),
            key,
        }
    }

    pub(super) fn broken(&self, rule: &'static Rule, place: FindingPlace, says: impl Into<String>) {
        self.state.findings.broken(rule, place, says);
    }

    /// A block of this directory.
    pub(super) fn place(&self, at: Where) -> FindingPlace {
        let place = FindingPlace::ino(self.note.ino);
        match at.pblk {
            Some(pblk) => place.at_lblk(at.lblk).in_block(pblk),
            None => place,
        }
    }

    fn entry_place(&self, at: Where, raw: &Raw<'_>) -> FindingPlace {
        self.place(at).at_offset((at.offset + raw.offset) as u32).named(raw.name)
    }

    /// Does this block, not the first of the directory, have the form of an index block?
    pub(super) fn looks_like_node(&self, block: &[u8]) -> bool {
        let Some(&[i0, i1, i2, i3, r0, r1, name_len, _, l0, l1]) = block.first_chunk() else { return false };
        let rec_len = decode_rec_len(u16::from_le_bytes([r0, r1]), self.block_size);
        // An empty leaf without a checksum tail begins with the same bytes; the limit distinguishes them.
        let limit = (self.block_size.len() - 8 - if self.csum { 8 } else { 0 }) / 8;
        [i0, i1, i2, i3, name_len] == [0; 5]
            && rec_len == self.block_size.len()
            && (self.csum || usize::from(u16::from_le_bytes([l0, l1])) == limit)
    }

    /// Checks a whole block.
    pub(super) fn check_block(&self, at: Where, block: &[u8], scratch: &mut Scratch) -> Seen {
        let first = at.lblk == Lblk(0);
        if self.indexed && !first && self.looks_like_node(block) {
            return Seen::Node;
        }
        let mut end = block.len();
        if self.csum && !(self.indexed && first) {
            end -= TAIL_LEN;
            self.check_tail(at, block, &mut end);
        }
        let (min, max) = self.check_area(at, &block[..end], first, scratch);
        if self.indexed && first { Seen::Node } else { Seen::Leaf { min, max } }
    }

    fn check_tail(&self, at: Where, block: &[u8], end: &mut usize) {
        if tail_checksum(block).is_none() {
            self.broken(&rules::TAIL_MISSING, self.place(at), "the block does not end in a checksum tail");
            // If the entries reach the end of the block, it never had a tail.
            let reaches_tail = entries(&block[..*end], self.block_size, self.hashed).all(|raw| raw.is_ok());
            if !reaches_tail {
                *end = block.len();
            }
        } else if let Err(fault) = verify_tail(block, self.note.seed) {
            let says = format!("the checksum {:#010x} does not match the block's bytes", fault.found);
            self.broken(&rules::TAIL_CHECKSUM, self.place(at), says);
        }
    }

    /// Checks a chain of entries, which begins with "." and ".." if `dots`. Returns the smallest and largest
    /// hash.
    pub(super) fn check_area(&self, at: Where, area: &[u8], dots: bool, scratch: &mut Scratch) -> (u32, u32) {
        let (mut min, mut max) = (u32::MAX, 0);
        let mut position = 0u32;
        let mut chain_broken = false;
        scratch.table.clear();
        for raw in entries(area, self.block_size, self.hashed) {
            let raw = match raw {
                Ok(raw) => raw,
                Err(broken) => {
                    self.chain(at, broken);
                    chain_broken = true;
                    break;
                }
            };
            let special = dots && position < 2;
            position += 1;
            if special {
                let ordinary =
                    if position == 1 { self.check_dot(at, &raw) } else { self.check_dotdot(at, &raw) };
                if !ordinary {
                    continue;
                }
            }
            if raw.ino == 0 || !self.check_name(at, &raw) {
                continue;
            }
            self.check_twice(at, area, &raw, scratch);
            self.check_target(at, &raw);
            if let Some(hash) = self.hash_of(&raw) {
                min = min.min(hash);
                max = max.max(hash);
            }
        }
        if dots && position < 2 && !chain_broken {
            self.broken(&rules::DOTDOT, self.place(at), "the first block has no second entry");
        }
        (min, max)
    }

    /// The hash of a name in use, if it can be computed.
    pub(super) fn hash_of(&self, raw: &Raw<'_>) -> Option<u32> {
        let version = self.hash?;
        if version == HashVersion::SipHash {
            return raw.hash.map(|hash| hash.hash & !1);
        }
        // Drivers hash names that are not valid UTF-8 as they are, and so does `fold`.
        if self.casefold && !raw.name.is_ascii() {
            let folded = casefold::is_stable(raw.name).then(|| casefold::fold(raw.name))?;
            return dirhash(version, &self.hash_seed, &folded).map(|hash| hash.hash);
        }
        if self.casefold {
            let mut folded = [0; 256];
            let folded = &mut folded[..raw.name.len()];
            folded.copy_from_slice(raw.name);
            folded.make_ascii_lowercase();
            return dirhash(version, &self.hash_seed, folded).map(|hash| hash.hash);
        }
        dirhash(version, &self.hash_seed, raw.name).map(|hash| hash.hash)
    }

    /// Are these the same name in this directory?
    pub(super) fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        a == b
            || self.casefold
                && !self.encrypted
                && match a.is_ascii() && b.is_ascii() {
                    true => a.eq_ignore_ascii_case(b),
                    false => {
                        casefold::is_stable(a)
                            && casefold::is_stable(b)
                            && casefold::fold(a) == casefold::fold(b)
                    }
                }
    }

    /// The key of a name; equal for names that are the [`same_name`](Self::same_name).
    pub(super) fn key_of(&self, name: &[u8]) -> u64 {
        match self.casefold && !self.encrypted {
            true if !name.is_ascii() && casefold::is_stable(name) => self.key.of(&casefold::fold(name)),
            true => self.key.of_folded(name),
            false => self.key.of(name),
        }
    }

    #[cold]
    fn chain(&self, at: Where, broken: Broken) {
        let says = format!("{} (rec_len {}), what follows is lost", broken.why, broken.rec_len);
        let place = self.place(at).at_offset((at.offset + broken.offset) as u32);
        self.broken(&rules::ENTRY_CHAIN, place, says);
    }

    /// Checks the first entry. Returns `true` if it is an ordinary name instead of ".".
    fn check_dot(&self, at: Where, raw: &Raw<'_>) -> bool {
        let own = self.note.ino.0;
        if raw.name == b"." && raw.ino == own && raw.after_name == Some(0) {
            self.check_dots_type(at, raw);
            return false;
        }
        let name = String::from_utf8_lossy(raw.name);
        let says = if raw.ino == 0 {
            "the first entry is not in use".to_owned()
        } else if raw.name != b"." {
            format!("the first entry is named {name:?}")
        } else if raw.ino != own {
            format!("\".\" leads to inode {}", raw.ino)
        } else {
            "\".\" is not followed by NUL".to_owned()
        };
        self.broken(&rules::DOT, self.entry_place(at, raw), says);
        raw.ino != own && !raw.name.contains(&b'.')
    }

    /// Checks the second entry. Returns `true` if it is an ordinary name instead of "..".
    fn check_dotdot(&self, at: Where, raw: &Raw<'_>) -> bool {
        if raw.name == b".." && raw.ino != 0 {
            self.tree.set_dotdot(self.note.ino, raw.ino);
            self.check_dots_type(at, raw);
            if raw.after_name != Some(0) {
                self.broken(&rules::DOTDOT, self.entry_place(at, raw), "\"..\" is not followed by NUL");
            }
            return false;
        }
        let name = String::from_utf8_lossy(raw.name);
        let says = if raw.ino == 0 {
            "the second entry is not in use".to_owned()
        } else {
            format!("the second entry is named {name:?}")
        };
        self.broken(&rules::DOTDOT, self.entry_place(at, raw), says);
        !raw.name.contains(&b'.')
    }

    fn check_dots_type(&self, at: Where, raw: &Raw<'_>) {
        if !self.filetype {
            self.check_no_type(at, raw);
        } else if raw.kind != 0 && raw.kind != FileType::Directory.dirent_code() {
            self.wrong_type(at, raw, FileType::Directory.dirent_code());
        }
    }

    /// Returns `false` if the name needs no further checks.
    #[inline]
    fn check_name(&self, at: Where, raw: &Raw<'_>) -> bool {
        if raw.name.is_empty() {
            let says = format!("an entry without a name leads to inode {}", raw.ino);
            self.broken(&rules::NAME_EMPTY, self.entry_place(at, raw), says);
            return false;
        }
        if raw.is_dots() {
            let says =
                format!("{:?} is not at the beginning of the directory", String::from_utf8_lossy(raw.name));
            self.broken(&rules::SECOND_DOT, self.entry_place(at, raw), says);
            return false;
        }
        if self.encrypted {
            if raw.name.len() < ENCRYPTED_NAME_MIN {
                let says = format!("the name has {} bytes", raw.name.len());
                self.broken(&rules::ENCRYPTED_NAME, self.entry_place(at, raw), says);
            }
        } else if raw.name.iter().any(|&byte| byte == b'/' || byte == 0) {
            let says = format!("the name {:?} holds \"/\" or NUL", String::from_utf8_lossy(raw.name));
            self.broken(&rules::NAME_BYTES, self.entry_place(at, raw), says);
        } else if self.strict && std::str::from_utf8(raw.name).is_err() {
            let says = format!("the name {:?} is not valid UTF-8", String::from_utf8_lossy(raw.name));
            self.broken(&rules::ENCODED_NAME, self.entry_place(at, raw), says);
        }
        true
    }

    #[inline]
    fn check_twice(&self, at: Where, area: &[u8], raw: &Raw<'_>, scratch: &mut Scratch) {
        let key = self.key_of(raw.name);
        if scratch.collect {
            scratch.keys.push(key);
            return;
        }
        let name_at = |offset: usize| {
            let len = usize::from(area[offset + 6]);
            &area[offset + 8..offset + 8 + len]
        };
        let first = scratch.table.insert(key, raw.offset, |other| self.same_name(name_at(other), raw.name));
        if let Some(first) = first {
            self.duplicate(at, raw, &format!("at offset {} of the same block", at.offset + first));
        }
    }

    #[cold]
    pub(super) fn duplicate(&self, at: Where, raw: &Raw<'_>, first: &str) {
        let says = format!("the name is there already, {first}; this one leads to inode {}", raw.ino);
        self.broken(&rules::DUPLICATE, self.entry_place(at, raw), says);
    }

    /// Checks the inode that the entry names.
    #[inline]
    fn check_target(&self, at: Where, raw: &Raw<'_>) {
        let ino = Ino(raw.ino);
        if raw.ino > self.inodes || (raw.ino < self.first_ino && ino != Ino::ROOT) {
            let last = self.inodes;
            let says = format!("the name leads to inode {ino}, files have {} to {last}", self.first_ino);
            return self.broken(&rules::INODE_RANGE, self.entry_place(at, raw), says);
        }
        let note = match self.state.inodes.get(ino) {
            Some(note) if note.hidden && ino != Ino::ROOT => {
                let says = format!("the name leads to inode {ino}, which belongs to the file system itself");
                return self.broken(&rules::INODE_RANGE, self.entry_place(at, raw), says);
            }
            Some(note) if note.used && note.links != 0 => *note,
            _ => {
                let says = format!("the name leads to inode {ino}, which is not in use");
                return self.broken(&rules::INODE_UNUSED, self.entry_place(at, raw), says);
            }
        };
        if !self.filetype {
            self.check_no_type(at, raw);
        } else if raw.kind != note.kind {
            self.wrong_type(at, raw, note.kind);
        }
        if self.encrypted {
            self.check_encrypted(at, raw, note.kind);
        }
        if note.kind == FileType::Directory.dirent_code() {
            self.tree.name_leads(ino, self.note.ino);
        } else {
            self.state.refs.add(ino);
        }
    }

    /// Checks that files of an encrypted directory are encrypted, if their type has content.
    fn check_encrypted(&self, at: Where, raw: &Raw<'_>, kind: u8) {
        let with_content = [FileType::Regular, FileType::Directory, FileType::Symlink];
        if !with_content.iter().any(|with| with.dirent_code() == kind) {
            return;
        }
        // Encrypted directories are rare: reading the flags of each inode costs less than a note for all
        // inodes.
        let flags = self.flags_of(Ino(raw.ino));
        if flags.is_some_and(|flags| flags & flags::ENCRYPT == 0) {
            let says = format!("the name leads to inode {}, which is not encrypted", raw.ino);
            self.broken(&rules::UNENCRYPTED, self.entry_place(at, raw), says);
        }
    }

    /// The flags of an inode; `None` if they cannot be read.
    fn flags_of(&self, ino: Ino) -> Option<u32> {
        let image = &self.state.image;
        let (group, index) = image.geometry.inode_place(ino)?;
        let table = image.geometry.block_size.offset_of(Pblk(image.desc(group)?.inode_table))?;
        let at = table.checked_add(u64::from(index) * image.geometry.inode_size as u64)?;
        let mut flags = [0; 4];
        image.read_bytes(at.checked_add(0x20)?, &mut flags).ok()?;
        Some(u32::from_le_bytes(flags))
    }

    fn check_no_type(&self, at: Where, raw: &Raw<'_>) {
        if raw.kind != 0 {
            let says = format!("the type byte is {}, the file system has no types in entries", raw.kind);
            self.broken(&rules::FILE_TYPE_WITHOUT_FEATURE, self.entry_place(at, raw), says);
        }
    }

    #[cold]
    fn wrong_type(&self, at: Where, raw: &Raw<'_>, right: u8) {
        let place = self.entry_place(at, raw);
        let words =
            |code| FileType::from_dirent_code(code).map_or("impossible".to_owned(), |t| t.to_string());
        if raw.kind == 0 {
            let says = format!("the entry has no type, the inode is of type {}", words(right));
            return self.broken(&rules::FILE_TYPE_UNSET, place, says);
        }
        let says = format!("the type is {} ({}), the inode's is {}", raw.kind, words(raw.kind), words(right));
        self.state.findings.add(crate::Finding {
            rule: &rules::FILE_TYPE,
            place,
            says,
            stored: Some(raw.kind.into()),
            expected: Some(right.into()),
        });
    }
}
