//! Private words and long lines: their number per folder is compared with a limit that only decreases.
//!
//! Words are counted in prose: comments and string literals of Rust, Markdown without code blocks, comments
//! of shell and Python. A folder without a limit has the limit 0. A folder below its limit is a fault as
//! well: the change that reduced the count must also lower the limit in `xtask/tidy.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::findings::{File, Findings};

/// `[prose]` of `xtask/tidy.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prose {
    /// Words and phrases in lower case that the project does not use.
    private_words: Vec<String>,
    /// Maximum columns of a line of Rust or Markdown.
    columns_max: usize,
    /// Files that may contain such words: the list itself, and texts of others.
    exempt: Vec<String>,
    /// Private words that a folder may still contain.
    words_left: BTreeMap<String, usize>,
    /// Long lines that a folder may still contain.
    long_lines_left: BTreeMap<String, usize>,
}

/// The counts of the files so far, by folder.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    words: BTreeMap<String, Vec<String>>,
    lines: BTreeMap<String, Vec<String>>,
}

impl Prose {
    /// Counts one file.
    pub(crate) fn count(&self, file: &File<'_>, counts: &mut Counts) {
        if self.exempt.iter().any(|path| path == file.path) {
            return;
        }
        let folder = folder(file.path);
        for (number, text) in prose(file) {
            let text = text.to_lowercase();
            for word in self.private_words.iter().filter(|word| has_phrase(&text, word)) {
                let found = format!("{}:{number}: private word {word:?}", file.path);
                counts.words.entry(folder.clone()).or_default().push(found);
            }
        }
        if file.path.ends_with(".rs") || file.path.ends_with(".md") {
            let is_markdown = file.path.ends_with(".md");
            let mut is_console = false;
            for (number, line) in (1..).zip(file.text.lines()) {
                let columns = line.chars().count();
                is_console = is_markdown && (line == "```console" || (is_console && line != "```"));
                // Tables, links and the output of commands cannot be wrapped.
                let is_output = is_console && !line.starts_with("$ ");
                let is_whole = is_markdown && (is_output || line.starts_with('|') || line.contains("]("));
                if columns > self.columns_max && !is_whole && !line.contains("://") {
                    let found = format!("{}:{number}: {columns} columns", file.path);
                    counts.lines.entry(folder.clone()).or_default().push(found);
                }
            }
        }
    }

    /// Compares the counts with the limits.
    pub(crate) fn judge(&self, counts: &Counts, findings: &mut Findings) {
        judge(&counts.words, &self.words_left, "words_left", findings);
        judge(&counts.lines, &self.long_lines_left, "long_lines_left", findings);
    }
}

fn judge(
    found: &BTreeMap<String, Vec<String>>,
    left: &BTreeMap<String, usize>,
    table: &str,
    findings: &mut Findings,
) {
    let none = Vec::new();
    let mut folders: Vec<&String> = found.keys().chain(left.keys()).collect();
    folders.sort();
    folders.dedup();
    for folder in folders {
        let found = found.get(folder).unwrap_or(&none);
        let limit = left.get(folder).copied().unwrap_or(0);
        if found.len() > limit {
            // The limit does not identify the old ones, so all are listed.
            findings.faults.extend(found.iter().take(found.len().min(4000)).cloned());
            findings.faults.push(format!(
                "{folder}: {} found, {limit} allowed ({table} in xtask/tidy.toml)",
                found.len()
            ));
        } else if found.len() < limit {
            let now = found.len();
            findings
                .faults
                .push(format!("{folder}: lower its {table} in xtask/tidy.toml from {limit} to {now}"));
        }
    }
}

/// `crates/FOLDER/NAME`, or the first part of the path.
fn folder(path: &str) -> String {
    let mut parts = path.splitn(4, '/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next(), parts.next()) {
        ("crates", Some(folder), Some(name)) => format!("crates/{folder}/{name}"),
        _ => first.to_owned(),
    }
}

/// The prose of a file, by line number.
fn prose<'a>(file: &File<'a>) -> Vec<(usize, &'a str)> {
    let lines = (1..).zip(file.text.lines());
    if file.path.ends_with(".rs") {
        lines.flat_map(|(number, line)| of_rust(line).map(move |part| (number, part))).collect()
    } else if file.path.ends_with(".md") {
        let mut in_code = false;
        lines
            .filter(|(_, line)| {
                let is_fence = line.trim_start().starts_with("```");
                in_code ^= is_fence;
                !in_code && !is_fence
            })
            .flat_map(|(number, line)| line.split('`').step_by(2).map(move |part| (number, part)))
            .collect()
    } else if [".sh", ".py", ".toml"].iter().any(|end| file.path.ends_with(end)) {
        lines.filter_map(|(number, line)| line.split_once("# ").map(|(_, text)| (number, text))).collect()
    } else {
        Vec::new()
    }
}

/// The comment and the string literals of a line, without code in backquotes. Literals over several lines are
/// not recognised.
fn of_rust(line: &str) -> impl Iterator<Item = &str> {
    let (code, comment) = line.split_once("//").unwrap_or((line, ""));
    let literals = code.split('"').skip(1).step_by(2);
    comment.split('`').step_by(2).chain(literals)
}

/// Whether the text contains the phrase as whole words.
fn has_phrase(text: &str, phrase: &str) -> bool {
    text.match_indices(phrase).any(|(at, _)| {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        // `{name}` in a literal is code.
        !text[..at].ends_with(|c| is_word(c) || c == '{') && !text[at + phrase.len()..].starts_with(is_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(path: &str, text: &str, limits: &str) -> Vec<String> {
        let prose: Prose = toml::from_str(&format!(
            "private_words = [\"nobody\", \"by the wall\"]\ncolumns_max = 40\nexempt = [\"list.md\"]\n{limits}"
        ))
        .unwrap();
        let mut counts = Counts::default();
        prose.count(&File { path, text, is_executable: false }, &mut counts);
        let mut findings = Findings::default();
        prose.judge(&counts, &mut findings);
        findings.faults
    }

    const NONE: &str = "[words_left]\n[long_lines_left]\n";

    #[test]
    fn private_words_are_found_in_prose_only() {
        let path = "crates/engine/dir/src/lib.rs";
        assert_eq!(faults(path, "// Nobody waits.\n", NONE).len(), 2);
        assert_eq!(faults(path, "let x = \"time by the wall\";\n", NONE).len(), 2);
        assert_eq!(faults(path, "fn nobody() {} // `nobody` returns\n", NONE), [""; 0]);
        assert_eq!(faults(path, "say!(\"{nobody}\");\n", NONE), [""; 0]);
        assert_eq!(faults("docs/a.md", "```\nnobody\n```\n`nobody`, nobodys\n", NONE), [""; 0]);
        assert_eq!(faults("list.md", "nobody\n", NONE), [""; 0]);
    }

    #[test]
    fn the_output_of_commands_may_be_long() {
        let long = "a".repeat(41);
        let text = format!("{long}\n```console\n$ {long}\n{long}\n```\n{long}\n");
        assert_eq!(
            faults("docs/a.md", &text, NONE)[..3],
            ["docs/a.md:1: 41 columns", "docs/a.md:3: 43 columns", "docs/a.md:6: 41 columns"]
        );
        assert_eq!(faults("docs/a.md", &format!("```console\n{long}\n```\n"), NONE), [""; 0]);
    }

    #[test]
    fn limits_only_go_down() {
        let limits = "[words_left]\n\"crates/engine/dir\" = 1\n[long_lines_left]\n";
        let path = "crates/engine/dir/src/lib.rs";
        assert_eq!(faults(path, "// nobody\n", limits), [""; 0]);
        let lower = ["crates/engine/dir: lower its words_left in xtask/tidy.toml from 1 to 0"];
        assert_eq!(faults(path, "\n", limits), lower);
    }

    #[test]
    fn long_lines_are_found_but_not_in_tables() {
        let long = "x".repeat(41);
        assert_eq!(faults("docs/a.md", &format!("{long}\n"), NONE).len(), 2);
        assert_eq!(faults("docs/a.md", &format!("| {long} |\n"), NONE), [""; 0]);
    }
}
