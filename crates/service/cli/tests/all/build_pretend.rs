//! Owners and devices that are only pretended (fakeroot, pseudo) or not visible (user namespaces), and
//! attributes that cannot be read.

use crate::common;

use std::path::Path;
use std::process::Command;

use crate::common::{Outcome, SOURCE, assert_has, outcome};
use extant_testkit::{e2fsck_clean, is_root, scratch};

const BINARY: &str = env!("CARGO_BIN_EXE_extant");

/// The script of a package build: devices, owners, set-user-id bits and capabilities that the file system
/// does not contain. Then it builds an image, and extracts it with both commands that write owners to the
/// host.
const PRETENDED: &str = "set -e; mkdir -p s/dev s/deep/a; mknod s/dev/console c 5 1; mknod s/deep/a/b b 8 1; touch s/su s/empty
chown 33:44 s/su; chmod 4755 s/su; ln -s x s/l; chown -h 12:13 s/l; echo content >s/deep/file; chown 5:6 s/deep/file
$X build -q --no-sync -o i.img --from s; $X ls -lR i.img:/ >listed
$X export i.img --dir out; mkdir copied; $X cp -a i.img:/ copied
for d in out copied; do stat -c '%n %F %u:%g %a %t,%T' $d/dev/console $d/deep/a/b $d/su $d/l $d/deep/file; done >stats
$X build -q --no-sync -o second.img --from out; $X ls -lR second.img:/ >listed2";

/// Whether a program is installed. Prints a note if not.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("{program} is not installed: not tried");
    }
    found
}

/// Runs a shell script in a directory, as an ordinary user if this process is root.
fn script(dir: &Path, before: &[&str], text: &str) -> Outcome {
    let mut words: Vec<&str> = Vec::new();
    if is_root() {
        std::os::unix::fs::chown(dir, Some(65_534), Some(65_534)).unwrap();
        words.extend(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    }
    words.extend(before);
    words.extend(["sh", "-c", text]);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(dir).env("X", BINARY).env("HOME", dir).env_remove("LD_PRELOAD");
    outcome(&mut command)
}

#[track_caller]
fn assert_pretended(dir: &Path) {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap();
    for listed in [read("listed"), read("listed2")] {
        let has = |start: &str, end: &str| {
            let fits = |line: &str| {
                let words: Vec<&str> = line.split_whitespace().collect();
                words.join(" ").starts_with(start) && line.ends_with(end)
            };
            assert!(listed.lines().any(fits), "no {start} ... {end} in:\n{listed}");
        };
        has("crw-r--r-- 1 0 0 5,1", " console");
        has("brw-r--r-- 1 0 0 8,1", " b");
        has("-rwsr-xr-x 1 33 44 0", " su");
        has("lrwxrwxrwx 1 12 13 1", " l -> x");
        has("-rw-r--r-- 1 5 6 8", " file");
    }
    let stats = read("stats");
    for out in ["out", "copied"] {
        assert_has(&stats, &format!("{out}/dev/console character special file 0:0 644 5,1\n"));
        assert_has(&stats, &format!("{out}/deep/a/b block special file 0:0 644 8,1\n"));
        assert_has(&stats, &format!("{out}/su regular empty file 33:44 4755 0,0\n"));
        assert_has(&stats, &format!("{out}/l symbolic link 12:13 777 0,0\n"));
        assert_has(&stats, &format!("{out}/deep/file regular file 5:6 644 0,0\n"));
    }
    e2fsck_clean(&dir.join("i.img"));
}

#[test]
fn what_fakeroot_pretends_is_in_the_image_and_comes_out_again() {
    let dir = scratch();
    if has("fakeroot") {
        script(dir.path(), &["fakeroot"], PRETENDED).code(0);
        assert_pretended(dir.path());
    }
}

#[test]
fn what_pseudo_pretends_is_in_the_image_and_comes_out_again() {
    let dir = scratch();
    let libraries = ["/usr/lib/x86_64-linux-gnu/pseudo", "/usr/lib/aarch64-linux-gnu/pseudo"];
    let Some(library) = libraries.into_iter().find(|path| Path::new(path).exists()).filter(|_| has("pseudo"))
    else {
        return;
    };
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&state, Some(65_534), Some(65_534)).unwrap();
    }
    let settings = [
        "env".to_owned(),
        "PSEUDO_PREFIX=/usr".to_owned(),
        "PSEUDO_BINDIR=/usr/bin".to_owned(),
        format!("PSEUDO_LIBDIR={library}"),
        format!("LD_LIBRARY_PATH={library}"),
        format!("PSEUDO_LOCALSTATEDIR={}", state.display()),
        "pseudo".to_owned(),
    ];
    let before: Vec<&str> = settings.iter().map(String::as_str).collect();
    script(dir.path(), &before, PRETENDED).code(0);
    assert_pretended(dir.path());
    // Its server would stay for a few seconds.
    let stop: Vec<&str> = before.iter().copied().chain(["-S"]).collect();
    let _ = Command::new(stop[0]).args(&stop[1..]).output();
}

/// A preloaded library does not affect a static binary. Here a library that cannot be loaded has the same
/// result: the pretended owners are not visible, and the real owners must not be used instead.
#[test]
fn a_pretended_owner_that_cannot_be_seen_is_refused() {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("s")).unwrap();
    let run = |library: &str, line: &str| {
        let text = format!("LD_PRELOAD=/nonexistent/{library} $X {line}");
        script(dir.path(), &[], &text)
    };
    for (library, name) in [("libfakeroot-sysv.so", "fakeroot"), ("libpseudo.so", "pseudo")] {
        let refused = run(library, "build -q -o i.img --from s");
        assert_has(refused.code(SOURCE), &format!("{name} is in LD_PRELOAD, but this program does not see"));
        assert!(!dir.path().join("i.img").exists());
    }
    script(dir.path(), &[], "$X build -q -o i.img --from s").code(0);
    assert_has(run("libfakeroot.so", "export i.img --dir out").code(1), "fakeroot");
    assert_has(run("libfakeroot.so", "cp -a i.img:/ .").code(1), "fakeroot");
    assert!(!dir.path().join("out").exists());
    run("libfakeroot.so", "ls i.img:/").code(0);
    run("libsomething.so", "build -q -f -o i.img --from s").code(0);
}

/// In a user namespace that maps one ID, files of other users appear to belong to 65534. The image has that
/// ID, and there is a warning.
#[test]
fn owners_that_a_user_namespace_does_not_show_are_reported() {
    let dir = scratch();
    if !is_root() || !has("unshare") {
        eprintln!("not root: no file of another owner can be made");
        return;
    }
    let tree = dir.path().join("s");
    std::fs::create_dir(&tree).unwrap();
    for (name, owner) in [("mine", 65_534), ("yours", 1234)] {
        std::fs::write(tree.join(name), name).unwrap();
        std::os::unix::fs::chown(tree.join(name), Some(owner), Some(owner)).unwrap();
    }
    let built =
        script(dir.path(), &["unshare", "-r"], "$X build --no-sync -o i.img --from s && $X ls -l i.img:/");
    if built.stderr.contains("unshare") {
        eprintln!("no user namespaces here: {}", built.stderr);
        return;
    }
    let stderr = built.code(0);
    assert_has(stderr, "is not mapped in this user namespace");
    let words = |name: &str| -> Vec<String> {
        let line = built.stdout.lines().find(|line| line.ends_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words(" mine")[2..4], ["0", "0"]);
    assert_eq!(words(" yours")[2..4], ["65534", "65534"]);
}

/// On a host with SELinux a sandbox lists `security.selinux`, but reading it fails with ENOTSUP. cp -a and
/// GNU tar warn and continue, and so does build. An option omits attributes without a warning.
#[test]
fn an_attribute_that_is_listed_and_withheld_is_left_out_with_a_warning() {
    const WITHHOLD: &str = "
import ctypes,struct,os,sys
I=lambda c,t,f,k: struct.pack('HBBI',c,t,f,k)
p=I(0x20,0,0,0)
for n in (191,192,193,464): p+=I(0x15,0,1,n)+I(6,0,0,0x00050000|95)
p+=I(6,0,0,0x7fff0000)
b=ctypes.create_string_buffer(p,len(p)); f=struct.pack('HxxxxxxQ',len(p)//8,ctypes.addressof(b)); fb=ctypes.create_string_buffer(f,len(f))
l=ctypes.CDLL(None); l.prctl(38,1,0,0,0); assert l.prctl(22,2,fb,0,0)==0
os.execvp(sys.argv[1],sys.argv[1:])
";
    let dir = scratch();
    let tree = dir.path().join("s");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "1").unwrap();
    let set =
        |name: &str| rustix::fs::setxattr(tree.join("a"), name, b"label", rustix::fs::XattrFlags::empty());
    if set("user.label").and_then(|()| set("user.other")).is_err() {
        eprintln!("no attributes on this file system: not tried");
        return;
    }
    let image = dir.path().join("i.img");
    let attributes = || common::run(args!["xattr", "list", format!("{}:/a", image.display())]).stdout;
    let from = args!["--from", &tree];
    let build = |more: &[&str]| {
        let _ = std::fs::remove_file(&image);
        let all: Vec<_> = from.iter().cloned().chain(more.iter().map(Into::into)).collect();
        common::build(&image, all)
    };
    build(&["--xattr-exclude", "user.lab*"]);
    assert!(!attributes().contains("label=") && attributes().contains("user.other"), "{}", attributes());
    build(&["--no-xattrs"]);
    assert_eq!(attributes(), "");
    if cfg!(not(target_arch = "x86_64")) || !has("python3") {
        return;
    }
    let _ = std::fs::remove_file(&image);
    let mut command = Command::new("python3");
    command.args(["-c", WITHHOLD, BINARY, "build", "-q", "--no-sync", "-o"]).arg(&image).args(&from);
    let built = outcome(&mut command);
    assert_has(built.code(0), "attribute user.label is left out, as it cannot be read");
    assert_eq!(attributes(), "");
}
