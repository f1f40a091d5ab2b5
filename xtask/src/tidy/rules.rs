//! The rules, applied to one file at a time.

use serde::Deserialize;

use super::findings::{File, Findings};

/// `xtask/tidy.toml`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) rust: RustRules,
    pub(crate) text: TextRules,
    pub(crate) shell: ShellRules,
    pub(crate) prose: super::words::Prose,
    pub(crate) claims: super::references::Claims,
    pub(crate) exports: super::exports::Terms,
    pub(crate) examples: super::examples::Left,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RustRules {
    pub(crate) lines_max: usize,
    pub(crate) lines_warn: usize,
    pub(crate) forbidden_macros: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextRules {
    pub(crate) forbidden_words: Vec<String>,
    pub(crate) forbidden_paths: Vec<String>,
    pub(crate) exempt: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShellRules {
    pub(crate) first_line: String,
    pub(crate) must_contain: String,
}

impl Rules {
    /// Applies all rules except those of Markdown.
    pub(crate) fn check(&self, file: &File<'_>, findings: &mut Findings) {
        let is_rust = file.path.ends_with(".rs");
        for (number, line) in (1..).zip(file.text.lines()) {
            let mut fault = |what: String| findings.faults.push(format!("{}:{number}: {what}", file.path));
            if line.ends_with([' ', '\t', '\r']) {
                fault("white space at the end of the line".to_owned());
            }
            if is_rust && line.contains('\t') {
                fault("tab".to_owned());
            }
            if is_rust && let Some(name) = self.rust.forbidden_macro(line) {
                fault(format!("{name} left behind"));
            }
            if !self.text.exempt.iter().any(|path| path == file.path) {
                for word in self.text.forbidden_words.iter().filter(|word| has_word(line, word)) {
                    fault(format!("forbidden word {word:?}"));
                }
                for path in self.text.forbidden_paths.iter().filter(|path| has_path(line, path)) {
                    fault(format!("path of one machine: {path:?}"));
                }
            }
        }
        if !file.text.is_empty() && !file.text.ends_with('\n') {
            findings.faults.push(format!("{}: no line feed at the end", file.path));
        }
        if is_rust {
            let lines = file.text.lines().count();
            let text = format!("{}: {lines} lines, at most {}: split it", file.path, self.rust.lines_max);
            if lines > self.rust.lines_max {
                findings.faults.push(text);
            } else if lines > self.rust.lines_warn {
                findings.warnings.push(text);
            }
        }
        self.shell.check(file, findings);
    }
}

impl RustRules {
    fn forbidden_macro(&self, line: &str) -> Option<&str> {
        let is_called = |name: &&String| {
            line.match_indices(name.as_str()).any(|(place, _)| {
                line[place + name.len()..].starts_with(['(', '{', '[']) && !ends_in_word(&line[..place])
            })
        };
        self.forbidden_macros.iter().find(is_called).map(String::as_str)
    }
}

impl ShellRules {
    fn check(&self, file: &File<'_>, findings: &mut Findings) {
        let first = file.text.lines().next().unwrap_or_default();
        let has_shell = first.starts_with("#!") && (first.ends_with("sh") || first.contains("sh "));
        if !has_shell && !file.path.ends_with(".sh") {
            return;
        }
        let mut fault = |what: String| findings.faults.push(format!("{}: {what}", file.path));
        if first != self.first_line {
            fault(format!("the first line is not {}", self.first_line));
        }
        if !file.text.lines().any(|line| line == self.must_contain) {
            fault(format!("no line `{}`", self.must_contain));
        }
        if !file.is_executable {
            fault("a script that is not executable".to_owned());
        }
    }
}

/// Whether `word` is in the line as a whole word. Case matters.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(place, _)| {
        let is_start_of_word =
            word.starts_with(|c: char| !c.is_alphanumeric()) || !ends_in_word(&line[..place]);
        let after = &line[place + word.len()..];
        let is_end_of_word = word.ends_with(|c: char| !c.is_alphanumeric())
            || !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        is_start_of_word && is_end_of_word
    })
}

/// Whether an absolute path in the line begins with `path`; not in `a/home/b`, `$X/home/b`, `../home/b`,
/// `https://x/home/b`.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(place, _)| {
        let before = &line[..place];
        !ends_in_word(before) && !before.ends_with(['.', '-', '/', '}', ')', '*', '~'])
    })
}

fn ends_in_word(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        toml::from_str(
            r##"
            [rust]
            lines_max = 3
            lines_warn = 2
            forbidden_macros = ["log!"]
            [text]
            forbidden_words = ["BAD", "<<<"]
            forbidden_paths = ["/here/"]
            exempt = ["exempt.txt"]
            [shell]
            first_line = "#!/usr/bin/env bash"
            must_contain = "set -e"
            [prose]
            private_words = []
            columns_max = 110
            exempt = []
            words_left = {}
            long_lines_left = {}
            [claims]
            pages = []
            [exports]
            field = []
            unlisted_crates = []
            [examples]
            left = []
            "##,
        )
        .unwrap()
    }

    fn faults(path: &str, text: &str) -> Vec<String> {
        let mut findings = Findings::default();
        rules().check(&File { path, text, is_executable: true }, &mut findings);
        findings.faults
    }

    #[test]
    fn each_rule_has_its_fault() {
        let cases = [
            ("a.txt", "fine \n", "a.txt:1: white space at the end of the line"),
            ("a.rs", "\n\tfine\n", "a.rs:2: tab"),
            ("a.rs", "    log!(x);\n", "a.rs:1: log! left behind"),
            ("a.rs", "1\n2\n3\n4\n", "a.rs: 4 lines, at most 3: split it"),
            ("a.md", "a BAD word\n", "a.md:1: forbidden word \"BAD\""),
            ("a.md", "<<< mine\n", "a.md:1: forbidden word \"<<<\""),
            ("a.md", "see `/here/x`\n", "a.md:1: path of one machine: \"/here/\""),
            ("a.md", "end", "a.md: no line feed at the end"),
            ("a.sh", "#!/bin/sh\nset -e\n", "a.sh: the first line is not #!/usr/bin/env bash"),
            ("run", "#!/usr/bin/env bash\n", "run: no line `set -e`"),
        ];
        for (path, text, fault) in cases {
            assert_eq!(faults(path, text), [fault]);
        }
    }

    #[test]
    fn what_only_looks_like_a_fault_is_none() {
        assert_eq!(faults("a.rs", "catalog!(x); log!\n"), [""; 0]);
        assert_eq!(faults("a.md", "BADGE _BAD $X/here/x ../here/x https://a/here/x\n"), [""; 0]);
        assert_eq!(faults("exempt.txt", "BAD /here/x\n"), [""; 0]);
        assert_eq!(faults("Makefile", "\tfine\n"), [""; 0]);
        assert_eq!(faults("empty", ""), [""; 0]);
    }

    #[test]
    fn a_script_must_be_executable() {
        let mut findings = Findings::default();
        let text = "#!/usr/bin/env bash\nset -e\n";
        rules().check(&File { path: "x", text, is_executable: false }, &mut findings);
        assert_eq!(findings.faults, ["x: a script that is not executable"]);
    }

    #[test]
    fn a_long_file_is_warned_about_first() {
        let mut findings = Findings::default();
        rules().check(&File { path: "a.rs", text: "1\n2\n3\n", is_executable: false }, &mut findings);
        assert_eq!((findings.faults.len(), findings.warnings.len()), (0, 1));
    }
}
