//! `extant doctor`: the lines, the JSON and the page name the same items; the exit code says whether images
//! can be mounted.

use crate::common::mounted::{has_fuse, has_fuse_and_root};
use crate::common::{extant, outcome};

/// Images cannot be mounted.
const NO_MOUNT: i32 = 1;
const PAGE: &str = include_str!("../../../../../docs/mount-admin.md");

#[test]
fn the_lines_the_json_and_the_page_have_the_same_items() {
    let json = outcome(extant().args(["doctor", "--json"]));
    let report = json.report();
    let lines = outcome(extant().arg("doctor"));
    assert_eq!((lines.code, &*lines.stderr), (json.code, ""));
    let items = report["items"].as_array().unwrap();
    let expected: String = items
        .iter()
        .map(|item| {
            let text = |key: &str| item[key].as_str().unwrap_or_else(|| panic!("{key}: {item}"));
            assert!(["ok", "off", "missing"].contains(&text("state")), "{item}");
            assert_eq!(item.get("remedy").is_some(), text("state") != "ok", "{item}");
            let remedy = item.get("remedy").map(|_| format!("; {}", text("remedy"))).unwrap_or_default();
            format!("{:<8} {:<16} {}{remedy}\n", text("state"), text("name"), text("finding"))
        })
        .collect();
    assert_eq!(lines.stdout, expected);

    let shown = PAGE.split_once("$ extant doctor\n").unwrap().1.split_once("```").unwrap().0;
    let name = |line: &str| line.split_whitespace().nth(1).unwrap().to_owned();
    let names: Vec<String> = shown.lines().map(name).collect();
    assert_eq!(names, expected.lines().map(name).collect::<Vec<_>>());
}

#[test]
fn where_the_other_tests_mount_it_finds_a_way() {
    if !has_fuse() {
        return;
    }
    let found = outcome(extant().args(["doctor", "--json"]));
    assert_eq!(found.code, 0, "{}", found.stdout);
    let way = if extant_testkit::is_root() { "direct" } else { "fusermount3" };
    assert_eq!(found.report()["mounts_by"], way);
}

#[test]
fn without_the_device_the_exit_code_and_the_remedy_say_so() {
    if !has_fuse_and_root() {
        return;
    }
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && exec \"$0\" doctor";
    let mut command = extant_testkit::command("unshare");
    let found = outcome(command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_extant")]));
    assert_eq!(found.code, NO_MOUNT, "{}{}", found.stdout, found.stderr);
    let first = found.stdout.lines().next().unwrap();
    assert!(first.starts_with("missing  fuse_device ") && first.contains("--device /dev/fuse"), "{first}");
}
