//! Options of `extant build` that name paths of the image: `--device-table`, `--mtree`, `--mknod`, `--chown`,
//! `--chmod`.
//!
//! Owns: their syntax and order. Does **not** own: the formats of tables, and the effect of rules (see
//! `extant_image::rules`).

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{ArgMatches, Args, FromArgMatches};
use extant_image::rules::{Make, Mode, Paths, Rule, parse_device_table, parse_mtree};

use crate::edit::mode::ModeChange;
use crate::exit;

/// The rules of all kinds, in the order of the command line.
#[derive(Debug)]
pub(super) struct RuleArgs(Vec<(usize, RuleKind, OsString)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    DeviceTable,
    Mtree,
    Mknod,
    Chown,
    Chmod,
}

const RULES: [(RuleKind, &str, &str, &str); 5] = [
    (
        RuleKind::DeviceTable,
        "device-table",
        "FILE",
        "Make and change what the lines of a device table name (name type mode uid gid major minor start inc count), as genext2fs and makedevs do",
    ),
    (RuleKind::Mtree, "mtree", "FILE", "Make and change what an mtree(5) specification names"),
    (
        RuleKind::Mknod,
        "mknod",
        "PATH=TYPE",
        "Make a device, pipe or socket: /dev/console=c:5:1, /run/fifo=p, /dev/sda=b:8:0,0660,0:6",
    ),
    (RuleKind::Chown, "chown", "PATH=UID:GID", "Give what has this path an owner; * and ** as for --exclude"),
    (RuleKind::Chmod, "chmod", "PATH=MODE", "Give what has this path a mode, octal or as for chmod(1)"),
];

impl FromArgMatches for RuleArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Vec::new();
        for (kind, id, _, _) in RULES {
            let values = matches.get_many::<OsString>(id).into_iter().flatten();
            let places = matches.indices_of(id).into_iter().flatten();
            all.extend(places.zip(values).map(|(place, value)| (place, kind, value.clone())));
        }
        all.sort_by_key(|&(place, _, _)| place);
        Ok(Self(all))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for RuleArgs {
    fn augment_args(mut command: clap::Command) -> clap::Command {
        for (kind, id, value, help) in RULES {
            let mut arg = clap::Arg::new(id)
                .long(id)
                .value_name(value)
                .help(format!("{help}; may be given several times"))
                .help_heading("Rules, applied in this order after the sources")
                .action(clap::ArgAction::Append)
                .value_parser(clap::value_parser!(OsString));
            if kind == RuleKind::DeviceTable {
                arg = arg.short('D');
            }
            command = command.arg(arg);
        }
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl RuleArgs {
    /// All rules, including those of the tables, which this reads.
    pub(super) fn rules(&self) -> Result<Vec<Rule>, (u8, String)> {
        let mut rules = Vec::new();
        for (_, kind, value) in &self.0 {
            let table = match kind {
                RuleKind::DeviceTable => parse_device_table,
                RuleKind::Mtree => parse_mtree,
                RuleKind::Mknod | RuleKind::Chown | RuleKind::Chmod => {
                    let rule = option(*kind, value.as_bytes());
                    rules.push(rule.map_err(|why| (exit::USAGE_CODE, why))?);
                    continue;
                }
            };
            let path = std::path::Path::new(value);
            let read = table(&path.display().to_string(), &super::read(path)?);
            rules.extend(read.map_err(|fault| (exit::USAGE_CODE, fault.to_string()))?);
        }
        Ok(rules)
    }
}

/// Parses the value of `--mknod`, `--chown` or `--chmod`.
fn option(kind: RuleKind, text: &[u8]) -> Result<Rule, String> {
    let name = RULES.iter().find(|rule| rule.0 == kind).map_or("", |rule| rule.1);
    let place = format!("--{name} {}", String::from_utf8_lossy(text));
    let wrong = |why: String| format!("{place}: {why}");
    let at = text.iter().rposition(|&byte| byte == b'=');
    // A mode like u=rwx contains an equals sign itself, so `--chmod` splits at the first one.
    let at = if kind == RuleKind::Chmod { text.iter().position(|&byte| byte == b'=') } else { at };
    let Some(at) = at.filter(|at| *at > 0) else { return Err(wrong("it is PATH=WHAT".to_owned())) };
    let value = std::str::from_utf8(&text[at + 1..]).map_err(|_| wrong("it is no text".to_owned()))?;
    let paths = Paths::parse(&text[..at]).map_err(|fault| wrong(fault.to_string()))?;
    let mut rule = Rule::new(place.clone(), paths);
    match kind {
        RuleKind::Chown => (rule.uid, rule.gid) = owner(value).map_err(wrong)?,
        RuleKind::Chmod => rule.mode = Some(mode(value).map_err(wrong)?),
        _ => {
            if matches!(rule.paths, Paths::Matching(_)) {
                return Err(wrong("a name to be made has no patterns".to_owned()));
            }
            let mut words = value.splitn(3, ',');
            rule.make = make(words.next().unwrap_or_default()).map_err(wrong)?;
            rule.mode = words.next().map(mode).transpose().map_err(wrong)?;
            if let Some(text) = words.next() {
                (rule.uid, rule.gid) = owner(text).map_err(wrong)?;
            }
        }
    }
    Ok(rule)
}

fn mode(text: &str) -> Result<Mode, String> {
    Ok(changed(parse_mode(text)?))
}

fn changed(change: ModeChange) -> Mode {
    Mode::Change(Box::new(move |old, is_dir| change.apply(old, is_dir)))
}

/// Parses `--mode`.
pub(super) fn parse_mode(text: &str) -> Result<ModeChange, String> {
    text.parse()
}

/// The user and the group of `--owner UID:GID`, `--owner UID`, `--owner :GID` and `--group GID`.
pub(super) fn owners(
    owner_text: Option<&str>,
    group: Option<&str>,
) -> Result<(Option<u32>, Option<u32>), String> {
    let (uid, gid) = match owner_text {
        Some(text) => owner(text).map_err(|why| format!("--owner: {why}"))?,
        None => (None, None),
    };
    let Some(text) = group else { return Ok((uid, gid)) };
    if gid.is_some() {
        return Err("--owner has a group already, and --group is another; give one of them".to_owned());
    }
    match owner(&format!(":{text}")).map_err(|why| format!("--group: {why}"))? {
        (None, group) => Ok((uid, group)),
        _ => Err(format!("--group: \"{text}\" is no number")),
    }
}

/// The rules of `--owner`, `--group` and `--mode`: they change all files, before the rules by path.
pub(super) fn for_everything(uid: Option<u32>, gid: Option<u32>, mode: Option<ModeChange>) -> Vec<Rule> {
    if uid.is_none() && gid.is_none() && mode.is_none() {
        return Vec::new();
    }
    let place = "--owner, --group or --mode".to_owned();
    vec![Rule { uid, gid, mode: mode.map(changed), ..Rule::new(place, Paths::Tree(Vec::new())) }]
}

/// Parses `UID:GID`, `UID` or `:GID`.
fn owner(text: &str) -> Result<(Option<u32>, Option<u32>), String> {
    let number = |word: &str| match word {
        "" => Ok(None),
        word => word.parse::<u32>().ok().filter(|id| *id != u32::MAX).map(Some).ok_or_else(|| {
            format!("\"{word}\" is no id: names mean different ids on different hosts, so numbers are needed")
        }),
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    match (number(uid)?, number(gid)?) {
        (None, None) => Err("an owner is UID:GID, UID or :GID".to_owned()),
        ids => Ok(ids),
    }
}

/// Parses `c:5:1`, `b:8:0`, `p` or `s`.
fn make(text: &str) -> Result<Make, String> {
    let wrong = || format!("\"{text}\" is not c:MAJOR:MINOR, b:MAJOR:MINOR, p or s");
    let words: Vec<&str> = text.split(':').collect();
    Ok(match words[..] {
        [kind @ ("c" | "u" | "b"), major, minor] => Make::Device {
            block: kind == "b",
            major: major.parse().map_err(|_| wrong())?,
            minor: minor.parse().map_err(|_| wrong())?,
        },
        ["p"] => Make::Fifo,
        ["s"] => Make::Socket,
        _ => return Err(wrong()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_everything_are_numbers_and_given_once() {
        assert_eq!(owners(None, None), Ok((None, None)));
        assert_eq!(owners(Some("0:5"), None), Ok((Some(0), Some(5))));
        assert_eq!(owners(Some("0"), None), Ok((Some(0), None)));
        assert_eq!(owners(Some(":5"), None), Ok((None, Some(5))));
        assert_eq!(owners(Some("0"), Some("5")), Ok((Some(0), Some(5))));
        assert_eq!(owners(None, Some("5")), Ok((None, Some(5))));
        assert!(owners(Some("0:5"), Some("5")).unwrap_err().contains("a group already"));
        assert!(owners(Some("root"), None).unwrap_err().contains("--owner: \"root\" is no id"));
        assert!(owners(None, Some("users")).unwrap_err().contains("--group: \"users\" is no id"));
        for bad in ["", ":", "1:2", "4294967295"] {
            assert!(owners(None, Some(bad)).is_err(), "{bad}");
        }
        assert!(owners(Some(":"), None).is_err());
    }
}
