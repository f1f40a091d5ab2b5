//! Maps of sparse files in GNU's PAX format 1.0: decimal lines before the data.
//!
//! ```text
//! file of 9000 bytes, data in 0..512 and 4096..4099:
//! "3\n0\n512\n4096\n3\n9000\n0\n", NULs up to 512, 515 bytes of data
//! ```
//! The last pair, with length 0, marks a hole at the end. If the length of a run is not a multiple of 512,
//! readers differ in where they expect the next run (GNU tar: in the next block). So such a file is stored
//! whole, unless it is the last run.
//!
//! Source: GNU tar manual, "PAX Format, Version 1.0".

use crate::{BLOCK_BYTES, DataRun, padding_bytes};

/// Maximum number of runs: readers hold the map in memory, and reject larger ones.
const RUNS_MAX: usize = 4 << 20;
/// Upper bound of the extra record bytes of a sparse file.
const RECORDS_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// The layout of a sparse file in the archive.
pub(crate) struct Plan {
    /// Bytes of the map with its padding.
    pub(crate) map_bytes: u64,
    /// Bytes of data after it.
    pub(crate) data_bytes: u64,
}

/// Returns a plan, if leaving the holes out saves space.
///
/// # Errors
/// The first run that overlaps the one before it or exceeds the file's end, or is empty.
pub(crate) fn plan(runs: &[DataRun], size_bytes: u64) -> Result<Option<Plan>, DataRun> {
    let mut end = 0;
    let mut data_bytes = 0;
    let mut text_bytes = 0;
    let mut clear = true;
    for run in runs {
        clear &= data_bytes % BLOCK_BYTES as u64 == 0;
        let run_end =
            run.offset_bytes.checked_add(run.len_bytes).filter(|end| *end <= size_bytes).ok_or(*run)?;
        if run.offset_bytes < end || run.len_bytes == 0 {
            return Err(*run);
        }
        end = run_end;
        data_bytes += run.len_bytes; // not above `size_bytes`
        text_bytes += digits(run.offset_bytes) + digits(run.len_bytes) + 2;
    }
    let mark = runs.last().is_none_or(|last| last.offset_bytes + last.len_bytes < size_bytes);
    if mark {
        text_bytes += digits(size_bytes) + 3;
    }
    text_bytes += digits(runs.len() as u64 + u64::from(mark)) + 1;
    let map_bytes = text_bytes + padding_bytes(text_bytes) as u64;
    let stored = map_bytes.saturating_add(data_bytes).saturating_add(RECORDS_BYTES);
    let saves = clear && stored < size_bytes && runs.len() < RUNS_MAX;
    Ok(saves.then_some(Plan { map_bytes, data_bytes }))
}

/// Appends the map of a plan.
pub(crate) fn push_map(runs: &[DataRun], size_bytes: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let mark = runs.last().is_none_or(|last| last.offset_bytes + last.len_bytes < size_bytes);
    push_line(runs.len() as u64 + u64::from(mark), out);
    for run in runs {
        push_line(run.offset_bytes, out);
        push_line(run.len_bytes, out);
    }
    if mark {
        push_line(size_bytes, out);
        push_line(0, out);
    }
    let padding = padding_bytes((out.len() - start) as u64);
    out.resize(out.len() + padding, 0);
}

fn push_line(number: u64, out: &mut Vec<u8>) {
    push_decimal(number, out);
    out.push(b'\n');
}

/// Number of decimal digits of a number.
pub(crate) fn digits(number: u64) -> u64 {
    u64::from(number.checked_ilog10().unwrap_or(0) + 1)
}

/// Appends a number in decimal.
pub(crate) fn push_decimal(mut number: u64, out: &mut Vec<u8>) {
    let mut text = [0; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(offset_bytes: u64, len_bytes: u64) -> DataRun {
        DataRun { offset_bytes, len_bytes }
    }

    #[test]
    fn the_map_is_as_long_as_planned() {
        for (runs, size) in [
            (vec![], 1 << 40),
            (vec![run(0, 512), run(4096, 3)], 9000),
            (vec![run(1 << 39, 1 << 20)], (1 << 39) + (1 << 20)),
            ((0..500).map(|i| run(i * 100_000, 4096)).collect(), u64::MAX),
        ] {
            let plan = plan(&runs, size).unwrap().unwrap();
            let mut map = Vec::new();
            push_map(&runs, size, &mut map);
            assert_eq!((map.len() as u64, map.len() % 512), (plan.map_bytes, 0));
        }
        let mut map = Vec::new();
        push_map(&[run(0, 2), run(4096, 3)], 9000, &mut map);
        assert!(map.starts_with(b"3\n0\n2\n4096\n3\n9000\n0\n\0"));
    }

    #[test]
    fn small_savings_are_none() {
        assert!(plan(&[run(0, 4096)], 4096).unwrap().is_none());
        assert!(plan(&[run(0, 4096)], 5000).unwrap().is_none());
        assert!(plan(&[], 0).unwrap().is_none());
        assert!(plan(&[run(0, 4096)], 8192).unwrap().is_some());
        assert!(plan(&[run(0, 512), run(1024, 3)], 8192).unwrap().is_some());
        assert!(plan(&[run(0, 3), run(1024, 512)], 8192).unwrap().is_none());
    }

    #[test]
    fn runs_out_of_order_are_refused() {
        for runs in [vec![run(0, 10), run(9, 1)], vec![run(0, 11)], vec![run(5, 0)], vec![run(u64::MAX, 2)]] {
            assert_eq!(plan(&runs, 10).err(), runs.last().copied());
        }
    }

    #[test]
    fn decimals_are_what_format_writes() {
        for number in [0, 9, 10, 99, 100, u64::MAX] {
            let mut text = Vec::new();
            push_decimal(number, &mut text);
            assert_eq!(text, number.to_string().as_bytes());
            assert_eq!(digits(number), text.len() as u64);
        }
    }
}
