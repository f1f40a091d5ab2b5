//! The library for WASI: `extant` without features has only dependencies that compile there.
//!
//! Owns: the comparison of the dependencies with the list in `layers.toml`, which needs no compiler for WASI;
//! the build for WASI, if rustup has its standard library. Does **not** own: what works there, which is in
//! docs/library.md.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::workspace;

const TARGET: &str = "wasm32-wasip1";
/// The library without features.
const PACKAGE: [&str; 3] = ["-p", "extant", "--no-default-features"];

/// `[wasi]` of `layers.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wasi {
    /// Third-party packages that are known to compile for WASI.
    packages: BTreeSet<String>,
}

/// Dependencies that are not in the list, and entries of the list that are no dependencies.
pub(crate) fn faults(wasi: &Wasi) -> Result<Vec<String>, String> {
    let mut command = workspace::cargo();
    command.args(["tree", "--locked", "--target", TARGET, "--edges", "normal", "--prefix", "none"]);
    let output = command.args(PACKAGE).output().map_err(|error| format!("cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(compared(wasi, &String::from_utf8_lossy(&output.stdout)))
}

fn compared(wasi: &Wasi, tree: &str) -> Vec<String> {
    // Of the form `name v1.2.3 (path) (*)`.
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    let used: BTreeSet<String> =
        names.filter(|name| !name.is_empty() && !name.starts_with("extant")).map(str::to_owned).collect();
    let new = used.difference(&wasi.packages).map(|name| {
        format!(
            "extant without features depends on {name} for {TARGET}: use it below \
             [target.'cfg(unix)'.dependencies], or add it to [wasi] after `cargo check` for this target"
        )
    });
    let gone = wasi.packages.difference(&used);
    let gone = gone.map(|name| format!("{name} is in [wasi] of layers.toml, but is no dependency there"));
    new.chain(gone).collect()
}

/// Compiles the library for WASI, if its standard library is installed.
pub(crate) fn check() -> Result<(), String> {
    let installed = std::process::Command::new("rustup").args(["target", "list", "--installed"]).output();
    if !installed.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(TARGET)) {
        println!("skipped: the standard library is not installed (rustup target add {TARGET})");
        return Ok(());
    }
    let mut command = workspace::cargo();
    workspace::succeed(command.args(["check", "--locked", "--target", TARGET]).args(PACKAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_and_missing_packages_are_faults() {
        let wasi = Wasi { packages: BTreeSet::from(["serde".to_owned(), "gone".to_owned()]) };
        let tree =
            "extant v0.1.0 (/x)\nextant-base v0.1.0 (/y)\nserde v1.0.0\nio-uring v0.7.0\nserde v1.0.0 (*)\n";
        let faults = compared(&wasi, tree);
        assert_eq!(faults.len(), 2);
        assert!(faults[0].contains("io-uring") && faults[1].contains("gone"), "{faults:?}");
    }
}
