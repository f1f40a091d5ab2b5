//! Checks images and prints findings and timing:
//! `cargo run --release -p extant-check --example check -- [-q] [-j THREADS] IMAGE...`

use std::path::Path;
use std::process::ExitCode;

use extant_check::Options;
use extant_device::FileDevice;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    let quiet = args.next_if(|arg| arg == "-q").is_some();
    let mut options = Options::default();
    if args.next_if(|arg| arg == "-j").is_some() {
        options.threads = args.next().and_then(|threads| threads.parse().ok());
    }
    let mut worst = 0;
    for image in args {
        let report = FileDevice::open(Path::new(&image), false)
            .map_err(|error| error.to_string())
            .and_then(|device| extant_check::check(&device, &options).map_err(|fault| fault.to_string()));
        let report = match report {
            Ok(report) => report,
            Err(says) => {
                eprintln!("{image}: {says}");
                worst = 8;
                continue;
            }
        };
        worst = worst.max(report.exit_code());
        if quiet {
            let codes: Vec<&str> = report.counts.keys().copied().collect();
            println!("{} {image} {}", report.exit_code(), codes.join(","));
            continue;
        }
        for finding in &report.findings {
            let severity = format!("{:?}", finding.rule.severity).to_lowercase();
            println!("{} {severity} {}: {}", finding.rule.code, place(&finding.place), finding.says);
        }
        let stats = &report.stats;
        for pass in &stats.passes {
            println!("  {:8.3} s  {}", pass.elapsed.as_secs_f64(), pass.pass);
        }
        println!(
            "{image}: exit {}, {} of {} inodes, {} directories, {} of {} blocks of {}, {:.1} MB read, {:.3} s",
            report.exit_code(),
            stats.inodes,
            stats.inodes_total,
            stats.dirs,
            stats.blocks_used,
            stats.blocks,
            stats.block_size,
            stats.read_bytes as f64 / 1e6,
            stats.elapsed.as_secs_f64()
        );
    }
    ExitCode::from(worst)
}

fn place(place: &extant_check::FindingPlace) -> String {
    let mut parts = Vec::new();
    parts.extend(place.group.map(|group| format!("group {group}")));
    parts.extend(place.ino.map(|ino| format!("inode {ino}")));
    parts.extend(place.lblk.map(|lblk| format!("logical block {lblk}")));
    parts.extend(place.block.map(|block| format!("block {block}")));
    parts.extend(place.offset.map(|offset| format!("offset {offset}")));
    parts.extend(place.name.as_deref().map(|name| format!("\"{}\"", name.escape_ascii())));
    if parts.is_empty() { "file system".into() } else { parts.join(", ") }
}
