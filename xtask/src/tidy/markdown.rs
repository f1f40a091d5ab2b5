//! Relative links of Markdown files lead to existing files and headings, and each page of docs/ is in a
//! chapter of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::findings::{File, Findings};
use crate::markdown::{Page, line_at, resolve};

const SUMMARY: &str = "docs/SUMMARY.md";

/// All Markdown files.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pages: BTreeMap<String, Page>,
    /// The line of each link, by page.
    lines: BTreeMap<String, Vec<usize>>,
}

impl Pages {
    pub(crate) fn collect(&mut self, file: &File<'_>) {
        if !file.path.ends_with(".md") {
            return;
        }
        let page = Page::parse(file.text);
        let lines = page.links.iter().map(|link| line_at(file.text, link.range.start)).collect();
        self.lines.insert(file.path.to_owned(), lines);
        self.pages.insert(file.path.to_owned(), page);
    }

    pub(crate) fn judge(&self, root: &Path, findings: &mut Findings) {
        let mut chapters = BTreeSet::new();
        for (from, page) in &self.pages {
            for (link, line) in page.links.iter().zip(&self.lines[from]) {
                let Some((path, part)) = link.parts() else { continue };
                let path = path.split('?').next().unwrap_or_default().replace("%20", " ");
                let to = if path.is_empty() { Some(from.clone()) } else { resolve(from, &path) };
                let fault = match to {
                    Some(to) if root.join(&to).exists() => match (part, self.pages.get(&to)) {
                        (Some(part), Some(page)) if !page.anchors.iter().any(|anchor| anchor == part) => {
                            Some(format!("{to} has no heading #{part}"))
                        }
                        _ => {
                            if from == SUMMARY {
                                chapters.insert(to);
                            }
                            None
                        }
                    },
                    _ => Some(format!("no such file: {}", link.target)),
                };
                findings.faults.extend(fault.map(|fault| format!("{from}:{line}: {fault}")));
            }
        }
        for page in self.pages.keys().filter(|page| page.starts_with("docs/") && *page != SUMMARY) {
            if !chapters.contains(page) {
                findings.faults.push(format!("{page}: in no chapter of the book: add it to {SUMMARY}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(pages: &[(&str, &str)]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let mut all = Pages::default();
        for (path, text) in pages {
            std::fs::write(root.path().join(path), text).unwrap();
            all.collect(&File { path, text, is_executable: false });
        }
        let mut findings = Findings::default();
        all.judge(root.path(), &mut findings);
        findings.faults
    }

    #[test]
    fn a_link_to_nowhere_is_a_fault() {
        let text = "[up](../README.md#top) [web](https://example.org/x) [here](#part)\n[gone](gone.md)\n";
        let found = faults(&[("README.md", "# Top\n"), ("docs/a.md", text), (SUMMARY, "[a](a.md)\n")]);
        assert_eq!(
            found,
            ["docs/a.md:1: docs/a.md has no heading #part", "docs/a.md:2: no such file: gone.md"]
        );
    }

    #[test]
    fn a_page_without_a_chapter_is_a_fault() {
        let found = faults(&[("docs/a.md", ""), ("docs/b.md", ""), (SUMMARY, "[a](a.md)\n")]);
        assert_eq!(found, ["docs/b.md: in no chapter of the book: add it to docs/SUMMARY.md"]);
    }
}
