//! Reads every file of an image, by a walk with contents or path by path, and prints how long it took:
//! `cargo run --release --example read_all -- IMAGE walk|paths`. `bench/python.py` compares Python with it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use extant::FileType;
use extant::walk::Data;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(image), Some(how)) = (args.next(), args.next()) else {
        return Err("usage: read_all IMAGE walk|paths".into());
    };
    let fs = extant::open(image)?;
    let (mut files, mut bytes) = (0_u64, 0_u64);
    let begun;
    if how == "walk" {
        begun = Instant::now();
        for loaded in fs.walk("/")?.contents() {
            match loaded?.data {
                Data::Ready(content) => (files, bytes) = (files + 1, bytes + content.len() as u64),
                Data::Failed(fault) => return Err(fault.into()),
                Data::None | Data::Target(_) | Data::Large => {}
            }
        }
    } else {
        let mut paths = Vec::new();
        for entry in fs.walk("/")?.inodes(false) {
            let entry = entry?;
            if entry.kind() == FileType::Regular {
                paths.push(entry.path().to_vec());
            }
        }
        begun = Instant::now();
        for path in &paths {
            let content = fs.read(OsStr::from_bytes(path))?;
            (files, bytes) = (files + 1, bytes + content.len() as u64);
        }
    }
    println!("{files} {bytes} {}", begun.elapsed().as_secs_f64());
    Ok(())
}
