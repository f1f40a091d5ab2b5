//! `extant status`: the numbers of a mount under load.
//!
//! Needs /dev/fuse. Without it, tests print a note and pass.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::common::mounted::{Mount, empty_image, has_fuse, has_fuse_and_root, runs};
use crate::common::{USAGE, run};

const NO_MOUNT: i32 = 9;

/// Runs `during` while files are created, written, synced, read and removed in two directories.
fn under_load<R>(mount: &Mount, during: impl FnOnce() -> R) -> R {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (dir, ends) = (mount.path().join(format!("dir{writer}")), &ends);
            std::fs::create_dir(&dir).unwrap();
            scope.spawn(move || {
                for number in 0_u64.. {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = dir.join(number.to_string());
                    let file = std::fs::File::create(&path).unwrap();
                    std::io::Write::write_all(&mut &file, &[7; 10_000]).unwrap();
                    if number % 16 == 0 {
                        file.sync_all().unwrap();
                    }
                    assert_eq!(std::fs::read(&path).unwrap().len(), 10_000);
                    assert!(std::fs::metadata(dir.join("absent")).is_err());
                    if number >= 50 {
                        std::fs::remove_file(dir.join((number - 50).to_string())).unwrap();
                    }
                }
            });
        }
        let result = during();
        ends.store(true, Ordering::Relaxed);
        result
    })
}

/// The only mount of a list.
#[track_caller]
fn one(list: Value) -> Value {
    let Value::Array(mounts) = list else { panic!("{list}") };
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    mounts.into_iter().next().unwrap()
}

fn requests(status: &Value) -> HashMap<String, Value> {
    let each = status["requests"].as_array().unwrap().iter();
    each.map(|request| (request["operation"].as_str().unwrap().to_owned(), request.clone())).collect()
}

#[test]
fn json_has_rates_percentiles_and_commits_while_files_are_written() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    // Otherwise the kernel reads nothing: it still has what was written.
    let mount = Mount::new(&image, &["-o", "commit=1,nowriteback_cache"]);
    let dir = mount.path().to_str().unwrap();
    let status = under_load(&mount, || one(run(args!["status", dir, "--json", "--interval", "2"]).report()));
    assert_eq!((status["version"].as_u64(), status["mount"].as_str()), (Some(1), Some(dir)));
    assert_eq!(status["source"].as_str(), image.to_str());
    assert_eq!(status["process"].as_i64(), Some(mount.server().as_raw_nonzero().get().into()));
    assert_eq!(status["read_write"], true);
    assert!((2.0..60.0).contains(&status["window_seconds"].as_f64().unwrap()), "{status}");
    assert!(status["requests_per_second"].as_f64().unwrap() > 0.0);
    let requests = requests(&status);
    for operation in ["create", "write", "fsync", "read", "lookup", "unlink"] {
        let request = requests.get(operation).unwrap_or_else(|| panic!("no {operation}: {status}"));
        assert!(
            request["count"].as_u64() > Some(0) && request["per_second"].as_f64() > Some(0.0),
            "{request}"
        );
        let times =
            ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| request[name].as_u64().unwrap());
        assert!(times[0] > 100 && times.is_sorted(), "{request}");
        assert!(
            request["time_ns"].as_u64().unwrap() >= request["count"].as_u64().unwrap() * 100,
            "{request}"
        );
    }
    assert!(requests["lookup"]["errors"].as_u64() == Some(0), "a missing name is an answer without an inode");
    let volume = &status["server"]["volume"];
    let writing = &volume["writing"];
    let commits = &writing["commits"];
    assert!(commits["count"].as_u64() > Some(0) && commits["by_sync"].as_u64() > Some(0), "{commits}");
    assert!(commits["blocks"].as_u64() >= commits["count"].as_u64(), "{commits}");
    assert!(commits["time_max_ns"].as_u64() > Some(0), "{commits}");
    let log = &writing["log"];
    assert!(
        log["used_blocks"].as_u64() > Some(0) && log["used_blocks"].as_u64() <= log["size_blocks"].as_u64()
    );
    assert!(writing["data"]["written_bytes"].as_u64() > Some(100_000), "{writing}");
    assert!(writing["flushes"]["requests"].as_u64() > Some(0), "{writing}");
    let memory = &volume["memory"];
    assert_eq!(memory["limit_bytes"].as_u64(), Some(64 << 20));
    let owners = memory["owners"].as_array().unwrap();
    assert!(owners.iter().any(|owner| owner["name"] == "file data" && owner["bytes"].as_u64() > Some(0)));
    assert_eq!(status["server"]["errors_met"]["damage"], 0);
    // The files are still in the cache, or written back: nothing is dirty after a sync.
    runs(mount.path(), "sync .");
    let status = one(run(args!["status", dir, "--json"]).report());
    let data = &status["server"]["volume"]["writing"]["data"];
    assert_eq!((&data["dirty_bytes"], &data["oldest_dirty_ms"]), (&Value::from(0), &Value::Null), "{data}");
    assert_eq!(status["server"]["volume"]["writing"]["orphans"]["count"], 0);
}

/// A line of Prometheus's text format: its name, its labels, its value.
fn sample(line: &str) -> (&str, Vec<&str>, f64) {
    let (name, rest) = line.split_once('{').unwrap_or_else(|| panic!("{line}"));
    let (labels, value) = rest.rsplit_once("} ").unwrap_or_else(|| panic!("{line}"));
    (name, labels.split(',').collect(), value.parse().unwrap_or_else(|_| panic!("{line}")))
}

#[test]
fn metrics_are_in_the_format_of_prometheus() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let dir = mount.path().to_str().unwrap();
    let metrics = under_load(&mount, || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let printed = run(args!["status", dir, "--metrics"]);
        printed.code(0);
        printed.stdout.clone()
    });
    let of_mount = format!("mount=\"{dir}\"");
    let (mut family, mut kind, mut seen) = (String::new(), "", Vec::new());
    let mut below: HashMap<String, f64> = HashMap::new();
    for line in metrics.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap().to_owned();
            assert!(!seen.contains(&family), "{family} is not in one piece");
            seen.push(family.clone());
        } else if let Some(typed) = line.strip_prefix("# TYPE ") {
            let (name, its_kind) = typed.split_once(' ').unwrap();
            assert_eq!(name, family);
            kind = its_kind;
        } else {
            let (name, labels, value) = sample(line);
            assert!(labels.contains(&&*of_mount) && value >= 0.0, "{line}");
            match kind {
                "histogram" => assert!(name.starts_with(&family), "{line}"),
                "counter" => assert!(name == family && name.ends_with("_total"), "{line}"),
                _ => assert_eq!((name, kind), (&*family, "gauge")),
            }
            if name.ends_with("_bucket") {
                let before = below.insert(labels[1].to_owned(), value).unwrap_or(0.0);
                assert!(before <= value, "cumulative: {line}");
            }
        }
    }
    for name in [
        "extant_request_duration_seconds",
        "extant_commits_total",
        "extant_dirty_bytes",
        "extant_memory_owner_bytes",
    ] {
        assert!(seen.iter().any(|seen| seen == name), "{name}");
    }
    assert!(below.keys().any(|operation| operation.contains("write")));
}

#[test]
fn a_page_and_a_list_of_all_mounts() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    runs(mount.path(), "mkdir -p a/b; echo x >a/b/c; cat a/b/c");
    let dir = mount.path().to_str().unwrap();
    // Any directory of the mount will do.
    for place in [mount.path().to_owned(), mount.path().join("a/b")] {
        let page = run(args!["status", place]);
        page.code(0);
        assert!(page.stdout.starts_with(&format!("{dir}: {}, read-write, mounted for ", image.display())));
        for label in
            ["requests ", "mkdir ", "commits ", "log ", "dirty data ", "memory ", "space ", "errors "]
        {
            assert!(page.stdout.lines().any(|line| line.starts_with(label)), "{label}: {}", page.stdout);
        }
    }
    // Other tests mount, too.
    let all = run(["status", "--json"]);
    let list: Value = serde_json::from_str(&all.stdout).unwrap();
    assert!(list.as_array().unwrap().iter().any(|one| one["mount"] == dir), "{list}");
}

#[test]
fn the_attribute_cannot_be_set_and_is_in_no_list() {
    if !has_fuse() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &[]);
    let set = rustix::fs::setxattr(mount.path(), "extant.status", b"x", rustix::fs::XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
    let mut names = [0; 1000];
    let len = rustix::fs::listxattr(mount.path(), &mut names[..]).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("extant.status"));
    let short = rustix::fs::getxattr(mount.path(), "extant.status", &mut [0_u8; 100][..]);
    assert_eq!(short, Err(rustix::io::Errno::RANGE));
}

#[test]
fn other_users_do_not_see_it() {
    if !has_fuse_and_root() {
        return;
    }
    let (_dir, image) = empty_image(&[]);
    let mount = Mount::new(&image, &["-o", "allow_other"]);
    let dir = mount.path();
    runs(dir, "chmod 755 .");
    let get = "getfattr --only-values -n extant.status";
    let script = format!("setpriv --reuid=65534 --clear-groups sh -c 'stat . >/dev/null && ! {get} . 2>&1'");
    let said = runs(dir, &script);
    assert!(said.contains("Operation not permitted"), "{said}");
    assert!(runs(dir, &format!("{get} .")).starts_with("{\"version\":1,"));
}

#[test]
fn what_is_no_mount_of_extant_is_refused() {
    let dir = extant_testkit::scratch();
    let no_mount = run(args!["status", dir.path()]);
    no_mount.code(NO_MOUNT);
    let expected =
        format!("extant: {} is no mount of extant: it is on a file system of type ", dir.path().display());
    assert!(no_mount.stderr.starts_with(&expected), "{}", no_mount.stderr);
    assert!(no_mount.stderr.contains("`findmnt -t fuse.extant` lists the mounts of extant"));
    let absent = run(args!["status", dir.path().join("absent"), "--json"]);
    assert!(absent.code(NO_MOUNT).contains("absent: there is no such file"));
    run(["status", "--watch", "--json"]).code(USAGE);
    run(["status", "--interval", "0"]).code(USAGE);
    run(["status", "--metrics", "--json"]).code(USAGE);
}

#[test]
fn watch_needs_a_terminal() {
    let watch = run(["status", "--watch"]);
    assert!(watch.code(USAGE).contains("--watch needs a terminal"), "{}", watch.stderr);
}
