//! `extant check --repair` and `extant undo`: the plan as text or JSON, the question, the undo file's name.
//!
//! Does **not** own: any remedy, the form of the undo file (see `extant::repair`).

use std::ffi::OsString;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use extant::Device;
use extant::repair::{
    Fix, Left, Plan, Repair, RepairFault, RepairOptions, UndoFault, UndoFile, UndoState, plan_repair,
};
use extant_ondisk::{Features, Superblock, superblock};
use serde_json::{Value, json};

use crate::check::{Bar, CheckArgs, OPERATIONAL, USAGE, place, place_json, pretty};
use crate::exit;
use crate::imagearg::ImageArg;
use crate::inspect::format::{count, escape};
use crate::look::{arg_failure, lock_failure};
use crate::sandbox::{Needs, confine, directory_of};
use crate::schema::tagged;
use crate::sizes::human;
use crate::usage::near;
use crate::voice::say;

/// e2fsck's code for errors that were repaired.
const REPAIRED: u8 = 1;
/// e2fsck's code for errors that are left.
const LEFT: u8 = 4;

const UNDO_HELP: &str = "\
UNDOFILE is what `extant check --repair` wrote: the image's name with .undo, unless --undo named another \
file. The image must not have changed since; --force undoes all the same.

Exit codes: 0 done; 1 the image changed after the repair; 3 UNDOFILE cannot be used; 8 the image cannot be \
read; 10 in use.

Examples:
  extant undo disk.img disk.img.undo";

/// Take back what `check --repair` changed, byte for byte.
#[derive(Debug, clap::Args)]
#[command(after_help = UNDO_HELP)]
pub(crate) struct UndoArgs {
    /// Also if the image changed after the repair.
    #[arg(short, long)]
    force: bool,
    /// Print nothing if all goes well.
    #[arg(short, long)]
    quiet: bool,
    /// The image: IMG, IMG@OFFSET, IMG#PARTITION.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The undo file.
    #[arg(value_name = "UNDOFILE")]
    file: PathBuf,
}

pub(crate) fn undo(args: &UndoArgs) -> ExitCode {
    match undone(args) {
        Ok(text) if args.quiet || text.is_empty() => ExitCode::SUCCESS,
        Ok(text) => crate::voice::print(&text, 0),
        Err((code, why)) => exit::fail(code, &why),
    }
}

fn undone(args: &UndoArgs) -> Result<String, (u8, String)> {
    let image = ImageArg::parse_whole(&args.image, "restored").map_err(arg_failure)?;
    let name = escape(image.to_string().as_bytes());
    let mut file = UndoFile::open(&args.file).map_err(|fault| (exit::SOURCE, why_no_undo(&fault)))?;
    let device = image.open_to_restore().map_err(lock_failure)?;
    file.undo(&device, args.force).map_err(|fault| {
        let code = match fault {
            UndoFault::InUse => exit::BUSY,
            UndoFault::Device(_) | UndoFault::Lost(_) | UndoFault::Changed { .. } => exit::TARGET,
            _ => exit::SOURCE,
        };
        (code, format!("{name}: {}", with_force(&fault)))
    })?;
    Ok(format!("{name}: restored, {} differed\n", human(file.bytes())))
}

/// Why `extant undo` does not undo, and the remedy.
fn with_force(fault: &UndoFault) -> String {
    let remedy = if fault.can_be_forced() { "; --force undoes all the same" } else { "" };
    format!("{fault}{remedy}")
}

/// What undoes the part of a repair that is written, if another machine has opened the file system.
pub(crate) fn remedy_of_loss(fault: &RepairFault, image: &str, undo: Option<&Path>) -> String {
    match (fault, undo) {
        (RepairFault::Lost(_), Some(undo)) => format!(
            "; when no other machine uses the file system, `extant undo {image} {}` takes it back",
            escape_path(undo)
        ),
        _ => String::new(),
    }
}

/// Why an undo file cannot be used, and the remedy.
fn why_no_undo(fault: &UndoFault) -> String {
    match fault {
        UndoFault::File { path, source } => near::not_opened(path, source),
        UndoFault::Damaged(_) => {
            format!("{fault}; `extant check --repair` names its undo file, by default IMG.undo")
        }
        _ => fault.to_string(),
    }
}

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    match repaired(args) {
        Ok((code, text)) => {
            let mut out = io::stdout().lock();
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            // A closed pipe does not change the verdict.
            ExitCode::from(crate::voice::output_code(written).map_or(code, |_| OPERATIONAL))
        }
        Err((code, why)) => exit::fail(code, &why),
    }
}

/// As `check`, a repair has e2fsck's exit codes.
fn of_check(code: u8) -> u8 {
    if code == exit::USAGE_CODE { USAGE } else { OPERATIONAL }
}

fn repaired(args: &CheckArgs) -> Result<(u8, String), (u8, String)> {
    let arg = args.image.clone().unwrap_or_default();
    let failed = |(code, why): (u8, String)| (of_check(code), why);
    let image = ImageArg::parse_whole(&arg, "repaired").map_err(arg_failure).map_err(failed)?;
    let name = escape(image.to_string().as_bytes());
    let device = match args.no {
        true => image.open_read_only().map_err(arg_failure),
        false => image.open_locked().map_err(lock_failure),
    };
    let device = device.map_err(failed)?;
    if args.preen && !args.force && is_marked_clean(&*device) {
        return Ok((0, format!("{name}: marked clean, so nothing was looked at; -f looks all the same\n")));
    }
    let undo = undo_file(args, &image)?;
    if let Some(cut) = undo.cut.as_ref().filter(|_| !args.no) {
        let failed = |fault: UndoFault| {
            let remedy =
                if fault.can_be_forced() { "; move it away, or use `extant undo --force`" } else { "" };
            (OPERATIONAL, format!("{name}: {fault}{remedy}"))
        };
        let mut file = UndoFile::open(cut).map_err(failed)?;
        file.undo(&device, false).map_err(failed)?;
        std::fs::remove_file(cut).map_err(|why| (OPERATIONAL, format!("{}: {why}", cut.display())))?;
        say!("{name}: an earlier repair was cut; its changes were undone first by {}", cut.display());
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as u32);
    let writes = undo.file.iter().filter(|_| !args.no).map(|file| directory_of(file)).collect::<Vec<_>>();
    // The undo file may be in a directory of another user.
    let keeps_capabilities = !writes.is_empty();
    confine(&name, &Needs { writes, keeps_capabilities, exit_code: Some(OPERATIONAL), ..Needs::default() });
    let bar = Arc::new(Bar::new(args));
    let options = RepairOptions {
        threads: args.threads,
        backup: args.backup,
        now,
        progress: Some(Arc::<Bar>::clone(&bar)),
        ..RepairOptions::default()
    };
    let repair = plan_repair(Arc::clone(&device), &options);
    bar.finish();
    let repair = repair.map_err(|fault| (OPERATIONAL, format!("{name}: {fault}")))?;
    let plan = repair.plan();
    let has_loss = plan.losses().next().is_some();
    let writes = !plan.is_empty()
        && !args.no
        && match (args.preen, args.yes) {
            (true, _) => !has_loss && plan.left.is_empty(),
            (_, true) => true,
            _ => ask(args, &name, &repair)?,
        };
    let mut kept = None;
    if writes {
        repair.write(&*device, undo.file.as_deref()).map_err(|fault| {
            let remedy = remedy_of_loss(&fault, &name, undo.file.as_deref());
            (OPERATIONAL, format!("{name}: {fault}{remedy}"))
        })?;
        kept = undo.file;
    }
    let code = match (plan.is_empty(), writes, plan.left.is_empty()) {
        (true, _, true) => 0,
        (false, true, true) => REPAIRED,
        _ => LEFT,
    };
    let text = match args.json {
        true => pretty(&tagged("check-repair:1", as_json(&name, plan, writes, kept.as_deref(), code))),
        false => as_text(args, &name, &repair, writes, kept.as_deref()),
    };
    Ok((code, text))
}

fn is_marked_clean(device: &dyn Device) -> bool {
    let mut bytes = [0; superblock::SIZE];
    device.read_at(superblock::OFFSET, &mut bytes).is_ok()
        && Superblock::decode(&bytes).is_ok_and(|sb| {
            sb.verify()
                && sb.state & (superblock::STATE_CLEAN | superblock::STATE_ERRORS) == superblock::STATE_CLEAN
                && !sb.features.has_incompat(Features::RECOVER)
        })
}

/// There is no default name left.
pub(crate) const TOO_MANY: &str = "there are too many undo files: name one by --undo";

/// The undo file of this repair, and that of an earlier repair that was cut.
struct UndoNames {
    file: Option<PathBuf>,
    cut: Option<PathBuf>,
}

fn undo_file(args: &CheckArgs, image: &ImageArg) -> Result<UndoNames, (u8, String)> {
    match &args.undo {
        Some(path) if path.as_os_str() == "none" => Ok(UndoNames { file: None, cut: None }),
        Some(path) if !path.exists() => Ok(UndoNames { file: Some(path.clone()), cut: None }),
        Some(path) if is_cut(path) => Ok(UndoNames { file: Some(path.clone()), cut: Some(path.clone()) }),
        Some(path) if args.no => Ok(UndoNames { file: Some(path.clone()), cut: None }),
        Some(path) => {
            let why = "it exists, and may be needed to undo an earlier repair: choose another name";
            Err((OPERATIONAL, format!("{}: {why}", path.display())))
        }
        None => {
            let path = default_undo(image).ok_or((OPERATIONAL, TOO_MANY.to_owned()))?;
            let cut = is_cut(&path).then(|| path.clone());
            Ok(UndoNames { file: Some(path), cut })
        }
    }
}

/// A default name for an undo file that is free, or that of an earlier change that was cut.
pub(crate) fn default_undo(image: &ImageArg) -> Option<PathBuf> {
    let mut names = (1..1000).map(|number| match number {
        1 => image.undo_name(".undo"),
        _ => image.undo_name(&format!(".undo{number}")),
    });
    names.find(|path| !path.exists() || is_cut(path))
}

/// Whether an undo file is that of a change that was cut.
pub(crate) fn is_cut(path: &Path) -> bool {
    UndoFile::open(path).is_ok_and(|undo| undo.state() == UndoState::Begun)
}

/// Prints the plan on standard error, and asks whether it is to be written.
fn ask(args: &CheckArgs, name: &str, repair: &Repair) -> Result<bool, (u8, String)> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() || args.json {
        return Ok(false);
    }
    let mut out = io::stderr().lock();
    let asked = out
        .write_all(plan_text(args, repair.plan()).as_bytes())
        .and_then(|()| write!(out, "{name}: {}. Write? [y/N] ", summary(repair.plan())))
        .and_then(|()| out.flush());
    asked.map_err(|why| (OPERATIONAL, why.to_string()))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(|why| (OPERATIONAL, why.to_string()))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// "4 fixes, 1 of them with a loss".
fn summary(plan: &Plan) -> String {
    let fixes = plan.total();
    let mut text = if fixes == 1 { "1 fix".to_owned() } else { format!("{fixes} fixes") };
    match plan.losses().count() {
        0 => {}
        losses => text += &format!(", {losses} with a loss"),
    }
    text
}

fn plan_text(args: &CheckArgs, plan: &Plan) -> String {
    let mut text = String::new();
    let mut shown: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
    for fix in &plan.fixes {
        let number = shown.entry(fix.rule.code).or_default();
        if *number >= args.max as u64 && fix.loss.is_none() {
            continue;
        }
        *number += 1;
        text += &format!("{} {}: {}\n      {}\n", fix.rule.code, place(&fix.place), fix.finding, fix.remedy);
        if let Some(loss) = &fix.loss {
            text += &format!("      Lost: {loss}\n");
        }
    }
    for (code, count) in &plan.counts {
        let more = count - shown.get(code).copied().unwrap_or_default().min(*count);
        if more > 0 {
            text += &format!("{code} ... and {more} more\n");
        }
    }
    for left in &plan.left {
        let finding = &left.finding;
        text += &format!(
            "{} {}: {}\n      Stays: {}\n",
            finding.rule.code,
            place(&finding.place),
            finding.says,
            left.why
        );
    }
    text
}

fn as_text(args: &CheckArgs, name: &str, repair: &Repair, written: bool, undo: Option<&Path>) -> String {
    let plan = repair.plan();
    let mut text = if args.quiet { String::new() } else { plan_text(args, plan) };
    let left = match plan.left.len() {
        0 => String::new(),
        left => format!("; {} left", count(left as u64, "error")),
    };
    let changed = human(plan.changed_bytes);
    let outcome = match (plan.is_empty(), written) {
        (true, _) => "nothing to repair".to_owned(),
        (false, true) => format!("repaired: {}, {changed} written", summary(plan)),
        (false, false) => format!("not repaired: the plan has {}, {changed} to write", summary(plan)),
    };
    text += &format!("{name}: {outcome}{left}\n");
    match undo {
        Some(undo) if written && !args.quiet => {
            text += &format!("{name}: `extant undo {name} {}` takes it back\n", escape_path(undo));
        }
        _ => {}
    }
    if !plan.is_empty() && !written && !args.no && !args.quiet {
        let what = if args.preen { "it makes content unreachable, so -p does not write it; " } else { "" };
        text += &format!("{name}: {what}`extant check --repair -y` writes it\n");
    }
    text
}

fn escape_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    escape(path.as_os_str().as_bytes())
}

fn as_json(name: &str, plan: &Plan, written: bool, undo: Option<&Path>, code: u8) -> Value {
    let fix = |fix: &Fix| {
        json!({
            "code": fix.rule.code,
            "place": place_json(&fix.place),
            "finding": fix.finding,
            "remedy": fix.remedy,
            "loss": fix.loss,
        })
    };
    let left = |left: &Left| {
        json!({
            "code": left.finding.rule.code,
            "place": place_json(&left.finding.place),
            "finding": left.finding.says,
            "why": left.why,
        })
    };
    json!({
        "image": name,
        "written": written,
        "exit_code": code,
        "undo": undo.map(escape_path),
        "fixes": plan.fixes.iter().map(fix).collect::<Vec<_>>(),
        "counts": plan.counts,
        "left": plan.left.iter().map(left).collect::<Vec<_>>(),
        "changed_bytes": plan.changed_bytes,
    })
}
