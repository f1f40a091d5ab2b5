//! `extant tune`: changes parameters of a file system, with the letters of tune2fs.
//!
//! Owns: the letters and the forms of their values, what is printed. Does **not** own: what a parameter
//! changes and what it requires (see `extant::tune`).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use extant::tune::{
    Conversion, ConvertOptions, FieldChange, JournalChange, OfflineOptions, Reserved, TuneFault, TuneReport,
    Tuning, conversion_of,
};
use extant::{Features, FileSystem, OnError, OpenOptions, uuid_text};
use extant_device::mount_table::mounted_at;
use extant_ondisk::hash::HashVersion;
use serde_json::json;

use crate::edit::args::JournalArg;
use crate::edit::staged::HoldPolicy;
use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::escape;
use crate::look::{OpenArgs, Session, arg_failure, lock_failure, report_output};
use crate::mkfs::{parse_uuid, random_uuid};
use crate::mount::is_ours;
use crate::schema::tagged;

const HELP: &str = "\
The change is one transaction of the journal: after a power cut the image has all old values or all new \
ones, in the superblock and its backups. A journal that waits is replayed first. The image must not be \
mounted; only -L and -U also change a mount (DIR), of extant and of the kernel. A new journal, \
metadata_csum, 64bit, -I, and changes that the journal has no room for are written through an undo file \
(IMG.tune-undo): after a power cut the next `extant tune` restores the old state from it.

Features that can be turned on: dir_index, fast_commit, stable_inodes, ea_inode, large_dir, \
encrypt, large_file, huge_file, dir_nlink, extra_isize, verity, flex_bg; on and off: has_journal, \
orphan_file, quota, project, metadata_csum, 64bit, fast_commit, metadata_csum_seed.
Extended options: stride=BLOCKS, stripe_width=BLOCKS, hash_alg=half_md4|tea|legacy, mount_opts=TEXT, \
test_fs, ^test_fs.

`extant inspect IMG super` shows all parameters.

Examples:
  extant tune -L root -U random clone.img     another label and UUID, for a clone
  extant tune -m 0 'disk.img#2'               no blocks reserved for root
  extant tune -e panic -o journal_data,^acl root.img
  extant tune -O large_dir,fast_commit root.img
  extant tune -J size=64 root.img             a journal of 64 MiB in the place of the old one
  extant tune -O quota,orphan_file root.img
  extant tune -I 256 -O metadata_csum,64bit old.img";

/// Change parameters of a file system: label, UUID, reserve, error policy, mount options, features.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct TuneArgs {
    /// Label, at most 16 bytes; "" removes it.
    #[arg(short = 'L', long, value_name = "LABEL")]
    label: Option<OsString>,
    /// UUID: a UUID, `random`, or `clear`.
    #[arg(short = 'U', long, value_name = "UUID", value_parser = parse_new_uuid)]
    uuid: Option<NewUuid>,
    /// Blocks reserved for root, in per cent of all.
    #[arg(short = 'm', long, value_name = "PERCENT", conflicts_with = "reserved_blocks")]
    reserved_percent: Option<f64>,
    /// Number of blocks reserved for root.
    #[arg(short = 'r', long, value_name = "BLOCKS")]
    reserved_blocks: Option<u64>,
    /// The user that may use the reserved blocks besides root, as a number.
    #[arg(short = 'u', long, value_name = "UID")]
    reserved_user: Option<u32>,
    /// The group that may use the reserved blocks, as a number.
    #[arg(short = 'g', long, value_name = "GID")]
    reserved_group: Option<u32>,
    /// What a driver does when it finds damage.
    #[arg(short = 'e', long, value_name = "POLICY", value_enum)]
    errors: Option<Errors>,
    /// Default mount options, separated by commas; ^ in front removes one.
    #[arg(short = 'o', long, value_name = "LIST", value_delimiter = ',')]
    mount_options: Vec<String>,
    /// Features to turn on, or off (^), separated by commas.
    #[arg(short = 'O', long, value_name = "LIST", value_delimiter = ',')]
    features: Vec<String>,
    /// Give inodes this size in bytes, larger than now.
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u16>,
    /// Make a journal, if there is none; as -O has_journal.
    #[arg(short = 'j')]
    make_journal: bool,
    /// Make a new journal of this size, in place of the old one: size=MiB.
    #[arg(short = 'J', long = "journal-options", value_name = "size=MIB", value_parser = parse_journal_size)]
    journal_size: Option<u64>,
    /// Extended options, separated by commas.
    #[arg(short = 'E', long, value_name = "LIST", value_delimiter = ',')]
    extended: Vec<String>,
    /// Number of mounts after which a check is due; 0 or -1 for never.
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true,
          value_parser = clap::value_parser!(i32).range(-1..=65534))]
    mounts_until_check: Option<i32>,
    /// Number of mounts since the last check.
    #[arg(short = 'C', long, value_name = "N")]
    mount_count: Option<u16>,
    /// Time after which a check is due: days, or with a suffix s, d, w, m; 0 for never.
    #[arg(short = 'i', long, value_name = "TIME", value_parser = parse_interval)]
    check_interval: Option<u32>,
    /// Time of the last check: now, @SECONDS, or in UTC YYYYMMDD, YYYYMMDDHH, YYYYMMDDHHMM, YYYYMMDDHHMMSS.
    #[arg(short = 'T', long, value_name = "TIME", value_parser = parse_time)]
    last_check: Option<u64>,
    /// Directory of the last mount.
    #[arg(short = 'M', long, value_name = "DIR")]
    last_mounted: Option<OsString>,
    /// Print what would change, and write nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    /// The image (IMG, IMG@OFFSET, IMG#PARTITION); for -L and -U also the directory of a mount.
    #[arg(value_name = "IMG|DIR")]
    image: OsString,
    #[command(flatten)]
    journal: JournalArg,
}

/// The error policy, by the names of mount(8).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Errors {
    /// Go on
    Continue,
    /// Stop writing
    RemountRo,
    /// Halt the machine
    Panic,
}

/// A UUID of the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NewUuid {
    Random,
    Given([u8; 16]),
}

fn parse_new_uuid(text: &str) -> Result<NewUuid, String> {
    match text {
        "random" | "time" => Ok(NewUuid::Random),
        "clear" => Ok(NewUuid::Given([0; 16])),
        _ => parse_uuid(text).map(NewUuid::Given),
    }
}

/// `size=MIB`, in bytes.
fn parse_journal_size(text: &str) -> Result<u64, String> {
    match crate::journal_options::parse(text)? {
        0 => Err("a journal of 0 MiB; -O ^has_journal removes the journal".to_owned()),
        mib => Ok(u64::from(mib) << 20),
    }
}

fn parse_interval(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'd')) => (&text[..at], 86_400),
        Some((at, 'w')) => (&text[..at], 7 * 86_400),
        Some((at, 'm')) => (&text[..at], 30 * 86_400),
        _ => (text, 86_400),
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    seconds.ok_or_else(|| "it is a number of days, or a number with s, d, w or m (30 days)".to_owned())
}

fn parse_time(text: &str) -> Result<u64, String> {
    let wrong = || "it is now, YYYYMMDD[HH[MM[SS]]] in UTC, or @SECONDS".to_owned();
    if text == "now" {
        return Ok(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()));
    }
    if let Some(seconds) = text.strip_prefix('@') {
        return seconds.parse().ok().filter(|seconds| *seconds < 1 << 40).ok_or_else(wrong);
    }
    if !matches!(text.len(), 8 | 10 | 12 | 14) || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let field = |at: usize, len: usize| text.get(at..at + len).and_then(|digits| digits.parse::<u64>().ok());
    let (year, month, day) = (field(0, 4).unwrap_or(0), field(4, 2).unwrap_or(0), field(6, 2).unwrap_or(0));
    let [hour, minute, second] = [8, 10, 12].map(|at| field(at, 2).unwrap_or(0));
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, if is_leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let is_date = year >= 1970 && (1..=12).contains(&month) && day >= 1;
    if !is_date || day > lengths[month as usize - 1] || hour > 23 || minute > 59 || second > 59 {
        return Err(wrong());
    }
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    let months: u64 = lengths[..month as usize - 1].iter().sum();
    Ok((((years + months + day - 1) * 24 + hour) * 60 + minute) * 60 + second)
}

/// A word, and whether it is set: `^word` is not.
fn switch(word: &str) -> (String, bool) {
    word.strip_prefix('^').map_or_else(|| (word.to_owned(), true), |word| (word.to_owned(), false))
}

fn tuning(args: &TuneArgs) -> Result<Tuning, String> {
    let bytes = |text: &OsString| OsStr::as_bytes(text).to_vec();
    let percent = args.reserved_percent.map(Reserved::Percent);
    let mut tuning = Tuning {
        label: args.label.as_ref().map(bytes),
        uuid: args.uuid.map(|uuid| match uuid {
            NewUuid::Random => random_uuid(),
            NewUuid::Given(uuid) => uuid,
        }),
        reserved: percent.or(args.reserved_blocks.map(Reserved::Blocks)),
        reserved_user: args.reserved_user,
        reserved_group: args.reserved_group,
        errors: args.errors.map(|errors| match errors {
            Errors::Continue => OnError::Continue,
            Errors::RemountRo => OnError::ReadOnly,
            Errors::Panic => OnError::Panic,
        }),
        mount_options: args.mount_options.iter().map(|word| switch(word)).collect(),
        features: args.features.iter().map(|word| switch(word)).collect(),
        mounts_until_check: args.mounts_until_check.map(|count| u16::try_from(count).unwrap_or(0)),
        mount_count: args.mount_count,
        check_interval_seconds: args.check_interval,
        last_check: args.last_check,
        last_mounted: args.last_mounted.as_ref().map(bytes),
        ..Tuning::default()
    };
    for option in &args.extended {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let wrong = |what: &str| format!("-E {name}: \"{value}\" is not {what}");
        match name {
            "stride" => tuning.stride = Some(value.parse().map_err(|_| wrong("a number up to 65535"))?),
            "stripe_width" | "stripe-width" => {
                tuning.stripe_width = Some(value.parse().map_err(|_| wrong("a number of blocks"))?);
            }
            "hash_alg" => {
                tuning.hash = Some(match value {
                    "legacy" => HashVersion::Legacy,
                    "half_md4" => HashVersion::HalfMd4,
                    "tea" => HashVersion::Tea,
                    _ => return Err(wrong("legacy, half_md4 or tea")),
                });
            }
            "mount_opts" => tuning.mount_options_text = Some(value.as_bytes().to_vec()),
            "test_fs" => tuning.test_fs = Some(true),
            "^test_fs" => tuning.test_fs = Some(false),
            _ => {
                return Err(format!(
                    "-E {name}: no such option; known are: stride stripe_width hash_alg mount_opts test_fs"
                ));
            }
        }
    }
    Ok(tuning)
}

pub(crate) fn run(args: &TuneArgs) -> ExitCode {
    let mut tuning = match tuning(args) {
        Ok(tuning) => tuning,
        Err(why) => return exit::fail(exit::USAGE_CODE, &format!("tune: {why}")),
    };
    let (mut conversion, others) = conversion_of(std::mem::take(&mut tuning.features));
    tuning.features = others;
    conversion.inode_size = args.inode_size;
    if args.make_journal && conversion.journal.is_none() {
        conversion.journal = Some(JournalChange::Make { blocks: None });
    }
    if tuning == Tuning::default() && conversion.is_empty() && args.journal_size.is_none() {
        let why = "tune: no parameter to change; `extant inspect IMG super` shows them";
        return exit::fail(exit::USAGE_CODE, &why);
    }
    if Path::new(&args.image).is_dir() {
        let only_names = Tuning { label: tuning.label.clone(), uuid: tuning.uuid, ..Tuning::default() };
        let is_possible = tuning == only_names && conversion.is_empty() && args.journal_size.is_none();
        return of_mount(args, &tuning, is_possible);
    }
    let open = OpenArgs::with_journal(args.journal.journal.clone());
    let mut session = Session::new(&open);
    let Some(image) = session.whole_image(&args.image, "changed") else { return session.finish(Ok(())) };
    let name = escape(image.to_string().as_bytes());
    if !args.dry_run
        && let Err((code, why)) = restore_cut(&image)
    {
        return exit::fail(code, &why);
    }
    // Planned on the image as it is read: what is refused, and what changes nothing, writes nothing.
    let Some(fs) = session.open(&image) else { return session.finish(Ok(())) };
    let planned = extant::tune::plan(fs.volume().superblock(), &tuning).map(|(_, report)| report);
    if let Some(bytes) = args.journal_size {
        let blocks = bytes >> fs.volume().geometry().block_size.log2();
        conversion.journal = Some(JournalChange::Make { blocks: u32::try_from(blocks).ok() });
    }
    let is_recovering = fs.volume().superblock().features.has_incompat(Features::RECOVER);
    let needs_recovery = fs.volume().recovery().needed || is_recovering;
    drop(fs);
    // A conversion that is refused changes no other parameter. While a journal waits, it cannot be planned.
    if !args.dry_run
        && !conversion.is_empty()
        && !needs_recovery
        && let Err((code, why)) = convert_image(&image, &args.journal, &conversion, true)
    {
        return exit::fail(code, &why);
    }
    let writes = !args.dry_run && planned.as_ref().is_ok_and(|report| !report.changes.is_empty());
    let mut done = if writes {
        drop(session);
        session = Session::writing(&open, HoldPolicy::Nothing);
        let Some(fs) = session.open(&image) else { return session.finish(Ok(())) };
        let done = fs.tune(&tuning);
        session.did(&image.to_string());
        done
    } else {
        planned
    };
    if !conversion.is_empty()
        && let Ok(report) = &mut done
    {
        // The session may hold the image.
        let finished = session.finish(Ok(()));
        if finished != ExitCode::SUCCESS {
            return finished;
        }
        session = Session::new(&open);
        match convert_image(&image, &args.journal, &conversion, args.dry_run) {
            Ok(more) => {
                report.changes.extend(more.changes);
                report.notes.extend(more.notes);
            }
            Err((code, why)) => return exit::fail(code, &why),
        }
    }
    let report = match done {
        Ok(report) => report,
        Err(why) => {
            session.problem(code_of(&why), format_args!("{name}: {why}"));
            return session.finish(Ok(()));
        }
    };
    for note in &report.notes {
        crate::voice::note!("{name}: {note}");
    }
    let mut out = report_output(args.json);
    let printed = print(args, &name, &report, &mut out).and_then(|()| out.flush());
    session.finish(printed)
}

/// The label and the UUID of a mount: one of extant, or of the kernel's ext4.
fn of_mount(args: &TuneArgs, tuning: &Tuning, is_possible: bool) -> ExitCode {
    let dir = Path::new(&args.image);
    let name = escape(args.image.as_encoded_bytes());
    if !is_possible {
        let why =
            format!("{name}: of a mount, only -L and -U change; for other parameters, unmount the image");
        return exit::fail(exit::USAGE_CODE, &why);
    }
    let failed = |what: &str, why: io::Error| {
        let reason = match why.raw_os_error() {
            Some(1 | 13) => "only root and the user that mounted it may change it".to_owned(),
            Some(22) if what == "label" => "it is too long".to_owned(),
            Some(25) => "the file system does not change it while it is mounted".to_owned(),
            Some(30) => "it is mounted read-only".to_owned(),
            Some(95) => {
                "checksums, encrypted files or the journal depend on it; unmount the image".to_owned()
            }
            _ => why.to_string(),
        };
        exit::fail(exit::TARGET, &format!("{name}: {what}: {reason}"))
    };
    let root = match File::open(dir) {
        Ok(root) => root,
        Err(why) => return failed("directory", why),
    };
    let is_ours = is_ours(dir);
    let mut ours = [0; 16];
    if tuning.uuid.is_some()
        && is_ours
        && rustix::fs::getxattr(dir, extant_fuse::UUID_ATTRIBUTE, &mut ours[..]).is_err()
    {
        let why = format!("{name}: give the directory where the file system is mounted, for its UUID");
        return exit::fail(exit::USAGE_CODE, &why);
    }
    let mut report = TuneReport::default();
    let mut refused = None;
    if let Some(label) = &tuning.label {
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let before = extant_device::label(&root).map_or_else(|_| "unknown".to_owned(), |bytes| shown(&bytes));
        if !args.dry_run
            && let Err(why) = extant_device::set_label(&root, label)
        {
            return failed("label", why);
        }
        report.changes.push(FieldChange { field: "label", before, after: shown(label) });
    }
    if let Some(uuid) = tuning.uuid {
        let before = if is_ours { Ok(ours) } else { extant_device::uuid(&root) };
        let before = before.map_or_else(|_| "unknown".to_owned(), |uuid| uuid_text(&uuid));
        let set = || match is_ours {
            true => {
                let flags = rustix::fs::XattrFlags::empty();
                Ok(rustix::fs::setxattr(dir, extant_fuse::UUID_ATTRIBUTE, &uuid, flags)?)
            }
            false => extant_device::set_uuid(&root, uuid),
        };
        let had_seed = stores_seed(dir);
        match if args.dry_run { Ok(()) } else { set() } {
            Ok(()) => report.changes.push(FieldChange { field: "UUID", before, after: uuid_text(&uuid) }),
            // The label has changed: the report comes before the message.
            Err(why) => refused = Some(why),
        }
        if had_seed == Some(false) && stores_seed(dir) == Some(true) {
            report.notes.push(
                "metadata_csum_seed was turned on: checksums keep the seed of the old UUID (needs Linux 4.4)"
                    .to_owned(),
            );
        }
    }
    report.changes.retain(|change| change.before != change.after);
    for note in &report.notes {
        crate::voice::note!("{name}: {note}");
    }
    let mut out = report_output(args.json);
    let printed = match refused.is_some() && report.changes.is_empty() {
        true => Ok(()),
        false => print(args, &name, &report, &mut out).and_then(|()| out.flush()),
    };
    drop(out);
    match (printed, refused) {
        (_, Some(why)) => failed("UUID", why),
        (Ok(()), None) => ExitCode::SUCCESS,
        (Err(why), None) => exit::fail(exit::TARGET, &why),
    }
}

/// Restores the image if a conversion of it was cut. Nothing else may write to it before.
pub(crate) fn restore_cut(image: &ImageArg) -> Result<(), (u8, String)> {
    let undo = image.tune_undo();
    if !undo.exists() {
        return Ok(());
    }
    let device = image.open_to_restore().map_err(lock_failure)?;
    extant::tune::restore_cut(&device, Some(&undo))
        .map_err(|fault| (code_of(&fault), format!("{image}: {fault}")))
}

fn code_of(fault: &TuneFault) -> u8 {
    match fault {
        TuneFault::Refused { .. } | TuneFault::Conversion(_) => exit::USAGE_CODE,
        TuneFault::InUse(_) => exit::BUSY,
        TuneFault::Open(_) => exit::SOURCE,
        TuneFault::Fault(_) | TuneFault::Lost(_) | TuneFault::Write(_) => exit::TARGET,
    }
}

/// Whether a mounted file system has the feature metadata_csum_seed; `None` if its image cannot be read.
fn stores_seed(dir: &Path) -> Option<bool> {
    let entry = mounted_at(&dir.canonicalize().ok()?).ok()??;
    let device = ImageArg::parse(&entry.source).ok()?.open_while_mounted().ok()?;
    // The change may be in the journal only.
    let fs = FileSystem::from_device(device, &OpenOptions::default()).ok()?;
    Some(fs.volume().superblock().features.has_incompat(Features::CSUM_SEED))
}

/// Converts an image, also for other commands. An error has its exit code.
pub(crate) fn convert_image(
    image: &ImageArg,
    journal: &JournalArg,
    conversion: &Conversion,
    dry_run: bool,
) -> Result<TuneReport, (u8, String)> {
    let device = match dry_run {
        true => image.open_read_only().map_err(arg_failure)?,
        false => image.open_to_restore().map_err(lock_failure)?,
    };
    let journal_device = journal.journal.as_deref().map(crate::resize::journal).transpose()?;
    let options = ConvertOptions {
        dry_run,
        offline: OfflineOptions {
            journal_device,
            undo: Some(image.tune_undo()),
            waiting: Some(Arc::new(crate::waiting::say(escape(image.to_string().as_bytes())))),
        },
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32),
    };
    extant::tune::convert(&device, conversion, &options).map_err(|fault| {
        let remedy = if matches!(fault, TuneFault::Lost(_)) { RESTORED_BY_NEXT } else { "" };
        (code_of(&fault), format!("{image}: {fault}{remedy}"))
    })
}

/// What undoes the part of a change that is written, if another machine has opened the file system.
pub(crate) const RESTORED_BY_NEXT: &str =
    "; when no other machine uses the file system, the same command first takes it back";

fn print(args: &TuneArgs, image: &str, report: &TuneReport, out: &mut dyn Write) -> std::io::Result<()> {
    if args.json {
        let changes: Vec<_> = report
            .changes
            .iter()
            .map(|change| json!({ "field": change.field, "before": change.before, "after": change.after }))
            .collect();
        let all = json!({
            "image": image, "dry_run": args.dry_run, "changes": changes, "notes": report.notes,
        });
        return writeln!(out, "{}", serde_json::to_string_pretty(&tagged("tune:1", all)).unwrap_or_default());
    }
    if report.changes.is_empty() {
        return writeln!(out, "{image}: nothing to change");
    }
    for change in &report.changes {
        let shown = |text: &str| {
            if text.is_empty() { "\"\"".to_owned() } else { escape(text.as_bytes()).replace("\\ ", " ") }
        };
        writeln!(out, "{image}: {}: {} -> {}", change.field, shown(&change.before), shown(&change.after))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_intervals() {
        assert_eq!(parse_time("19700101"), Ok(0));
        assert_eq!(parse_time("20240229123456"), Ok(1_709_210_096));
        assert_eq!(parse_time("2026112713"), Ok(1_795_784_400));
        assert_eq!(parse_time("@5"), Ok(5));
        for wrong in ["20230229", "20241301", "2024", "x", "202401010000000", "@x"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_interval("2"), Ok(172_800));
        assert_eq!(parse_interval("1m"), Ok(2_592_000));
        assert_eq!(parse_interval("0"), Ok(0));
        assert!(parse_interval("99999999w").is_err() && parse_interval("m").is_err());
    }
}
