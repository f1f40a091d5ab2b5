//! `cargo xtask crash`: power cuts by the hundred thousand.

use crate::workspace;

/// `cargo xtask crash [--data] [--seed S] [--cuts M] [--judged N] [--plants]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let (data, args): (Vec<&str>, Vec<&str>) = args.iter().partition(|arg| **arg == "--data");
    let example = if data.is_empty() { "crash" } else { "crash_data" };
    let mut command = workspace::cargo();
    command.args(["run", "--profile", "ci", "-p", "extant-crashlab", "--example", example, "--"]).args(args);
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("crash: violations, see above ({status})")) }
}
