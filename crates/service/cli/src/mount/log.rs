//! Messages of a mount: on standard error, and in the system's log for the time after the process has left
//! the terminal.
//!
//! ```text
//!   damage, errors, warnings ---> standard error (of a background process: until it leaves the terminal)
//!   these, and mounted, unmounted ---> the system's log, or a file (-o log=FILE)
//!
//!   log=syslog, and the default in the background:
//!       /run/systemd/journal/socket (journald), else /dev/log (syslog), else no log
//!   the default in the foreground: no log; as a service of systemd, whose standard error is journald:
//!       journald, with levels, instead of standard error
//! ```
//!
//! Invariants
//! 1. Nothing waits for a log: a full log loses messages, but does not delay the mount.
//! 2. Every read of a file can find damage, so the log takes at most [`DAMAGES_MAX`] messages in
//!    [`DAMAGES_TIME`], and reports the number of omitted ones.
//!
//! Source: systemd's "Native Journal Protocol"; systemd.exec(5), JOURNAL_STREAM; RFC 3164 and syslog(3).

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::options::LogTo;
use crate::inspect::format::iso_seconds;
use crate::voice::say;

const DAMAGES_MAX: u32 = 100;
const DAMAGES_TIME: Duration = Duration::from_secs(60);
const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
/// Facility "daemon" of syslog(3), as encoded in messages.
const DAEMON: u8 = 3 << 3;
/// Maximum length of a message in bytes; datagrams cannot be much larger.
const TEXT_MAX: usize = 8000;

/// Severity of a message, with the numbers of syslog(3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Damage and lost data.
    Error = 3,
    /// A condition that deserves attention.
    Warning = 4,
    /// Mounted, unmounted, and the like.
    Info = 6,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

enum Sink {
    Nowhere,
    Journal(UnixDatagram),
    Syslog(UnixDatagram),
    File(File),
}

/// Damage messages in one time span.
struct Span {
    begun: Instant,
    said: u32,
    left_out: u32,
}

pub(super) struct Log {
    image: String,
    sink: Sink,
    /// The log is where standard error goes as well: each message goes there once, with its level.
    is_stderr: bool,
    damages: Mutex<Span>,
}

impl Log {
    /// Opens the log that the options name.
    ///
    /// # Errors
    /// The file cannot be opened, or `log=syslog` was given and there is no system log; as a message.
    pub(super) fn open(to: &LogTo, image: String, is_daemon: bool) -> Result<Self, String> {
        let is_stderr = *to == LogTo::Default && !is_daemon && is_journald(std::io::stderr());
        let sink = match to {
            LogTo::Nowhere => Sink::Nowhere,
            LogTo::Default if !is_daemon && !is_stderr => Sink::Nowhere,
            LogTo::Default => system().unwrap_or(Sink::Nowhere),
            LogTo::System => system().ok_or_else(|| {
                format!("-o log=syslog: neither {JOURNAL} (journald) nor {SYSLOG} (syslog) answers; log=FILE writes to a file")
            })?,
            LogTo::File(path) => Sink::File(file(path).map_err(|error| format!("-o log={}: {error}", path.display()))?),
        };
        let damages = Mutex::new(Span { begun: Instant::now(), said: 0, left_out: 0 });
        let is_stderr = is_stderr && !matches!(sink, Sink::Nowhere);
        Ok(Self { image, sink, is_stderr, damages })
    }

    /// Prints a message about the image, and logs it.
    pub(super) fn say(&self, level: Level, text: &str) {
        if level != Level::Info && !self.is_stderr {
            say!("{}: {text}", self.image);
        }
        self.record(level, text);
    }

    /// Logs a message without printing it.
    pub(super) fn record(&self, level: Level, text: &str) {
        let mut text = format!("{}: {}", self.image, text.replace('\n', " "));
        if text.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
        }
        let (number, process) = (level as u8, std::process::id());
        let _ = match &self.sink {
            Sink::Nowhere => Ok(()),
            Sink::Journal(socket) => {
                let fields = format!(
                    "PRIORITY={number}\nSYSLOG_FACILITY={}\nSYSLOG_IDENTIFIER=extant\nSYSLOG_PID={process}\nMESSAGE={text}\n",
                    DAEMON >> 3
                );
                socket.send(fields.as_bytes()).map(drop)
            }
            Sink::Syslog(socket) => {
                socket.send(format!("<{}>extant[{process}]: {text}", DAEMON | number).as_bytes()).map(drop)
            }
            Sink::File(file) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                let time = iso_seconds(now.as_secs().cast_signed());
                // One write, so that lines of several mounts do not mix.
                let mut file = file;
                file.write_all(format!("{time} extant[{process}]: {}: {text}\n", level.name()).as_bytes())
            }
        };
    }

    /// Where a message goes when the process ends at once, and what stands before it there: its time is
    /// missing in a file.
    pub(super) fn emergency(&self) -> Option<(BorrowedFd<'_>, Vec<u8>)> {
        let process = std::process::id();
        let (fd, prefix) = match &self.sink {
            Sink::Nowhere => return None,
            Sink::Journal(socket) => (
                socket.as_fd(),
                format!("PRIORITY=3\nSYSLOG_IDENTIFIER=extant\nSYSLOG_PID={process}\nMESSAGE="),
            ),
            Sink::Syslog(socket) => (socket.as_fd(), format!("<{}>extant[{process}]: ", DAEMON | 3)),
            Sink::File(file) => (file.as_fd(), format!("extant[{process}]: error: ")),
        };
        Some((fd, prefix.into_bytes()))
    }

    /// Reports damage, unless there was too much in the last time span.
    pub(super) fn damage(&self, text: &str) {
        let mut span = self.span();
        let left_out = match span.begun.elapsed() > DAMAGES_TIME {
            true => {
                std::mem::replace(&mut *span, Span { begun: Instant::now(), said: 0, left_out: 0 }).left_out
            }
            false => 0,
        };
        let is_too_much = span.said >= DAMAGES_MAX;
        let is_first_left_out = is_too_much && span.left_out == 0;
        match is_too_much {
            true => span.left_out += 1,
            false => span.said += 1,
        }
        drop(span);
        self.say_left_out(left_out);
        if !is_too_much {
            self.say(Level::Error, text);
        } else if is_first_left_out {
            self.say(Level::Error, "more of this is not shown for a minute; run `extant check` on the image");
        }
    }

    /// Reports the number of omitted messages, at the end.
    pub(super) fn finish(&self) {
        let left_out = std::mem::take(&mut self.span().left_out);
        self.say_left_out(left_out);
    }

    fn say_left_out(&self, left_out: u32) {
        if left_out > 0 {
            self.say(Level::Error, &format!("{left_out} more messages were left out"));
        }
    }

    fn span(&self) -> MutexGuard<'_, Span> {
        self.damages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Did systemd connect this descriptor to journald?
fn is_journald(fd: impl AsFd) -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(fd).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Connects to journald, or else to syslog.
fn system() -> Option<Sink> {
    let connected = |path: &str| {
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(path).ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(socket)
    };
    connected(JOURNAL).map(Sink::Journal).or_else(|| connected(SYSLOG).map(Sink::Syslog))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(sink: Sink) -> Log {
        let damages = Mutex::new(Span { begun: Instant::now(), said: 0, left_out: 0 });
        Log { image: "a.img".to_owned(), sink, is_stderr: false, damages }
    }

    #[test]
    fn logs_get_what_their_protocols_ask_for() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut text = [0; 1024];
        let mut received = |log: &Log| {
            log.record(Level::Error, "inode 12\nis damaged");
            let len = theirs.recv(&mut text).unwrap();
            String::from_utf8_lossy(&text[..len]).into_owned()
        };
        let process = std::process::id();
        let syslog = received(&with(Sink::Syslog(ours.try_clone().unwrap())));
        assert_eq!(syslog, format!("<27>extant[{process}]: a.img: inode 12 is damaged"));
        let journal = received(&with(Sink::Journal(ours)));
        assert!(journal.starts_with("PRIORITY=3\n"), "{journal}");
        assert!(journal.ends_with("\nMESSAGE=a.img: inode 12 is damaged\n"), "{journal}");
    }

    #[test]
    fn a_file_gets_lines_and_not_more_than_enough() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let to = LogTo::File(file.path().to_owned());
        let log = Log::open(&to, "a.img".to_owned(), true).unwrap();
        for number in 0..DAMAGES_MAX + 10 {
            log.damage(&format!("damage {number}"));
        }
        log.finish();
        let text = std::fs::read_to_string(file.path()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len() as u32, DAMAGES_MAX + 2, "{text}");
        assert!(lines[0].ends_with(": error: a.img: damage 0") && lines[0].contains('T'), "{}", lines[0]);
        assert!(text.ends_with("10 more messages were left out\n"), "{text}");
        let none = LogTo::File("/nowhere/log".into());
        assert!(Log::open(&none, String::new(), true).is_err_and(|why| why.contains("log=/nowhere/log")));
    }
}
