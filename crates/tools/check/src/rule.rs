//! A rule: a statement that holds for every valid file system, with a permanent code.

/// The severity of a broken rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information; the file system is valid (e2fsck does not count it as an error either).
    Note,
    /// The file system is damaged; e2fsck would repair it.
    Error,
    /// The damage prevents parts of the check.
    Fatal,
}

/// The part of the format that a rule belongs to; the rules of an area share a code prefix.
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
    /// `BM...`: bitmaps and free counts.
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
    /// Permanent code, never reused: two letters of the area and three digits, "IN007".
    pub code: &'static str,
    /// The part of the format.
    pub area: Area,
    /// The severity of a violation.
    pub severity: Severity,
    /// The rule in one sentence, as it holds for a valid file system.
    pub says: &'static str,
    /// Likely causes and consequences of a violation (for `--explain`).
    pub why: &'static str,
    /// The repair (for `--explain`).
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
