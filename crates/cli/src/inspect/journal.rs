//! `inspect … journal`: the journal's superblock, the transactions in its log, its fast-commit area.
//!
//! Where the journal's inode is damaged, the superblock's copy of its block map is used.

use std::ops::ControlFlow;
use std::rc::Rc;

use base::{BlockSize, Ino, Pblk};
use jbd2_format::fast_commit::{Flow, NameChange, Record, Scan, records};
use jbd2_format::{LogFormat, Superblock, Tid, Version};
use ondisk::Features;
use ondisk::inode::flags;
use ondisk::time::Timestamp;
use serde_json::{Value, json};

use super::InspectError;
use super::format::{bytes_and_human, count, iso_time, range_text, uuid_fact};
use super::logwalk::{self, LIST_MAX, ReadBlock, Transaction};
use super::mapping;
use super::page::Page;
use super::probe::{DamageLog, Probe};
use super::reader::{FoundInode, Reader};
use super::superblock::journal_features;

/// A journal that can be read, wherever it lives.
struct Journal<'r> {
    sb: Superblock,
    /// In words: "inode 8", "device".
    place: String,
    block_size: BlockSize,
    /// Blocks that it can have at most.
    blocks_max: u64,
    read: Box<ReadBlock<'r>>,
    damage: &'r DamageLog,
}

/// Prints the journal inside a file system.
///
/// # Errors
/// [`InspectError::Usage`] when there is none or it is on another device, [`InspectError::Unreadable`] when its
/// superblock cannot be read.
pub(super) fn show(reader: &Reader<'_>, page: &mut Page<'_>) -> Result<(), InspectError> {
    let sb = reader.sb();
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        return Err(InspectError::Usage("this file system has no journal".to_owned()));
    }
    if sb.journal_inum == 0 {
        let why = "the journal is on another device: inspect that one".to_owned();
        return Err(InspectError::Usage(why));
    }
    let ino = Ino(sb.journal_inum);
    let from_inode = reader
        .inode(ino)
        .map_err(|fault| fault.to_string())
        .and_then(|file| open_inode(reader, &file, format!("inode {ino}")));
    let journal = match from_inode {
        Ok(journal) => journal,
        Err(why) => {
            let backup = backup_inode(reader, ino).and_then(|file| {
                open_inode(reader, &file, format!("inode {ino}, by the superblock's copy of its block map"))
                    .ok()
            });
            let Some(journal) = backup else {
                return Err(InspectError::Unreadable(format!("journal: inode {ino}: {why}")));
            };
            reader.damage(format_args!(
                "journal: inode {ino}: {why}; the superblock's copy of its block map is used"
            ));
            journal
        }
    };
    if u64::from(journal.sb.block_size) != reader.block_len() {
        reader.damage(format_args!(
            "journal: its blocks have {} bytes, the file system's {}",
            journal.sb.block_size,
            reader.block_len()
        ));
    }
    let waits = sb.features.has_incompat(Features::RECOVER);
    page.fact("needs_recovery", if waits { "yes" } else { "no" }, waits);
    print(&journal, page);
    Ok(())
}

/// Prints the journal of a journal device.
///
/// # Errors
/// [`InspectError::Unreadable`] when its superblock cannot be read.
pub(super) fn show_device(probe: &Probe<'_>, page: &mut Page<'_>) -> Result<(), InspectError> {
    let unreadable = |why: String| InspectError::Unreadable(format!("journal device: {why}"));
    let block_size = probe.sb.block_size().map_err(|fault| unreadable(fault.to_string()))?;
    // The journal begins in the block behind the ext4 superblock.
    let first = if block_size == BlockSize::MIN { 2 } else { 1 };
    let read = move |block: u32| {
        let offset = block_size.offset_of(Pblk(u64::from(block) + first)).ok_or("block number too large")?;
        let mut bytes = vec![0; block_size.len()];
        probe.device.read_at(offset, &mut bytes).map_err(|fault| fault.to_string())?;
        Ok(Rc::from(bytes))
    };
    let blocks_max = probe.device.size_bytes() / block_size.bytes();
    let place = "this device".to_owned();
    let journal = open(Box::new(read), place, block_size, blocks_max, probe.damage).map_err(unreadable)?;
    print(&journal, page);
    Ok(())
}

fn open_inode<'r>(reader: &'r Reader<'_>, file: &FoundInode, place: String) -> Result<Journal<'r>, String> {
    let runs = mapping::runs(reader, file);
    let read = move |block: u32| {
        let place = mapping::find(&runs, block.into()).ok_or("is not mapped")?;
        reader.block(place).map_err(|fault| fault.to_string())
    };
    let (block_size, blocks_max) = (reader.geometry().block_size, reader.blocks_here());
    open(Box::new(read), place, block_size, blocks_max, reader.damage_log())
}

fn open<'r>(
    read: Box<ReadBlock<'r>>,
    place: String,
    block_size: BlockSize,
    blocks_max: u64,
    damage: &'r DamageLog,
) -> Result<Journal<'r>, String> {
    let block = read(0).map_err(|why| format!("its first block {why}"))?;
    let sb = Superblock::decode(&block).map_err(|fault| fault.to_string())?;
    Ok(Journal { sb, place, block_size, blocks_max, read, damage })
}

/// The journal's inode as the superblock keeps a copy of it: block map and size.
fn backup_inode(reader: &Reader<'_>, ino: Ino) -> Option<FoundInode> {
    let sb = reader.sb();
    if sb.jnl_backup_type != 1 {
        return None;
    }
    let mut inode = ondisk::inode::Inode { mode: 0o100_600, links: 1, ..ondisk::inode::Inode::default() };
    for (slot, word) in inode.block.chunks_exact_mut(4).zip(&sb.jnl_blocks) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    inode.size = u64::from(sb.jnl_blocks[15]) << 32 | u64::from(sb.jnl_blocks[16]);
    if inode.block.starts_with(&ondisk::extent::MAGIC.to_le_bytes()) {
        inode.flags = flags::EXTENTS;
    }
    let (group, index) = reader.geometry().inode_place(ino)?;
    Some(FoundInode { ino, inode, raw: Vec::new(), group, index, block: Pblk(0), offset: 0, checksum: None })
}

fn print(journal: &Journal<'_>, page: &mut Page<'_>) {
    let sb = &journal.sb;
    page.fact("journal", &journal.place, journal.place.as_str());
    let version = if sb.version == Version::V1 { 1 } else { 2 };
    page.fact("version", version, version);
    let (text, json) = journal_features(&sb.active_features());
    page.fact("features", text, json);
    let (text, json) = uuid_fact(&sb.uuid);
    page.fact("uuid", text, json);
    page.number("block_size", sb.block_size);
    let bytes = u64::from(sb.total_blocks) * u64::from(sb.block_size);
    page.fact("blocks", format!("{} ({})", sb.total_blocks, bytes_and_human(bytes)), sb.total_blocks);
    let log = u64::from(sb.log_end().saturating_sub(sb.first));
    page.fact("log", range_text(sb.first.into(), log), json!({"first": sb.first, "count": log}));
    page.fact(
        "start",
        if sb.is_clean() { "0 (clean: nothing to replay)".to_owned() } else { format!("block {}", sb.start) },
        sb.start,
    );
    page.number("sequence", sb.sequence.0);
    page.number("head", sb.head);
    page.fact("error", if sb.errno == 0 { "(none)".to_owned() } else { sb.errno.to_string() }, sb.errno);
    page.number("users", sb.nr_users);
    users(sb, page);
    if sb.num_fc_blocks != 0 {
        let used = if sb.fast_commit_blocks() != 0 { "in use" } else { "not in use" };
        page.fact("fast_commit_blocks", format!("{} ({used})", sb.num_fc_blocks), sb.num_fc_blocks);
    }
    checksum(journal, page);
    let format = match LogFormat::of(sb) {
        Ok(format) if format.block_size == journal.block_size => format,
        Ok(_) => return,
        Err(fault) => {
            journal.damage.note(format_args!("journal: {fault}"));
            return;
        }
    };
    let next = transactions(journal, format, page);
    fast_commits(journal, next, page);
}

/// File systems that share an external journal.
fn users(sb: &Superblock, page: &mut Page<'_>) {
    let known: Vec<_> = sb.users.iter().filter(|user| **user != [0; 16]).map(uuid_fact).collect();
    if !known.is_empty() && sb.version == Version::V2 {
        page.list("user_uuids", None);
        for (text, json) in known {
            page.item(text, json);
        }
        page.close();
    }
}

fn checksum(journal: &Journal<'_>, page: &mut Page<'_>) {
    let sb = &journal.sb;
    if !sb.has_checksum() {
        page.fact("checksum", "none (the journal has no checksums)", Value::Null);
        return;
    }
    let checksum = super::format::Checksum { stored: sb.checksum, computed: sb.computed_checksum() };
    if !checksum.is_right() {
        journal.damage.note(format_args!("journal superblock: checksum {}", checksum.text()));
    }
    page.fact("checksum", checksum.text(), checksum.json());
}

/// Prints the log and returns the first transaction that it does not hold.
fn transactions(journal: &Journal<'_>, format: LogFormat, page: &mut Page<'_>) -> Tid {
    if journal.sb.is_clean() {
        return journal.sb.sequence;
    }
    let damage = |what: String| journal.damage.note(format_args!("journal: {what}"));
    page.list("transactions", None);
    let end =
        logwalk::walk(format, &journal.sb, journal.blocks_max, &journal.read, &damage, &mut |transaction| {
            print_transaction(&transaction, page);
            match page.is_broken() || journal.damage.is_flooded() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
    page.close();
    page.fact(
        "log_ends",
        format!("at block {}, where transaction {} was expected: {}", end.at, end.tid, end.reason),
        json!({"block": end.at, "expected": end.tid.0, "reason": end.reason}),
    );
    end.tid
}

fn print_transaction(transaction: &Transaction, page: &mut Page<'_>) {
    let t = transaction;
    let committed = match &t.commit {
        Some(commit) => {
            format!("committed {}", commit_time(commit.seconds, commit.nanoseconds))
        }
        None => "NOT committed".to_owned(),
    };
    page.open_item(format_args!(
        "transaction {}: from block {}, {}, {}, {}, {committed}",
        t.tid,
        t.start,
        count(t.log_blocks, "log block"),
        count(t.logged, "copy"),
        count(t.revoked, "revoke"),
    ));
    page.json_only("sequence", t.tid.0);
    page.json_only("start", t.start);
    page.json_only("log_blocks", t.log_blocks);
    page.json_only("descriptors", t.descriptors);
    page.json_only("copies", t.logged);
    page.json_only("revoke_count", t.revoked);
    page.json_only("escaped", t.escaped);
    page.json_only(
        "commit",
        t.commit.as_ref().map(|c| json!({"seconds": c.seconds, "nanos": c.nanoseconds})),
    );
    for (key, list, all) in [("blocks", &t.homes, t.logged), ("revokes", &t.revokes, t.revoked)] {
        if !list.is_empty() {
            let more = if all > LIST_MAX as u64 { " ..." } else { "" };
            page.fact(
                key,
                format!("{}{more}", ranges(list)),
                list.iter().map(|block| Value::from(block.0)).collect::<Vec<_>>(),
            );
        }
    }
    page.close();
}

/// A commit's time. debugfs writes the seconds into the upper half of their field.
fn commit_time(seconds: u64, nanos: u32) -> String {
    match (seconds >> 32, seconds as u32) {
        (0, low) => iso_time(Timestamp { seconds: low.into(), nanos }),
        (high, 0) => {
            let time = Timestamp { seconds: high as i64, nanos }; // below 2^32
            format!("{} (seconds in the upper half of their field)", iso_time(time))
        }
        _ => format!("{seconds} seconds after 1970"),
    }
}

/// `5, 7..9`, in the order of the log.
fn ranges(blocks: &[Pblk]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some((first, len)) if first.checked_add(*len) == Some(block.0) => *len += 1,
            _ => runs.push((block.0, 1)),
        }
    }
    runs.iter().map(|(first, len)| range_text(*first, *len)).collect::<Vec<_>>().join(", ")
}

/// What stands in the fast-commit area, in numbers.
fn fast_commits(journal: &Journal<'_>, next: Tid, page: &mut Page<'_>) {
    let Some(area) = journal.sb.fast_commit_range() else { return };
    page.open("fast_commits");
    let len = u64::from(area.end.saturating_sub(area.start));
    page.fact("area", range_text(area.start.into(), len), json!({"first": area.start, "count": len}));
    if journal.sb.is_clean() {
        page.text_only("nothing to replay, since the journal is clean");
        page.close();
        return;
    }
    let mut scan = Scan::new(next);
    let mut kinds: [(&str, u64); 9] = [
        ("heads", 0),
        ("inodes", 0),
        ("added_ranges", 0),
        ("removed_ranges", 0),
        ("creations", 0),
        ("links", 0),
        ("unlinks", 0),
        ("pads", 0),
        ("tails", 0),
    ];
    for block in area.take(usize::try_from(journal.blocks_max).unwrap_or(usize::MAX)) {
        let bytes = match (journal.read)(block) {
            Ok(bytes) => bytes,
            Err(why) => {
                journal.damage.note(format_args!("journal: fast-commit block {block}: {why}"));
                break;
            }
        };
        let before = scan.valid_records();
        let flow = scan.feed(&bytes);
        if let Err(fault) = &flow {
            journal.damage.note(format_args!("journal: fast-commit block {block}: {fault}"));
        }
        if matches!(flow, Ok(Flow::Continue)) || scan.valid_records() > before {
            records(&bytes).map_while(Result::ok).for_each(|record| kinds[kind_of(&record)].1 += 1);
        }
        if !matches!(flow, Ok(Flow::Continue)) {
            break;
        }
    }
    page.number("records_to_replay", scan.valid_records());
    for (key, number) in kinds {
        page.number(key, number);
    }
    page.close();
}

fn kind_of(record: &Record<'_>) -> usize {
    match record {
        Record::Head { .. } => 0,
        Record::Inode { .. } => 1,
        Record::AddRange { .. } => 2,
        Record::DelRange { .. } => 3,
        Record::Name { change: NameChange::Create, .. } => 4,
        Record::Name { change: NameChange::Link, .. } => 5,
        Record::Name { change: NameChange::Unlink, .. } => 6,
        Record::Pad => 7,
        Record::Tail { .. } => 8,
    }
}
