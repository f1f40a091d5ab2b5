//! The project's own chores, run as `cargo xtask COMMAND`.
//!
//! Owns: the order of the checks (`ci`), the order of the crates (`layers`), the rules for text (`tidy`), the soak that drives
//! `fsx`, what is given out (`dist`).
//!
//! Does **not** own: the order itself (see `layers.toml`), the rules' numbers (see `xtask/tidy.toml`), the chores that need
//! the house (`spec`, `maketree`, `fuzz`, `crash`, `sweep`), which are examples of its crates.
//!
//! Invariant: it depends on no crate of the house, so that it is built in seconds.

#![forbid(unsafe_code)]

mod ci;
mod dist;
mod fsx;
mod layers;
mod programs;
mod run_tests;
mod tidy;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  ci [STAGE...] [-- ARGS...]  run the checks: fmt layers tidy clippy doc test schedules (all, or those named, in this order);
                              ARGS go to `cargo test`
  layers                      hold layers.toml against the crates' dependencies
  tidy                        text rules: file lengths, white space, links, scripts, forbidden words
  maketree DIR N [SEED]       make DIR with N small files, the same for the same SEED (default 1)
  spec                        print the rules that `extant check` holds file systems to
  fuzz [--seed S] [--rounds N] [--seconds N] [--threads N]
                              damage images and drive the readers and the checker over them, for N seconds (default 60)
  crash [--data [--full]] [--seed S] [--cuts M] [--judged N] [--plants]
                              cut the power M times (default 20000) while the engine works, recover, and judge; N of the cuts by
                              e2fsck and by the kernel too. With --data: of the bytes of files, else of names and attributes; a third
                              of those images are nearly full, with --full all. With --plants: plant mistakes, and find them
  sweep [--world NAME] [--one-in K] [--seed S] [--case C] [--failing F] [--number N]
                              fail the n-th read, write or flush of every operation, for every n, and judge what memory and the disk
                              show; of all pairs of a case and a failure one in K (default 1: all). The last three options, with
                              --world, repeat one run, as a violation names it
  fsx [--seed S] [--ops N] [--kinds LIST] [--seconds N]
                              drive the crate `fsx` over a file of a mounted image of each kind, N operations each (default
                              20000; every 20000 are a run of their own, with the next seed), and have e2fsck judge the
                              image; no new kind is begun after N seconds
  dist [--profile NAME] [--try DIR]
                              make target/artifacts/: a Debian package and a static binary, both stripped. With --try: use both in
                              the bare Debian in DIR, which debootstrap makes if there is none; as root
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["ci", rest @ ..] => ci::run(rest),
        ["layers"] => layers::run(),
        ["tidy"] => tidy::run(),
        ["maketree", rest @ ..] => programs::maketree(rest),
        ["spec", rest @ ..] => programs::spec(rest),
        ["fuzz", rest @ ..] => programs::fuzz(rest),
        ["crash", rest @ ..] => programs::crash(rest),
        ["sweep", rest @ ..] => programs::sweep(rest),
        ["fsx", rest @ ..] => fsx::run(rest),
        ["dist", rest @ ..] => dist::run(rest),
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => Err(format!("unknown command: {}\n\n{USAGE}", args.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_crate_of_the_house_is_built_for_it() {
        // `./test fmt` was slow: the checker and the tests' helpers were built for chores that it does not do.
        let house = include_str!("../../Cargo.toml").lines().filter(|line| line.contains("path = \"crates/"));
        let house: Vec<&str> = house.filter_map(|line| line.split(' ').next()).collect();
        assert!(house.contains(&"check") && house.contains(&"testkit"), "{house:?}");
        let manifest = include_str!("../Cargo.toml");
        let names = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let of_house: Vec<&str> = names.filter(|name| house.contains(name)).collect();
        assert!(of_house.is_empty(), "{of_house:?}");
    }
}
