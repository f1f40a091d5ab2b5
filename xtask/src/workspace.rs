//! The root of the workspace, and the output of `cargo metadata` about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// A package of the workspace.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) targets: Vec<Target>,
    /// The registries to which it may be published: `None` for any, an empty list for none.
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) version: String,
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// An entry of a package's dependency tables, with the package's name even if it is renamed.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// None for `[dependencies]`, otherwise "dev" or "build".
    pub(crate) kind: Option<String>,
}

/// A crate of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// The root of the workspace: the parent directory of this package.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lives in the workspace").to_owned()
}

/// Cargo's output directory: `CARGO_TARGET_DIR`, or `target` by default.
pub(crate) fn target_dir() -> PathBuf {
    let dir = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root().join(dir)
}

/// The cargo that runs this program, or the one in PATH.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The cargo that builds tests in the profile `ci`.
pub(crate) fn cargo_of_tests() -> Command {
    let mut command = cargo();
    use_compiler_of_tests(&mut command);
    command
}

/// Makes a command, and each cargo that it runs, use the compiler that does not optimise test programs.
pub(crate) fn use_compiler_of_tests(command: &mut Command) {
    command.env("RUSTC_WORKSPACE_WRAPPER", root().join("xtask/rustc.sh"));
}

/// Runs a command, which must exit with 0.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}

/// The packages of the workspace, from `cargo metadata`.
pub(crate) fn packages() -> Result<Vec<Package>, String> {
    let output = cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(metadata.packages)
}

/// Reads and parses a TOML file of the workspace.
pub(crate) fn read_toml<T: for<'de> Deserialize<'de>>(path: &str) -> Result<T, String> {
    let text = std::fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    toml::from_str(&text).map_err(|error| format!("{path}: {error}"))
}
