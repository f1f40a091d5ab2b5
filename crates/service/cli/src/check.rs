//! `extant check`: prints the findings of `check` as text or JSON, and exits with e2fsck's codes.
//!
//! Does **not** own: any rule or verdict.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anstyle::Style;
use clap::Args;
use extant_check::{FindingPlace, Report, Rule, Severity, rules};
use extant_device::ImageUse;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::imagearg::{ArgError, ImageArg};
use crate::manners::{RED, YELLOW, draws_progress, painted};
use crate::sandbox::{Needs, confine};
use crate::schema::tagged;

/// e2fsck's code for an operational error.
pub(crate) const OPERATIONAL: u8 = 8;
/// e2fsck's code for a wrong command line.
pub(crate) const USAGE: u8 = crate::exit::CHECK_USAGE;

/// Verify a file system on all CPUs, or repair it. Without --repair nothing is written, and a dirty journal
/// is replayed in memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes, as e2fsck's:
  0   the file system is sound (there may be notes)
  1   errors were repaired
  4   errors were found, and are left
  8   the image cannot be read, has no superblock that can be used, or is mounted or open for writing
  16  the command line does not make sense

Examples:
  extant check disk.img              check and print what is wrong
  extant check disk.img#2            the second partition of a disk image
  extant check --json disk.img       the same for programs
  extant check --journal log disk    with the journal that lies on another device
  extant check --repair disk.img     print the plan of a repair, and ask before it is written
  extant check --repair -y disk.img  the same without the question; `extant undo` takes it back
  extant check --explain IN004       what a rule means, and what a repair does
  extant check --rules               all rules")]
pub(crate) struct CheckArgs {
    /// The image: FILE, FILE@OFFSET, FILE#PARTITION, or a block device.
    #[arg(required_unless_present_any = ["explain", "rules"])]
    pub(crate) image: Option<OsString>,
    /// Repair: plan all fixes in memory, then write them through an undo file.
    #[arg(long, requires = "image", conflicts_with_all = ["explain", "rules", "mounted", "journal"])]
    pub(crate) repair: bool,
    /// With --repair: only if no content becomes unreachable by it; for scripts at boot.
    #[arg(short = 'p', requires = "repair", conflicts_with_all = ["yes", "no"])]
    pub(crate) preen: bool,
    /// With --repair: do not ask.
    #[arg(short = 'y', requires = "repair", conflicts_with = "no")]
    pub(crate) yes: bool,
    /// Change nothing, which is the default; with --repair, print the plan.
    #[arg(short = 'n', long = "plan")]
    pub(crate) no: bool,
    /// Also if the file system is marked clean, which only --repair -p looks at.
    #[arg(short = 'f')]
    pub(crate) force: bool,
    /// With --repair: use the backup superblock in this block.
    #[arg(short = 'b', value_name = "BLOCK", requires = "repair")]
    pub(crate) backup: Option<u64>,
    /// With --repair: the undo file, or `none`; default: the image's name with .undo.
    #[arg(short = 'z', long, value_name = "FILE", requires = "repair")]
    pub(crate) undo: Option<std::path::PathBuf>,
    /// The device of the external journal, spelled as an image is.
    #[arg(long, value_name = "DEV", requires = "image")]
    journal: Option<OsString>,
    /// Print what a rule means, by its code.
    #[arg(long, value_name = "CODE", conflicts_with_all = ["image", "rules"])]
    explain: Option<String>,
    /// Print all rules.
    #[arg(long, conflicts_with = "image")]
    rules: bool,
    /// Check an image that is mounted or open for writing as well; what changes meanwhile may look like
    /// damage.
    #[arg(long)]
    mounted: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only the verdict.
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Print how long each pass took.
    #[arg(short, long)]
    verbose: bool,
    /// Threads; default: the number of CPUs.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZero<usize>>,
    /// Print at most this many findings of each rule (all are counted).
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) max: usize,
}

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    let (code, text) = match outcome(args) {
        Ok(done) => done,
        Err((code, why)) => return crate::exit::fail(code, &why),
    };
    let mut out = std::io::stdout().lock();
    // A closed pipe does not change the verdict.
    match crate::voice::output_code(out.write_all(text.as_bytes()).and_then(|()| out.flush())) {
        Some(_) => ExitCode::from(OPERATIONAL),
        None => ExitCode::from(code),
    }
}

fn outcome(args: &CheckArgs) -> Result<(u8, String), (u8, String)> {
    if let Some(code) = &args.explain {
        let rule = rules::by_code(code)
            .ok_or_else(|| (USAGE, format!("there is no rule {code}; `extant check --rules` lists all")))?;
        return Ok((0, if args.json { pretty(&tagged("rule:1", rule)) } else { explain(rule) }));
    }
    if args.rules {
        let all: Vec<&Rule> = rules::all().collect();
        let line = |rule: &&Rule| format!("{}  {:5}  {}\n", rule.code, severity(rule.severity), rule.says);
        return Ok((
            0,
            if args.json {
                pretty(&all.iter().map(|rule| tagged("rule:1", rule)).collect())
            } else {
                all.iter().map(line).collect()
            },
        ));
    }
    let image = args.image.as_deref().unwrap_or_default();
    let name = &*image.to_string_lossy();
    let used = ImageArg::parse(image).ok().and_then(|image| image.written_by());
    if let (Some(used), false) = (&used, args.mounted) {
        let why = "it changes while it is read, so there is no verdict; end that first, or add --mounted to \
                   check what stands there";
        return Err((OPERATIONAL, format!("{name} is {used}: {why}")));
    }
    let device = open(image)?;
    let journal = args.journal.as_deref().map(open).transpose()?;
    confine(name, &Needs { exit_code: Some(OPERATIONAL), ..Needs::default() });
    let bar = Bar::new(args);
    let options = extant_check::Options {
        threads: args.threads,
        progress: Some(&bar),
        journal: journal.as_deref(),
        ..extant_check::Options::default()
    };
    let checked = extant_check::check(&*device, &options);
    bar.finish();
    let report = checked.map_err(|why| (OPERATIONAL, format!("{name}: {why}")))?;
    let text = if args.json {
        pretty(&tagged("check:1", as_json(name, &report, used.as_ref())))
    } else {
        as_text(name, &report, args, used.as_ref())
    };
    Ok((report.exit_code(), text))
}

/// Opens a whole file system or journal.
fn open(arg: &OsStr) -> Result<Arc<dyn extant_device::Device>, (u8, String)> {
    let failed = |why: ArgError| match why {
        ArgError::Usage(why) => (USAGE, why),
        ArgError::Unreadable(why) => (OPERATIONAL, why),
    };
    let image = ImageArg::parse_whole(arg, "checked").map_err(failed)?;
    image.open_read_only().map_err(failed)
}

fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Error => "error",
        Severity::Fatal => "fatal",
    }
}

fn explain(rule: &Rule) -> String {
    format!(
        "{} ({})\n\nThe rule: {}\n\nWhen it is broken: {}\n\nThe remedy: {}\n",
        rule.code,
        severity(rule.severity),
        rule.says,
        rule.why,
        rule.repair
    )
}

/// The place of a finding, as text: "inode 12, block 99".
pub(crate) fn place(place: &FindingPlace) -> String {
    let mut parts = Vec::new();
    let mut part = |what: &str, number: Option<u64>| {
        if let Some(number) = number {
            parts.push(format!("{what} {number}"));
        }
    };
    part("group", place.group.map(|group| group.0.into()));
    part("inode", place.ino.map(|ino| ino.0.into()));
    part("logical block", place.lblk.map(|lblk| lblk.0.into()));
    part("block", place.block.map(|block| block.0));
    part("byte", place.offset.map(u64::from));
    if let Some(name) = &place.name {
        parts.push(format!("\"{}\"", name.escape_ascii()));
    }
    if parts.is_empty() { "file system".to_owned() } else { parts.join(", ") }
}

fn as_text(name: &str, report: &Report, args: &CheckArgs, used: Option<&ImageUse>) -> String {
    let mut text = String::new();
    if !args.quiet {
        let mut of_rule = 0;
        for (at, finding) in report.findings.iter().enumerate() {
            let is_first = at == 0 || report.findings[at - 1].rule != finding.rule;
            of_rule = if is_first { 1 } else { of_rule + 1 };
            if of_rule <= args.max {
                let rule = finding.rule;
                text += &format!(
                    "{} {}: {}: {}\n",
                    rule.code,
                    painted(severity(rule.severity), style(rule.severity)),
                    place(&finding.place),
                    finding.says
                );
            }
            let is_last = report.findings.get(at + 1).is_none_or(|next| next.rule != finding.rule);
            let count = report.counts.get(finding.rule.code).copied().unwrap_or_default();
            let shown = of_rule.min(args.max) as u64;
            if is_last && count > shown {
                text += &format!("{} ... and {} more\n", finding.rule.code, count - shown);
            }
        }
    }
    let stats = &report.stats;
    if args.verbose {
        for pass in &stats.passes {
            text += &format!("{:8.3} s  {}\n", pass.elapsed.as_secs_f64(), pass.pass);
        }
        text += &format!("{:8.3} s  all; {} MiB read\n", stats.elapsed.as_secs_f64(), stats.read_bytes >> 20);
    }
    let errors = of_severity(report, |found| found != Severity::Note);
    let notes = of_severity(report, |found| found == Severity::Note);
    let verdict = match (report.opened, errors) {
        (false, _) => "the superblock cannot be used".to_owned(),
        (true, 0) if used.is_some() => "nothing was found, but it changes while it is read".to_owned(),
        (true, 0) => "clean".to_owned(),
        (true, 1) => "1 error".to_owned(),
        (true, errors) => format!("{errors} errors"),
    };
    let noted = match notes {
        0 => String::new(),
        1 => ", 1 note".to_owned(),
        notes => format!(", {notes} notes"),
    };
    text += &format!("{name}: {verdict}{noted}");
    if report.opened {
        text += &format!(
            "; {}/{} inodes, {} directories, {}/{} blocks{}",
            stats.inodes,
            stats.inodes_total,
            stats.dirs,
            stats.blocks_used,
            stats.blocks,
            if stats.replayed { "; as after the journal's replay" } else { "" }
        );
    }
    text += "\n";
    if errors > 0 && !args.quiet {
        text += "`extant check --explain CODE` explains a rule; `extant check --repair` plans a repair\n";
    }
    text
}

fn style(severity: Severity) -> Style {
    if severity == Severity::Note { YELLOW } else { RED }
}

fn of_severity(report: &Report, want: impl Fn(Severity) -> bool) -> u64 {
    let found = report.counts.iter();
    found
        .filter(|(code, _)| rules::by_code(code).is_some_and(|rule| want(rule.severity)))
        .map(|(_, n)| n)
        .sum()
}

fn as_json(name: &str, report: &Report, used: Option<&ImageUse>) -> Value {
    let stats = &report.stats;
    let findings = report.findings.iter().map(|finding| {
        json!({
            "code": finding.rule.code,
            "severity": finding.rule.severity,
            "area": finding.rule.area,
            "says": finding.says,
            "rule": finding.rule.says,
            "place": place_json(&finding.place),
            "stored": finding.stored,
            "expected": finding.expected,
        })
    });
    json!({
        "image": name,
        "clean": report.opened && report.clean() && used.is_none(),
        "in_use": used.map(ImageUse::to_string),
        "exit_code": report.exit_code(),
        "findings": findings.collect::<Vec<_>>(),
        "counts": report.counts,
        "stats": {
            "inodes": stats.inodes,
            "inodes_total": stats.inodes_total,
            "directories": stats.dirs,
            "blocks": stats.blocks,
            "blocks_used": stats.blocks_used,
            "block_size": stats.block_size,
            "replayed": stats.replayed,
            "read_bytes": stats.read_bytes,
            "elapsed_ms": stats.elapsed.as_millis() as u64,
            "passes": stats.passes.iter().map(|pass| json!({
                "pass": pass.pass,
                "elapsed_ms": pass.elapsed.as_millis() as u64,
            })).collect::<Vec<_>>(),
        },
    })
}

/// The place of a finding for programs.
pub(crate) fn place_json(place: &FindingPlace) -> Value {
    json!({
        "group": place.group.map(|group| group.0),
        "inode": place.ino.map(|ino| ino.0),
        "logical_block": place.lblk.map(|lblk| lblk.0),
        "block": place.block.map(|block| block.0),
        "offset": place.offset,
        "name": place.name.as_ref().map(|name| name.escape_ascii().to_string()),
    })
}

pub(crate) fn pretty(value: &Value) -> String {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_default();
    text.push('\n');
    text
}

/// A progress bar that appears only if a check takes longer than a second. It is hidden if JSON, silence or a
/// file is wanted on standard error.
pub(crate) struct Bar {
    bar: ProgressBar,
    begun: std::time::Instant,
    visible: bool,
}

impl Bar {
    pub(crate) fn new(args: &CheckArgs) -> Self {
        let visible = !args.quiet && !args.json && draws_progress();
        Self { bar: ProgressBar::hidden(), begun: std::time::Instant::now(), visible }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl extant_check::Progress for Bar {
    fn step(&self, pass: &'static str, done: u64, total: u64) {
        if !self.visible || self.begun.elapsed() < Duration::from_secs(1) {
            return;
        }
        if self.bar.is_hidden() {
            let style = ProgressStyle::with_template("{msg:24} {wide_bar} {percent:3}%");
            self.bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            if let Ok(style) = style {
                self.bar.set_style(style);
            }
        }
        self.bar.set_message(pass);
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}
