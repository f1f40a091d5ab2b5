//! Damaged images are repaired: the checker and e2fsck are silent, intact files stay, undo restores every
//! byte.
//!
//! More: `cargo xtask repair --corruptions 5000 --seed S`.

mod images;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Rules whose image cannot be repaired to the end, and the reasons.
const LEFT: &[(&str, &str)] = &[
    ("SB001", "nothing of the superblock is left"),
    ("SB003", "no superblock makes sense, and there is no backup"),
    ("SB004", "an unknown feature"),
    ("SB005", "the image ends before its file system"),
];

#[test]
fn damaged_images_are_repaired() {
    let mut images = images::all();
    images.extend(images::more());
    images.extend(images::recorded());
    let repairs = extant_hostile::Repairs::run(&images, 1, 160);
    println!("{repairs:#?}");
    assert_eq!(repairs.undone, repairs.rounds);
    assert_eq!(repairs.losing, 0, "an intact file was lost, and the plan does not say so");
    assert!(repairs.clean_percent() >= 97.0, "{}", repairs.clean_percent());
}

#[test]
fn the_image_of_each_rule_is_repaired() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rules");
    let table: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(dir.join("rules.json")).unwrap()).unwrap();
    let scratch = extant_testkit::scratch();
    let mut images: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut bad = Vec::new();
    for (code, broken) in &table {
        let name = broken["image"].as_str().unwrap();
        let sound = images.entry(name.to_owned()).or_insert_with(|| {
            zstd::decode_all(&std::fs::read(dir.join(format!("{name}.img.zst"))).unwrap()[..]).unwrap()
        });
        let mut bytes = sound.clone();
        for edit in broken["edits"].as_array().unwrap() {
            let at = edit[0].as_u64().unwrap() as usize;
            let new = from_hex(edit[1].as_str().unwrap());
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        let intact = extant_hostile::files(sound);
        let result = extant_hostile::repair(&bytes, &intact, scratch.path());
        // e2fsck cannot check an image without its journal device.
        let may_stay = name == "external-journal" || LEFT.iter().any(|(left, _)| left == code);
        if !result.undone || !result.lost.is_empty() || (!result.is_clean() && !may_stay) {
            bad.push(format!("{code} ({name}): {result:?}"));
        }
    }
    assert!(bad.is_empty(), "{} of {}:\n{}", bad.len(), table.len(), bad.join("\n"));
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
