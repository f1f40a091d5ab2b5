//! Creates a tree of many small files for benchmarks: `cargo xtask maketree DIR N [SEED]`. DIR must not
//! exist, or be empty.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match make(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn make(args: &[&str]) -> Result<(), String> {
    let (dir, count, seed) = match args {
        [dir, count] => (Path::new(dir), *count, "1"),
        [dir, count, seed] => (Path::new(dir), *count, *seed),
        _ => return Err("usage: cargo xtask maketree DIR N [SEED]".to_owned()),
    };
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
    let (count, seed) = (number(count)?, number(seed)?);
    let fault = |error| format!("{}: {error}", dir.display());
    std::fs::create_dir_all(dir).map_err(fault)?;
    if std::fs::read_dir(dir).map_err(fault)?.next().is_some() {
        return Err(format!("{} is not empty", dir.display()));
    }
    let start = Instant::now();
    extant_testkit::trees::many(dir, count, seed);
    eprintln!("{count} files in {} after {:.1} s", dir.display(), start.elapsed().as_secs_f64());
    Ok(())
}
