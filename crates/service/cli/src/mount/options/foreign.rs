//! Options of other ext4 mounts: those of ext4(5) and generic ones of mount(8), without effect here.
//!
//! A line of /etc/fstab that was written for the kernel's driver must not make a boot fail: options without
//! effect here are accepted, with a note if another behaviour would be expected. Options that would show a
//! different file system than the intended one are refused.
//!
//! Source: ext4(5), mount(8), kernel Documentation/admin-guide/ext4.rst.

/// How an option without effect is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::mount) enum Foreign {
    /// Accepted: it is always in effect, or is for mount(8), systemd and the like.
    Taken,
    /// Accepted, with this note.
    Note(&'static str),
    /// Refused, with this hint.
    Refused(&'static str),
}

use Foreign::{Note, Refused, Taken};

const NO_ATIME: Foreign = Note("times of access do not move by reading");
const QUOTA: Foreign = Note("usage is counted where the image has quota; limits are not enforced");
const TUNING: Foreign = Note("it tunes the kernel's driver, and changes nothing here");
const LABELS: Foreign = Note("labels are those of the image");
const PROPAGATION: Foreign = Note("the propagation of a mount is set by mount(8), after it was made");
const OFFSET: Foreign = Refused("IMG@OFFSET names a file system inside of an image, IMG#N a partition");

/// Keywords; those with a value end in "=".
const TABLE: &[(&[&str], Foreign)] = &[
    // Always in effect.
    (&["defaults", "async", "noatime", "relatime", "nodiratime", "nostrictatime", "nolazytime"], Taken),
    (&["acl", "user_xattr", "bsddf", "nocheck", "check=none", "noquota", "nouser"], Taken),
    (&["block_validity", "data_err=ignore", "norelatime", "symfollow"], Taken),
    (&["nomand", "noiversion", "nojournal_checksum", "silent", "loud"], Taken),
    // For other programs.
    (&["auto", "noauto", "nofail", "_netdev", "user", "user=", "users", "owner", "group", "nogroup"], Taken),
    (&["noowner", "nousers", "comment=", "helper=", "uhelper="], Taken),
    // Different here.
    (&["atime", "diratime", "strictatime", "lazytime"], NO_ATIME),
    (&["quota", "usrquota", "grpquota", "prjquota", "usrquota=", "grpquota=", "prjquota="], QUOTA),
    (&["jqfmt=", "usrjquota=", "grpjquota="], QUOTA),
    (&["dirsync"], Note("a name is durable after fsync of its directory, or at once with chattr +D")),
    (&["noacl", "nouser_xattr"], Note("ACLs and user attributes of the image count")),
    (&["minixdf"], Note("df does not count the blocks of the file system itself")),
    (&["nouid32"], Note("owners have 32 bits")),
    (&["resuid=", "resgid="], Note("the superblock names the users of the reserve: tune2fs -u, -g")),
    (&["sb="], Note("the primary superblock is used")),
    (&["data_err=abort"], Note("errors of writing bytes back are reported by fsync")),
    (
        &["journal_checksum", "journal_async_commit"],
        Note("the features of the image decide how commits are written"),
    ),
    (&["journal=update", "journal="], Note("the journal is the one that the superblock names")),
    (&["max_dir_size_kb="], Note("directories have no limit of their own")),
    (&["iversion", "i_version", "mand"], Note("FUSE has no such thing")),
    (&["dax", "dax="], Note("files are read through the page cache")),
    (&["debug", "abort", "check="], Note("it changes nothing here; `extant check` checks")),
    (&["loop", "loop="], Note("no loop device is needed")),
    (&["context=", "fscontext=", "defcontext=", "rootcontext="], LABELS),
    (
        &["shared", "private", "slave", "unbindable", "rshared", "rprivate", "rslave", "runbindable"],
        PROPAGATION,
    ),
    // Tuning of the kernel's driver.
    (
        &[
            "inode_readahead_blks=",
            "stripe=",
            "init_itable",
            "init_itable=",
            "noinit_itable",
            "journal_ioprio=",
        ],
        TUNING,
    ),
    (&["dioread_lock", "dioread_nolock", "nombcache", "no_mbcache", "mb_optimize_scan="], TUNING),
    (&["prefetch_block_bitmaps", "no_prefetch_block_bitmaps", "mblk_io_submit", "nomblk_io_submit"], TUNING),
    (&["orlov", "oldalloc", "reservation", "noreservation", "bh", "nobh", "mballoc", "nomballoc"], TUNING),
    (&["noblock_validity", "warn_on_error", "nowarn_on_error", "inlinecrypt", "stripe"], TUNING),
    (&["test_dummy_encryption", "test_dummy_encryption=", "fc_debug_force", "fc_debug_max_replay="], TUNING),
    // Would show a different file system.
    (&["offset=", "sizelimit="], OFFSET),
    (&["bind", "rbind", "move"], Refused("mount(8) does that itself, without a type: mount --bind OLD NEW")),
    (
        &["ro=recurse", "subdir=", "X-mount.subdir="],
        Refused("a whole file system is mounted; mount --bind shows a part of it"),
    ),
];

/// How this option is treated; `None` if no mount of ext4 knows it.
pub(in crate::mount) fn foreign(word: &[u8]) -> Option<Foreign> {
    let word = str::from_utf8(word).ok()?;
    let with_value = word.find('=').map(|at| &word[..=at]);
    let found = |name: &str| TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, what)| *what);
    let known = found(word).or_else(|| found(with_value?));
    known.or_else(|| (word.starts_with("x-") || word.starts_with("X-")).then_some(Taken))
}

/// The known keyword that is most similar to this one: at most two edits away.
pub(super) fn nearest<'a>(word: &[u8], ours: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = String::from_utf8_lossy(word);
    let key = word.split('=').next().unwrap_or_default();
    let slips_max = (key.chars().count() / 3).min(2);
    let foreign = TABLE.iter().flat_map(|(names, _)| names.iter().copied());
    let all = ours.chain(foreign).map(|name| (slips(key, name.trim_end_matches('=')), name));
    all.filter(|(slips, _)| *slips <= slips_max).min_by_key(|(slips, _)| *slips).map(|(_, name)| name)
}

/// The edit distance: the number of inserted, deleted or replaced characters between two texts.
fn slips(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, from) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, to) in other.iter().enumerate() {
            let above = row[column + 1];
            let replaced = diagonal + usize::from(from != *to);
            row[column + 1] = replaced.min(above + 1).min(row[column] + 1);
            diagonal = above;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_mounts_are_known_with_and_without_values() {
        assert_eq!(foreign(b"acl"), Some(Taken));
        assert_eq!(foreign(b"usrjquota=aquota.user"), Some(QUOTA));
        assert_eq!(foreign(b"data_err=ignore"), Some(Taken));
        assert!(matches!(foreign(b"data_err=abort"), Some(Note(_))));
        assert_eq!(
            (foreign(b"x-systemd.automount"), foreign(b"X-mount.mkdir=0755")),
            (Some(Taken), Some(Taken))
        );
        assert_eq!(foreign(b"offset=4096"), Some(OFFSET));
        assert_eq!((foreign(b"acl=1"), foreign(b"nonsense"), foreign(b"\xff")), (None, None, None));
    }

    #[test]
    fn no_keyword_stands_twice() {
        let mut all: Vec<&str> = TABLE.iter().flat_map(|(names, _)| names.iter().copied()).collect();
        all.sort_unstable();
        let twice: Vec<_> = all.windows(2).filter(|pair| pair[0] == pair[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }

    #[test]
    fn slips_of_the_pen_are_recognized() {
        assert_eq!((slips("", "ab"), slips("abc", "abc"), slips("kitten", "sitting")), (2, 0, 3));
        let ours = ["allow_other", "writeback_cache"];
        assert_eq!(nearest(b"allow_others", ours.into_iter()), Some("allow_other"));
        assert_eq!(nearest(b"usrqouta", ours.into_iter()), Some("usrquota"));
        assert_eq!(nearest(b"xyz", ours.into_iter()), None);
    }
}
