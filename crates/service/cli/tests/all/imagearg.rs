//! Image arguments with a real disk image: a GPT by sfdisk, and an ext4 by mke2fs in one of its partitions.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use extant_testkit::{command, run, scratch};

/// A disk of 40 MiB with an EFI partition, and at 4 MiB a partition of 32 MiB with an ext4 called "root".
/// `None` without sfdisk.
fn disk(dir: &Path) -> Option<PathBuf> {
    let disk = dir.join("disk.img");
    std::fs::File::create(&disk).unwrap().set_len(40 << 20).unwrap();
    let mut sfdisk = command("sfdisk");
    let sfdisk = sfdisk.arg("--quiet").arg(&disk).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let Ok(mut sfdisk) = sfdisk else {
        println!("skipped: not installed: sfdisk");
        return None;
    };
    let script =
        "label: gpt\n1: start=2048, size=4096, type=U\n3: start=8192, size=65536, type=L, name=root\n";
    sfdisk.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(sfdisk.wait().unwrap().success());
    let path = disk.to_str().unwrap();
    run("mke2fs", ["-q", "-F", "-t", "ext4", "-L", "root", "-E", "offset=4194304", path, "32M"]);
    Some(disk)
}

/// Runs `extant inspect` on `disk` plus `suffix`, with the view `super`.
fn inspect(disk: &Path, suffix: &str) -> Output {
    let mut image = disk.as_os_str().to_owned();
    image.push(suffix);
    command(env!("CARGO_BIN_EXE_extant")).arg("inspect").arg(image).arg("super").output().unwrap()
}

#[track_caller]
fn sound(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("root"));
    errors.into_owned()
}

#[track_caller]
fn refused(output: &Output, code: i32) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{errors}");
    assert!(output.stdout.is_empty());
    errors
}

#[test]
fn a_partition_is_found_by_its_number_and_by_its_place() {
    let dir = scratch();
    let Some(disk) = disk(dir.path()) else { return };
    for suffix in ["#3", "@4M", "@8192s", "@0x400000"] {
        assert_eq!(sound(&inspect(&disk, suffix)), "", "{suffix}");
    }
    let errors = refused(&inspect(&disk, ""), 8);
    assert!(
        errors.contains("ext4 is in its partition 3: say ") && errors.ends_with("disk.img#3\n"),
        "{errors}"
    );
    let errors = refused(&inspect(&disk, "#2"), 2);
    assert!(
        errors.contains("there is no #2")
            && errors.contains("1 (EFI System, 2.0 MiB), 3 (Linux filesystem \"root\", 32.0 MiB, ext4)"),
        "{errors}"
    );
    refused(&inspect(&disk, "#1"), 8);
    let errors = refused(&inspect(&disk, "#3:/etc"), 2);
    assert!(errors.contains("inode /etc"), "{errors}");
}

#[test]
fn a_damaged_table_is_replaced_by_its_backup_aloud() {
    let dir = scratch();
    let Some(disk) = disk(dir.path()) else { return };
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[512..1024].fill(0);
    std::fs::write(&disk, &bytes).unwrap();
    let errors = sound(&inspect(&disk, "#3"));
    assert!(errors.contains("the backup at the disk's end is used"), "{errors}");
    let end = bytes.len() - 512;
    bytes[end..].fill(0);
    std::fs::write(&disk, &bytes).unwrap();
    let errors = refused(&inspect(&disk, "#3"), 8);
    assert!(errors.contains("damaged: there is no primary header; there is no backup header"), "{errors}");
    sound(&inspect(&disk, "@4M"));
}
