//! `extant mount -o remount,...`: changes switches of an existing mount. All other given options must have
//! their present value: mount(8) repeats all options from the table of mounts and from /etc/fstab.
//!
//! The kernel changes the switches itself. But it cannot make a server write that opened its image for
//! reading: such a mount is replaced by one for writing, if it is not in use at that moment.
//!
//! ```text
//!  server opened for writing:  the kernel's switch
//!  server opened for reading:  not in use, image writable --> unmount -> mount again with its options and rw
//!                                                             (if that fails: with its options only)
//! ```

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::FromArgMatches;
use extant_device::mount_table::{MountEntry, mounted_at, mounts};
use extant_fuse::{MODE_ATTRIBUTE, Remount, RemountFault, remount};
use rustix::process::PidfdFlags;

use super::options::{foreign, keywords};
use super::{DAEMON, MountArgs, MountError, MountFlags, umount};
use crate::exit;
use crate::imagearg::ImageArg;

/// How long a server that only read may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether the options request a remount.
pub(super) fn is_asked(lists: &[OsString]) -> bool {
    words(lists).any(|word| word == b"remount")
}

fn words(lists: &[OsString]) -> impl Iterator<Item = &[u8]> {
    lists.iter().flat_map(|list| list.as_bytes().split(|byte| *byte == b','))
}

pub(super) fn run(dir: &Path, lists: &[OsString]) -> Result<(), MountError> {
    let fail = |text: &dyn std::fmt::Display| MountError::new(exit::TARGET, text);
    let dir = dir.canonicalize().map_err(|error| fail(&format_args!("{}: {error}", dir.display())))?;
    let entry = mounted_at(&dir).map_err(|error| fail(&error))?;
    let started = Started::of(&dir);
    let mut there = entry.as_ref().map(|entry| entry.options.clone()).unwrap_or_default();
    for list in started.iter().flat_map(|started| &started.args.options) {
        there = format!("{there},{}", list.to_string_lossy());
    }
    let change = parse(lists, &there)
        .map_err(|text| MountError::new(exit::USAGE_CODE, format!("-o remount: {text}")))?;
    match (remount(&dir, change), entry, started) {
        (Err(RemountFault::OpenForReading(_)), Some(entry), Some(started)) => {
            started.replace(&dir, &entry, change)
        }
        (result, ..) => result.map_err(|fault| fail(&fault)),
    }
}

/// The requested changes. `there`: the mount's present options.
fn parse(lists: &[OsString], there: &str) -> Result<Remount, String> {
    let mut change = Remount::default();
    for word in words(lists) {
        let keyword = keywords().find(|keyword| keyword.name.as_bytes() == word);
        if let Some(set) = keyword.and_then(|keyword| keyword.remount) {
            set(&mut change);
            continue;
        }
        match word {
            b"" => {}
            same if there.split(',').any(|option| option.as_bytes() == same) => {}
            other if foreign(other).is_some() => {}
            other => {
                let word = String::from_utf8_lossy(other);
                return Err(format!(
                    "\"{word}\" cannot be changed while it is mounted; unmount it, and mount it anew"
                ));
            }
        }
    }
    Ok(change)
}

/// How the server of a mount was started, in order to start it again.
struct Started {
    server: rustix::process::Pid,
    /// The arguments of its command line, without the program name.
    words: Vec<OsString>,
    args: MountArgs,
    /// The base of relative paths in the arguments. `None` for a server in the foreground: another program
    /// waits for it.
    relative_to: Option<PathBuf>,
}

impl Started {
    /// `None` if the server does not identify itself, or belongs to another user.
    fn of(dir: &Path) -> Option<Self> {
        let server = umount::server_of(dir)?;
        let proc = PathBuf::from(format!("/proc/{}", server.as_raw_pid()));
        if std::fs::metadata(&proc).ok()?.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let parts = |name: &str| -> Option<Vec<OsString>> {
            let bytes = std::fs::read(proc.join(name)).ok()?;
            let parts = bytes.strip_suffix(b"\0").unwrap_or(&bytes).split(|byte| *byte == 0);
            Some(parts.map(|part| OsString::from_vec(part.to_vec())).collect())
        };
        let words = parts("cmdline")?.split_off(1);
        let command = <MountArgs as clap::Args>::augment_args(clap::Command::new("mount"));
        // An option of the program, which may stand before the name of the command.
        let global = OsStr::new("--no-sandbox");
        let of_mount = words.iter().filter(|word| *word != global);
        let matches = command.try_get_matches_from(of_mount).ok()?;
        let args = MountArgs::from_arg_matches(&matches).ok()?;
        let relative_to = parts("environ")?.iter().find_map(|pair| {
            let value = pair.as_bytes().strip_prefix(DAEMON.as_bytes())?.strip_prefix(b"=")?;
            Some(PathBuf::from(OsStr::from_bytes(value)))
        });
        Some(Self { server, words, args, relative_to })
    }

    /// Unmounts, and mounts again for writing.
    fn replace(&self, dir: &Path, entry: &MountEntry, change: Remount) -> Result<(), MountError> {
        let shown = dir.display();
        let stays = |why: &dyn std::fmt::Display| {
            MountError::new(exit::TARGET, format!("{shown} stays read-only: {why}"))
        };
        let Some(relative_to) = &self.relative_to else {
            return Err(stays(&"it is served in the foreground; end that, and mount it with -o rw"));
        };
        let flags = MountFlags::parse(&self.args.options, true).map_err(|why| stays(&why))?;
        if flags.no_recovery {
            return Err(stays(&"its journal was left out (noload); unmount it, and mount it with -o rw"));
        }
        let image = relative_to.join(&self.args.image);
        let image = ImageArg::parse(image.as_os_str()).map_err(|why| stays(&why))?;
        // Opened directly: opening it as an image would fail because of the server's lock.
        if let Err(error) = std::fs::File::options().write(true).open(&image.path) {
            return Err(stays(&format_args!("{image} cannot be written: {error}")));
        }
        let same = mounts().unwrap_or_default().into_iter().filter(|other| other.device == entry.device);
        if same.count() > 1 {
            return Err(stays(&"it is mounted in several places (mount --bind)"));
        }
        let process = rustix::process::pidfd_open(self.server, PidfdFlags::empty());
        let process = process.map_err(|error| stays(&error))?;
        umount::unmount_patiently(dir, entry, false).map_err(|why| stays(&why))?;
        if !umount::ends_in(&process, PATIENCE) {
            let why =
                format!("{shown} is unmounted, but its server still runs; mount it again when it has ended");
            return Err(MountError::new(exit::TARGET, why));
        }
        let mut list = "rw".to_owned();
        for (to, yes, no) in
            [(change.dev, "dev", "nodev"), (change.suid, "suid", "nosuid"), (change.exec, "exec", "noexec")]
        {
            if let Some(to) = to {
                list = format!("{list},{}", if to { yes } else { no });
            }
        }
        if self.mount(relative_to, &["-o".into(), list.into()]) {
            return match umount::attribute(dir, MODE_ATTRIBUTE).as_deref() {
                Some(b"ro") => Err(stays(&"it is write-protected")),
                _ => Ok(()),
            };
        }
        match self.mount(relative_to, &[]) {
            true => Err(stays(&"it could not be mounted for writing")),
            false => {
                let why =
                    format!("{shown} is unmounted: it could be mounted neither for writing nor as it was");
                Err(MountError::new(exit::TARGET, why))
            }
        }
    }

    /// Runs `extant mount` with its original arguments and further ones.
    fn mount(&self, relative_to: &Path, further: &[OsString]) -> bool {
        let mut command = Command::new("/proc/self/exe");
        // Options end at "--".
        command.arg0("extant").args(with_further(&self.words, further));
        command.current_dir(relative_to).env_remove(DAEMON).stdin(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

/// Adds `further` to the arguments so that it takes precedence: a later `-o` overrides earlier ones, and "--"
/// ends the options.
fn with_further(words: &[OsString], further: &[OsString]) -> Vec<OsString> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    [&words[..end], further, &words[end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_change_and_all_else_is_as_it_was() {
        let there =
            "rw,nosuid,nodev,relatime,rw,user_id=0,group_id=0,allow_other,max_read=1048576,data=journal";
        let parsed = |text: &str| parse(&[text.into()], there);
        let change = parsed(&format!("{there},remount,ro,exec,acl,nofail")).unwrap();
        let expected =
            Remount { read_only: Some(true), dev: Some(false), suid: Some(false), exec: Some(true) };
        assert_eq!(change, expected);
        assert_eq!(parsed("remount"), Ok(Remount::default()));
        assert!(parsed("remount,noload").unwrap_err().contains("noload"));
        assert!(parsed("remount,data=ordered").unwrap_err().contains("data=ordered"));
        assert!(is_asked(&["a,remount".into()]) && !is_asked(&["remounts".into()]));
    }

    #[test]
    fn further_words_stand_where_options_end() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        let with = |text| with_further(&words(text), &words("-o rw"));
        assert_eq!(with("-o ro -- a b"), words("-o ro -o rw -- a b"));
        assert_eq!(with("a b -o ro"), words("a b -o ro -o rw"));
    }
}
