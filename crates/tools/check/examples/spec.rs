//! Prints the rules of `extant check` as a table: `cargo xtask spec`.

use std::io::Write;

use extant_check::{Area, rules};

fn main() -> std::io::Result<()> {
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
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
