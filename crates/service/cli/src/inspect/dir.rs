//! `inspect … dir`: a directory's entries, block by block, with their hashes and free space.

use std::ops::ControlFlow;

use extant_ondisk::dirent::{self, DirFormat, Entry, min_rec_len};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, NameHash, dirhash, seed_words};
use extant_ondisk::htree::{DxFormat, DxKind};
use extant_ondisk::inode::flags;
use serde_json::{Value, json};

use super::InspectError;
use super::dirwalk::{DirBlock, dir_format, each_block};
use super::format::{count, escape, json_bytes};
use super::page::Page;
use super::reader::{FoundInode, Reader};
use super::superblock::hash_name;

/// Computes the hashes of one directory's names.
pub(super) struct Hasher {
    /// `None` if names are hashed with a secret key.
    version: Option<HashVersion>,
    seed: [u32; 4],
    is_casefolded: bool,
}

impl Hasher {
    /// The hasher of a directory whose index uses the hash with this code.
    pub(super) fn new(reader: &Reader<'_>, dir: &FoundInode, code: u8) -> Self {
        let sb = reader.sb();
        Self {
            version: HashVersion::from_code(code, sb.unsigned_hash()),
            seed: seed_words(&sb.hash_seed),
            is_casefolded: dir.inode.has_flag(flags::CASEFOLD),
        }
    }

    /// The hash of an entry. `None` if it is neither stored nor computable: it needs a secret key, or case
    /// folding beyond ASCII.
    pub(super) fn hash(&self, entry: &Entry<'_>) -> Option<NameHash> {
        if entry.hash.is_some() {
            return entry.hash;
        }
        let version = self.version?;
        match (self.is_casefolded, entry.name.is_ascii()) {
            (false, _) => dirhash(version, &self.seed, entry.name),
            (true, true) => dirhash(version, &self.seed, &entry.name.to_ascii_lowercase()),
            (true, false) => None,
        }
    }
}

/// The purpose of a directory block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    IndexRoot,
    IndexNode,
    Leaf,
    Inline,
}

impl BlockKind {
    fn words(self) -> &'static str {
        match self {
            Self::IndexRoot => "index root",
            Self::IndexNode => "index node",
            Self::Leaf => "leaf",
            Self::Inline => "inline area",
        }
    }
}

/// The hash version in a directory's index; the file system's default if there is no index.
fn hash_code(reader: &Reader<'_>, dir: &FoundInode, root: Option<&[u8]>) -> u8 {
    let format = DxFormat::new(reader.geometry().block_size, &reader.sb().features);
    let indexed = dir.inode.has_flag(flags::INDEX);
    let root = root.filter(|_| indexed).and_then(|block| format.decode_root(block).ok());
    root.map_or(reader.sb().def_hash_version, |root| root.hash_code)
}

/// Prints a directory.
///
/// # Errors
/// [`InspectError::Absent`] if the inode is not a directory.
pub(super) fn show(reader: &Reader<'_>, dir: &FoundInode, page: &mut Page<'_>) -> Result<(), InspectError> {
    if FileType::from_mode(dir.inode.mode) != FileType::Directory {
        let kind = FileType::from_mode(dir.inode.mode);
        return Err(InspectError::Absent(format!("inode {} is no directory: its type is {kind}", dir.ino)));
    }
    let format = dir_format(reader, dir);
    let indexed = dir.inode.has_flag(flags::INDEX);
    page.number("inode", dir.ino.0);
    page.fact("indexed", if indexed { "yes" } else { "no" }, indexed);
    let mut hasher: Option<Hasher> = None;
    let mut totals = Totals::default();
    page.list("content", None);
    each_block(reader, dir, &mut |block| {
        let hasher = hasher.get_or_insert_with(|| {
            let code = hash_code(reader, dir, block.pblk.map(|_| block.bytes));
            Hasher::new(reader, dir, code)
        });
        print_block(reader, dir, &format, block, hasher, &mut totals, page);
        if page.is_broken() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    page.close();
    let code =
        hasher.and_then(|hasher| hasher.version).map_or(reader.sb().def_hash_version, HashVersion::code);
    page.fact("hash", format!("{} ({code})", hash_name(code)), json!({"name": hash_name(code), "raw": code}));
    page.fact(
        "total",
        format!(
            "{} in {}, {} free",
            count(totals.entries, "name"),
            count(totals.blocks, "block"),
            count(totals.free, "byte")
        ),
        json!({"entries": totals.entries, "blocks": totals.blocks, "free_bytes": totals.free}),
    );
    Ok(())
}

#[derive(Debug, Default)]
struct Totals {
    entries: u64,
    blocks: u64,
    free: u64,
}

/// Bytes of a block available for names: the unused parts of entries, and unused entries as a whole.
pub(super) fn free_bytes(format: &DirFormat, block: &[u8]) -> u64 {
    let spare = |entry: &Entry<'_>| {
        let hashed = format.hash_in_dirent && !entry.is_dot_or_dotdot();
        let need = if entry.is_used() { min_rec_len(entry.name.len(), hashed) } else { 0 };
        entry.rec_len.saturating_sub(need) as u64
    };
    format.entries(block).map_while(Result::ok).map(|entry| spare(&entry)).sum()
}

fn kind_of(reader: &Reader<'_>, dir: &FoundInode, block: &DirBlock<'_>) -> BlockKind {
    if block.pblk.is_none() {
        return BlockKind::Inline;
    }
    let format = DxFormat::new(reader.geometry().block_size, &reader.sb().features);
    let dx = format.kind_of(block.bytes).filter(|_| dir.inode.has_flag(flags::INDEX));
    match dx {
        Some(DxKind::Root) if block.lblk == 0 => BlockKind::IndexRoot,
        // An empty leaf looks the same, but does not have the right limit of entries.
        Some(DxKind::Node) if block.lblk > 0 && format.decode_node(block.bytes).is_ok() => {
            BlockKind::IndexNode
        }
        _ => BlockKind::Leaf,
    }
}

/// Whether a block's checksum is right; `None` if it has none.
fn verify(reader: &Reader<'_>, dir: &FoundInode, block: &DirBlock<'_>, kind: BlockKind) -> Option<bool> {
    if !reader.has_csum() || kind == BlockKind::Inline {
        return None;
    }
    let seed = reader.inode_seed(dir.ino, &dir.inode);
    let format = DxFormat::new(reader.geometry().block_size, &reader.sb().features);
    let verdict = match kind {
        BlockKind::IndexRoot | BlockKind::IndexNode => format.verify(block.bytes, seed),
        _ => dirent::verify_tail(block.bytes, seed),
    };
    if let Err(fault) = &verdict {
        reader.damage(format_args!("inode {}: directory block {}: {fault}", dir.ino, block.lblk));
    }
    Some(verdict.is_ok())
}

fn print_block(
    reader: &Reader<'_>,
    dir: &FoundInode,
    format: &DirFormat,
    block: &DirBlock<'_>,
    hasher: &Hasher,
    totals: &mut Totals,
    page: &mut Page<'_>,
) {
    let kind = kind_of(reader, dir, block);
    let is_index = matches!(kind, BlockKind::IndexRoot | BlockKind::IndexNode);
    let free = if is_index { 0 } else { free_bytes(format, block.bytes) };
    let used = format.entries(block.bytes).flatten().filter(Entry::is_used).count() as u64;
    let checksum = verify(reader, dir, block, kind);
    let checksum_words = match checksum {
        None => "",
        Some(true) => ", checksum ok",
        Some(false) => ", checksum WRONG",
    };
    totals.entries += used;
    totals.blocks += u64::from(block.pblk.is_some());
    totals.free += free;
    let place = block.pblk.map_or(String::new(), |pblk| format!(" at {pblk}"));
    page.open_item(format_args!(
        "block {}{place}: {}, {used} used, {free} bytes free of {}{checksum_words}",
        block.lblk,
        kind.words(),
        block.bytes.len(),
    ));
    page.json_only("logical", block.lblk);
    page.json_only("physical", block.pblk.map(|pblk| pblk.0));
    page.json_only("kind", kind.words());
    page.json_only("free_bytes", free);
    page.json_only("checksum_ok", checksum);
    page.text_only(format_args!("{:>10}  {:<12}  {:<17}  name", "inode", "type", "hash/minor"));
    page.json_list("entries");
    for entry in format.entries(block.bytes) {
        match entry {
            Ok(entry) if entry.is_used() => print_entry(&entry, hasher, page),
            Ok(_) => {}
            Err(fault) => {
                reader.damage(format_args!("inode {}: directory block {}: {fault}", dir.ino, block.lblk));
                page.item(
                    format_args!("(damaged from here on: {fault})"),
                    json!({"damaged": fault.to_string()}),
                );
            }
        }
    }
    page.close();
    page.close();
}

fn print_entry(entry: &Entry<'_>, hasher: &Hasher, page: &mut Page<'_>) {
    let hash = if entry.is_dot_or_dotdot() { None } else { hasher.hash(entry) };
    let hash_text = hash.map_or("-".to_owned(), |hash| format!("{:08x}/{:08x}", hash.hash, hash.minor));
    page.item(
        format_args!("{:>10}  {:<12}  {hash_text:<17}  {}", entry.ino, entry.file_type, escape(entry.name)),
        json!({
            "inode": entry.ino.0, "type": entry.file_type.to_string(), "name": json_bytes(entry.name),
            "offset": entry.offset, "len_bytes": entry.rec_len,
            "hash": hash.map_or(Value::Null, |hash| hash.hash.into()),
            "minor_hash": hash.map_or(Value::Null, |hash| hash.minor.into()),
        }),
    );
}
