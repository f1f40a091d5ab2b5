//! Crashes: journals that need a replay.

use super::{Recipe, image};
use crate::matrix::Step;
use crate::matrix::work::crash;

#[rustfmt::skip]
pub(super) const RECIPES: &[Recipe] = &[
    image("crash-ordered", "32M", &["-t", "ext4", "-J", "size=8"]).steps(&[Step::Crash("data=ordered", crash::transactions)]),
    image("crash-ordered-1k", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Crash("data=ordered", crash::transactions)]),
    image("crash-writeback", "32M", &["-t", "ext4", "-J", "size=8"]).steps(&[Step::Crash("data=writeback", crash::transactions)]),
    image("crash-journal", "48M", &["-t", "ext4", "-J", "size=16"]).steps(&[Step::Crash("data=journal", crash::journalled_data)]),
    image("crash-journal-1k", "48M", &["-t", "ext4", "-b", "1024", "-J", "size=12"]).steps(&[Step::Crash("data=journal", crash::journalled_data)]),
    image("crash-journal-no-csum", "48M", &["-t", "ext3", "-J", "size=16"]).steps(&[Step::Crash("data=journal", crash::journalled_data)]),
    image("crash-small-journal", "32M", &["-t", "ext4", "-b", "1024", "-J", "size=1"]).steps(&[Step::Crash("data=ordered", crash::transactions)]),
    image("crash-ext3", "32M", &["-t", "ext3", "-b", "1024"]).steps(&[Step::Crash("data=ordered", crash::transactions)]),
    image("crash-32bit", "32M", &["-t", "ext4", "-b", "1024", "-O", "^64bit"]).steps(&[Step::Crash("rw", crash::transactions)]),
    image("crash-no-csum-64bit", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed"]).steps(&[Step::Crash("rw", crash::transactions)]),
    image("crash-checksum-v1", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed"]).steps(&[Step::Crash("journal_checksum", crash::transactions)]),
    image("crash-checksum-v1-journal", "48M", &["-t", "ext3", "-b", "1024", "-J", "size=12"]).steps(&[Step::Crash("journal_checksum,data=journal", crash::journalled_data)]),
    image("crash-async-commit", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Crash("journal_async_commit,data=writeback", crash::transactions)]),
    image("crash-async-commit-v1", "32M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^metadata_csum_seed"]).steps(&[Step::Crash("journal_async_commit,data=writeback", crash::transactions)]),
    image("crash-fast-commit", "32M", &["-t", "ext4", "-O", "fast_commit"]).steps(&[Step::Crash("rw", crash::fsyncs)]),
    image("crash-fast-commit-1k", "32M", &["-t", "ext4", "-b", "1024", "-O", "fast_commit"]).steps(&[Step::Crash("rw", crash::fsyncs)]),
    image("crash-fast-commit-no-csum", "32M", &["-t", "ext4", "-O", "fast_commit,^metadata_csum,^metadata_csum_seed"]).steps(&[Step::Crash("rw", crash::fsyncs)]),
    image("crash-fast-commit-full", "32M", &["-t", "ext4", "-O", "fast_commit"]).steps(&[Step::Crash("rw", crash::transactions)]),
    image("crash-fsyncs", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Crash("rw", crash::fsyncs)]),
    image("crash-orphan-file", "32M", &["-t", "ext4", "-b", "1024"]).steps(&[Step::Crash("rw", crash::orphans)]),
    image("crash-orphan-list", "32M", &["-t", "ext4", "-b", "1024", "-O", "^orphan_file"]).steps(&[Step::Crash("rw", crash::orphans)]),
    image("crash-orphans-inline", "32M", &["-t", "ext4", "-O", "inline_data"]).steps(&[Step::Crash("rw", crash::orphans)]),
    image("crash-bigalloc", "64M", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]).steps(&[Step::Crash("rw", crash::transactions)]),
    image("crash-external-journal", "32M", &["-t", "ext4"]).journal(&["-b", "4096"]).steps(&[Step::Crash("rw", crash::transactions)]),
    image("crash-external-journal-1k", "32M", &["-t", "ext4", "-b", "1024"]).journal(&["-b", "1024"]).steps(&[Step::Crash("data=journal", crash::journalled_data)]),
    image("crash-no-journal", "32M", &["-t", "ext4", "-O", "^has_journal"]).steps(&[Step::Crash("rw", crash::no_journal)]),
];
