//! Programs of others that the checks run, each in a fixed version below target/tools.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace;

const MDBOOK: &str = "0.5.4";
const TYPOS: &str = "1.52.0";

/// `cargo xtask spell`
pub(crate) fn spell() -> Result<(), String> {
    let mut command = Command::new(typos()?);
    let result = workspace::succeed(command.args(["--format", "brief"]).current_dir(workspace::root()));
    result.map_err(|_| "spell: correct the words above, or add them to _typos.toml".to_owned())
}

/// The path of `mdbook`. It is compiled if it is missing, without its server for browsers.
pub(crate) fn mdbook() -> Result<PathBuf, String> {
    let root = workspace::target_dir().join(format!("tools/mdbook-{MDBOOK}"));
    let program = root.join("bin/mdbook");
    if !program.exists() {
        println!("building mdbook {MDBOOK} (some minutes, the first time) ...");
        let mut command = workspace::cargo();
        command.args(["install", "--quiet", "--locked", "mdbook", "--version", MDBOOK]);
        command.args(["--no-default-features", "--features", "search", "--root"]).arg(&root);
        // Not the directory of this workspace, whose lock another cargo may hold.
        workspace::succeed(command.env_remove("CARGO_TARGET_DIR"))?;
    }
    Ok(program)
}

/// The path of `typos`, from its Python package.
fn typos() -> Result<PathBuf, String> {
    let root = workspace::target_dir().join(format!("tools/typos-{TYPOS}"));
    let program = root.join("bin/typos");
    if !program.exists() {
        workspace::succeed(Command::new("python3").args(["-m", "venv"]).arg(&root))?;
        let mut command = Command::new(root.join("bin/pip"));
        command.args(["install", "--quiet", "--disable-pip-version-check", &format!("typos=={TYPOS}")]);
        workspace::succeed(&mut command)?;
    }
    Ok(program)
}
