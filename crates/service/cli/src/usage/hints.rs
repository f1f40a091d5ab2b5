//! Remedies for wrong command lines: commands of other programs, and arguments that this program spells
//! differently.
//!
//! Does **not** own: suggestions for typing errors (see [`usage`](super)).

use std::path::Path;

/// Commands of other programs, and what to use instead.
const COMMANDS: &[(&[&str], &str)] = &[
    (
        &["resize2fs", "grow", "shrink", "extend", "enlarge"],
        "`extant resize IMG SIZE` changes the size of a file system that is not mounted",
    ),
    (
        &["fsck", "e2fsck", "fsck.ext4", "repair", "verify", "scrub", "fix"],
        "`extant check IMG` finds what is wrong, `extant check --repair IMG` repairs it, and `extant undo` takes that back",
    ),
    (
        &["tune2fs", "label", "e2label", "uuid", "features"],
        "`extant tune IMG` changes label, UUID and features (-L, -U, -O), `extant inspect IMG super` shows them",
    ),
    (
        &["undelete", "recover", "unrm", "extundelete", "salvage", "photorec"],
        "`extant rescue --deleted IMG` finds removed files, as long as nothing overwrote them; with --dir DIR it copies them out",
    ),
    (
        &["create", "make", "new", "pack", "import", "mkimage"],
        "`extant build -o IMG --from DIR` makes an image of a directory, `extant mkfs IMG --size SIZE` an empty one",
    ),
    (
        &["format", "mke2fs", "mkfs.ext4", "mkfs.ext3", "mkfs.ext2"],
        "`extant mkfs IMG --size SIZE` makes an empty file system",
    ),
    (&["list", "dir", "ll"], "`extant ls IMG:/` lists a directory"),
    (&["find", "search", "locate"], "`extant ls 'IMG:/**/PATTERN'` finds names"),
    (
        &["du"],
        "`extant tree --json IMG` and `extant stat IMG:PATH` show sizes, `extant df IMG` what is in use",
    ),
    (
        &["extract", "unpack", "untar", "restore", "get", "copy", "rdump"],
        "`extant cp -r IMG:/PATH DIR` copies files out, `extant export IMG --tar FILE` or `--dir DIR` everything",
    ),
    (
        &["add", "write", "insert", "append"],
        "`extant cp FILE IMG:/DIR` copies files in, `extant put IMG:/FILE` writes standard input",
    ),
    (
        &["read", "print", "show", "more", "less", "head", "tail", "view"],
        "`extant cat IMG:/FILE` prints a file",
    ),
    (
        &["info", "dumpe2fs", "debugfs", "debug", "super", "superblock"],
        "`extant inspect IMG super` shows the superblock, `extant inspect --help` what else there is",
    ),
    (&["rename", "move"], "`extant mv IMG:/OLD IMG:/NEW` renames"),
    (&["link", "symlink"], "`extant ln -s TARGET IMG:/LINK` makes a symbolic link, without -s a hard one"),
    (&["remove", "delete", "unlink", "rmdir", "del"], "`extant rm IMG:/FILE` removes, with -r whole trees"),
    (&["chgrp"], "`extant chown :GID IMG:/FILE` sets the group"),
    (
        &["chattr", "lsattr"],
        "`extant stat IMG:/FILE` shows the flags of a file; they are changed in a mount, by chattr",
    ),
    (
        &["getfattr", "setfattr", "attr", "getfacl", "setfacl"],
        "`extant xattr get`, `set`, `list` and `remove` are for attributes, ACLs among them",
    ),
    (&["fstrim", "discard", "sparsify", "zerofree"], "`extant trim IMG` gives the room of free blocks back"),
    (&["unmount", "fusermount", "detach"], "`extant umount DIR` unmounts"),
    (&["attach", "fuse"], "`extant mount IMG DIR` mounts"),
    (
        &["defrag", "e4defrag", "compact", "defragment"],
        "`extant optimize IMG` makes files contiguous, `extant resize IMG min` makes the file system small",
    ),
    (
        &["convert", "compress"],
        "images are plain files of bytes here; qemu-img converts, `extant export` makes tar archives",
    ),
    (&["compare", "cmp"], "`extant diff A B` shows what differs"),
    (&["e2image", "metadata"], "`extant dump IMG -o FILE` writes the metadata without the contents of files"),
    (&["sync", "rsync", "refresh"], "`extant update IMG --from DIR` makes an image the same as a directory"),
    (&["version"], "`extant --version` prints it"),
    (
        &["install"],
        "`extant install-helpers` lets mount(8) know this program; `extant completions` and `extant man` write files for shells and man",
    ),
];

/// The remedy for a command that does not exist.
pub(super) fn command(path: &[String], name: &str) -> Option<String> {
    let name = name.to_ascii_lowercase();
    match path {
        [] => {
            let found = COMMANDS.iter().find(|(names, _)| names.contains(&name.as_str()));
            found.map(|(_, instead)| (*instead).to_owned())
        }
        [inspect] if inspect == "inspect" => match name.as_str() {
            "superblock" | "sb" => Some("it is `super`".to_owned()),
            "ls" | "list" => Some("it is `dir PATH`".to_owned()),
            "stat" | "file" => Some("it is `inode PATH`".to_owned()),
            "blocks" | "bmap" => Some("it is `extents PATH`".to_owned()),
            _ => None,
        },
        _ => None,
    }
}

/// The remedy for an option or operand that the command does not have.
pub(super) fn argument(path: &[String], arg: &str) -> Option<String> {
    let [name, views @ ..] = path else { return None };
    let is_option = arg.starts_with('-') && arg != "-";
    match (name.as_str(), arg) {
        ("export", "-o" | "--output" | "-f" | "-C") => Some(
            "--tar FILE writes an archive (- is standard output), --dir DIR fills a directory".to_owned(),
        ),
        ("export", _) if !is_option => {
            let option = if Path::new(arg).is_dir() || arg.ends_with('/') { "--dir" } else { "--tar" };
            Some(format!("say {option} {arg}"))
        }
        ("build", _) if !is_option => Some(match Path::new(arg) {
            dir if dir.is_dir() && dir.join("oci-layout").exists() => {
                format!("a source is named by its kind: --oci {arg}")
            }
            dir if dir.is_dir() => format!("a source is named by its kind: --from {arg}"),
            _ if arg == "-" || arg.contains(".tar") || arg.ends_with(".tgz") => {
                format!("a source is named by its kind: --tar {arg}")
            }
            _ => {
                format!("-o names the image, and an option each source: extant build -o {arg} --from DIR")
            }
        }),
        ("build", "-d" | "--dir" | "--source" | "--root") => {
            Some("a directory is a source by --from DIR".to_owned())
        }
        ("inspect", _) if !is_option && !views.is_empty() => {
            Some(format!("the image comes first: extant inspect {arg} {}", views.join(" ")))
        }
        ("check", "-a" | "-fa" | "--fix") => Some(
            "`extant check --repair -p IMG` repairs what loses nothing, -y repairs everything".to_owned(),
        ),
        ("mount", "-t" | "--types") => Some("the type is ext2, ext3 or ext4 in any case".to_owned()),
        ("mount", "-r" | "--read-only" | "--ro") => Some("read-only is the default".to_owned()),
        ("mount", "-w") => Some("it is -o rw".to_owned()),
        ("cp", "-f" | "--force") => Some("files that are there are replaced in any case".to_owned()),
        ("mv", "-f" | "--force") => Some("files that are there are replaced in any case".to_owned()),
        ("cp", "-d" | "-P" | "--no-dereference") => Some("-r copies symbolic links as links".to_owned()),
        ("chown", _) if arg.starts_with("--from") => Some("owners are changed whatever they were".to_owned()),
        ("mkfs", "-d") => Some("`extant build -o IMG --from DIR` makes an image of a directory".to_owned()),
        ("resize", "-M") => Some("the smallest size is a size: extant resize IMG min".to_owned()),
        ("resize", "-P") => Some("`extant resize -n IMG min` prints the smallest size".to_owned()),
        ("tune", "-l") => Some("`extant inspect IMG super` shows the superblock".to_owned()),
        ("tune", "-Q") => Some("-O quota and -O project turn quotas on, with ^ off".to_owned()),
        ("mkfs", "-V" | "-c") => Some("mkfs reports what it made, and --json all of it".to_owned()),
        _ => None,
    }
}

/// The remedy for a missing argument.
pub(super) fn missing(path: &[String]) -> Option<String> {
    let text = match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["export"] => "--tar - is standard output",
        ["cp"] => "the last one says where to: a directory or a new name, `.` is this directory",
        ["mount"] => "an image and a directory that is there: extant mount root.img mnt",
        ["completions"] => "a shell: bash, elvish, fish, powershell or zsh",
        ["truncate"] => "like --size 4G, or --size 0 to empty a file",
        ["man"] => "a directory for the pages, which is made: extant man man1",
        _ => return None,
    };
    Some(text.to_owned())
}

/// The values of `cp --backup` in coreutils, where it keeps copies of the files that it replaces.
const CP_BACKUPS: [&str; 8] = ["none", "off", "numbered", "t", "existing", "nil", "simple", "never"];

/// The remedy for a wrong value that may be a path: the value comes before the paths.
pub(super) fn value(path: &[String], arg: &str, value: &str) -> Option<String> {
    if path == ["cp"] && arg.starts_with("--backup") && CP_BACKUPS.contains(&value) {
        let why = "it reads an image by a backup superblock; existing files are kept with -n, \
                   and replaced without";
        return Some(why.to_owned());
    }
    let first = match (path.first().map(String::as_str), arg) {
        (Some("chmod"), "<MODE>") => "the mode comes before the paths: extant chmod 0644 IMG:/FILE",
        (Some("chown"), "<OWNER>") => "the owner comes before the paths: extant chown 0:0 IMG:/FILE",
        (Some("project"), "<ID>") => "the project comes before the paths: extant project 42 IMG:/DIR",
        _ => return None,
    };
    value.contains('/').then(|| first.to_owned())
}
