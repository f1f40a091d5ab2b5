//! `inspect … journal`: the journal's superblock, and the effect of a replay of its log (see
//! [`super::replay_plan`]).
//!
//! If the journal's inode is damaged, the superblock's copy of its block map is used.

use extant_base::{Ino, Pblk};
use extant_device::Device;
use extant_jbd2_format::{Superblock, Version};
use extant_journal::{LogMap, LogRun, LogView, ReplayTarget};
use extant_ondisk::Features;
use extant_ondisk::inode::flags;
use serde_json::{Value, json};

use super::InspectError;
use super::format::{bytes_and_human, range_text, uuid_fact};
use super::mapping::{self, MappedRun};
use super::page::Page;
use super::probe::{DamageLog, Probe};
use super::reader::{FoundInode, Reader};
use super::replay_plan;
use super::superblock::journal_features;

/// A journal whose superblock was found, in a file system or on a journal device.
struct Journal<'r> {
    sb: Superblock,
    /// The location as text: "inode 8", "this device".
    place: String,
    device: &'r dyn Device,
    /// The addresses of all its blocks, or a message why they are unknown.
    map: Result<LogMap, String>,
    target: ReplayTarget,
    /// Whether the file system needs recovery. `None` for a journal device.
    wanted: Option<bool>,
    damage: &'r DamageLog,
}

/// Prints the journal inside a file system.
///
/// # Errors
/// [`InspectError::Absent`] if there is none or it is on another device, [`InspectError::Unreadable`] if its
/// superblock cannot be read.
pub(super) fn show(reader: &Reader<'_>, page: &mut Page<'_>) -> Result<(), InspectError> {
    let sb = reader.sb();
    if !sb.features.has_compat(Features::HAS_JOURNAL) {
        return Err(InspectError::Absent("this file system has no journal".to_owned()));
    }
    if sb.journal_inum == 0 {
        let why = "the journal is on another device: inspect that one".to_owned();
        return Err(InspectError::Absent(why));
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
    let waits = sb.features.has_incompat(Features::RECOVER);
    page.fact("needs_recovery", if waits { "yes" } else { "no" }, waits);
    print(journal, page);
    Ok(())
}

/// Prints the journal of a journal device.
///
/// # Errors
/// [`InspectError::Unreadable`] if its superblock cannot be read.
pub(super) fn show_device(probe: &Probe<'_>, page: &mut Page<'_>) -> Result<(), InspectError> {
    let unreadable = |why: String| InspectError::Unreadable(format!("journal device: {why}"));
    let block_size = probe.sb.block_size().map_err(|fault| unreadable(fault.to_string()))?;
    let device = &*probe.device;
    let blocks = device.size_bytes() / block_size.bytes();
    let map = LogMap::external(u32::try_from(blocks).unwrap_or(u32::MAX), block_size);
    let view = LogView::new(device, &map, block_size);
    let bytes = view.block(map.superblock()).map_err(|fault| unreadable(fault.to_string()))?;
    let sb = Superblock::decode(&bytes).map_err(|fault| unreadable(fault.to_string()))?;
    let journal = Journal {
        sb,
        place: "this device".to_owned(),
        device,
        map: Ok(map),
        // The device does not say which file system the journal belongs to, nor how large that is.
        target: ReplayTarget::new(u64::MAX, block_size),
        wanted: None,
        damage: probe.damage,
    };
    print(journal, page);
    Ok(())
}

fn open_inode<'r>(reader: &'r Reader<'_>, file: &FoundInode, place: String) -> Result<Journal<'r>, String> {
    let runs = mapping::runs(reader, file);
    let first = mapping::find(&runs, 0).ok_or("its first block is not mapped")?;
    let block = reader.block(first).map_err(|fault| format!("its first block {fault}"))?;
    let sb = Superblock::decode(&block).map_err(|fault| fault.to_string())?;
    let geometry = reader.geometry();
    // The inode may be longer than the journal. If it is shorter, the map reports the missing blocks.
    let map = LogMap::internal(runs.iter().filter_map(log_run), sb.total_blocks, geometry.blocks);
    Ok(Journal {
        sb,
        place,
        device: reader.device(),
        map: map.map_err(|fault| fault.to_string()),
        target: ReplayTarget::new(geometry.blocks, geometry.block_size),
        wanted: Some(reader.sb().features.has_incompat(Features::RECOVER)),
        damage: reader.damage_log(),
    })
}

/// Converts a run of the journal's inode into a run of the log. An unwritten run is dropped: the kernel
/// treats it as a hole.
fn log_run(run: &MappedRun) -> Option<LogRun> {
    let (log, len) = (u32::try_from(run.lblk).ok()?, u32::try_from(run.len).ok()?);
    (!run.unwritten).then_some(LogRun { log, start: Pblk(run.pblk), len })
}

/// The journal's inode according to the superblock's copy: block map and size.
fn backup_inode(reader: &Reader<'_>, ino: Ino) -> Option<FoundInode> {
    let sb = reader.sb();
    if sb.jnl_backup_type != 1 {
        return None;
    }
    let mut inode =
        extant_ondisk::inode::Inode { mode: 0o100_600, links: 1, ..extant_ondisk::inode::Inode::default() };
    for (slot, word) in inode.block.chunks_exact_mut(4).zip(&sb.jnl_blocks) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    inode.size = u64::from(sb.jnl_blocks[15]) << 32 | u64::from(sb.jnl_blocks[16]);
    if inode.block.starts_with(&extant_ondisk::extent::MAGIC.to_le_bytes()) {
        inode.flags = flags::EXTENTS;
    }
    let (group, index) = reader.geometry().inode_place(ino)?;
    Some(FoundInode { ino, inode, raw: Vec::new(), group, index, block: Pblk(0), offset: 0, checksum: None })
}

fn print(journal: Journal<'_>, page: &mut Page<'_>) {
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
    checksum(&journal, page);
    let Journal { sb, device, map, target, wanted, damage, .. } = journal;
    if u64::from(sb.block_size) != target.block_size.bytes() {
        return damage.note(format_args!(
            "journal: its blocks have {} bytes, the file system's {}",
            sb.block_size, target.block_size
        ));
    }
    match map {
        Err(why) => damage.note(format_args!("journal: {why}")),
        Ok(map) => {
            let log = LogView::new(device, &map, target.block_size);
            replay_plan::show(log, &target, sb, wanted, damage, page);
        }
    }
}

/// Prints the file systems that share an external journal.
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
