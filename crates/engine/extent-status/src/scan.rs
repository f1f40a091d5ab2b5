//! What a scan is asked for, and what it did.

/// The urgency of a scan; only es-chunk uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// New entries get time to be found.
    Usual,
    /// The budget is exceeded, and scans reclaimed nothing: new entries are reclaimed too.
    Urgent,
}

/// Result of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scan {
    /// Entries reclaimed.
    pub reclaimed: u32,
    /// Entries examined one by one; a chunk examined as a whole counts as one.
    pub scanned: u32,
    /// Listed inodes that were examined, those only sorted included.
    pub inodes: u32,
    /// Inodes that were skipped.
    pub skipped: u32,
    /// Whether there was a second round.
    pub retried: bool,
}
