//! `extant lab`: its studies run, print their results, and do not overwrite existing files.

use crate::common::{EXISTS, USAGE, run};
use extant_testkit::{e2fsck_clean, scratch};
use serde_json::Value;

#[track_caller]
fn json(args: &[&str]) -> Value {
    run(["lab"].iter().chain(args)).report()
}

#[test]
fn names_are_made_in_memory_and_in_an_image() {
    let made = json(&["createmany", "--json", "--check", "-m", "test", "2000"]);
    assert_eq!((&made["done"], &made["clean"]), (&Value::from(2000), &Value::from(true)));
    let scratch = scratch();
    let image = scratch.path().join("image");
    let name = image.to_str().unwrap();
    extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", name, "64M"]);
    json(&["createmany", "--json", "--image", name, "-d", "dir", "300"]);
    e2fsck_clean(&image);
}

#[test]
fn a_large_directory_is_measured_by_runs_in_a_file_too() {
    let scratch = scratch();
    let image = scratch.path().join("image");
    let name = image.to_str().unwrap();
    let args = ["large-dir", "--json", "--names", "5000", "--per", "1000", "--runs", "3", "--image", name];
    let report = json(&args);
    let hashes = report["hashes"].as_array().unwrap();
    assert_eq!(hashes.len(), 2);
    for of in hashes {
        assert_eq!((&of["done"], &of["check_errors"]), (&Value::from(5000), &Value::from(0)), "{of}");
        let runs = &of["runs"];
        let [min, median, max] = ["min", "median", "max"].map(|key| runs[key].as_f64().unwrap());
        assert!(runs["runs"] == 3 && 0.0 < min && min <= median && median <= max, "{runs}");
        assert!(of["dir_extents"].as_u64() > Some(0) && !of["points"].as_array().unwrap().is_empty(), "{of}");
    }
    e2fsck_clean(&image);
    // An existing file is not overwritten.
    run(["lab"].iter().chain(&args)).code(EXISTS);
    run(["lab", "large-dir", "--image", "mem:no-size"]).code(USAGE);
}

#[test]
fn drives_and_directories_of_the_system_are_measured_too() {
    let scratch = scratch();
    let dir = scratch.path().to_str().unwrap();
    let args =
        ["large-dir", "--json", "--names", "4000", "--per", "2000", "--hash", "tea", "--window", "0.05"];
    let report = json(&[&args[..], &["--device", "hdd,nvme", "--kernel", dir]].concat());
    let drives: Vec<&Value> =
        report["hashes"][0]["windows"].as_array().unwrap().iter().map(|window| &window["drive"]).collect();
    assert_eq!(drives, ["hdd", "nvme", "hdd", "nvme"], "{report}");
    let kernel = &report["hashes"][1];
    assert_eq!((&kernel["hash"], &kernel["done"]), (&Value::from("kernel"), &Value::from(4000)));
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    let report = json(&["createmany", "--json", "--device", "nvme", "-m", "test", "100"]);
    assert_eq!(report["done"], 100, "{report}");
    run(["lab", "createmany", "--device", "tape", "-m", "test", "1"]).code(USAGE);
    let report = json(&["orphan-stress", "--json", "--widths", "1,2", "--runs", "2", "--loops", "1", dir]);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row["mode"] == "kernel"), "{report}");
    assert!(scratch.path().join("worker-1/file").exists());
}

#[test]
fn orphans_are_compared_in_memory_and_in_a_file() {
    let scratch = scratch();
    let name = scratch.path().join("image");
    for image in ["mem:64M", name.to_str().unwrap()] {
        let modes = "list-v0,list-v3,file,none";
        let args = ["orphans", "--json", "--modes", modes, "--widths", "1,2", "--runs", "2", "--loops", "1"];
        let report = json(&[&args[..], &["--size", "64M", "--image", image]].concat());
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 8);
        let lock = |mode: &str| {
            let row = rows.iter().find(|row| row["mode"] == mode).unwrap();
            row["lock"]["acquisitions"].as_u64().unwrap()
        };
        assert!(lock("list-v3") * 2 <= lock("list-v0") + 100 && lock("file") == 0, "{image}: {report}");
    }
    e2fsck_clean(&name);
}
