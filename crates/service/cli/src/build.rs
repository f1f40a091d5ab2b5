//! `extant build`: makes an image from directories, archives and OCI images.

mod like;
mod rules;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args, FromArgMatches};
use extant_image::build::{BuildFault, BuildOptions, BuildReport, Observer, Source, build};
use extant_image::exclude::Excludes;
use extant_image::idmap::{IdMap, Owner};
use extant_image::labels::FileContexts;
use extant_image::plan::PlanFault;
use extant_image::profile::Profile;
use extant_image::solve::{SizeChoice, SolveFault};
use extant_image::source::dir::XattrChoice;
use extant_image::source::fault::SourceFault;
use extant_image::source::oci::Platform;
use extant_image::source::tar::{ALLOW_MORE, TarInput, Unpacking};
use extant_image::tree::InsertFault;
use extant_image::write::{Meter, Problem, WriteFault};
use extant_ondisk::superblock::uuid_text;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::edit::mode::ModeChange;
use crate::exit;
use crate::imagearg::target::{OutputTarget, to_stdout, unnamed};
use crate::manners::draws_progress;
use crate::mkfs::{FormatArgs, UuidChoice, random_uuid, source_date_epoch};
use crate::sandbox::{Needs, confine, directory_of};
use crate::schema::tagged;
use crate::sizes::{human, parse_size, unit_hint};
use crate::usage::near;
use crate::voice::{self, say};

/// How many problems a message lists at most.
const PROBLEMS_SHOWN: usize = 50;

const BUILD_HELP: &str = "\
Sources are merged in the order given, later ones on top. The same sources make the same image, byte for byte: its UUID \
and hash seed are derived from the tree, its time stamp is the newest file's (or SOURCE_DATE_EPOCH), and access, change \
and birth times equal the modification time unless --times all is given.

With --like OLD the new image is OLD with the least changes: chunks of it that did not change stay the \
same, for deduplication and for delta updates. Options of the file system are OLD's then.

Examples:
  extant build -o root.img --from rootfs/
  extant build -o new.img --like root.img --from rootfs/
  extant build -o app.img --from base/ --tar overlay.tar.zst --headroom 20
  extant build -o image.img --oci layout:latest
  tar -c . | extant build -o tree.img --tar -";

/// Make an image from directories, tar files and OCI images, later ones on top.
#[derive(Debug, Args)]
#[command(after_help = BUILD_HELP)]
pub(crate) struct BuildArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Make the image of this older one: what did not change keeps its blocks, inode number and place in its
    /// directory, and features, size and UUID stay.
    #[arg(long, value_name = "OLD")]
    like: Option<OsString>,
    /// The image to make: a file, IMG#N or IMG@OFFSET for a part of one, a block device, or - for standard
    /// output.
    #[arg(short, long, value_name = "IMAGE")]
    output: Option<PathBuf>,
    /// Size of the image: `auto` for the smallest that holds everything, `+20M` for so much more, or `512M`,
    /// `10G`. Without it: auto in a file, all that there is in a partition or device.
    #[arg(short, long, value_name = "SIZE")]
    size: Option<String>,
    /// Room for files to come, in percent of the smallest size.
    #[arg(long, value_name = "PERCENT", value_parser = parse_headroom)]
    headroom: Option<f64>,
    /// The size to which the image will be grown where it is used: descriptors, inodes and the journal are
    /// made for that.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    grow_to: Option<u64>,
    /// Features that a target can mount: debian-12, rhel-8, grub-2.06, ... (`help` lists them).
    #[arg(short, long, value_name = "NAME")]
    profile: Option<String>,
    /// Replace an existing image.
    #[arg(short, long)]
    force: bool,
    /// Show what would be made, and make nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not wait until everything is durable.
    #[arg(long)]
    no_sync: bool,
    /// Report as JSON.
    #[arg(long)]
    json: bool,
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    format: FormatArgs,
}

/// Sources, and what is taken of them.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    #[command(flatten)]
    sources: SourceArgs,
    #[command(flatten)]
    rules: rules::RuleArgs,
    /// The most that an archive or a layer may unpack to. Default: 1 GiB, or 200 times its packed size if
    /// that is more.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_size: Option<u64>,
    /// Give everything to this owner: UID, UID:GID or :GID. Maps of ids do not change it.
    #[arg(long, value_name = "UID[:GID]")]
    owner: Option<String>,
    /// Give everything to this group. Maps of ids do not change it.
    #[arg(long, value_name = "GID")]
    group: Option<String>,
    /// Change the modes of everything but symbolic links, octal or as for chmod(1): `go-w`, `u=rwX`.
    #[arg(long, value_name = "CHANGES", value_parser = rules::parse_mode)]
    mode: Option<ModeChange>,
    /// Change user ids: `FROM:TO[:COUNT]`, or `*:TO` for all others; may be given several times.
    #[arg(long, value_name = "MAP")]
    uid_map: Vec<String>,
    /// Change group ids, as --uid-map.
    #[arg(long, value_name = "MAP")]
    gid_map: Vec<String>,
    /// SELinux labels by path, in file_contexts format.
    #[arg(long, value_name = "FILE")]
    file_contexts: Option<PathBuf>,
    /// Leave out what matches: a name (`*.o`), or a path from the root of the source (`/var/cache`).
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
    /// Leave out what matches a line of this file.
    #[arg(long, value_name = "FILE")]
    exclude_from: Vec<PathBuf>,
    /// Leave out attributes whose names match: `security.selinux`, `user.*`; may be given several times.
    #[arg(long, value_name = "PATTERN", visible_alias = "xattrs-exclude")]
    xattr_exclude: Vec<String>,
    /// Leave out all extended attributes: labels, ACLs and capabilities, too.
    #[arg(long, conflicts_with = "xattr_exclude")]
    no_xattrs: bool,
    /// Do not enter other file systems below a source directory; where they are mounted stays an empty
    /// directory.
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Which times to store: only the modification time, or all times of the source (then two builds differ
    /// as soon as a program reads the source).
    #[arg(long, value_name = "WHICH", default_value = "mtime", value_parser = ["mtime", "all"])]
    times: String,
    /// Times later than SOURCE_DATE_EPOCH become SOURCE_DATE_EPOCH.
    #[arg(long)]
    clamp_mtime: bool,
    /// Architecture to take from an OCI image that has several: amd64, arm64, arm/v7, ...
    #[arg(long, value_name = "ARCH")]
    arch: Option<String>,
    /// Threads; all cores if not given.
    #[arg(short = 'j', long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Pad or cut files that change while they are read, with a warning, instead of failing.
    #[arg(long)]
    tolerate_changes: bool,
}

/// The sources of all kinds, in the order of the command line.
#[derive(Debug)]
struct SourceArgs(Vec<(usize, SourceKind, PathBuf)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourceKind {
    Dir,
    Tar,
    Oci,
}

const SOURCES: [(SourceKind, &str, &str, &str); 3] = [
    (SourceKind::Dir, "from", "DIR", "Take the content of this directory"),
    (SourceKind::Tar, "tar", "FILE", "Take a tar archive (plain, gzip, zstd, xz); - for standard input"),
    (
        SourceKind::Oci,
        "oci",
        "IMAGE[:TAG]",
        "Take all layers of a container's image: an OCI layout directory, an archive of one or of `docker save`, or a directory of skopeo's dir:",
    ),
];

impl FromArgMatches for SourceArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Vec::new();
        for (kind, id, _, _) in SOURCES {
            let values = matches.get_many::<PathBuf>(id).into_iter().flatten();
            let places = matches.indices_of(id).into_iter().flatten();
            all.extend(places.zip(values).map(|(place, value)| (place, kind, value.clone())));
        }
        all.sort_by_key(|&(place, _, _)| place);
        Ok(Self(all))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for SourceArgs {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for (_, id, value, help) in SOURCES {
            let arg = clap::Arg::new(id)
                .long(id)
                .value_name(value)
                .help(format!("{help}; may be given several times"))
                .help_heading("Sources")
                .action(clap::ArgAction::Append)
                .value_parser(clap::value_parser!(PathBuf));
            command = command.arg(arg);
        }
        command.group(clap::ArgGroup::new("source").args(SOURCES.map(|(_, id, _, _)| id)).multiple(true))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

fn parse_headroom(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if (0.0..=100_000.0).contains(&percent) => Ok(percent),
        _ => Err("it is a percentage like 20 or 20%".to_owned()),
    }
}

pub(crate) fn run(args: BuildArgs) -> ExitCode {
    if args.profile.as_deref() == Some("help") {
        let line = |profile: &Profile| format!("{:16} {}\n", profile.name, profile.describes);
        return voice::print(&Profile::all().iter().map(line).collect::<String>(), 0);
    }
    let Some(output) = args.output.clone() else {
        return exit::fail(exit::USAGE_CODE, &"build needs a name for the image: --output IMAGE");
    };
    if let Err((code, message)) = args.tree.check_sources("build") {
        return exit::fail(code, &message);
    }
    if let Some(old) = &args.like {
        return like::run(&args, old, &output);
    }
    let target = match OutputTarget::parse(&output, args.force, args.dry_run) {
        Ok(target) => target,
        Err((code, message)) => return exit::fail(code, &message),
    };
    let options = match options(&args, &target) {
        Ok(options) => options,
        Err((code, message)) => return exit::fail(code, &message),
    };
    // An image for standard output is complete before its first byte is printed.
    let beside = std::env::temp_dir();
    let spooled = match target {
        OutputTarget::Stdout => match unnamed(&beside) {
            Ok(files) => Some(files),
            Err(why) => return exit::fail(exit::TARGET, &why),
        },
        OutputTarget::File(_) | OutputTarget::Part { .. } => None,
    };
    let (spooled, copy) = spooled.unzip();
    let to = match (&target, spooled) {
        (OutputTarget::Stdout, Some(file)) => {
            extant_image::build::BuildTarget::Open { name: "standard output", file, beside: &beside }
        }
        (OutputTarget::Part { name, device }, _) => {
            extant_image::build::BuildTarget::Device { name, device: device.as_ref() }
        }
        (OutputTarget::File(path), _) => extant_image::build::BuildTarget::File(path),
        (OutputTarget::Stdout, None) => extant_image::build::BuildTarget::File(&output),
    };
    let sources = args.tree.sources();
    let observer = Bar::new(args.quiet || args.json);
    let cancel = match cancelled_by_signals() {
        Ok(cancel) => cancel,
        Err(why) => return exit::fail(exit::TARGET, &why),
    };
    let mut writes = vec![beside.clone()];
    if let OutputTarget::File(path) = &target {
        writes.push(directory_of(path));
    }
    let needs = Needs { writes, reads_everywhere: true, keeps_capabilities: true, ..Needs::default() };
    confine(&output.display().to_string(), &needs);
    let started = Instant::now();
    let result = build(&options, sources, to, &observer, &cancel);
    observer.finish();
    match result {
        Ok(mut report) => {
            advise(&args, &mut report);
            for warning in &report.warnings {
                say!("warning: {warning}");
            }
            let text = report_text(&args, &output, &report, started.elapsed());
            match copy.filter(|_| !args.dry_run) {
                None => voice::print(&text, 0),
                Some(file) => {
                    voice::say_raw(&text);
                    voice::printed(to_stdout(&file), 0)
                }
            }
        }
        Err(fault) => fail(&args, &output, &fault),
    }
}

/// A flag that the first SIGINT or SIGTERM sets; a second one ends the process at once.
pub(crate) fn cancelled_by_signals() -> Result<Arc<AtomicBool>, String> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&cancel))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&cancel)))
            .map_err(|error| format!("signals cannot be handled: {error}"))?;
    }
    Ok(cancel)
}

/// Adds warnings about what the target of the profile would refuse.
fn advise(args: &BuildArgs, report: &mut BuildReport) {
    let Some(profile) = args.profile.as_deref().and_then(Profile::by_name) else { return };
    for refusal in profile.refusals(report.superblock.features) {
        report.warnings.push(format!("{}: {refusal}", profile.name));
    }
}

/// The source that an option names.
fn source(kind: SourceKind, path: &std::path::Path) -> Source {
    match kind {
        SourceKind::Dir => Source::Dir(path.to_owned()),
        SourceKind::Tar if path.as_os_str() == "-" => Source::Tar(TarInput::Stdin),
        SourceKind::Tar => Source::Tar(TarInput::Path(path.to_owned())),
        SourceKind::Oci => {
            // If the whole name exists, it is the image. Otherwise the shortest directory or archive before a
            // colon is the image, and the rest is a tag or digest.
            let bytes = path.as_os_str().as_bytes();
            let mut colons = bytes.iter().enumerate().filter(|&(_, &b)| b == b':').map(|(at, _)| at);
            let layout_of = |at: usize| PathBuf::from(OsStr::from_bytes(&bytes[..at]));
            let found = colons.find(|&at| layout_of(at).exists()).or(bytes.iter().rposition(|&b| b == b':'));
            match found.filter(|_| !path.exists()) {
                Some(at) => Source::Oci {
                    layout: layout_of(at),
                    reference: Some(String::from_utf8_lossy(&bytes[at + 1..]).into_owned()),
                },
                None => Source::Oci { layout: path.to_owned(), reference: None },
            }
        }
    }
}

fn options(args: &BuildArgs, target: &OutputTarget) -> Result<BuildOptions, (u8, String)> {
    let usage = |message: String| (exit::USAGE_CODE, message);
    let mut format = args.format.options().map_err(usage)?;
    format.uuid = args.format.uuid().map(|choice| match choice {
        UuidChoice::Given(uuid) => uuid,
        UuidChoice::Random => random_uuid(),
    });
    // An image is filled once and then mostly read, so by default no blocks are reserved.
    format.reserved_percent = format.reserved_percent.or(Some(0.0));
    if let Some(name) = &args.profile {
        let profile = Profile::by_name(name).ok_or_else(|| {
            let names: Vec<&str> = Profile::all().iter().map(|profile| profile.name).collect();
            let remedy = match near::nearest(name, &names) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known are: {}", names.join(" ")),
            };
            usage(format!("no profile is called \"{name}\"; {remedy}"))
        })?;
        format.feature_base = Some(profile.features);
        format.block_size = format.block_size.or(profile.block_size);
        format.inode_size = format.inode_size.or(profile.inode_size);
    }
    format.grow_to_bytes = args.grow_to;
    let size = match (args.size.as_deref(), target.room()) {
        (None, Some(bytes)) if args.headroom.is_none() => SizeChoice::Bytes(bytes),
        (None | Some("auto"), _) => {
            SizeChoice::Smallest { headroom_percent: args.headroom.unwrap_or(0.0), more_bytes: 0 }
        }
        (Some(text), _) if text.starts_with('+') => SizeChoice::Smallest {
            headroom_percent: args.headroom.unwrap_or(0.0),
            more_bytes: parse_size(&text[1..]).map_err(|why| usage(format!("--size: {why}")))?,
        },
        _ if args.headroom.is_some() => {
            return Err(usage(
                "--headroom goes with --size auto or +SIZE; a given size has the room that it has".to_owned(),
            ));
        }
        (Some(text), _) => {
            SizeChoice::Bytes(parse_size(text).map_err(|why| usage(format!("--size: {why}")))?)
        }
    };
    let tree = args.tree.options()?;
    Ok(BuildOptions { format, size, replace: args.force, sync: !args.no_sync, dry_run: args.dry_run, ..tree })
}

impl TreeArgs {
    /// Refuses a command without sources.
    pub(crate) fn check_sources(&self, command: &str) -> Result<(), (u8, String)> {
        match self.sources.0.is_empty() {
            true => {
                let why = format!("{command} needs a source: --from DIR, --tar FILE or --oci LAYOUT");
                Err((exit::USAGE_CODE, why))
            }
            false => Ok(()),
        }
    }

    /// Refuses the option to tolerate files that change, where it has no effect.
    pub(crate) fn refuse_tolerance(&self) -> Result<(), (u8, String)> {
        match self.tolerate_changes {
            true => {
                let why = "--tolerate-changes is for new images: update from a snapshot or a quiet tree";
                Err((exit::USAGE_CODE, why.to_owned()))
            }
            false => Ok(()),
        }
    }

    /// The sources, in the order of the command line.
    pub(crate) fn sources(&self) -> Vec<Source> {
        self.sources.0.iter().map(|(_, kind, path)| source(*kind, path)).collect()
    }

    /// The options of reading the sources; all others have their defaults.
    pub(crate) fn options(&self) -> Result<BuildOptions, (u8, String)> {
        let usage = |message: String| (exit::USAGE_CODE, message);
        let epoch = source_date_epoch().map_err(usage)?;
        if self.clamp_mtime && epoch.is_none() {
            return Err(usage("--clamp-mtime needs SOURCE_DATE_EPOCH in the environment".to_owned()));
        }
        let (uid, gid) = rules::owners(self.owner.as_deref(), self.group.as_deref()).map_err(usage)?;
        // One id alone is a rule. Both ways, the maps do not change an id that is given.
        let (only_uid, only_gid) = if uid.is_some() && gid.is_some() { (None, None) } else { (uid, gid) };
        let mut rules = rules::for_everything(only_uid, only_gid, self.mode.clone());
        rules.extend(self.rules.rules()?);
        Ok(BuildOptions {
            time: epoch,
            clamp_mtime: epoch.filter(|_| self.clamp_mtime),
            keep_times: self.times == "all",
            owner: match (uid, gid) {
                (Some(uid), Some(gid)) => Some(Owner { uid, gid }),
                _ => None,
            },
            uid_map: IdMap::parse(&self.uid_map).map_err(|why| usage(format!("--uid-map: {why}")))?,
            gid_map: IdMap::parse(&self.gid_map).map_err(|why| usage(format!("--gid-map: {why}")))?,
            file_contexts: file_contexts(self)?,
            excludes: excludes(self)?,
            xattrs: xattrs(self)?,
            rules,
            unpacking: self.max_size.map_or(Unpacking::ByRatio, Unpacking::AtMost),
            one_file_system: self.one_file_system,
            platform: self.arch.as_deref().map_or_else(Platform::host, Platform::linux),
            threads: self
                .threads
                .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
                .max(1),
            tolerate_changes: self.tolerate_changes,
            ..BuildOptions::default()
        })
    }
}

fn read(path: &std::path::Path) -> Result<Vec<u8>, (u8, String)> {
    std::fs::read(path).map_err(|error| (exit::SOURCE, format!("cannot read {}: {error}", path.display())))
}

fn file_contexts(args: &TreeArgs) -> Result<Option<FileContexts>, (u8, String)> {
    let Some(path) = &args.file_contexts else { return Ok(None) };
    FileContexts::parse(&read(path)?)
        .map(Some)
        .map_err(|fault| (exit::USAGE_CODE, format!("{}: {fault}", path.display())))
}

fn excludes(args: &TreeArgs) -> Result<Excludes, (u8, String)> {
    let mut patterns: Vec<Vec<u8>> = args.exclude.iter().map(|p| p.clone().into_bytes()).collect();
    for path in &args.exclude_from {
        let text = read(path)?;
        patterns.extend(Excludes::lines(&text).map(<[u8]>::to_vec));
    }
    Excludes::new(&patterns).map_err(|fault| (exit::USAGE_CODE, format!("--exclude: {fault}")))
}

fn xattrs(args: &TreeArgs) -> Result<XattrChoice, (u8, String)> {
    if args.no_xattrs {
        return Ok(XattrChoice::None);
    }
    if args.xattr_exclude.is_empty() {
        return Ok(XattrChoice::Keep);
    }
    Excludes::new(&args.xattr_exclude)
        .map(XattrChoice::Without)
        .map_err(|fault| (exit::USAGE_CODE, format!("--xattr-exclude: {fault}")))
}

/// A progress bar if standard error is a terminal; hidden otherwise.
struct Bar {
    bar: ProgressBar,
    read: AtomicU64,
    files: AtomicU64,
    total_files: AtomicU64,
}

impl Bar {
    fn new(hidden: bool) -> Self {
        let bar = ProgressBar::no_length();
        if hidden || !draws_progress() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Self { bar, read: AtomicU64::new(0), files: AtomicU64::new(0), total_files: AtomicU64::new(0) }
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Bar {
    fn step(&self, name: &'static str) {
        if self.bar.is_hidden() {
            return;
        }
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        self.bar.set_message(name);
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }

    fn read(&self, entries: u64) {
        let before = self.read.fetch_add(entries, Ordering::Relaxed);
        // Not at every call: every 256 entries.
        if !self.bar.is_hidden() && before / 256 != (before + entries) / 256 {
            self.bar.set_message(format!("reading, {} entries", before + entries));
        }
    }

    fn writing(&self, total_bytes: u64, total_files: u64) {
        self.total_files.store(total_files, Ordering::Relaxed);
        if self.bar.is_hidden() {
            return;
        }
        let template = "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} ETA {eta}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.set_style(style.progress_chars("=> "));
        self.bar.set_length(total_bytes);
    }
}

impl Meter for Bar {
    fn wrote(&self, bytes: u64, files: u64) {
        let done = self.files.fetch_add(files, Ordering::Relaxed) + files;
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{done}/{} files", self.total_files.load(Ordering::Relaxed)));
            self.bar.inc(bytes);
        }
    }
}

/// The report of a build, as text or JSON.
fn report_text(args: &BuildArgs, output: &Path, report: &BuildReport, elapsed: Duration) -> String {
    let sb = &report.superblock;
    if args.json {
        let value = json!({
            "image": output.display().to_string(),
            "image_bytes": report.image_bytes,
            "written_bytes": report.written_bytes,
            "content_bytes": report.content_bytes,
            "data_bytes": report.data_bytes,
            "files": report.files,
            "directories": report.directories,
            "symlinks": report.symlinks,
            "others": report.others,
            "extra_links": report.extra_links,
            "xattr_sets": report.xattr_sets,
            "block_size": 1024u64 << sb.log_block_size,
            "blocks": sb.blocks_count,
            "free_blocks": sb.free_blocks_count,
            "inodes": sb.inodes_count,
            "free_inodes": sb.free_inodes_count,
            "features": sb.features.names(),
            "uuid": uuid_text(&sb.uuid),
            "has_journal": sb.features.has_compat(extant_ondisk::Features::HAS_JOURNAL),
            "seconds": elapsed.as_secs_f64(),
            "warnings": report.warnings,
            "dry_run": args.dry_run,
        });
        return format!("{:#}\n", tagged("build:1", value));
    }
    if args.quiet {
        return String::new();
    }
    let verb = if args.dry_run { "would be" } else { "is" };
    let name = if output == Path::new("-") { Path::new("standard output") } else { output };
    let mut text =
        format!("{} {verb} {} ({})\n", name.display(), human(report.image_bytes), report.image_bytes);
    text += &format!(
        "  {} files, {} directories, {} symlinks, {} others, {} further links\n",
        report.files, report.directories, report.symlinks, report.others, report.extra_links
    );
    text += &format!(
        "  {} of content, {} free, {} of {} inodes in use\n",
        human(report.content_bytes),
        human(sb.free_blocks_count * (1024u64 << sb.log_block_size)),
        sb.inodes_count - sb.free_inodes_count,
        sb.inodes_count
    );
    text += &format!("  UUID {}\n", uuid_text(&sb.uuid));
    if !sb.features.has_compat(extant_ondisk::Features::HAS_JOURNAL) {
        text += "  no journal (images below 2048 blocks get none; --size or --headroom makes room for one)\n";
    }
    if !args.dry_run {
        let seconds = elapsed.as_secs_f64();
        let rate = human((report.written_bytes as f64 / seconds.max(1e-9)) as u64);
        text += &format!("  {} written in {seconds:.2} s, {rate}/s\n", human(report.written_bytes));
    }
    text
}

/// The message of a fault, with the remedy.
pub(crate) fn text_of(fault: &BuildFault) -> String {
    match fault {
        BuildFault::TargetExists(path) if Path::new(path).is_dir() => {
            format!("{path} is a directory; name the file that the image is to be")
        }
        BuildFault::TargetExists(_) => format!("{fault}; use --force to replace it"),
        BuildFault::Source(SourceFault::Io { path, source, .. }) => match source.kind() {
            std::io::ErrorKind::NotADirectory if path.is_file() => {
                format!("{fault}; --tar FILE is for archives")
            }
            std::io::ErrorKind::NotFound => format!("{fault}; {}", near::absent(path)),
            _ => fault.to_string(),
        },
        BuildFault::Target { path, source } => near::not_made(Path::new(path), source),
        BuildFault::Insert { fault: InsertFault::LostFoundTaken, .. } => {
            format!("{fault}: leave it out with --exclude /lost+found")
        }
        BuildFault::Source(SourceFault::Archive { advice, .. }) if *advice == ALLOW_MORE => {
            format!("{fault} by --max-size")
        }
        BuildFault::Unseen(_) => {
            format!("{fault}; --device-table, --chown and --mknod name owners and devices, too")
        }
        BuildFault::Ids(_) => format!("{fault} (--uid-map and --gid-map)"),
        fault => fault.to_string(),
    }
}

/// The exit code of a fault.
pub(crate) fn code_of(fault: &BuildFault) -> u8 {
    match fault {
        BuildFault::TargetExists(_) => exit::EXISTS,
        BuildFault::Target { source, .. } if source.raw_os_error() == Some(28) => exit::NO_SPACE,
        BuildFault::Target { source, .. } if source.kind() == std::io::ErrorKind::ResourceBusy => exit::BUSY,
        BuildFault::Target { .. } => exit::TARGET,
        BuildFault::Source(SourceFault::Io { source, .. }) if source.raw_os_error() == Some(28) => {
            exit::NO_SPACE
        }
        BuildFault::Source(_)
        | BuildFault::Unseen(_)
        | BuildFault::Rule(_)
        | BuildFault::Insert { .. }
        | BuildFault::Ids(_)
        | BuildFault::Problems(_) => exit::SOURCE,
        BuildFault::Solve(SolveFault::TooSmall { .. }) => exit::TOO_SMALL,
        BuildFault::Solve(SolveFault::Interrupted) => exit::INTERRUPTED,
        BuildFault::Solve(SolveFault::Sizing(_) | SolveFault::Plan(PlanFault::Choice(_))) => exit::USAGE_CODE,
        BuildFault::Solve(SolveFault::Plan(_)) => exit::SOURCE,
        BuildFault::Write(WriteFault::Device(fault)) if fault.os_error() == Some(28) => exit::NO_SPACE,
        BuildFault::Write(WriteFault::Interrupted) => exit::INTERRUPTED,
        BuildFault::Write(_) => exit::TARGET,
    }
}

/// Prints the error and returns the exit code that the help documents.
fn fail(args: &BuildArgs, output: &Path, fault: &BuildFault) -> ExitCode {
    let code = code_of(fault);
    if let BuildFault::Problems(problems) = fault {
        list_problems(problems);
    }
    let message = match code {
        exit::NO_SPACE => format!("no space left for {}; nothing was left behind", output.display()),
        exit::TOO_SMALL => {
            let hint = parse_size(args.size.as_deref().unwrap_or_default()).map(unit_hint);
            let remedy = "without --size it is as small as it can be";
            format!("{}: {fault}{}; {remedy}", output.display(), hint.unwrap_or_default())
        }
        _ => text_of(fault),
    };
    if args.json {
        let mut value = json!({ "error": message, "exit_code": code });
        if let BuildFault::Problems(problems) = fault {
            let list = problems.iter().map(|p| json!({ "path": p.path, "why": p.why }));
            value["problems"] = list.collect();
        }
        // The exit code is that of the failure, even if its description cannot be printed.
        voice::print(&format!("{:#}\n", tagged("error:1", value)), code);
    }
    exit::fail(code, &message)
}

pub(crate) fn list_problems(problems: &[Problem]) {
    for problem in problems.iter().take(PROBLEMS_SHOWN) {
        say!("{}: {}", problem.path, problem.why);
    }
    if problems.len() > PROBLEMS_SHOWN {
        say!("... and {} more", problems.len() - PROBLEMS_SHOWN);
    }
    if problems.iter().any(|problem| problem.changed) {
        say!("build from a snapshot or a quiet tree, or allow it with --tolerate-changes");
    }
}
