//! The order of remedies, and what cannot be repaired.

use extant_check::Finding;

/// A stage of a repair. A round applies the remedies of one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The superblock's fields, addresses in descriptors.
    Super,
    /// The log is replayed, orphans are deleted and truncated.
    Log,
    /// Inodes, maps, attributes.
    Inodes,
    /// Inodes for values of attributes to which nothing refers: known when all attributes are sound.
    Values,
    /// Blocks that several owners claim.
    Shared,
    /// Blocks and entries of directories.
    Dirs,
    /// The tree of directories, inodes without a name.
    Tree,
    /// Link counts.
    Links,
    /// Journal, orphan file, quota files, resize inode, multiple-mount protection.
    Special,
    /// Bitmaps, counts, backups.
    Counts,
}

/// The stage that repairs a finding; `None` if it is left alone.
pub(crate) fn of(finding: &Finding) -> Option<Stage> {
    let code = finding.rule.code;
    let stage = match code {
        // The device fails, or nothing is known of the right value.
        "SB001" | "SB003" | "SB004" | "SB005" | "GD011" | "IN020" | "EX008" | "EX015" | "DI021" | "DI022"
        | "XA010" => return None,
        // A journal on another device.
        "JO004" => return None,
        // A count that is allowed to stick.
        "DI055" => return None,
        "SB002" => Stage::Counts,
        "SB012" | "SB013" | "SB017" | "GD012" => Stage::Counts,
        "SB019" | "SB021" => Stage::Special,
        _ if code.starts_with("SB") => Stage::Super,
        "GD001" | "GD002" | "GD003" | "GD004" | "GD014" => Stage::Super,
        _ if code.starts_with("GD") => Stage::Counts,
        "JO020" | "JO021" | "JO022" | "JO023" | "JO024" | "JO025" | "OR001" | "OR002" | "OR003" => Stage::Log,
        "EX011" => Stage::Shared,
        "XA012" => Stage::Values,
        _ if code.starts_with("IN") || code.starts_with("EX") || code.starts_with("XA") => Stage::Inodes,
        "DI004" | "DI051" | "DI052" | "DI054" => Stage::Tree,
        "DI053" => Stage::Links,
        _ if code.starts_with("DI") => Stage::Dirs,
        _ if code.starts_with("OR") || code.starts_with("QU") || code.starts_with("JO") => Stage::Special,
        _ => Stage::Counts,
    };
    Some(stage)
}

/// Why a finding stays.
pub(crate) fn why_left(finding: &Finding) -> &'static str {
    match finding.rule.code {
        "GD011" | "IN020" | "EX008" | "DI021" | "XA010" => {
            "the device cannot read it; copy the device to a sound one first"
        }
        "SB005" => "the image ends before its file system; restore the missing part first",
        "EX015" | "DI022" => "too many maps lead to the same blocks",
        _ => "no remedy changes it",
    }
}
