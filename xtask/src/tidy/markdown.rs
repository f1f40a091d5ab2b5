//! Relative links of Markdown files must lead to existing files.

use std::path::Path;

use super::findings::{File, Findings};

/// Checks `[text](target)` and `[label]: target` in a Markdown file. It skips web links, links within the
/// page, and code.
pub(crate) fn check(root: &Path, file: &File<'_>, findings: &mut Findings) {
    if !file.path.ends_with(".md") {
        return;
    }
    let here = root.join(file.path);
    let dir = here.parent().unwrap_or(root);
    for (line, target) in links(file.text) {
        let path = target.split(['#', '?']).next().unwrap_or_default();
        let is_elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
        if !is_elsewhere && !dir.join(path.replace("%20", " ")).exists() {
            findings.faults.push(format!("{}:{line}: no such file: {target}", file.path));
        }
    }
}

/// The targets of a page's links, with their line numbers.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut fence = None;
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            (None, None) => links.extend(links_of_line(line).map(|target| (number, target))),
        }
    }
    links
}

fn links_of_line(line: &str) -> impl Iterator<Item = &str> {
    // Parts with odd numbers are between backquotes.
    let prose = line.split('`').step_by(2);
    let inline = prose.flat_map(|part| part.split("](").skip(1)).filter_map(|rest| {
        let target = rest.split_once(')').map(|(target, _)| target)?;
        // Also `](target "title")` and `](<target>)`.
        Some(target.split(" \"").next().unwrap_or(target).trim_matches(['<', '>', ' ']))
    });
    let definition = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .filter(|(label, _)| !label.starts_with('^'))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline.chain(definition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "\
see [a](a.md) and [b](../b.md#part \"title\"), not `[c](c.md)`, [`d`](d.md)
```
[e](e.md)
```
[f]: f.md
[^1]: a footnote
";
        assert_eq!(links(text), [(1, "a.md"), (1, "../b.md#part"), (1, "d.md"), (5, "f.md")]);
    }

    #[test]
    fn a_link_to_nowhere_is_a_fault() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        std::fs::write(root.path().join("README.md"), "").unwrap();
        let text = "[up](../README.md) [web](https://example.org/x) [here](#part)\n[gone](gone.md)\n";
        let mut findings = Findings::default();
        check(root.path(), &File { path: "docs/a.md", text, is_executable: false }, &mut findings);
        assert_eq!(findings.faults, ["docs/a.md:2: no such file: gone.md"]);
    }
}
