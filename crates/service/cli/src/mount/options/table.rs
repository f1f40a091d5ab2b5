//! The table of mount options: the parser, the help, the page `docs/mount-options.md` and `-o remount` are
//! made from it. A new option is one row here, and a field of [`MountFlags`].

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use extant_device::Io;
use extant_fuse::mounting::is_plain_value;
use extant_fuse::{Channel, Remount, WritebackCache};
use extant_volume::{DataPath, ExtentPolicy, FlushDelay, FlushMode, OnError, OrphanMode};

use super::{LogTo, MountFlags};
use crate::look::backup;

/// Options of one kind, in the order of the help.
pub(super) struct Group {
    name: &'static str,
    rows: &'static [Row],
}

/// Options that are explained together.
struct Row {
    /// How they are written, with commas between them.
    spelled: &'static str,
    help: &'static str,
    /// The explanation in docs/mount-options.md; empty: that of the help.
    #[cfg_attr(not(test), expect(dead_code, reason = "the test of the page compares with it"))]
    page: &'static str,
    /// All keywords, also those that the help leaves out.
    keywords: &'static [Keyword],
}

/// One keyword.
pub(in crate::mount) struct Keyword {
    pub(in crate::mount) name: &'static str,
    pub(super) takes: Takes,
    /// What it changes in an existing mount; `None`: nothing can change it.
    pub(in crate::mount) remount: Option<fn(&mut Remount)>,
}

/// Sets what a value says, or returns what the value may be.
type Set = fn(&mut MountFlags, &OsStr) -> Result<(), String>;

/// What a keyword sets.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    /// The keyword alone.
    Nothing(fn(&mut MountFlags)),
    /// `keyword=value`.
    Value(Set),
}

impl Keyword {
    const fn remount(self, change: fn(&mut Remount)) -> Self {
        Self { remount: Some(change), ..self }
    }
}

const fn flag(name: &'static str, set: fn(&mut MountFlags)) -> Keyword {
    Keyword { name, takes: Takes::Nothing(set), remount: None }
}

const fn value(name: &'static str, set: Set) -> Keyword {
    Keyword { name, takes: Takes::Value(set), remount: None }
}

/// All keywords.
pub(in crate::mount) fn keywords() -> impl Iterator<Item = &'static Keyword> {
    GROUPS.iter().flat_map(|group| group.rows).flat_map(|row| row.keywords)
}

/// The options as in `extant mount --help`.
pub(in crate::mount) fn help() -> String {
    const INDENT: usize = 24;
    const WIDTH: usize = 96;
    let mut text = String::new();
    for group in GROUPS {
        let mut letters = group.name.chars();
        let capital = letters.next().map(|first| first.to_ascii_uppercase());
        let _ = writeln!(text, "\n{}{}:", capital.unwrap_or_default(), letters.as_str());
        for row in group.rows {
            let mut line = format!("  {}", row.spelled);
            if line.len() > INDENT - 1 {
                let _ = writeln!(text, "{line}");
                line = String::new();
            }
            line = format!("{line:INDENT$}");
            let mut is_empty = true;
            for word in row.help.split(' ') {
                if !is_empty && line.len() + 1 + word.len() > WIDTH {
                    let _ = writeln!(text, "{line}");
                    line = " ".repeat(INDENT);
                    is_empty = true;
                }
                if !is_empty {
                    line.push(' ');
                }
                line.push_str(word);
                is_empty = false;
            }
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// The options as in docs/mount-options.md.
#[cfg(test)]
pub(super) fn page() -> String {
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "| {} | |\n|---|---|", group.name);
        for row in group.rows {
            let spelled: Vec<String> = row.spelled.split(", ").map(|one| format!("`{one}`")).collect();
            let page = if row.page.is_empty() { row.help } else { row.page };
            let _ = writeln!(text, "| {} | {page} |", spelled.join(", "));
        }
        text.push('\n');
    }
    text
}

pub(super) const GROUPS: &[Group] = &[
    Group { name: "common", rows: COMMON },
    Group { name: "durability and damage", rows: DURABILITY },
    Group { name: "performance", rows: PERFORMANCE },
    Group { name: "for measuring", rows: MEASURING },
];

const COMMON: &[Row] = &[
    Row {
        spelled: "ro",
        help: "read-only (default); no byte of the image changes",
        page: "",
        keywords: &[flag("ro", |flags| flags.read_write = false).remount(|to| to.read_only = Some(true))],
    },
    Row {
        spelled: "rw",
        help: "read-write",
        page: "read-write; also `--rw`",
        keywords: &[flag("rw", |flags| flags.read_write = true).remount(|to| to.read_only = Some(false))],
    },
    Row {
        spelled: "allow_other",
        help: "let other users access the mount; ordinary users need user_allow_other in /etc/fuse.conf",
        page: "other users may access the mount, too. An ordinary user may give this option only if \
               /etc/fuse.conf has `user_allow_other`",
        keywords: &[flag("allow_other", |flags| flags.allow_other = true)],
    },
    Row {
        spelled: "default_permissions",
        help: "the kernel checks modes, owners and ACLs (always on for root and with allow_other)",
        page: "the kernel checks modes, owners and ACLs. Always on when root mounts, and with \
               `allow_other`",
        keywords: &[flag("default_permissions", |flags| flags.default_permissions = true)],
    },
    Row {
        spelled: "dev, suid, noexec",
        help: "allow device nodes; honour set-id bits; run no programs. The defaults are nodev, nosuid, \
               exec",
        page: "device nodes work; set-id bits work; programs cannot be run. Defaults: `nodev,nosuid,exec`",
        keywords: &[
            flag("dev", |flags| flags.dev = true).remount(|to| to.dev = Some(true)),
            flag("nodev", |flags| flags.dev = false).remount(|to| to.dev = Some(false)),
            flag("suid", |flags| flags.suid = true).remount(|to| to.suid = Some(true)),
            flag("nosuid", |flags| flags.suid = false).remount(|to| to.suid = Some(false)),
            flag("noexec", |flags| flags.noexec = true).remount(|to| to.exec = Some(false)),
            flag("exec", |flags| flags.noexec = false).remount(|to| to.exec = Some(true)),
        ],
    },
    Row {
        spelled: "nosymfollow",
        help: "do not follow symbolic links",
        page: "",
        keywords: &[
            flag("nosymfollow", |flags| flags.no_symfollow = true),
            flag("symfollow", |flags| flags.no_symfollow = false),
        ],
    },
    Row {
        spelled: "grpid, nogrpid",
        help: "new files get the group of their directory, or of the process (default); also bsdgroups, \
               sysvgroups",
        page: "`grpid`: a new file gets the group of its directory. `nogrpid` (default): it gets the \
               group of the process that creates it. Also `bsdgroups`, `sysvgroups`",
        keywords: &[
            flag("grpid", |flags| flags.dir_groups = Some(true)),
            flag("bsdgroups", |flags| flags.dir_groups = Some(true)),
            flag("nogrpid", |flags| flags.dir_groups = Some(false)),
            flag("sysvgroups", |flags| flags.dir_groups = Some(false)),
        ],
    },
    Row {
        spelled: "uid=N, gid=N",
        help: "show all files as owned by this user, this group",
        page: "show all files as owned by this user, this group: [media of other \
               machines](mount-admin.md#media-of-other-machines)",
        keywords: &[
            value("uid", |flags, value| id(value).map(|id| flags.shown.uid = Some(id))),
            value("gid", |flags, value| id(value).map(|id| flags.shown.gid = Some(id))),
        ],
    },
    Row {
        spelled: "umask=M, fmask=M, dmask=M",
        help: "hide these permissions: umask of all files, fmask of all but directories, dmask of \
               directories",
        page: "hide the permission bits in M: `umask` for all files, `fmask` for all except directories, \
               `dmask` for directories only",
        keywords: &[
            value("umask", |flags, value| {
                let mask = mask(value)?;
                (flags.shown.file_mask, flags.shown.dir_mask) = (mask, mask);
                Ok(())
            }),
            value("fmask", |flags, value| mask(value).map(|mask| flags.shown.file_mask = mask)),
            value("dmask", |flags, value| mask(value).map(|mask| flags.shown.dir_mask = mask)),
        ],
    },
    Row {
        spelled: "fsname=NAME",
        help: "source in the mount table; default: the image",
        page: "",
        keywords: &[value("fsname", |flags, value| {
            flags.fs_name = Some(value.to_owned());
            Ok(())
        })],
    },
    Row {
        spelled: "subtype=NAME",
        help: "type in the mount table after `fuse.`; default: extant",
        page: "",
        keywords: &[value("subtype", |flags, value| {
            if !is_plain_value(value) {
                return Err("letters and digits only".to_owned());
            }
            flags.subtype = Some(value.to_string_lossy().into_owned());
            Ok(())
        })],
    },
    Row {
        spelled: "log=FILE, log=syslog, log=none",
        help: "where damage and errors are reported; default: standard error, in the background journald \
               or syslog",
        page: "where errors are [reported](mount-admin.md#errors-and-logs)",
        keywords: &[value("log", |flags, value| {
            flags.log = match value.as_bytes() {
                b"" => return Err("a file, syslog or none".to_owned()),
                b"syslog" => LogTo::System,
                b"none" => LogTo::Nowhere,
                _ => LogTo::File(value.into()),
            };
            Ok(())
        })],
    },
    Row {
        spelled: "remount",
        help: "change ro, rw, dev, suid, noexec of the mount on DIR",
        page: "change `ro`, `rw`, `dev`, `suid`, `noexec` of an existing mount, see \
               [remounting](mount-admin.md#remounting)",
        keywords: &[flag("remount", |_| ()).remount(|_| ())],
    },
];

const DURABILITY: &[Row] = &[
    Row {
        spelled: "commit=SECONDS",
        help: "longest time between two commits (default: 5), and how long data stays dirty before it is \
               written back (default: 30, also the most)",
        page: "the longest time between two commits of the journal; default: 5. By default, dirty data \
               is written back after 30 seconds; with this option after SECONDS, if that is less than \
               30",
        keywords: &[value("commit", |flags, value| {
            let seconds = number(value, 86_400).ok_or("seconds up to 86400, as 5")?;
            // 0 selects the default, as in the kernel.
            flags.commit = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
            Ok(())
        })],
    },
    Row {
        spelled: "sync",
        help: "each write is durable when it returns",
        page: "each write(2) is durable when it returns, as with O_SYNC",
        keywords: &[flag("sync", |flags| flags.sync = true), flag("async", |flags| flags.sync = false)],
    },
    Row {
        spelled: "data=ordered",
        help: "with nobuffered_iomap only: a commit waits until the data of newly allocated blocks is \
               written (default)",
        page: "the default, unless the superblock sets another mode. New extents stay unwritten until \
               their data is on the device, so a commit does not wait for data. A commit waits for the \
               data of new blocks in two cases: in files with block maps, which have no unwritten \
               blocks, and in all files with `nobuffered_iomap` (see below)",
        keywords: &[value("data", |flags, value| {
            let ways = [
                ("ordered", DataPath::Ordered),
                ("writeback", DataPath::Writeback),
                ("journal", DataPath::Journal),
            ];
            flags.data = Some(named(value, ways)?);
            Ok(())
        })],
    },
    Row {
        spelled: "data=writeback",
        help: "with nobuffered_iomap only: a commit does not wait; after a crash files may show the old \
               content of blocks",
        page: "the same as `data=ordered`, except with `nobuffered_iomap`. With `nobuffered_iomap`, no \
               commit waits for data, so after a crash files may show the old content of blocks",
        keywords: &[],
    },
    Row {
        spelled: "data=journal",
        help: "write data through the journal",
        page: "file data goes through the journal, as metadata does",
        keywords: &[],
    },
    Row {
        spelled: "noauto_da_alloc",
        help: "do not write back data early that replaces older data by rename or truncate",
        page: "do not write back early the data that [replaces older data](mount.md#what-is-durable-when) by \
               rename or truncate",
        keywords: &[
            flag("noauto_da_alloc", |flags| flags.no_auto_da_alloc = Some(true)),
            flag("auto_da_alloc", |flags| flags.no_auto_da_alloc = Some(false)),
        ],
    },
    Row {
        spelled: "errors=continue, errors=remount-ro, errors=panic",
        help: "what to do when damage is found; default: as the superblock says",
        page: "what to do when [damage is found](mount-admin.md#errors-and-logs); default: as the superblock \
               says (`tune2fs -e`)",
        keywords: &[value("errors", |flags, value| {
            let ways = [
                ("continue", OnError::Continue),
                ("remount-ro", OnError::ReadOnly),
                ("panic", OnError::Panic),
            ];
            flags.errors = Some(named(value, ways)?);
            Ok(())
        })],
    },
    Row {
        spelled: "noload, norecovery",
        help: "ignore the journal (not with rw)",
        page: "ignore the journal; not with `rw`",
        keywords: &[
            flag("noload", |flags| flags.no_recovery = true),
            flag("norecovery", |flags| flags.no_recovery = true),
        ],
    },
    Row {
        spelled: "backup=N, backup=auto",
        help: "use the backup superblock in block N, or the first that is found (not with rw)",
        page: "use the backup superblock in block N; with `auto`, the first that is found. Not with `rw`",
        keywords: &[value("backup", |flags, value| {
            flags.backup = backup(&value.to_string_lossy())?;
            Ok(())
        })],
    },
    Row {
        spelled: "journal_dev=PATH",
        help: "the external journal: a device or image",
        page: "the device or file that holds the external journal; also `journal_path=`",
        keywords: &[value("journal_dev", journal), value("journal_path", journal)],
    },
];

const PERFORMANCE: &[Row] = &[
    Row {
        spelled: "nowriteback_cache",
        help: "the kernel sends each write at once. By default it buffers writes, so small writes cost \
               less, if the amount of buffered data is bounded and there is much free space; with \
               writeback_cache it always does. When space runs out, a write to a file that was opened \
               before may succeed and the next write, fsync or close fail",
        page: "the kernel sends each write(2) to the server at once. By default, it buffers writes, \
               which makes small writes up to 18 times as fast, if the amount of buffered data is \
               bounded and eight times this amount is free; with `writeback_cache`, it always does. \
               **When space runs out, a write(2) to a file that was opened earlier may succeed and \
               the next write(2), fsync(2) or close(2) fails**, see \
               [internals](mount-internals.md#the-kernels-write-back-cache)",
        keywords: &[
            flag("nowriteback_cache", |flags| flags.writeback_cache = WritebackCache::Never),
            flag("writeback_cache", |flags| flags.writeback_cache = WritebackCache::Always),
        ],
    },
    Row {
        spelled: "notrack_opens",
        help: "the kernel does not ask the server at open: faster. chattr +i and +a are then enforced by \
               write, write-back errors are reported once per process, not per open file, and close \
               starts no write-back unless track_closes is given",
        page: "the kernel sends no request to the server when a file is opened or closed, which is \
               faster. But `chattr +i` and `+a` are checked at write(2), not at open(2). A write-back \
               error is reported once to each process that calls fsync(2), instead of once per open \
               file. close(2) of a file that was truncated to 0 and rewritten starts its write-back \
               only with `track_closes`",
        keywords: &[
            flag("notrack_opens", |flags| flags.no_track_opens = true),
            flag("track_opens", |flags| flags.no_track_opens = false),
        ],
    },
    Row {
        spelled: "track_closes",
        help: "close of a file that was truncated to 0 and rewritten waits until the new data is written \
               back",
        page: "close(2) of a file that was truncated to 0 and rewritten waits until the new data is \
               written back. Without this option, close(2) starts the write-back and returns at once. \
               With `notrack_opens` but without this option, close(2) starts no write-back",
        keywords: &[flag("track_closes", |flags| flags.track_closes = true)],
    },
    Row {
        spelled: "discard",
        help: "freed blocks become holes of the image file, or are discarded on a device",
        page: "when the commit that frees blocks is durable, the server discards these blocks on a \
               device, or makes them holes of the image file",
        keywords: &[
            flag("discard", |flags| flags.discard = Some(true)),
            flag("nodiscard", |flags| flags.discard = Some(false)),
        ],
    },
    Row {
        spelled: "image_direct",
        help: "access the image with O_DIRECT, where it can be",
        page: "access the image with O_DIRECT, so that the kernel's page cache holds no second copy of \
               blocks that the server caches. If O_DIRECT is refused, a note says so, and the image is \
               accessed without it",
        keywords: &[
            flag("image_direct", |flags| flags.image_direct = true),
            flag("noimage_direct", |flags| flags.image_direct = false),
        ],
    },
    Row {
        spelled: "io=auto, io=calls, io=rings",
        help: "submit batches by one call each or by io_uring; default: the faster one, as measured",
        page: "how the server submits a batch of reads or writes of the image. `calls`: one system call \
               per transfer. `rings`: the whole batch through io_uring. `auto` (default): `rings` if \
               the image is accessed with O_DIRECT, else `calls` ([why](why/rings-past-the-cache.md))",
        keywords: &[value("io", |flags, value| {
            flags.io = named(value, [("auto", Io::Auto), ("calls", Io::Calls), ("rings", Io::Rings)])?;
            Ok(())
        })],
    },
    Row {
        spelled: "transport=auto, transport=dev, transport=uring",
        help: "how requests come from the kernel: through /dev/fuse, or by io_uring where the fuse \
               module's enable_uring is Y; default: as uring for rw, dev for ro",
        page: "how the kernel sends requests to the server. `dev`: through /dev/fuse. `uring`: through \
               io_uring, with one queue for each CPU. This needs Y in \
               `/sys/module/fuse/parameters/enable_uring` (root can set it); with N, /dev/fuse is used. \
               `auto` (default): as `uring` for read-write mounts, as `dev` for read-only mounts. \
               `uring` is faster for several clients at a time, and slower for large reads from a cold \
               cache ([how to measure](mount-internals.md#measuring-a-mount))",
        keywords: &[value("transport", |flags, value| {
            let ways = [("auto", Channel::Auto), ("dev", Channel::Device), ("uring", Channel::Rings)];
            flags.transport = named(value, ways)?;
            Ok(())
        })],
    },
];

const MEASURING: &[Row] = &[
    Row {
        spelled: "nobuffered_iomap",
        help: "write data block by block in 4 KiB pages, not by extents in large folios; also nodelalloc",
        page: "file data is cached in 4 KiB pages and mapped block by block, instead of in large folios \
               and by extents ([lab buffered](lab.md#buffered)). Alias: `nodelalloc`. Blocks are \
               allocated at write-back (with the kernel's `nodelalloc`: at write(2))",
        keywords: &[
            flag("nobuffered_iomap", |flags| flags.block_by_block = Some(true)),
            flag("nodelalloc", |flags| flags.block_by_block = Some(true)),
            flag("buffered_iomap", |flags| flags.block_by_block = Some(false)),
            flag("delalloc", |flags| flags.block_by_block = Some(false)),
        ],
    },
    Row {
        spelled: "flush=MODE",
        help: "how threads that sync share flushes of the device: epoch (default), merge, seed, \
               empty-txn, none",
        page: "how concurrent fsync calls share flushes of the device: `epoch` (default), `merge`, \
               `seed`, `empty-txn`, or `none` (each fsync makes its own flush). [lab \
               fsync](lab.md#fsync) describes the modes",
        keywords: &[value("flush", |flags, value| {
            flags.flush.mode = named(value, FlushMode::ALL.map(|mode| (mode.name(), mode)))?;
            Ok(())
        })],
    },
    Row {
        spelled: "flush_delay=MODE",
        help: "how long the first fsync waits for others with flush=seed: full (as long as a flush \
               takes), aged (until the last flush was that long ago; default), none",
        page: "with `flush=seed`, how long the first of several concurrent fsync calls waits for the \
               others before it makes a flush. T is the average time of a flush, at most 15 ms. `full`: \
               for the time T. `aged` (default): until T has passed since the last shared flush ended. \
               `none`: not at all",
        keywords: &[value("flush_delay", |flags, value| {
            flags.flush.delay = named(value, FlushDelay::ALL.map(|delay| (delay.name(), delay)))?;
            Ok(())
        })],
    },
    Row {
        spelled: "min_batch_time=US, max_batch_time=US",
        help: "bounds of the time that a change of names in a chattr +S or +D directory waits for others \
               before it commits; default: 0 and 15000",
        page: "after a change of names in a `chattr +S` or `+D` directory, the server waits before it \
               commits, so that other operations share the commit. It waits as long as a commit takes \
               on average, within these bounds (microseconds; default: 0 and 15000). An fsync waits in \
               this way only with `flush=empty-txn`",
        keywords: &[
            value("min_batch_time", |flags, value| micros(value).map(|time| flags.batching.min = time)),
            value("max_batch_time", |flags, value| micros(value).map(|time| flags.batching.max = time)),
        ],
    },
    Row {
        spelled: "nobarrier",
        help: "neither commits nor fsync flush: a power cut may destroy the file system",
        page: "neither commits nor fsync flush the device's cache: a power cut may destroy the file \
               system",
        keywords: &[
            flag("nobarrier", |flags| flags.no_barriers = Some(true)),
            flag("barrier", |flags| flags.no_barriers = Some(false)),
            value("barrier", |flags, value| {
                flags.no_barriers = Some(named(value, [("0", true), ("1", false)])?);
                Ok(())
            }),
        ],
    },
    Row {
        spelled: "es_policy=NAME",
        help: "reclaim policy of the extent-status cache: es-chunk (default), or one of `extant lab \
               shrinker`",
        page: "how the server evicts cached extents of files; default: `es-chunk`. [lab \
               shrinker](lab.md#shrinker) describes the policies",
        keywords: &[value("es_policy", |flags, value| {
            flags.extents = named(value, ExtentPolicy::ALL.map(|policy| (policy.name(), policy)))?;
            Ok(())
        })],
    },
    Row {
        spelled: "orphans=MODE",
        help: "how inodes to delete or truncate after a crash are recorded: file (default), list-v3, \
               list-v0; with none a crash leaks their blocks until e2fsck",
        page: "how orphans are recorded. An orphan is an inode that the next mount must delete or \
               truncate after a crash. `file` (default): in the orphan file, or in the list on disk if \
               the image has no such file. `list-v3`, `list-v0`: in the list. `none`: not at all, so a \
               crash leaks the blocks of orphans until e2fsck runs. All modes but `none` record each \
               deletion, because the server deletes the inode later, when the kernel sends FORGET. \
               These modes record a truncation only if it may take more than one transaction. (In [lab \
               orphans](lab.md#orphans), the modes of the same names record every truncation)",
        keywords: &[value("orphans", |flags, value| {
            flags.orphans = named(value, OrphanMode::ALL.map(|mode| (mode.name(), mode)))?;
            Ok(())
        })],
    },
];

fn journal(flags: &mut MountFlags, value: &OsStr) -> Result<(), String> {
    if value.is_empty() {
        return Err("a device or image".to_owned());
    }
    flags.journal_device = Some(OsString::from_vec(value.as_bytes().to_vec()).into());
    Ok(())
}

/// The choice that `value` names.
fn named<T, const N: usize>(value: &OsStr, ways: [(&str, T); N]) -> Result<T, String> {
    let names = ways.each_ref().map(|(name, _)| *name);
    let found = ways.into_iter().find(|(name, _)| name.as_bytes() == value.as_bytes());
    found.map(|(_, way)| way).ok_or_else(|| {
        let (last, others) = names.split_last().expect("there is a choice");
        format!("{} or {last}", others.join(", "))
    })
}

fn number(value: &OsStr, max: u32) -> Option<u32> {
    value.to_str()?.parse().ok().filter(|number| *number <= max)
}

/// Parses the number of a user or group.
fn id(value: &OsStr) -> Result<u32, String> {
    number(value, u32::MAX - 1).ok_or_else(|| "a number, as 1000".to_owned())
}

/// Parses permissions in octal.
fn mask(value: &OsStr) -> Result<u16, String> {
    let number = value.to_str().and_then(|text| u16::from_str_radix(text, 8).ok());
    number.filter(|mask| *mask <= 0o777).ok_or_else(|| "octal up to 777, as 022".to_owned())
}

/// Parses a time in microseconds, as in the kernel's options; at most a second.
fn micros(value: &OsStr) -> Result<Duration, String> {
    let number = number(value, 1_000_000).ok_or("microseconds up to 1000000, as 15000")?;
    Ok(Duration::from_micros(number.into()))
}
