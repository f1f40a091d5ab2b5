//! A Debian package: its files, its control file, and `dpkg-deb`.
//!
//! It does **not** own what is in a package.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Dist, done, output, put, read};

/// Of the control file and the changelog.
const MAINTAINER: &str = "extant maintainers <extant@localhost>";

/// A package in the making: a directory with its files.
pub(super) struct Deb<'a> {
    dist: &'a Dist<'a>,
    name: &'static str,
    pub(super) root: PathBuf,
}

/// What the control file says besides name, version and architecture.
pub(super) struct About<'t> {
    pub(super) section: &'t str,
    pub(super) depends: &'t str,
    /// Further fields, each a whole line.
    pub(super) fields: &'t [&'t str],
    pub(super) summary: &'t str,
    /// Lines of at most 79 columns.
    pub(super) description: &'t [&'t str],
}

impl<'a> Deb<'a> {
    pub(super) fn new(dist: &'a Dist<'a>, name: &'static str) -> Self {
        Self { dist, name, root: dist.work.join("packages").join(name) }
    }

    pub(super) fn put(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        put(&self.root.join(path), bytes)
    }

    /// Adds a file that may be executed.
    pub(super) fn put_program(&self, path: &str, bytes: &[u8]) -> Result<(), String> {
        self.put(path, bytes)?;
        permit(&self.root.join(path), 0o755)
    }

    pub(super) fn link(&self, path: &str, target: &str) -> Result<(), String> {
        let path = self.root.join(path);
        let made = fs::create_dir_all(path.parent().unwrap_or(&path)).and_then(|()| symlink(target, &path));
        made.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Adds a file of Debian's own, such as the script `postinst`.
    pub(super) fn put_control(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.root.join("DEBIAN").join(name);
        put(&path, text.as_bytes())?;
        permit(&path, if text.starts_with("#!") { 0o755 } else { 0o644 })
    }

    /// Adds the licences and the changelog, and makes the package.
    pub(super) fn finish(&self, about: &About<'_>) -> Result<PathBuf, String> {
        let head = "MIT or Apache-2.0, at your option.\n\n\
                    The text of Apache-2.0 is in /usr/share/common-licenses/Apache-2.0. MIT:\n\n";
        let copyright = [head.as_bytes(), &read(&self.dist.root.join("LICENSE-MIT"))?].concat();
        self.put(&format!("usr/share/doc/{}/copyright", self.name), &copyright)?;
        let documents = [
            ("NEWS", read(&self.dist.root.join("CHANGELOG.md"))?),
            ("changelog", self.changelog()?.into_bytes()),
        ];
        for (name, bytes) in documents {
            let path = format!("usr/share/doc/{}/{name}", self.name);
            self.put(&path, &bytes)?;
            gzip(&self.root.join(path))?;
        }

        let mut bytes = 0;
        normalize(&self.root, &mut bytes)?;
        let sums = "find usr -type f | LC_ALL=C sort | xargs -d '\\n' md5sum";
        let sums = output(Command::new("sh").args(["-c", sums]).current_dir(&self.root))?;
        self.put_control("md5sums", &sums)?;
        let machine = output(Command::new("dpkg").arg("--print-architecture"))?;
        let machine = machine.trim();
        self.put_control("control", &self.control(about, machine, bytes))?;
        permit(&self.root.join("DEBIAN"), 0o755)?;
        let file = self.dist.out.join(format!("{}_{}_{machine}.deb", self.name, self.dist.version));
        let mut command = Command::new("dpkg-deb");
        // With more threads than one, the bytes depend on their number. Other profiles are for tests of this
        // program, and their libraries are large.
        let effort = if self.dist.profile == "dist" { "-z6" } else { "-z0" };
        command.args(["--build", "--root-owner-group", "-Zxz", effort, "--threads-max=1"]);
        command.arg(&self.root).arg(&file);
        done(command.env("SOURCE_DATE_EPOCH", &self.dist.time).stdout(Stdio::null()))?;
        Ok(file)
    }

    /// Debian's changelog, in its own format: tools read version and time from it.
    fn changelog(&self) -> Result<String, String> {
        let mut date = Command::new("date");
        let date =
            output(date.env("LC_ALL", "C").args(["-u", "-R", "-d"]).arg(format!("@{}", self.dist.time)))?;
        Ok(format!(
            "extant ({}) unstable; urgency=medium\n\n  * What changed is in NEWS.gz.\n\n \
             -- {MAINTAINER}  {}\n",
            self.dist.version,
            date.trim()
        ))
    }

    fn control(&self, about: &About<'_>, machine: &str, bytes: u64) -> String {
        let mut text = format!("Package: {}\n", self.name);
        if self.name != "extant" {
            text.push_str("Source: extant\n");
        }
        text.push_str(&format!(
            "Version: {}\nArchitecture: {machine}\nMaintainer: {MAINTAINER}\n\
             Installed-Size: {}\nSection: {}\nPriority: optional\nDepends: {}\n",
            self.dist.version,
            bytes.div_ceil(1024),
            about.section,
            about.depends
        ));
        for field in about.fields {
            text.push_str(&format!("{field}\n"));
        }
        text.push_str(&format!("Description: {}\n", about.summary));
        for line in about.description {
            text.push_str(&format!(" {line}\n"));
        }
        text
    }
}

/// Compresses a file, without name and time.
pub(super) fn gzip(path: &Path) -> Result<(), String> {
    done(Command::new("gzip").arg("-9n").arg(path))
}

/// Gives the files below a directory the permissions of files in a package, whatever the umask is. Adds their
/// sizes, as they count for the installed size.
fn normalize(path: &Path, bytes: &mut u64) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let metadata = path.symlink_metadata().map_err(fail)?;
    if metadata.is_dir() {
        *bytes += 1024;
        permit(path, 0o755)?;
        for entry in fs::read_dir(path).map_err(fail)? {
            normalize(&entry.map_err(fail)?.path(), bytes)?;
        }
    } else if metadata.is_file() {
        *bytes += metadata.len().next_multiple_of(1024);
        let is_program = metadata.permissions().mode() & 0o100 != 0;
        permit(path, if is_program { 0o755 } else { 0o644 })?;
    }
    Ok(())
}

fn permit(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, PermissionsExt::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}
