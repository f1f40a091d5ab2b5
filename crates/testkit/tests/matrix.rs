//! The matrix of images: a few recipes in every run, all of them on demand.

use testkit::matrix::{Built, Needs, Outcome, Recipe, build_all, recipes};
use testkit::walk::needs_recovery;
use testkit::{diff, e2fsck_clean, is_root, scratch};

/// Recipes that are built in every run, of each sort one.
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

/// Who reads an image twice sees one tree; who replays its journal leaves a clean image behind.
fn examine(built: &Built) {
    if !built.mountable {
        assert!(built.manifest().entries.len() > 1, "{}", built.name);
        return;
    }
    if !is_root() {
        return;
    }
    let before = std::fs::read(&built.image).unwrap();
    let view = built.kernel_view().unwrap_or_else(|error| panic!("{}: {error}", built.name));
    let one = view.manifest();
    let (image, _dir) = view.close();
    // With an external journal e2fsck would have to be shown that too.
    if built.dirty && built.journal.is_none() {
        assert!(needs_recovery(&built.image) || built.name == "crash-no-journal", "{}", built.name);
        e2fsck_clean(&image);
    }
    assert_eq!(diff(&one, &built.manifest(), &built.diff_options()), Vec::<String>::new(), "{}", built.name);
    assert!(before == std::fs::read(&built.image).unwrap(), "{}: looking has changed it", built.name);
}

fn report(outcomes: &[Outcome]) {
    for outcome in outcomes {
        let told = match &outcome.built {
            Ok(built) => format!("{} KiB", disk_kib(built)),
            Err(why) => why.clone(),
        };
        println!("{:28} {:6} ms  {told}", outcome.recipe.name, outcome.time.as_millis());
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
