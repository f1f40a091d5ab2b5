//! For each rule of the checker, a damaged image breaks it. `testdata/rules` holds small sound images and,
//! for each rule, the bytes to change. `examples/rule_data.rs` creates it.

mod broken;

use broken::Broken;
use extant_device::{Device, MemDevice};

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
    let codes = broken::each(|Broken { code, bytes, .. }| {
        let device = MemDevice::new(bytes.len() as u64);
        device.write_at(0, &bytes).unwrap();
        let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
        assert!(report.counts.contains_key(code), "{code}: {:#?}", report.counts);
    });
    let without: Vec<&str> = extant_check::rules::all()
        .map(|rule| rule.code)
        .filter(|code| !codes.iter().any(|of| of == code))
        .collect();
    let known: Vec<&str> = WITHOUT.iter().map(|(code, _)| *code).collect();
    let new: Vec<&&str> = without.iter().filter(|code| !known.contains(code)).collect();
    assert!(new.is_empty(), "rules without an image in testdata/rules: {new:?}");
    let stale: Vec<&&str> = known.iter().filter(|code| !without.contains(code)).collect();
    assert!(stale.is_empty(), "have an image by now: {stale:?}");
}
