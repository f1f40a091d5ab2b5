//! Damages images and runs the readers and the checker over them, for a given time: `cargo xtask fuzz`.

#[path = "../tests/images/mod.rs"]
mod images;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str, default: u64| -> u64 {
        let at = args.iter().position(|arg| arg == name);
        let given = at.and_then(|at| args.get(at + 1));
        given.map_or(default, |given| given.parse().unwrap_or_else(|_| panic!("{name} wants a number")))
    };
    let what = extant_hostile::Soak {
        first_seed: value("--seed", 1_000_000),
        rounds: value("--rounds", u64::MAX),
        time_max: Duration::from_secs(value("--seconds", 60)),
        threads: value("--threads", 2) as usize,
        round_max: Duration::from_secs(2),
        changes: args.iter().any(|arg| arg == "--changes"),
    };
    let soaked = extant_hostile::soak(&images::all(), what);
    println!(
        "rounds {} (seeds from {}), opened {}, damage found in {}, changes {}, worse after them {}, slowest {:?}, failures {}",
        soaked.rounds,
        what.first_seed,
        soaked.opened,
        soaked.found,
        soaked.changed,
        soaked.worse.len(),
        soaked.slowest,
        soaked.failures.len()
    );
    let is_wanted = args.iter().any(|arg| arg == "--worse");
    for story in soaked.worse.iter().filter(|_| is_wanted) {
        println!("worse: {story}");
    }
    for failure in &soaked.failures {
        println!("{failure}");
    }
    if soaked.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
