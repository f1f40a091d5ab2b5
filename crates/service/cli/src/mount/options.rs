//! The options after `-o`.

mod foreign;
mod table;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use extant_device::Io;
use extant_fuse::{Channel, Shown, WritebackCache};
use extant_volume::{
    Batching, BySuperblock, DataPath, DefaultOptions, ExtentPolicy, FlushSettings, OnError, OrphanMode,
    WriteOptions,
};
pub(super) use foreign::{Foreign, foreign};
pub(super) use table::{help, keywords};

use table::Takes;

/// The parsed options. They are not yet combined with the superblock's defaults.
#[derive(Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches of mount(8), one each")]
pub(super) struct MountFlags {
    pub(super) read_write: bool,
    pub(super) allow_other: bool,
    pub(super) default_permissions: bool,
    pub(super) fs_name: Option<OsString>,
    pub(super) subtype: Option<String>,
    pub(super) no_recovery: bool,
    pub(super) backup: BySuperblock,
    pub(super) journal_device: Option<PathBuf>,
    pub(super) dev: bool,
    pub(super) suid: bool,
    pub(super) noexec: bool,
    pub(super) errors: Option<OnError>,
    pub(super) block_by_block: Option<bool>,
    pub(super) data: Option<DataPath>,
    pub(super) no_auto_da_alloc: Option<bool>,
    pub(super) dir_groups: Option<bool>,
    pub(super) no_track_opens: bool,
    pub(super) track_closes: bool,
    pub(super) writeback_cache: WritebackCache,
    pub(super) discard: Option<bool>,
    pub(super) io: Io,
    pub(super) transport: Channel,
    pub(super) shown: Shown,
    pub(super) image_direct: bool,
    pub(super) no_barriers: Option<bool>,
    pub(super) flush: FlushSettings,
    pub(super) commit: Option<Duration>,
    pub(super) batching: Batching,
    pub(super) extents: ExtentPolicy,
    pub(super) orphans: OrphanMode,
    pub(super) log: LogTo,
    /// The kernel makes each write durable before it returns.
    pub(super) sync: bool,
    /// Symbolic links are not followed.
    pub(super) no_symfollow: bool,
    /// Notes on options that have no effect here.
    pub(super) notes: Vec<Note>,
}

/// Where damage and errors are reported, besides standard error.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum LogTo {
    /// The system's log from the background; no log in the foreground.
    #[default]
    Default,
    System,
    Nowhere,
    File(PathBuf),
}

/// Options without effect, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    options: String,
    why: &'static str,
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "-o {}: {}", self.options, self.why)
    }
}

impl MountFlags {
    /// Parses all lists; later options override earlier ones. `sloppy`: unknown options are ignored, with a
    /// note.
    pub(super) fn parse(lists: &[OsString], sloppy: bool) -> Result<Self, String> {
        let mut flags = Self::default();
        for word in lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b',')) {
            match flags.word(word) {
                Err(_) if sloppy && is_unknown(word) => flags.note(word, "it is not known, and left out"),
                result => result?,
            }
        }
        if flags.batching.min > flags.batching.max && !flags.batching.max.is_zero() {
            return Err("-o min_batch_time= is more than max_batch_time= (default: 15000)".to_owned());
        }
        if flags.read_write && flags.backup != BySuperblock::Primary {
            return Err(
                "-o rw,backup=: writing needs a sound primary superblock; leave one of them out".to_owned()
            );
        }
        if flags.read_write && flags.no_recovery {
            return Err(
                "-o rw,noload: what is written over a journal that waits would be lost or mixed with it; \
                        leave one of them out"
                    .to_owned(),
            );
        }
        Ok(flags)
    }

    /// The superblock's default options, overridden by the given ones.
    pub(super) fn over(&self, asked: &DefaultOptions) -> WriteOptions {
        let asked = DefaultOptions {
            data: self.data.or(asked.data),
            block_by_block: self.block_by_block.unwrap_or(asked.block_by_block),
            no_barriers: self.no_barriers.unwrap_or(asked.no_barriers),
            discard: self.discard.unwrap_or(asked.discard),
            dir_groups: self.dir_groups.unwrap_or(asked.dir_groups),
            no_auto_da_alloc: self.no_auto_da_alloc.unwrap_or(asked.no_auto_da_alloc),
            errors: self.errors.or(asked.errors),
            refused: None,
        };
        asked.write_options()
    }

    fn word(&mut self, word: &[u8]) -> Result<(), String> {
        let (key, value) = match word.iter().position(|byte| *byte == b'=') {
            Some(place) => (&word[..place], Some(OsStr::from_bytes(&word[place + 1..]))),
            None => (word, None),
        };
        if word.is_empty() {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(key);
        let mut form = None;
        for keyword in table::keywords().filter(|keyword| keyword.name.as_bytes() == key) {
            match (keyword.takes, value) {
                (Takes::Nothing(set), None) => {
                    set(self);
                    return Ok(());
                }
                (Takes::Value(set), Some(value)) => {
                    return set(self, value).map_err(|why| format!("-o {shown}=: {why}"));
                }
                (Takes::Nothing(_), Some(_)) => form = Some(format!("-o {shown} takes no value")),
                (Takes::Value(_), None) => form = Some(format!("-o {shown} needs a value: {shown}=...")),
            }
        }
        match foreign(word) {
            Some(Foreign::Taken) => {}
            Some(Foreign::Note(why)) => self.note(word, why),
            Some(Foreign::Refused(hint)) => {
                return Err(format!("-o \"{}\": {hint}", String::from_utf8_lossy(word)));
            }
            None => return Err(form.unwrap_or_else(|| unknown(word))),
        }
        Ok(())
    }

    fn note(&mut self, word: &[u8], why: &'static str) {
        let word = String::from_utf8_lossy(word);
        match self.notes.iter_mut().find(|note| note.why == why) {
            Some(note) if note.options.split(',').any(|option| option == word) => {}
            Some(note) => note.options = format!("{},{word}", note.options),
            None => self.notes.push(Note { options: word.into_owned(), why }),
        }
    }
}

/// Whether the keyword is unknown, as opposed to a known one with an invalid value.
fn is_unknown(word: &[u8]) -> bool {
    let key = word.split(|byte| *byte == b'=').next().unwrap_or_default();
    !table::keywords().any(|keyword| keyword.name.as_bytes() == key) && foreign(word).is_none()
}

fn unknown(word: &[u8]) -> String {
    let hint = match foreign::nearest(word, table::keywords().map(|keyword| keyword.name)) {
        Some(name) => format!("\"{name}\" is like it"),
        None => "see `extant mount --help` for those that are".to_owned(),
    };
    format!("-o \"{}\" is not known; {hint}", String::from_utf8_lossy(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_volume::{ExtentPolicy, FlushDelay, FlushMode};

    fn parse(text: &str) -> Result<MountFlags, String> {
        MountFlags::parse(&[text.into()], false)
    }

    #[test]
    fn options_are_understood_in_lists_and_later_ones_count() {
        let flags = parse("ro,allow_other,fsname=a b,journal_path=/dev/x,noload,dev,suid,nodev").unwrap();
        assert!(
            flags.allow_other && flags.no_recovery && flags.suid && !flags.dev && !flags.default_permissions
        );
        assert_eq!(flags.fs_name.as_deref(), Some(OsStr::new("a b")));
        assert_eq!(flags.journal_device, Some(PathBuf::from("/dev/x")));
        assert_eq!(parse(""), Ok(MountFlags::default()));
        assert_eq!(["rw", "ro,rw", "rw,ro"].map(|text| parse(text).unwrap().read_write), [true, true, false]);
        assert_eq!(
            ["", "discard", "discard,nodiscard"].map(|text| parse(text).unwrap().discard),
            [None, Some(true), Some(false)]
        );
        let both = MountFlags::parse(&["noexec".into(), "subtype=x".into()], false).unwrap();
        assert_eq!(parse("errors=panic,errors=remount-ro").unwrap().errors, Some(OnError::ReadOnly));
        let path = |text| parse(text).unwrap().over(&DefaultOptions::default()).data;
        assert_eq!([path("data=writeback"), path("nobuffered_iomap")], [DataPath::Iomap, DataPath::Ordered]);
        assert_eq!(path("data=writeback,nobuffered_iomap"), DataPath::Writeback);
        assert_eq!(path("data=journal"), DataPath::Journal);
        let io =
            ["rw", "io=calls", "io=calls,io=rings", "io=rings,io=auto"].map(|text| parse(text).unwrap().io);
        assert_eq!(io, [Io::Auto, Io::Calls, Io::Rings, Io::Auto]);
        let transport = ["rw", "transport=dev", "transport=uring", "transport=uring,transport=auto"];
        assert_eq!(
            transport.map(|text| parse(text).unwrap().transport),
            [Channel::Auto, Channel::Device, Channel::Rings, Channel::Auto]
        );
        let direct = ["", "image_direct", "image_direct,noimage_direct"];
        assert_eq!(direct.map(|text| parse(text).unwrap().image_direct), [false, true, false]);
        let studied = parse(
            "nobarrier,flush=seed,flush_delay=full,min_batch_time=500,max_batch_time=0,es_policy=es-gc,orphans=list-v3",
        )
        .unwrap();
        assert_eq!((studied.flush.mode, studied.flush.delay), (FlushMode::Seed, FlushDelay::Full));
        assert_eq!((studied.extents, studied.orphans), (ExtentPolicy::EsGc, OrphanMode::ListV3));
        assert_eq!(studied.batching, Batching { min: Duration::from_micros(500), max: Duration::ZERO });
        let words = ["nobarrier", "nobarrier,barrier", "barrier=0", "barrier=0,barrier=1"];
        let without = words.map(|text| parse(text).unwrap().no_barriers);
        assert_eq!(without, [Some(true), Some(false), Some(true), Some(false)]);
        let alloc =
            ["noauto_da_alloc,notrack_opens", "noauto_da_alloc,auto_da_alloc,notrack_opens,track_opens"]
                .map(|text| parse(text).unwrap());
        assert_eq!(
            alloc.map(|flags| (flags.no_auto_da_alloc, flags.no_track_opens)),
            [(Some(true), true), (Some(false), false)]
        );
        let commit =
            ["", "commit=1", "commit=0", "commit=60,commit=7"].map(|text| parse(text).unwrap().commit);
        assert_eq!(commit.map(|time| time.map(|time| time.as_secs())), [None, Some(1), None, Some(7)]);
        assert!(both.noexec && both.subtype.as_deref() == Some("x"));
    }

    /// The page has the tables of [`table`], one after the other.
    #[test]
    fn the_page_has_every_option() {
        let page = include_str!("../../../../../docs/mount-options.md");
        for group in table::page().split("\n\n").filter(|group| !group.is_empty()) {
            assert!(page.contains(group), "docs/mount-options.md lacks\n{group}");
        }
        let mut names: Vec<_> = keywords().map(|of| (of.name, matches!(of.takes, Takes::Value(_)))).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a keyword has two rows");
    }

    /// `tune2fs -o` sets defaults, and mount options override them.
    #[test]
    fn what_is_said_overrules_what_the_superblock_asks_for() {
        let asked = DefaultOptions {
            data: Some(DataPath::Journal),
            no_barriers: true,
            discard: true,
            dir_groups: true,
            block_by_block: true,
            ..DefaultOptions::default()
        };
        let over = |text| parse(text).unwrap().over(&asked);
        let nothing = over("rw");
        assert!(nothing.no_barriers && nothing.discard && nothing.dir_groups);
        assert_eq!(nothing.data, DataPath::Journal);
        let all = over("barrier,nodiscard,nogrpid,data=ordered,delalloc");
        assert!(!all.no_barriers && !all.discard && !all.dir_groups);
        assert_eq!((all.data, over("data=ordered").data), (DataPath::Iomap, DataPath::Ordered));
    }

    /// Lines of /etc/fstab that were written for the kernel's driver must not make a boot fail.
    #[test]
    fn options_of_other_mounts_are_taken_with_a_note_where_they_change_nothing() {
        let flags = parse("defaults,acl,usrquota,grpquota,usrquota,lazytime,nofail,x-a=b,sync").unwrap();
        let notes: Vec<String> = flags.notes.iter().map(ToString::to_string).collect();
        assert!(
            flags.sync && notes.len() == 2 && notes[0].starts_with("-o usrquota,grpquota: "),
            "{notes:?}"
        );
        assert!(parse("offset=4096").unwrap_err().contains("IMG@OFFSET"));
        assert!(parse("usrqouta").unwrap_err().contains("\"usrquota\" is like it"));
        assert!(parse("nobufered_iomap").unwrap_err().contains("\"nobuffered_iomap\""));
        let sloppy = |text: &str| MountFlags::parse(&[text.into()], true);
        assert_eq!(sloppy("rw,what=1").unwrap().notes.len(), 1);
        assert!(sloppy("errors=ignore").is_err() && sloppy("ro=1").is_err());
        let log = ["", "log=syslog", "log=none", "log=a,log=b"].map(|text| parse(text).unwrap().log);
        assert_eq!(log, [LogTo::Default, LogTo::System, LogTo::Nowhere, LogTo::File("b".into())]);
        assert!(parse("log=").is_err() && parse("log").unwrap_err().contains("log=..."));
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_to_do() {
        assert!(parse("rw,noload").unwrap_err().contains("journal"));
        assert!(parse("rw,backup=auto").unwrap_err().contains("primary"));
        assert_eq!(parse("backup=32768").unwrap().backup, BySuperblock::Backup(32768));
        assert!(parse("backup=first").is_err() && parse("backup").is_err());
        assert!(parse("rw=1").is_err());
        assert!(parse("ro,what").unwrap_err().contains("--help"));
        assert_eq!(parse("ro=1").unwrap_err(), "-o ro takes no value");
        assert_eq!(parse("barrier=2").unwrap_err(), "-o barrier=: 0 or 1");
        assert!(parse("errors").is_err() && parse("errors=ignore").unwrap_err().contains("remount-ro"));
        assert!(parse("data=none").unwrap_err().contains("writeback"));
        assert!(parse("io").is_err() && parse("io=uring").unwrap_err().contains("rings"));
        assert!(
            parse("es_policy=lru").unwrap_err().ends_with(
                "-o es_policy=: baseline, es-cache, es-slist, es-ilist, es-gc, upstream or es-chunk"
            )
        );
        assert!(parse("max_batch_time=1s").unwrap_err().contains("microseconds"));
        assert!(parse("commit").unwrap_err().contains("commit=..."));
        assert!(parse("commit=-1").unwrap_err().contains("seconds") && parse("commit=1s").is_err());
        assert!(parse("min_batch_time=2000000").is_err() && parse("min_batch_time=16000").is_err());
        assert!(parse("min_batch_time=16000,max_batch_time=20000").is_ok() && parse("barrier=2").is_err());
        assert!(parse("orphans").is_err() && parse("nobarrier=1").unwrap_err().ends_with("takes no value"));
        assert!(parse("fsname").unwrap_err().contains("fsname=..."));
        assert!(parse("subtype=a\\b").is_err());
        assert!(parse("uid=root").unwrap_err().contains("1000") && parse("umask=8").is_err());
        assert!(parse("journal_dev=").is_err());
    }
}
