//! `cargo xtask findings`: writes docs/lab/findings.md from docs/lab/full.json.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/lab");
    let (from, to) = (folder.join("full.json"), folder.join("findings.md"));
    let made = std::fs::read_to_string(&from)
        .map_err(|error| error.to_string())
        .and_then(|text| extant_lab_report::Reports::from_json(&text).map_err(|fault| fault.to_string()))
        .and_then(|reports| {
            let page = extant_lab_report::findings::markdown(&reports, "full.json");
            std::fs::write(&to, page).map_err(|error| error.to_string())
        });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{}: {why}", from.display());
            ExitCode::FAILURE
        }
    }
}
