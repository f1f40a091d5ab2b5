//! The journal's own feature words, with the names that dumpe2fs prints.

use std::fmt;

/// The three feature words of the journal superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Features {
    /// Features that a reader may ignore.
    pub compat: u32,
    /// Features without which the journal must not be replayed.
    pub incompat: u32,
    /// Features without which the journal must not be written.
    pub ro_compat: u32,
}

impl Features {
    /// compat: commit blocks contain a CRC-32 of the transaction (version 1 of the journal checksums).
    pub const CHECKSUM: u32 = 0x1;

    /// incompat: revoke blocks may occur.
    pub const REVOKE: u32 = 0x1;
    /// incompat: tags and revoke records hold 64-bit block numbers.
    pub const BIT64: u32 = 0x2;
    /// incompat: a commit block may reach the disk before the blocks it commits.
    pub const ASYNC_COMMIT: u32 = 0x4;
    /// incompat: CRC-32C everywhere, 16 bits of it in tags.
    pub const CSUM_V2: u32 = 0x8;
    /// incompat: CRC-32C everywhere, all 32 bits of it in tags.
    pub const CSUM_V3: u32 = 0x10;
    /// incompat: the last blocks of the journal are a fast-commit area.
    pub const FAST_COMMIT: u32 = 0x20;

    /// All compat bits known to this crate.
    pub const KNOWN_COMPAT: u32 = Self::CHECKSUM;
    /// All incompat bits known to this crate.
    pub const KNOWN_INCOMPAT: u32 =
        Self::REVOKE | Self::BIT64 | Self::ASYNC_COMMIT | Self::CSUM_V2 | Self::CSUM_V3 | Self::FAST_COMMIT;

    /// Whether this bit of the compat word is set.
    #[must_use]
    pub fn has_compat(&self, bit: u32) -> bool {
        self.compat & bit != 0
    }

    /// Whether this bit of the incompat word is set.
    #[must_use]
    pub fn has_incompat(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// The unknown bits that forbid using the journal. Empty if there are none.
    ///
    /// As in jbd2, an unknown ro_compat bit forbids as much as an unknown incompat bit: a replay writes.
    #[must_use]
    pub fn unsupported(&self) -> Features {
        Features { compat: 0, incompat: self.incompat & !Self::KNOWN_INCOMPAT, ro_compat: self.ro_compat }
    }

    /// Whether no bit is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Names of all set bits, as dumpe2fs prints them; bits without a name as `FEATURE_I7` (initial of the
    /// word, bit number).
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        const COMPAT: &[&str] = &["journal_checksum"];
        const INCOMPAT: &[&str] = &[
            "journal_incompat_revoke",
            "journal_64bit",
            "journal_async_commit",
            "journal_checksum_v2",
            "journal_checksum_v3",
            "fast_commit",
        ];
        let words = [(self.compat, 'C', COMPAT), (self.incompat, 'I', INCOMPAT), (self.ro_compat, 'R', &[])];
        let mut names = Vec::new();
        for (word, initial, known) in words {
            for bit in (0..32).filter(|bit| word & (1 << bit) != 0) {
                match known.get(bit) {
                    Some(name) => names.push((*name).to_owned()),
                    None => names.push(format!("FEATURE_{initial}{bit}")),
                }
            }
        }
        names
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_print_as_dumpe2fs_prints_them() {
        let features = Features { compat: 0x1, incompat: 0x12 | 1 << 31, ro_compat: 1 };
        assert_eq!(
            features.to_string(),
            "journal_checksum journal_64bit journal_checksum_v3 FEATURE_I31 FEATURE_R0"
        );
        assert_eq!(features.unsupported(), Features { compat: 0, incompat: 1 << 31, ro_compat: 1 });
        assert!(Features { incompat: 0x3F, ..features }.unsupported().incompat == 0);
    }
}
