//! For each rule of the checker, a damaged image breaks it. `testdata/rules` holds small sound images and,
//! for each rule, the bytes to change. `examples/rule_data.rs` creates it.

use std::collections::BTreeMap;
use std::path::Path;

use extant_device::{Device, MemDevice};
use serde_json::Value;

/// Rules without an image, and the reasons.
const WITHOUT: &[(&str, &str)] = &[
    ("XA010", "wants a device that fails to read"),
    ("DI022", "wants directories that share blocks by the thousand"),
    ("DI041", "wants two leaves of one hash value"),
    ("EX015", "wants maps that share blocks by the thousand"),
    ("JO023", "wants a log whose checksums fit, with a tag that leads astray"),
    ("DI021", "wants a device that fails to read"),
    ("EX008", "wants a device that fails to read"),
    ("GD011", "wants a device that fails to read"),
    ("IN020", "wants a device that fails to read"),
    ("XA008", "wants a value in an inode of its own, which mke2fs does not make"),
];

#[test]
fn each_rule_has_an_image_that_breaks_it() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/rules");
    let table: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(dir.join("rules.json")).unwrap()).unwrap();
    let mut images: BTreeMap<String, Vec<u8>> = BTreeMap::new();
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
        let device = MemDevice::new(bytes.len() as u64);
        device.write_at(0, &bytes).unwrap();
        let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
        assert!(report.counts.contains_key(code.as_str()), "{code}: {:#?}", report.counts);
    }
    let without: Vec<&str> =
        extant_check::rules::all().map(|rule| rule.code).filter(|code| !table.contains_key(*code)).collect();
    let known: Vec<&str> = WITHOUT.iter().map(|(code, _)| *code).collect();
    let new: Vec<&&str> = without.iter().filter(|code| !known.contains(code)).collect();
    assert!(new.is_empty(), "rules without an image in testdata/rules: {new:?}");
    let stale: Vec<&&str> = known.iter().filter(|code| !without.contains(code)).collect();
    assert!(stale.is_empty(), "have an image by now: {stale:?}");
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
