//! The JSON of the command: each object has the id of its schema, and the newest version of each schema of
//! docs/schemas is that of some output. (Other tests compare each output that they read with its schema, too:
//! `common::schemas`.)

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use extant_testkit::scratch;

use crate::common::{extant, outcome, schemas};

/// Commands in the order in which they run, in a directory with a tree `src` and two images of it.
const COMMANDS: &[&str] = &[
    "build --json --no-sync -f -o new.img --from src",
    "build --json -n -o small.img --from src --size 8K",
    "mkfs --json -n empty.img --size 64M",
    "ls --json -R a.img",
    "tree --json a.img",
    "stat --json a.img:/etc/motd a.img:/link",
    "df --json a.img",
    "inspect a.img super --json",
    "inspect a.img groups --json",
    "inspect a.img group 0 --json",
    "inspect a.img inode /etc/motd --json",
    "inspect a.img extents /usr/a --json",
    "inspect a.img dir / --json",
    "inspect a.img htree /many --json",
    "inspect a.img xattr / --json",
    "inspect a.img journal --json",
    "inspect a.img orphans --json",
    "inspect a.img free --json",
    "check --json a.img",
    "check --json --explain DI053",
    "check --json --rules",
    "check --repair -n --json a.img",
    "rescue --json a.img",
    "dump --json a.img -o a.dump",
    "restore --json a.dump a.img",
    "diff --json a.img src",
    "update --json -n a.img --from src/etc",
    "trim --json a.img",
    "tune --json -n -L x a.img",
    "optimize --json -n a.img",
    "resize --json -n a.img +64M",
    "doctor --json",
    "lab createmany --json -m test 100",
    "lab large-dir --json --names 2000 --per 1000",
    "lab buffered --json --cases overwrite --sizes 4K --bytes 64K --rounds 1",
    "lab io --json --rw read --size 64K",
    "lab orphans --json --modes file --widths 1 --loops 1 --runs 1",
    "lab fsync --json --devices nvme --widths 1 --seconds 0.05",
    "lab fsync --json --kernel . --widths 1 --seconds 0.05",
    "lab shrinker --json --scale 0.002 --runs 1 --cases reader --policies es-chunk",
];

/// `extant status` needs a mount, and `extant lab all` needs minutes or kept studies: the tests of these
/// commands compare their output.
const ELSEWHERE: [&str; 2] = ["urn:extant:status:1", "urn:extant:lab-all:1"];

#[test]
fn each_schema_is_that_of_an_output() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("src/etc")).unwrap();
    std::fs::create_dir_all(at("src/usr")).unwrap();
    std::fs::create_dir_all(at("src/many")).unwrap();
    std::fs::write(at("src/etc/motd"), "hello\n").unwrap();
    std::fs::write(at("src/usr/a"), [7; 100_000]).unwrap();
    std::os::unix::fs::symlink("etc/motd", at("src/link")).unwrap();
    for number in 0..300 {
        std::fs::write(at(&format!("src/many/file number {number} of this directory")), "").unwrap();
    }
    run(dir.path(), "build -q --no-sync -o a.img --from src --size 64M");
    let mut seen = BTreeSet::from(ELSEWHERE.map(str::to_owned));
    for line in COMMANDS {
        let found = run(dir.path(), line);
        assert!(!found.is_empty(), "`{line}` prints no JSON");
        seen.extend(found);
    }
    // The files of older versions stay.
    let mut newest: BTreeMap<String, u32> = BTreeMap::new();
    for id in schemas::ids() {
        let (name, number) = id.rsplit_once(':').unwrap();
        let newest = newest.entry(name.to_owned()).or_default();
        *newest = number.parse().unwrap_or(0).max(*newest);
    }
    let newest: BTreeSet<String> = newest.iter().map(|(name, number)| format!("{name}:{number}")).collect();
    assert_eq!(newest, seen, "the newest schemas, and those that the commands above print");
}

/// Runs the command, and returns the ids of what it prints.
fn run(dir: &Path, line: &str) -> Vec<String> {
    let outcome = outcome(extant().current_dir(dir).args(line.split(' ')));
    if line.contains("--json") { schemas::check(line, &outcome.stdout) } else { Vec::new() }
}

#[test]
fn the_page_about_json_lists_each_schema() {
    let page = include_str!("../../../../../docs/json.md");
    for id in schemas::ids() {
        let file = id.trim_start_matches("urn:extant:").replace(':', "-");
        assert!(page.contains(&format!("[`{id}`](schemas/{file}.json)")), "docs/json.md does not list {id}");
    }
}

#[test]
fn a_field_without_a_schema_is_found() {
    let found = |text: &'static str| std::panic::catch_unwind(|| schemas::check("test", text)).is_err();
    let good = r#"[{"schema": "urn:extant:trim:1", "image": "a", "trimmed_bytes": 1, "minimum_bytes": 0}]"#;
    assert!(!found(good));
    for bad in [
        r#"[{"image": "a", "trimmed_bytes": 1, "minimum_bytes": 0}]"#,
        r#"[{"schema": "urn:extant:trim:2", "image": "a", "trimmed_bytes": 1, "minimum_bytes": 0}]"#,
        r#"[{"schema": "urn:extant:trim:1", "image": "a", "trimmed_bytes": 1}]"#,
        r#"[{"schema": "urn:extant:trim:1", "image": "a", "trimmed_bytes": "1", "minimum_bytes": 0}]"#,
        r#"[{"schema": "urn:extant:trim:1", "image": "a", "trimmed_bytes": 1, "minimum_bytes": 0, "x": 1}]"#,
    ] {
        assert!(found(bad), "{bad}");
    }
}
