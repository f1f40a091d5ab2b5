//! `extant lab shrinker`.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use extant_lab::LabFault;
use extant_lab::shrinker::{Case, Clock, Policy, Report, Study, WORK_MAX};
use extant_lab_report::text;

use super::{Shown, print};

/// How a cache of extents is kept small: seven policies under three loads.
#[derive(Debug, Args)]
#[command(after_help = "\
Policies: baseline, es-cache, es-slist, es-ilist, es-gc (the series of 2014, patch by patch), upstream \
(what the kernel has), es-chunk (the default here).
Cases: giant-trees (a), many-inodes (b), reader (c).

Examples:
  extant lab shrinker               all policies, all loads, full size: 20 minutes and 5 GB
  extant lab shrinker --scale 0.05  a quick look; es-gc differs only at full size
  extant lab shrinker --policies es-gc,es-chunk --cases reader --threads 2
  extant lab shrinker --scale 0.1 --runs 5 --cases giant-trees --policies upstream,es-chunk")]
pub(crate) struct ShrinkerArgs {
    /// Loads: giant-trees, many-inodes, reader, or a, b, c; all if not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_case)]
    cases: Vec<Case>,
    /// Policies, in the order of the table; all if not given.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_policy)]
    policies: Vec<Policy>,
    /// Runs of each: three distinguish a scan from its interruptions.
    #[arg(long, value_name = "N", default_value_t = 3)]
    runs: u16,
    /// Workers that share the cache.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u16,
    /// Measure scans in wall-clock time instead of CPU time: waiting and other work of the machine count too.
    #[arg(long)]
    wall: bool,
    /// How large: 1 is the study's size; trees, numbers of inodes and of calls grow with it.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    scale: f64,
    /// End a policy's run when its scans have looked at so many entries and inodes, after 100 scans; 0:
    /// never.
    #[arg(long, value_name = "N", default_value_t = WORK_MAX)]
    work_max: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn parse_case(name: &str) -> Result<Case, String> {
    Case::by_name(name).ok_or_else(|| "it is giant-trees, many-inodes or reader (a, b, c)".to_owned())
}

fn parse_policy(name: &str) -> Result<Policy, String> {
    let names = || Policy::ALL.map(Policy::name).join(", ");
    Policy::by_name(name).ok_or_else(|| format!("it is one of {}", names()))
}

pub(super) fn run(args: &ShrinkerArgs) -> Result<ExitCode, LabFault> {
    let or_all = |empty: bool| if empty { Policy::ALL.to_vec() } else { args.policies.clone() };
    let study = Study {
        cases: if args.cases.is_empty() { Case::ALL.to_vec() } else { args.cases.clone() },
        policies: or_all(args.policies.is_empty()),
        runs: usize::from(args.runs),
        threads: usize::from(args.threads),
        scale: args.scale,
        work_max: (args.work_max > 0).then_some(args.work_max),
        clock: if args.wall { Clock::Wall } else { Clock::Cpu },
    };
    let shown = Shown::new(true, false);
    let report = extant_lab::shrinker::run(&study, &shown)?;
    drop(shown);
    Ok(print("lab-shrinker:1", &report, &Text(&report), args.json))
}

/// The tables, then what is expected of es-chunk.
struct Text<'a>(&'a Report);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(f, "{} workers, scale {}", report.threads, report.scale)?;
        writeln!(f, "{}", text::tables(&report.tables()))?;
        for row in report.rows.iter().filter(|row| row.cut) {
            let (case, policy) = (row.case.name(), row.policy);
            writeln!(f, "{case}, {policy} ended after {} calls: its scans had visited too much", row.calls)?;
        }
        for bar in &report.bars {
            let (case, what, figure) = (bar.case.name(), &bar.what, &bar.figure);
            match (bar.holds, bar.applies(report.scale)) {
                (true, _) => writeln!(f, "holds  {case:12} {what}: {figure}")?,
                (false, true) => writeln!(f, "FAILS  {case:12} {what}: {figure}")?,
                (false, false) => writeln!(
                    f,
                    "-      {case:12} {what}: not expected below scale {} ({figure})",
                    bar.scale_min
                )?,
            }
        }
        Ok(())
    }
}
