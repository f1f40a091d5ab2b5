//! The table of all rules, one file per area.

pub mod bitmap;
pub mod directory;
pub mod group;
pub mod inode;
pub mod journal;
pub mod map;
pub mod orphan;
pub mod quota;
pub mod superblock;
pub mod xattr;

use crate::Rule;

/// Every rule, by area and code.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    [
        superblock::ALL,
        group::ALL,
        inode::ALL,
        map::ALL,
        xattr::ALL,
        directory::ALL,
        bitmap::ALL,
        quota::ALL,
        orphan::ALL,
        journal::ALL,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// The rule with a code; letter case is ignored.
#[must_use]
pub fn by_code(code: &str) -> Option<&'static Rule> {
    all().find(|rule| rule.code.eq_ignore_ascii_case(code))
}
