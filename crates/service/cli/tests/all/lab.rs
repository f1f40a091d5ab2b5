//! `extant lab`: its studies run, print their results, and do not overwrite existing files.

use crate::common::{EXISTS, USAGE, run, schemas};
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

/// A study that is kept is not measured again: JSON and page are made of its tables. Its claims, perhaps of
/// another build, are replaced by those of this one.
#[test]
fn all_studies_continue_with_those_that_are_kept() {
    let scratch = scratch();
    let at = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let (json, html) = (at("o.json"), at("o.html"));
    let report = serde_json::json!({
        "study": "fsync", "question": "What does it cost?", "command": "extant lab all --quick --only fsync",
        "posting": {"subject": "a series", "date": "29 November 2010", "machine": ""},
        "machine": {"cpus": 2, "model": "a CPU", "memory_bytes": 1 << 30, "kernel": "Linux"},
        "parameters": {"size": "quick"}, "seconds": 1.5,
        "tables": [{
            "id": "cost", "title": "Costs", "in_posting": true, "quantity": "cost", "unit": "%",
            "better": "lower", "labels": ["mode"], "extras": [], "note": "as in the posting",
            "rows": [{
                "labels": ["seed"], "posting_change_percent": null,
                "kernel": {"runs": 1, "min": 8.0, "max": 8.0, "median": 8.0, "avg": 8.0, "stddev": 0.0},
                "change": {
                    "against": "none", "percent": 6.0, "plus_minus_percent": null, "significant": null
                },
                "ours": {"runs": 2, "min": 5.0, "max": 7.0, "median": 6.0, "avg": 6.0, "stddev": 1.4},
                "posting": {
                    "runs": null, "min": 5.0, "max": 14.0, "median": null, "avg": 9.5, "stddev": null
                },
                "extras": []
            }]
        }],
        "plots": [{
            "id": "cost-bars", "title": "Costs of <modes>", "x": "mode", "y": "cost [%]", "x_log": false,
            "y_log": false, "form": "bars", "categories": ["seed"], "table": "cost",
            "series": [{"name": "ours", "posting": false, "points": [[0.0, 6.0]]}]
        }],
        "claims": [{
            "claim": "It costs less.", "posting": "5 to 14 %", "ours": "6 %", "kernel": null,
            "verdict": "confirmed", "why": "6 % is in the range.", "tables": ["cost"]
        }]
    });
    let version = env!("CARGO_PKG_VERSION");
    let part = serde_json::json!({"version": version, "size": "quick", "kernel": false, "report": report});
    std::fs::create_dir(at("o.json.parts")).unwrap();
    std::fs::write(at("o.json.parts/fsync.json"), part.to_string()).unwrap();
    let args = ["lab", "all", "--quick", "--only", "fsync", "--json", &json, "--html", &html];
    let done = run(args);
    done.code(0);
    let text = &done.stdout;
    for part in ["| posting", "5.00", "OPEN: Power failures"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("It costs less."), "{text}");
    let written = std::fs::read_to_string(&json).unwrap();
    assert_eq!(schemas::check("lab all --json", &written), ["urn:extant:lab-all:1"]);
    let written: Value = serde_json::from_str(&written).unwrap();
    let study = &written["studies"][0];
    assert_eq!(written["version"], version);
    for part in ["study", "machine", "parameters", "plots"] {
        assert_eq!(study[part], report[part]);
    }
    assert_eq!(study["tables"][0]["rows"], report["tables"][0]["rows"]);
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg class=\"plot\"") && page.contains("Costs of &lt;modes&gt;"), "{page}");
}

#[test]
fn the_schema_of_all_studies_is_that_of_a_full_run() {
    let full = include_str!("../../../../../docs/lab/full.json");
    let mut full: Value = serde_json::from_str(full).unwrap();
    full["schema"] = "urn:extant:lab-all:1".into();
    schemas::check("docs/lab/full.json", &full.to_string());
}

#[test]
fn all_studies_refuse_what_they_cannot_do() {
    run(["lab", "all", "--only", "nothing"]).code(USAGE);
    run(["lab", "all", "--quick", "--full"]).code(USAGE);
    run(["lab", "all", "--only", "fsync", "--kernel", "/nonexistent"]).code(USAGE);
    if !extant_testkit::is_root() {
        run(["lab", "all", "--only", "fsync", "--kernel"]).code(USAGE);
    }
}

#[test]
fn fsync_happy_runs_in_a_directory() {
    let scratch = scratch();
    let folder = scratch.path().to_str().unwrap();
    let report = json(&["fsync", "--json", "--kernel", folder, "--widths", "2", "--seconds", "0.2"]);
    let rows = report["rows"].as_array().unwrap();
    let modes: Vec<&str> = rows.iter().map(|row| row["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["no-fsync", "fsync"]);
    assert!(rows[1]["fsyncs"].as_u64() > Some(0) && rows[1]["cost"].is_number(), "{report}");
    // Its files are removed.
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}
