//! Idmapped mounts (mount_setattr(2)) of a mount, compared with those of the kernel's ext4.
//!
//! Needs /dev/fuse and root. Without them, tests print a note and pass.

use std::path::Path;

use extant_testkit::{LoopMount, e2fsck_clean};

use crate::common::mounted::{Mount, empty_image, has_fuse_and_root, runs};

/// Shows `source` on `target` with the owner 0 of the disk as 1000, 1 as 1001, and so on.
const IDMAP: &str = r#"
import ctypes, os, struct, subprocess, sys
source, target = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    result = libc.syscall(number, *args)
    if result < 0:
        sys.exit(f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return result
PIPE = subprocess.PIPE
child = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo; read x"], stdin=PIPE, stdout=PIPE)
child.stdout.readline()
for kind in ("uid", "gid"):
    with open(f"/proc/{child.pid}/{kind}_map", "w") as map:
        map.write("0 1000 100")
users = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
tree = call(428, -100, source.encode(), 0x80001)
attr = struct.pack("=QQQQ", 0x100000, 0, 0, users)
call(442, tree, b"", 0x1000, attr, ctypes.c_size_t(len(attr)))
call(429, tree, b"", -100, target.encode(), 4)
child.communicate(b"\n")
"#;

/// Makes, changes and removes files of all kinds as an ordinary user and as root, and prints what it sees:
/// first in the idmapped mount, then on the disk.
const WORKLOAD: &str = r#"
exec 2>&1
umask 022
cd idmapped
user() { setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@" || echo "failed: $*"; }
other() { setpriv --reuid=1003 --regid=1003 --groups=1004 -- "$@" || echo "failed: $*"; }
root() { "$@" || echo "failed: $*"; }
user mkdir d
user sh -c 'echo text > d/f; mkfifo d/p; ln -s f d/s; ln d/f d/l; echo new > d/new; mv d/new d/f2; cat d/f'
user setfattr -n user.a -v 1 d/f
root sh -c 'echo root > d/root'
root chown 1005:1006 d/f2
root chown 5:6 d/l
user chown 1000:1000 d/f2
other sh -c 'echo more >> d/f'
user chmod 2777 d
other sh -c 'echo other > d/other; mkdir d/sub; mknod d/fifo p'
other sh -c 'echo x > d/root'
user rm -f d/other
user chmod 6755 d/f
other sh -c 'cat d/f'
user truncate -s 3 d/f
root setfacl -m u:1002:rwx d/f2
other touch d/f2
user /usr/bin/python3 -c 'import os
fd = os.open("d", os.O_TMPFILE | os.O_RDWR); os.write(fd, b"tmp")
os.link(f"/proc/self/fd/{fd}", "d/tmp"); print(os.fstat(fd).st_uid)'
user mv d/f2 d/f3
getfacl -n -p d/f3
stat -c '%n %A %u %g %s %h' d d/*
cd ../plain
stat -c '%n %A %u %g %s %h' d d/*
getfacl -n -p d/f3
"#;

fn shown(dir: &Path) -> String {
    let work = extant_testkit::scratch();
    for (name, text) in [("workload", WORKLOAD), ("idmap.py", IDMAP)] {
        std::fs::write(work.path().join(name), text).unwrap();
    }
    let script = format!(
        "chmod 777 {dir}; mkdir idmapped; ln -s {dir} plain; python3 idmap.py {dir} idmapped || exit
         trap 'umount idmapped' EXIT; (. ./workload)",
        dir = dir.display(),
    );
    runs(work.path(), &script)
}

#[test]
fn an_idmapped_mount_shows_and_makes_the_owners_that_the_kernels_does() {
    if !has_fuse_and_root() {
        return;
    }
    let (_theirs_dir, theirs) = empty_image(&[]);
    let (_ours_dir, ours) = empty_image(&[]);
    let expected = shown(LoopMount::new(&theirs, "rw").unwrap().path());
    assert!(expected.contains("d/f3") && !expected.contains("system call"), "{expected}");
    let mount = Mount::new(&ours, &["-o", "rw,allow_other"]);
    let found = shown(mount.path());
    assert!(found == expected, "the kernel's ext4:\n{expected}\nours:\n{found}");
    mount.unmount();
    e2fsck_clean(&ours);
}
