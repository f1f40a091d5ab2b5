//! The project's development commands, run as `cargo xtask COMMAND`.
//!
//! The checks (`ci`) and their long form (`nightly`), the order of the crates (`layers`, declared in
//! `layers.toml`), the rules for text (`tidy`, declared in `xtask/tidy.toml`), the driver of `fsx`, and the
//! release files (`dist`). Commands that need the project's crates (`spec`, `maketree`, `fuzz`, `crash`,
//! `repair`, `sweep`) are examples of those crates.
//!
//! xtask depends on no other crate of the project, so it builds in seconds.

#![forbid(unsafe_code)]

mod api;
mod book;
mod ci;
mod dist;
mod fsx;
mod knots;
mod layers;
mod markdown;
mod nightly;
mod package;
mod programs;
mod run_tests;
mod shape;
mod sources;
mod terminal;
mod tidy;
mod tools;
mod wasi;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  ci [STAGE...] [-- ARGS...]  run the checks: fmt layers tidy spell clippy doc test schedules python (all by
                              default, always in this order); ARGS go to `cargo test`
  nightly [--seed S] [--seconds N]
                              run what is too long for `ci`: heavy tests, fuzz, crash, fsx, in N seconds (default 3600) plus
                              the time of the builds
  layers                      compare the crates' dependencies with layers.toml, and their modules' knots
  shape                       print lines of the crates, modules in knots, types with many methods, long files
  unused                      print functions that occur in tests only
  tidy                        check text: lengths, links, private words, invariants, claims, exported names
  maketree DIR N [SEED]       make DIR with N small files, the same for the same SEED (default 1)
  spec                        print the rules of `extant check`
  findings [FILE...]          take the studies of FILE (`extant lab all --full --json FILE`) over into
                              docs/lab/full.json, judge it by the present rules, write docs/lab/findings.md
  fuzz [--changes] [--seed S] [--rounds N] [--seconds N] [--threads N]
                              damage images, then run the readers and the checker on them (with --changes: change them as
                              well), for N seconds (default 60)
  crash [--data [--full] | --crowded] [--fast] [--seed S] [--cuts M] [--judged N] [--run R] [--plants]
                              cut the power M times (default 20000) during a load, recover, and compare with
                              the model; e2fsck and the kernel judge N of the cuts. The load changes names and
                              attributes, with --data file contents; a third of those images are nearly full,
                              with --full all, with --crowded a directory that does not fit into memory.
                              --fast: only images with fast commits. --run: one run; without
                              --data also --keep DIR, for the disks that the kernel refuses. --plants: put
                              bugs into the engine, and find them
  repair [--corruptions N] [--seed S]
                              damage N images (default 5000), and repair them; check, e2fsck and undo judge
  sweep [--world NAME] [--one-in K] [--seed S] [--case C] [--failing F] [--number N]
                              fail the n-th read, write or flush of every operation, for every n, and compare memory, disk
                              and model; of all pairs of a case and a failure one in K (default 1: all). The last three
                              options, with --world, repeat the run that a violation names
  fsx [--seed S] [--ops N] [--kinds LIST] [--seconds N]
                              run the crate `fsx` on a file of a mounted image of each kind, N operations each (default
                              20000; every 20000 are a run with the next seed), then e2fsck; no new kind begins after N
                              seconds
  api [--bless]               compare the public interface of `extant` with docs/api/extant.txt, or write it
  package                     package the crates for the registry; compile them, and a project outside
                              of the workspace with each set of features of `extant`
  book                        build the book of docs/ in target/book/html; check its links and the spelling
  reference                   write docs/reference.md, the commands and options, from their definitions
  terminal                    write docs/terminal.svg, the recording that README shows
  spell                       check the spelling of all files with `typos` (words that are right: _typos.toml)
  dist [--profile NAME] [--made] [--twice] [--try DIR]
                              make target/artifacts/: Debian packages, a wheel, a static binary, lists of
                              components. --twice builds again, from a copy of the sources elsewhere, and
                              compares the bytes. --try installs and runs each file in a copy of the bare
                              Debian in DIR (made by debootstrap if missing; needs root). --made takes the
                              files of an earlier run
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["ci", rest @ ..] => ci::run(rest),
        ["layers"] => layers::run(),
        ["tidy"] => tidy::run(),
        ["shape"] => shape::run(),
        ["unused"] => shape::unused(),
        ["maketree", rest @ ..] => programs::maketree(rest),
        ["spec", rest @ ..] => programs::spec(rest),
        ["findings", files @ ..] => programs::findings(files),
        ["fuzz", rest @ ..] => programs::fuzz(rest),
        ["crash", rest @ ..] => programs::crash(rest),
        ["repair", rest @ ..] => programs::repair(rest),
        ["sweep", rest @ ..] => programs::sweep(rest),
        ["fsx", rest @ ..] => fsx::run(rest),
        ["nightly", rest @ ..] => nightly::run(rest),
        ["dist", rest @ ..] => dist::run(rest),
        ["api", rest @ ..] => api::run(rest),
        ["package"] => package::run(),
        ["book"] => book::run(),
        ["reference"] => programs::reference(),
        ["terminal"] => terminal::run(),
        ["spell"] => tools::spell(),
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
    fn xtask_builds_no_other_crate_of_the_project() {
        // `./test fmt` was slow once: it built the checker and the tests' helpers.
        let crates =
            include_str!("../../Cargo.toml").lines().filter(|line| line.contains("path = \"crates/"));
        let crates: Vec<&str> = crates.filter_map(|line| line.split(' ').next()).collect();
        assert!(crates.contains(&"extant-check") && crates.contains(&"extant-testkit"), "{crates:?}");
        let manifest = include_str!("../Cargo.toml");
        let names = manifest.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        let used: Vec<&str> = names.filter(|name| crates.contains(name)).collect();
        assert!(used.is_empty(), "{used:?}");
    }
}
