//! What a rule is: a sentence about sound file systems, with a permanent code.

/// How much a broken rule matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; the file system is sound (e2fsck would not count it as an error either).
    Note,
    /// The file system is damaged: e2fsck would want to repair it.
    Error,
    /// So damaged that parts could not be checked.
    Fatal,
}

/// The part of the format that a rule speaks of; rules of an area share the prefix of their codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// `SB...`: superblock, features, backups.
    Superblock,
    /// `GD...`: group descriptors.
    Group,
    /// `IN...`: inodes.
    Inode,
    /// `EX...`: extent trees and indirect maps; clusters claimed.
    Map,
    /// `XA...`: extended attributes.
    Xattr,
    /// `DI...`: directories, their index, connectivity and link counts.
    Directory,
    /// `BM...`: bitmaps and counts of free things.
    Bitmap,
    /// `QU...`: quota.
    Quota,
    /// `OR...`: orphans.
    Orphan,
    /// `JO...`: journal.
    Journal,
}

/// A rule of the format.
#[derive(Debug, serde::Serialize)]
pub struct Rule {
    /// Permanent code: two letters of the area and three digits, "IN007". Never given to another rule.
    pub code: &'static str,
    /// The part of the format.
    pub area: Area,
    /// What breaking it means.
    pub severity: Severity,
    /// The rule in one sentence, as it holds on a sound file system.
    pub says: &'static str,
    /// What may have broken it, what it endangers (for `--explain`).
    pub why: &'static str,
    /// What a repair would do (for `--explain`).
    pub repair: &'static str,
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
    }
}

impl Eq for Rule {}

/// Declares rules as statics and a table `ALL` of them:
/// `rules! { Inode; IN001 NAME Error "says" "why" "repair"; ... }`.
macro_rules! rules {
    ($area:ident; $($code:ident $name:ident $severity:ident $says:literal $why:literal $repair:literal;)*) => {
        $(
            #[doc = $says]
            pub static $name: crate::Rule = crate::Rule {
                code: stringify!($code),
                area: crate::Area::$area,
                severity: crate::Severity::$severity,
                says: $says,
                why: $why,
                repair: $repair,
            };
        )*
        /// Every rule of this area, by code.
        pub static ALL: &[&crate::Rule] = &[$(&$name),*];
    };
}
pub(crate) use rules;
