//! Links and anchors of a Markdown page. `tidy` checks them, and `book` changes the links that leave docs/.

use std::collections::BTreeMap;
use std::ops::Range;

use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};

/// What a page links to, and what can be linked to in it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) links: Vec<Link>,
    /// The anchors of its headings, as mdBook and code hosts derive them.
    pub(crate) anchors: Vec<String>,
}

/// The target of a link or of a picture.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) target: String,
    /// Its bytes in the page.
    pub(crate) range: Range<usize>,
}

impl Page {
    /// Parses a page. Code blocks and code spans have no links.
    pub(crate) fn parse(text: &str) -> Self {
        let options = Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES | Options::ENABLE_STRIKETHROUGH;
        let parser = Parser::new_ext(text, options);
        let mut page = Self::default();
        // The target of a link by reference is in its definition, once for all such links.
        for (_, definition) in parser.reference_definitions().iter() {
            page.add(text, &definition.dest, definition.span.clone());
        }
        let mut seen = BTreeMap::new();
        let mut heading: Option<String> = None;
        for (event, range) in parser.into_offset_iter() {
            match event {
                Event::Start(
                    Tag::Link { link_type, dest_url, .. } | Tag::Image { link_type, dest_url, .. },
                ) if matches!(link_type, LinkType::Inline | LinkType::Autolink) => {
                    page.add(text, &dest_url, range);
                }
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&part);
                    }
                }
                Event::SoftBreak => {
                    if let Some(heading) = &mut heading {
                        heading.push(' ');
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let anchor = anchor(&heading.take().unwrap_or_default());
                    let number: &mut usize = seen.entry(anchor.clone()).or_default();
                    page.anchors.push(if *number == 0 { anchor } else { format!("{anchor}-{number}") });
                    *number += 1;
                }
                _ => {}
            }
        }
        page.links.sort_by_key(|link| link.range.start);
        page
    }

    /// Adds a link. Its target comes last in `range`, before an optional title.
    fn add(&mut self, text: &str, target: &str, range: Range<usize>) {
        if let Some(at) = text[range.clone()].rfind(target) {
            let start = range.start + at;
            self.links.push(Link { target: target.to_owned(), range: start..start + target.len() });
        }
    }
}

impl Link {
    /// The path and the anchor of a relative link; `None` for one to another site.
    pub(crate) fn parts(&self) -> Option<(&str, Option<&str>)> {
        if self.target.contains("://") || self.target.starts_with("mailto:") {
            return None;
        }
        Some(
            self.target
                .split_once('#')
                .map_or((self.target.as_str(), None), |(path, part)| (path, Some(part))),
        )
    }
}

/// The number of the line at a byte of a text, from 1.
pub(crate) fn line_at(text: &str, at: usize) -> usize {
    1 + text[..at].matches('\n').count()
}

/// A relative path from the folder of `from` leads to this path of the repository; `None` if it leaves it.
pub(crate) fn resolve(from: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchor of a heading: letters and digits in lower case, `-` for blanks, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_outside_of_code() {
        let text = "\
see [a](a.md) and [over\ntwo lines](../b.md#part \"title\"), not `[c](c.md)`, [`d`](d.md), [d.md](d.md#x)
```
[e](e.md)
```
a [reference][f], ![picture](g.svg)

[f]: f.md
[^1]: a footnote
";
        let page = Page::parse(text);
        let targets: Vec<&str> = page.links.iter().map(|link| &text[link.range.clone()]).collect();
        assert_eq!(targets, ["a.md", "../b.md#part", "d.md", "d.md#x", "g.svg", "f.md"]);
        assert_eq!(line_at(text, page.links[1].range.start), 2);
    }

    #[test]
    fn anchors_are_those_of_the_book() {
        let page = Page::parse("# A tour: `diff`, and *more*\n\n## Exit codes\n\ntext\n\n## Exit codes\n");
        assert_eq!(page.anchors, ["a-tour-diff-and-more", "exit-codes", "exit-codes-1"]);
    }

    #[test]
    fn relative_paths_are_resolved() {
        assert_eq!(resolve("docs/why/a.md", "../b.md").as_deref(), Some("docs/b.md"));
        assert_eq!(resolve("docs/a.md", "../README.md").as_deref(), Some("README.md"));
        assert_eq!(resolve("docs/a.md", "../../x"), None);
    }
}
