//! `extant mkfs`: makes an empty file system.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use extant_base::BlockSize;
use extant_device::{Device, FileDevice, NewFile};
use extant_image::mkfs::{EmptyTree, Identity, MkfsFault};
use extant_image::options::{FeatureEdit, FormatOptions, Generation, JournalSize, QuotaTypes, Usage};
use extant_image::plan::{Plan, PlanFault};
use extant_image::sizing::SizingFault;
use extant_image::write::WriteFault;
use extant_ondisk::superblock::uuid_text;
use extant_ondisk::time::Timestamp;
use serde_json::json;

use crate::exit;
use crate::imagearg::target::{OutputTarget, to_stdout, unnamed};
use crate::inspect::format::count;
use crate::journal_options;
use crate::schema::tagged;
use crate::sizes::{human, parse_size, unit_hint};
use crate::usage::near;
use crate::voice::{self, say};

/// Options that say what kind of file system to make, shared by mkfs and build.
#[derive(Debug, Args)]
#[command(next_help_heading = "File system")]
pub(crate) struct FormatArgs {
    /// Generation: ext2, ext3 or ext4.
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4", value_parser = parse_generation)]
    generation: Generation,
    /// Features to add or (with ^) leave out, as mke2fs names them: `^has_journal,bigalloc`; `none` clears
    /// all.
    #[arg(short = 'O', long = "features", value_name = "LIST", value_parser = parse_features)]
    features: Vec<Edits>,
    /// Block size in bytes, 1024 to 65536.
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_block_size)]
    block_size: Option<BlockSize>,
    /// Cluster size in bytes (feature bigalloc).
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = parse_size)]
    cluster_size: Option<u64>,
    /// Blocks per group; with bigalloc, clusters per group.
    #[arg(short = 'g', long, value_name = "BLOCKS")]
    blocks_per_group: Option<u32>,
    /// Groups per flex group, a power of two.
    #[arg(short = 'G', long, value_name = "GROUPS")]
    flex_groups: Option<u32>,
    /// Bytes of device per inode.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = parse_size)]
    inode_ratio: Option<u64>,
    /// Bytes per inode, a power of two from 128.
    #[arg(short = 'I', long, value_name = "BYTES")]
    inode_size: Option<u16>,
    /// Number of inodes; 0 is by the ratio.
    #[arg(short = 'N', long, value_name = "COUNT")]
    inodes: Option<u64>,
    /// Percentage of blocks kept for the super-user.
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = parse_percent)]
    reserved_percent: Option<f64>,
    /// Label, at most 16 bytes.
    #[arg(short = 'L', long, value_name = "TEXT", value_parser = parse_label)]
    label: Option<String>,
    /// Directory of the last mount, as recorded in the superblock.
    #[arg(short = 'M', long, value_name = "DIR")]
    last_mounted: Option<String>,
    /// UUID, or `clear` for all zeros, `random`, `time`.
    #[arg(short = 'U', long, value_name = "UUID", value_parser = parse_uuid_choice)]
    uuid: Option<UuidChoice>,
    /// What the kernel does on errors.
    #[arg(short = 'e', long, value_name = "BEHAVIOUR", value_parser = ["continue", "remount-ro", "panic"])]
    errors: Option<String>,
    /// Journal options: `size=MEBIBYTES`.
    #[arg(short = 'J', long = "journal", value_name = "OPTIONS", value_parser = journal_options::parse)]
    journal: Option<u32>,
    /// Extended options as mke2fs has them: stride=, stripe_width=, resize=, num_backup_sb=,
    /// mmp_update_interval=, hash_seed=, root_owner=, quotatype=, orphan_file_size=, lazy_itable_init=,
    /// packed_meta_blocks, test_fs.
    #[arg(short = 'E', long = "extended", value_name = "OPTIONS")]
    extended: Vec<String>,
}

#[derive(Debug, Clone)]
struct Edits(Vec<FeatureEdit>);

/// The value of `-U`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UuidChoice {
    Given([u8; 16]),
    Random,
}

impl FormatArgs {
    /// The choices as options of the library.
    pub(crate) fn options(&self) -> Result<FormatOptions, String> {
        // As in mke2fs, 0 means "not given" for numbers that cannot be 0; Buildroot always passes -N 0.
        let mut options = FormatOptions {
            generation: self.generation,
            features: self.features.iter().flat_map(|edits| edits.0.iter().copied()).collect(),
            block_size: self.block_size,
            cluster_size: self.cluster_size,
            blocks_per_group: self.blocks_per_group.filter(|&blocks| blocks > 0),
            groups_per_flex: self.flex_groups,
            inode_ratio: self.inode_ratio,
            inode_size: self.inode_size.filter(|&bytes| bytes > 0),
            inodes: self.inodes.filter(|&inodes| inodes > 0),
            reserved_percent: self.reserved_percent,
            label: self.label.clone().unwrap_or_default().into_bytes(),
            last_mounted: self.last_mounted.clone().unwrap_or_default().into_bytes(),
            errors: self.errors.as_deref().map(|name| match name {
                "continue" => 1,
                "remount-ro" => 2,
                _ => 3,
            }),
            journal_size: self.journal.filter(|&mib| mib > 0).map_or(JournalSize::Auto, JournalSize::MiB),
            ..FormatOptions::default()
        };
        for list in &self.extended {
            for word in list.split(',').filter(|word| !word.is_empty()) {
                set_extended(&mut options, word)?;
            }
        }
        Ok(options)
    }

    /// The value of `-U`.
    pub(crate) fn uuid(&self) -> Option<UuidChoice> {
        self.uuid
    }
}

fn set_extended(options: &mut FormatOptions, word: &str) -> Result<(), String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let number = || value.parse::<u64>().map_err(|_| format!("-E {name} needs a number, not \"{value}\""));
    let narrow = |n: u64| u16::try_from(n).map_err(|_| format!("-E {name}={n} is above 65535"));
    match name {
        "stride" => options.stride = narrow(number()?)?,
        "stripe_width" | "stripe-width" => {
            options.stripe_width =
                u32::try_from(number()?).map_err(|_| format!("-E {name} is above 4294967295"))?;
        }
        // In blocks, or in bytes with a unit. The block size that converts bytes is not known yet.
        "resize" => match value.parse() {
            Ok(blocks) => options.resize_blocks = Some(blocks),
            Err(_) => {
                options.resize_bytes = Some(parse_size(value).map_err(|why| format!("-E resize: {why}"))?)
            }
        },
        "num_backup_sb" => options.num_backup_sb = Some(number()?.min(255) as u8),
        "mmp_update_interval" => options.mmp_interval = Some(narrow(number()?)?),
        "hash_seed" => {
            options.hash_seed = Some(parse_uuid(value).map_err(|why| format!("-E hash_seed: {why}"))?);
        }
        "packed_meta_blocks" => options.packed_metadata = value.is_empty() || number()? != 0,
        "offset" => return Err("-E offset=BYTES is said with the image: IMAGE@BYTES".to_owned()),
        "root_owner" => {
            let ids = value.split_once(':').and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?)));
            options.root_owner =
                Some(ids.ok_or_else(|| format!("-E root_owner needs UID:GID, not \"{value}\""))?);
        }
        "quotatype" => {
            let mut types = QuotaTypes { user: false, group: false, project: Some(false) };
            for kind in value.split(':') {
                match kind {
                    "usrquota" => types.user = true,
                    "grpquota" => types.group = true,
                    "prjquota" => types.project = Some(true),
                    other => return Err(format!("-E quotatype: unknown type \"{other}\"")),
                }
            }
            options.quota_types = types;
        }
        "orphan_file_size" => options.orphan_file_bytes = Some(parse_size(value)?),
        "lazy_itable_init" => options.lazy_itable_init = Some(value.is_empty() || number()? != 0),
        "test_fs" => options.test_fs = true,
        // A new image reads as zeros everywhere, so these have no effect.
        "lazy_journal_init" | "nodiscard" | "discard" | "assume_storage_prezeroed" => {}
        _ => return Err(format!("-E {name} is not known; `extant mkfs --help` lists what is")),
    }
    Ok(())
}

/// Make an empty file system, with mke2fs's options and defaults.
#[derive(Debug, Args)]
pub(crate) struct MkfsArgs {
    /// Image file, IMG#N or IMG@OFFSET for a part of one, block device, or - for standard output.
    image: PathBuf,
    /// The size as mke2fs takes it: with a unit as --size, without one in blocks of -b, or in KiB.
    #[arg(value_name = "SIZE", conflicts_with = "size")]
    blocks: Option<String>,
    /// Size of a new image: `512M`, `10G`, `16T`. An existing file or block device keeps its own if none is
    /// given.
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    size: Option<u64>,
    /// How the file system will be used: floppy, small, default, big, huge, news, largefile, largefile4.
    #[arg(short = 'T', long, value_name = "USAGE", value_parser = parse_usage)]
    usage: Option<Usage>,
    /// Replace whatever the file or device holds.
    #[arg(short = 'F', long)]
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

pub(crate) fn run(args: MkfsArgs) -> ExitCode {
    let mut options = match args.format.options() {
        Ok(options) => options,
        Err(message) => return exit::fail(exit::USAGE_CODE, &message),
    };
    options.usage = args.usage;
    let target = match OutputTarget::parse(&args.image, args.force, args.dry_run) {
        Ok(target) => target,
        Err((code, message)) => return exit::fail(code, &message),
    };
    let existing = match &target {
        OutputTarget::File(path) => std::fs::metadata(path).ok().map(|metadata| metadata.len()),
        OutputTarget::Part { .. } => target.room(),
        OutputTarget::Stdout => None,
    };
    if let OutputTarget::File(path) = &target
        && existing.is_some_and(|len| len > 0)
        && !args.force
        && !args.dry_run
        && !is_blank(path)
    {
        if path.is_dir() {
            let why = "is a directory; name the file that the image is to be";
            return exit::fail(exit::EXISTS, &format!("{} {why}", args.image.display()));
        }
        let hint = "it holds data; use --force to replace it";
        return exit::fail(exit::EXISTS, &format!("{} exists already: {hint}", args.image.display()));
    }
    let size = match args.blocks.as_deref().map(|text| parse_blocks(text, args.format.block_size)) {
        None => args.size,
        Some(Ok(bytes)) => Some(bytes),
        Some(Err(why)) => return exit::fail(exit::USAGE_CODE, &format_args!("mkfs: SIZE: {why}")),
    };
    // Whole pages, as mke2fs does it: the page cache cannot hold the rest of a device.
    let bytes = match (size, existing) {
        (Some(bytes), _) => bytes,
        (None, Some(bytes)) if bytes > 4096 => bytes & !4095,
        (None, Some(bytes)) => bytes,
        (None, None) => {
            return exit::fail(
                exit::USAGE_CODE,
                &format!("{}: a new image needs a size; like --size 64M", args.image.display()),
            );
        }
    };
    let identity = Identity {
        uuid: match args.format.uuid() {
            Some(UuidChoice::Given(uuid)) => uuid,
            _ => random_uuid(),
        },
        hash_seed: options.hash_seed.unwrap_or_else(random_uuid),
        time: match now() {
            Ok(time) => time,
            Err(message) => return exit::fail(exit::USAGE_CODE, &message),
        },
    };
    let tree = EmptyTree::new(identity.time, options.root_owner.unwrap_or((0, 0)));
    let is_fresh = match &target {
        OutputTarget::Part { device, .. } => device.is_fresh(),
        OutputTarget::File(_) | OutputTarget::Stdout => true,
    };
    let input = tree.input(&options, identity, is_fresh);
    let plan = match extant_image::mkfs::plan(&input, bytes) {
        Ok(plan) => plan,
        Err(MkfsFault::Plan(PlanFault::Full)) => {
            let hint = "fewer inodes, a smaller journal or a larger size are needed";
            return exit::fail(
                exit::USAGE_CODE,
                &format!("the metadata does not fit into {bytes} bytes: {hint}"),
            );
        }
        Err(MkfsFault::Sizing(fault @ SizingFault::TooSmall { .. })) => {
            let image = args.image.display();
            let why = format_args!("{image}: {fault}{}", unit_hint(bytes));
            return exit::fail(exit::USAGE_CODE, &why);
        }
        Err(fault) => return exit::fail(exit::USAGE_CODE, &fault),
    };
    let written = if args.dry_run {
        0
    } else {
        match make(&args, &plan, bytes, &target) {
            Ok(written) => written,
            Err((code, message)) => return exit::fail(code, &message),
        }
    };
    let text = report(&args, &options, &plan, written);
    match target {
        OutputTarget::Stdout => {
            voice::say_raw(&text);
            ExitCode::SUCCESS
        }
        OutputTarget::File(_) | OutputTarget::Part { .. } => voice::print(&text, 0),
    }
}

/// Parses a size as mke2fs does: the units of [`parse_size`], or `s` for sectors. A bare number counts
/// blocks, or KiB without a block size.
fn parse_blocks(text: &str, block_size: Option<BlockSize>) -> Result<u64, String> {
    let unit = match text.strip_suffix(['s', 'S']) {
        Some(sectors) => sectors.parse().ok().map(|sectors| (sectors, 512)),
        None => text.parse().ok().map(|blocks| (blocks, block_size.map_or(1024, |size| size.bytes()))),
    };
    match unit {
        Some((count, unit)) => {
            u64::checked_mul(count, unit).ok_or_else(|| format!("\"{text}\" is too large"))
        }
        None => parse_size(text),
    }
}

/// Whether a file has only zeros at its start; then it counts as without data.
fn is_blank(path: &Path) -> bool {
    let Ok(device) = FileDevice::open(path, false) else { return false };
    let mut start = vec![0; device.size_bytes().min(128 << 10) as usize];
    device.read_at(0, &mut start).is_ok() && start.iter().all(|&b| b == 0)
}

fn make(args: &MkfsArgs, plan: &Plan<'_>, bytes: u64, target: &OutputTarget) -> Result<u64, (u8, String)> {
    let refused = |error: std::io::Error| {
        let code = match error.kind() {
            std::io::ErrorKind::ResourceBusy => exit::BUSY,
            _ => exit::TARGET,
        };
        (code, near::not_made(&args.image, &error))
    };
    let (mut new, mut copy) = (None, None);
    let made;
    let device: &dyn Device = match target {
        OutputTarget::Part { device, .. } => {
            if device.size_bytes() < bytes {
                let why = format!("{}: there are only {} bytes", args.image.display(), device.size_bytes());
                return Err((exit::USAGE_CODE, why));
            }
            device.as_ref()
        }
        OutputTarget::File(path) => {
            let file = NewFile::create(path).map_err(refused)?;
            made = fresh(file.file(), bytes).map_err(refused)?;
            new = Some(file);
            &made
        }
        OutputTarget::Stdout => {
            let (file, second) = unnamed(&std::env::temp_dir()).map_err(|why| (exit::TARGET, why))?;
            made = fresh(&file, bytes).map_err(refused)?;
            copy = Some(second);
            &made
        }
    };
    let written =
        extant_image::mkfs::write_plan(plan, device, !args.no_sync).map_err(|fault| match fault {
            MkfsFault::Write(WriteFault::Device(fault)) if fault.os_error() == Some(28) => {
                (exit::NO_SPACE, format!("no space left for {}: {fault}", args.image.display()))
            }
            other => (exit::TARGET, other.to_string()),
        })?;
    if let Some(new) = new {
        new.publish(true, !args.no_sync).map_err(refused)?;
    }
    if let Some(copy) = copy {
        to_stdout(&copy).map_err(refused)?;
    }
    Ok(written.bytes)
}

/// Gives a new file its size, and opens it as a device.
fn fresh(file: &std::fs::File, bytes: u64) -> std::io::Result<FileDevice> {
    file.set_len(bytes)?;
    FileDevice::fresh(file.try_clone()?)
}

/// The report, as text or JSON.
fn report(args: &MkfsArgs, options: &FormatOptions, plan: &Plan<'_>, written: u64) -> String {
    let (sb, geometry) = (&plan.superblock, plan.geometry());
    if extant_image::mkfs::journal_was_dropped(options, plan) {
        say!("the file system is too small for a journal; it has none");
    }
    if args.json {
        let value = json!({
            "image": args.image.display().to_string(),
            "block_size": geometry.block_size.bytes(),
            "blocks": sb.blocks_count,
            "groups": geometry.groups,
            "inodes": sb.inodes_count,
            "free_blocks": sb.free_blocks_count,
            "free_inodes": sb.free_inodes_count,
            "reserved_blocks": sb.reserved_blocks_count,
            "features": sb.features.names(),
            "uuid": uuid_text(&sb.uuid),
            "written_bytes": written,
            "dry_run": args.dry_run,
        });
        return format!("{:#}\n", tagged("mkfs:1", value));
    }
    if args.quiet {
        return String::new();
    }
    let verb = if args.dry_run { "would have" } else { "has" };
    let written = if args.dry_run { String::new() } else { format!("  {} written\n", human(written)) };
    format!(
        "{} {verb}\n  {} blocks of {} bytes in {}\n  {} inodes, {} reserved blocks\n  features {}\n  UUID {}\n{written}",
        args.image.display(),
        sb.blocks_count,
        geometry.block_size,
        count(geometry.groups.into(), "group"),
        sb.inodes_count,
        sb.reserved_blocks_count,
        sb.features,
        uuid_text(&sb.uuid),
    )
}

/// The current time, or SOURCE_DATE_EPOCH if it is set, in seconds since 1970.
fn now() -> Result<u64, String> {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs());
    Ok(source_date_epoch()?.unwrap_or_else(clock))
}

/// The value of SOURCE_DATE_EPOCH, if it is set.
pub(crate) fn source_date_epoch() -> Result<Option<u64>, String> {
    let Some(text) = std::env::var_os("SOURCE_DATE_EPOCH").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let seconds = text.to_str().and_then(|text| text.parse().ok());
    let most = Timestamp::MAX_SECONDS as u64;
    seconds.filter(|&seconds| seconds <= most).map(Some).ok_or_else(|| {
        format!("SOURCE_DATE_EPOCH is {text:?}; it must be seconds since 1970, at most {most}")
    })
}

/// A random UUID, version 4.
pub(crate) fn random_uuid() -> [u8; 16] {
    extant::mkfs::random_uuid().unwrap_or_else(|_| {
        // A kernel without getrandom(2): unique is enough.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        extant_image::build::as_uuid((nanos ^ u128::from(std::process::id()) << 96).to_le_bytes())
    })
}

pub(crate) fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let hex: String = text.chars().filter(|&c| c != '-').collect();
    let bad = || format!("\"{text}\" is not a UUID like 01234567-89ab-cdef-0123-456789abcdef");
    if hex.len() != 32 || !hex.is_ascii() {
        return Err(bad());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(hex.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| bad())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| bad())?;
    }
    Ok(uuid)
}

fn parse_uuid_choice(text: &str) -> Result<UuidChoice, String> {
    match text {
        "clear" => Ok(UuidChoice::Given([0; 16])),
        "random" | "time" => Ok(UuidChoice::Random),
        _ => parse_uuid(text).map(UuidChoice::Given),
    }
}

fn parse_generation(text: &str) -> Result<Generation, String> {
    match text {
        "ext2" => Ok(Generation::Ext2),
        "ext3" => Ok(Generation::Ext3),
        "ext4" => Ok(Generation::Ext4),
        _ => Err("it is ext2, ext3 or ext4".to_owned()),
    }
}

fn parse_features(text: &str) -> Result<Edits, String> {
    FeatureEdit::parse_list(text).map(Edits).map_err(|word| {
        let known: Vec<&str> = extant_ondisk::features::TABLE.iter().map(|feature| feature.name).collect();
        match near::nearest(word.trim_start_matches('^'), &known) {
            Some(near) => format!("no feature is called \"{word}\"; did you mean {near}?"),
            None => format!("no feature is called \"{word}\"; known are: {}", known.join(" ")),
        }
    })
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = parse_size(text)?;
    BlockSize::from_bytes(bytes).ok_or_else(|| "it is a power of two from 1024 to 65536".to_owned())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=50.0).contains(&percent) => Ok(percent),
        _ => Err("it is a number from 0 to 50".to_owned()),
    }
}

fn parse_label(text: &str) -> Result<String, String> {
    if text.len() > 16 { Err(format!("{} bytes are more than 16", text.len())) } else { Ok(text.to_owned()) }
}

fn parse_usage(text: &str) -> Result<Usage, String> {
    Usage::by_name(text)
        .ok_or_else(|| "it is floppy, small, default, big, huge, news, largefile or largefile4".to_owned())
}
