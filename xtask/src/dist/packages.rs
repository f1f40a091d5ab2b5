//! What the four Debian packages contain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::compile::{glibc_version, library_dir};
use super::deb::{About, Deb, gzip};
use super::sbom::Sboms;
use super::{Dist, done, output, read};

/// The number in the name of the shared library, as in `crates/service/capi/build.rs`.
const SONAME: &str = "libextant.so.0";

/// Compiles the modules for the installed versions of Python, and removes the result.
const PY_POSTINST: &str = "#!/bin/sh
set -e
if command -v py3compile >/dev/null 2>&1; then
    py3compile -p python3-extant-ext4
fi
";
const PY_PRERM: &str = "#!/bin/sh
set -e
if command -v py3clean >/dev/null 2>&1; then
    py3clean -p python3-extant-ext4
fi
";

impl Dist<'_> {
    /// `extant`: the command and what belongs to it.
    pub(super) fn command_package(&self, binary: &Path, lists: &Sboms) -> Result<PathBuf, String> {
        let deb = Deb::new(self, "extant");
        deb.put_program("usr/bin/extant", &read(binary)?)?;
        let man = deb.root.join("usr/share/man/man1");
        fs::create_dir_all(&man).map_err(|error| error.to_string())?;
        done(Command::new(binary).arg("man").arg(&man))?;
        let pages = fs::read_dir(&man).map_err(|error| error.to_string())?;
        for page in pages.flatten() {
            gzip(&page.path())?;
        }
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/extant"),
            ("zsh", "usr/share/zsh/vendor-completions/_extant"),
            ("fish", "usr/share/fish/vendor_completions.d/extant.fish"),
        ] {
            deb.put(path, output(Command::new(binary).args(["completions", shell]))?.as_bytes())?;
        }
        for name in ["mount.fuse.extant", "umount.fuse.extant"] {
            deb.link(&format!("usr/sbin/{name}"), "../bin/extant")?;
        }
        let unit = "extant-mount@.service";
        let text = read(&self.root.join("packaging").join(unit))?;
        deb.put(&format!("usr/lib/systemd/system/{unit}"), &text)?;
        deb.put("usr/share/doc/extant/extant.cdx.json", &read(&lists.command)?)?;
        deb.finish(&About {
            section: "admin",
            depends: &format!("libc6 (>= {}), libgcc-s1", glibc_version(binary)?),
            fields: &["Recommends: fuse3", "Suggests: e2fsprogs"],
            summary: "ext4 in user space",
            description: &[
                "Builds, reads, changes, checks and mounts (by FUSE) ext2, ext3 and ext4 file",
                "systems in files and on devices, without root and without the kernel's driver.",
            ],
        })
    }

    /// `libextant0` and `libextant-dev`: the C library for programs, and for their compilers.
    pub(super) fn library_packages(&self, libraries: &[PathBuf; 2], lists: &Sboms) -> Result<(), String> {
        let [shared, archive] = libraries;
        let (dir, version) = (library_dir()?, &self.version);
        let deb = Deb::new(self, "libextant0");
        deb.put(&format!("{dir}/libextant.so.{version}"), &read(shared)?)?;
        deb.link(&format!("{dir}/{SONAME}"), &format!("libextant.so.{version}"))?;
        // The components depend on the architecture, and files of the same name must be equal (Multi-Arch).
        let triplet = dir.rsplit('/').next().unwrap_or_default();
        let list = format!("usr/share/doc/libextant0/libextant.{triplet}.cdx.json");
        deb.put(&list, &read(&lists.library)?)?;
        deb.put_control("shlibs", &format!("libextant 0 libextant0 (>= {version})\n"))?;
        deb.put_control("triggers", "activate-noawait ldconfig\n")?;
        deb.finish(&About {
            section: "libs",
            depends: &format!("libc6 (>= {}), libgcc-s1", glibc_version(shared)?),
            fields: &["Multi-Arch: same"],
            summary: "ext4 in user space: the C library",
            description: &[
                "Programs build, read, change, check, repair and resize ext2, ext3 and ext4",
                "images with this library, without root and without the kernel's driver.",
            ],
        })?;

        let deb = Deb::new(self, "libextant-dev");
        let capi = self.root.join("crates/service/capi");
        deb.put("usr/include/extant.h", &read(&capi.join("include/extant.h"))?)?;
        deb.put(&format!("{dir}/libextant.a"), &read(archive)?)?;
        deb.link(&format!("{dir}/libextant.so"), SONAME)?;
        let template = read(&capi.join("extant.pc.in"))?;
        let mut file = String::from_utf8_lossy(&template).into_owned();
        for (name, value) in [
            ("@prefix@", "/usr"),
            ("@libdir@", &format!("/{dir}")),
            ("@includedir@", "/usr/include"),
            ("@version@", version),
        ] {
            file = file.replace(name, value);
        }
        deb.put(&format!("{dir}/pkgconfig/extant.pc"), file.as_bytes())?;
        deb.put("usr/share/doc/libextant-dev/examples/tour.c", &read(&capi.join("examples/tour.c"))?)?;
        deb.finish(&About {
            section: "libdevel",
            depends: &format!("libextant0 (= {version}), libc6-dev"),
            fields: &["Multi-Arch: same", "Suggests: pkg-config"],
            summary: "ext4 in user space: the C library, for development",
            description: &["The header, the static library and the file for pkg-config of libextant."],
        })?;
        Ok(())
    }

    /// `python3-extant-ext4`: the files of the wheel, where Debian's Python finds them.
    pub(super) fn python_package(&self, wheel: &Path, lists: &Sboms) -> Result<PathBuf, String> {
        let deb = Deb::new(self, "python3-extant-ext4");
        let modules = deb.root.join("usr/lib/python3/dist-packages");
        fs::create_dir_all(&modules).map_err(|error| format!("{}: {error}", modules.display()))?;
        done(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&modules))?;
        let info = modules.join(format!("extant_ext4-{}.dist-info", self.version));
        // pip would remove the files of a RECORD; these belong to dpkg.
        fs::remove_file(info.join("RECORD")).map_err(|error| format!("{}: {error}", info.display()))?;
        super::put(&info.join("INSTALLER"), b"debian\n")?;
        let module = modules.join("extant_ext4/_native.abi3.so");
        deb.put("usr/share/doc/python3-extant-ext4/extant_ext4.cdx.json", &read(&lists.python)?)?;
        deb.put_control("postinst", PY_POSTINST)?;
        deb.put_control("prerm", PY_PRERM)?;
        deb.finish(&About {
            section: "python",
            depends: &format!("python3 (>= 3.9), libc6 (>= {}), libgcc-s1", glibc_version(&module)?),
            fields: &["Suggests: python3-fsspec"],
            summary: "ext4 in user space: the Python package extant_ext4",
            description: &[
                "Python programs read, change, build, check, resize and repair ext2, ext3 and",
                "ext4 images with this package, without root and without the kernel's driver.",
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_the_library_is_that_of_its_build_script() {
        let script = include_str!("../../../crates/service/capi/build.rs");
        assert!(script.contains(&format!("const NAME: &str = \"{SONAME}\";")), "{script}");
    }
}
