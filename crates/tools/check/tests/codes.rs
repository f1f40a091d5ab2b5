//! A rule's code is permanent and unique; and each rule states what is wrong, why it matters, and what a
//! repair would do.

use std::collections::BTreeSet;

use extant_check::rules;

#[test]
fn codes_are_one_each_and_explained() {
    let codes: Vec<&str> = rules::all().map(|rule| rule.code).collect();
    let unique: BTreeSet<&str> = codes.iter().copied().collect();
    assert_eq!(unique.len(), codes.len());
    for rule in rules::all() {
        assert_eq!(rule.code.len(), 5, "{}", rule.code);
        assert!(!rule.says.is_empty() && !rule.why.is_empty() && !rule.repair.is_empty(), "{}", rule.code);
    }
}
