//! Each public function and type of the library's facade has an example in its documentation, or is in the
//! list of `xtask/tidy.toml` that may only become shorter.
//!
//! Does **not** own: whether the examples run, which is a task of the documentation tests.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::findings::{File, Findings};

const FACADE: &str = "crates/service/extant/src/";
const TOML: &str = "examples in xtask/tidy.toml";

/// `[examples]` of `xtask/tidy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Left {
    /// Items without an example: `file.rs name`.
    left: BTreeSet<String>,
}

/// The items without an example so far.
#[derive(Debug, Default)]
pub(crate) struct Examples {
    missing: BTreeSet<String>,
}

impl Examples {
    /// Collects the items of one file.
    pub(crate) fn collect(&mut self, file: &File<'_>) {
        if let Some(name) = file.path.strip_prefix(FACADE) {
            self.missing.extend(without_example(file.text).map(|item| format!("{name} {item}")));
        }
    }

    /// Compares the items with the list.
    pub(crate) fn judge(&self, listed: &Left, findings: &mut Findings) {
        for item in self.missing.difference(&listed.left) {
            findings.faults.push(format!("{FACADE}{item} has no example in its documentation ({TOML})"));
        }
        for item in listed.left.difference(&self.missing) {
            findings.faults.push(format!("{item} has an example, or is not there: take it out ({TOML})"));
        }
    }
}

/// The public functions and types without an example.
fn without_example(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut has_example = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("///") {
            has_example |= line.contains("```");
            return None;
        }
        if line.starts_with("#[") {
            return None;
        }
        let had_example = std::mem::take(&mut has_example);
        let item = ["pub fn ", "pub struct ", "pub enum ", "pub trait "]
            .iter()
            .find_map(|kind| line.strip_prefix(kind))?;
        let end = item.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(item.len());
        (!had_example).then_some(&item[..end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_without_an_example_are_found() {
        let text = "\
/// A type.
pub struct Bare;

/// A type.
///
/// ```
/// let shown = Shown;
/// ```
#[derive(Debug)]
pub struct Shown {
    pub field: u8,
}

impl Shown {
    pub fn bare(&self) {}
    /// ```
    /// ```
    #[must_use]
    pub fn shown(&self) {}
    pub(crate) fn inner(&self) {}
}

#[cfg(test)]
pub fn test() {}
";
        assert_eq!(without_example(text).collect::<Vec<_>>(), ["Bare", "bare"]);
    }

    #[test]
    fn the_list_may_only_become_shorter() {
        let missing = BTreeSet::from(["fs.rs open".to_owned(), "fs.rs new".to_owned()]);
        let listed = Left { left: BTreeSet::from(["fs.rs open".to_owned(), "fs.rs gone".to_owned()]) };
        let mut findings = Findings::default();
        Examples { missing }.judge(&listed, &mut findings);
        assert_eq!(findings.faults.len(), 2);
        assert!(findings.faults[0].contains("fs.rs new") && findings.faults[1].contains("fs.rs gone"));
    }
}
