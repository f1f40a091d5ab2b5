//! Very many small files.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, Timespec, Timestamps};

use super::Random;

/// Files per directory.
const PER_DIRECTORY: u64 = 1000;

/// The maximum size of a file, in bytes.
const SIZE_MAX: u64 = 8192;

/// The mtime and atime of the first file, 2020-01-01; each next one is a second later.
const FIRST_TIME: i64 = 1_577_836_800;

/// Fills `dir` with `n_files` files of 0 bytes to 8 KiB, a thousand per directory: `d0000/f000000`. Uses two
/// threads.
///
/// Nine files in ten are below 1 KiB, so a file takes one page on tmpfs: a million files take about 4.5 GB
/// there.
///
/// # Panics
/// A file cannot be created.
pub fn many(dir: &Path, n_files: u64, seed: u64) {
    let directories = n_files.div_ceil(PER_DIRECTORY);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= directories {
                        return;
                    }
                    let path = dir.join(format!("d{number:04}"));
                    fill(&path, number * PER_DIRECTORY..n_files.min((number + 1) * PER_DIRECTORY), seed)
                        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                }
            });
        }
    });
}

/// The size in bytes of file `number`, as [`many`] creates it.
#[must_use]
pub fn many_size(seed: u64, number: u64) -> u64 {
    size(&mut Random::for_item(seed, number))
}

fn size(random: &mut Random) -> u64 {
    match random.below(20) {
        0 => 0,
        1 => random.below(SIZE_MAX) + 1,
        _ => random.below(1024) + 1,
    }
}

fn fill(dir: &Path, numbers: std::ops::Range<u64>, seed: u64) -> std::io::Result<()> {
    std::fs::create_dir(dir)?;
    let mut buffer = vec![0u8; SIZE_MAX as usize];
    let first = numbers.start;
    for number in numbers {
        let mut random = Random::for_item(seed, number);
        let content = &mut buffer[..size(&mut random) as usize];
        random.fill(content);
        let mut file = File::create_new(dir.join(format!("f{number:06}")))?;
        file.write_all(content)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
        rustix::fs::futimens(&file, &at(number))?;
    }
    rustix::fs::chmod(dir, Mode::from_raw_mode(0o755))?;
    rustix::fs::utimensat(rustix::fs::CWD, dir, &at(first), rustix::fs::AtFlags::empty())?;
    Ok(())
}

fn at(number: u64) -> Timestamps {
    let time = Timespec { tv_sec: FIRST_TIME + number as i64, tv_nsec: 123_456_789 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiffOptions, Manifest, diff};

    #[test]
    fn the_same_seed_makes_the_same_tree() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        many(one.path(), 1500, 7);
        many(two.path(), 1500, 7);
        let (one, two) = (Manifest::of(one.path()), Manifest::of(two.path()));
        assert_eq!(one.entries.len(), 1 + 2 + 1500);
        assert_eq!(one.entries[&b"d0001/f001234"[..]].size, many_size(7, 1234));
        assert_eq!(
            diff(&one, &two, &DiffOptions { ignore_root: true, atime: true, ..Default::default() }),
            [""; 0]
        );
    }

    #[test]
    fn most_files_fit_in_one_page() {
        let above = (0..10_000).filter(|&n| many_size(1, n) > 4096).count();
        assert!((100..500).contains(&above), "{above} of 10,000");
    }
}
