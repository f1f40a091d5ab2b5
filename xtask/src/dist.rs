//! `cargo xtask dist`: builds the release files, a Debian package and a static binary, and tries both in a
//! bare system.
//!
//! ```text
//!  target/artifacts/extant_VERSION_ARCH.deb           binary, man pages, completions, mount helpers, unit
//!  target/artifacts/extant-VERSION-MACHINE-static     only the binary, for any Linux on that architecture
//! ```
//!
//! The package's binary is linked dynamically to the system's C library, so that preloaded libraries work
//! (fakeroot, pseudo); the static one is not. Both are stripped. The same commit gives the same package:
//! times are those of the commit.
//!
//! Needs dpkg-deb and gzip; `--try` also needs root and debootstrap.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

const SUITE: &str = "bookworm";

/// The script that the bare system runs, once with the package installed, and once with only the static
/// binary.
const TRIED: &str = "
set -eu
cd /tmp
extant --version
mkdir -p tree/etc && echo hello >tree/etc/motd
extant build -q --force -o a.img --from tree --size 16M
[ \"$(extant cat a.img:/etc/motd)\" = hello ]
extant check a.img
extant mkfs -q --force --size 16M b.img
extant put b.img:/f </etc/os-release
extant check -q b.img
";

/// As [`TRIED`], for the package only.
const TRIED_PACKAGE: &str = "
for file in /usr/share/man/man1/extant.1.gz /usr/share/man/man1/extant-mount.1.gz \\
  /usr/share/bash-completion/completions/extant /usr/share/zsh/vendor-completions/_extant \\
  /usr/share/fish/vendor_completions.d/extant.fish; do test -s $file; done
test -s /usr/lib/systemd/system/extant-mount@.service
test -x /sbin/mount.fuse.extant && test -x /sbin/umount.fuse.extant
if [ -e /dev/fuse ]; then
  mkdir -p mnt
  mount -t fuse.extant b.img mnt
  cmp mnt/f /etc/os-release && echo new >mnt/new
  umount mnt
  [ \"$(extant cat b.img:/new)\" = new ]
fi
";

pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let (mut profile, mut bare) = ("dist", None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match (*arg, args.next()) {
            ("--profile", Some(name)) => profile = name,
            ("--try", Some(dir)) => bare = Some(PathBuf::from(dir)),
            _ => return Err(format!("dist: {arg} is not understood: [--profile NAME] [--try DIR]")),
        }
    }
    let made = Made { profile, version: version()?, out: workspace::root().join("target/artifacts") };
    fs::create_dir_all(&made.out).map_err(|error| format!("{}: {error}", made.out.display()))?;
    let (package, binary) = (made.package()?, made.static_binary()?);
    for file in [&package, &binary] {
        let bytes = fs::metadata(file).map_or(0, |metadata| metadata.len());
        println!("{}: {:.1} MiB", file.display(), bytes as f64 / f64::from(1 << 20));
    }
    bare.map_or(Ok(()), |dir| try_both(&dir, &package, &binary))
}

struct Made<'a> {
    profile: &'a str,
    version: String,
    out: PathBuf,
}

impl Made<'_> {
    /// Compiles the command. Returns the path of the binary.
    fn compile(&self, target: Option<&str>, flags: &str) -> Result<PathBuf, String> {
        let mut command = workspace::cargo();
        command.args(["build", "--locked", "-p", "extant-cli", "--profile", self.profile]);
        if let Some(target) = target {
            // With a target, the flags apply only to it, not to build scripts.
            command.args(["--target", target]).env("RUSTFLAGS", flags);
        }
        done(&mut command)?;
        let dir = if self.profile == "dev" { "debug" } else { self.profile };
        Ok(workspace::target_dir().join(target.unwrap_or_default()).join(dir).join("extant"))
    }

    /// A binary linked statically to the C library.
    fn static_binary(&self) -> Result<PathBuf, String> {
        let machine = std::env::consts::ARCH;
        let target = format!("{machine}-unknown-linux-gnu");
        let built =
            self.compile(Some(&target), "-C target-feature=+crt-static -C relocation-model=static")?;
        let file = self.out.join(format!("extant-{}-{machine}-static", self.version));
        stripped(&built, &file)?;
        Ok(file)
    }

    fn package(&self) -> Result<PathBuf, String> {
        let built = self.compile(None, "")?;
        let root = self.out.join("root");
        let _ = fs::remove_dir_all(&root);
        let put = |path: &str, bytes: &[u8]| put(&root.join(path), bytes);
        let binary = root.join("usr/bin/extant");
        put("usr/bin/extant", b"")?;
        stripped(&built, &binary)?;

        let man = root.join("usr/share/man/man1");
        fs::create_dir_all(&man).map_err(|error| error.to_string())?;
        done(Command::new(&binary).arg("man").arg(&man))?;
        let pages = fs::read_dir(&man).map_err(|error| error.to_string())?;
        for page in pages.flatten() {
            done(Command::new("gzip").arg("-9n").arg(page.path()))?;
        }
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/extant"),
            ("zsh", "usr/share/zsh/vendor-completions/_extant"),
            ("fish", "usr/share/fish/vendor_completions.d/extant.fish"),
        ] {
            put(path, output(Command::new(&binary).args(["completions", shell]))?.as_bytes())?;
        }
        fs::create_dir_all(root.join("usr/sbin")).map_err(|error| error.to_string())?;
        for name in ["mount.fuse.extant", "umount.fuse.extant"] {
            symlink("../bin/extant", root.join("usr/sbin").join(name)).map_err(|error| error.to_string())?;
        }
        let unit = "extant-mount@.service";
        let text = fs::read(workspace::root().join("packaging").join(unit)).map_err(|why| why.to_string())?;
        put(&format!("usr/lib/systemd/system/{unit}"), &text)?;
        let licence =
            |name: &str| fs::read_to_string(workspace::root().join(name)).map_err(|why| why.to_string());
        let copyright = format!(
            "MIT or Apache-2.0, as you like.\n\n{}\n\n{}",
            licence("LICENSE-MIT")?,
            licence("LICENSE-APACHE")?
        );
        put("usr/share/doc/extant/copyright", copyright.as_bytes())?;

        let sums = "find usr -type f | LC_ALL=C sort | xargs -d '\\n' md5sum";
        put("DEBIAN/md5sums", output(Command::new("sh").args(["-c", sums]).current_dir(&root))?.as_bytes())?;
        let machine = output(Command::new("dpkg").arg("--print-architecture"))?;
        let machine = machine.trim();
        put("DEBIAN/control", self.control(machine, &binary)?.as_bytes())?;
        let file = self.out.join(format!("extant_{}_{machine}.deb", self.version));
        let time =
            output(Command::new("git").current_dir(workspace::root()).args(["log", "-1", "--format=%ct"]))?;
        let mut command = Command::new("dpkg-deb");
        command.args(["--build", "--root-owner-group"]).arg(&root).arg(&file);
        done(command.env("SOURCE_DATE_EPOCH", time.trim()).stdout(Stdio::null()))?;
        fs::remove_dir_all(&root).map_err(|error| error.to_string())?;
        Ok(file)
    }

    fn control(&self, machine: &str, binary: &Path) -> Result<String, String> {
        let bytes = fs::read(binary).map_err(|error| error.to_string())?;
        let libc = newest_glibc(&bytes).ok_or("the binary names no version of the C library")?;
        Ok(format!(
            "Package: extant\nVersion: {}\nArchitecture: {machine}\nMaintainer: extant maintainers <extant@localhost>\n\
             Section: admin\nPriority: optional\nDepends: libc6 (>= {}.{}), libgcc-s1\nRecommends: fuse3\n\
             Suggests: e2fsprogs\nDescription: ext4 in user space\n \
             Builds, reads, changes, checks and mounts (by FUSE) ext2, ext3 and ext4 file\n \
             systems in files and on devices, without root and without the kernel's driver.\n",
            self.version, libc.0, libc.1
        ))
    }
}

/// The newest version among the symbols that a binary needs, from names such as GLIBC_2.34.
fn newest_glibc(bytes: &[u8]) -> Option<(u32, u32)> {
    let mark = b"GLIBC_";
    let versions =
        bytes.windows(mark.len()).enumerate().filter(|(_, window)| window == mark).filter_map(|(at, _)| {
            let rest = &bytes[at + mark.len()..];
            let len = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
            let mut parts = std::str::from_utf8(&rest[..len]).ok()?.split('.');
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        });
    versions.max()
}

fn version() -> Result<String, String> {
    let text = fs::read_to_string(workspace::root().join("Cargo.toml")).map_err(|error| error.to_string())?;
    let table: toml::Table = text.parse().map_err(|error| format!("Cargo.toml: {error}"))?;
    let version = table.get("workspace").and_then(|table| table.get("package")?.get("version")?.as_str());
    version.map(str::to_owned).ok_or_else(|| "Cargo.toml names no version".to_owned())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(fail)?;
    fs::write(path, bytes).map_err(fail)
}

/// Makes a copy without symbols, executable for all users.
fn stripped(from: &Path, to: &Path) -> Result<(), String> {
    done(Command::new("strip").arg("-o").arg(to).arg(from))?;
    fs::set_permissions(to, PermissionsExt::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", to.display()))
}

/// Runs the static binary in a bare system, which is created if it does not exist; then installs the package
/// there and runs it.
fn try_both(dir: &Path, package: &Path, binary: &Path) -> Result<(), String> {
    if !dir.join("usr/bin/dpkg").exists() {
        done(Command::new("debootstrap").args(["--variant=minbase", SUITE]).arg(dir))?;
    }
    let _ = in_bare(dir, "dpkg --purge extant >/dev/null 2>&1");
    let copied = dir.join("usr/local/bin/extant");
    fs::copy(binary, &copied).map_err(|error| format!("{}: {error}", copied.display()))?;
    in_bare(dir, TRIED)?;
    println!("{}: works in {}", binary.display(), dir.display());
    fs::remove_file(&copied).map_err(|error| error.to_string())?;
    fs::copy(package, dir.join("extant.deb")).map_err(|error| error.to_string())?;
    // A bare system has only the C library, which is the package's only dependency.
    in_bare(dir, "dpkg -i /extant.deb >/dev/null")?;
    in_bare(dir, &format!("{TRIED}{TRIED_PACKAGE}"))?;
    in_bare(
        dir,
        "dpkg --purge extant >/dev/null; ! command -v extant; ! ls /sbin/mount.fuse.extant 2>/dev/null",
    )?;
    println!("{}: installs, works and goes again in {}", package.display(), dir.display());
    Ok(())
}

/// Runs a script in its own root and mount namespace: its mounts end with it.
fn in_bare(dir: &Path, script: &str) -> Result<(), String> {
    let outside = "mount --rbind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" && \
        exec chroot \"$0\" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -s";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", outside]).arg(dir).stdin(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
    let given = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let status = child.wait().map_err(|error| error.to_string())?;
    match (given, status.success()) {
        (Ok(()), true) => Ok(()),
        _ => Err(format!("in {}: {status} of\n{script}", dir.display())),
    }
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
    fn the_newest_version_is_found_by_number() {
        assert_eq!(newest_glibc(b"\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE\0"), Some((2, 34)));
        assert_eq!(newest_glibc(b"nothing"), None);
    }

    #[test]
    fn the_workspace_has_a_version() {
        assert!(version().unwrap().split('.').count() == 3);
    }
}
