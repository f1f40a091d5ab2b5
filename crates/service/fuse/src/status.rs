//! The state of a mount as numbers, and its form in JSON.
//!
//! ```text
//!  getxattr(any inode, "extant.status") --> MountStatus: requests, errors met, the volume's Status
//! ```
//!
//! Owns: the names of the JSON keys, with [`extant_volume::status`]; they are stable. Does **not** own:
//! counting. Counters count from the mount on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use extant_fuse_lowlevel::OperationStatistics;
use extant_volume::{Fault, status};
use serde::{Deserialize, Serialize};

/// The latency in nanoseconds below which the requests of a bucket are: see [`Buckets`].
pub use extant_fuse_lowlevel::bucket_bound;

/// The attribute of every inode with the state of the mount in JSON ([`MountStatus`]). It is made when it is
/// read, in no list, and only for root and the mounting user.
pub const STATUS_ATTRIBUTE: &str = "extant.status";
/// The largest value of an attribute in Linux.
pub(crate) const VALUE_MAX: usize = 64 << 10;
/// The longest error text that is kept, in bytes.
const TEXT_MAX: usize = 500;

/// The state of a mount.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MountStatus {
    /// Version of the names: [`extant_volume::status::VERSION`].
    pub version: u32,
    /// The server's process.
    pub process: u32,
    /// Can anything be changed?
    pub read_write: bool,
    /// How the request for this came from the kernel: `dev` or `uring`.
    pub transport: String,
    /// Milliseconds since the mount.
    pub age_ms: u64,
    /// The operations of the FUSE protocol that were requested.
    pub requests: Vec<RequestStatus>,
    /// What the server has; `None` if it is closed.
    pub server: Option<ServerStatus>,
}

/// What a server has besides its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Errors met.
    pub errors_met: FaultStatus,
    /// The volume.
    pub volume: status::Status,
}

/// The requests of one operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RequestStatus {
    /// Its name in the FUSE protocol.
    pub operation: String,
    pub count: u64,
    /// Requests that were answered with an error, such as ENOENT.
    pub errors: u64,
    /// Time of all of them together, from reading the request to the end of sending the reply. Of fast
    /// operations some are timed, and stand for all.
    pub time_ns: u64,
    /// Percentiles of that time.
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
    /// The distribution; left out if the whole would be too long for an attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Buckets>,
}

/// Requests by latency.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Buckets {
    /// The bucket of the first count; those before are empty, as those after the last count.
    pub first: usize,
    /// Requests whose latency is below the [bound](bucket_bound) of the bucket, and not below the one before.
    pub counts: Vec<u64>,
}

impl RequestStatus {
    fn of(statistics: &OperationStatistics) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let quantile = |share| nanos(statistics.quantile(share));
        let counts = statistics.buckets();
        let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
        let end = counts.iter().rposition(|count| *count > 0).map_or(first, |last| last + 1);
        Self {
            operation: statistics.name.to_owned(),
            count: statistics.count,
            errors: statistics.errors,
            time_ns: nanos(statistics.total),
            p50_ns: quantile(0.5),
            p90_ns: quantile(0.9),
            p99_ns: quantile(0.99),
            p999_ns: quantile(0.999),
            max_ns: nanos(statistics.max()),
            buckets: Some(Buckets { first, counts: counts[first..end].to_vec() }),
        }
    }
}

impl MountStatus {
    pub(crate) fn new(
        (requests, age): (&[OperationStatistics], Duration),
        is_over_ring: bool,
        read_write: bool,
        server: Option<ServerStatus>,
    ) -> Self {
        Self {
            version: status::VERSION,
            process: std::process::id(),
            read_write,
            transport: if is_over_ring { "uring" } else { "dev" }.to_owned(),
            age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            requests: requests.iter().map(RequestStatus::of).collect(),
            server,
        }
    }

    /// The value of the attribute, at most [`VALUE_MAX`] bytes.
    pub(crate) fn encode(mut self) -> Vec<u8> {
        let whole = serde_json::to_vec(&self).unwrap_or_default();
        if whole.len() <= VALUE_MAX {
            return whole;
        }
        self.requests.iter_mut().for_each(|request| request.buckets = None);
        serde_json::to_vec(&self).unwrap_or_default()
    }

    /// The state out of the attribute's value.
    ///
    /// # Errors
    /// Not JSON, or a value is missing: another version of extant serves the mount.
    pub fn decode(value: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(value)
    }
}

/// Errors that requests met since the mount, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FaultStatus {
    /// Damage of the image.
    pub damage: u64,
    /// The device refused to read, write or flush.
    pub device: u64,
    /// Data in memory could not be written.
    pub lost_writes: u64,
    /// Requests that were refused because writing has stopped, or the file system was shut down.
    pub stopped: u64,
    /// Internal errors, which are defects of extant.
    pub internal: u64,
    /// The last error but those of stopped file systems.
    pub last: Option<String>,
    /// Milliseconds since then.
    pub last_age_ms: Option<u64>,
}

/// Counts errors.
#[derive(Default)]
pub(crate) struct Faults {
    damage: AtomicU64,
    device: AtomicU64,
    lost_writes: AtomicU64,
    stopped: AtomicU64,
    internal: AtomicU64,
    last: Mutex<Option<(Instant, String)>>,
}

impl Faults {
    pub(crate) fn note(&self, fault: &Fault) {
        let count = match fault {
            Fault::Refused(_) => return,
            Fault::Corrupt(_) => &self.damage,
            Fault::Device(_) | Fault::NotFlushed(_) => &self.device,
            Fault::LostWrite => &self.lost_writes,
            Fault::Aborted(_) | Fault::Stopped(_) | Fault::ShutDown => {
                self.stopped.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        count.fetch_add(1, Ordering::Relaxed);
        self.keep(fault.to_string());
    }

    pub(crate) fn note_internal(&self, text: &str) {
        self.internal.fetch_add(1, Ordering::Relaxed);
        self.keep(text.to_owned());
    }

    fn keep(&self, mut text: String) {
        if text.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), text));
    }

    pub(crate) fn status(&self) -> FaultStatus {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        FaultStatus {
            damage: get(&self.damage),
            device: get(&self.device),
            lost_writes: get(&self.lost_writes),
            stopped: get(&self.stopped),
            internal: get(&self.internal),
            last_age_ms: last.as_ref().map(|(at, _)| at.elapsed().as_millis() as u64),
            last: last.map(|(_, text)| text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(counts: Vec<u64>) -> RequestStatus {
        RequestStatus {
            operation: "x".repeat(30),
            count: u64::MAX,
            errors: u64::MAX,
            time_ns: u64::MAX,
            p50_ns: u64::MAX,
            p90_ns: u64::MAX,
            p99_ns: u64::MAX,
            p999_ns: u64::MAX,
            max_ns: u64::MAX,
            buckets: Some(Buckets { first: 0, counts }),
        }
    }

    fn status(requests: Vec<RequestStatus>) -> MountStatus {
        let mut status = MountStatus::new((&[], Duration::from_secs(1)), false, true, None);
        status.requests = requests;
        status
    }

    #[test]
    fn a_value_fits_an_attribute_whatever_it_holds() {
        let small = status(vec![request(vec![1, 2, 3])]);
        assert_eq!(MountStatus::decode(&small.clone().encode()).unwrap(), small);
        let value = status(vec![request(vec![u64::MAX; extant_fuse_lowlevel::BUCKETS]); 60]).encode();
        assert!(value.len() < VALUE_MAX / 2, "{}", value.len());
        assert_eq!(MountStatus::decode(&value).unwrap().requests[0].buckets, None);
        assert!(MountStatus::decode(b"{}").is_err());
    }

    #[test]
    fn refusals_are_no_errors_and_texts_are_cut_between_characters() {
        let faults = Faults::default();
        faults.note(&extant_volume::Refusal::NotFound.into());
        assert_eq!(faults.status(), FaultStatus::default());
        faults.note(&Fault::LostWrite);
        faults.note_internal(&"ä".repeat(TEXT_MAX));
        faults.note(&Fault::ShutDown);
        let status = faults.status();
        assert_eq!((status.lost_writes, status.internal, status.stopped), (1, 1, 1));
        assert_eq!(status.last.map(|text| text.len()), Some(TEXT_MAX));
    }
}
