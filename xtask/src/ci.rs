//! `cargo xtask ci`: all checks, cheapest first. Stops at the first failure.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::{layers, run_tests, tidy, tools, workspace};

/// A named check.
struct Stage {
    name: &'static str,
    /// Gets the arguments after `--`.
    run: fn(&[&str]) -> Result<(), String>,
}

/// The checks, in order.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", run: |_| cargo(&["fmt", "--all", "--check"]) },
    Stage { name: "layers", run: |_| layers::run() },
    Stage { name: "tidy", run: |_| tidy::run() },
    Stage { name: "spell", run: |_| tools::spell() },
    Stage {
        name: "clippy",
        run: |_| {
            cargo(&["clippy", "--profile", "ci", "--workspace", "--all-targets", "--", "-D", "warnings"])
        },
    },
    Stage {
        name: "doc",
        run: |_| {
            let mut command = workspace::cargo();
            command
                .args(["doc", "--profile", "ci", "--workspace", "--no-deps"])
                .env("RUSTDOCFLAGS", "-D warnings");
            succeed(command)
        },
    },
    Stage { name: "test", run: test },
    Stage { name: "schedules", run: schedules },
    Stage { name: "python", run: python },
];

/// `cargo xtask ci [STAGE...] [-- ARGS...]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let (names, rest) = match args.iter().position(|arg| *arg == "--") {
        Some(place) => (&args[..place], &args[place + 1..]),
        None => (args, &[][..]),
    };
    let all: Vec<&str> = STAGES.iter().map(|stage| stage.name).collect();
    if let Some(name) = names.iter().find(|name| !all.contains(name)) {
        return Err(format!("ci: no stage {name:?}; there are: {}", all.join(" ")));
    }
    let start = Instant::now();
    let mut passed = Vec::new();
    for stage in STAGES.iter().filter(|stage| names.is_empty() || names.contains(&stage.name)) {
        println!("ci: {} ...", stage.name);
        let begin = Instant::now();
        let result = (stage.run)(rest);
        let seconds = begin.elapsed().as_secs_f64();
        if let Err(error) = result {
            return Err(format!("{error}\nci: FAILED at {} after {seconds:.1} s", stage.name));
        }
        println!("ci: {} passed in {seconds:.1} s", stage.name);
        passed.push(format!("{} {seconds:.0}", stage.name));
    }
    println!("ci: all passed in {:.0} s ({})", start.elapsed().as_secs_f64(), passed.join(", "));
    Ok(())
}

/// The tests, in the profile `ci`: optimised, because they build large images, and with the checks of debug
/// builds.
fn test(rest: &[&str]) -> Result<(), String> {
    if rest.is_empty() {
        return run_tests::run(&["--profile", "ci"]);
    }
    let mut args = vec!["test", "--profile", "ci"];
    // `-p PACKAGE` in the arguments replaces the whole workspace.
    if !rest.iter().any(|arg| arg.starts_with("-p") || *arg == "--package") {
        args.push("--workspace");
    }
    args.extend(rest);
    cargo(&args)
}

/// Tests of data structures shared between threads, under schedules that `shuttle` chooses.
/// `EXTANT_SCHEDULES=n` runs more schedules, `EXTANT_SEED=n` others.
fn schedules(_: &[&str]) -> Result<(), String> {
    // The same packages in both commands, so that cargo builds their dependencies once.
    const PACKAGES: [&str; 3] = ["extant-buffer", "extant-journal", "extant-inode"];
    let features = PACKAGES.map(|package| format!("{package}/shuttle")).join(",");
    for (tests, filter) in [("--test=schedules", ""), ("--lib", "schedules")] {
        let mut args = vec!["test", "--profile", "ci", "--features", &features, tests];
        args.extend(PACKAGES.iter().flat_map(|package| ["-p", package]));
        args.extend(["--", "--nocapture", filter].iter().filter(|arg| !arg.is_empty()));
        cargo(&args)?;
    }
    Ok(())
}

/// The Python package: its wheel in a new virtual environment, and its tests.
fn python(_: &[&str]) -> Result<(), String> {
    let mut command = Command::new("crates/service/python/test.sh");
    workspace::use_compiler_of_tests(&mut command);
    succeed(command)
}

fn cargo(args: &[&str]) -> Result<(), String> {
    let mut command = workspace::cargo_of_tests();
    command.args(args);
    succeed(command)
}

/// Time limit of a command: three times the longest duration on two cores. A command that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(4200);

/// Runs a command to its end. If it hangs, prints the running processes, which the log would not show
/// otherwise, and kills it.
fn succeed(mut command: Command) -> Result<(), String> {
    let failed = |error: std::io::Error, command: &Command| format!("{command:?}: {error}");
    let mut child = command.spawn().map_err(|error| failed(error, &command))?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|error| failed(error, &command))? {
            Some(status) => break status,
            None if begun.elapsed() > LIMIT => {
                // Errors here do not matter: the message below reports the hang.
                let _ = Command::new("ps")
                    .args(["-eo", "pid,ppid,stat,etimes,wchan:20,args", "--forest"])
                    .status();
                // The process of the tests is killed, too: it would keep the log open.
                let _ = Command::new("pkill").args(["-KILL", "-P", &child.id().to_string()]).status();
                let _ = child.kill();
                return Err(format!(
                    "{command:?} did not end within {} s: see what was running",
                    LIMIT.as_secs()
                ));
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}
