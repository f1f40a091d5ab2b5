//! Each type that a crate exports from its root must be a term of the field (a list in `xtask/tidy.toml`), or
//! be explained in the glossary.
//!
//! A generic noun (`Place`, `Node`, `Target`) has no meaning where another crate imports it.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::findings::{File, Findings};

const GLOSSARY: &str = "docs/glossary.md";

/// `[exports]` of `xtask/tidy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terms {
    /// Types that a kernel or database engineer knows by their names alone.
    field: Vec<String>,
    /// Crates of tests and tools, whose exports need not be listed.
    unlisted_crates: Vec<String>,
}

/// The exported types so far, and the glossary.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// Name and path.
    types: BTreeSet<(String, String)>,
    glossary: String,
}

impl Exports {
    /// Collects the exports of one file.
    pub(crate) fn collect(&mut self, file: &File<'_>) {
        if file.path == GLOSSARY {
            self.glossary.push_str(file.text);
        }
        if !file.path.starts_with("crates/") || !file.path.ends_with("/src/lib.rs") {
            return;
        }
        for name in exported(file.text) {
            self.types.insert((name, file.path.to_owned()));
        }
    }

    /// Compares the exports with both lists.
    pub(crate) fn judge(&self, terms: &Terms, findings: &mut Findings) {
        let is_listed = |path: &str| {
            let name = path.split('/').nth(2).unwrap_or_default();
            !terms.unlisted_crates.iter().any(|unlisted| unlisted == name)
        };
        for (name, path) in self.types.iter().filter(|(_, path)| is_listed(path)) {
            let is_explained = self.glossary.contains(&format!("`{name}`"));
            if !terms.field.contains(name) && !is_explained {
                findings.faults.push(format!(
                    "{path}: `{name}` is neither in {GLOSSARY} nor a term of the field (exports in xtask/tidy.toml)"
                ));
            }
        }
        for name in terms.field.iter().filter(|term| !self.types.iter().any(|(name, _)| name == *term)) {
            findings.faults.push(format!("xtask/tidy.toml: no crate exports `{name}`"));
        }
    }
}

/// Names in camel case after `pub use`, `pub struct`, `pub enum`, `pub trait` and `pub type` in the first
/// column.
fn exported(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut in_use = false;
    for line in text.lines() {
        let item = line.strip_prefix("pub ");
        in_use |= item.is_some_and(|item| item.starts_with("use "));
        let parts: Vec<&str> = if in_use {
            line.rsplit("::").next().unwrap_or_default().split(['{', ',', '}', ';']).collect()
        } else {
            let kinds = ["struct ", "enum ", "trait ", "type "];
            kinds.iter().find_map(|kind| item?.strip_prefix(kind)).into_iter().collect()
        };
        for part in parts {
            let part = part.rsplit(" as ").next().unwrap_or(part).trim();
            let name: String = part.chars().take_while(|c| c.is_alphanumeric()).collect();
            let is_type = name.starts_with(|c: char| c.is_ascii_uppercase())
                && name.contains(|c: char| c.is_ascii_lowercase());
            if is_type {
                names.push(name);
            }
        }
        in_use &= !line.ends_with(';');
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_found() {
        let text = "pub use a::{B1, Cd as De, MAX};\npub use x::{\n    Fg, hi,\n};\nuse q::No;\npub struct Kl<'a> {\n    pub x: Mn,\n}\n";
        assert_eq!(exported(text), ["De", "Fg", "Kl"]);
    }

    #[test]
    fn a_generic_noun_is_a_fault() {
        let mut exports = Exports::default();
        let lib = "pub struct Place;\npub struct Inode;\npub struct Folio;\n";
        exports.collect(&File { path: "crates/io/a/src/lib.rs", text: lib, is_executable: false });
        exports.collect(&File { path: GLOSSARY, text: "| folio | `Folio` |\n", is_executable: false });
        let mut findings = Findings::default();
        let terms = Terms { field: vec!["Inode".to_owned()], unlisted_crates: vec!["tests".to_owned()] };
        let unlisted =
            File { path: "crates/testing/tests/src/lib.rs", text: "pub struct Run;\n", is_executable: false };
        exports.collect(&unlisted);
        exports.judge(&terms, &mut findings);
        assert_eq!(findings.faults.len(), 1);
        assert!(findings.faults[0].contains("`Place`"));
    }
}
