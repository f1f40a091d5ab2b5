//! Device tables in the format of genext2fs and makedevs: one rule per line, ten fields, `-` for a field that
//! does not apply.
//!
//! ```text
//! name  type  mode  uid  gid  major  minor  start  inc  count
//! ```
//! | type | meaning |
//! |---|---|
//! | `f` | an existing regular file |
//! | `F` | the same, but it may be missing |
//! | `d` | a directory |
//! | `r` | an existing directory and everything below it: owner, and mode unless that is -1 |
//! | `c` `b` `p` `s` | character device, block device, pipe, socket |
//!
//! With a count, a line makes a series of devices: `/dev/tty c 666 0 0 4 0 0 1 4` makes tty0 to tty3 with
//! minors 0 to 3.

use super::{Make, Mode, Paths, Rule, RuleFault, plain};

/// Maximum number of names from one line.
const COUNT_MAX: u32 = 65_536;

/// Parses a table. `name` is its name for messages.
///
/// # Errors
/// The first line that is invalid.
pub fn parse(name: &str, text: &[u8]) -> Result<Vec<Rule>, RuleFault> {
    let mut rules = Vec::new();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let place = format!("{name}:{number}");
        let fields: Vec<&[u8]> =
            line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();
        if fields.first().is_none_or(|first| first.starts_with(b"#")) {
            continue;
        }
        line_rules(&place, &fields, &mut rules).map_err(|why| RuleFault { place, why })?;
    }
    Ok(rules)
}

fn line_rules(place: &str, fields: &[&[u8]], rules: &mut Vec<Rule>) -> Result<(), String> {
    let [path, kind, rest @ ..] = fields else {
        return Err(
            "it has a name only; a line is \"name type mode uid gid major minor start inc count\"".into()
        );
    };
    if path.starts_with(b"|") {
        return Err(
            "attributes of device tables are not understood: build them in, or `extant xattr set`".into()
        );
    }
    let number = |at: usize, what: &str| match rest.get(at) {
        None | Some(&b"-") => Ok(None),
        Some(text) => {
            let text = String::from_utf8_lossy(text);
            text.parse::<u32>().map(Some).map_err(|_| format!("its {what} is \"{text}\", no number"))
        }
    };
    let or_kept = |at: usize, what: &str| match rest.get(at) {
        Some(&b"-1") => Ok(None),
        _ => number(at, what),
    };
    let mode = match rest.first() {
        None | Some(&b"-" | &b"-1") => None,
        Some(text) => {
            let text = String::from_utf8_lossy(text);
            let mode = u16::from_str_radix(&text, 8).ok().filter(|mode| *mode <= 0o7777);
            Some(mode.ok_or_else(|| format!("its mode is \"{text}\", not octal from 0 to 7777"))?)
        }
    };
    let device = |block| -> Result<Make, String> {
        match (number(3, "major number")?, number(4, "minor number")?) {
            (Some(major), Some(minor)) => Ok(Make::Device { block, major, minor }),
            _ => Err("a device needs a major and a minor number".to_owned()),
        }
    };
    let path = plain(path);
    let (make, paths, optional) = match *kind {
        b"f" => (Make::File, Paths::One(path.clone()), false),
        b"F" => (Make::File, Paths::One(path.clone()), true),
        b"d" => (Make::Directory, Paths::One(path.clone()), false),
        b"r" => (Make::Nothing, Paths::Tree(path.clone()), false),
        b"c" => (device(false)?, Paths::One(path.clone()), false),
        b"b" => (device(true)?, Paths::One(path.clone()), false),
        b"p" => (Make::Fifo, Paths::One(path.clone()), false),
        b"s" => (Make::Socket, Paths::One(path.clone()), false),
        other => {
            let other = String::from_utf8_lossy(other);
            return Err(format!("type \"{other}\" is not known: f F d r c b p s are"));
        }
    };
    let (uid, gid) = (or_kept(1, "uid")?, or_kept(2, "gid")?);
    let (start, step) = (number(5, "start")?.unwrap_or(0), number(6, "increment")?.unwrap_or(0));
    let count = number(7, "count")?.unwrap_or(0);
    if count > COUNT_MAX {
        return Err(format!("its count is {count}; at most {COUNT_MAX} names are made by one line"));
    }
    let rule = |paths, make| Rule {
        make,
        mode: mode.map(Mode::Bits),
        uid,
        gid,
        optional,
        ..Rule::new(place, paths)
    };
    if count == 0 {
        rules.push(rule(paths, make));
        return Ok(());
    }
    let Make::Device { block, major, minor } = make else {
        return Err("only devices come in rows; the count must be 0 or -".to_owned());
    };
    for at in 0..count {
        let too_far = || "its row goes past the last number".to_owned();
        let number = start.checked_add(at).ok_or_else(too_far)?;
        let minor = at.checked_mul(step).and_then(|far| minor.checked_add(far)).ok_or_else(too_far)?;
        let path = [path.as_slice(), number.to_string().as_bytes()].concat();
        rules.push(rule(Paths::One(path), Make::Device { block, major, minor }));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Result<Vec<String>, String> {
        let rules = parse("t", text.as_bytes()).map_err(|fault| fault.to_string())?;
        let one = |rule: &Rule| {
            let Rule { paths, make, mode, uid, gid, .. } = rule;
            let path = match paths {
                Paths::One(path) | Paths::Tree(path) => String::from_utf8_lossy(path).into_owned(),
                Paths::Matching(_) => "?".to_owned(),
            };
            format!("{path} {make:?} {mode:?} {uid:?} {gid:?}")
        };
        Ok(rules.iter().map(one).collect())
    }

    #[test]
    fn lines_are_rules() {
        let text = "# name\n\n/dev d 755 0 0 - - - - -\n/bin/su\tf 4755 0 7\n/srv r -1 33 33 - - - - -\n";
        assert_eq!(
            said(text).unwrap(),
            [
                "dev Directory Some(755) Some(0) Some(0)",
                "bin/su File Some(4755) Some(0) Some(7)",
                "srv Nothing None Some(33) Some(33)"
            ]
        );
        let row = said("/dev/fb c 640 0 0 29 0 0 32 3").unwrap();
        assert_eq!(row.len(), 3);
        assert!(row[2].starts_with("dev/fb2 Device { block: false, major: 29, minor: 64 }"), "{row:?}");
        let row = said("/dev/hda b 640 0 0 3 1 1 1 2").unwrap();
        assert!(row[0].starts_with("dev/hda1 Device { block: true, major: 3, minor: 1 }"), "{row:?}");
    }

    #[test]
    fn what_is_no_rule_is_refused_with_its_line() {
        for (text, says) in [
            ("/a", "t:1: it has a name only"),
            ("\n/a q 644 0 0", "t:2: type \"q\" is not known"),
            ("/a c 644 0 0 5", "needs a major and a minor"),
            ("/a d 999 0 0", "not octal"),
            ("/a d 755 root 0", "\"root\", no number"),
            ("/a d 755 0 0 - - 0 1 5", "only devices come in rows"),
            ("/a c 644 0 0 1 1 0 1 4000000", "at most 65536"),
            ("/a c 644 0 0 1 4294967295 0 1 2", "past the last number"),
            ("|xattr cap_net_raw+ep", "attributes"),
        ] {
            let fault = said(text).unwrap_err();
            assert!(fault.contains(says), "{text}: {fault}");
        }
    }
}
