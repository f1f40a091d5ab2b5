//! The one fact that decoding can report: a structure's bytes break a rule of the format.

/// A structure read from an image breaks a rule of the format.
///
/// Carries what was being read, the rule in words, and the number that broke it. The callers that know the
/// place (block, inode, path) add it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{structure}: {rule}, found {found:#x}")]
pub struct Malformed {
    /// The structure: "superblock", "inode", "directory entry", ...
    pub structure: &'static str,
    /// The rule that must hold, in words: "magic must be 0xEF53".
    pub rule: &'static str,
    /// The offending number as it stood on disk.
    pub found: u64,
}

impl Malformed {
    /// A broken `rule` of `structure`, with the number found.
    pub fn new(structure: &'static str, rule: &'static str, found: impl Into<u64>) -> Self {
        Self { structure, rule, found: found.into() }
    }

    /// `Ok(())` when `holds`, else the broken rule. Reads as a list of rules in a decoder.
    pub fn unless(
        holds: bool,
        structure: &'static str,
        rule: &'static str,
        found: impl Into<u64>,
    ) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self::new(structure, rule, found)) }
    }
}
