//! Creates `testdata/rules`: small sound images, and for each rule of the checker a few changed bytes that
//! break it.
//!
//! `cargo run --profile ci -p extant-hostile --example rule_data -- testdata/rules [SECONDS]`

#[path = "rule_data/craft.rs"]
mod craft;
#[path = "../tests/images/mod.rs"]
mod images;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_device::{Device, MemDevice};
use extant_hostile::Mutator;
use serde_json::{Value, json};

/// A change that breaks a rule.
struct Broken {
    image: String,
    /// Offsets, and the new bytes at each.
    edits: Vec<(usize, Vec<u8>)>,
    /// Number of findings, plus a large penalty for a large image; lower is better.
    cost: usize,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("the directory");
    let seconds = args.next().map_or(60, |seconds| seconds.parse().expect("seconds"));
    let dir = Path::new(&dir);
    std::fs::create_dir_all(dir).expect("the directory");
    let mut images = images::all();
    images.extend(from_the_kernel());
    let devices: Vec<MemDevice> = images.iter().map(|(_, mutator)| device_of(mutator.sound())).collect();
    let mut copies: Vec<Vec<u8>> = images.iter().map(|(_, mutator)| mutator.sound().to_vec()).collect();
    let mut found: BTreeMap<&'static str, Broken> = BTreeMap::new();
    let begun = Instant::now();
    let mut seed = 0;
    while begun.elapsed() < Duration::from_secs(seconds) {
        seed += 1;
        let at = seed as usize % images.len();
        let (name, mutator) = &images[at];
        let bytes = &mut copies[at];
        let damage = mutator.damage(bytes, seed);
        for (offset, before) in &damage.undo {
            devices[at].write_at(*offset as u64, &bytes[*offset..offset + before.len()]).expect("inside");
        }
        let report =
            extant_check::check(&devices[at], &extant_check::Options::default()).expect("memory can be read");
        let findings = report.counts.values().sum::<u64>() as usize;
        for finding in &report.findings {
            let known = found.get(finding.rule.code).map_or(usize::MAX, |broken| broken.cost);
            // Prefer the small images, which come first.
            let small = images::all_len();
            let cost = findings + if at < small { 0 } else { 1000 };
            if cost < known {
                let edits = edits(mutator.sound(), bytes, &damage);
                found.insert(finding.rule.code, Broken { image: name.clone(), edits, cost });
            }
        }
        mutator.undo(bytes, &damage);
        for (offset, before) in damage.undo.iter().rev() {
            let sound = &mutator.sound()[*offset..offset + before.len()];
            devices[at].write_at(*offset as u64, sound).expect("inside");
        }
    }
    for (name, mutator) in &images {
        if found.values().any(|broken| broken.image == *name) {
            let packed = zstd::encode_all(mutator.sound(), 19).expect("packing works");
            std::fs::write(dir.join(format!("{name}.img.zst")), packed).expect("the image is written");
        }
    }
    let mut crafted: Vec<(&str, Vec<u8>)> = Vec::new();
    for (name, mutator) in images.iter().take(images::all_len()) {
        crafted.extend(craft::all(name, mutator).into_iter().map(|bytes| (name.as_str(), bytes)));
    }
    for (name, bytes) in crafted {
        let sound = images.iter().find(|(known, _)| known == name).expect("an image").1.sound();
        let report = extant_check::check(&device_of(&bytes), &extant_check::Options::default())
            .expect("memory can be read");
        for finding in &report.findings {
            let edits = runs(sound, &bytes, 0..bytes.len());
            found.entry(finding.rule.code).or_insert(Broken { image: name.to_owned(), edits, cost: 0 });
        }
    }
    let rules: serde_json::Map<String, Value> = found
        .iter()
        .map(|(code, broken)| {
            let edits: Vec<Value> =
                broken.edits.iter().map(|(offset, bytes)| json!([offset, hex(bytes)])).collect();
            ((*code).to_owned(), json!({ "image": broken.image, "edits": edits }))
        })
        .collect();
    let text = serde_json::to_string_pretty(&rules).expect("plain values") + "\n";
    std::fs::write(dir.join("rules.json"), text).expect("the table is written");
    let missing: Vec<&str> =
        extant_check::rules::all().map(|rule| rule.code).filter(|code| !found.contains_key(code)).collect();
    println!("{} rules broken in {seed} rounds; not: {}", found.len(), missing.join(" "));
}

/// Images that e2fsprogs alone cannot create: logs to replay, orphans, encrypted and casefolded directories.
/// Needs root; returns nothing without.
fn from_the_kernel() -> Vec<(String, Mutator)> {
    const NAMES: &[&str] = &[
        "crash-orphan-file",
        "crash-orphan-list",
        "crash-no-csum-64bit",
        "crash-fast-commit",
        "external-journal",
        "casefold",
        "encrypted-tree",
        "htree-1k",
        "quota-by-mke2fs",
    ];
    if extant_testkit::not_root() {
        return Vec::new();
    }
    let dir = extant_testkit::scratch();
    let wanted: Vec<_> =
        extant_testkit::matrix::recipes().into_iter().filter(|recipe| NAMES.contains(&recipe.name)).collect();
    let built = extant_testkit::matrix::build_all(&wanted, dir.path(), 1);
    let built = built.into_iter().filter_map(|outcome| outcome.built.ok());
    built
        .map(|built| {
            // Metadata only: file contents would make the images large.
            let bare = dir.path().join("bare.img");
            let _ = std::fs::remove_file(&bare);
            let made = extant_testkit::command("e2image")
                .arg("-r")
                .arg(&built.image)
                .arg(&bare)
                .output()
                .expect("e2image");
            assert!(made.status.success(), "{}: {}", built.name, String::from_utf8_lossy(&made.stderr));
            (built.name.to_owned(), Mutator::new(std::fs::read(&bare).expect("an image")))
        })
        .collect()
}

fn device_of(bytes: &[u8]) -> MemDevice {
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, bytes).expect("the image fits the memory made for it");
    device
}

/// The bytes that the damage changed, in runs.
fn edits(sound: &[u8], damaged: &[u8], damage: &extant_hostile::Damage) -> Vec<(usize, Vec<u8>)> {
    let mut places: Vec<usize> = Vec::new();
    for (offset, before) in &damage.undo {
        places.extend((*offset..offset + before.len()).filter(|at| sound[*at] != damaged[*at]));
    }
    places.sort_unstable();
    places.dedup();
    runs(sound, damaged, places)
}

/// The bytes at `places` that differ, in runs.
fn runs(sound: &[u8], damaged: &[u8], places: impl IntoIterator<Item = usize>) -> Vec<(usize, Vec<u8>)> {
    let mut runs: Vec<(usize, Vec<u8>)> = Vec::new();
    for at in places.into_iter().filter(|at| sound[*at] != damaged[*at]) {
        match runs.last_mut() {
            Some((start, bytes)) if *start + bytes.len() == at => bytes.push(damaged[at]),
            _ => runs.push((at, vec![damaged[at]])),
        }
    }
    runs
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
