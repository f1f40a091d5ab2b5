//! mtree(5) specifications: `path key=value ...`, with `/set` and `/unset` for the defaults of keys, names
//! without a slash and `..` to descend and ascend in the tree, and a backslash at the end of a line to
//! continue it.
//!
//! Supported keys: `type`, `mode`, `uid`, `gid`, `time`, `link`, `device`, `optional`. Other keys (sizes,
//! digests, flags, `ignore`, names of owners next to their numbers) do not affect an image, and are skipped.

use std::collections::BTreeMap;

use super::{Make, Mode, Paths, Rule, RuleFault, plain};
use crate::source::entry::Time;

type Keys = BTreeMap<String, Vec<u8>>;

/// Parses a specification. `name` is its name for messages.
///
/// # Errors
/// The first line that is invalid.
pub fn parse(name: &str, text: &[u8]) -> Result<Vec<Rule>, RuleFault> {
    let mut rules = Vec::new();
    let mut defaults = Keys::new();
    // The directory of names without a slash; empty at first.
    let mut dir: Vec<u8> = Vec::new();
    let mut goes_on: Vec<u8> = Vec::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        if let Some(part) = line.strip_suffix(b"\\") {
            goes_on.extend_from_slice(part);
            goes_on.push(b' ');
            continue;
        }
        let line = [std::mem::take(&mut goes_on), line.to_vec()].concat();
        let place = format!("{name}:{number}");
        let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let Some(first) = words.next().filter(|word| !word.starts_with(b"#")) else { continue };
        let fault = |why: String| RuleFault { place: place.clone(), why };
        match first {
            b"/set" => defaults.extend(words.map(key)),
            b"/unset" => words.for_each(|word| drop(defaults.remove(&key(word).0))),
            b".." => dir = parent(&dir),
            _ => {
                let spelled = unvis(first);
                let mut keys = defaults.clone();
                keys.extend(words.map(key));
                let path = match spelled.contains(&b'/') {
                    true => plain(&spelled),
                    false => plain(&[dir.as_slice(), b"/", &spelled].concat()),
                };
                let rule = rule(&place, path.clone(), &keys).map_err(fault)?;
                if rule.make == Make::Directory && !spelled.contains(&b'/') {
                    dir = path;
                }
                rules.push(rule);
            }
        }
    }
    Ok(rules)
}

fn key(word: &[u8]) -> (String, Vec<u8>) {
    let at = word.iter().position(|&byte| byte == b'=');
    let (key, value) = at.map_or((word, &b""[..]), |at| (&word[..at], &word[at + 1..]));
    (String::from_utf8_lossy(key).into_owned(), value.to_vec())
}

fn parent(path: &[u8]) -> Vec<u8> {
    path.iter().rposition(|&byte| byte == b'/').map_or_else(Vec::new, |at| path[..at].to_vec())
}

/// Decodes the escapes of vis(3), such as `\040`.
fn unvis(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match (octal, first, tail.first()) {
            (Some(byte), ..) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            (None, b'\\', Some(b's')) => {
                plain.push(b' ');
                rest = &tail[1..];
            }
            (None, b'\\', Some(&byte)) => {
                plain.push(byte);
                rest = &tail[1..];
            }
            _ => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

fn rule(place: &str, path: Vec<u8>, keys: &Keys) -> Result<Rule, String> {
    let text = |key: &str| keys.get(key).map(|value| String::from_utf8_lossy(value).into_owned());
    let id = |key: &str, name: &str| match (text(key), keys.contains_key(name)) {
        (Some(value), _) => value.parse::<u32>().map(Some).map_err(|_| format!("{key}={value} is no number")),
        (None, true) => {
            Err(format!("it has {name}= and no {key}=: names mean different ids on different hosts"))
        }
        (None, false) => Ok(None),
    };
    let mode = text("mode").map(|mode| {
        let bits = u16::from_str_radix(&mode, 8).ok().filter(|mode| *mode <= 0o7777);
        bits.ok_or_else(|| format!("mode={mode} is not octal from 0 to 7777"))
    });
    let make = match text("type").as_deref() {
        None => Make::Nothing,
        Some("file") => Make::File,
        Some("dir") => Make::Directory,
        Some("char") => device(false, text("device"))?,
        Some("block") => device(true, text("device"))?,
        Some("fifo") => Make::Fifo,
        Some("socket") => Make::Socket,
        Some("link") => match keys.get("link") {
            Some(target) => Make::Symlink(unvis(target)),
            None => return Err("a link needs link=TARGET".to_owned()),
        },
        Some(other) => return Err(format!("type={other} is not known")),
    };
    Ok(Rule {
        make,
        mode: mode.transpose()?.map(Mode::Bits),
        uid: id("uid", "uname")?,
        gid: id("gid", "gname")?,
        time: text("time").map(|value| time(&value)).transpose()?,
        optional: keys.contains_key("optional"),
        ..Rule::new(place, Paths::One(path))
    })
}

/// Parses `native,5,1`, `linux,5,1`, or a single device number as Linux encodes it.
fn device(block: bool, text: Option<String>) -> Result<Make, String> {
    let text = text.ok_or("a device needs device=native,MAJOR,MINOR")?;
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => word.parse().ok(),
    };
    let bad = || format!("device={text} is not like native,5,1");
    let words: Vec<&str> = text.split(',').collect();
    let (major, minor) = match words[..] {
        ["native" | "linux", major, minor] => {
            (number(major).ok_or_else(bad)?, number(minor).ok_or_else(bad)?)
        }
        [one] => {
            let device = number(one).ok_or_else(bad)?;
            (rustix::fs::major(device).into(), rustix::fs::minor(device).into())
        }
        _ => return Err(bad()),
    };
    let narrow = |number: u64| u32::try_from(number).map_err(|_| bad());
    Ok(Make::Device { block, major: narrow(major)?, minor: narrow(minor)? })
}

/// Parses seconds, optionally with nanoseconds after a dot (a count, not a fraction).
fn time(text: &str) -> Result<Time, String> {
    let bad = || format!("time={text} is not like 1700000000.0");
    let (seconds, nanos) = text.split_once('.').unwrap_or((text, "0"));
    let nanos = nanos.parse::<u32>().ok().filter(|nanos| *nanos < 1_000_000_000).ok_or_else(bad)?;
    Ok(Time { seconds: seconds.parse().map_err(|_| bad())?, nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_spelled_by_paths_or_by_descent() {
        let text = b"#mtree\n/set type=file uid=0 gid=0 mode=644\n. type=dir mode=755\n    etc type=dir\n        passwd \\\n\
            size=5 sha256=00\n    ..\n    dev type=dir\n./dev/console type=char device=native,5,1 mode=600\n\
            a\\040b type=link link=x\\040y\n/unset uid\n./usr/bin/su mode=4755 optional time=5.7\n";
        let rules = parse("t", text).unwrap();
        let paths: Vec<String> = rules
            .iter()
            .map(|rule| match &rule.paths {
                Paths::One(path) => String::from_utf8_lossy(path).into_owned(),
                _ => "?".to_owned(),
            })
            .collect();
        assert_eq!(paths, ["", "etc", "etc/passwd", "dev", "dev/console", "dev/a b", "usr/bin/su"]);
        assert_eq!(rules[4].make, Make::Device { block: false, major: 5, minor: 1 });
        assert_eq!(rules[5].make, Make::Symlink(b"x y".to_vec()));
        let last = &rules[6];
        assert_eq!((last.uid, last.gid, last.optional), (None, Some(0), true));
        assert_eq!(last.time, Some(Time { seconds: 5, nanos: 7 }));
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_its_line() {
        for (text, says) in [
            ("./a mode=9", "t:1: mode=9"),
            ("\n./a type=door", "t:2: type=door"),
            ("./a type=link", "link=TARGET"),
            ("./a type=char", "device="),
            ("./a type=char device=bsdos,1,2", "device=bsdos,1,2"),
            ("./a uname=root", "uname= and no uid="),
            ("./a uid=root", "uid=root is no number"),
            ("./a time=1.9999999999", "time="),
        ] {
            let fault = parse("t", text.as_bytes()).unwrap_err().to_string();
            assert!(fault.contains(says), "{text}: {fault}");
        }
    }
}
