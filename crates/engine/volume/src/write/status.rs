//! The part of [`Status`](crate::Status) that only volumes that are open for writing have.

use extant_device::Device as _;

use super::Writer;
use crate::status::{
    CommitStatus, DataStatus, ErrorStatus, ExtentStatusCache, FlushStatus, LogStatus, OrphanStatus,
    WritingStatus,
};

impl Writer {
    pub(crate) fn status(&self) -> WritingStatus {
        let journal = self.journal.stats();
        WritingStatus {
            commits: CommitStatus::of(&journal),
            log: LogStatus::of(&journal),
            data: self.data_status(),
            extent_status: self.extent_status(),
            flushes: self.flush_status(),
            orphans: OrphanStatus {
                mode: self.keeper.orphans.mode().name().to_owned(),
                count: self.keeper.orphans.count() as u64,
            },
            errors: ErrorStatus {
                recorded: self.keeper.errors.recorded().into(),
                files_lost: self.inodes().files().lost_nodes().len() as u64,
                aborted: self.journal.aborted().map(|aborted| aborted.cause.clone()),
            },
        }
    }

    fn data_status(&self) -> DataStatus {
        let files = self.inodes().files();
        let stats = files.pages.stats();
        let oldest = files.pages.oldest_dirty_ms();
        DataStatus {
            dirty_bytes: stats.dirty_bytes,
            writing_bytes: stats.writing_bytes,
            oldest_dirty_ms: oldest.map(|since| self.flusher.now_ms().saturating_sub(since)),
            files_dirty: files.dirty_nodes().len() as u64,
            read_hit_bytes: stats.hit_bytes,
            read_miss_bytes: stats.miss_bytes,
            readahead_bytes: stats.readahead_bytes,
            written_bytes: stats.written_bytes,
            folios_evicted: stats.evicted,
            throttled: stats.throttled,
            throttled_ns: stats.throttled_time.as_nanos() as u64,
        }
    }

    fn extent_status(&self) -> ExtentStatusCache {
        let stats = self.inodes().files().extent_stats();
        ExtentStatusCache {
            entries: stats.entries,
            reclaimable: stats.reclaimable,
            bytes: stats.bytes,
            hits: stats.hits,
            misses: stats.misses,
            shrinker_runs: stats.scan_times.count(),
            scanned: stats.scanned,
            reclaimed: stats.reclaimed,
            shrinker_time_max_ns: stats.scan_times.max_ns(),
        }
    }

    fn flush_status(&self) -> FlushStatus {
        let counts = self.flusher.device.counts();
        let measured = self.flusher.device.flush_stats();
        FlushStatus {
            requests: counts.requests,
            issued: counts.flushes,
            joined: counts.joined,
            covered: counts.covered,
            by_journal: counts.others,
            delay_ns: counts.delay_nanos,
            average_ns: measured.map(|stats| stats.average_nanos),
            max_ns: measured.map(|stats| stats.max_nanos),
        }
    }
}
