//! The `extant` command: ext4 in user space.
//!
//! Owns the command line: parsing, messages, progress, exit codes. Does **not** own any work on images (see the crates
//! `image` and below).

#![forbid(unsafe_code)]

mod build;
mod exit;
mod inspect;
mod mkfs;
mod sizes;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

const AFTER_HELP: &str = "\
Exit codes:
  0  done
  1  the target could not be written
  2  the command line does not make sense
  3  a source could not be read, is damaged, or changed while it was read
  4  inspect: printed, but the image is damaged
  5  the image is too small for the source (the size needed is printed)
  6  the target exists already
  7  no space left where the target is written
  8  not an ext4 image, or it cannot be read
  130  interrupted";

/// ext4 in user space: build and look into ext4 images without root and without mounting.
#[derive(Debug, Parser)]
#[command(name = "extant", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make an image from directories, tar files and OCI images, later ones on top.
    Build(Box<build::BuildArgs>),
    /// Make an empty file system, with mke2fs's options and defaults.
    Mkfs(Box<mkfs::MkfsArgs>),
    /// Show what is in an image: superblock, groups, inodes, directories, journal, free space.
    Inspect(Box<inspect::InspectArgs>),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory.
    Man {
        /// The directory.
        dir: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors; everything else is a usage error.
            let _ = error.print();
            return if error.use_stderr() { exit::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match cli.command {
        Command::Build(args) => build::run(*args),
        Command::Mkfs(args) => mkfs::run(*args),
        Command::Inspect(args) => match inspect::run(*args) {
            Ok(code) => code,
            Err(error) => exit::fail(error.exit_code(), &error),
        },
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "extant", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { dir } => match clap_mangen::generate_to(Cli::command(), &dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::fail(exit::TARGET, &format!("cannot write to {}: {error}", dir.display())),
        },
    }
}
