//! The expected content of files, unit by unit.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_volume::Allocate;

use super::step::{NAMES, Step, UNIT};

/// Files by number, and the file of each name.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) files: BTreeMap<u32, Arc<Vec<u64>>>,
    pub(super) names: [Option<u32>; NAMES],
    next: u32,
}

/// The unit that step `step` writes into `file`; `at` is the offset in units.
pub(super) fn token(file: u32, step: usize, at: u64) -> u64 {
    u64::from(file) << 56 | (step as u64) << 32 | at
}

/// Describes a unit in words.
pub(super) fn describe(unit: u64) -> String {
    if unit == 0 {
        return "zeros".to_owned();
    }
    let (file, step, at) = (unit >> 56, unit >> 32 & 0xFF_FFFF, u64::from(unit as u32));
    match unit >> 32 {
        0xA5A5_A5A5 => format!("what stood in the free block {at}"),
        _ if file < 0x80 => format!("what step {step} wrote into file {file} at {}", at * UNIT),
        _ => format!("{unit:#x}"),
    }
}

/// The units in a byte range.
pub(super) fn units(pos: u64, len: u64) -> std::ops::Range<usize> {
    (pos / UNIT) as usize..((pos + len) / UNIT) as usize
}

impl Memory {
    /// The file that a step concerns.
    pub(super) fn file_of(&self, step: Step) -> Option<u32> {
        match step {
            Step::Create(_) => Some(self.next + 1),
            step => step.name().and_then(|name| self.names[name]),
        }
    }

    /// Records a step that was done in part and left a file with these units.
    ///
    /// # Errors
    /// A unit is neither the old one, nor zero, nor what the step writes; or the size is out of range.
    pub(super) fn take_part(&mut self, number: usize, step: Step, found: Vec<u64>) -> Result<(), String> {
        let Some(file) = self.file_of(step) else { return Err("a step without a file".to_owned()) };
        let before = self.files[&file].clone();
        let whole = {
            let mut whole = self.clone();
            whole.take(number, step);
            whole.files[&file].clone()
        };
        let sizes = before.len().min(whole.len())..=before.len().max(whole.len());
        if !sizes.contains(&found.len()) {
            return Err(format!("{} units are left, and should be {sizes:?}", found.len()));
        }
        let unit = |of: &[u64], at: usize| of.get(at).copied().unwrap_or_default();
        let is_neither = |at: &usize| ![0, unit(&before, *at), unit(&whole, *at)].contains(&found[*at]);
        if let Some(at) = (0..found.len()).find(is_neither) {
            return Err(format!("unit {at} became {}", describe(found[at])));
        }
        self.files.insert(file, Arc::new(found));
        Ok(())
    }

    /// Applies step `number`. Returns the file that it concerned.
    pub(super) fn take(&mut self, number: usize, step: Step) -> Option<u32> {
        let about = step.name().and_then(|name| self.names[name]);
        match step {
            Step::Create(name) => {
                self.next += 1;
                self.files.insert(self.next, Arc::default());
                self.names[name] = Some(self.next);
                return Some(self.next);
            }
            Step::Unlink(name) => self.names[name] = None,
            Step::Rename(from, to) => self.names[to] = self.names[from].take(),
            _ => {}
        }
        let file = about?;
        let content = Arc::make_mut(self.files.get_mut(&file)?);
        match step {
            Step::Write(_, _, 0) => {}
            Step::Write(_, pos, len) => {
                let range = units(pos, len);
                content.resize(content.len().max(range.end), 0);
                for at in range {
                    content[at] = token(file, number, at as u64);
                }
            }
            Step::Resize(_, size) => content.resize((size / UNIT) as usize, 0),
            Step::Allocate(_, mode, pos, len) => allocate(content, mode, units(pos, len)),
            _ => {}
        }
        Some(file)
    }
}

fn allocate(content: &mut Vec<u64>, mode: Allocate, range: std::ops::Range<usize>) {
    if matches!(mode, Allocate::Reserve | Allocate::Zero | Allocate::WriteZeroes) {
        content.resize(content.len().max(range.end), 0);
    }
    match mode {
        Allocate::Punch | Allocate::Zero | Allocate::ZeroKeep | Allocate::WriteZeroes => {
            let end = range.end.min(content.len());
            content[range.start.min(end)..end].fill(0);
        }
        Allocate::Collapse => drop(content.drain(range)),
        Allocate::Insert => drop(content.splice(range.start..range.start, range.map(|_| 0))),
        _ => {}
    }
}
