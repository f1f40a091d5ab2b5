//! Walk equality: for every image of the matrix, made by mke2fs, debugfs and the kernel, a volume shows the
//! same tree as the kernel, in every field. For images that this kernel does not mount, debugfs takes its
//! place. A dirty image shows the tree that opening it for writing leaves.
//!
//! Environment: `EXTANT_MATRIX=part-of-its-name` selects one image.

use crate::common;

use std::sync::Mutex;

use extant_testkit::{diff, matrix};

#[test]
fn every_image_of_the_matrix_reads_as_the_kernel_reads_it() {
    let failures: Mutex<Vec<String>> = Mutex::default();
    let mut compared = 0;
    let only = std::env::var("EXTANT_MATRIX").ok();
    let recipes: Vec<matrix::Recipe> = matrix::recipes()
        .into_iter()
        .filter(|recipe| only.as_ref().is_none_or(|only| recipe.name.contains(only.as_str())))
        .filter(|recipe| extant_testkit::is_root() || recipe.needs() == matrix::Needs::Nothing)
        .collect();
    let dir = extant_testkit::scratch();
    for outcome in matrix::build_all(&recipes, dir.path(), 2) {
        let built = match outcome.built {
            Ok(built) => built,
            Err(why) => {
                println!("{}: not built here: {why}", outcome.recipe.name);
                continue;
            }
        };
        let name = built.name;
        let compare = || -> Vec<String> {
            let volume = common::open(&built.image, built.journal.as_deref());
            let mut ours = common::manifest(&volume);
            let mut theirs = if extant_testkit::is_root() || !built.mountable {
                built.manifest()
            } else {
                extant_testkit::walk::by_debugfs(&built.image)
            };
            if !built.mountable {
                ours.entries.values_mut().for_each(as_debugfs_reports_it);
            }
            if name == "encrypted-tree" {
                // The kernel encodes names without a key in its own way: these are only counted.
                assert_eq!(theirs.entries.len(), ours.entries.len());
                theirs.entries.retain(|path, _| ours.entries.contains_key(path));
                ours.entries.retain(|path, _| theirs.entries.contains_key(path));
            }
            let mut lines = diff(&theirs, &ours, &built.diff_options());
            if built.dirty {
                drop(volume);
                let left = common::recovered(&built.image, built.journal.as_deref(), dir.path());
                let differences = common::differences(&ours, &left);
                lines.extend(differences.into_iter().map(|line| format!("recovered: {line}")));
            }
            lines
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(compare)) {
            Ok(lines) if lines.is_empty() => compared += 1,
            Ok(lines) => failures.lock().unwrap().push(format!("{name}:\n  {}", lines.join("\n  "))),
            Err(_) => failures.lock().unwrap().push(format!("{name}: panicked, see above")),
        }
        built.delete();
    }
    let failures = failures.into_inner().unwrap();
    assert!(
        failures.is_empty(),
        "{} of {} images differ:\n{}",
        failures.len(),
        failures.len() + compared,
        failures.join("\n")
    );
    println!("{compared} images are equal");
    assert!(
        !extant_testkit::is_root() || only.is_some() || compared >= 60,
        "only {compared} images were compared"
    );
}

/// ACL entries have id 0 where no id belongs (the kernel has 0xFFFFFFFF there); targets are text.
fn as_debugfs_reports_it(entry: &mut extant_testkit::Entry) {
    if let Some(target) = &mut entry.target {
        *target = String::from_utf8_lossy(target).into_owned().into_bytes();
    }
    // Lists of attributes are lines of text.
    entry.xattrs.retain(|name, _| !name.contains(&b'\n'));
    for (name, value) in &mut entry.xattrs {
        if !name.starts_with(b"system.posix_acl_") || value.len() < 4 {
            continue;
        }
        for acl_entry in value[4..].chunks_exact_mut(8) {
            let named = matches!(acl_entry[0], 0x02 | 0x08);
            if !named {
                acl_entry[4..].fill(0);
            }
        }
    }
}
