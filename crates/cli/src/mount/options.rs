//! The words after `-o`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use device::Io;
use fuse::mounting::is_plain_word;
use volume::{
    Batching, DataPath, DefaultOptions, ExtentPolicy, FlushDelay, FlushMode, FlushSettings, OnError,
    OrphanMode, WriteOptions,
};

/// What the options say, as given; nothing is decided yet.
#[derive(Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches of mount(8), one each")]
pub(super) struct MountFlags {
    pub(super) read_write: bool,
    pub(super) allow_other: bool,
    pub(super) default_permissions: bool,
    pub(super) fs_name: Option<OsString>,
    pub(super) subtype: Option<String>,
    pub(super) no_recovery: bool,
    pub(super) journal_device: Option<PathBuf>,
    pub(super) dev: bool,
    pub(super) suid: bool,
    pub(super) noexec: bool,
    pub(super) errors: Option<OnError>,
    pub(super) block_by_block: Option<bool>,
    pub(super) data: Option<DataPath>,
    pub(super) no_auto_da_alloc: Option<bool>,
    pub(super) dir_groups: Option<bool>,
    pub(super) track_opens: bool,
    pub(super) track_closes: bool,
    pub(super) writeback_cache: bool,
    pub(super) discard: Option<bool>,
    pub(super) io: Io,
    pub(super) image_direct: bool,
    pub(super) no_barriers: Option<bool>,
    pub(super) flush: FlushSettings,
    pub(super) batching: Batching,
    pub(super) extents: ExtentPolicy,
    pub(super) orphans: OrphanMode,
}

impl MountFlags {
    /// Understands all lists that were given, later words overruling earlier ones.
    pub(super) fn parse(lists: &[OsString]) -> Result<Self, String> {
        let mut flags = Self::default();
        for word in lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b',')) {
            flags.word(word)?;
        }
        if flags.batching.min > flags.batching.max && !flags.batching.max.is_zero() {
            return Err(
                "-o min_batch_time= is more than max_batch_time=, 15000 if nothing is said".to_owned()
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

    /// What the superblock asks for, but where the options say something else.
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
        let key_text = String::from_utf8_lossy(key);
        match (key, value) {
            // What mount(8) and fstab put there, and what holds anyway.
            (b"" | b"defaults" | b"nodev" | b"nosuid" | b"noatime" | b"relatime" | b"async", None) => {
                self.dev &= key != b"nodev";
                self.suid &= key != b"nosuid";
            }
            (b"ro", None) => self.read_write = false,
            (b"rw", None) => self.read_write = true,
            (b"exec", None) => self.noexec = false,
            (b"noexec", None) => self.noexec = true,
            (b"discard", None) => self.discard = Some(true),
            (b"nodiscard", None) => self.discard = Some(false),
            (b"grpid" | b"bsdgroups", None) => self.dir_groups = Some(true),
            (b"nogrpid" | b"sysvgroups", None) => self.dir_groups = Some(false),
            (b"dev", None) => self.dev = true,
            (b"suid", None) => self.suid = true,
            (b"allow_other", None) => self.allow_other = true,
            (b"default_permissions", None) => self.default_permissions = true,
            (b"auto_da_alloc", None) => self.no_auto_da_alloc = Some(false),
            (b"noauto_da_alloc", None) => self.no_auto_da_alloc = Some(true),
            (b"writeback_cache", None) => self.writeback_cache = true,
            (b"track_opens", None) => self.track_opens = true,
            (b"track_closes", None) => self.track_closes = true,
            (b"noload" | b"norecovery", None) => self.no_recovery = true,
            (b"buffered_iomap" | b"delalloc", None) => self.block_by_block = Some(false),
            (b"nobuffered_iomap" | b"nodelalloc", None) => self.block_by_block = Some(true),
            (b"data", Some(value)) => {
                let ways = [
                    ("ordered", DataPath::Ordered),
                    ("writeback", DataPath::Writeback),
                    ("journal", DataPath::Journal),
                ];
                self.data = Some(named(key, value, ways)?);
            }
            (b"io", Some(value)) => {
                let ways = [("auto", Io::Auto), ("calls", Io::Calls), ("rings", Io::Rings)];
                self.io = named(key, value, ways)?;
            }
            (b"image_direct", None) => self.image_direct = true,
            (b"noimage_direct", None) => self.image_direct = false,
            (b"barrier", None) => self.no_barriers = Some(false),
            (b"nobarrier", None) => self.no_barriers = Some(true),
            (b"barrier", Some(value)) if value == "0" || value == "1" => {
                self.no_barriers = Some(value == "0");
            }
            (b"flush", Some(value)) => {
                self.flush.mode = named(key, value, FlushMode::ALL.map(|mode| (mode.name(), mode)))?;
            }
            (b"flush_delay", Some(value)) => {
                self.flush.delay = named(key, value, FlushDelay::ALL.map(|delay| (delay.name(), delay)))?;
            }
            (b"min_batch_time", Some(value)) => self.batching.min = micros(key, value)?,
            (b"max_batch_time", Some(value)) => self.batching.max = micros(key, value)?,
            (b"es_policy", Some(value)) => {
                self.extents = named(key, value, ExtentPolicy::ALL.map(|policy| (policy.name(), policy)))?;
            }
            (b"orphans", Some(value)) => {
                self.orphans = named(key, value, OrphanMode::ALL.map(|mode| (mode.name(), mode)))?;
            }
            (b"errors", Some(value)) => {
                let ways = [
                    ("continue", OnError::Continue),
                    ("remount-ro", OnError::ReadOnly),
                    ("panic", OnError::Panic),
                ];
                self.errors = Some(named(key, value, ways)?);
            }
            (b"fsname", Some(value)) => self.fs_name = Some(value.to_owned()),
            (b"subtype", Some(value)) if is_plain_word(value) => {
                self.subtype = Some(value.to_string_lossy().into_owned());
            }
            (b"subtype", Some(_)) => return Err("-o subtype=NAME: letters and digits only".to_owned()),
            (b"journal_dev" | b"journal_path", Some(value)) if !value.is_empty() => {
                self.journal_device = Some(OsString::from_vec(value.as_bytes().to_vec()).into());
            }
            (key, _) if WITH_VALUE.contains(&key) => {
                return Err(format!("-o {key_text} needs a value: {key_text}=..."));
            }
            _ => {
                return Err(format!(
                    "-o \"{}\" is not known; see `extant mount --help` for those that are",
                    String::from_utf8_lossy(word)
                ));
            }
        }
        Ok(())
    }
}

/// Words that stand before "=".
const WITH_VALUE: [&[u8]; 13] = [
    b"fsname",
    b"subtype",
    b"journal_dev",
    b"journal_path",
    b"errors",
    b"data",
    b"io",
    b"flush",
    b"flush_delay",
    b"min_batch_time",
    b"max_batch_time",
    b"es_policy",
    b"orphans",
];

/// The one of these that `value` names.
fn named<T, const N: usize>(key: &[u8], value: &OsStr, ways: [(&str, T); N]) -> Result<T, String> {
    let names = ways.each_ref().map(|(name, _)| *name);
    let found = ways.into_iter().find(|(name, _)| name.as_bytes() == value.as_bytes());
    found.map(|(_, way)| way).ok_or_else(|| {
        let (last, others) = names.split_last().expect("there is a choice");
        format!("-o {}=: {} or {last}", String::from_utf8_lossy(key), others.join(", "))
    })
}

/// A time in microseconds, as the kernel's options give it: a second at most.
fn micros(key: &[u8], value: &OsStr) -> Result<Duration, String> {
    let number = value.to_str().and_then(|text| text.parse::<u32>().ok()).filter(|us| *us <= 1_000_000);
    number
        .map(|us| Duration::from_micros(us.into()))
        .ok_or_else(|| format!("-o {}=: microseconds up to 1000000, as 15000", String::from_utf8_lossy(key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountFlags, String> {
        MountFlags::parse(&[text.into()])
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
        let both = MountFlags::parse(&["noexec".into(), "subtype=x".into()]).unwrap();
        assert_eq!(parse("errors=panic,errors=remount-ro").unwrap().errors, Some(OnError::ReadOnly));
        let path = |text| parse(text).unwrap().over(&DefaultOptions::default()).data;
        assert_eq!([path("data=writeback"), path("nobuffered_iomap")], [DataPath::Iomap, DataPath::Ordered]);
        assert_eq!(path("data=writeback,nobuffered_iomap"), DataPath::Writeback);
        assert_eq!(path("data=journal"), DataPath::Journal);
        let io =
            ["rw", "io=calls", "io=calls,io=rings", "io=rings,io=auto"].map(|text| parse(text).unwrap().io);
        assert_eq!(io, [Io::Auto, Io::Calls, Io::Rings, Io::Auto]);
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
            ["noauto_da_alloc,track_opens", "noauto_da_alloc,auto_da_alloc"].map(|text| parse(text).unwrap());
        assert_eq!(
            alloc.map(|flags| (flags.no_auto_da_alloc, flags.track_opens)),
            [(Some(true), true), (Some(false), false)]
        );
        assert!(both.noexec && both.subtype.as_deref() == Some("x"));
    }

    /// `tune2fs -o` asks for things; options of the mount say otherwise.
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

    #[test]
    fn what_is_not_known_is_refused_with_what_to_do() {
        assert!(parse("rw,noload").unwrap_err().contains("journal"));
        assert!(parse("rw=1").is_err());
        assert!(parse("ro,what").unwrap_err().contains("--help"));
        assert!(parse("ro=1").is_err());
        assert!(parse("errors").is_err() && parse("errors=ignore").unwrap_err().contains("remount-ro"));
        assert!(parse("data=none").unwrap_err().contains("writeback"));
        assert!(parse("io").is_err() && parse("io=uring").unwrap_err().contains("rings"));
        assert!(
            parse("es_policy=lru").unwrap_err().ends_with(
                "-o es_policy=: baseline, es-cache, es-slist, es-ilist, es-gc, upstream or es-chunk"
            )
        );
        assert!(parse("max_batch_time=1s").unwrap_err().contains("microseconds"));
        assert!(parse("min_batch_time=2000000").is_err() && parse("min_batch_time=16000").is_err());
        assert!(parse("min_batch_time=16000,max_batch_time=20000").is_ok() && parse("barrier=2").is_err());
        assert!(parse("orphans").is_err() && parse("nobarrier=1").unwrap_err().contains("--help"));
        assert!(parse("fsname").unwrap_err().contains("fsname=..."));
        assert!(parse("subtype=a\\b").is_err());
        assert!(parse("journal_dev=").is_err());
    }
}
