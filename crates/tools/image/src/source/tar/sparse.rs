//! Maps of sparse files: converts the numbers in archives to data runs.
//!
//! An archive stores the data runs of a sparse file one after another without the holes, and a map of pairs
//! (offset in the file, length). There are five encodings of the map; each is decoded to a list of numbers:
//!
//! | form | map | real size |
//! |---|---|---|
//! | old GNU, typeflag `S` | 4 pairs in the header, 21 in each extension block after it | header, byte 483 |
//! | PAX 0.0 | records `GNU.sparse.offset`, `GNU.sparse.numbytes` | `GNU.sparse.size` |
//! | PAX 0.1 | record `GNU.sparse.map` | `GNU.sparse.size` |
//! | PAX 1.0 | decimal lines at the start of the data, NULs up to the next block | `GNU.sparse.realsize` |
//!
//! ```text
//! map 0,2  4096,3  9000,0     stored "aabbb"     file  aa......bbb.......  (9000 bytes)
//! ```
//!
//! Source: GNU tar manual, "Storing Sparse Files" (appendix "Sparse Formats").

use super::header::Block;
use crate::source::entry::DataRun;
use crate::source::fault::Rule;
use crate::source::pax::SPARSE_RUNS_MAX;

/// The data runs described by `map`. Their bytes are stored from `backing_offset` on.
///
/// # Errors
/// The runs overlap, are not in ascending order, extend past `real_size`, or do not add up to the `stored`
/// bytes.
pub(super) fn runs(
    map: &[u64],
    real_size: u64,
    stored: u64,
    backing_offset: u64,
) -> Result<Vec<DataRun>, Rule> {
    if !map.len().is_multiple_of(2) {
        return Err(Rule::damaged("the sparse map ends with an offset that has no length"));
    }
    let mut runs: Vec<DataRun> = Vec::new();
    let mut file_end = 0u64;
    let mut used = 0u64;
    for pair in map.chunks_exact(2) {
        let (file_offset, len) = (pair[0], pair[1]);
        if file_offset < file_end {
            return Err(Rule::damaged(format!(
                "the sparse map has data at byte {file_offset} behind data that ends at byte {file_end}"
            )));
        }
        file_end = file_offset.checked_add(len).filter(|&end| end <= real_size).ok_or_else(|| {
            Rule::damaged(format!(
                "the sparse map has {len} bytes of data at byte {file_offset} of a file of {real_size} bytes"
            ))
        })?;
        if len == 0 {
            continue; // Writers mark the end of a file that ends with a hole in this way.
        }
        match runs.last_mut() {
            Some(last) if last.file_offset + last.len == file_offset => last.len += len,
            // `used` does not exceed `file_end`. Its sum with the backing's offset is checked after the loop
            // for all runs.
            _ => runs.push(DataRun { file_offset, len, backing_offset: backing_offset.saturating_add(used) }),
        }
        used += len;
    }
    if used != stored || backing_offset.checked_add(used).is_none() {
        return Err(Rule::damaged(format!(
            "the sparse map describes {used} bytes of data, and {stored} are stored"
        )));
    }
    Ok(runs)
}

/// Reads a PAX 1.0 map from the first blocks of a file's data: the number of pairs, then the pairs, one
/// number per line.
#[derive(Debug, Default)]
pub(super) struct MapReader {
    count: Option<u64>,
    map: Vec<u64>,
    number: Option<u64>,
}

impl MapReader {
    /// Parses one block. Returns `true` if the block completes the map; the next block is then data.
    pub(super) fn take(&mut self, block: &Block) -> Result<bool, Rule> {
        for &byte in block {
            match byte {
                b'0'..=b'9' => {
                    let value = self.number.unwrap_or(0).checked_mul(10);
                    let value = value.and_then(|value| value.checked_add(u64::from(byte - b'0')));
                    self.number =
                        Some(value.ok_or_else(|| Rule::damaged("the sparse map holds an absurd number"))?);
                }
                b'\n' if self.number.is_some() => {
                    if self.line()? {
                        return Ok(true);
                    }
                }
                _ => return Err(Rule::damaged("the sparse map holds something that is not a number")),
            }
        }
        Ok(false)
    }

    /// The complete map.
    pub(super) fn into_map(self) -> Vec<u64> {
        self.map
    }

    /// Ends a line. Returns whether the map is complete.
    fn line(&mut self) -> Result<bool, Rule> {
        let value = self.number.take().unwrap_or(0);
        let count = match self.count {
            Some(count) => {
                self.map.push(value);
                count
            }
            None if value <= SPARSE_RUNS_MAX as u64 => *self.count.insert(value),
            None => {
                return Err(Rule::damaged(format!(
                    "a sparse file has {value} data runs, above {SPARSE_RUNS_MAX}"
                )));
            }
        };
        Ok(self.map.len() as u64 == 2 * count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(file_offset: u64, len: u64, backing_offset: u64) -> DataRun {
        DataRun { file_offset, len, backing_offset }
    }

    #[test]
    fn runs_follow_each_other_in_the_backing_and_neighbours_join() {
        let map = [0, 2, 4096, 3, 4099, 5, 9000, 0];
        assert_eq!(runs(&map, 9000, 10, 512).unwrap(), [run(0, 2, 512), run(4096, 8, 514)]);
        assert_eq!(runs(&[], 9000, 0, 512).unwrap(), []);
    }

    #[test]
    fn maps_that_contradict_themselves_are_refused() {
        for (map, real_size, stored) in [
            (&[0, 2, 1, 2][..], 10, 4),
            (&[5, 1, 0, 1], 10, 2),
            (&[0, 11], 10, 11),
            (&[u64::MAX, 2], u64::MAX, 2),
            (&[0, 5], 10, 4),
            (&[0, 5], 10, 6),
            (&[0], 10, 0),
        ] {
            assert!(runs(map, real_size, stored, 0).is_err(), "{map:?}");
        }
    }

    #[test]
    fn a_map_in_the_data_may_cross_blocks() {
        let mut text = String::from("100\n");
        (0..200u32).for_each(|i| text += &format!("{}\n", 1000 * i));
        let mut bytes = text.into_bytes();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        let mut reader = MapReader::default();
        let (blocks, _) = bytes.as_chunks::<512>();
        let done: Vec<bool> = blocks.iter().map(|block| reader.take(block).unwrap()).collect();
        assert!(done[done.len() - 1] && done[..done.len() - 1].iter().all(|done| !done));
        assert_eq!(reader.into_map().len(), 200);
    }

    #[test]
    fn rubbish_in_a_map_is_refused() {
        for text in ["-1\n", "\n", "99999999999999999999999\n", "99999999\n", "1\n0\nx\n", "1\n0\n\0"] {
            let mut block = [0; 512];
            block[..text.len()].copy_from_slice(text.as_bytes());
            assert!(MapReader::default().take(&block).is_err(), "{text:?}");
        }
    }
}
