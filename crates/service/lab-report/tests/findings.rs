//! docs/lab/full.json has the claims of the present rules, and docs/lab/findings.md is what `cargo xtask
//! findings` makes of it.

use std::path::Path;

#[test]
fn the_findings_are_those_of_the_committed_reports() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/lab");
    let Ok(json) = std::fs::read_to_string(folder.join("full.json")) else {
        assert!(!folder.join("findings.md").exists(), "docs/lab/findings.md has no docs/lab/full.json");
        return;
    };
    let reports = extant_lab_report::Reports::from_json(&json).unwrap();
    let mut judged = reports.clone();
    judged.judge();
    assert!(judged == reports, "docs/lab/full.json has claims of old rules: run `cargo xtask findings`");
    let page = extant_lab_report::findings::markdown(&reports, "full.json");
    let committed = std::fs::read_to_string(folder.join("findings.md")).unwrap();
    assert!(page == committed, "docs/lab/findings.md is old: run `cargo xtask findings`");
}
