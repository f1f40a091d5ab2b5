//! Path patterns: `/usr/**/*.so`, `/etc/{passwd,group}`, `/var/log/*.[0-9]`.
//!
//! Owns: parsing, matching a path, and whether a path below a directory could match. Does **not** own:
//! walking.
//!
//! | pattern | matches |
//! |---|---|
//! | `*` | any number of characters of one name, or none; a leading dot is not special |
//! | `?` | one character: of UTF-8 if the name is UTF-8, else one byte |
//! | `[a-z]` `[!a-z]` | one character in, or not in, a set |
//! | `**` as a whole component | any number of directories, or none; at the end, everything below |
//! | `{a,b}` | either; may be nested and may contain slashes |
//! | `\x` | the character x itself |
//!
//! Invariant: matching takes time at most proportional to the length of the name times that of the pattern.

/// Maximum number of alternatives that the braces of a pattern expand to.
const ALTERNATIVES_MAX: usize = 4096;

/// A pattern, split at the end of its literal prefix.
#[derive(Debug)]
pub(crate) struct Glob {
    /// The literal path that every match starts with; empty for the root.
    pub(crate) base: Vec<u8>,
    /// The components after it.
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    /// `**`
    Directories,
    Name(Vec<Token>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// A character, or a byte that is not UTF-8 (above the Unicode range).
    One(u32),
    Any,
    Run,
    Set {
        not: bool,
        ranges: Vec<(u32, u32)>,
    },
}

/// Whether [`Glob::parse`] would treat a part of this path as a pattern.
pub(crate) fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[{\\".contains(byte))
}

impl Glob {
    /// Parses a pattern, and expands its braces.
    ///
    /// # Errors
    /// The error, as a message.
    pub(crate) fn parse(pattern: &[u8]) -> Result<Vec<Self>, &'static str> {
        let mut open = vec![pattern.to_vec()];
        let mut plain = Vec::new();
        while let Some(next) = open.pop() {
            match first_braces(&next)? {
                None => plain.push(next),
                Some((begin, commas, end)) => {
                    let edges: Vec<usize> = [begin].into_iter().chain(commas).chain([end]).collect();
                    for pair in edges.windows(2).rev() {
                        let inner = &next[pair[0] + 1..pair[1]];
                        open.push([&next[..begin], inner, &next[end + 1..]].concat());
                    }
                }
            }
            if open.len() + plain.len() > ALTERNATIVES_MAX {
                return Err("its braces stand for more than 4096 alternatives");
            }
        }
        plain.iter().map(|pattern| Self::parse_plain(pattern)).collect()
    }

    fn parse_plain(pattern: &[u8]) -> Result<Self, &'static str> {
        let mut base = Vec::new();
        let mut parts = Vec::new();
        for part in pattern.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            let tokens = match part {
                b"**" => None,
                _ => Some(tokens(part)?),
            };
            let literal = tokens.as_deref().and_then(literal);
            match (literal, tokens) {
                (Some(name), _) if parts.is_empty() => {
                    base.push(b'/');
                    base.extend(name);
                }
                (_, Some(tokens)) => parts.push(Part::Name(tokens)),
                (_, None) if matches!(parts.last(), Some(Part::Directories)) => {}
                (_, None) => parts.push(Part::Directories),
            }
        }
        if matches!(parts.last(), Some(Part::Directories)) {
            parts.push(Part::Name(vec![Token::Run]));
        }
        Ok(Self { base, parts })
    }

    /// Whether the pattern has no wildcard.
    pub(crate) fn is_literal(&self) -> bool {
        self.parts.is_empty()
    }

    /// Number of components of a match below the base; `None` for any number.
    pub(crate) fn depth(&self) -> Option<usize> {
        let any = self.parts.iter().any(|part| matches!(part, Part::Directories));
        (!any).then_some(self.parts.len())
    }

    /// Whether the pattern matches a path below the base (`a/b`, without a leading slash).
    pub(crate) fn matches(&self, path: &[u8]) -> bool {
        self.states(path).last() == Some(&true)
    }

    /// Whether a path below this directory could match. `path` is relative to the base.
    pub(crate) fn could_match_below(&self, path: &[u8]) -> bool {
        self.states(path)[..self.parts.len()].contains(&true)
    }

    /// The prefixes of the pattern that match the whole path: `[i]` for the first i components.
    fn states(&self, path: &[u8]) -> Vec<bool> {
        let count = self.parts.len();
        let mut now = vec![false; count + 1];
        now[0] = true;
        self.skip_directories(&mut now);
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let mut next = vec![false; count + 1];
            for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| now[*at]) {
                match part {
                    Part::Directories => next[at] = true,
                    Part::Name(tokens) => next[at + 1] |= name_matches(tokens, name),
                }
            }
            self.skip_directories(&mut next);
            now = next;
        }
        now
    }

    /// Marks the states after a `**`, which may match no directory.
    fn skip_directories(&self, states: &mut [bool]) {
        for (at, part) in self.parts.iter().enumerate() {
            if states[at] && matches!(part, Part::Directories) {
                states[at + 1] = true;
            }
        }
    }
}

/// Positions of a `{`, of its commas, and of its `}`.
type Braces = (usize, Vec<usize>, usize);

/// Finds the first braces of a pattern.
fn first_braces(pattern: &[u8]) -> Result<Option<Braces>, &'static str> {
    let (mut depth, mut begin, mut commas) = (0usize, 0, Vec::new());
    let mut at = 0;
    while at < pattern.len() {
        match pattern[at] {
            b'\\' => at += 1,
            b'{' => {
                if depth == 0 {
                    begin = at;
                }
                depth += 1;
            }
            b',' if depth == 1 => commas.push(at),
            b'}' if depth == 1 => return Ok(Some((begin, commas, at))),
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    if depth > 0 { Err("a { has no } (write \\{ for a brace in a name)") } else { Ok(None) }
}

fn tokens(part: &[u8]) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    let mut rest = part;
    while let Some((unit, behind)) = next_unit(rest) {
        rest = behind;
        let token = match u8::try_from(unit) {
            Ok(b'*') if tokens.last() == Some(&Token::Run) => continue,
            Ok(b'*') => Token::Run,
            Ok(b'?') => Token::Any,
            Ok(b'[') => {
                let (set, behind) = set(rest)?;
                rest = behind;
                set
            }
            Ok(b'\\') => {
                let (escaped, behind) =
                    next_unit(rest).ok_or("it ends in a \\ (write \\\\ for one in a name)")?;
                rest = behind;
                Token::One(escaped)
            }
            _ => Token::One(unit),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

/// Parses a set after its `[`. Also returns the rest after its `]`.
fn set(mut rest: &[u8]) -> Result<(Token, &[u8]), &'static str> {
    const OPEN: &str = "a [ has no ] (write \\[ for a bracket in a name)";
    let not = matches!(rest.first(), Some(b'!' | b'^'));
    if not {
        rest = &rest[1..];
    }
    let mut ranges = Vec::new();
    loop {
        let (mut low, mut behind) = next_unit(rest).ok_or(OPEN)?;
        if low == u32::from(b']') && !ranges.is_empty() {
            return Ok((Token::Set { not, ranges }, behind));
        }
        if low == u32::from(b'\\') {
            (low, behind) = next_unit(behind).ok_or(OPEN)?;
        }
        let mut high = low;
        if let [b'-', after @ ..] = behind
            && after.first().is_some_and(|byte| *byte != b']')
        {
            (high, behind) = next_unit(after).ok_or(OPEN)?;
        }
        ranges.push((low, high));
        rest = behind;
    }
}

/// Takes one UTF-8 character, or one byte that is not UTF-8, as a number above all characters.
fn next_unit(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let first = *bytes.first()?;
    let len = match first {
        0..0x80 => 1,
        0xC2..0xE0 => 2,
        0xE0..0xF0 => 3,
        0xF0..0xF5 => 4,
        _ => 1,
    };
    let text = bytes.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok());
    match text.and_then(|text| text.chars().next()) {
        Some(c) => Some((c.into(), &bytes[len..])),
        None => Some((0x11_0000 + u32::from(first), &bytes[1..])),
    }
}

/// A pattern for a single name without a path, such as that of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamePattern(Vec<Token>);

impl NamePattern {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        tokens(text.as_bytes()).map(Self).map_err(str::to_owned)
    }

    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        name_matches(&self.0, name)
    }
}

/// The name of a pattern without wildcards; `None` for other patterns.
fn literal(tokens: &[Token]) -> Option<Vec<u8>> {
    let mut name = Vec::new();
    for token in tokens {
        let Token::One(unit) = *token else { return None };
        match char::from_u32(unit) {
            Some(c) => name.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            None => name.push((unit - 0x11_0000) as u8),
        }
    }
    Some(name)
}

fn name_matches(tokens: &[Token], name: &[u8]) -> bool {
    let (mut at, mut rest) = (0, name);
    // Where to continue if a `*` must match more characters: only the last `*` has to be tried again.
    let mut retry: Option<(usize, &[u8])> = None;
    loop {
        let unit = next_unit(rest);
        let fits = match (tokens.get(at), unit) {
            (Some(Token::Run), _) => {
                retry = Some((at + 1, rest));
                at += 1;
                continue;
            }
            (None, None) => return true,
            (Some(token), Some((unit, _))) => token.fits(unit),
            (None, Some(_)) | (Some(_), None) => false,
        };
        match (fits, unit, retry) {
            (true, Some((_, behind)), _) => (at, rest) = (at + 1, behind),
            (_, _, Some((after, from))) => {
                let Some((_, longer)) = next_unit(from) else { return false };
                retry = Some((after, longer));
                (at, rest) = (after, longer);
            }
            _ => return false,
        }
    }
}

impl Token {
    fn fits(&self, unit: u32) -> bool {
        match self {
            Self::One(one) => *one == unit,
            Self::Any | Self::Run => true,
            Self::Set { not, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&unit)) != *not
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Glob::parse(pattern.as_bytes()).unwrap().iter().any(|glob| {
            let whole = path.as_bytes();
            let below = if glob.base.is_empty() {
                Some(whole)
            } else {
                whole.strip_prefix(&glob.base[1..]).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest))
            };
            below.is_some_and(|below| glob.matches(below))
        })
    }

    #[test]
    fn a_table_of_patterns() {
        for (pattern, yes, no) in [
            ("/usr/**/*.so", &["usr/a.so", "usr/lib/x/a.so"][..], &["usr/a.so.1", "a.so", "usr"][..]),
            ("/*", &["a", ".hidden"], &["a/b"]),
            ("/usr/**", &["usr/a", "usr/a/b"], &["usr", "us"]),
            ("**/lib/**/a", &["lib/a", "x/lib/y/z/a"], &["lib", "a"]),
            ("/a?c", &["abc", "aüc"], &["ac", "abbc"]),
            ("/[a-c]*[!0-9]", &["ab", "c.x"], &["a1", "d-", "a"]),
            ("/[]x]", &["]", "x"], &["y"]),
            ("/{etc/{passwd,group},usr}", &["etc/passwd", "etc/group", "usr"], &["etc", "passwd"]),
            ("/\\*", &["*"], &["a"]),
            ("/a*b*c*d", &["abcd", "axxbcd-cd"], &["abdc"]),
        ] {
            for path in yes {
                assert!(matches(pattern, path), "{pattern} {path}");
            }
            for path in no {
                assert!(!matches(pattern, path), "{pattern} {path}");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_characters_match_byte_by_byte() {
        let glob = &Glob::parse(b"/?\xff[\xfe]*").unwrap()[0];
        assert!(glob.matches(b"\x80\xff\xfe"));
        assert!(!glob.matches(b"\x80\xff\xfd"));
    }

    #[test]
    fn directories_without_hope_are_not_entered() {
        let glob = &Glob::parse(b"/usr/lib/x*/*.so").unwrap()[0];
        assert_eq!((glob.base.as_slice(), glob.depth()), (&b"/usr/lib"[..], Some(2)));
        assert!(glob.could_match_below(b"") && glob.could_match_below(b"xy"));
        assert!(!glob.could_match_below(b"y") && !glob.could_match_below(b"xy/a.so"));
        assert!(Glob::parse(b"/**/a").unwrap()[0].could_match_below(b"b/c/d"));
        assert!(Glob::parse(b"/a/\\*/c").unwrap()[0].is_literal());
    }

    #[test]
    fn impossible_patterns_are_refused() {
        for bad in ["/[a", "/{a,b", "/a\\"] {
            assert!(Glob::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let many = "{a,b}".repeat(13);
        assert!(Glob::parse(many.as_bytes()).is_err());
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "/".to_owned() + &"*a".repeat(100) + "b";
        assert!(!matches(&pattern, &"a".repeat(255)));
    }
}
