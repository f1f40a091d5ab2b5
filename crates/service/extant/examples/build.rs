//! Builds an image from a directory and lists its root directory: `cargo run --example build -- DIR IMAGE`.

use extant::build::{BuildOptions, SizeChoice, Source, build};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(image)) = (args.next(), args.next()) else {
        return Err("usage: build DIR IMAGE".into());
    };
    let options = BuildOptions {
        size: SizeChoice::Smallest { headroom_percent: 10.0, more_bytes: 0 },
        threads: std::thread::available_parallelism()?.get(),
        ..BuildOptions::default()
    };
    let report = build(&options, vec![Source::Dir(dir.into())], &image)?;
    println!("{} files in {} bytes", report.files, report.image_bytes);
    for entry in extant::open(&image)?.read_dir("/")? {
        println!("{}", String::from_utf8_lossy(entry?.name()));
    }
    Ok(())
}
