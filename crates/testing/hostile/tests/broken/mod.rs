//! The images of `testdata/rules`: small sound images and, for each rule of the checker, the bytes to change.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// A sound image with the bytes changed that break one rule.
pub(crate) struct Broken<'a> {
    /// The rule's code.
    pub(crate) code: &'a str,
    /// The name of the sound image.
    #[allow(dead_code, reason = "one of the two tests needs it")]
    pub(crate) name: &'a str,
    /// The sound image.
    #[allow(dead_code, reason = "one of the two tests needs it")]
    pub(crate) sound: &'a [u8],
    /// The broken image.
    pub(crate) bytes: Vec<u8>,
}

/// Calls `test` for each rule that has an image; returns the rules' codes, sorted.
pub(crate) fn each(mut test: impl FnMut(Broken)) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata/rules");
    let table: BTreeMap<String, Value> =
        serde_json::from_slice(&std::fs::read(dir.join("rules.json")).unwrap()).unwrap();
    let mut images: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for (code, broken) in &table {
        let name = broken["image"].as_str().unwrap();
        let sound = images.entry(name).or_insert_with(|| {
            zstd::decode_all(&std::fs::read(dir.join(format!("{name}.img.zst"))).unwrap()[..]).unwrap()
        });
        let mut bytes = sound.clone();
        for edit in broken["edits"].as_array().unwrap() {
            let at = edit[0].as_u64().unwrap() as usize;
            let new = from_hex(edit[1].as_str().unwrap());
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        test(Broken { code, name, sound, bytes });
    }
    table.into_keys().collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
