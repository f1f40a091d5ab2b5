//! `cargo xtask findings [FILE...]`: takes over the studies of these reports into docs/lab/full.json,
//! judges all of it by the present rules, and writes docs/lab/findings.md from it.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use extant_lab_report::{Reports, findings};

fn read(file: &Path) -> Result<Reports, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Reports::from_json(&text).map_err(|fault| format!("{}: {fault}", file.display()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn update() -> Result<(), String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/lab");
    let file = folder.join("full.json");
    let mut reports = read(&file)?;
    for newer in std::env::args_os().skip(1) {
        reports.update(read(Path::new(&newer))?);
    }
    reports.judge();
    write(&file, &reports.to_json())?;
    write(&folder.join("findings.md"), &findings::markdown(&reports, "full.json"))
}

fn main() -> ExitCode {
    match update() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("findings: {why}");
            ExitCode::FAILURE
        }
    }
}
