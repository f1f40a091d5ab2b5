//! Small images with many kinds of structures, to be damaged. e2fsprogs creates them, so no root is needed.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use extant_hostile::Mutator;
use extant_testkit::{command, run, scratch};

/// Name of each image, and the arguments of mke2fs.
const IMAGES: &[(&str, &[&str])] = &[
    ("ext4-1k", &["-J", "size=1", "-b", "1024", "-O", "metadata_csum,64bit,orphan_file,metadata_csum_seed"]),
    ("ext4-4k", &["-J", "size=1", "-b", "4096", "-O", "metadata_csum,64bit"]),
    ("ext2", &["-b", "1024", "-O", "none,sparse_super,filetype,ext_attr,dir_index", "-I", "128"]),
    (
        "ext3",
        &[
            "-J",
            "size=1",
            "-b",
            "1024",
            "-O",
            "none,sparse_super,has_journal,filetype,ext_attr,dir_index,resize_inode",
        ],
    ),
    ("inline", &["-J", "size=1", "-b", "1024", "-O", "metadata_csum,inline_data", "-I", "512"]),
    ("bigalloc", &["-J", "size=1", "-b", "1024", "-O", "metadata_csum,bigalloc", "-C", "4096"]),
    (
        "meta_bg",
        &[
            "-J",
            "size=1",
            "-b",
            "1024",
            "-O",
            "metadata_csum,meta_bg,^resize_inode,ea_inode,large_dir",
            "-g",
            "1024",
        ],
    ),
    ("gdt_csum", &["-b", "1024", "-O", "^metadata_csum,uninit_bg,^has_journal,quota,project"]),
];

/// Further images for repairs: several groups, backups, quota, multiple-mount protection.
const MORE: &[(&str, &[&str])] = &[
    ("groups-1k", &["-J", "size=1", "-b", "1024", "-g", "1024", "-O", "metadata_csum,64bit,^flex_bg"]),
    ("flex-1k", &["-J", "size=1", "-b", "1024", "-g", "512", "-G", "4", "-O", "metadata_csum,64bit"]),
    ("ext2-groups", &["-b", "1024", "-g", "1024", "-O", "none,sparse_super,filetype,ext_attr,dir_index"]),
    ("gdt_csum-groups", &["-J", "size=1", "-b", "1024", "-g", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("quota-csum", &["-J", "size=1", "-b", "1024", "-O", "metadata_csum,quota,project,orphan_file"]),
    ("mmp", &["-J", "size=1", "-b", "1024", "-g", "2048", "-O", "metadata_csum,mmp"]),
    (
        "sparse_super2",
        &["-J", "size=1", "-b", "1024", "-g", "1024", "-O", "metadata_csum,sparse_super2,^resize_inode"],
    ),
];

/// Further images for repairs, with what [`fill`] does not make.
const SPECIAL: &[Special] = &[
    Special {
        name: "ea_inode",
        args: &["-b", "1024", "-O", "metadata_csum,quota,ea_inode"],
        fill: |_| (),
        edit: add_large_values,
    },
    Special {
        name: "deep-htree",
        args: &["-J", "size=1", "-b", "1024", "-O", "metadata_csum"],
        fill: add_long_names,
        edit: |_| (),
    },
];

struct Special {
    name: &'static str,
    args: &'static [&'static str],
    /// Adds files to the source tree.
    fill: fn(&Path),
    /// Changes the image.
    edit: fn(&Path),
}

/// Number of images.
#[allow(dead_code, reason = "not every user of this module asks")]
pub(crate) fn all_len() -> usize {
    IMAGES.len()
}

/// All images, with a mutator each.
pub(crate) fn all() -> Vec<(String, Mutator)> {
    made(IMAGES)
}

/// All images that repairs are tested with. Seeds choose among them by their number and order.
#[allow(dead_code, reason = "not every user of this module asks")]
pub(crate) fn of_repairs() -> Vec<(String, Mutator)> {
    [all(), more(), recorded(), special()].into_iter().flatten().collect()
}

/// The further images.
#[allow(dead_code, reason = "not every user of this module asks")]
pub(crate) fn more() -> Vec<(String, Mutator)> {
    made(MORE)
}

/// The images with values in inodes of their own, and with an index of two levels.
#[allow(dead_code, reason = "not every user of this module asks")]
pub(crate) fn special() -> Vec<(String, Mutator)> {
    let with_source = |special: &Special| {
        let dir = scratch();
        let source = dir.path().join("source");
        fs::create_dir(&source).unwrap();
        fill(&source);
        (special.fill)(&source);
        made_one(dir.path(), special.name, special.args, special.edit)
    };
    SPECIAL.iter().map(with_source).collect()
}

fn made(images: &[(&str, &[&str])]) -> Vec<(String, Mutator)> {
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fill(&source);
    images.iter().map(|(name, args)| made_one(dir.path(), name, args, |_| ())).collect()
}

/// The image of `source` in `dir`. `edit` changes it before e2fsck indexes its directories.
fn made_one(dir: &Path, name: &str, args: &[&str], edit: fn(&Path)) -> (String, Mutator) {
    let image = dir.join(format!("{name}.img"));
    let made = command("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-N", "512", "-d"])
        .arg(dir.join("source"))
        .args(args)
        .arg(&image)
        .arg("4M")
        .output()
        .unwrap();
    assert!(made.status.success(), "{name}: {}", String::from_utf8_lossy(&made.stderr));
    edit(&image);
    // This indexes the large directory.
    let status = command("e2fsck").args(["-fyD"]).arg(&image).output().unwrap().status;
    assert!(status.code().is_some_and(|code| code <= 1), "{name}: e2fsck -fyD: {status}");
    (name.to_owned(), Mutator::new(fs::read(&image).unwrap()))
}

/// Adds attributes whose values are in inodes of their own: those of more than half a block. debugfs does not
/// count them in i_blocks; e2fsck does.
fn add_large_values(image: &Path) {
    let value = image.with_extension("value");
    for (at, file) in ["/tiny", "/file", "/deep/er", "/many"].iter().enumerate() {
        fs::write(&value, vec![b'a' + at as u8; 700 + 100 * at]).unwrap();
        let request = format!("ea_set -f {} {file} user.value", value.display());
        run("debugfs", ["-w", "-R", &request, image.to_str().unwrap()]);
    }
}

/// Adds a directory whose index has two levels: a leaf of 1 KiB holds three such names, a root 123 leaves.
fn add_long_names(source: &Path) {
    let long = source.join("long");
    fs::create_dir(&long).unwrap();
    for at in 0..600 {
        fs::hard_link(source.join("file"), long.join(format!("{at:03}{}", "l".repeat(240)))).unwrap();
    }
}

/// Creates small files and directories of every kind.
fn fill(root: &Path) {
    fs::write(root.join("tiny"), b"forty bytes that may live in the inode..").unwrap();
    fs::write(root.join("file"), vec![b'x'; 20_000]).unwrap();
    fs::hard_link(root.join("file"), root.join("another-name")).unwrap();
    symlink("file", root.join("link")).unwrap();
    symlink("a/".repeat(100), root.join("long-link")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    for at in 0..200u64 {
        sparse.write_all_at(b"island", at * 8192).unwrap();
    }
    sparse.set_len(3 << 20).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for at in 0..150 {
        fs::write(many.join(format!("name-{at:03}-{}", "n".repeat(at % 60))), b"").unwrap();
    }
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    fs::write(root.join("deep/er/and/deeper/end"), b"end").unwrap();
    for (name, len) in [("user.small", 5), ("user.large", 300), ("user.huge", 400)] {
        let flags = rustix::fs::XattrFlags::empty();
        // If the scratch directory does not support attributes, the images have none.
        let _ = rustix::fs::setxattr(root.join("tiny"), name, &vec![b'v'; len], flags);
    }
}

/// Sound images of `testdata/rules` that only the kernel makes: logs that wait, orphans, encrypted and
/// casefolded directories.
#[allow(dead_code, reason = "not every user of this module asks")]
pub(crate) fn recorded() -> Vec<(String, Mutator)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/rules");
    ["crash-orphan-list", "crash-fast-commit", "casefold", "encrypted-tree"]
        .iter()
        .map(|name| {
            let packed = fs::read(dir.join(format!("{name}.img.zst"))).unwrap();
            let bytes = zstd::decode_all(&packed[..]).unwrap();
            ((*name).to_owned(), Mutator::new(bytes))
        })
        .collect()
}
