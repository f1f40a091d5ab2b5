//! Scans of logs written by `jbd2-format`, sound and damaged.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use extant_base::Ino;
use extant_device::Device;
use extant_jbd2_format::MAGIC;
use extant_jbd2_format::fast_commit::{NameChange, Record, Writer};
use proptest::prelude::*;

use super::*;
use crate::LogMap;
use crate::testlog::{
    BLOCK, EARLIER, FS_BLOCKS, LATER, LOG_BLOCKS, TestLog, all_kinds, filled, old, version_1,
};

fn loss(log: &TestLog) -> Vec<Problem> {
    log.scan().unwrap().problems
}

#[test]
fn the_newest_copy_wins_in_every_layout() {
    for (checksums, wide) in all_kinds() {
        let mut log = TestLog::new(checksums, wide);
        log.copies(&(0..300).map(|n| (100 + n, filled(n as u8))).collect::<Vec<_>>());
        log.commit();
        log.transaction(102, filled(0xEE));
        let plan = log.scan().unwrap();
        assert_eq!((plan.homes.len(), plan.superseded_copies), (300, 1), "{checksums:?} {wide}");
        assert_eq!(
            plan.transactions.iter().map(|t| (t.copies, t.replayed)).collect::<Vec<_>>(),
            [(300, 299), (1, 1)]
        );
        assert_eq!((plan.end.tid, plan.end.block, plan.next_tid), (LogTid(3), log.at, LogTid(4)));
        assert_eq!((plan.head, plan.end.reason), (log.at, EndReason::NotAJournalBlock));
        assert!(plan.is_sound() && plan.problems.is_empty());
        for n in 0..300 {
            let expected = if n == 2 { filled(0xEE) } else { filled(n as u8) };
            assert_eq!(log.after(100 + n), expected, "{checksums:?} {wide}: {n}");
        }
        assert_eq!(log.after(99), old(99));
    }
}

#[test]
fn a_version_1_superblock_has_no_features() {
    let mut log = TestLog::with(version_1());
    log.transaction(7, filled(7));
    assert_eq!(log.after(7), filled(7));
    assert_eq!(log.scan().unwrap().format.checksums, Checksums::None);
}

#[test]
fn a_clean_log_is_not_walked() {
    let mut log = TestLog::new(Checksums::V3, true);
    log.transaction(7, filled(7));
    (log.sb.start, log.sb.head, log.sb.sequence) = (0, 77, LogTid(u32::MAX));
    log.sb.seal();
    log.write_superblock();
    let plan = log.scan().unwrap();
    assert_eq!((plan.state, plan.is_empty(), plan.head, plan.next_tid), (State::Clean, true, 77, LogTid(0)));
}

#[test]
fn a_log_goes_round_its_end_and_ids_round_theirs() {
    for (checksums, wide) in all_kinds() {
        let mut sb = TestLog::new(checksums, wide).sb;
        (sb.start, sb.sequence) = (LOG_BLOCKS - 2, LogTid(u32::MAX));
        let mut log = TestLog::with(sb);
        // The descriptor is the last block but one of the log; copies and commit continue at its start.
        log.copies(&[(10, filled(1)), (11, filled(2)), (12, filled(3))]);
        log.commit();
        log.transaction(11, filled(4));
        assert_eq!(log.tid, LogTid(1));
        let plan = log.scan().unwrap();
        assert_eq!(plan.transactions[0].log_blocks, 5);
        assert_eq!(plan.homes.iter().map(|home| home.log_block).collect::<Vec<_>>(), [LOG_BLOCKS - 1, 5, 2]);
        assert_eq!([10, 11, 12].map(|block| log.after(block)[0]), [1, 4, 3]);
    }
}

#[test]
fn a_copy_is_revoked_by_its_own_transaction_and_by_younger_ones() {
    for (checksums, wide) in all_kinds() {
        let mut sb = TestLog::new(checksums, wide).sb;
        sb.sequence = LogTid(u32::MAX - 1);
        let mut log = TestLog::with(sb);
        log.copies(&[(10, filled(1)), (11, filled(1)), (12, filled(1)), (13, filled(1))]);
        log.commit();
        log.revoke(&[10, 11, 999]);
        log.copies(&[(12, filled(2)), (13, filled(2))]);
        log.revoke(&[12]);
        log.commit();
        log.copies(&[(11, filled(3)), (13, filled(3))]); // 11: used again after the revoke
        log.commit();
        log.revoke(&[13]);
        log.commit();
        let plan = log.scan().unwrap();
        assert_eq!(plan.homes.iter().map(|home| home.block.0).collect::<Vec<_>>(), [11]);
        assert_eq!(log.after(11), filled(3));
        assert_eq!((plan.revoked_copies, plan.superseded_copies), (7, 0));
        assert_eq!(plan.transactions.iter().map(|t| t.revokes).collect::<Vec<_>>(), [0, 4, 0, 1]);
    }
}

#[test]
fn a_revoke_that_was_not_committed_revokes_nothing() {
    let mut log = TestLog::new(Checksums::V3, true);
    log.transaction(10, filled(1));
    log.revoke(&[10]);
    log.copies(&[(11, filled(2))]);
    assert_eq!([log.after(10), log.after(11)], [filled(1), old(11)]);
    let unfinished = log.scan().unwrap().unfinished.unwrap();
    assert_eq!((unfinished.log_blocks, unfinished.revokes, unfinished.commit), (3, 1, None));
}

#[test]
fn the_magic_at_the_head_of_a_block_comes_back() {
    for (checksums, wide) in all_kinds() {
        let mut image = filled(9);
        image[..4].copy_from_slice(&MAGIC.to_be_bytes());
        let mut log = TestLog::new(checksums, wide);
        log.transaction(10, image.clone());
        assert!(log.scan().unwrap().homes[0].escaped);
        assert_eq!(log.after(10), image);
    }
}

#[test]
fn what_is_left_of_an_older_round_ends_the_log() {
    let mut log = TestLog::new(Checksums::V3, true);
    log.transaction(10, filled(1));
    let end = log.at;
    log.tid = LogTid(40);
    log.transaction(11, filled(2));
    let plan = log.scan().unwrap();
    assert_eq!((plan.end.block, plan.end.reason), (end, EndReason::OtherTransaction(LogTid(40))));
    assert_eq!((plan.transactions.len(), plan.unfinished), (1, None));
}

/// Matching IDs, wrong checksums, and an earlier commit time: the log of a previous file system.
#[test]
fn a_stale_tail_with_ids_that_fit_is_left_alone() {
    for checksums in [Checksums::V2, Checksums::V3] {
        let mut log = TestLog::new(checksums, true);
        log.transaction(10, filled(1));
        let descriptor = log.at;
        log.seconds = 1_600_000_000;
        log.transaction(11, filled(2));
        log.flip(descriptor, 500, 1);
        let plan = log.scan().unwrap();
        assert_eq!((plan.end.tid, plan.end.reason), (LogTid(2), EndReason::Stale));
        assert!(plan.is_sound());
        assert_eq!([log.after(10), log.after(11)], [filled(1), old(11)]);
    }
    // The same with a sound descriptor and a commit block that does not match.
    for checksums in [Checksums::V1, Checksums::V2, Checksums::V3] {
        let mut log = TestLog::new(checksums, true);
        log.transaction(10, filled(1));
        log.seconds = 1_600_000_000;
        log.copies(&[(11, filled(2))]);
        let commit = log.commit();
        log.flip(commit, 0x10, 1);
        assert_eq!(log.scan().unwrap().end.reason, EndReason::Stale, "{checksums:?}");
    }
}

#[test]
fn a_damaged_descriptor_or_revoke_block_of_a_committed_transaction_is_a_fault() {
    for checksums in [Checksums::V2, Checksums::V3] {
        for which in 0..2 {
            let mut log = TestLog::new(checksums, false);
            log.transaction(10, filled(1));
            let places = [log.revoke(&[10]), log.copies(&[(11, filled(2))])];
            log.commit();
            log.flip(places[which], 900, 1);
            let fault = log.scan().unwrap_err();
            assert!(
                matches!(fault, JournalFault::Corrupt { tid: LogTid(2), block } if block == places[which]),
                "{fault}"
            );
            // `examine` also shows what precedes the fault.
            let target = ReplayTarget::new(FS_BLOCKS, BlockSize::MIN);
            let examined = examine(log.log().view(), &target, log.sb.clone()).unwrap();
            assert_eq!((examined.plan.transactions.len(), examined.plan.homes.len()), (1, 1));
            assert_eq!(examined.plan.unfinished.unwrap().copies, 1);
            assert!(examined.fault.is_some() && examined.plan.end.reason == EndReason::Fault);
        }
    }
}

#[test]
fn a_damaged_descriptor_that_was_not_committed_does_not_matter() {
    let mut log = TestLog::new(Checksums::V3, true);
    log.transaction(10, filled(1));
    let descriptor = log.copies(&[(11, filled(2))]);
    log.flip(descriptor, 900, 1);
    assert!(log.scan().unwrap().is_sound());
}

#[test]
fn a_revoke_count_that_cannot_be_is_a_fault() {
    let mut log = TestLog::new(Checksums::None, true);
    let revoke = log.revoke(&[10]);
    log.commit();
    log.flip(revoke, 12, 0x80);
    assert!(matches!(log.scan(), Err(JournalFault::Revoke { tid: LogTid(1), .. })));
}

#[test]
fn a_damaged_copy_is_left_out_and_an_older_one_stands() {
    for checksums in [Checksums::V2, Checksums::V3] {
        let mut log = TestLog::new(checksums, true);
        log.transaction(10, filled(1));
        let descriptor = log.transaction(10, filled(2));
        log.flip(descriptor + 1, 77, 4);
        let home = Pblk(10);
        assert_eq!(loss(&log), [Problem::CopyChecksum { tid: LogTid(2), log_block: descriptor + 1, home }]);
        assert_eq!(log.after(10), filled(1));
        assert!(!log.scan().unwrap().is_sound());
        // A damaged copy that is not replayed does not matter.
        log.revoke(&[10]);
        log.commit();
        assert_eq!(loss(&log), []);
        assert_eq!(log.after(10), old(10));
    }
}

#[test]
fn without_checksums_damage_goes_unseen_and_version_1_sees_it_in_the_commit() {
    let mut log = TestLog::new(Checksums::None, true);
    let descriptor = log.transaction(10, filled(1));
    log.flip(descriptor + 1, 77, 4);
    assert!(log.scan().unwrap().is_sound());
    let mut log = TestLog::new(Checksums::V1, true);
    let descriptor = log.transaction(10, filled(1));
    log.flip(descriptor + 1, 77, 4);
    let commit = descriptor + 2;
    assert_eq!(loss(&log), [Problem::FailedCommit { tid: LogTid(1), log_block: commit }]);
    assert_eq!(log.after(10), old(10));
}

#[test]
fn a_version_1_commit_without_checksum_is_taken() {
    let mut log = TestLog::new(Checksums::V1, false);
    log.copies(&[(10, filled(1))]);
    let commit = CommitBlock::new(log.tid, 5, 0).encode(log.format);
    log.write_at(log.at, &commit);
    assert_eq!(log.after(10), filled(1));
}

#[test]
fn a_torn_commit_is_whole_if_its_first_sector_is_right() {
    for checksums in [Checksums::V2, Checksums::V3] {
        let mut log = TestLog::new(checksums, true);
        log.copies(&[(10, filled(1))]);
        let commit = log.commit();
        log.write_at(commit, &[log.read_at(commit)[..512].to_vec(), vec![0xFF; 512]].concat());
        assert_eq!(loss(&log), [Problem::IncompleteCommit { tid: LogTid(1), log_block: commit }]);
        assert!(log.scan().unwrap().is_sound());
        assert_eq!(log.after(10), filled(1));
    }
}

#[test]
fn a_wrong_commit_ends_the_log_with_a_loss() {
    for checksums in [Checksums::V1, Checksums::V2, Checksums::V3] {
        let mut log = TestLog::new(checksums, true);
        log.transaction(10, filled(1));
        log.copies(&[(11, filled(2))]);
        let commit = log.commit();
        log.transaction(12, filled(3));
        log.flip(commit, 0x11, 1);
        let plan = log.scan().unwrap();
        assert_eq!(plan.problems, [Problem::FailedCommit { tid: LogTid(2), log_block: commit }]);
        let end = LogEnd { tid: LogTid(2), block: commit, reason: EndReason::FailedCommit };
        assert_eq!((plan.end, plan.next_tid), (end, LogTid(3)));
        assert_eq!([10, 11, 12].map(|block| log.after(block)), [filled(1), old(11), old(12)]);
    }
}

#[test]
fn with_async_commit_a_wrong_last_commit_is_just_a_crash() {
    for checksums in [Checksums::V1, Checksums::V3] {
        let mut sb = TestLog::new(checksums, true).sb;
        sb.features.incompat |= Features::ASYNC_COMMIT;
        let mut log = TestLog::with(sb);
        log.transaction(10, filled(1));
        let head = log.at;
        log.copies(&[(11, filled(2))]);
        let commit = log.commit();
        log.flip(commit, 0x11, 1);
        let plan = log.scan().unwrap();
        assert_eq!((plan.end.tid, plan.end.reason), (LogTid(2), EndReason::FailedCommit));
        assert_eq!((plan.is_sound(), plan.head), (true, head));
        assert_eq!([log.after(10), log.after(11)], [filled(1), old(11)]);
        // If the log continues after it, it is a loss.
        log.transaction(12, filled(3));
        assert_eq!(
            loss(&log),
            [Problem::FailedCommit { tid: LogTid(2), log_block: commit }],
            "{checksums:?}"
        );
        assert_eq!([log.after(10), log.after(12)], [filled(1), old(12)]);
    }
}

#[test]
fn homes_outside_of_the_target_and_in_the_log_are_left_out() {
    let mut log = TestLog::new(Checksums::V3, true);
    let homes = [3, FS_BLOCKS, u64::MAX >> 1, EARLIER, LATER + 499, LATER + 500];
    log.copies(&homes.map(|home| (home, filled(8))));
    log.commit();
    let plan = log.scan().unwrap();
    assert_eq!(plan.homes.iter().map(|home| home.block.0).collect::<Vec<_>>(), [3, LATER + 500]);
    let (tid, at) = (LogTid(1), 2);
    assert_eq!(
        plan.problems,
        [
            Problem::HomeOutside { tid, log_block: at + 1, home: Pblk(FS_BLOCKS) },
            Problem::HomeOutside { tid, log_block: at + 2, home: Pblk(u64::MAX >> 1) },
            Problem::HomeInLog { tid, log_block: at + 3, home: Pblk(EARLIER) },
            Problem::HomeInLog { tid, log_block: at + 4, home: Pblk(LATER + 499) },
        ]
    );
}

#[test]
fn a_log_made_to_go_round_in_circles_ends() {
    let mut log = TestLog::new(Checksums::None, true);
    // Nothing but empty revoke blocks of the first transaction.
    let mut block = filled(0);
    block[..12].copy_from_slice(&Header { kind: BlockType::Revoke, tid: LogTid(1) }.encode());
    for at in 1..LOG_BLOCKS {
        log.write_at(at, &block);
    }
    assert_eq!(loss(&log), [Problem::NoEnd]);
    // Valid commit blocks in the whole log.
    for _ in 1..LOG_BLOCKS {
        log.commit();
    }
    let plan = log.scan().unwrap();
    assert_eq!((plan.end.reason, plan.transactions.len()), (EndReason::WholeLog, LOG_BLOCKS as usize - 1));
    // A descriptor with more copies than the log has blocks.
    let mut sb = log.sb.clone();
    sb.start = LOG_BLOCKS - 1;
    let log = TestLog::with(sb);
    for at in 1..LOG_BLOCKS {
        let mut block = filled(0);
        block[..12].copy_from_slice(&Header { kind: BlockType::Descriptor, tid: LogTid(1) }.encode());
        log.write_at(at, &block);
    }
    assert_eq!(log.scan().unwrap().end.reason, EndReason::WholeLog);
}

#[test]
fn a_superblock_that_cannot_be_used_is_refused_by_its_reason() {
    type Break = fn(&mut TestLog);
    let cases: [(&str, Break); 7] = [
        ("have 4096 bytes", |log| log.sb.block_size = 4096),
        ("FEATURE_I9", |log| log.sb.features.incompat |= 1 << 9),
        ("FEATURE_R3", |log| log.sb.features.ro_compat |= 1 << 3),
        ("checksum WRONG", |log| log.sb.checksum ^= 1),
        ("at least 1024", |log| log.sb.total_blocks = 1000),
        ("says it has 1101 blocks, but there are 1100", |log| log.sb.total_blocks = LOG_BLOCKS + 1),
        ("starts inside", |log| log.sb.start = LOG_BLOCKS),
    ];
    for (words, breaks) in cases {
        let mut log = TestLog::new(Checksums::V3, true);
        let map = log.map();
        breaks(&mut log);
        if !words.contains("checksum") {
            log.sb.seal();
        }
        log.write_superblock();
        let view = LogView::new(&*log.device, &map, BlockSize::MIN);
        let text = scan(view, &ReplayTarget::new(FS_BLOCKS, BlockSize::MIN)).unwrap_err().to_string();
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_log_on_a_device_of_its_own_belongs_to_one_file_system() {
    let mut log = TestLog::new(Checksums::V3, true);
    // On an external device, log blocks are the device's blocks, and the superblock is in block 2 of 1 KiB
    // blocks.
    log.sb.first = 3;
    log.sb.start = 3;
    let map = LogMap::external(LOG_BLOCKS, BlockSize::MIN);
    let mut writer = extant_jbd2_format::DescriptorWriter::new(log.format, LogTid(1), [0; 16]);
    writer.push(Pblk(5), false, log.format.tag_checksum(LogTid(1), &filled(1))).unwrap();
    let commit = CommitBlock::new(LogTid(1), 1, 1).encode(log.format);
    for (at, bytes) in (3..).zip([writer.finish(), filled(1), commit]) {
        log.device.write_at(at * BLOCK as u64, &bytes).unwrap();
    }
    let scan_for = |log: &mut TestLog, users, uuid| {
        log.sb.nr_users = users;
        log.sb.seal();
        log.device.write_at(2 * BLOCK as u64, &log.sb.encode()).unwrap();
        let target =
            ReplayTarget { journal_uuid: Some(uuid), ..ReplayTarget::new(FS_BLOCKS, BlockSize::MIN) };
        scan(LogView::new(&*log.device, &map, BlockSize::MIN), &target)
    };
    let uuid = log.sb.uuid;
    let plan = scan_for(&mut log, 1, uuid).unwrap();
    assert_eq!(plan.homes.iter().map(|home| (home.block.0, home.log_block)).collect::<Vec<_>>(), [(5, 4)]);
    assert!(matches!(scan_for(&mut log, 1, [9; 16]), Err(JournalFault::WrongJournal { .. })));
    assert!(matches!(scan_for(&mut log, 2, uuid), Err(JournalFault::Shared { users: 2 })));
}

/// A log with a fast-commit area, one transaction, and fast commits for transaction `tid`.
fn with_fast_commits(tid: LogTid, names: &[&[&[u8]]]) -> TestLog {
    let mut sb = TestLog::new(Checksums::V3, true).sb.with_fast_commit_area(64);
    sb.features.incompat |= Features::FAST_COMMIT;
    let mut log = TestLog::with(sb);
    log.transaction(10, filled(1));
    let mut bytes = Vec::new();
    for (n, names) in names.iter().enumerate() {
        let mut writer = Writer::new(BlockSize::MIN);
        if n == 0 {
            writer.push(&Record::Head { features: 0, tid }).unwrap();
        }
        for &name in *names {
            let record = Record::Name { change: NameChange::Link, parent: Ino(2), ino: Ino(12), name };
            writer.push(&record).unwrap();
        }
        bytes.extend(writer.finish(tid));
    }
    let area = log.sb.fast_commit_range().unwrap();
    for (at, block) in area.zip(bytes.chunks(BLOCK)) {
        log.write_at(at, block);
    }
    log
}

fn names(plan: &ReplayPlan) -> Vec<&[u8]> {
    let records = plan.fast_commits.iter().flat_map(|commits| commits.records());
    records
        .map(|record| match record {
            Record::Name { name, .. } => name,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn fast_commits_on_top_of_the_last_transaction_are_found() {
    let long = [b'l'; 250];
    let log = with_fast_commits(LogTid(2), &[&[b"a", b"b"], &[&long, &long, &long, &long, b"c"], &[b"torn"]]);
    let area = log.sb.fast_commit_range().unwrap();
    log.flip(area.start + 3, 10, 1);
    let plan = log.scan().unwrap();
    assert_eq!(names(&plan), [b"a".as_slice(), b"b", &long, &long, &long, &long, b"c"]);
    let commits = plan.fast_commits.as_ref().unwrap();
    assert_eq!((commits.blocks.len(), commits.counts.commits, commits.counts.links), (3, 2, 7));
    assert_eq!((commits.first_log_block, commits.tid), (area.start, LogTid(2)));
    assert!(plan.is_sound());
}

#[test]
fn fast_commits_for_another_transaction_are_old() {
    for tid in [LogTid(1), LogTid(3)] {
        let log = with_fast_commits(tid, &[&[b"a"]]);
        let plan = log.scan().unwrap();
        assert_eq!((plan.fast_commits, plan.problems), (None, vec![]));
    }
}

#[test]
fn a_first_fast_commit_that_is_damaged_is_a_problem() {
    let log = with_fast_commits(LogTid(2), &[&[b"a"]]);
    log.flip(log.sb.fast_commit_range().unwrap().start, 30, 1);
    assert!(matches!(loss(&log)[..], [Problem::FastCommit { .. }]));
}

#[test]
fn the_dump_is_stable() {
    let mut log = with_fast_commits(LogTid(5), &[&[b"a", b"b"]]);
    let mut magic = filled(9);
    magic[..4].copy_from_slice(&MAGIC.to_be_bytes());
    let bad =
        log.copies(&[(20, filled(2)), (21, filled(3)), (22, magic), (10, filled(4)), (31, filled(5))]) + 5;
    log.commit();
    log.flip(bad, 0, 1);
    log.revoke(&[10]);
    log.copies(&[(20, filled(6)), (70_000, filled(7))]);
    log.commit();
    let commit = log.commit();
    log.flip(commit, 1000, 1);
    log.copies(&[(40, filled(6))]);
    let expected = "\
journal: 1164 blocks of 1024, log in 1..1100, checksums version 3, 64 bits
begins with transaction 1 at log block 1
transaction 1: from log block 1, 3 blocks, 1 copies (0 escaped, 0 replayed), 0 revokes, committed 1700000000.000000005
transaction 2: from log block 4, 7 blocks, 5 copies (1 escaped, 2 replayed), 0 revokes, committed 1700000005.000000005
transaction 3: from log block 11, 5 blocks, 2 copies (0 escaped, 1 replayed), 1 revokes, committed 1700000010.000000005
transaction 4: from log block 16, 1 blocks, 0 copies (0 escaped, 0 replayed), 0 revokes, committed 1700000015.000000005
transaction 5: from log block 17, 2 blocks, 1 copies (0 escaped, 0 replayed), 0 revokes, NOT committed
3 homes, 1 copies superseded, 2 revoked
  20 from log block 13, transaction 3
  21 from log block 6, transaction 2
  22 from log block 7, transaction 2, escaped
ends at log block 19 instead of transaction 5: no journal block
next is transaction 6 at log block 17
fast-commit area in 1101..1164
1 fast commits for transaction 5, in 1 blocks from log block 1101: 0 inodes, 0 ranges added, 0 removed, 0 creations, \
2 links, 0 unlinks
problem: log block 16: commit of transaction 4: only its first sector is right, which is enough
problem: log block 9: copy of block 31 in transaction 2: checksum WRONG; it is not replayed
problem: log block 14: copy of block 70000 in transaction 3 belongs outside of the file system; it is not replayed
";
    let dump = log.scan().unwrap().to_string();
    assert_eq!(dump, expected, "\n{dump}");
}

#[test]
fn entries_list_what_a_transaction_holds() {
    use crate::{Entry, each_entry};
    let mut log = TestLog::new(Checksums::V2, false);
    log.revoke(&[5, 6]);
    log.copies(&[(10, filled(1)), (11, filled(2))]);
    log.commit();
    let plan = log.scan().unwrap();
    let mut entries = Vec::new();
    each_entry(log.log().view(), &plan, &plan.transactions[0], &mut |entry| entries.push(entry)).unwrap();
    assert_eq!(
        entries,
        [
            Entry::Revoke(Pblk(5)),
            Entry::Revoke(Pblk(6)),
            Entry::Copy { home: Pblk(10), log_block: 3, escaped: false },
            Entry::Copy { home: Pblk(11), log_block: 4, escaped: false },
        ]
    );
}

/// One step of a random history: copies of blocks, revokes, or the end of a transaction.
#[derive(Debug, Clone)]
enum Step {
    Copy(u64, u8),
    Revoke(u64),
    Commit,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (100u64..116, any::<u8>()).prop_map(|(block, byte)| Step::Copy(block, byte)),
        2 => (100u64..116).prop_map(Step::Revoke),
        2 => Just(Step::Commit),
    ]
}

fn write(log: &mut TestLog, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Copy(block, byte) => drop(log.copies(&[(*block, filled(*byte))])),
            Step::Revoke(block) => drop(log.revoke(&[*block])),
            Step::Commit => drop(log.commit()),
        }
    }
}

/// The expected contents of the target, computed in the other direction: each transaction in turn undoes what
/// it revokes.
fn model(steps: &[Step]) -> BTreeMap<u64, u8> {
    let commits: Vec<&[Step]> = steps.split(|step| matches!(step, Step::Commit)).collect();
    let mut result = BTreeMap::new();
    for transaction in &commits[..commits.len() - 1] {
        for step in *transaction {
            if let Step::Copy(block, byte) = step {
                result.insert(*block, *byte);
            }
        }
        for step in *transaction {
            if let Step::Revoke(block) = step {
                result.remove(block);
            }
        }
    }
    result
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_history_replays_as_the_model_says(
        steps in prop::collection::vec(step(), 0..120),
        kind in 0usize..8,
        start in 1u32..LOG_BLOCKS,
        sequence in prop_oneof![Just(u32::MAX - 3), any::<u32>()],
    ) {
        let (checksums, wide) = all_kinds().nth(kind).unwrap();
        let mut sb = TestLog::new(checksums, wide).sb;
        (sb.start, sb.sequence) = (start, LogTid(sequence));
        let mut log = TestLog::with(sb);
        write(&mut log, &steps);
        let plan = log.scan().unwrap();
        prop_assert!(plan.problems.is_empty());
        let expected = model(&steps);
        prop_assert_eq!(plan.homes.len(), expected.len());
        let overlay = log.overlay(&plan);
        let mut all = vec![0; 18 * BLOCK];
        overlay.read_at(99 * BLOCK as u64, &mut all).unwrap();
        for (block, found) in (99..).zip(all.chunks(BLOCK)) {
            let content = expected.get(&block).map_or(old(block), |byte| filled(*byte));
            prop_assert_eq!(found, &content[..]);
        }
    }

    #[test]
    fn no_damage_makes_a_scan_panic_or_hang_or_name_a_wrong_home(
        steps in prop::collection::vec(step(), 20..120),
        kind in 0usize..8,
        damage in prop::collection::vec(
            (0u32..300, prop_oneof![0usize..64, 0usize..BLOCK], any::<u8>(), any::<bool>()), 1..30
        ),
        resealed: bool,
        with_fc: bool,
    ) {
        let (checksums, wide) = all_kinds().nth(kind).unwrap();
        let mut sb = TestLog::new(checksums, wide).sb;
        if with_fc {
            sb = sb.with_fast_commit_area(64);
            sb.features.incompat |= Features::FAST_COMMIT;
        }
        let mut log = TestLog::with(sb);
        write(&mut log, &steps);
        let blocks = log.at;
        for (at, byte, bits, zero) in damage {
            let at = at % blocks;
            if zero {
                log.write_at(at, &filled(bits));
            } else {
                log.flip(at, byte, bits);
            }
            // Damage that checksums do not detect goes further.
            if resealed && at > 0 {
                let mut bytes = log.read_at(at);
                log.format.seal_tail(&mut bytes);
                log.write_at(at, &bytes);
            }
        }
        if resealed && let Ok(mut sb) = Superblock::decode(&log.read_at(0)) {
            sb.seal();
            log.write_at(0, &sb.encode());
        }
        let begun = Instant::now();
        if let Ok(plan) = log.scan() {
            for home in &plan.homes {
                prop_assert!(home.block.0 < FS_BLOCKS && !log.map().occupies(home.block));
            }
            prop_assert!(plan.homes.is_sorted_by(|a, b| a.block < b.block));
            let replayed: u32 = plan.transactions.iter().map(|t| t.replayed).sum();
            prop_assert_eq!(replayed as usize, plan.homes.len());
            let _ = plan.to_string();
            let overlay = log.overlay(&plan);
            let mut all = vec![0; 200 * BLOCK];
            overlay.read_at(0, &mut all).unwrap();
        }
        prop_assert!(begun.elapsed() < Duration::from_secs(5));
    }
}

/// A device that cannot read some of its blocks.
struct Unreadable {
    inner: std::sync::Arc<extant_device::MemDevice>,
    bad: std::ops::Range<u64>,
}

impl Device for Unreadable {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), extant_device::DeviceFault> {
        if offset < self.bad.end && offset + buf.len() as u64 > self.bad.start {
            let (what, len, source) = ("read", buf.len() as u64, std::io::Error::other("bad sector"));
            return Err(extant_device::DeviceFault::Io { what, offset, len, source });
        }
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), extant_device::DeviceFault> {
        unreachable!()
    }

    fn zero_at(&self, _: u64, _: u64) -> Result<(), extant_device::DeviceFault> {
        unreachable!()
    }

    fn flush(&self) -> Result<(), extant_device::DeviceFault> {
        unreachable!()
    }
}

#[test]
fn a_block_that_cannot_be_read_costs_only_what_it_holds() {
    let mut log = TestLog::new(Checksums::V3, true);
    let descriptor = log.copies(&[(10, filled(1)), (11, filled(2)), (12, filled(3))]);
    let commit = log.commit();
    let scan_without = |log_block: u32| {
        let start = log.offset(log_block);
        let device = Unreadable { inner: log.device.clone(), bad: start..start + BLOCK as u64 };
        let map = log.map();
        scan(LogView::new(&device, &map, BlockSize::MIN), &ReplayTarget::new(FS_BLOCKS, BlockSize::MIN))
    };
    let plan = scan_without(descriptor + 2).unwrap();
    assert_eq!(plan.homes.iter().map(|home| home.block.0).collect::<Vec<_>>(), [10, 12]);
    let (tid, home) = (LogTid(1), Pblk(11));
    assert_eq!(plan.problems, [Problem::CopyUnreadable { tid, log_block: descriptor + 2, home }]);
    assert!(matches!(scan_without(commit), Err(JournalFault::Device { block, .. }) if block == commit));
    // Past the end nothing matters.
    assert!(scan_without(commit + 2).unwrap().is_sound());
}

#[test]
fn revoke_records_of_blocks_that_were_never_logged_cost_no_memory() {
    let mut log = TestLog::new(Checksums::None, false);
    log.transaction(10, filled(1));
    for n in 0..900u64 {
        log.revoke(&(0..250).map(|i| 20_000 + n * 250 + i).collect::<Vec<_>>());
    }
    log.commit();
    let plan = log.scan().unwrap();
    assert_eq!((plan.transactions[1].revokes, plan.homes.len()), (225_000, 1));
    let copies = [LoggedCopy {
        home: Pblk(10),
        log_block: 2,
        transaction: 0,
        escaped: false,
        verdict: Verdict::Sound,
    }];
    let blocks: Vec<(u32, LogTid)> = (4..900).map(|at| (at, LogTid(2))).collect();
    let shared = log.log();
    let mut reader = Sequential::new(shared.view());
    assert_eq!(youngest_revokes(&mut reader, log.format, &copies, &blocks).0.len(), 1);
}
