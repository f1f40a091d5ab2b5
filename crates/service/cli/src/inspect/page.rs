//! The output of `inspect`: aligned text for people, or one JSON object for programs.
//!
//! Owns: indentation, columns, commas and brackets. Does **not** own: the text of facts (see
//! [`super::format`]).
//!
//! ```text
//! text                                         JSON
//! block size              4096 (4.0 KiB)       "block_size": 4096,
//! extents:                                     "extents": [
//!   0..9 -> 100..109  10 blocks                  {"logical": 0, "physical": 100, "len_blocks": 10}
//!                                              ]
//! ```
//!
//! Invariants
//! 1. A fact has one key: its text label is the key with spaces for underscores.
//! 2. Nothing is stored: the output of a directory with a million names needs the memory of one block.
//! 3. The first output error is kept and ends all output; [`Page::is_broken`] lets walks stop early.

use std::fmt::Display;
use std::io::{self, Write};

use serde_json::Value;

use crate::schema;

/// Width of a fact's label, including indentation.
const LABEL_WIDTH: usize = 26;

/// The kind of an open level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Object,
    List,
    /// A list that the text output does not show as one.
    Flat,
}

/// A page being printed.
pub(super) struct Page<'w> {
    out: &'w mut dyn Write,
    json: bool,
    /// The id of the object's schema, its first fact.
    schema: &'static str,
    /// Open levels below the outermost object, and whether each already has contents.
    open: Vec<(Level, bool)>,
    outer_used: bool,
    broken: Option<io::Error>,
}

impl<'w> Page<'w> {
    /// An empty page. Prints nothing before the first fact.
    pub(super) fn new(out: &'w mut dyn Write, json: bool, schema: &'static str) -> Self {
        Self { out, json, schema, open: Vec::new(), outer_used: false, broken: None }
    }

    /// Whether the output failed. Further output is lost.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Prints a fact, as text or as a JSON value.
    pub(super) fn fact(&mut self, key: &str, text: impl Display, json: impl Into<Value>) {
        if self.json {
            self.begin_value(Some(key));
            self.put(&json.into().to_string());
        } else {
            let label = format!("{}{}", self.indent(), words(key));
            let line = format!("{label:<LABEL_WIDTH$}{text}");
            self.line(&line);
        }
    }

    /// Prints a number, the same in both forms.
    pub(super) fn number(&mut self, key: &str, number: impl Into<u64>) {
        let number = number.into();
        self.fact(key, number, number);
    }

    /// Prints a fact in JSON only; the text contains it in another line.
    pub(super) fn json_only(&mut self, key: &str, json: impl Into<Value>) {
        if self.json {
            self.fact(key, "", json);
        }
    }

    /// Prints a line in text only.
    pub(super) fn text_only(&mut self, text: impl Display) {
        if !self.json {
            let line = format!("{}{text}", self.indent());
            self.line(&line);
        }
    }

    /// Begins a group of facts under `key`; [`close`](Self::close) ends it.
    pub(super) fn open(&mut self, key: &str) {
        self.text_only(format_args!("{}:", words(key)));
        self.enter(Some(key), Level::Object);
    }

    /// Begins a list of items under `key`. The text prints `heading` above the items, with the same
    /// indentation.
    pub(super) fn list(&mut self, key: &str, heading: Option<&str>) {
        self.text_only(format_args!("{}:", words(key)));
        self.enter(Some(key), Level::List);
        if let Some(heading) = heading {
            self.text_only(heading);
        }
    }

    /// Begins a list that exists only in JSON: the text prints its items without a heading and without
    /// indentation.
    pub(super) fn json_list(&mut self, key: &str) {
        self.enter(Some(key), Level::Flat);
    }

    /// Prints an item of a list: a line of text, or a JSON value.
    pub(super) fn item(&mut self, text: impl Display, json: impl Into<Value>) {
        if self.json {
            self.begin_value(None);
            self.put(&json.into().to_string());
        } else {
            self.text_only(text);
        }
    }

    /// Begins an item with its own facts and lists; in the text, `text` is its first line.
    pub(super) fn open_item(&mut self, text: impl Display) {
        self.text_only(text);
        self.enter(None, Level::Object);
    }

    /// Ends the group, list or item that was begun last.
    pub(super) fn close(&mut self) {
        let Some((level, used)) = self.open.pop() else { return };
        if self.json {
            if used {
                let line = format!("\n{}", self.json_indent());
                self.put(&line);
            }
            self.put(if level == Level::Object { "}" } else { "]" });
        }
    }

    /// Ends the page. In JSON, adds the list of damage.
    ///
    /// # Errors
    /// The first output error.
    pub(super) fn finish(mut self, damage: &[String]) -> io::Result<()> {
        while !self.open.is_empty() {
            self.close();
        }
        if self.json {
            self.list("damage", None);
            for line in damage {
                self.item("", line.as_str());
            }
            self.close();
            self.put("\n}\n");
        }
        match self.broken.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn enter(&mut self, key: Option<&str>, level: Level) {
        if self.json {
            self.begin_value(key);
            self.put(if level == Level::Object { "{" } else { "[" });
        }
        self.open.push((level, false));
    }

    /// Writes the comma, the line break and the key before a value.
    fn begin_value(&mut self, key: Option<&str>) {
        let used = self.open.last_mut().map_or(&mut self.outer_used, |(_, used)| used);
        let before = match (std::mem::replace(used, true), self.open.is_empty()) {
            (true, _) => ",".to_owned(),
            (false, true) => format!("{{\n  \"{}\": \"{}\",", schema::FIELD, schema::urn(self.schema)),
            (false, false) => String::new(),
        };
        let key = key.map_or(String::new(), |key| format!("{}: ", Value::from(key)));
        let line = format!("{before}\n{}{key}", self.json_indent());
        self.put(&line);
    }

    fn indent(&self) -> String {
        "  ".repeat(self.open.iter().filter(|(level, _)| *level != Level::Flat).count())
    }

    fn json_indent(&self) -> String {
        "  ".repeat(self.open.len() + 1)
    }

    fn line(&mut self, line: &str) {
        let line = format!("{}\n", line.trim_end());
        self.put(&line);
    }

    fn put(&mut self, text: &str) {
        if self.broken.is_none()
            && let Err(error) = self.out.write_all(text.as_bytes())
        {
            self.broken = Some(error);
        }
    }
}

/// The text label of a key: `free blocks` for `free_blocks`.
fn words(key: &str) -> String {
    key.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fill(page: &mut Page<'_>) {
        page.number("free_blocks", 5u32);
        page.list("names", None);
        page.item("a", "a");
        page.open_item("b");
        page.fact("size", "1 byte", 1);
        page.close();
        page.close();
        page.list("nothing", None);
        page.close();
    }

    #[test]
    fn text_is_aligned_and_indented() {
        let mut out = Vec::new();
        let mut page = Page::new(&mut out, false, "test:1");
        fill(&mut page);
        page.finish(&[]).unwrap();
        let expected =
            "free blocks               5\nnames:\n  a\n  b\n    size                  1 byte\nnothing:\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn json_is_one_object_with_the_damage_last() {
        let mut out = Vec::new();
        let mut page = Page::new(&mut out, true, "test:1");
        fill(&mut page);
        page.finish(&["it \"hurts\"".to_owned()]).unwrap();
        let value: Value = serde_json::from_slice(&out).unwrap();
        let expected = json!({
            "schema": "urn:extant:test:1", "free_blocks": 5, "names": ["a", {"size": 1}], "nothing": [],
            "damage": ["it \"hurts\""],
        });
        assert_eq!(value, expected);
    }

    #[test]
    fn an_empty_page_is_an_object_too() {
        let mut out = Vec::new();
        Page::new(&mut out, true, "test:1").finish(&[]).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap(),
            json!({"schema": "urn:extant:test:1", "damage": []})
        );
    }
}
