//! `cargo xtask dist`: builds the release files, tries each in a bare system, and compares two builds.
//!
//! ```text
//!  extant_VERSION_ARCH.deb               command, man pages, completions, mount helpers, unit
//!  libextant0_VERSION_ARCH.deb           the shared C library
//!  libextant-dev_VERSION_ARCH.deb        header, static library, pkg-config file, example
//!  python3-extant-ext4_VERSION_ARCH.deb  the Python package, for Debian's Python
//!  extant_ext4-VERSION-TAGS.whl          the Python package, for pip
//!  extant-VERSION-MACHINE-static         only the command, for any Linux of that architecture
//!  NAME-VERSION.cdx.json                 the components of the command, the C library, the Python module
//!  SHA256SUMS                            of the files above
//! ```
//!
//! Owns: the list of these files, which are in `target/artifacts`, and their order. Does **not** own: how
//! they are compiled (`compile`), what a package contains (`packages`), the format of a package (`deb`), the
//! lists of components (`sbom`), the trial (`trial`), the comparison (`twice`).
//!
//! Invariant: the same commit gives the same bytes, in any directory, for any user, at any time, if the
//! versions of the compilers and of Debian's tools are the same.
//!
//! Needs python3-venv, dpkg-deb, gzip and strip; `--try` also needs root and debootstrap.

mod compile;
mod deb;
mod packages;
mod sbom;
mod trial;
mod twice;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let (mut profile, mut bare, mut is_twice, mut is_made) = ("dist", None, false, false);
    let (mut root, mut place) = (workspace::root(), workspace::target_dir());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let flag = match *arg {
            "--twice" => Some(&mut is_twice),
            "--made" => Some(&mut is_made),
            _ => None,
        };
        if let Some(flag) = flag {
            *flag = true;
            continue;
        }
        match (*arg, args.next()) {
            ("--profile", Some(name)) => profile = name,
            ("--try", Some(dir)) => bare = Some(PathBuf::from(dir)),
            // For the second build of `--twice`: other sources, and another directory for what is made.
            ("--of", Some(dir)) => root = PathBuf::from(dir),
            ("--into", Some(dir)) => place = PathBuf::from(dir),
            _ => {
                return Err(format!(
                    "dist: {arg} is not understood: [--profile NAME] [--made] [--twice] [--try DIR]"
                ));
            }
        }
    }
    let made = Dist {
        profile,
        version: version(&root)?,
        time: time(&root)?,
        out: place.join("artifacts"),
        work: place.join("artifacts-work"),
        build: place.join("artifacts-build"),
        tools: workspace::target_dir().join("tools"),
        root,
    };
    // Two builds must not install the same program at the same time.
    made.cyclonedx()?;
    made.maturin()?;
    // Both at the same time, so that the order of what runs in parallel differs, too.
    let second = if is_twice { Some(twice::Second::start(&made)?) } else { None };
    if !is_made {
        made.make()?;
    }
    if let Some(second) = second {
        second.compare(&made)?;
    }
    bare.map_or(Ok(()), |dir| trial::try_all(&dir, &made))
}

/// One run: what is built, and where.
struct Dist<'a> {
    profile: &'a str,
    version: String,
    /// Seconds since 1970 of the commit, as SOURCE_DATE_EPOCH.
    time: String,
    /// The sources.
    root: PathBuf,
    /// The finished files, and nothing else.
    out: PathBuf,
    /// Directories of packages and other intermediate files; removed at the end.
    work: PathBuf,
    /// Cargo's build directory; kept.
    build: PathBuf,
    /// Programs of fixed versions, installed when they are needed first.
    tools: PathBuf,
}

impl Dist<'_> {
    fn make(&self) -> Result<(), String> {
        for dir in [&self.out, &self.work] {
            let _ = fs::remove_dir_all(dir);
            fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let lists = self.sboms()?;
        let command = self.command()?;
        self.static_binary()?;
        let libraries = self.c_library()?;
        let wheel = self.wheel(&lists.python)?;
        self.command_package(&command, &lists)?;
        self.library_packages(&libraries, &lists)?;
        self.python_package(&wheel, &lists)?;
        fs::remove_dir_all(&self.work).map_err(|error| format!("{}: {error}", self.work.display()))?;
        let sums = output(Command::new("sh").args(["-c", "LC_ALL=C sha256sum *"]).current_dir(&self.out))?;
        put(&self.out.join("SHA256SUMS"), sums.as_bytes())?;
        for file in self.files()? {
            let bytes = fs::metadata(&file).map_or(0, |metadata| metadata.len());
            println!("{}: {bytes} bytes", file.display());
        }
        Ok(())
    }

    /// The finished files, in the order of their names.
    fn files(&self) -> Result<Vec<PathBuf>, String> {
        let entries = fs::read_dir(&self.out).map_err(|error| format!("{}: {error}", self.out.display()))?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        Ok(files)
    }

    /// The finished file whose name has this beginning and end.
    fn file(&self, start: &str, end: &str) -> Result<PathBuf, String> {
        let found = self.files()?.into_iter().find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(start) && name.ends_with(end)
        });
        found.ok_or_else(|| format!("{}: no file {start}*{end}", self.out.display()))
    }
}

fn version(root: &Path) -> Result<String, String> {
    let text = fs::read_to_string(root.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let table: toml::Table = text.parse().map_err(|error| format!("Cargo.toml: {error}"))?;
    let version = table.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml names no version".to_owned())
}

/// SOURCE_DATE_EPOCH, or the time of the commit.
fn time(root: &Path) -> Result<String, String> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(time);
    }
    let time = output(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]));
    let time = time.map_err(|why| format!("{why}: outside of a git checkout, set SOURCE_DATE_EPOCH"))?;
    Ok(time.trim().to_owned())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(fail)?;
    fs::write(path, bytes).map_err(fail)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_has_a_version() {
        assert!(version(&workspace::root()).unwrap().split('.').count() == 3);
    }
}
