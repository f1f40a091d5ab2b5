//! Splits a line of a script into words, with a shell's quoting.
//!
//! ```text
//! 'as it is'   "with \" and \\ and $ as it is"   one\ word   # a comment, where a word could begin
//! ```
//! Nothing is expanded: `$`, `*` and `~` stand for themselves (the commands expand patterns in paths).

/// The words of a line.
///
/// # Errors
/// A message about the quoting.
pub(super) fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\r' => words.extend(word.take()),
            b'#' if word.is_none() => break,
            0 => return Err("a NUL byte, which no path holds".to_owned()),
            b'\\' => match bytes.next() {
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => {
                    return Err("a backslash at the end of the line; lines cannot be continued".to_owned());
                }
            },
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'\'') => break,
                        Some(byte) => word.push(byte),
                        None => return Err("a ' that is not closed".to_owned()),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'"') => break,
                        Some(b'\\') => match bytes.next() {
                            Some(escaped @ (b'"' | b'\\' | b'$' | b'`')) => word.push(escaped),
                            Some(other) => word.extend([b'\\', other]),
                            None => return Err("a \" that is not closed".to_owned()),
                        },
                        Some(byte) => word.push(byte),
                        None => return Err("a \" that is not closed".to_owned()),
                    }
                }
            }
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_into_words_as_by_a_shell() {
        // The expected words come from the shell of this machine.
        for line in [
            "mkdir -p a b",
            "  lead\tand trail  ",
            "'single \"quoted\" \\ here' \"double 'quoted' \\\" \\\\ \\n\" x",
            "a'b'\"c\"\\ d",
            "'' \"\" end",
            "# all",
            "a #b c",
            "a#b '#c' \\#d",
            "",
            "\\'x\\\"",
        ] {
            let script = format!("for word in {line}\ndo printf '%s\\0' \"$word\"; done");
            let output = extant_testkit::run("sh", ["-c", &script]).stdout;
            let mut expected: Vec<Vec<u8>> = output.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            expected.pop();
            assert_eq!(words(line.as_bytes()).unwrap(), expected, "{line}");
        }
        assert_eq!(words(b"$HOME *\r").unwrap(), [b"$HOME".to_vec(), b"*".to_vec()]);
        assert_eq!(words(b"\xff\\ \xfe").unwrap(), [b"\xff \xfe".to_vec()]);
    }

    #[test]
    fn open_quotes_are_refused() {
        for line in [&b"a 'b"[..], b"a \"b", b"a \"b\\", b"a\\", b"a\0b"] {
            assert!(words(line).is_err(), "{line:?}");
        }
    }
}
