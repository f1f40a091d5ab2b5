//! `cargo xtask package`: the packages as `cargo publish` would upload them, tried outside of the workspace.
//!
//! Cargo packages every crate that is not marked `publish = false`, each after the crates that it depends on,
//! which is the order for the registry. A warning of cargo is an error here. The files are unpacked beside a
//! project that depends on `extant` as any other project would, with the unpacked crates instead of the
//! registry's. All of this is in a temporary directory, so that neither the workspace's cargo configuration
//! nor its build output has an effect. Then the unpacked crates are compiled, which finds a file that is
//! missing in a package. The project is compiled with each set of features, which finds code that needs a
//! feature and is not marked so.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::workspace;

/// The sets of features of `extant` that are compiled. Each feature is the last of one of them.
const FEATURE_SETS: &[&str] = &[
    "",
    "build",
    "build,gzip",
    "build,xz",
    "build,zstd",
    "check",
    "mounted",
    "qcow2",
    "repair",
    "rescue",
    "rescue,qcow2",
    "resize",
    "default",
];

/// The program of the project: it uses one function of each feature.
const PROGRAM: &str = r#"//! Opens an image, and does with it what the features allow.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let image = std::env::args_os().nth(1).ok_or("usage: outside IMAGE")?;
    let fs = extant::open(&image)?;
    for entry in fs.read_dir("/")? {
        println!("{}", String::from_utf8_lossy(entry?.name()));
    }
    #[cfg(feature = "build")]
    println!("{:?}", extant::build::BuildOptions::default().format);
    #[cfg(feature = "check")]
    println!("{} findings", extant::check::check_image(&image)?.findings.len());
    #[cfg(feature = "mounted")]
    extant::optimize::optimize_mounted("/".as_ref(), &Default::default(), &|_, _| (), &Default::default())?;
    #[cfg(feature = "rescue")]
    println!("{:?}", extant::rescue::open(&image)?.notes());
    #[cfg(feature = "resize")]
    extant::resize::resize_image(&image, extant::resize::Size::Max)?;
    #[cfg(feature = "repair")]
    extant::repair::undo_image(&image, "image.undo", false)?;
    Ok(())
}
"#;

pub(crate) fn run() -> Result<(), String> {
    let mut names = Vec::new();
    let mut features = BTreeSet::new();
    let mut package = workspace::cargo();
    // Cargo's own verification would compile each package and all that it depends on, one after the other.
    package.args(["package", "--workspace", "--no-verify", "--allow-dirty", "--color=never"]);
    for one in workspace::packages()? {
        if one.name == "extant" {
            features.extend(one.features.into_keys());
        }
        if one.publish.is_some_and(|registries| registries.is_empty()) {
            package.args(["--exclude", &one.name]);
        } else {
            names.push((one.name, one.version));
        }
    }
    if let Some(missing) = features.iter().find(|name| !FEATURE_SETS.iter().any(|set| set.ends_with(*name))) {
        return Err(format!("package: no set of features ends with {missing:?}"));
    }
    for name in packaged(&mut package)? {
        println!("package: {name}");
    }

    let room = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let dir = room.path().join("outside");
    let io = |error: std::io::Error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(dir.join("project/src")).map_err(io)?;
    let mut patches = String::new();
    for (name, version) in &names {
        let file = workspace::target_dir().join(format!("package/{name}-{version}.crate"));
        workspace::succeed(Command::new("tar").arg("xzf").arg(&file).arg("-C").arg(&dir))?;
        patches.push_str(&format!("{name} = {{ path = \"{name}-{version}\" }}\n"));
    }
    let all = format!(
        "[workspace]\nresolver = \"3\"\nmembers = [\"extant*\", \"project\"]\n\n[patch.crates-io]\n{patches}"
    );
    std::fs::write(dir.join("Cargo.toml"), all).map_err(io)?;
    std::fs::copy(workspace::root().join("Cargo.lock"), dir.join("Cargo.lock")).map_err(io)?;
    std::fs::write(dir.join("project/Cargo.toml"), project(&features)).map_err(io)?;
    std::fs::write(dir.join("project/src/main.rs"), PROGRAM).map_err(io)?;

    println!("package: {} packages", names.len());
    check(&dir, &["--workspace"])?;
    for set in FEATURE_SETS {
        check(&dir, &["--package", "outside", "--no-default-features", "--features", set])?;
        println!("package: extant compiles outside with the features [{set}]");
    }
    Ok(())
}

/// The one warning that is none: the project has no address yet, which `documentation`, `homepage` and
/// `repository` would name.
const NO_ADDRESS: &str = "manifest has no documentation, homepage or repository";

/// Runs `cargo package`. Returns the packages in the order in which cargo made them.
fn packaged(command: &mut Command) -> Result<Vec<String>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let is_fault = |line: &str| line.starts_with("warning") && !line.contains(NO_ADDRESS);
    if !output.status.success() || text.lines().any(is_fault) {
        return Err(format!("{command:?}: {}, with errors or warnings:\n{text}", output.status));
    }
    let names = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("Packaging")).then(|| words.take(2).collect::<Vec<_>>().join(" "))
    });
    Ok(names.collect())
}

/// The manifest of the project: its features are those of `extant`.
fn project(features: &BTreeSet<String>) -> String {
    let mut text = String::from(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\npublish = false\n\n\
         [dependencies]\nextant = { version = \"*\", default-features = false }\n\n[features]\n",
    );
    for name in features {
        text.push_str(&format!("{name} = [\"extant/{name}\"]\n"));
    }
    text
}

fn check(dir: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = workspace::cargo();
    command.current_dir(dir).args(["check", "--quiet"]).args(args);
    command.env("CARGO_TARGET_DIR", dir.join("target")).env("RUSTFLAGS", "-D warnings");
    // `cargo xtask` puts the workspace's `[env]` into the environment.
    command.env_remove("CFLAGS");
    workspace::succeed(&mut command)
}
