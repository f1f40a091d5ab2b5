//! The `extant` command: ext4 in user space.
//!
//! Owns the command line: parsing, messages, progress, exit codes. Does **not** own any work on images (see
//! the crates `image` and below).

#![deny(unsafe_code)]
// These macros panic if standard output or standard error is closed; see `voice`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod allocator;
mod build;
mod cat;
mod check;
mod cp;
mod df;
mod diff;
mod doctor;
mod dump;
mod edit;
mod exit;
mod export;
mod imagearg;
mod inspect;
mod journal_options;
mod lab;
mod look;
mod ls;
mod manners;
mod mkfs;
mod mount;
mod optimize;
#[cfg(test)]
mod reference;
mod repair;
mod rescue;
mod resize;
mod sandbox;
mod schema;
mod sizes;
mod stat;
mod status;
mod times;
mod tree;
mod trim;
mod tune;
mod update;
mod usage;
mod voice;
mod waiting;

use std::process::ExitCode;
use std::time::Instant;

use clap::{CommandFactory, Parser, Subcommand};

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  the target could not be written or changed, or not be mounted (diff: the sides differ)
  2  the command line does not make sense
  3  a source could not be read, is damaged, or changed while it was read
  4  done, but a part of the image is damaged or encrypted, and is missing in the result
  5  the image is too small for the source (the size needed is printed)
  6  the target exists already
  7  no space left where the target is written
  8  not an ext4 image, or it cannot be read (check: 0, 4, 8, 16 as e2fsck)
  9  a path that was asked for is not in the image, or not of the kind that the command needs
  10  the image is in use: another program writes to it, or it is mounted
  70  an internal error, which is a defect of extant (check: 8)
  71  the sandbox refused a system call (docs/security.md); images are as after a power cut
  130  interrupted
A reader of the output that goes away (`extant ... | head`) changes none of these.";

const COMPLETIONS_HELP: &str = "\
Where shells look for it (mkdir -p the directory first):
  extant completions bash > ~/.local/share/bash-completion/completions/extant
  extant completions fish > ~/.config/fish/completions/extant.fish
  extant completions zsh  > ~/.zfunc/_extant      with `fpath+=~/.zfunc` before compinit in ~/.zshrc

For this shell alone: source <(extant completions bash)";

const MAN_HELP: &str = "\
Example:
  extant man ~/.local/share/man/man1 && man extant-build";

/// ext4 in user space: build, read, edit, mount and check ext4 images, without root and without a kernel
/// driver.
#[derive(Debug, Parser)]
#[command(name = "extant", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[arg(long, global = true, display_order = 900, help = sandbox::HELP)]
    no_sandbox: bool,
    #[command(flatten)]
    manners: manners::Manners,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an image from directories, tar files and OCI images, later ones on top.
    Build(Box<build::BuildArgs>),
    Update(Box<update::UpdateArgs>),
    /// Make an empty file system, with mke2fs's options and defaults.
    Mkfs(Box<mkfs::MkfsArgs>),
    /// Show what is in an image: superblock, groups, inodes, directories, journal, free space.
    Inspect(Box<inspect::InspectArgs>),
    /// List directories and files, also by patterns: 'IMG:/usr/**/*.so'.
    Ls(Box<ls::LsArgs>),
    /// Show a directory and everything below it as a tree.
    Tree(tree::TreeArgs),
    /// Show everything about files: type, mode, owner, times, flags, attributes, extents.
    Stat(stat::StatArgs),
    /// Print the content of files.
    Cat(cat::CatArgs),
    /// Copy files and directories out of an image, or into one.
    Cp(cp::CpArgs),
    #[command(flatten)]
    Change(edit::args::Change),
    Edit(edit::EditArgs),
    /// Write a tree of an image into a tar archive or a directory, metadata whole.
    Export(export::ExportArgs),
    /// Compare images, directories and archives, and make a layer of the differences.
    Diff(diff::DiffArgs),
    /// Show how full file systems are.
    Df(df::DfArgs),
    /// Verify a file system on all cores, or repair it.
    Check(Box<check::CheckArgs>),
    Undo(repair::UndoArgs),
    Rescue(rescue::RescueArgs),
    Dump(dump::DumpArgs),
    Restore(dump::RestoreArgs),
    Trim(trim::TrimArgs),
    Tune(Box<tune::TuneArgs>),
    Optimize(optimize::OptimizeArgs),
    Resize(resize::ResizeArgs),
    /// Mount an image through FUSE; no root is needed. Read-only, or with -o rw.
    Mount(Box<mount::MountArgs>),
    /// Unmount what `extant mount` mounted.
    Umount(mount::UmountArgs),
    Status(status::StatusArgs),
    InstallHelpers(mount::helpers::InstallArgs),
    Doctor(doctor::DoctorArgs),
    /// Measure the engine: the extent cache, reads and writes, orphans, names, large directories, fsync.
    Lab(lab::LabArgs),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory.
    #[command(after_help = MAN_HELP)]
    Man {
        /// The directory, which is made if it is missing.
        dir: std::path::PathBuf,
    },
}

fn completions(shell: clap_complete::Shell) -> ExitCode {
    // Into memory first: the generators panic on a write error.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "extant", &mut script);
    voice::print(&String::from_utf8_lossy(&script), 0)
}

fn main() -> ExitCode {
    // `check` exits with e2fsck's codes, also for a wrong command line.
    let is_check = manners::command_of(std::env::args_os().skip(1)).is_some_and(|command| command == "check");
    exit::guarded(if is_check { check::OPERATIONAL } else { exit::INTERNAL }, || run(is_check))
}

fn run(is_check: bool) -> ExitCode {
    if let Some(code) = mount::unmounter::run_if_called_so().or_else(mount::helpers::run_if_called_so) {
        return code;
    }
    let begun = Instant::now();
    manners::choose_color_early(std::env::args_os().skip(1));
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are output, not errors; everything else is a usage error.
            if !error.use_stderr() {
                return voice::printed(error.print(), 0);
            }
            usage::say_error(&error);
            return ExitCode::from(if is_check { check::USAGE } else { exit::USAGE_CODE });
        }
    };
    if cli.no_sandbox {
        sandbox::switch_off();
    }
    cli.manners.apply();
    let code = run_command(cli.command);
    cli.manners.report_cost(begun.elapsed());
    code
}

fn run_command(command: Command) -> ExitCode {
    match command {
        Command::Build(args) => build::run(*args),
        Command::Update(args) => update::run(&args),
        Command::Mkfs(args) => mkfs::run(*args),
        Command::Inspect(args) => match inspect::run(*args) {
            Ok(code) => code,
            Err(error) => exit::fail(error.exit_code(), &error),
        },
        Command::Ls(args) => ls::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Change(change) => edit::run_one(&change),
        Command::Edit(args) => edit::run_script(&args),
        Command::Export(args) => export::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Df(args) => df::run(&args),
        Command::Check(args) if args.repair => repair::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Undo(args) => repair::undo(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Restore(args) => dump::run_restore(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Optimize(args) => optimize::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Resize(args) => resize::run(&args),
        Command::Mount(args) => mount::mount(&args),
        Command::Umount(args) => mount::umount(&args),
        Command::Status(args) => status::run(&args),
        Command::InstallHelpers(args) => mount::helpers::install(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { dir } => {
            let written = std::fs::create_dir_all(&dir);
            match written.and_then(|()| clap_mangen::generate_to(Cli::command(), &dir)) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    let remedy = "name a directory, or one that can be made";
                    exit::fail(exit::TARGET, &format!("cannot write to {}: {error}; {remedy}", dir.display()))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that a command and all of its commands have the options of all commands.
    fn assert_has_manners(command: &clap::Command, path: &str) {
        let path = format!("{path} {}", command.get_name());
        for (id, short) in [("quiet", Some('q')), ("verbose", Some('v')), ("color", None)] {
            let arg = command.get_arguments().find(|arg| arg.get_id() == id);
            let arg = arg.unwrap_or_else(|| panic!("{path} has no --{id}"));
            assert_eq!((arg.get_long(), arg.get_short()), (Some(id), short), "{path}");
        }
        for nested in command.get_subcommands().filter(|nested| nested.get_name() != "help") {
            assert_has_manners(nested, &path);
        }
    }

    #[test]
    fn every_command_has_the_options_of_all() {
        let mut command = Cli::command();
        command.build();
        assert_has_manners(&command, "");
    }
}
