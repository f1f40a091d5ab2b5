//! The journal: its log is replayed, or emptied if it cannot be; its inode, map and superblock are repaired,
//! or made anew.
//!
//! Owns: the journal's file, the backup of its map in the superblock, the feature that asks for a recovery.
//! Does **not** own: the layout of a log (see `jbd2-format`), the replay of fast commits (see `volume`),
//! orphans (see [`orphans`]), which the same stage finishes.

use std::sync::Arc;

use extant_base::Ino;
use extant_base::le::{put_u16, put_u32, u32_at};
use extant_check::Finding;
use extant_device::{Device, DeviceFault};
use extant_jbd2_format::{
    LogTid, MIN_JOURNAL_BLOCKS, Superblock as LogSuper, default_fast_commit_blocks, default_journal_blocks,
};
use extant_ondisk::inode::{Inode, flags};
use extant_ondisk::{Features, Superblock, extent};
use extant_volume::{OpenOptions, Volume};

use crate::fs::Fs;
use crate::overlay::Overlay;
use crate::plan::Plan;
use crate::{maps, orphans};

/// Repairs the journal.
pub(crate) struct Journal<'r, 's> {
    pub(crate) fs: &'r mut Fs<'s>,
    pub(crate) plan: &'r mut Plan,
}

impl Journal<'_, '_> {
    /// Replays the log, and finishes the deletion of orphans.
    pub(crate) fn recover(
        &mut self,
        overlay: &Arc<Overlay>,
        findings: &[&Finding],
        was_chosen: bool,
    ) -> Result<(), DeviceFault> {
        let is_fast = findings.iter().any(|finding| finding.rule.code == "JO024");
        if is_fast && replay_by_volume(overlay) {
            for finding in findings {
                self.plan.fixed(finding, "Replay the log and the fast commits.");
            }
            return Ok(());
        }
        if let Some(copies) = self.fs.notes.replayed()? {
            for (home, bytes) in copies {
                self.fs.write_block(home, &bytes)?;
            }
            reset_log(self.fs, false)?;
            self.fs.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
            for finding in findings.iter().filter(|finding| finding.rule.code.starts_with("JO")) {
                let loss = match finding.rule.code {
                    "JO022" => Some("what the damaged part of the log holds".to_owned()),
                    "JO024" => Some("the changes of the fast commits".to_owned()),
                    _ => None,
                };
                self.plan.fixed_with(finding, "Replay what is sound, and empty the log.", loss);
            }
            return Ok(());
        }
        for finding in findings {
            match finding.rule.code {
                "JO025" if restore_map(self.fs)? => {
                    self.plan.fixed(finding, "Use the backup of the journal's map in the superblock.");
                }
                "JO025" => {
                    self.fs.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
                    reset_log(self.fs, true)?;
                    let loss = Some("what the log holds".to_owned());
                    self.plan.fixed_with(finding, "Write a new journal superblock.", loss);
                }
                "JO021" if was_chosen => {
                    self.fs.put_superblock(|sb| sb.features.incompat |= Features::RECOVER)?;
                    self.plan.fixed(finding, "Set the feature: the superblock was damaged.");
                }
                "JO021" => {
                    reset_log(self.fs, false)?;
                    self.plan.fixed(finding, finding.rule.repair);
                }
                _ => {}
            }
        }
        let orphans: Vec<&Finding> =
            findings.iter().copied().filter(|finding| finding.rule.code.starts_with("OR")).collect();
        if !orphans.is_empty() {
            orphans::finish(self.fs)?;
            for finding in orphans {
                self.plan.fixed(finding, "Delete and truncate these inodes, clear the list.");
            }
        }
        Ok(())
    }

    /// Repairs findings about the journal at rest.
    pub(crate) fn mend(&mut self, findings: &[&Finding]) -> Result<(), DeviceFault> {
        // Where the inode's map leads to no journal, the superblock's may.
        if let Some(finding) = findings.iter().find(|finding| finding.rule.code == "JO010")
            && restore_map(self.fs)?
        {
            self.plan.fixed(finding, "Use the backup of the journal's map in the superblock.");
            return Ok(());
        }
        for finding in findings {
            let before = self.fs.overlay.changes();
            match finding.rule.code {
                "JO001" => {
                    let remedy = restore_or_make(self.fs)?;
                    self.plan.fixed(finding, remedy);
                    return Ok(());
                }
                "JO002" => {
                    self.fs.put_superblock(|sb| sb.features.incompat &= !Features::RECOVER)?;
                    self.plan.fixed(finding, finding.rule.repair);
                }
                "JO003" => {
                    self.fs.put_superblock(|sb| sb.journal_uuid = [0; 16])?;
                    self.plan.fixed(finding, finding.rule.repair);
                }
                "JO017" => {
                    let Some(inode) = self.fs.inode(Ino(self.fs.sb.journal_inum)) else { continue };
                    self.fs.put_superblock(|sb| back_up_map(sb, &inode))?;
                    self.plan.fixed(finding, finding.rule.repair);
                }
                _ => {
                    let remedy = mend_log_superblock(self.fs, finding.rule.code)?;
                    if self.fs.overlay.changes() != before {
                        self.plan.fixed(finding, remedy);
                    }
                }
            }
        }
        Ok(())
    }

    /// Restores the journal's map from the superblock, if findings say that its inode is damaged. Returns the
    /// inode if it changed.
    pub(crate) fn mend_map(&mut self, findings: &[&Finding]) -> Option<Ino> {
        let ino = Ino(self.fs.sb.journal_inum);
        if ino.0 == 0 || !self.fs.sb.features.has_compat(Features::HAS_JOURNAL) {
            return None;
        }
        let is_map = |finding: &&&Finding| {
            let code = finding.rule.code;
            finding.place.ino == Some(ino)
                && (code.starts_with("EX") && code != "EX011" || ["IN002", "IN006", "IN021"].contains(&code))
        };
        let finding = findings.iter().find(is_map)?;
        let (i_block, size) = self.fs.notes.journal_backup()?;
        let before = self.fs.inode_bytes(ino);
        put_map(self.fs, ino, i_block, size);
        if self.fs.inode_bytes(ino) == before {
            return None;
        }
        self.plan.fixed(finding, "Use the backup of the journal's map in the superblock.");
        Some(ino)
    }
}

/// Lets the engine replay log and fast commits. Returns `false`, with all bytes as before, if it refuses.
fn replay_by_volume(overlay: &Arc<Overlay>) -> bool {
    let before = overlay.snapshot();
    let device: Arc<dyn Device> = Arc::<Overlay>::clone(overlay);
    let opened = Volume::open(device, &OpenOptions::default()).map_err(drop);
    if opened.and_then(|volume| volume.close().map_err(drop)).is_ok() {
        return true;
    }
    overlay.restore(before);
    false
}

/// Makes the log empty; `anew` replaces the journal superblock.
fn reset_log(fs: &Fs<'_>, anew: bool) -> Result<(), DeviceFault> {
    let Some(runs) = fs.notes.journal_runs() else { return Ok(()) };
    let Some((first, _)) = runs.first() else { return Ok(()) };
    let blocks = runs.iter().fold(0u32, |sum, (_, len)| sum.saturating_add(*len));
    let mut bytes = fs.read_block(*first)?;
    let known = LogSuper::decode(&bytes).ok().filter(|jsb| !anew && jsb.check().is_ok());
    let mut jsb = match known {
        Some(jsb) => jsb,
        None => new_log(fs, blocks),
    };
    // No block that the log holds now may seem to continue the log.
    jsb.sequence = LogTid(jsb.sequence.0.wrapping_add(blocks).max(1));
    jsb.start = 0;
    jsb.head = 0;
    jsb.seal();
    bytes[..LogSuper::LEN].copy_from_slice(&jsb.encode());
    fs.write_block(*first, &bytes)
}

/// A new journal superblock.
fn new_log(fs: &Fs<'_>, blocks: u32) -> LogSuper {
    let mut jsb = LogSuper::fresh(fs.geometry.block_size, blocks, fs.sb.uuid);
    if fs.sb.features.has_compat(Features::FAST_COMMIT)
        && let Some(fast) = default_fast_commit_blocks(fs.geometry.blocks)
        && blocks > MIN_JOURNAL_BLOCKS + fast
    {
        jsb.num_fc_blocks = fast;
    }
    jsb.sequence = LogTid(fs.now.max(1));
    jsb
}

/// Repairs the journal superblock; returns the remedy.
fn mend_log_superblock(fs: &Fs<'_>, code: &str) -> Result<&'static str, DeviceFault> {
    let Some(runs) = fs.notes.journal_runs() else { return Ok("") };
    let Some((first, _)) = runs.first() else { return Ok("") };
    let blocks = runs.iter().fold(0u32, |sum, (_, len)| sum.saturating_add(*len));
    let mut bytes = fs.read_block(*first)?;
    let known = LogSuper::decode(&bytes).ok();
    let (mut jsb, remedy) = match (code, known) {
        ("JO011", Some(jsb)) if jsb.check().is_ok() => (jsb, "Store the right checksum."),
        ("JO013", Some(jsb)) => {
            (LogSuper { total_blocks: blocks, ..jsb }, "Set the number to the journal's blocks.")
        }
        ("JO014", Some(jsb)) => (LogSuper { nr_users: 1, ..jsb }, "Store 1."),
        ("JO016", Some(jsb)) => (LogSuper { errno: 0, ..jsb }, "Clear the number."),
        _ => (new_log(fs, blocks), "Write a new journal superblock."),
    };
    jsb.seal();
    if remedy.starts_with("Write") {
        bytes.fill(0);
    }
    bytes[..LogSuper::LEN].copy_from_slice(&jsb.encode());
    fs.write_block(*first, &bytes)?;
    Ok(remedy)
}

/// Restores the journal's map from the superblock's backup, else makes a new journal, else clears the
/// feature.
fn restore_or_make(fs: &mut Fs<'_>) -> Result<&'static str, DeviceFault> {
    if restore_map(fs)? {
        return Ok("Use the backup of the journal's map in the superblock.");
    }
    if make(fs, None).is_some() {
        return Ok("Make a new journal.");
    }
    fs.put_superblock(|sb| {
        sb.features.compat &= !(Features::HAS_JOURNAL | Features::FAST_COMMIT);
        sb.features.incompat &= !Features::RECOVER;
        sb.journal_inum = 0;
    })?;
    fs.free_inode(Ino::JOURNAL);
    Ok("Clear the feature: there is no space for a new journal.")
}

/// Gives inode 8 the journal's map that the superblock keeps. Returns `false` if there is none, or if the
/// inode has it.
fn restore_map(fs: &mut Fs<'_>) -> Result<bool, DeviceFault> {
    let ino = Ino::JOURNAL;
    let Some((i_block, size)) = fs.notes.journal_backup() else { return Ok(false) };
    let same = fs.inode(ino).is_some_and(|inode| {
        inode.block == i_block && inode.size == size && inode.mode & 0xF000 == 0x8000 && inode.links != 0
    });
    if same && fs.sb.journal_inum == ino.0 {
        return Ok(false);
    }
    fs.put_superblock(|sb| sb.journal_inum = ino.0)?;
    put_map(fs, ino, i_block, size);
    Ok(true)
}

/// Makes an inode the journal with this map.
fn put_map(fs: &Fs<'_>, ino: Ino, i_block: [u8; 60], size: u64) {
    let extents = i_block.starts_with(&extent::MAGIC.to_le_bytes());
    let _ = fs.edit_inode(ino, |bytes| {
        put_u16(bytes, 0, 0x8000 | 0o600);
        put_u16(bytes, 0x1A, 1);
        let old = u32_at(bytes, 0x20) & !(flags::EXTENTS | flags::INLINE_DATA);
        put_u32(bytes, 0x20, if extents { old | flags::EXTENTS } else { old });
        bytes[0x28..0x28 + 60].copy_from_slice(&i_block);
    });
    fs.put_size(ino, size);
}

/// Stores the backup of the journal's map in the superblock.
fn back_up_map(sb: &mut Superblock, inode: &Inode) {
    sb.jnl_backup_type = 1;
    for (word, bytes) in sb.jnl_blocks.iter_mut().zip(inode.block.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    sb.jnl_blocks[15] = (inode.size >> 32) as u32;
    sb.jnl_blocks[16] = inode.size as u32;
}

/// Makes a new, empty journal in inode 8, of the default size if `blocks` is `None`.
pub(crate) fn make(fs: &mut Fs<'_>, blocks: Option<u32>) -> Option<()> {
    let ino = Ino::JOURNAL;
    let default = || default_journal_blocks(fs.geometry.blocks).unwrap_or(MIN_JOURNAL_BLOCKS);
    let blocks = blocks.unwrap_or_else(default);
    let runs = fs.space.file(blocks)?;
    let first = runs.first()?.pblk;
    maps::make_file(fs, ino, 0, runs, u64::from(blocks) << fs.geometry.block_size.log2())?;
    let mut bytes = vec![0; fs.block_len()];
    bytes[..LogSuper::LEN].copy_from_slice(&new_log(fs, blocks).encode());
    fs.write_block(first, &bytes).ok()?;
    let inode = fs.inode(ino)?;
    fs.put_superblock(|sb| {
        sb.journal_inum = ino.0;
        sb.journal_uuid = [0; 16];
        sb.features.incompat &= !Features::RECOVER;
        back_up_map(sb, &inode);
    })
    .ok()
}
