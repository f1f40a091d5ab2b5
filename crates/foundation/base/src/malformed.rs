//! The only error that decoding reports: a structure's bytes break a rule of the format.

/// A structure read from an image breaks a rule of the format.
///
/// Contains the structure's name, the rule in words, and the number that breaks it. Callers that know the
/// place (block, inode, path) add it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {rule}, found {found:#x}")]
pub struct Malformed {
    /// The structure: "superblock", "inode", "directory entry", ...
    pub structure: &'static str,
    /// The rule that must hold, in words: "magic must be 0xEF53".
    pub rule: &'static str,
    /// The offending number as it is on disk.
    pub found: u64,
}

impl Malformed {
    /// Creates the error: `found` breaks `rule` of `structure`.
    pub fn new(structure: &'static str, rule: &'static str, found: impl Into<u64>) -> Self {
        Self { structure, rule, found: found.into() }
    }

    /// Returns `Ok(())` if `holds`, else the broken rule. In a decoder, calls read like a list of rules.
    pub fn unless(
        holds: bool,
        structure: &'static str,
        rule: &'static str,
        found: impl Into<u64>,
    ) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::new(structure, rule, found)) }
    }
}
