//! Compares invariants and claims in documents with the code.
//!
//! `docs/invariants.md`: a Rust file must cite each row's number, and a test that the row names must exist.
//! Every citation must have a row. `docs/claims.md`: each row must quote a page of the project word for word,
//! and name a test or a program that exists. In the pages that `xtask/tidy.toml` lists, a row must quote each
//! paragraph with a ratio, an "always" or a "never".

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::findings::{File, Findings};

const INVARIANTS: &str = "docs/invariants.md";
const CLAIMS: &str = "docs/claims.md";

/// `[claims]` of `xtask/tidy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claims {
    /// Pages of which every claim must be in the list.
    pages: Vec<String>,
}

/// The data collected from all files.
#[derive(Debug, Default)]
pub(crate) struct References {
    paths: BTreeSet<String>,
    /// Markdown pages, with every run of white space as one space.
    pages: BTreeMap<String, String>,
    /// The unchanged pages.
    texts: BTreeMap<String, String>,
    functions: BTreeSet<String>,
    /// The place where an invariant is cited, and whether that is in a Rust file.
    cited: BTreeMap<String, (String, bool)>,
}

impl References {
    /// Collects from one file.
    pub(crate) fn collect(&mut self, file: &File<'_>) {
        self.paths.insert(file.path.to_owned());
        let is_rust = file.path.ends_with(".rs");
        if file.path.ends_with(".md") {
            self.pages.insert(file.path.to_owned(), one_line(file.text));
            self.texts.insert(file.path.to_owned(), file.text.to_owned());
        }
        for (number, line) in (1..).zip(file.text.lines()) {
            if is_rust && let Some((_, rest)) = line.split_once("fn ") {
                let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                self.functions.insert(name);
            }
            if file.path != INVARIANTS && !file.path.starts_with("xtask/") {
                for name in invariants_in(line) {
                    let entry = self.cited.entry(name).or_default();
                    if entry.0.is_empty() || is_rust && !entry.1 {
                        *entry = (format!("{}:{number}", file.path), is_rust);
                    }
                }
            }
        }
    }

    /// Compares the names in documents with what exists.
    pub(crate) fn judge(&self, claims: &Claims, findings: &mut Findings) {
        self.judge_invariants(findings);
        self.judge_claims(claims, findings);
    }

    fn judge_invariants(&self, findings: &mut Findings) {
        let Some(text) = self.texts.get(INVARIANTS) else { return };
        let mut listed = BTreeSet::new();
        for (number, row) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("| INV-")) {
            let mut fault = |what: String| findings.faults.push(format!("{INVARIANTS}:{number}: {what}"));
            let Some(name) = invariants_in(row).next() else { continue };
            if !listed.insert(name.clone()) {
                fault(format!("{name} is listed twice"));
            }
            if !self.cited.get(&name).is_some_and(|(_, in_rust)| *in_rust) {
                fault(format!(
                    "{name} is cited by no Rust file: cite it where code relies on it, or drop it"
                ));
            }
            let last = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or_default();
            self.judge_shown(last, &mut fault);
        }
        for (name, (place, _)) in &self.cited {
            if !listed.contains(name) {
                findings.faults.push(format!("{place}: {name} is not in {INVARIANTS}"));
            }
        }
    }

    fn judge_claims(&self, claims: &Claims, findings: &mut Findings) {
        let Some(text) = self.texts.get(CLAIMS) else {
            findings.faults.push(format!("{CLAIMS} is missing"));
            return;
        };
        let mut quotes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (number, row) in (1..).zip(text.lines()).filter(|(_, line)| line.starts_with("| \"")) {
            let mut fault = |what: String| findings.faults.push(format!("{CLAIMS}:{number}: {what}"));
            let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").map(str::trim).collect();
            let [quote, page, shown] = cells[..] else {
                fault("a row has three cells: \"claim\", page, what shows it".to_owned());
                continue;
            };
            let quote = one_line(quote.trim_matches('"'));
            let page = page.trim_matches('`');
            match self.pages.get(page) {
                None => fault(format!("there is no page {page}")),
                Some(text) if !text.contains(&quote) => fault(format!("{page} does not say {quote:?}")),
                Some(_) => quotes.entry(page).or_default().push(quote),
            }
            self.judge_shown(shown, &mut fault);
        }
        for page in &claims.pages {
            let Some(text) = self.texts.get(page) else { continue };
            let quotes = quotes.get(page.as_str()).map_or(&[][..], Vec::as_slice);
            for (number, paragraph) in paragraphs(text) {
                let paragraph = one_line(&paragraph);
                if is_claim(&paragraph) && !quotes.iter().any(|quote| paragraph.contains(quote)) {
                    let start: String = paragraph.chars().take(60).collect();
                    findings
                        .faults
                        .push(format!("{page}:{number}: a claim that {CLAIMS} does not list: {start}"));
                }
            }
        }
    }

    /// The cell must name at least one test, program or command in backquotes, and every one must exist.
    fn judge_shown(&self, cell: &str, fault: &mut impl FnMut(String)) {
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            fault("names no test or program in backquotes".to_owned());
        }
        for name in names {
            let first = name.split_whitespace().next().unwrap_or_default();
            let is_command = ["cargo", "extant", "e2fsck"].contains(&first);
            let function = name.rsplit("::").next().unwrap_or(name);
            let is_file = self.paths.contains(first.trim_start_matches("./"));
            if !is_command && !is_file && !self.functions.contains(function) {
                fault(format!("there is no test or program `{name}`"));
            }
        }
    }
}

/// The invariants that a line cites: `INV-J2`.
fn invariants_in(line: &str) -> impl Iterator<Item = String> {
    line.split("INV-").skip(1).filter_map(|rest| {
        let letters: String = rest.chars().take_while(char::is_ascii_uppercase).collect();
        let digits: String = rest[letters.len()..].chars().take_while(char::is_ascii_digit).collect();
        (!letters.is_empty() && !digits.is_empty()).then(|| format!("INV-{letters}{digits}"))
    })
}

/// Paragraphs and table rows outside of code blocks, with the number of their first line.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let (mut in_code, mut begins) = (false, true);
    for (number, line) in (1..).zip(text.lines()) {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence || line.trim().is_empty() {
            begins = true;
            continue;
        }
        let is_item = line.starts_with(['|', '-', '*', '#']);
        match all.last_mut() {
            Some((_, last)) if !begins && !is_item => {
                last.push('\n');
                last.push_str(line);
            }
            _ => all.push((number, line.to_owned())),
        }
        begins = false;
    }
    all
}

/// Whether it contains a ratio ("30 x", "8 times"), an "always" or a "never".
fn is_claim(paragraph: &str) -> bool {
    let words: Vec<&str> = paragraph
        .split(|c: char| !c.is_alphanumeric() && !['.', '-'].contains(&c))
        .map(|word| word.trim_matches('.'))
        .filter(|word| !word.is_empty())
        .collect();
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    words.iter().any(|word| ["always", "never", "Always", "Never"].contains(word))
        || words.windows(2).any(|two| is_number(two[0]) && ["x", "times"].contains(&two[1]))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(files: &[(&str, &str)]) -> Vec<String> {
        let mut references = References::default();
        for (path, text) in files {
            references.collect(&File { path, text, is_executable: false });
        }
        let claims = Claims { pages: vec!["README.md".to_owned()] };
        let mut findings = Findings::default();
        references.judge(&claims, &mut findings);
        findings.faults
    }

    const RUST: (&str, &str) = ("a.rs", "// INV-J1\nfn holds() {}\n");
    const INVARIANT: (&str, &str) = (INVARIANTS, "| INV-J1 | must hold | `a.rs::holds` |\n");
    const NO_CLAIMS: (&str, &str) = (CLAIMS, "");

    #[test]
    fn invariants_are_cited_and_name_tests() {
        assert_eq!(faults(&[RUST, INVARIANT, NO_CLAIMS]), [""; 0]);
        let uncited = faults(&[("a.rs", "fn holds() {}\n"), INVARIANT, NO_CLAIMS]);
        assert!(uncited[0].contains("INV-J1 is cited by no Rust file"), "{uncited:?}");
        let unknown = faults(&[("a.rs", "// INV-J1 INV-K2\nfn holds() {}\n"), INVARIANT, NO_CLAIMS]);
        assert_eq!(unknown, ["a.rs:1: INV-K2 is not in docs/invariants.md"]);
        let no_test = faults(&[("a.rs", "// INV-J1\n"), INVARIANT, NO_CLAIMS]);
        assert!(no_test[0].ends_with("no test or program `a.rs::holds`"), "{no_test:?}");
    }

    #[test]
    fn claims_are_quoted_and_shown() {
        let page = ("README.md", "It is 30 x\nfaster.\n\nIt has 30 files.\n");
        let row = (CLAIMS, "| \"It is 30 x faster\" | README.md | `bench/a.py` |\n");
        let bench = ("bench/a.py", "");
        assert_eq!(faults(&[page, row, bench]), [""; 0]);
        assert_eq!(faults(&[page, row]), ["docs/claims.md:1: there is no test or program `bench/a.py`"]);
        let unlisted = faults(&[page, NO_CLAIMS]);
        assert_eq!(unlisted, ["README.md:1: a claim that docs/claims.md does not list: It is 30 x faster."]);
        let unsaid = faults(&[("README.md", "Nothing.\n"), row, bench]);
        assert!(unsaid[0].contains("README.md does not say"), "{unsaid:?}");
    }
}
