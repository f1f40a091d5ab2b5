//! Measures the time of one walk over a tar archive. `-` reads standard input:
//!
//! ```text
//! tar -cf share.tar /usr/share
//! cargo run --release -p extant-image --example walk_tar -- share.tar
//! cargo run --release -p extant-image --example walk_tar -- - < share.tar.zst
//! ```

use std::process::ExitCode;
use std::time::Instant;

use extant_image::source::fault::SourceFault;
use extant_image::source::spool::Spool;
use extant_image::source::tar::{TarInput, Unpacking, read_tar};

fn main() -> ExitCode {
    let Some(archive) = std::env::args_os().nth(1) else {
        eprintln!("usage: walk_tar ARCHIVE|-");
        return ExitCode::FAILURE;
    };
    let input = if archive == "-" { TarInput::Stdin } else { TarInput::Path(archive.into()) };
    let mut spool = Spool::new(std::env::temp_dir());
    let start = Instant::now();
    let mut sink = |entry| {
        drop(entry);
        Ok::<(), SourceFault>(())
    };
    match read_tar(input, Unpacking::default(), &mut spool, &mut sink, &mut |warning| {
        eprintln!("warning: {warning}")
    }) {
        Ok(report) => {
            let ms = start.elapsed().as_secs_f64() * 1e3;
            let (entries, bytes) = (report.entries, report.content_bytes);
            println!("{}: {entries} entries, {bytes} bytes of content, {ms:.1} ms", report.archive);
            ExitCode::SUCCESS
        }
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}
