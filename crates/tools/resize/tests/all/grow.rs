//! Images of mke2fs grow, and e2fsck, our check, debugfs, the kernel and resize2fs agree with the result.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use extant_check::Severity;
use extant_device::FileDevice;
use extant_resize::{ImageFile, ResizeFault, ResizeOptions, ResizeReport, Size, resize};
use extant_testkit::walk::{KernelView, copy_sparse};
use extant_testkit::{DiffOptions, Manifest, command, dumpe2fs, run};

/// A kind of file system, as mke2fs makes it.
struct Kind {
    name: &'static str,
    mke2fs: &'static [&'static str],
    from: &'static str,
    to: &'static [&'static str],
    /// resize2fs makes the same geometry. It moves files to make room for descriptors, where extant turns to
    /// meta block groups.
    same: bool,
}

const fn kind(
    name: &'static str,
    mke2fs: &'static [&'static str],
    from: &'static str,
    to: &'static [&'static str],
) -> Kind {
    Kind { name, mke2fs, from, to, same: true }
}

const KINDS: &[Kind] = &[
    kind("ext2_1k", &["-t", "ext2", "-b", "1024"], "3M", &["5M", "30M", "300M"]),
    kind("ext3_1k", &["-t", "ext3", "-b", "1024"], "9M", &["10M", "100M"]),
    kind("ext4_1k", &["-t", "ext4", "-b", "1024"], "20M", &["21M", "60M", "3G"]),
    kind("ext4_2k", &["-t", "ext4", "-b", "2048"], "40M", &["50M", "2G"]),
    kind("ext4_4k", &["-t", "ext4", "-b", "4096"], "64M", &["65M", "150M", "700G"]),
    kind("ext4_1m", &["-t", "ext4", "-b", "1024", "-N", "16"], "1M", &["2M", "64M"]),
    kind("no_flex", &["-t", "ext4", "-O", "^flex_bg", "-b", "4096"], "64M", &["1G"]),
    kind("flex_4", &["-t", "ext4", "-G", "4", "-b", "1024"], "64M", &["200M", "1G"]),
    kind("uninit_bg", &["-t", "ext4", "-O", "^metadata_csum,uninit_bg", "-b", "1024"], "40M", &["400M"]),
    kind("no_csum", &["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"], "40M", &["400M"]),
    kind("no_64bit", &["-t", "ext4", "-O", "^64bit", "-b", "4096"], "100M", &["3G"]),
    kind("quota", &["-t", "ext4", "-O", "quota,project", "-b", "1024"], "40M", &["100M"]),
    kind("orphan_file", &["-t", "ext4", "-O", "orphan_file", "-b", "1024"], "40M", &["100M"]),
    kind("fast_commit", &["-t", "ext4", "-O", "fast_commit", "-b", "1024"], "40M", &["100M"]),
    kind("meta_bg", &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"], "40M", &["90M", "2G"]),
    // resize2fs counts more free blocks than there are.
    Kind {
        same: false,
        ..kind(
            "bigalloc",
            &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-b", "1024"],
            "200M",
            &["300M", "4G"],
        )
    },
    Kind {
        same: false,
        ..kind("bigalloc_4k", &["-t", "ext4", "-O", "bigalloc", "-C", "65536"], "200M", &["300M", "9G"])
    },
    kind(
        "ea_inode",
        &["-t", "ext4", "-O", "ea_inode,inline_data", "-I", "256", "-b", "1024"],
        "40M",
        &["90M"],
    ),
    kind("r_blocks", &["-t", "ext4", "-m", "7", "-b", "4096"], "100M", &["777M"]),
    Kind {
        same: false,
        ..kind("no_reserve", &["-t", "ext4", "-O", "^resize_inode", "-b", "1024"], "20M", &["60M", "4G"])
    },
    Kind {
        same: false,
        ..kind("small_reserve", &["-t", "ext4", "-E", "resize=100000", "-b", "1024"], "20M", &["60M", "4G"])
    },
    Kind {
        same: false,
        ..kind("sparse2", &["-t", "ext4", "-O", "sparse_super2", "-b", "1024"], "40M", &["90M", "400M"])
    },
    Kind { same: false, ..kind("ext4_64k", &["-t", "ext4", "-b", "65536"], "300M", &["400M", "90G"]) },
];

/// A small tree with what a resize must not change.
pub(crate) fn fill(dir: &Path) {
    std::fs::create_dir_all(dir.join("a/b")).unwrap();
    for i in 0..40 {
        std::fs::write(dir.join(format!("a/file-{i}")), vec![i as u8; i * 700]).unwrap();
    }
    std::os::unix::fs::symlink("../a/file-3", dir.join("a/b/link")).unwrap();
    std::fs::hard_link(dir.join("a/file-4"), dir.join("a/b/hard")).unwrap();
}

pub(crate) fn grow(image: &Path, size: Size) -> Result<ResizeReport, ResizeFault> {
    let file = Arc::new(FileDevice::open_locked(image).unwrap());
    let mut storage = ImageFile::new(file, 0);
    resize(&mut storage, size, &ResizeOptions::default(), &(), &AtomicBool::new(false))
}

pub(crate) fn check_clean(name: &str, image: &Path) {
    let device = FileDevice::open(image, false).unwrap();
    let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
    let findings: Vec<String> = report
        .findings
        .iter()
        .filter(|found| found.rule.severity >= Severity::Note)
        .map(|found| format!("{} {:?} {}", found.rule.code, found.place, found.says))
        .collect();
    assert!(findings.is_empty(), "{name}: {findings:#?}");
}

fn bytes_of(size: &str) -> u64 {
    let (number, unit) = size.split_at(size.len() - 1);
    let shift = match unit {
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => panic!("{size}"),
    };
    number.parse::<u64>().unwrap() << shift
}

/// The tree as the kernel reads it; `None` if this process cannot mount it.
fn tree(image: &Path) -> Option<Manifest> {
    if extant_testkit::not_root() || !extant_testkit::kernel_mounts_kind_of(image) {
        return None;
    }
    let view = KernelView::open(image, None).unwrap_or_else(|error| panic!("{}: {error}", image.display()));
    Some(view.manifest())
}

fn make(kind: &Kind, dir: &Path) -> std::path::PathBuf {
    let image = dir.join(format!("{}.img", kind.name));
    let source = dir.join("source");
    if !source.exists() {
        fill(&source);
    }
    let tiny = bytes_of(kind.from) <= 1 << 20;
    let mut args: Vec<&str> = vec!["-q", "-F"];
    args.extend(kind.mke2fs);
    if !tiny {
        args.extend(["-d", source.to_str().unwrap()]);
    }
    args.extend([image.to_str().unwrap(), kind.from]);
    run("mke2fs", args);
    // mke2fs -d counts quotas wrongly.
    command("e2fsck").arg("-fy").arg(&image).output().unwrap();
    image
}

#[test]
fn every_kind_grows_in_every_step() {
    let dir = extant_testkit::scratch();
    for kind in KINDS {
        let first = make(kind, dir.path());
        let image = dir.path().join("image");
        let theirs = dir.path().join("theirs");
        copy_sparse(&first, &image);
        let before = tree(&image);
        let begun = std::time::Instant::now();
        for (at, to) in kind.to.iter().enumerate() {
            let name = format!("{} to {to}", kind.name);
            let resize2fs = kind.same && at == 0;
            if resize2fs {
                copy_sparse(&image, &theirs);
                run("resize2fs", ["-f", theirs.to_str().unwrap(), to]);
            }
            let report =
                grow(&image, Size::Bytes(bytes_of(to))).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            assert!(report.steps > 0, "{name}");
            assert!(report.after.blocks > report.before.blocks, "{name}");
            if command("e2fsck").args(["-fn"]).arg(&image).output().unwrap().status.code() != Some(0) {
                let kept = std::env::temp_dir().join("extant-resize-bad.img");
                copy_sparse(&image, &kept);
                let out = command("e2fsck").args(["-fn"]).arg(&image).output().unwrap();
                panic!("{name}: {}", String::from_utf8_lossy(&out.stdout));
            }
            check_clean(&name, &image);
            if let (Some(before), Some(after)) = (&before, &tree(&image)) {
                let differences = extant_testkit::diff(before, after, &DiffOptions::exact(1));
                assert!(differences.is_empty(), "{name}: {differences:#?}");
            }
            if resize2fs {
                let (ours, theirs) = (dumpe2fs(&image), dumpe2fs(&theirs));
                for label in [
                    "Block count",
                    "Inode count",
                    "Reserved block count",
                    "Free blocks",
                    "Free inodes",
                    "Inodes per group",
                    "Reserved GDT blocks",
                ] {
                    assert_eq!(ours.fields.get(label), theirs.fields.get(label), "{name}: {label}");
                }
            }
        }
        eprintln!("{}: {:?}", kind.name, begun.elapsed());
        std::fs::remove_file(&first).unwrap();
    }
}
