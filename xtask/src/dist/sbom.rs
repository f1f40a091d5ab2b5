//! Lists of the components of the release files, in the format CycloneDX (JSON).
//!
//! `cargo cyclonedx` writes them beside the manifests of the workspace, so it works on a copy of the sources.
//! It names crates of the workspace by their absolute path; here they get the path in the repository.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use super::{Dist, done, put, read, twice};
use crate::workspace;

const CYCLONEDX: &str = "0.5.9";

/// The lists, one for each set of programs.
pub(super) struct Sboms {
    pub(super) command: PathBuf,
    pub(super) library: PathBuf,
    pub(super) python: PathBuf,
}

impl Dist<'_> {
    /// The directory of the program that makes the lists; installs it if it is missing.
    pub(super) fn cyclonedx(&self) -> Result<PathBuf, String> {
        let tool = self.tools.join(format!("cyclonedx-{CYCLONEDX}"));
        if !tool.join("bin/cargo-cyclonedx").exists() {
            let mut install = workspace::cargo();
            install.args(["install", "--quiet", "--locked", "--no-track", "--version", CYCLONEDX, "--root"]);
            // Not the flags of the workspace's own C code, nor those of this build.
            done(install.arg(&tool).arg("cargo-cyclonedx").env_remove("CFLAGS"))?;
        }
        Ok(tool)
    }

    pub(super) fn sboms(&self) -> Result<Sboms, String> {
        let tool = self.cyclonedx()?;
        let copy = self.work.join("sources");
        twice::copy_sources(&self.root, &copy)?;
        let mut command = Command::new(tool.join("bin/cargo-cyclonedx"));
        command.args([
            "cyclonedx",
            "-qq",
            "--format",
            "json",
            "--spec-version",
            "1.5",
            "--describe",
            "binaries",
        ]);
        command.args(["--no-build-deps", "--target", &self.target()]).current_dir(&copy);
        done(command.env("SOURCE_DATE_EPOCH", &self.time))?;
        let list = |made: &str, name: &str| -> Result<PathBuf, String> {
            let path = copy.join("crates/service").join(made);
            let mut list: Value =
                serde_json::from_slice(&read(&path)?).map_err(|why| format!("{}: {why}", path.display()))?;
            shorten(&mut list, &format!("path+file://{}/", copy.display()));
            let text = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())? + "\n";
            if text.contains("file:/") {
                return Err(format!("{}: names an absolute path", path.display()));
            }
            let file = self.out.join(format!("{name}-{}.cdx.json", self.version));
            put(&file, text.as_bytes())?;
            Ok(file)
        };
        let lists = Sboms {
            command: list("cli/extant_bin.cdx.json", "extant")?,
            library: list("capi/extant_capi_cdylib-staticlib-rlib.cdx.json", "libextant")?,
            python: list("python/_native_cdylib.cdx.json", "extant_ext4")?,
        };
        fs::remove_dir_all(&copy).map_err(|error| format!("{}: {error}", copy.display()))?;
        Ok(lists)
    }
}

/// Removes the directory of the sources from the strings of a list: `path+file:///DIR/crates/io/device#..`
/// becomes `crates/io/device#..`, and the address of a package in the registry loses the part
/// `?download_url=file://..`, which is true only in the sources.
fn shorten(value: &mut Value, directory: &str) {
    match value {
        Value::String(text) => {
            *text = text.replace(directory, "");
            if let Some((name, _)) = text.split_once("?download_url=file://") {
                *text = name.to_owned();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| shorten(value, directory)),
        Value::Object(fields) => fields.values_mut().for_each(|value| shorten(value, directory)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_directory_of_this_machine_remains() {
        let mut list = serde_json::json!({
            "bom-ref": "path+file:///a/b/crates/io/device#extant-device@0.1.0",
            "purl": "pkg:cargo/extant-device@0.1.0?download_url=file://../../io/device",
            "dependsOn": ["path+file:///a/b/crates/foundation/base#extant-base@0.1.0", "registry+x#libc@0.2"],
        });
        shorten(&mut list, "path+file:///a/b/");
        let expected = serde_json::json!({
            "bom-ref": "crates/io/device#extant-device@0.1.0",
            "purl": "pkg:cargo/extant-device@0.1.0",
            "dependsOn": ["crates/foundation/base#extant-base@0.1.0", "registry+x#libc@0.2"],
        });
        assert_eq!(list, expected);
    }
}
