//! SELinux labels: the context that a `file_contexts` file assigns to a path.
//!
//! Owns the text format, the choice among specifications, and the translation of their PCRE dialect. Does
//! **not** own the policy (any text with the form of a context is accepted), substitutions
//! (`file_contexts.subs`), or the attribute itself (see [`xattr_value`] for its bytes).
//!
//! Each line has fields separated by blanks:
//!
//! ```text
//! /etc/shadow.*     --    system_u:object_r:shadow_t:s0
//! path expression  [type] context, or <<none>> for "leave it unlabelled"
//! ```
//!
//! | type | files |
//! |---|---|
//! | (absent) | all |
//! | `--` | regular |
//! | `-d` | directories |
//! | `-l` | symbolic links |
//! | `-c` `-b` | character and block devices |
//! | `-p` `-s` | fifos and sockets |
//!
//! Invariants
//! 1. The expression must match the whole path. (libselinux anchors only the outer ends of a bare `a|b`. Here
//!    each alternative must match the whole path, as policies intend.)
//! 2. A specification without meta characters (an exact path, including `\.`) has priority over every one
//!    with meta characters; a class like `\d` counts as one.
//! 3. Among specifications of equal priority the last line is used. A line whose type does not match is
//!    ignored.
//! 4. A lookup reads each byte of the path once, regardless of the number of specifications.
//!
//! Implementation: exact paths are in a hash map. All expressions together are one automaton. Its
//! deterministic states are created when a path first needs them (in effect a trie), and all of them are
//! discarded when they exceed 16 MiB. Threads share a pool of such caches.
//!
//! Source: selabel_file(5), the manual of libselinux's file backend; pcre2pattern(3).

use extant_ondisk::filetype::FileType;
use hashbrown::HashMap;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, WhichCaptures};
use regex_automata::util::pool::Pool;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};

/// The name of the attribute that stores a label.
pub const XATTR_NAME: &[u8] = b"security.selinux";

/// Memory limit for the states of one thread's automaton.
const CACHE_BYTES: usize = 16 << 20;

/// Memory limit for the compiled expressions; the 6,000 of the reference policy need about 10 MiB.
const PROGRAM_BYTES: usize = 128 << 20;

/// Memory limit for one compiled expression.
const EXPRESSION_BYTES: usize = 8 << 20;

/// A line of a `file_contexts` file that is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct LabelFault {
    /// Line number, from 1.
    pub line: usize,
    /// The finding.
    pub why: String,
}

/// The type and context of one specification.
#[derive(Debug, Clone, Copy)]
struct Spec {
    /// [`FileType::Unknown`] for all types.
    file_type: FileType,
    /// Index into [`FileContexts::contexts`]; `None` for `<<none>>`.
    context: Option<u32>,
}

impl Spec {
    fn fits(self, file_type: FileType) -> bool {
        self.file_type == FileType::Unknown || file_type == FileType::Unknown || self.file_type == file_type
    }
}

type CachePool =
    Pool<Cache, Box<dyn Fn() -> Cache + Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>>;

/// A parsed `file_contexts` file, ready for lookups from any number of threads.
pub struct FileContexts {
    contexts: Vec<Box<[u8]>>,
    /// By path, in file order.
    exact: HashMap<Box<[u8]>, Vec<Spec>>,
    /// Specification of each pattern of the automaton, in file order.
    patterns: Vec<Spec>,
    automaton: DFA,
    caches: CachePool,
}

impl std::fmt::Debug for FileContexts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileContexts({} exact, {} expressions)", self.exact.len(), self.patterns.len())
    }
}

/// The bytes of a label's attribute: the context and a NUL, as written by the kernel and setfiles.
#[must_use]
pub fn xattr_value(context: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(context.len() + 1);
    value.extend_from_slice(context);
    value.push(0);
    value
}

impl FileContexts {
    /// Parses the text of a `file_contexts` file, or of several files one after the other.
    ///
    /// # Errors
    /// The first line with a missing field, an unknown type or an invalid context; or with an expression that
    /// is malformed, is too large, or uses a construct that a single pass over the path cannot decide
    /// (look-around, back references, possessive and atomic groups).
    pub fn parse(text: &[u8]) -> Result<Self, LabelFault> {
        let mut contexts = Vec::new();
        let mut context_ids: HashMap<&[u8], u32> = HashMap::new();
        let mut exact: HashMap<Box<[u8]>, Vec<Spec>> = HashMap::new();
        let mut patterns = Vec::new();
        let mut programs = Vec::new();
        let mut pattern_lines = Vec::new();
        for (index, bytes) in text.split(|&b| b == b'\n').enumerate() {
            let line = index + 1;
            let fault = |why: String| LabelFault { line, why };
            let Some(fields) = Fields::split(bytes).map_err(fault)? else { continue };
            let context = if fields.context == b"<<none>>" {
                None
            } else {
                check_context(fields.context).map_err(fault)?;
                let next = contexts.len() as u32;
                Some(*context_ids.entry(fields.context).or_insert_with(|| {
                    contexts.push(Box::from(fields.context));
                    next
                }))
            };
            let spec = Spec { file_type: fields.file_type, context };
            if let Some(path) = exact_path(fields.expression) {
                exact.entry(path.into_boxed_slice()).or_default().push(spec);
            } else {
                let expression = translate(fields.expression).map_err(fault)?;
                programs.push(syntax::parse_with(&expression, &syntax_config()).map_err(|error| {
                    fault(format!("the expression cannot be used: {}", last_line(&error.to_string())))
                })?);
                patterns.push(spec);
                pattern_lines.push(line);
            }
        }
        let nfa = compiler(PROGRAM_BYTES).build_many_from_hir(&programs).map_err(|error| {
            let culprit = programs
                .iter()
                .zip(&pattern_lines)
                .find(|(program, _)| compiler(EXPRESSION_BYTES).build_from_hir(program).is_err());
            match culprit {
                Some((_, &line)) => LabelFault { line, why: "the expression is too large".to_owned() },
                None => LabelFault {
                    line: pattern_lines.last().copied().unwrap_or(1),
                    why: format!("all expressions together are too large: {error}"),
                },
            }
        })?;
        let automaton = DFA::builder()
            .configure(
                DFA::config()
                    .match_kind(MatchKind::All)
                    .cache_capacity(CACHE_BYTES)
                    .skip_cache_capacity_check(true),
            )
            .build_from_nfa(nfa)
            .map_err(|error| LabelFault {
                line: pattern_lines.last().copied().unwrap_or(1),
                why: format!("the expressions cannot be combined: {error}"),
            })?;
        let for_pool = automaton.clone();
        let caches: CachePool = Pool::new(Box::new(move || for_pool.create_cache()));
        Ok(Self { contexts, exact, patterns, automaton, caches })
    }

    /// The context of a path, without NUL; `None` if nothing matches or the file specifies `<<none>>`.
    ///
    /// `path` is absolute: it starts with `/` and has no trailing slash; the root is `/` itself. A file of
    /// type [`FileType::Unknown`] matches lines of every type.
    #[must_use]
    pub fn lookup(&self, path: &[u8], file_type: FileType) -> Option<&[u8]> {
        let exact = self
            .exact
            .get(path)
            .and_then(|specs| specs.iter().rev().find(|spec| spec.fits(file_type)).copied());
        let spec = exact.or_else(|| self.last_match(path, file_type))?;
        spec.context.map(|index| &*self.contexts[index as usize])
    }

    /// Number of specifications.
    #[must_use]
    pub fn len(&self) -> usize {
        self.patterns.len() + self.exact.values().map(Vec::len).sum::<usize>()
    }

    /// Whether there are no specifications.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty() && self.exact.is_empty()
    }

    /// The last expression that matches the whole path and the type.
    fn last_match(&self, path: &[u8], file_type: FileType) -> Option<Spec> {
        if self.patterns.is_empty() {
            return None;
        }
        let dfa = &self.automaton;
        let mut guard = self.caches.get();
        let cache = &mut *guard;
        // The calls below cannot fail: the automaton has no limit on cache clears, and no bytes at which it
        // quits.
        let mut state = dfa.start_state(cache, &start::Config::new().anchored(Anchored::Yes)).ok()?;
        for &byte in path {
            state = dfa.next_state(cache, state, byte).ok()?;
            if state.is_dead() {
                return None;
            }
        }
        state = dfa.next_eoi_state(cache, state).ok()?;
        if !state.is_match() {
            return None;
        }
        (0..dfa.match_len(cache, state))
            .map(|i| dfa.match_pattern(cache, state, i).as_usize())
            .filter(|&pattern| self.patterns[pattern].fits(file_type))
            .max()
            .map(|pattern| self.patterns[pattern])
    }
}

fn syntax_config() -> syntax::Config {
    syntax::Config::new().unicode(false).utf8(false).dot_matches_new_line(true)
}

fn compiler(bytes_max: usize) -> thompson::Compiler {
    let mut compiler = thompson::Compiler::new();
    compiler.configure(
        thompson::Config::new()
            .utf8(false)
            .which_captures(WhichCaptures::None)
            .nfa_size_limit(Some(bytes_max)),
    );
    compiler
}

/// The last line of the parser's message states the finding; the lines before it show the position.
fn last_line(message: &str) -> &str {
    let line = message.lines().next_back().unwrap_or(message);
    line.strip_prefix("error: ").unwrap_or(line)
}

/// The fields of one line.
struct Fields<'t> {
    expression: &'t [u8],
    file_type: FileType,
    context: &'t [u8],
}

impl<'t> Fields<'t> {
    /// Splits a line. Returns `None` for blank lines and comments. Ignores words after the context, as
    /// libselinux does.
    fn split(line: &'t [u8]) -> Result<Option<Self>, String> {
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(expression) = words.next().filter(|word| word[0] != b'#') else { return Ok(None) };
        if line.contains(&0) {
            return Err("it holds a NUL byte".to_owned());
        }
        let Some(second) = words.next() else { return Err("the context is missing".to_owned()) };
        let (file_type, context) = match words.next() {
            None => (FileType::Unknown, second),
            Some(third) => (type_of(second)?, third),
        };
        Ok(Some(Self { expression, file_type, context }))
    }
}

fn type_of(word: &[u8]) -> Result<FileType, String> {
    Ok(match word {
        b"--" => FileType::Regular,
        b"-d" => FileType::Directory,
        b"-l" => FileType::Symlink,
        b"-c" => FileType::CharDevice,
        b"-b" => FileType::BlockDevice,
        b"-p" => FileType::Fifo,
        b"-s" => FileType::Socket,
        other => {
            return Err(format!(
                "\"{}\" is no file type: -- -d -l -c -b -p -s are",
                String::from_utf8_lossy(other)
            ));
        }
    })
}

/// Checks that a context has the form `user:role:type` or `user:role:type:level`.
fn check_context(context: &[u8]) -> Result<(), String> {
    let parts = context.split(|&b| b == b':').collect::<Vec<_>>();
    let whole = parts.len() >= 3 && parts.iter().take(3).all(|part| !part.is_empty());
    // Policy sources contain gen_context(...), which m4 expands when the policy is built.
    if !whole || context.contains(&b'(') || context.len() > 4095 {
        return Err(format!(
            "\"{}\" is no context of the form user:role:type[:level]",
            String::from_utf8_lossy(context)
        ));
    }
    Ok(())
}

/// The path that an expression without meta characters matches; `None` if it has meta characters.
fn exact_path(expression: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(expression.len());
    let mut bytes = expression.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'.' | b'^' | b'$' | b'?' | b'*' | b'+' | b'|' | b'[' | b'(' | b'{' => return None,
            // Escaped letters and digits are classes, anchors or references.
            b'\\' => path.push(bytes.next().filter(|escaped| !escaped.is_ascii_alphanumeric())?),
            _ => path.push(byte),
        }
    }
    Some(path)
}

/// Translates a PCRE expression to the dialect of `regex-syntax`, where the two differ: in PCRE, braces that
/// are not a repetition and brackets within classes are literals, `\<` is a plain `<`, and a `+` after a
/// repetition makes it possessive.
fn translate(expression: &[u8]) -> Result<String, String> {
    Translation { rest: expression, out: String::with_capacity(expression.len() + 4) }.run()
}

struct Translation<'t> {
    rest: &'t [u8],
    out: String,
}

impl Translation<'_> {
    fn run(mut self) -> Result<String, String> {
        self.out.push_str("(?:");
        while let Some(byte) = self.next() {
            match byte {
                b'.' | b'^' | b'$' | b'|' | b')' => self.out.push(char::from(byte)),
                b'*' | b'+' | b'?' => {
                    self.out.push(char::from(byte));
                    self.after_repetition()?;
                }
                b'{' => match repetition_len(self.rest) {
                    Some(len) => {
                        let (body, rest) = self.rest.split_at(len);
                        self.rest = rest;
                        self.out.push('{');
                        self.out.extend(body.iter().map(|&b| char::from(b)));
                        self.after_repetition()?;
                    }
                    None => self.literal(byte),
                },
                b'(' => self.group()?,
                b'[' => self.class()?,
                b'\\' => self.escape(false)?,
                _ => self.literal(byte),
            }
        }
        self.out.push(')');
        Ok(self.out)
    }

    fn next(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    fn literal(&mut self, byte: u8) {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_') {
            self.out.push(char::from(byte));
        } else {
            self.out.push_str(&format!("\\x{byte:02X}"));
        }
    }

    fn after_repetition(&mut self) -> Result<(), String> {
        if self.rest.first() == Some(&b'+') {
            return Err(unsupported("possessive repetition"));
        }
        Ok(())
    }

    /// Translates a group after its `(`.
    fn group(&mut self) -> Result<(), String> {
        match self.rest {
            [b'*', ..] => Err(unsupported("a verb, \"(*\"")),
            [b'?', rest @ ..] => {
                let flags = rest.iter().take_while(|b| matches!(b, b'i' | b's' | b'-')).count();
                if !matches!(rest.get(flags), Some(b':' | b')')) {
                    return Err(unsupported("look-around, a named or a special group, \"(?\""));
                }
                let (head, rest) = self.rest.split_at(flags + 2);
                self.rest = rest;
                self.out.push('(');
                self.out.extend(head.iter().map(|&b| char::from(b)));
                Ok(())
            }
            _ => {
                self.out.push_str("(?:");
                Ok(())
            }
        }
    }

    /// Translates a class after its `[`, including the `]`.
    fn class(&mut self) -> Result<(), String> {
        self.out.push('[');
        if self.rest.first() == Some(&b'^') {
            self.rest = &self.rest[1..];
            self.out.push('^');
        }
        let mut first = true;
        loop {
            match self.next().ok_or("a class has no closing ]")? {
                b']' if !first => break,
                b'[' if matches!(self.rest.first(), Some(b':' | b'.' | b'=')) => {
                    let end = self.rest.windows(2).position(|two| two == b":]");
                    let Some(name) = end.filter(|_| self.rest[0] == b':').map(|end| &self.rest[..end + 2])
                    else {
                        return Err(unsupported("a collating element"));
                    };
                    self.out.push('[');
                    self.out.extend(name.iter().map(|&b| char::from(b)));
                    self.rest = &self.rest[name.len()..];
                }
                b'\\' => self.escape(true)?,
                // Two hyphens would subtract a class.
                b'-' if self.rest.first() == Some(&b'-') => {
                    return Err("\"--\" in a class: write \\- for a literal hyphen".to_owned());
                }
                b'-' => self.out.push('-'),
                byte => self.literal(byte),
            }
            first = false;
        }
        self.out.push(']');
        Ok(())
    }

    /// Translates an escape after its `\`.
    fn escape(&mut self, in_class: bool) -> Result<(), String> {
        let byte = self.next().ok_or("the expression ends in a backslash")?;
        match byte {
            b'd' | b'D' | b'w' | b'W' | b's' | b'S' => {
                self.out.push('\\');
                self.out.push(char::from(byte));
            }
            b'b' | b'B' | b'A' | b'z' if !in_class => {
                self.out.push('\\');
                self.out.push(char::from(byte));
            }
            b'n' => self.literal(b'\n'),
            b'r' => self.literal(b'\r'),
            b't' => self.literal(b'\t'),
            b'f' => self.literal(0x0C),
            b'e' => self.literal(0x1B),
            b'a' => self.literal(0x07),
            b'x' => {
                let digits = self.rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
                let code = digits
                    .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                    .ok_or("\\x needs two hexadecimal digits")?;
                self.rest = &self.rest[2..];
                self.literal(code);
            }
            b'0'..=b'9' => return Err(unsupported("a back reference")),
            b'a'..=b'z' | b'A'..=b'Z' => {
                return Err(unsupported(&format!("the escape \\{}", char::from(byte))));
            }
            _ => self.literal(byte),
        }
        Ok(())
    }
}

fn unsupported(what: &str) -> String {
    format!("{what} is not supported")
}

/// Length of `n}`, `n,}` or `n,m}` after a `{`. If none of them follows, the brace is a literal.
fn repetition_len(rest: &[u8]) -> Option<usize> {
    let digits = |from: usize| rest[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = digits(0);
    if at == 0 {
        return None;
    }
    if rest.get(at) == Some(&b',') {
        at += 1;
        at += digits(at);
    }
    (rest.get(at) == Some(&b'}')).then_some(at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn contexts(text: &str) -> FileContexts {
        FileContexts::parse(text.as_bytes()).unwrap()
    }

    fn fault(text: &str) -> LabelFault {
        FileContexts::parse(text.as_bytes()).unwrap_err()
    }

    fn label<'f>(fc: &'f FileContexts, path: &str, file_type: FileType) -> Option<&'f str> {
        fc.lookup(path.as_bytes(), file_type).map(|context| std::str::from_utf8(context).unwrap())
    }

    #[test]
    fn the_last_line_wins_and_exact_paths_win_over_all() {
        let fc = contexts(
            "# comment\n\n  # another\n\
             /etc/hosts\\.deny  --  u:r:exact:s0\n\
             /.*                   u:r:default:s0\n\
             /etc(/.*)?            u:r:etc:s0\n\
             /etc/.*\\.deny    --  u:r:deny:s0\n\
             /etc/x            -d  u:r:xdir:s0\n",
        );
        assert_eq!(fc.len(), 5);
        assert_eq!(label(&fc, "/", FileType::Directory), Some("u:r:default:s0"));
        assert_eq!(label(&fc, "/etc", FileType::Directory), Some("u:r:etc:s0"));
        assert_eq!(label(&fc, "/etcetera", FileType::Directory), Some("u:r:default:s0"));
        assert_eq!(label(&fc, "/etc/hosts.deny", FileType::Regular), Some("u:r:exact:s0"));
        // The exact path's type does not match a symlink, so the expressions decide.
        assert_eq!(label(&fc, "/etc/hosts.deny", FileType::Symlink), Some("u:r:etc:s0"));
        assert_eq!(label(&fc, "/etc/users.deny", FileType::Regular), Some("u:r:deny:s0"));
        assert_eq!(label(&fc, "/etc/x", FileType::Regular), Some("u:r:etc:s0"));
        assert_eq!(label(&fc, "/etc/x", FileType::Directory), Some("u:r:xdir:s0"));
        assert_eq!(xattr_value(b"u:r:t"), b"u:r:t\0");
    }

    #[test]
    fn none_leaves_a_file_unlabelled() {
        let fc = contexts("/.* u:r:default\n/proc/.* <<none>>\n/sys <<none>>\n");
        assert_eq!(label(&fc, "/proc/1", FileType::Regular), None);
        assert_eq!(label(&fc, "/sys", FileType::Directory), None);
        assert_eq!(label(&fc, "/proc", FileType::Directory), Some("u:r:default"));
        let empty = contexts("# nothing\n");
        assert!(empty.is_empty());
        assert_eq!(label(&empty, "/", FileType::Directory), None);
    }

    #[test]
    fn each_type_word_takes_its_type_only() {
        for (word, file_type) in [
            ("--", FileType::Regular),
            ("-d", FileType::Directory),
            ("-l", FileType::Symlink),
            ("-c", FileType::CharDevice),
            ("-b", FileType::BlockDevice),
            ("-p", FileType::Fifo),
            ("-s", FileType::Socket),
        ] {
            for expression in ["/a", "/a.?"] {
                let fc = contexts(&format!("{expression} {word} u:r:t"));
                for other in FileType::ALL {
                    let fits = other == file_type || other == FileType::Unknown;
                    assert_eq!(label(&fc, "/a", other).is_some(), fits, "{word} {other}");
                }
            }
        }
    }

    #[test]
    fn pcre_is_read_as_pcre() {
        for (expression, hits, misses) in [
            ("/run/%{USERID}/.+", vec!["/run/%{USERID}/x"], vec!["/run/%/x", "/run/%{USERID}/"]),
            ("/a{2}b{1,}c{0,2}", vec!["/aabb", "/aabcc"], vec!["/ab", "/aabccc"]),
            ("/[[]x[]y]", vec!["/[x]", "/[xy"], vec!["/x"]),
            ("/[^]]", vec!["/a"], vec!["/]"]),
            ("/[a&&b~~]", vec!["/&", "/~", "/a", "/b"], vec!["/c"]),
            ("/[[:digit:]x]+", vec!["/1x2"], vec!["/a"]),
            ("/\\<a\\>.", vec!["/<a>b"], vec!["/ab"]),
            ("/a|/bc?", vec!["/a", "/b", "/bc"], vec!["/ac", "/a/b"]),
            ("/\\x41\\.\\d.?", vec!["/A.1", "/A.12"], vec!["/Ax1"]),
            ("/.(?i:abc)", vec!["/xABC", "/xabc"], vec!["/xab"]),
            ("/x.y", vec!["/x\ny"], vec!["/xy"]),
            ("^/s.?$", vec!["/s", "/sb"], vec!["/sbb"]),
            ("/usr/lib(32|64)?/.*?\\.so(\\.[^/]*)*", vec!["/usr/lib64/a/b.so.1.2"], vec!["/usr/libx/b.so"]),
        ] {
            let fc = contexts(&format!("{expression} u:r:t"));
            for hit in hits {
                assert!(label(&fc, hit, FileType::Regular).is_some(), "{expression} should match {hit}");
            }
            for miss in misses {
                assert!(
                    label(&fc, miss, FileType::Regular).is_none(),
                    "{expression} should not match {miss}"
                );
            }
        }
    }

    #[test]
    fn bytes_that_are_no_utf8_match_themselves() {
        let fc = FileContexts::parse(b"/caf\xE9/.* u:r:regex\n/caf\xE9 u:r:exact\n/o[\xC3\xB6]+ u:r:class\n")
            .unwrap();
        assert_eq!(fc.lookup(b"/caf\xE9/\xFF", FileType::Regular), Some(&b"u:r:regex"[..]));
        assert_eq!(fc.lookup(b"/caf\xE9", FileType::Regular), Some(&b"u:r:exact"[..]));
        assert_eq!(fc.lookup(b"/o\xC3\xB6", FileType::Regular), Some(&b"u:r:class"[..]));
        assert_eq!(fc.lookup(b"/cafe", FileType::Regular), None);
    }

    #[test]
    fn faults_name_their_line() {
        for (bad, word) in [
            ("/a", "context is missing"),
            ("/a -x u:r:t", "no file type"),
            ("/a --", "no context"),
            ("/a gen_context(system_u:object_r:etc_t,s0)", "no context"),
            ("/a\0 u:r:t", "NUL"),
            ("/(a u:r:t", "unclosed"),
            ("/[a u:r:t", "no closing"),
            ("/a.\\ u:r:t", "backslash"),
            ("/a.*+ u:r:t", "possessive"),
            ("/a(?=b) u:r:t", "look-around"),
            ("/(a)\\1 u:r:t", "back reference"),
            ("/a.\\K u:r:t", "\\K"),
            ("/.{1000}{1000}{1000} u:r:t", "too large"),
        ] {
            let fault = fault(&format!("# first\n/.* u:r:t\n{bad}\n/b.* u:r:t\n"));
            assert_eq!(fault.line, 3, "{bad}: {fault}");
            assert!(fault.why.contains(word), "{bad}: {fault}");
        }
    }

    #[test]
    fn thousands_of_expressions_cost_one_pass() {
        // The shape of the reference policy: half of the specifications are exact, the others are subtrees
        // and alternatives.
        let mut text = String::from("/.* u:r:default:s0\n");
        for i in 0..3000 {
            text.push_str(&format!(
                "/usr/s?bin/tool{i} -- u:r:exec{i}:s0\n/var/lib/data{i}(/.*)? u:r:data{i}:s0\n"
            ));
        }
        let fc = contexts(&text);
        for i in 0..3000 {
            let path = format!("/var/lib/data{i}/x/y");
            assert_eq!(label(&fc, &path, FileType::Regular), Some(format!("u:r:data{i}:s0").as_str()));
            let path = format!("/usr/sbin/tool{i}");
            assert_eq!(label(&fc, &path, FileType::Regular), Some(format!("u:r:exec{i}:s0").as_str()));
        }
        assert_eq!(label(&fc, "/usr/sbin/tool3000", FileType::Regular), Some("u:r:default:s0"));
    }

    #[test]
    fn threads_share_one_value() {
        let fc = contexts("/.* u:r:default\n/a(/.*)? u:r:a\n");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..1000 {
                        assert_eq!(label(&fc, &format!("/a/{i}"), FileType::Regular), Some("u:r:a"));
                    }
                });
            }
        });
    }

    /// A second implementation of the rules: tries one specification at a time.
    fn slow_lookup(lines: &[(String, &str, String)], path: &str, file_type: FileType) -> Option<String> {
        let mut best = None;
        for (index, (expression, word, context)) in lines.iter().enumerate() {
            let exact = exact_path(expression.as_bytes());
            let hit = match &exact {
                Some(exact) => exact == path.as_bytes(),
                None => {
                    let anchored = format!("^{}$", translate(expression.as_bytes()).unwrap());
                    let regex = regex::bytes::RegexBuilder::new(&anchored)
                        .unicode(false)
                        .dot_matches_new_line(true)
                        .build()
                        .unwrap();
                    regex.is_match(path.as_bytes())
                }
            };
            let fits = word.is_empty() || type_of(word.as_bytes()).unwrap() == file_type;
            if hit && fits {
                best = best.max(Some((exact.is_some(), index, context.clone())));
            }
        }
        best.map(|(_, _, context)| context).filter(|context| context != "<<none>>")
    }

    fn expression() -> impl Strategy<Value = String> {
        let atom = prop_oneof![
            Just("a".to_owned()),
            Just("b".to_owned()),
            Just("/".to_owned()),
            Just("\\.".to_owned()),
            Just(".".to_owned()),
            Just("[^/]".to_owned()),
            Just("[ab]".to_owned()),
            Just("(/.*)?".to_owned()),
            Just("(a|b/)".to_owned()),
            Just("a{1,2}".to_owned()),
            Just(".*".to_owned()),
            Just("b?".to_owned()),
        ];
        proptest::collection::vec(atom, 0..5).prop_map(|atoms| format!("/{}", atoms.concat()))
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fault(text in proptest::collection::vec(any::<u8>(), 0..200),
                                    path in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(fc) = FileContexts::parse(&text) {
                let _ = fc.lookup(&path, FileType::Regular);
            }
        }

        #[test]
        fn any_expression_parses_or_faults(expression in "[-/a-c\\\\.*+?{}()\\[\\]|^$:<&~0-9,xQ]{0,24}", path in "/[a-c/]{0,8}") {
            let text = format!("/.* u:r:default\n/{expression} u:r:t\n");
            match FileContexts::parse(text.as_bytes()) {
                Ok(fc) => prop_assert!(fc.lookup(path.as_bytes(), FileType::Regular).is_some()),
                Err(fault) => prop_assert_eq!(fault.line, 2),
            }
        }

        #[test]
        fn one_pass_finds_what_trying_each_line_finds(
            lines in proptest::collection::vec(
                (expression(), proptest::sample::select(vec!["", "--", "-d"]), 0..4u8), 0..12),
            paths in proptest::collection::vec("/[ab./]{0,5}", 1..12),
        ) {
            let lines = lines
                .into_iter()
                .map(|(e, word, n)| (e, word, if n == 0 { "<<none>>".to_owned() } else { format!("u:r:t{n}") }))
                .collect::<Vec<_>>();
            let text = lines.iter().map(|(e, word, c)| format!("{e} {word} {c}\n")).collect::<String>();
            let fc = FileContexts::parse(text.as_bytes()).unwrap();
            for path in &paths {
                for file_type in [FileType::Regular, FileType::Directory, FileType::Symlink] {
                    let found = fc.lookup(path.as_bytes(), file_type).map(|c| String::from_utf8(c.to_vec()).unwrap());
                    prop_assert_eq!(found, slow_lookup(&lines, path, file_type));
                }
            }
        }
    }
}
