//! `cargo xtask dist --try DIR`: each release file in a bare Debian, and the static binary in an empty root.
//!
//! DIR has a bare system, which debootstrap makes if it is missing. The trial works on a copy of it, so each
//! run begins with the packages of a bare system. Packages are installed by apt, which finds a dependency
//! that is missing. The scripts exit with an error at the first command that fails.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Dist, done, output};

const SUITE: &str = "bookworm";

/// The user of packaging/Containerfile.
const NOBODY: u32 = 65534;

/// Enters a root, which is the argument, and runs the script on the standard input there.
const ENTER: &str = "
mount --rbind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && mount --rbind /sys \"$0/sys\" &&
exec chroot \"$0\" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -s
";

/// Beginning of all scripts in the bare system.
const HEAD: &str = "
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
mkdir -p /try
cd /try
install() {
  apt-get -q -y --no-install-recommends install \"$@\" >apt.log 2>&1 || { cat apt.log; exit 1; }
}
";

/// The command, from the package, and the static binary.
const COMMAND: &str = "
extant --version
mkdir -p tree/etc && echo hello >tree/etc/motd
extant build -q --force -o a.img --from tree --size 16M
[ \"$(extant cat a.img:/etc/motd)\" = hello ]
extant check a.img
extant mkfs -q --force --size 16M b.img
extant put b.img:/f </etc/os-release
extant check -q b.img
";

/// What the package `extant` has besides the command. The package has no dependency that a bare system lacks.
const PACKAGE: &str = "
for file in /usr/share/man/man1/extant.1.gz /usr/share/zsh/vendor-completions/_extant \\
  /usr/share/fish/vendor_completions.d/extant.fish /usr/lib/systemd/system/extant-mount@.service \\
  /usr/share/doc/extant/copyright /usr/share/doc/extant/extant.cdx.json; do test -s $file; done
test -x /sbin/mount.fuse.extant && test -x /sbin/umount.fuse.extant
mkdir -p mnt
mount -t fuse.extant b.img mnt
cmp mnt/f /etc/os-release && echo new >mnt/new
umount mnt
[ \"$(extant cat b.img:/new)\" = new ]
extant mount a.img mnt
[ \"$(cat mnt/etc/motd)\" = hello ]
extant umount mnt

apt-get -q update >/dev/null
install man-db bash-completion
MANPAGER=cat man extant-build | grep -q 'extant.build'
cat >completed.bash <<'END'
. /usr/share/bash-completion/bash_completion
_completion_loader extant || [ $? = 124 ]
function=$(complete -p extant | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=(extant bui) COMP_CWORD=1 COMP_LINE='extant bui' COMP_POINT=10
$function extant bui extant
[ \"${COMPREPLY[*]}\" = build ]
END
bash completed.bash
";

const PACKAGE_GONE: &str = "
dpkg --purge extant >/dev/null
! command -v extant
! ls /sbin/mount.fuse.extant /usr/share/man/man1/extant.1.gz 2>/dev/null
";

/// A program that is linked with the shared library, and with the static one, as docs/c.md says.
const LIBRARY: &str = "
install gcc pkg-config
cp /usr/share/doc/libextant-dev/examples/tour.c .
mkdir -p tree-c && echo hello >tree-c/motd
cc tour.c -o tour $(pkg-config --cflags --libs extant)
./tour tree-c tour.img | grep -q 'check: clean'
cc tour.c -o tour-static $(pkg-config --cflags --libs-only-L extant) -l:libextant.a \\
  -lgcc_s -lutil -lrt -lpthread -lm -ldl
dpkg --purge libextant-dev >/dev/null
# At run time, the program needs libextant0 only, and the other one nothing of the project.
ldd tour | grep -q 'libextant.so.0 => /'
./tour tree-c tour.img | grep -q 'check: clean'
dpkg --purge libextant0 >/dev/null
! ./tour tree-c tour.img 2>/dev/null
./tour-static tree-c tour.img | grep -q 'check: clean'
";

/// Reads the image of [`COMMAND`], and builds another. The first argument of Python's `-c` is the version.
const PYTHON: &str = "
import extant_ext4, sys
from importlib.metadata import version
assert version('extant-ext4') == sys.argv[1], version('extant-ext4')
with extant_ext4.open('a.img') as fs:
    assert fs['/etc/motd'].read_text() == 'hello\\n'
extant_ext4.Builder(headroom=20).add_dir('tree').write('p.img', replace=True)
assert extant_ext4.check('p.img').clean
print('python', sys.version.split()[0], extant_ext4.__file__)
";

/// Runs the trials in the order of the files' dependencies.
pub(super) fn try_all(bare: &Path, made: &Dist<'_>) -> Result<(), String> {
    if !bare.join("usr/bin/dpkg").exists() {
        done(Command::new("debootstrap").args(["--variant=minbase", SUITE]).arg(bare))?;
    }
    let binary = made.file("extant-", "-static")?;
    empty_root(&binary, made)?;
    container(made)?;

    let trial = Trial::begin(bare)?;
    let copied = trial.add(&binary, "usr/local/bin/extant")?;
    trial.run("the static binary", COMMAND)?;
    fs::remove_file(&copied).map_err(|error| error.to_string())?;

    let package = |name: &str| -> Result<(), String> {
        trial.add(&made.file(&format!("{name}_"), ".deb")?, &format!("{name}.deb")).map(drop)
    };
    package("extant")?;
    trial.run("extant.deb: installs", "dpkg -i /extant.deb >/dev/null")?;
    trial.run("extant.deb: works", &format!("{COMMAND}{PACKAGE}"))?;
    trial.run("extant.deb: is removed", PACKAGE_GONE)?;

    for name in ["libextant0", "libextant-dev"] {
        package(name)?;
    }
    trial.run("libextant: installs", "install /libextant0.deb /libextant-dev.deb")?;
    trial.run("libextant: works", LIBRARY)?;

    package("python3-extant-ext4")?;
    let python =
        |program: &str| format!("cat >try.py <<'END'{PYTHON}END\n{program} try.py {}\n", made.version);
    trial.run("python3-extant-ext4: installs", "install /python3-extant-ext4.deb")?;
    let compiled = "ls /usr/lib/python3/dist-packages/extant_ext4/__pycache__/__init__.*.pyc >/dev/null\n";
    trial.run("python3-extant-ext4: works", &format!("{}{compiled}", python("python3")))?;
    let gone =
        "dpkg --purge python3-extant-ext4 >/dev/null\n! test -e /usr/lib/python3/dist-packages/extant_ext4";
    trial.run("python3-extant-ext4: is removed", gone)?;

    let wheel = made.file("extant_ext4-", ".whl")?;
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    trial.add(&wheel, &format!("try/{name}"))?;
    let install = format!(
        "install python3-venv\npython3 -m venv venv\n\
         venv/bin/pip install --quiet --disable-pip-version-check --no-index ./{name}\n"
    );
    trial.run("the wheel", &format!("{install}{}", python("venv/bin/python")))?;
    Ok(())
}

/// The static binary in a root that has only the binary, an image, and a directory for new ones: no /proc, no
/// /dev, no C library, no other program.
fn empty_root(binary: &Path, made: &Dist<'_>) -> Result<(), String> {
    let room = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let root = room.path();
    fs::copy(binary, root.join("extant")).map_err(|error| format!("{}: {error}", root.display()))?;
    let run = |args: &[&str], stdin: &[u8]| -> Result<String, String> {
        let mut command = Command::new("chroot");
        command.arg(root).arg("/extant").args(args);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.as_mut().map_err(|error| format!("chroot: {error}"))?;
        let given = child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(stdin));
        let mut text = String::new();
        if let Some(mut pipe) = child.stdout.take() {
            pipe.read_to_string(&mut text).map_err(|error| error.to_string())?;
        }
        let status = child.wait().map_err(|error| error.to_string())?;
        match status.success() && given.is_ok() {
            true => Ok(text),
            false => Err(format!("in an empty root: extant {}: {status}", args.join(" "))),
        }
    };
    let version = run(&["--version"], b"")?;
    if !version.contains(&made.version) {
        return Err(format!("extant --version prints {version:?}, not {}", made.version));
    }
    run(&["mkfs", "--size", "16M", "/a.img"], b"")?;
    run(&["mkdir", "/a.img:/etc"], b"")?;
    run(&["put", "/a.img:/etc/motd"], b"hello\n")?;
    run(&["check", "/a.img"], b"")?;
    if run(&["cat", "/a.img:/etc/motd"], b"")? != "hello\n" {
        return Err("in an empty root: the file in the image has other bytes".to_owned());
    }
    println!("the static binary works in an empty root: mkfs, mkdir, put, check, cat");
    Ok(())
}

/// The container recipe, if buildah is installed: makes the image, and runs it as its user.
fn container(made: &Dist<'_>) -> Result<(), String> {
    if Command::new("buildah").arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("the container recipe is NOT tried: buildah is not installed");
        return Ok(());
    }
    let room = tempfile::tempdir().map_err(|error| format!("a temporary directory: {error}"))?;
    let images = room.path().join("images");
    let owned = fs::create_dir(&images).and_then(|()| chown(&images, Some(NOBODY), Some(NOBODY)));
    owned
        .and_then(|()| fs::set_permissions(room.path(), PermissionsExt::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", images.display()))?;
    let buildah = |command: &str| {
        let mut buildah = Command::new("buildah");
        buildah.args(["--storage-driver", "vfs", "--root"]).arg(room.path().join("root"));
        buildah.arg("--runroot").arg(room.path().join("run")).arg(command);
        buildah
    };
    let mut build = buildah("build");
    build.args(["--quiet", "--isolation", "chroot", "--timestamp", &made.time, "--tag", "extant", "--file"]);
    output(build.arg(made.root.join("packaging/Containerfile")).arg(&made.out))?;
    let container = output(buildah("from").arg("extant"))?;
    let volume = format!("{}:/images", images.display());
    let run = |args: &[&str]| {
        let mut run = buildah("run");
        run.args(["--isolation", "chroot", "--volume", &volume, container.trim(), "--", "/usr/bin/extant"]);
        done(run.args(args))
    };
    run(&["mkfs", "-q", "--size", "16M", "root.img"])?;
    run(&["mkdir", "root.img:/etc"])?;
    run(&["check", "-q", "root.img"])?;
    let image = images.join("root.img");
    let owner = fs::metadata(&image).map_err(|error| format!("{}: {error}", image.display()))?.uid();
    if owner != NOBODY {
        return Err(format!("{}: user {owner} made it, not {NOBODY}", image.display()));
    }
    println!("the container works: mkfs, mkdir and check as user {NOBODY}");
    Ok(())
}

/// A copy of the bare system, removed at the end.
struct Trial {
    root: PathBuf,
}

impl Trial {
    fn begin(bare: &Path) -> Result<Self, String> {
        let mut root = bare.as_os_str().to_owned();
        root.push("-trial");
        let root = PathBuf::from(root);
        let _ = fs::remove_dir_all(&root);
        done(Command::new("cp").args(["-a", "--reflink=auto", "--"]).arg(bare).arg(&root))?;
        // apt finds the archive by name.
        let _ = fs::copy("/etc/resolv.conf", root.join("etc/resolv.conf"));
        Ok(Self { root })
    }

    fn add(&self, file: &Path, path: &str) -> Result<PathBuf, String> {
        let to = self.root.join(path);
        fs::copy(file, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        Ok(to)
    }

    /// Runs a script in its own root and mount namespace: its mounts end with it.
    fn run(&self, name: &str, script: &str) -> Result<(), String> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]).arg(&self.root);
        let mut child = command.stdin(Stdio::piped()).spawn().map_err(|error| format!("unshare: {error}"))?;
        let script = format!("{HEAD}{script}");
        let given = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
        let status = child.wait().map_err(|error| error.to_string())?;
        match (given, status.success()) {
            (Ok(()), true) => {
                println!("{name}: as expected in a bare {SUITE}");
                Ok(())
            }
            _ => Err(format!("{name}: in {}: {status} of\n{script}", self.root.display())),
        }
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
