//! `cargo xtask spec`: the table of rules that `extant check` holds file systems to.

use check::{Area, rules};

/// `cargo xtask spec`
pub(crate) fn run() -> Result<(), String> {
    print!("{}", table());
    Ok(())
}

fn table() -> String {
    let mut text = String::from("# The rules of `extant check`\n");
    let mut area: Option<Area> = None;
    for rule in rules::all() {
        if area != Some(rule.area) {
            area = Some(rule.area);
            text += &format!("\n## {:?}\n\n| code | severity | rule |\n|---|---|---|\n", rule.area);
        }
        let severity = format!("{:?}", rule.severity).to_lowercase();
        text += &format!("| {} | {severity} | {} |\n", rule.code, rule.says.replace('|', "\\|"));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_permanent_one_each_and_in_order() {
        let codes: Vec<&str> = rules::all().map(|rule| rule.code).collect();
        let unique: BTreeSet<&str> = codes.iter().copied().collect();
        assert_eq!(unique.len(), codes.len());
        for rule in rules::all() {
            assert_eq!(rule.code.len(), 5, "{}", rule.code);
            assert!(
                !rule.says.is_empty() && !rule.why.is_empty() && !rule.repair.is_empty(),
                "{}",
                rule.code
            );
        }
    }
}
