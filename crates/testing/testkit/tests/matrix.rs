//! The matrix of images: a few recipes in every run, all of them on demand.

use std::collections::BTreeSet;
use std::path::Path;

use extant_testkit::matrix::{Built, Needs, Outcome, Recipe, build_all, recipes};
use extant_testkit::walk::needs_recovery;
use extant_testkit::{debugfs, diff, e2fsck_clean, is_root, not_root, scratch};

/// Recipes that every run builds, one of each kind.
const FEW: [&str; 6] = [
    "ext4-by-mke2fs",
    "inline-data-1k",
    "fragmented-1k",
    "crash-ordered-1k",
    "crash-external-journal",
    "casefold",
];

fn possible(recipes: Vec<Recipe>) -> Vec<Recipe> {
    let root = is_root();
    if !root {
        eprintln!("not root: recipes that need loop devices are left out");
    }
    recipes.into_iter().filter(|recipe| root || recipe.needs() == Needs::Nothing).collect()
}

/// Two reads of an image must give the same tree, and the replay of its journal a clean image.
fn examine(built: &Built) {
    if !built.mountable {
        assert!(built.manifest().entries.len() > 1, "{}", built.name);
        return;
    }
    if not_root() {
        return;
    }
    let before = std::fs::read(&built.image).unwrap();
    let view = built.kernel_view().unwrap_or_else(|error| panic!("{}: {error}", built.name));
    let one = view.manifest();
    let (image, _dir) = view.close();
    // With an external journal e2fsck would need the journal, too.
    if built.dirty && built.journal.is_none() {
        assert!(needs_recovery(&built.image) || built.name == "crash-no-journal", "{}", built.name);
        e2fsck_clean(&image);
    }
    assert_eq!(diff(&one, &built.manifest(), &built.diff_options()), Vec::<String>::new(), "{}", built.name);
    assert!(before == std::fs::read(&built.image).unwrap(), "{}: looking has changed it", built.name);
}

fn report(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let result = match &outcome.built {
            Ok(built) => format!("{} KiB", disk_kib(built)),
            Err(why) => why.clone(),
        };
        println!("{:28} {:6} ms  {result}", outcome.recipe.name, outcome.time.as_millis());
    }
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| outcome.built.is_err()).map(|outcome| outcome.recipe.name).collect();
    assert!(failed.is_empty(), "not built: {failed:?}");
}

fn disk_kib(built: &Built) -> u64 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(&built.image).unwrap().blocks() / 2
}

#[test]
fn a_few_recipes() {
    let dir = scratch();
    let few = recipes().into_iter().filter(|recipe| FEW.contains(&recipe.name)).collect();
    let outcomes = build_all(&possible(few), dir.path(), 2);
    report(&outcomes);
    for built in outcomes.into_iter().flat_map(|outcome| outcome.built) {
        examine(&built);
    }
}

/// Checks with debugfs and dumpe2fs what the names of some recipes state.
#[test]
fn recipes_are_what_they_say() {
    if !is_root() {
        eprintln!("not root: nothing to look at");
        return;
    }
    let dir = scratch();
    let promises = [
        ("extents-depth-3: dump_extents deep", " 0/ 3 "),
        ("extents-depth-2: dump_extents deep", " 0/ 2 "),
        ("fragmented-1k: dump_extents extents-1500", " 0/ 2 "),
        ("fragmented-1k: dump_extents stripes", "Uninit"),
        ("htree-three-levels: htree_dump deep", "Indirect levels: 2"),
        ("htree-1k: htree_dump two-levels", "Indirect levels: 1"),
        ("htree-4k: htree_dump many", "Indirect levels: 1"),
        ("hash-tea-unsigned: htree_dump of-500", "Hash Version: 2"),
        ("hash-tea-unsigned: stats", "unsigned_directory_hash"),
        ("hash-legacy: htree_dump of-500", "Hash Version: 0"),
        ("casefold: htree_dump many", "Indirect levels: 0"),
        ("subdirectories-65010: stat many", "Links: 1 "),
        ("inline-data: stat of-100", "Flags: 0x10000000"),
        ("ea-inode: ea_list large-65536", "user.large (65536)"),
        ("encrypted-tree: stat secret", "Flags: 0x80800"),
        ("indirect-1k: stat last-of-triple", "(TIND)"),
        ("csum-seed-new-uuid: stats", "Checksum seed:"),
        ("quota-all-types: stats", "Project quota inode:"),
        ("mmp: stats", "MMP update interval:"),
        ("crash-orphan-file: stats", "orphan_present"),
        ("crash-orphan-list: stats", "needs_recovery"),
        ("crash-ordered: stats", "journal_checksum_v3"),
        ("crash-checksum-v1: stats", "journal_checksum journal_64bit"),
        ("crash-async-commit: stats", "journal_async_commit"),
        ("crash-ordered: stats", "journal_64bit"),
        ("crash-ordered: logdump", "revoke table"),
    ];
    let wanted: BTreeSet<&str> = promises.iter().map(|(what, _)| what.split_once(": ").unwrap().0).collect();
    let recipes: Vec<Recipe> = recipes().into_iter().filter(|recipe| wanted.contains(recipe.name)).collect();
    assert_eq!(recipes.len(), wanted.len());
    let outcomes = build_all(&recipes, dir.path(), 2);
    report(&outcomes);
    let mut broken = Vec::new();
    for (what, promised) in promises {
        let (name, request) = what.split_once(": ").unwrap();
        let image = dir.path().join(format!("{name}.img"));
        let mut said = debugfs(&image, request);
        if request == "stats" {
            said +=
                &String::from_utf8_lossy(&extant_testkit::run("dumpe2fs", [Path::new("-h"), &image]).stdout);
        }
        if !said.contains(promised) {
            broken.push(format!(
                "{what}: no {promised:?} in {}",
                said.lines().take(200).collect::<Vec<_>>().join("\n")
            ));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n\n"));
}

#[test]
#[ignore = "builds all images: a minute or two, 3 GB of memory"]
fn all_recipes() {
    let dir = scratch();
    let start = std::time::Instant::now();
    let outcomes = build_all(&possible(recipes()), dir.path(), 2);
    println!("{} recipes in {:.1} s", outcomes.len(), start.elapsed().as_secs_f64());
    report(&outcomes);
    let start = std::time::Instant::now();
    let mut failed = Vec::new();
    for built in outcomes.into_iter().flat_map(|outcome| outcome.built) {
        if std::panic::catch_unwind(|| examine(&built)).is_err() {
            failed.push(built.name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    println!("examined in {:.1} s", start.elapsed().as_secs_f64());
}
