//! `cargo xtask fuzz`: a long soak of the readers and the checker over damaged images.

use crate::workspace;

/// `cargo xtask fuzz [--seed S] [--seconds N] [--threads N]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let mut command = workspace::cargo();
    command.args(["run", "--profile", "ci", "-p", "extant-hostile", "--example", "soak", "--"]).args(args);
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("fuzz: failures, see above ({status})")) }
}
