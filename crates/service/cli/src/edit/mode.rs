//! Parses modes as chmod(1) does: `0644`, `u=rwx,go+rX`, `g-w+s`, `o=u`, `+x`.
//!
//! ```text
//! MODE   = OCTAL | CLAUSE,CLAUSE,...
//! CLAUSE = [ugoa]* ( [+-=] ( [rwxXst]* | [ugo] ) )+
//! ```
//! Without `ugoa` a clause applies to all classes, except for the bits 0022 (which a usual umask clears). `X`
//! is `x` for directories and for files with any execute bit. The setuid and setgid bits of a directory are
//! cleared only by `u-s`, `g-s`, or five octal digits.
//!
//! Owns: parsing and applying. Does **not** own: inodes.
//!
//! Source: chmod(1), the chapter "File permissions" of the coreutils manual.

use std::str::FromStr;

/// Bits that `+w` without `ugoa` leaves unchanged.
const UMASK: u16 = 0o022;
const SET_IDS: u16 = 0o6000;
const STICKY: u16 = 0o1000;

/// A change of the twelve permission bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Step>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    op: Op,
    /// The bits of the named classes.
    affected: u16,
    what: What,
    /// Bits that stay unchanged because the clause names no class.
    masked: u16,
    /// Setuid and setgid bits that the clause names explicitly; only these are cleared on directories.
    mentions: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// These bits; `cautious_exec`: also execution where `X` allows it.
    Bits { bits: u16, cautious_exec: bool },
    /// The bits of the user, the group or the others, given as the shift of their position.
    CopyOf(u16),
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
            let mode = mode.ok_or_else(|| format!("\"{text}\" is no mode: octal modes are 0 to 7777"))?;
            let mentions = if text.len() < 5 { mode & SET_IDS } else { SET_IDS };
            let what = What::Bits { bits: mode, cautious_exec: false };
            return Ok(Self(vec![Step { op: Op::Set, affected: 0o7777, what, masked: 0, mentions }]));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            let wrong = || format!("\"{text}\" is no mode: it is like 0644, u=rwx,go=rX or +x");
            let ops = clause.find(['+', '-', '=']).ok_or_else(wrong)?;
            let (who, mut rest) = clause.split_at(ops);
            let mut affected = 0;
            for c in who.chars() {
                affected |= match c {
                    'u' => 0o4700,
                    'g' => 0o2070,
                    'o' => 0o1007,
                    'a' => 0o7777,
                    _ => return Err(wrong()),
                };
            }
            let masked = if who.is_empty() { UMASK } else { 0 };
            let affected = if who.is_empty() { 0o7777 } else { affected };
            while let Some(op) = rest.chars().next() {
                let op = match op {
                    '+' => Op::Add,
                    '-' => Op::Remove,
                    '=' => Op::Set,
                    _ => return Err(wrong()),
                };
                let end = rest[1..].find(['+', '-', '=']).map_or(rest.len(), |end| end + 1);
                let (what, mentions) = what(&rest[1..end]).ok_or_else(wrong)?;
                steps.push(Step { op, affected, what, masked, mentions });
                rest = &rest[end..];
            }
        }
        Ok(Self(steps))
    }
}

/// The bits that the letters stand for, and which of setuid and setgid are among them.
fn what(letters: &str) -> Option<(What, u16)> {
    match letters {
        "u" => return Some((What::CopyOf(6), 0)),
        "g" => return Some((What::CopyOf(3), 0)),
        "o" => return Some((What::CopyOf(0), 0)),
        _ => {}
    }
    let (mut bits, mut cautious_exec) = (0, false);
    for c in letters.chars() {
        match c {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            'X' => cautious_exec = true,
            's' => bits |= SET_IDS,
            't' => bits |= STICKY,
            _ => return None,
        }
    }
    Some((What::Bits { bits, cautious_exec }, bits & SET_IDS))
}

impl ModeChange {
    /// Returns the mode after the change. Both modes are the twelve permission bits.
    pub(crate) fn apply(&self, mode: u16, is_dir: bool) -> u16 {
        self.0.iter().fold(mode & 0o7777, |mode, step| {
            let bits = match step.what {
                What::Bits { bits, cautious_exec } => {
                    let exec = cautious_exec && (is_dir || mode & 0o111 != 0);
                    bits | if exec { 0o111 } else { 0 }
                }
                What::CopyOf(shift) => (mode >> shift & 7) * 0o111,
            };
            let kept = if is_dir { SET_IDS & !step.mentions } else { 0 };
            let bits = bits & step.affected & !step.masked;
            match step.op {
                Op::Add => mode | bits,
                Op::Remove => mode & !bits,
                Op::Set => mode & (!step.affected | kept) | bits,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The expected modes come from chmod(1) of this machine.
    #[test]
    fn modes_are_what_chmod_makes_of_them() {
        let dir = extant_testkit::scratch();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let subdir = dir.path().join("dir");
        std::fs::create_dir(&subdir).unwrap();
        let changes = [
            "0",
            "644",
            "0755",
            "4755",
            "2711",
            "1777",
            "7777",
            "00755",
            "02755",
            "u+x",
            "+x",
            "+w",
            "-w",
            "a+w",
            "=",
            "a=",
            "u=",
            "go=",
            "=rw",
            "+X",
            "a+X",
            "a=rX",
            "u=rwx,go=rX",
            "ug+s",
            "g+s",
            "g-s",
            "u-s",
            "=s",
            "u=s",
            "o+t",
            "+t",
            "u+t",
            "a-t",
            "g=u",
            "o=g",
            "u=o",
            "go-u",
            "u+r-w",
            "a+rwx,o-w",
            "ugo=rwxst",
            "g+w=",
            "-s",
        ];
        let starts = [0o000, 0o644, 0o755, 0o600, 0o111, 0o7777, 0o4751, 0o2070, 0o1007, 0o520];
        for change in changes {
            let parsed: ModeChange = change.parse().unwrap();
            for start in starts {
                for (path, is_dir) in [(&file, false), (&subdir, true)] {
                    std::fs::set_permissions(path, PermissionsExt::from_mode(start)).unwrap();
                    let command = format!("umask 022; chmod -- {change} '{}'", path.display());
                    let status =
                        extant_testkit::command("sh").args(["-c", &command]).output().unwrap().status;
                    // "-w" and similar changes leave more bits than the umask allows: chmod makes them, but
                    // complains.
                    assert!(status.code().is_some_and(|code| code < 2), "{change}");
                    let made = std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
                    let ours = u32::from(parsed.apply(start as u16, is_dir));
                    assert_eq!(
                        ours, made,
                        "chmod {change} of {start:o}, directory: {is_dir}: {ours:o} {made:o}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for wrong in ["", "8", "78", "17777", "u", "u+q", "z+x", "u+x,", "x", "+ru", "644x"] {
            assert!(wrong.parse::<ModeChange>().is_err(), "{wrong}");
        }
    }
}
