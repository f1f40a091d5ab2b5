//! Puts the state of a volume that is open for writing together, from parts that are open already.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use extant_alloc::Alloc;
use extant_base::sync::CachePadded;
use extant_device::Device;
use extant_flush::Coordinator;
use extant_inode::{DataPath, InodeCache, Inodes, OrphanFile, Orphans, Shared};
use extant_journal::{Bug, Journal};
use parking_lot::Mutex;

use super::discard::Discards;
use super::errors::Errors;
use super::fast::FastCommits;
use super::label::NewNames;
use super::primary::superblock_place;
use super::writeback::{EXPIRE_MS, Flusher};
use super::xattrs::SharedXattrs;
use super::{CommitClient, WriteOptions, Writer};
use crate::MountGuard;

/// Where commits go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogKind {
    pub(crate) has_log: bool,
    pub(crate) is_external: bool,
}

impl CommitClient {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        alloc: Arc<Alloc>,
        orphan_file: Option<OrphanFile>,
        data: DataPath,
        is_fast: bool,
        options: &WriteOptions,
    ) -> Self {
        let (sb, geometry) = (&shared.sb, &shared.geometry);
        let superblock = superblock_place(geometry);
        Self {
            live: InodeCache::new(
                Arc::clone(shared),
                (data, options.extents),
                options.sabotage.has(Bug::ForgetOrphans),
            ),
            alloc,
            orphans: Orphans::new(options.orphans, orphan_file, superblock),
            errors: Errors::new(sb, options.errors),
            index: extant_dir::Format::of(sb, geometry).index,
            superblock_at: superblock.1,
            discards: Discards::new(options.discard),
            fast: FastCommits::new(is_fast, options.sabotage),
        }
    }
}

impl Writer {
    /// Nothing runs in the background yet: see [`start_threads`](Self::start_threads).
    pub(crate) fn new(
        keeper: Arc<CommitClient>,
        journal: Arc<Journal>,
        inodes: Arc<Inodes>,
        device: Arc<Coordinator<Arc<dyn Device>>>,
        LogKind { has_log, is_external }: LogKind,
        options: &WriteOptions,
    ) -> Self {
        let shared = inodes.shared();
        let salt = match options.fixed_time {
            Some(time) => extant_base::salted::spread(time.seconds as u64 ^ u64::from(time.nanos) << 32),
            None => std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), shared.sb.uuid),
        };
        let dir_format = extant_dir::Format::of(&shared.sb, &shared.geometry);
        let flusher = Arc::new(Flusher {
            keeper: Arc::clone(&keeper),
            journal: Arc::clone(&journal),
            device,
            has_log,
            has_external_log: is_external,
            no_barriers: options.no_barriers,
            has_thread: !options.no_committer,
            expire_ms: options.commit_interval.map_or(EXPIRE_MS, |interval| {
                u64::try_from(interval.as_millis()).map_or(EXPIRE_MS, |ms| ms.min(EXPIRE_MS))
            }),
            is_closing: AtomicBool::new(false),
            begun: Instant::now(),
            sabotage: options.sabotage,
        });
        inodes.set_live(Arc::clone(&keeper) as Arc<dyn extant_inode::LiveOwner>);
        Self {
            keeper,
            journal,
            flusher,
            writeback: Mutex::new(None),
            inodes,
            xattrs: SharedXattrs::new(),
            renames: extant_base::rank::Mutex::new(()),
            // Far apart, because each step adds a large odd number.
            generations: std::array::from_fn(|at| {
                CachePadded(AtomicU64::new(salt ^ extant_base::salted::spread(at as u64)))
            }),
            dir_format,
            committer: Mutex::new(None),
            reader: Mutex::new(None),
            skip_short_orphans: !options.track_all_orphans,
            keeps_set_id: options.keeps_set_id,
            keeps_times: options.keeps_times,
            is_cache_timed: AtomicBool::new(false),
            dir_groups: options.dir_groups,
            no_auto_da_alloc: options.no_auto_da_alloc,
            fixed_time: options.fixed_time,
            names: NewNames::default(),
            guard: None,
        }
    }

    /// Holds the guard until the volume is closed, and stops writing when it is lost.
    pub(crate) fn hold(&mut self, guard: MountGuard) {
        self.guard_with(&guard);
        self.guard = Some(guard);
    }

    /// Stops writing when this guard is lost.
    pub(crate) fn guard_with(&self, guard: &MountGuard) {
        let (journal, keeper) = (Arc::downgrade(&self.journal), Arc::downgrade(&self.keeper));
        guard.when_lost(move |why| {
            if let (Some(journal), Some(keeper)) = (journal.upgrade(), keeper.upgrade()) {
                keeper.errors.is_lost.store(true, std::sync::atomic::Ordering::Release);
                journal.abort(why.to_owned());
            }
        });
    }
}
