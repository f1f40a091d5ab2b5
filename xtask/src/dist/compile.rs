//! The programs and libraries of the release files, as cargo and maturin build them.
//!
//! The same sources give the same bytes in every directory: the compilers write no path of this machine into
//! their output, and have the time of the commit. All builds share one build directory, which no other
//! command uses, because their flags differ from those of other builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Dist, done, output};

/// The largest size of the static binary in the profile `dist`.
const STATIC_BYTES_MAX: u64 = 12_000_000;

const MATURIN: &str = "1.16.0";

impl Dist<'_> {
    /// The command `extant`, linked dynamically to the C library, so that preloaded libraries work (fakeroot,
    /// pseudo).
    pub(super) fn command(&self) -> Result<PathBuf, String> {
        self.rustc("extant-cli", self.profile, &["--bin", "extant"], &[])?;
        let file = self.work.join("extant");
        stripped(&self.built(self.profile, "extant"), &file, "--strip-all")?;
        Ok(file)
    }

    /// The command `extant`, linked statically, for any Linux of its architecture. With the profile `dist`, it
    /// has a profile of its own, for its size.
    pub(super) fn static_binary(&self) -> Result<PathBuf, String> {
        let flags = ["-C", "target-feature=+crt-static", "-C", "relocation-model=static"];
        let profile = if self.profile == "dist" { "dist-static" } else { self.profile };
        self.rustc("extant-cli", profile, &["--bin", "extant"], &flags)?;
        let file = self.out.join(format!("extant-{}-{}-static", self.version, self.machine()));
        stripped(&self.built(profile, "extant"), &file, "--strip-all")?;
        let bytes = fs::metadata(&file).map_or(u64::MAX, |metadata| metadata.len());
        println!("the static binary has {bytes} bytes, the limit is {STATIC_BYTES_MAX}");
        if self.profile == "dist" && bytes > STATIC_BYTES_MAX {
            return Err(format!(
                "{}: {bytes} bytes, more than {STATIC_BYTES_MAX}; see `cargo tree -p extant-cli`",
                file.display()
            ));
        }
        Ok(file)
    }

    /// The C library: shared and static.
    pub(super) fn c_library(&self) -> Result<[PathBuf; 2], String> {
        // Without the crate type of the tests, which rules out optimization across crates.
        self.rustc("extant-capi", self.profile, &["--lib", "--crate-type", "cdylib,staticlib"], &[])?;
        let files = [self.work.join("libextant.so"), self.work.join("libextant.a")];
        stripped(&self.built(self.profile, "libextant_capi.so"), &files[0], "--strip-unneeded")?;
        stripped(&self.built(self.profile, "libextant_capi.a"), &files[1], "--strip-debug")?;
        Ok(files)
    }

    /// The directory of maturin; installs it if it is missing.
    pub(super) fn maturin(&self) -> Result<PathBuf, String> {
        let maturin = self.tools.join(format!("maturin-{MATURIN}"));
        if !maturin.join("bin/maturin").exists() {
            done(Command::new("python3").args(["-m", "venv"]).arg(&maturin))?;
            let mut pip = Command::new(maturin.join("bin/pip"));
            pip.args(["install", "--quiet", "--disable-pip-version-check", &format!("maturin=={MATURIN}")]);
            done(&mut pip)?;
        }
        Ok(maturin)
    }

    /// The wheel of the Python package, with the oldest manylinux tag that its module permits.
    pub(super) fn wheel(&self, components: &Path) -> Result<PathBuf, String> {
        let maturin = self.maturin()?;
        let dir = self.work.join("wheel");
        let mut command = Command::new(maturin.join("bin/maturin"));
        command.args(["build", "--quiet", "--locked", "--profile", self.profile, "--target", &self.target()]);
        command.args(["--auditwheel", "check", "--interpreter"]).arg(maturin.join("bin/python"));
        command.arg("--manifest-path").arg(self.root.join("crates/service/python/Cargo.toml"));
        self.prepare(command.arg("--out").arg(&dir).arg("--sbom-include").arg(components));
        done(&mut command)?;
        let files = fs::read_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        let wheel = files.flatten().map(|entry| entry.path()).next().ok_or("maturin made no wheel")?;
        let file = self.out.join(wheel.file_name().unwrap_or_default());
        fs::copy(&wheel, &file).map_err(|error| format!("{}: {error}", file.display()))?;
        // The tag of a wheel that depends on more than the C library of a known age.
        match file.to_string_lossy().contains("-manylinux_") {
            true => Ok(file),
            false => Err(format!("{}: the wheel has no manylinux tag", file.display())),
        }
    }

    fn rustc(&self, package: &str, profile: &str, what: &[&str], flags: &[&str]) -> Result<(), String> {
        let mut command = crate::workspace::cargo();
        command.args(["rustc", "--locked", "--profile", profile, "--target", &self.target()]);
        command.args(["-p", package]).args(what).arg("--").args(flags);
        self.prepare(&mut command);
        done(&mut command)
    }

    /// Sets the directories of a build, and keeps their names out of its output.
    fn prepare(&self, command: &mut Command) {
        let home = cargo_home();
        let mut names =
            vec![(self.root.clone(), "."), (self.build.clone(), "target"), (home.clone(), "cargo")];
        let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
        names.extend(registries.map(|entry| (entry.path(), "crates")));
        // Some programs resolve symbolic links.
        let real = names.iter().filter_map(|(path, name)| Some((path.canonicalize().ok()?, *name)));
        names.extend(real.collect::<Vec<_>>());
        // The last flag that fits a path is the one that counts, in gcc as in rustc.
        names.sort_by_key(|(path, _)| path.as_os_str().len());
        names.dedup();
        let flags = |flag: &str, between: &str| {
            let flags = names.iter().map(|(path, name)| format!("{flag}{}={name}", path.display()));
            flags.collect::<Vec<_>>().join(between)
        };
        // With a target, the flags of rustc do not apply to build scripts. `[env]` of the configuration is in
        // CFLAGS already: it applies to programs that cargo runs.
        let c_flags = std::env::var("CFLAGS").unwrap_or_default();
        command.env("CARGO_ENCODED_RUSTFLAGS", flags("--remap-path-prefix=", "\u{1f}"));
        command.env("CFLAGS", format!("{c_flags} {}", flags("-ffile-prefix-map=", " ")));
        command.env("CARGO_TARGET_DIR", &self.build).env("SOURCE_DATE_EPOCH", &self.time);
        command.env("CARGO_INCREMENTAL", "0").current_dir(&self.root);
    }

    fn built(&self, profile: &str, name: &str) -> PathBuf {
        let dir = if profile == "dev" { "debug" } else { profile };
        self.build.join(self.target()).join(dir).join(name)
    }

    pub(super) fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.machine())
    }

    /// The architecture, as Rust and the kernel name it.
    pub(super) fn machine(&self) -> &'static str {
        std::env::consts::ARCH
    }
}

/// Cargo's directory of registries.
pub(super) fn cargo_home() -> PathBuf {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"))
}

/// Makes a copy without the symbols that `option` names.
fn stripped(from: &Path, to: &Path, option: &str) -> Result<(), String> {
    done(Command::new("strip").args(["--enable-deterministic-archives", option, "-o"]).arg(to).arg(from))
}

/// The newest version of the C library among the symbols that a program needs.
pub(super) fn glibc_version(file: &Path) -> Result<String, String> {
    let bytes = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let newest = newest_glibc(&bytes);
    let (major, minor) =
        newest.ok_or_else(|| format!("{}: names no version of the C library", file.display()))?;
    Ok(format!("{major}.{minor}"))
}

/// The newest version among names such as GLIBC_2.34.
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

/// The directory of shared libraries of this architecture, such as `usr/lib/x86_64-linux-gnu`.
pub(super) fn library_dir() -> Result<String, String> {
    let triplet = output(Command::new("cc").arg("-print-multiarch"))?;
    match triplet.trim() {
        "" => Err("cc -print-multiarch prints nothing: the packages need gcc of Debian".to_owned()),
        triplet => Ok(format!("usr/lib/{triplet}")),
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
}
