//! Options of all commands: how much they print, and whether in color.
//!
//! Owns: `-q`, `-v`, `--color`, and their values for the whole process. Does **not** own: what is printed. A
//! command may define `quiet` or `verbose` itself, to describe what they mean for it, and gets the value,
//! too.
//!
//! Invariants (INV-CL2)
//! 1. Without a terminal on standard error, no progress is drawn.
//! 2. Without a terminal, or with NO_COLOR, no output has colors, unless `--color always` is given, or
//!    CLICOLOR_FORCE is set.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;

use crate::sizes::human;

static IS_QUIET: AtomicBool = AtomicBool::new(false);
static IS_VERBOSE: AtomicBool = AtomicBool::new(false);

pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();

#[derive(Debug, clap::Args)]
pub(crate) struct Manners {
    /// Print only results and errors: no reports of what was done, no notes, no progress.
    #[arg(short, long, global = true, display_order = 901)]
    quiet: bool,
    /// Print more: the time and memory that the command took.
    #[arg(short, long, global = true, display_order = 902)]
    verbose: bool,
    /// Colors in the output: auto is on terminals, unless NO_COLOR is set.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", display_order = 903)]
    color: ColorChoice,
}

impl Manners {
    /// Sets what holds for the process.
    pub(crate) fn apply(&self) {
        IS_QUIET.store(self.quiet, Ordering::Relaxed);
        IS_VERBOSE.store(self.verbose, Ordering::Relaxed);
        choose_color(self.color);
    }

    /// Prints what the command took, with `-v`.
    pub(crate) fn report_cost(&self, elapsed: Duration) {
        if !self.verbose || self.quiet {
            return;
        }
        let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF);
        let Ok(usage) = usage else { return };
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
        let memory = human(u64::try_from(usage.max_rss()).unwrap_or_default() << 10);
        crate::voice::say!("{:.2} s, {cpu:.2} s of CPU, {memory} of memory", elapsed.as_secs_f64());
    }
}

/// Whether only results and errors are printed.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Whether a command lists the files that it changes. `verbose`: its own option, which a line of a script has
/// as well.
pub(crate) fn lists_files(verbose: bool) -> bool {
    (verbose || IS_VERBOSE.load(Ordering::Relaxed)) && !is_quiet()
}

/// Whether progress is drawn.
pub(crate) fn draws_progress() -> bool {
    !is_quiet() && std::io::stderr().is_terminal()
}

/// The command of a command line that is not parsed yet: the first argument that is no option for all
/// commands.
pub(crate) fn command_of(args: impl Iterator<Item = OsString>) -> Option<OsString> {
    let mut args = args.skip_while(|arg| arg.as_encoded_bytes().starts_with(b"-") && arg != "--color");
    let first = args.next()?;
    if first != "--color" {
        return Some(first);
    }
    args.next()?;
    command_of(&mut args as &mut dyn Iterator<Item = OsString>)
}

/// `--color` of a command line that is not parsed yet: parsing it may print help or an error.
pub(crate) fn choose_color_early(args: impl Iterator<Item = OsString>) {
    let mut args = args.take_while(|arg| arg != "--");
    while let Some(arg) = args.next() {
        let value = match arg.to_str() {
            Some("--color") => args.next().and_then(|value| value.into_string().ok()),
            Some(arg) => arg.strip_prefix("--color=").map(str::to_owned),
            None => None,
        };
        if let Some(choice) = value.and_then(|value| value.parse().ok()) {
            choose_color(choice);
        }
    }
}

fn choose_color(choice: ColorChoice) {
    let choice = match choice {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    };
    choice.write_global();
}

/// A text for standard output, in color if standard output has colors.
pub(crate) fn painted(text: impl Display, style: Style) -> String {
    match anstream::AutoStream::choice(&std::io::stdout()) {
        anstream::ColorChoice::Never => text.to_string(),
        _ => format!("{style}{text}{style:#}"),
    }
}
