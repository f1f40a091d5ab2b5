//! The effect of a replay of the journal: transactions, replayed and omitted blocks, fast commits.
//!
//! Owns: printing a plan. Does **not** own: the plan (see the crate `journal`).
//!
//! Lists of blocks are limited to [`LIST_MAX`]; counts are not.

use extant_base::Pblk;
use extant_jbd2_format::Superblock;
use extant_journal::{
    CommitTime, Entry, JournalFault, LogView, ReplayPlan, ReplayTarget, State, Transaction, each_entry,
    examine,
};
use extant_ondisk::time::Timestamp;
use serde_json::{Value, json};

use super::format::{count, iso_time, range_text};
use super::page::Page;
use super::probe::DamageLog;

/// Maximum number of blocks printed for one transaction, or of homes printed for the plan.
const LIST_MAX: usize = 1 << 20;

/// Prints the effect of a replay, as far as the log is readable. `superblock` was read from the log before.
///
/// `wanted`: whether the file system needs recovery; `None` if that is unknown.
pub(super) fn show(
    log: LogView<'_>,
    target: &ReplayTarget,
    superblock: Superblock,
    wanted: Option<bool>,
    damage: &DamageLog,
    page: &mut Page<'_>,
) {
    let examined = match examine(log, target, superblock) {
        Ok(examined) => examined,
        Err(fault) => return damage.note(fault),
    };
    let plan = &examined.plan;
    if let Some(fault) = &examined.fault {
        damage.note(fault);
    }
    if plan.state == State::Clean {
        page.fact("replay", "nothing to do", Value::Null);
    } else {
        page.list("transactions", None);
        for transaction in plan.transactions.iter().chain(&plan.unfinished) {
            if page.is_broken() || damage.is_flooded() {
                break;
            }
            print_transaction(log, plan, transaction, damage, page);
        }
        page.close();
        let end = &plan.end;
        page.fact(
            "log_ends",
            format!("at block {}, where transaction {} was expected: {}", end.block, end.tid, end.reason),
            json!({"block": end.block, "expected": end.tid.0, "reason": end.reason.to_string()}),
        );
        replay(plan, examined.fault.as_ref(), wanted, damage, page);
    }
    fast_commits(plan, page);
}

fn print_transaction(
    log: LogView<'_>,
    plan: &ReplayPlan,
    t: &Transaction,
    damage: &DamageLog,
    page: &mut Page<'_>,
) {
    let committed = match t.commit {
        Some(time) => format!("committed {}", commit_time(time)),
        None => "NOT committed".to_owned(),
    };
    page.open_item(format_args!(
        "transaction {}: from block {}, {}, {}, {}, {committed}",
        t.tid,
        t.first_log_block,
        count(t.log_blocks.into(), "log block"),
        match t.copies {
            0 => "no copies".to_owned(),
            copies => format!("{} ({} to replay)", count(copies.into(), "copy"), t.replayed),
        },
        count(t.revokes, "revoke"),
    ));
    page.json_only("sequence", t.tid.0);
    page.json_only("start", t.first_log_block);
    page.json_only("log_blocks", t.log_blocks);
    page.json_only("descriptors", t.descriptors);
    page.json_only("copies", t.copies);
    page.json_only("replayed", t.replayed);
    page.json_only("revoke_count", t.revokes);
    page.json_only("escaped", t.escaped);
    page.json_only("commit", t.commit.map(|c| json!({"seconds": c.seconds, "nanos": c.nanoseconds})));
    let (mut homes, mut revokes) = (Vec::new(), Vec::new());
    let read = each_entry(log, plan, t, &mut |entry| {
        let (list, block) = match entry {
            Entry::Copy { home, .. } => (&mut homes, home),
            Entry::Revoke(block) => (&mut revokes, block),
        };
        if list.len() < LIST_MAX {
            list.push(block);
        }
    });
    if let Err(fault) = read {
        damage.note(fault);
    }
    for (key, list, all) in [("blocks", &homes, t.copies.into()), ("revokes", &revokes, t.revokes)] {
        if !list.is_empty() {
            block_list(key, list, all, page);
        }
    }
    page.close();
}

/// Prints the blocks that the replay writes home, and those that it does not.
fn replay(
    plan: &ReplayPlan,
    fault: Option<&JournalFault>,
    wanted: Option<bool>,
    damage: &DamageLog,
    page: &mut Page<'_>,
) {
    page.open("replay");
    if let Some(wanted) = wanted {
        let text =
            if wanted { "yes" } else { "no: the superblock does not ask for it, so a mount forgets the log" };
        page.fact("wanted", text, wanted);
    }
    let possible = fault.is_none();
    page.fact("possible", if possible { "yes" } else { "NO: the log is damaged" }, possible);
    page.number("blocks_to_replay", plan.homes.len() as u64);
    page.number("superseded_copies", plan.superseded_copies);
    page.number("revoked_copies", plan.revoked_copies);
    if !plan.homes.is_empty() {
        let homes: Vec<Pblk> = plan.homes.iter().map(|home| home.block).take(LIST_MAX).collect();
        block_list("homes", &homes, plan.homes.len() as u64, page);
    }
    page.number("next_transaction", plan.next_tid.0);
    page.number("next_block", plan.head);
    let (losses, notes): (Vec<_>, Vec<_>) = plan.problems.iter().partition(|problem| problem.is_loss());
    for problem in losses {
        damage.note(format_args!("journal: {problem}"));
    }
    if !notes.is_empty() {
        page.list("notes", None);
        for note in notes {
            page.item(note, note.to_string());
        }
        page.close();
    }
    page.close();
}

/// Prints the fast-commit area, and the records that would be applied.
fn fast_commits(plan: &ReplayPlan, page: &mut Page<'_>) {
    let Some(area) = plan.fast_commit_area.clone() else { return };
    page.open("fast_commits");
    let len = u64::from(area.end.saturating_sub(area.start));
    page.fact("area", range_text(area.start.into(), len), json!({"first": area.start, "count": len}));
    match &plan.fast_commits {
        None => {
            page.text_only("nothing to replay");
            page.json_only("records_to_replay", 0);
        }
        Some(commits) => {
            let counts = &commits.counts;
            page.number("transaction", commits.tid.0);
            page.number("blocks", commits.blocks.len() as u64);
            page.number("records_to_replay", commits.records);
            for (key, number) in [
                ("commits", counts.commits),
                ("inodes", counts.inodes),
                ("added_ranges", counts.added_ranges),
                ("removed_ranges", counts.removed_ranges),
                ("creations", counts.creations),
                ("links", counts.links),
                ("unlinks", counts.unlinks),
            ] {
                page.number(key, number);
            }
        }
    }
    page.close();
}

/// Prints a list of blocks; it contains at most the first [`LIST_MAX`] of `all`.
fn block_list(key: &str, list: &[Pblk], all: u64, page: &mut Page<'_>) {
    let more = if all > list.len() as u64 { " ..." } else { "" };
    let json: Vec<Value> = list.iter().map(|block| Value::from(block.0)).collect();
    page.fact(key, format!("{}{more}", ranges(list)), json);
}

/// Blocks as ranges such as `5, 7..9`, in the given order.
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

/// The time of a commit. debugfs writes the seconds into the upper half of their field.
fn commit_time(time: CommitTime) -> String {
    let nanos = time.nanoseconds;
    match (time.seconds >> 32, time.seconds as u32) {
        (0, low) => iso_time(Timestamp { seconds: low.into(), nanos }),
        (high, 0) => {
            let time = Timestamp { seconds: high as i64, nanos }; // below 2^32
            format!("{} (seconds in the upper half of their field)", iso_time(time))
        }
        _ => format!("{} seconds after 1970", time.seconds),
    }
}
