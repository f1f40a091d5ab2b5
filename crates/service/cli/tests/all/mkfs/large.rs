//! 16 TiB in an instant: implied contents are not written.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_testkit::scratch;

use crate::mkfs::make;

/// Arguments, and the maximum written (MiB): one bitmap for each flex group, which counts the group's tables,
/// and 8 MiB for each copy of the descriptors.
const FORMATS: &[(&str, u64)] = &[
    ("", 240),
    ("-O sparse_super2", 60),
    ("-O sparse_super2 -E num_backup_sb=0", 44),
    ("-O meta_bg,^resize_inode", 60),
    ("-O meta_bg,^resize_inode -G 1024", 30),
    ("-O bigalloc -C 1M", 20),
];

#[test]
fn sixteen_tebibytes_take_moments_and_little_space() {
    let dir = scratch();
    let image = dir.path().join("big.img");
    for (args, most) in FORMATS {
        let start = Instant::now();
        let text = make(&image, &format!("-F --json --no-sync -s 16T {args}"));
        let elapsed = start.elapsed();
        let report: serde_json::Value = serde_json::from_str(&text).expect("--json prints JSON");
        let written = report["written_bytes"].as_u64().expect("a count of bytes");
        let metadata = fs::metadata(&image).unwrap();
        let allocated = metadata.blocks() * 512;
        println!("16T {args}: {elapsed:.2?}, {written} bytes written, {allocated} allocated");
        assert_eq!(metadata.len(), 16 << 40);
        assert_eq!(report["blocks"], 4_u64 << 30);
        assert!(elapsed < Duration::from_secs(10), "{args}: {elapsed:?}");
        assert!(written <= most << 20, "{args}: {written} bytes written");
        assert!(allocated <= written + (8 << 20), "{args}: {allocated} bytes allocated, {written} written");
        // e2fsck is slow for this size. It would check the same structures as at 4 TiB, where the tests run
        // it.
        let header = extant_testkit::run("dumpe2fs", [Path::new("-h"), &image]);
        let header = extant_testkit::parse_dumpe2fs(&String::from_utf8_lossy(&header.stdout));
        assert_eq!(
            (header.number("Block count"), header.field("Filesystem state")),
            (4 << 30, "clean"),
            "{args}"
        );
        fs::remove_file(&image).unwrap();
    }
}
