//! `mount.fuse.extant` and `umount.fuse.extant`: mount(8) and umount(8) call these helpers for mounts of type
//! `fuse.extant`.
//!
//! ```text
//!  mount -t fuse.extant IMG DIR -o OPTIONS  -> mount.fuse.extant IMG DIR [-sfnv] -o OPTIONS
//!                                           -> extant mount IMG DIR -o OPTIONS
//!  umount DIR                               -> umount.fuse.extant DIR [-flnrv] [-t TYPE]
//!                                           -> extant umount DIR [-l]
//! ```
//!
//! Both are links to this program, which checks the name it is called by. With the second helper, umount(8)
//! returns after the server has ended and the image is durable; without it, FUSE lets umount(8) return
//! earlier.
//!
//! Source: mount(8) and umount(8), "external helpers".

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;

use crate::exit;
use crate::usage::{MOUNT_HELPER as MOUNT, UMOUNT_HELPER as UMOUNT, near};

const INSTALL_HELP: &str = "\
Then these work, and lines of /etc/fstab with the type fuse.extant:
  mount -t fuse.extant root.img /mnt            read-write, as mount(8) has it, unless -o ro
  umount /mnt                                   returns when everything is in the image

Exit codes: 0 done; 1 the links cannot be made; 6 something else has one of the names.";

/// Let mount(8) and umount(8) know mounts of extant, by links to this program.
#[derive(Debug, Args)]
#[command(after_help = INSTALL_HELP)]
pub(crate) struct InstallArgs {
    /// Where mount(8) looks for its helpers.
    #[arg(value_name = "DIR", default_value = "/sbin")]
    dir: PathBuf,
}

/// Runs `extant install-helpers`.
pub(crate) fn install(args: &InstallArgs) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return exit::fail(exit::TARGET, &format_args!("this program is not found: {error}")),
    };
    for name in [MOUNT, UMOUNT] {
        let link = args.dir.join(name);
        let made = match std::fs::symlink_metadata(&link) {
            Ok(there) if !there.is_symlink() => {
                let why = "is there, and no link; remove it first, or name another directory";
                return exit::fail(exit::EXISTS, &format_args!("{}: {why}", link.display()));
            }
            Ok(_) => std::fs::remove_file(&link).and_then(|()| link_to(&program, &link)),
            Err(_) => link_to(&program, &link),
        };
        if let Err(error) = made {
            return exit::fail(exit::TARGET, &near::not_made(&link, &error));
        }
    }
    ExitCode::SUCCESS
}

fn link_to(program: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(program, link)
}

/// If the program is called as a helper, executes the corresponding command. Returns only after a failure.
pub(crate) fn run_if_called_so() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let called = PathBuf::from(args.next()?);
    let words: Vec<OsString> = args.collect();
    let meant = match called.file_name()?.to_str()? {
        MOUNT => mount_words(&words, rustix::process::geteuid().is_root()),
        UMOUNT => umount_words(&words),
        _ => return None,
    };
    let words = match meant {
        Ok(words) => words,
        Err(why) => return Some(exit::fail(exit::USAGE_CODE, &why)),
    };
    let error = match std::env::current_exe() {
        Ok(program) => Command::new(program).arg0("extant").args(words).exec(),
        Err(error) => error,
    };
    Some(exit::fail(exit::TARGET, &format_args!("cannot start: {error}")))
}

/// An option's letter, and its value; empty if it has none.
type Letter<'a> = (u8, &'a OsStr);

/// Splits a helper's arguments into operands and options. `with_value`: letters of options that have a value.
fn taken_apart<'a>(
    words: &'a [OsString],
    with_value: &[u8],
) -> Result<(Vec<&'a OsStr>, Vec<Letter<'a>>), String> {
    let (mut operands, mut options) = (Vec::new(), Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let letters = match word.as_bytes() {
            [b'-', letters @ ..] if !letters.is_empty() => letters,
            _ => {
                operands.push(word.as_os_str());
                continue;
            }
        };
        for (at, letter) in letters.iter().enumerate() {
            if !with_value.contains(letter) {
                options.push((*letter, OsStr::new("")));
                continue;
            }
            let value = match &letters[at + 1..] {
                [] => {
                    words.next().ok_or_else(|| format!("-{} needs a value", char::from(*letter)))?.as_os_str()
                }
                rest => OsStr::from_bytes(rest),
            };
            options.push((*letter, value));
            break;
        }
    }
    Ok((operands, options))
}

/// mount(8) omits options that are its defaults, such as `dev` and `suid`. So they are defaults here for
/// root; other users cannot grant them.
fn mount_words(words: &[OsString], is_root: bool) -> Result<Vec<OsString>, String> {
    let (operands, options) = taken_apart(words, b"oNt")?;
    let [image, dir] = operands[..] else {
        return Err(format!("{MOUNT}: is called by mount(8): {MOUNT} IMG DIR [-o OPTIONS]"));
    };
    let mut list: Vec<&[u8]> = Vec::new();
    let mut meant = vec![OsString::from("mount")];
    for (letter, value) in options {
        match letter {
            b'o' => list.extend(value.as_bytes().split(|byte| *byte == b',')),
            b's' => meant.push("--sloppy".into()),
            // No mount table, verbose: nothing to do.
            b'n' | b'v' | b't' => {}
            b'f' => return Err(format!("{MOUNT}: -f: a mount that is not made cannot be tried")),
            other => return Err(format!("{MOUNT}: -{} is not known", char::from(other))),
        }
    }
    list.retain(|word| !word.is_empty());
    if is_root && !list.contains(&b"remount".as_slice()) {
        // At the front, so that later options override them.
        list.splice(0..0, [b"dev".as_slice(), b"suid"]);
    }
    let list = OsString::from_vec(list.join(&b','));
    meant.extend(["-o".into(), list, "--".into(), image.into(), dir.into()]);
    Ok(meant)
}

fn umount_words(words: &[OsString]) -> Result<Vec<OsString>, String> {
    let (operands, options) = taken_apart(words, b"Nt")?;
    let [dir] = operands[..] else {
        return Err(format!("{UMOUNT}: is called by umount(8): {UMOUNT} DIR [-l]"));
    };
    let mut meant = vec![OsString::from("umount"), "--as-helper".into()];
    for (letter, _) in options {
        match letter {
            b'l' => meant.push("-l".into()),
            // Force has no effect: a signal ends a hanging server.
            b'f' | b'n' | b'r' | b'v' | b't' => {}
            other => return Err(format!("{UMOUNT}: -{} is not known", char::from(other))),
        }
    }
    meant.extend(["--".into(), dir.into()]);
    Ok(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn words_of_mount_become_words_of_extant() {
        let mount = |text: &str| mount_words(&words(text), false);
        let expected = |text: &str| Ok(words(text));
        assert_eq!(
            mount("a.img /mnt -o rw,nofail,x-systemd.automount,fsname=b"),
            expected("mount -o rw,nofail,x-systemd.automount,fsname=b -- a.img /mnt")
        );
        let by_root = |text: &str| mount_words(&words(text), true);
        assert_eq!(by_root("a /mnt -o rw,nodev"), expected("mount -o dev,suid,rw,nodev -- a /mnt"));
        assert_eq!(by_root("a /mnt -o remount,ro"), expected("mount -o remount,ro -- a /mnt"));
        assert_eq!(
            mount("-sn -oro a.img /mnt -t fuse.extant"),
            expected("mount --sloppy -o ro -- a.img /mnt")
        );
        let none = ["mount", "-o", "", "--", "a", "b"].map(OsString::from).to_vec();
        assert_eq!(mount("a b"), Ok(none));
        assert!(mount("a").is_err() && mount("a b c").is_err() && mount("a b -o").is_err());
        assert!(mount("a b -f").is_err() && mount("a b -N 5").is_err() && mount("a b -q").is_err());
        let umount = |text: &str| umount_words(&words(text));
        assert_eq!(umount("/mnt -lv -t fuse.extant"), expected("umount --as-helper -l -- /mnt"));
        assert_eq!(umount("-n /mnt"), expected("umount --as-helper -- /mnt"));
        assert!(umount("").is_err() && umount("a b").is_err() && umount("a -x").is_err());
    }
}
