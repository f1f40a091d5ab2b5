//! Commands that need the project's crates. Each is an example of one crate, and is built when it is called,
//! so that `ci`, `tidy` and `layers` start without building the crates.

use std::process::Command;

use crate::workspace;

/// `cargo xtask spec`
pub(crate) fn spec(args: &[&str]) -> Result<(), String> {
    done("spec", example("dev", "extant-check", "spec").args(args))
}

/// `cargo xtask reference`
pub(crate) fn reference() -> Result<(), String> {
    // The page is written by the test that compares it.
    let mut command = workspace::cargo_of_tests();
    command.args(["test", "--quiet", "--profile", "ci", "-p", "extant-cli", "--bin", "extant"]);
    command.arg("the_reference_is");
    done("reference", command.env("EXTANT_WRITE_REFERENCE", "1"))
}

/// `cargo xtask findings [FILE...]`
pub(crate) fn findings(files: &[&str]) -> Result<(), String> {
    done("findings", example("dev", "extant-lab-report", "findings").args(files))
}

/// `cargo xtask maketree DIR N [SEED]`
pub(crate) fn maketree(args: &[&str]) -> Result<(), String> {
    // DIR is relative to the caller's working directory.
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    done("maketree", example("release", "extant-testkit", "maketree").args(args).current_dir(here))
}

/// `cargo xtask repair [--corruptions N] [--seed S]`
pub(crate) fn repair(args: &[&str]) -> Result<(), String> {
    done("repair", example("ci", "extant-hostile", "repairs").args(args))
}

/// `cargo xtask fuzz [--seed S] [--rounds N] [--seconds N] [--threads N]`
pub(crate) fn fuzz(args: &[&str]) -> Result<(), String> {
    done("fuzz", example("ci", "extant-hostile", "soak").args(args))
}

/// `cargo xtask crash [--data [--full] | --crowded] [--seed S] [--cuts M] [--judged N] [--plants]`
pub(crate) fn crash(args: &[&str]) -> Result<(), String> {
    let (load, args): (Vec<&str>, Vec<&str>) =
        args.iter().partition(|arg| matches!(**arg, "--data" | "--crowded"));
    let name = match load.first() {
        None => "crash",
        Some(&"--data") => "crash_data",
        Some(_) => "crash_crowded",
    };
    done("crash", example("ci", "extant-crashlab", name).args(args))
}

/// `cargo xtask sweep [--world NAME] [--one-in K] [--seed S] [--threads T] [--case C] [--failing F] [--number
/// N] [--e2fsck K]`
pub(crate) fn sweep(args: &[&str]) -> Result<(), String> {
    done("sweep", example("ci", "extant-crashlab", "sweep").args(args))
}

fn example(profile: &str, package: &str, name: &str) -> Command {
    let mut command = workspace::cargo();
    let manifest = workspace::root().join("Cargo.toml");
    command.arg("run").arg("--manifest-path").arg(manifest);
    command.args(["--quiet", "--profile", profile, "-p", package, "--example", name, "--"]);
    command
}

fn done(name: &str, command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name}: failed, see above ({status})")) }
}
