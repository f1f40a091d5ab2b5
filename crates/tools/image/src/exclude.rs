//! Patterns of paths that a build leaves out: `--exclude PATTERN` and `--exclude-from FILE`.
//!
//! Owns the patterns. Does **not** own the walk: the caller skips the contents of an excluded directory, or
//! calls [`Excludes::is_pruned`] if its entries arrive one by one.
//!
//! | pattern | leaves out |
//! |---|---|
//! | `name` | every entry of that name, at any depth |
//! | `/a/b`, `a/b` | that path, relative to the root of the source |
//! | `*` `?` | any run of bytes, any one byte; never a `/` |
//! | `[a-z]` `[!a-z]` | one byte in, or not in, a set; never a `/` |
//! | `**` | any run of bytes, including `/`; `**/` also matches nothing |
//! | `a/**` | everything below `a`, but not `a` itself |
//! | `\x` | the byte `x` without special meaning |
//!
//! A trailing slash is ignored: `build/` means `build`. Patterns match bytes, so names need not be UTF-8. A
//! leading dot has no special meaning. There is no negation.

use hashbrown::HashSet;
use regex::bytes::{RegexBuilder, RegexSet, RegexSetBuilder};

/// Memory limit of the compiled patterns. A thousand typical patterns need 1 MiB; patterns without wildcards
/// need none.
const PROGRAM_BYTES: usize = 64 << 20;

/// Why a pattern is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("exclude pattern \"{}\": {why}", String::from_utf8_lossy(.pattern))]
pub struct ExcludeFault {
    /// The pattern as given.
    pub pattern: Vec<u8>,
    /// The finding.
    pub why: &'static str,
}

/// A set of patterns. The default set excludes nothing.
#[derive(Debug, Clone, Default)]
pub struct Excludes {
    /// Paths without wildcards.
    paths: HashSet<Box<[u8]>>,
    /// Names without wildcards.
    names: HashSet<Box<[u8]>>,
    /// All other patterns that match the whole path.
    path_globs: Option<RegexSet>,
    /// All other patterns that match the last component.
    name_globs: Option<RegexSet>,
}

impl Excludes {
    /// Builds a set from patterns in any order.
    ///
    /// # Errors
    /// The first pattern that is malformed, can never match, or is too large.
    pub fn new<P: AsRef<[u8]>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, ExcludeFault> {
        let mut excludes = Self::default();
        let mut path_globs = Vec::new();
        let mut name_globs = Vec::new();
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let fault = |why| ExcludeFault { pattern: pattern.to_vec(), why };
            let glob = Glob::parse(pattern).map_err(fault)?;
            match (glob.literal, glob.anchored) {
                (Some(path), true) => drop(excludes.paths.insert(path.into_boxed_slice())),
                (Some(name), false) => drop(excludes.names.insert(name.into_boxed_slice())),
                (None, anchored) => {
                    let list = if anchored { &mut path_globs } else { &mut name_globs };
                    list.push((glob.expression, pattern.to_vec()));
                }
            }
        }
        excludes.path_globs = compile(&path_globs)?;
        excludes.name_globs = compile(&name_globs)?;
        Ok(excludes)
    }

    /// The patterns of a file, one per line. Blank lines and lines that begin with `#` are skipped (`\#`
    /// stands for a name that begins with `#`), and a carriage return at the end of a line is ignored.
    pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
        text.split(|&b| b == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
            .filter(|line| !line.is_empty() && line[0] != b'#')
    }

    /// Whether the set excludes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
            && self.names.is_empty()
            && self.path_globs.is_none()
            && self.name_globs.is_none()
    }

    /// Whether this path itself is excluded. The path is relative to the root of the source, without a
    /// leading slash. The root (an empty path) is never excluded.
    #[must_use]
    pub fn is_excluded(&self, path: &[u8]) -> bool {
        if path.is_empty() || self.is_empty() {
            return false;
        }
        let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
        self.names.contains(name)
            || self.paths.contains(path)
            || self.name_globs.as_ref().is_some_and(|globs| globs.is_match(name))
            || self.path_globs.as_ref().is_some_and(|globs| globs.is_match(path))
    }

    /// Whether this path, or any directory above it, is excluded. For sources that list entries instead of
    /// walking directories.
    #[must_use]
    pub fn is_pruned(&self, path: &[u8]) -> bool {
        !self.is_empty()
            && (self.is_excluded(path)
                || path.iter().enumerate().any(|(at, &byte)| byte == b'/' && self.is_excluded(&path[..at])))
    }
}

fn compile(globs: &[(String, Vec<u8>)]) -> Result<Option<RegexSet>, ExcludeFault> {
    if globs.is_empty() {
        return Ok(None);
    }
    let set = RegexSetBuilder::new(globs.iter().map(|(expression, _)| expression))
        .unicode(false)
        .dot_matches_new_line(true)
        .size_limit(PROGRAM_BYTES)
        .build();
    set.map(Some).map_err(|_| {
        let culprit = globs.iter().find(|(expression, _)| {
            RegexBuilder::new(expression).unicode(false).size_limit(PROGRAM_BYTES).build().is_err()
        });
        match culprit {
            Some((_, pattern)) => ExcludeFault { pattern: pattern.clone(), why: "it is too large" },
            None => ExcludeFault {
                pattern: globs.last().map(|(_, pattern)| pattern.clone()).unwrap_or_default(),
                why: "all patterns together are too large",
            },
        }
    })
}

/// A parsed pattern.
struct Glob {
    /// Matches the whole path instead of the last component.
    anchored: bool,
    /// The bytes that it matches, if it has no wildcard.
    literal: Option<Vec<u8>>,
    /// Regular expression, anchored at both ends.
    expression: String,
}

impl Glob {
    fn parse(pattern: &[u8]) -> Result<Self, &'static str> {
        let mut rest = pattern;
        if rest.is_empty() {
            return Err("it is empty");
        }
        if rest.contains(&0) {
            return Err("it holds a NUL byte, which no name does");
        }
        if rest[0] == b'!' {
            return Err("negation is not supported (\\! is a name that begins so)");
        }
        while let Some(shorter) = rest.strip_suffix(b"/") {
            rest = shorter;
        }
        let mut anchored = false;
        while let Some(shorter) = rest.strip_prefix(b"/").or_else(|| rest.strip_prefix(b"./")) {
            rest = shorter;
            anchored = true;
        }
        if rest.is_empty() || rest == b"." {
            return Err("it would exclude the root of the source");
        }
        anchored |= rest.contains(&b'/');
        for component in rest.split(|&b| b == b'/') {
            match component {
                b"" => return Err("it has two slashes in a row"),
                b"." | b".." => return Err("it has a . or .. component, which no path has"),
                _ => {}
            }
        }
        let mut out = Translation { rest, literal: Some(Vec::new()), expression: "^(?:".to_owned() };
        out.run()?;
        out.expression.push_str(")$");
        Ok(Self { anchored, literal: out.literal, expression: out.expression })
    }
}

struct Translation<'p> {
    rest: &'p [u8],
    literal: Option<Vec<u8>>,
    expression: String,
}

impl Translation<'_> {
    fn run(&mut self) -> Result<(), &'static str> {
        let mut after_slash = true;
        while let Some((&byte, rest)) = self.rest.split_first() {
            self.rest = rest;
            match byte {
                b'*' => {
                    let stars = 1 + rest.iter().take_while(|&&b| b == b'*').count();
                    self.rest = &rest[stars - 1..];
                    if stars == 1 {
                        self.wildcard("[^/]*");
                    } else if after_slash && self.rest.first() == Some(&b'/') {
                        self.rest = &self.rest[1..];
                        self.wildcard("(?:.*/)?");
                        after_slash = true;
                        continue;
                    } else if after_slash && self.rest.is_empty() {
                        self.wildcard(".+");
                    } else {
                        self.wildcard(".*");
                    }
                }
                b'?' => self.wildcard("[^/]"),
                b'[' => self.set()?,
                b'\\' => {
                    let (&escaped, rest) = rest.split_first().ok_or("it ends in a backslash")?;
                    self.rest = rest;
                    self.byte(escaped);
                }
                _ => self.byte(byte),
            }
            after_slash = byte == b'/';
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) {
        if let Some(literal) = &mut self.literal {
            literal.push(byte);
        }
        self.expression.push_str(&format!("\\x{byte:02X}"));
    }

    fn wildcard(&mut self, expression: &str) {
        self.literal = None;
        self.expression.push_str(expression);
    }

    /// Parses a set after its `[`, including the `]`.
    fn set(&mut self) -> Result<(), &'static str> {
        const OPEN: &str = "a [ has no closing ] (\\[ is the byte itself)";
        let negated = matches!(self.rest.first(), Some(b'!' | b'^'));
        let mut rest = &self.rest[usize::from(negated)..];
        let mut members = [false; 256];
        let mut first = true;
        loop {
            let (&byte, after) = rest.split_first().ok_or(OPEN)?;
            rest = after;
            let low = match byte {
                b']' if !first => break,
                b'/' => return Err("a / in brackets can never match"),
                b'[' if rest.first() == Some(&b':') => {
                    return Err("named sets like [:alpha:] are not supported");
                }
                b'\\' => take(&mut rest).ok_or(OPEN)?,
                _ => byte,
            };
            first = false;
            let mut high = low;
            if rest.first() == Some(&b'-') && !matches!(rest.get(1), None | Some(b']')) {
                rest = &rest[1..];
                high = take(&mut rest).ok_or(OPEN)?;
                if high == b'\\' {
                    high = take(&mut rest).ok_or(OPEN)?;
                }
                if high < low {
                    return Err("a range in brackets runs backwards");
                }
            }
            members[usize::from(low)..=usize::from(high)].fill(true);
        }
        self.rest = rest;
        self.literal = None;
        self.expression.push('[');
        let mut any = false;
        for byte in (0..=255u8).filter(|&b| members[usize::from(b)] != negated && b != b'/') {
            self.expression.push_str(&format!("\\x{byte:02X}"));
            any = true;
        }
        self.expression.push(']');
        if any { Ok(()) } else { Err("a set in brackets can never match") }
    }
}

fn take(rest: &mut &[u8]) -> Option<u8> {
    let (&byte, after) = rest.split_first()?;
    *rest = after;
    Some(byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(pattern: &str) -> Excludes {
        Excludes::new([pattern]).unwrap()
    }

    fn why(pattern: &str) -> &'static str {
        Excludes::new([pattern]).unwrap_err().why
    }

    #[test]
    fn names_match_anywhere_and_paths_from_the_root() {
        for (pattern, hits, misses) in [
            ("core", vec!["core", "a/core", "a/b/core"], vec!["core/a", "acore", "a/corex", ""]),
            ("/core", vec!["core"], vec!["a/core", "corex"]),
            ("./core", vec!["core"], vec!["a/core"]),
            ("a/core", vec!["a/core"], vec!["b/a/core", "a/core/x"]),
            ("build/", vec!["build", "x/build"], vec!["builds"]),
            ("*.o", vec![".o", "x.o", "a/x.o"], vec!["x.oo", "x.o/y"]),
            ("/*", vec!["a", "abc"], vec!["a/b", ""]),
            ("var/*/tmp", vec!["var/x/tmp"], vec!["var/tmp", "var/x/y/tmp"]),
            ("a?c", vec!["abc", "d/a.c"], vec!["ac", "a/c"]),
            ("[a-c]x", vec!["ax", "cx"], vec!["dx", "x"]),
            ("[!a-c]x", vec!["dx", "y/-x"], vec!["ax", "x", "a/x"]),
            ("[]x]", vec!["]", "x"], vec!["a"]),
            ("[a-]", vec!["a", "-"], vec!["b"]),
            ("[\\]\\-]", vec!["]", "-"], vec!["\\"]),
            ("**/cache", vec!["cache", "a/cache", "a/b/cache"], vec!["xcache", "cache/x"]),
            ("a/**/b", vec!["a/b", "a/x/b", "a/x/y/b"], vec!["ab", "a/xb", "c/a/b"]),
            ("a/**", vec!["a/b", "a/b/c"], vec!["a", "b/a/c"]),
            ("/a**z", vec!["az", "a/z", "a/b/z"], vec!["a/b", "b/az"]),
            ("\\*", vec!["*", "a/*"], vec!["a"]),
            ("\\!x", vec!["!x"], vec!["x"]),
            ("a.b+(c)|$", vec!["a.b+(c)|$"], vec!["axb+(c)|$"]),
        ] {
            let excludes = one(pattern);
            assert!(!excludes.is_empty());
            for hit in hits {
                assert!(excludes.is_excluded(hit.as_bytes()), "{pattern} should match {hit}");
            }
            for miss in misses {
                assert!(!excludes.is_excluded(miss.as_bytes()), "{pattern} should not match {miss}");
            }
        }
    }

    #[test]
    fn what_is_below_an_excluded_directory_is_pruned() {
        let excludes = Excludes::new(["node_modules", "/var/cache/*"]).unwrap();
        assert!(excludes.is_pruned(b"a/node_modules/x/y"));
        assert!(!excludes.is_excluded(b"a/node_modules/x/y"));
        assert!(excludes.is_pruned(b"var/cache/apt/archives"));
        assert!(!excludes.is_pruned(b"var/cache"));
        assert!(!excludes.is_pruned(b""));
    }

    #[test]
    fn names_are_bytes() {
        let excludes = Excludes::new([&b"caf\xE9"[..], b"x[\x80-\xFF]", b"a\nb*"]).unwrap();
        assert!(excludes.is_excluded(b"d/caf\xE9"));
        assert!(excludes.is_excluded(b"x\xC3"));
        assert!(excludes.is_excluded(b"a\nb\nc"));
        assert!(one("?").is_excluded(b"\xFF"));
        assert!(one("/**").is_excluded(b"a/\n/\xFF"));
    }

    #[test]
    fn a_file_has_one_pattern_a_line() {
        let lines = Excludes::lines(b"# comment\n\n*.o\r\n\\#x\nlast").collect::<Vec<_>>();
        assert_eq!(lines, [&b"*.o"[..], b"\\#x", b"last"]);
        let excludes = Excludes::new(lines).unwrap();
        assert!(excludes.is_excluded(b"#x"));
        assert!(Excludes::new(Excludes::lines(b"")).unwrap().is_empty());
    }

    #[test]
    fn patterns_that_mean_nothing_are_refused() {
        for (bad, word) in [
            ("", "empty"),
            ("a\0b", "NUL"),
            ("!keep", "negation"),
            ("/", "root"),
            (".", "root"),
            ("./", "root"),
            ("a//b", "two slashes"),
            ("../a", ".."),
            ("a/./b", "component"),
            ("[a", "closing"),
            ("[", "closing"),
            ("[z-a]", "backwards"),
            ("[[:alpha:]]", "named"),
            ("[/]", "never"),
            ("a\\", "backslash"),
        ] {
            assert!(why(bad).contains(word), "{bad}: {}", why(bad));
        }
        assert!(ExcludeFault { pattern: b"x\xFF".to_vec(), why: "no" }.to_string().contains("x\u{FFFD}"));
    }

    #[test]
    fn a_long_list_of_plain_paths_needs_no_program() {
        let excludes = Excludes::new((0..100_000).map(|i| format!("/d{}/f{i}", i % 100))).unwrap();
        assert!(excludes.path_globs.is_none() && excludes.name_globs.is_none());
        assert!(excludes.is_excluded(b"d7/f99907"));
        assert!(!excludes.is_excluded(b"d8/f99907"));
    }

    /// A second implementation of the rules: backtracks over bytes.
    fn slow_match(pattern: &[u8], path: &[u8], at_start: bool) -> bool {
        match pattern {
            [] => path.is_empty(),
            [b'*', b'*', b'/', rest @ ..] if at_start => {
                slow_match(rest, path, true)
                    || (0..path.len()).any(|i| path[i] == b'/' && slow_match(rest, &path[i + 1..], true))
            }
            [b'*', b'*', rest @ ..] => {
                let from = usize::from(at_start && rest.is_empty());
                (from..=path.len()).any(|i| slow_match(rest, &path[i..], false))
            }
            [b'*', rest @ ..] => (0..=path.len())
                .take_while(|&i| i == 0 || path[i - 1] != b'/')
                .any(|i| slow_match(rest, &path[i..], false)),
            [b'?', rest @ ..] => {
                path.first().is_some_and(|&b| b != b'/') && slow_match(rest, &path[1..], false)
            }
            [byte, rest @ ..] => path.first() == Some(byte) && slow_match(rest, &path[1..], *byte == b'/'),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_make_a_pattern_or_a_fault(pattern in proptest::collection::vec(any::<u8>(), 0..40),
                                               path in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(excludes) = Excludes::new([&pattern]) {
                let _ = excludes.is_pruned(&path);
            }
        }

        #[test]
        fn any_pattern_works_or_faults(pattern in "[-ab/*?\\[\\]!^\\\\]{0,12}", path in "[ab/]{0,8}") {
            if let Ok(excludes) = Excludes::new([&pattern]) {
                let _ = excludes.is_excluded(path.as_bytes());
            }
        }

        #[test]
        fn expressions_match_what_the_rules_say(pattern in "/[ab*?]{1,3}(/[ab*?]{1,3}){0,2}", path in "[ab]{1,2}(/[ab]{1,2}){0,3}") {
            let pattern = pattern.replace("***", "**");
            let excludes = one(&pattern);
            prop_assert_eq!(
                excludes.is_excluded(path.as_bytes()),
                slow_match(&pattern.as_bytes()[1..], path.as_bytes(), true)
            );
        }

        #[test]
        fn an_escaped_path_matches_itself_alone(path in "[ab*?\\[!]{1,6}", other in "[ab*?\\[!]{1,6}") {
            let pattern = path.chars().flat_map(|c| ['\\', c]).collect::<String>();
            let excludes = one(&pattern);
            prop_assert!(excludes.is_excluded(path.as_bytes()));
            prop_assert_eq!(excludes.is_excluded(other.as_bytes()), path == other);
        }
    }
}
