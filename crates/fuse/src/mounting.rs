//! Getting a connection to the kernel with a directory mounted on it, and letting go of both.
//!
//! Root mounts by mount(2); other users through `fusermount3`, which is setuid root and returns the
//! connection over a socket. The same for unmounting.
//!
//! Does **not** own: what is said over the connection (see [`crate::transport`]).
//!
//! Invariant: every fault says what the person can do about it.
//!
//! Source: kernel Documentation/filesystems/fuse.rst (mount options); fusermount3(1).

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{getegid, geteuid};

use crate::transport::Channel;

/// What holds for a mount as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches of mount(8), one each")]
pub struct MountOptions {
    /// What the table of mounts names as the source: the image.
    pub fs_name: OsString,
    /// What the table shows behind "fuse.".
    pub subtype: String,
    /// Nothing can be changed; the kernel says so by itself.
    pub read_only: bool,
    /// Other users may look, too.
    pub allow_other: bool,
    /// The kernel checks modes, owners and ACLs, as for any file system. Without it, every user with access
    /// to the mount may read everything.
    pub default_permissions: bool,
    /// Device nodes can be opened.
    pub dev: bool,
    /// Set-id bits count.
    pub suid: bool,
    /// Programs can be started.
    pub exec: bool,
    /// Each write is durable when it returns.
    pub sync: bool,
    /// Symbolic links are not followed.
    pub no_symfollow: bool,
    /// The kernel keeps what is written, with sizes and times of its own, and passes it on later: small
    /// writes cost less, and that there is no space for them may be reported by the next write, fsync or
    /// close only.
    pub writeback_cache: bool,
    /// How requests come from the kernel.
    pub transport: Channel,
}

impl MountOptions {
    /// The careful ones: read-only, no devices, no set-id bits, the owner of the mount only. Modes count for
    /// root, whose mount others may use through him; an ordinary user can read the image anyway.
    #[must_use]
    pub fn new(fs_name: impl Into<OsString>) -> Self {
        Self {
            fs_name: fs_name.into(),
            subtype: "extant".to_owned(),
            read_only: true,
            allow_other: false,
            default_permissions: geteuid().is_root(),
            dev: false,
            suid: false,
            exec: true,
            sync: false,
            no_symfollow: false,
            writeback_cache: false,
            transport: Channel::Auto,
        }
    }

    /// The kernel's options and the helper's words for them.
    fn switches(&self) -> (MountFlags, Vec<&'static str>) {
        let (mut flags, mut words) = match self.read_only {
            true => (MountFlags::RDONLY, vec!["ro"]),
            false => (MountFlags::empty(), vec!["rw"]),
        };
        for (is_set, flag, word) in [
            (!self.dev, MountFlags::NODEV, "nodev"),
            (!self.suid, MountFlags::NOSUID, "nosuid"),
            (!self.exec, MountFlags::NOEXEC, "noexec"),
            (self.sync, MountFlags::SYNCHRONOUS, "sync"),
            (self.no_symfollow, MountFlags::NOSYMFOLLOW, "nosymfollow"),
        ] {
            if is_set {
                flags |= flag;
                words.push(word);
            }
        }
        (flags, words)
    }

    /// Options of the fuse file system itself, in both ways of mounting.
    fn words(&self, read_max: usize) -> Vec<String> {
        let all = [(self.allow_other, "allow_other"), (self.default_permissions, "default_permissions")];
        let set = all.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned());
        set.chain([format!("max_read={read_max}")]).collect()
    }
}

/// Why nothing was mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountFault {
    /// The kernel has no FUSE, or a container hides it.
    #[error(
        "there is no /dev/fuse: load the kernel module (`modprobe fuse`), or start the container with `--device /dev/fuse`"
    )]
    NoDevice,
    /// The device's mode keeps us out.
    #[error(
        "/dev/fuse cannot be opened: {0}; it should be open for all users: `chmod 666 /dev/fuse` as root \
         (a container needs `--device /dev/fuse` as well)"
    )]
    DeviceForbidden(io::Error),
    /// The setuid helper is missing.
    #[error("only root can mount without fusermount3: install the package fuse3, or mount as root")]
    NoHelper,
    /// The system's administrator did not allow it.
    #[error(
        "allow_other is not permitted to ordinary users here: leave it out, or have root put the line \
         `user_allow_other` into /etc/fuse.conf"
    )]
    AllowOther,
    /// The directory cannot be mounted on.
    #[error("cannot mount on {}: {reason}", .dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        reason: io::Error,
    },
    /// mount(2) refused.
    #[error("the kernel refuses to mount on {}: {reason}", .dir.display())]
    Kernel {
        /// The directory.
        dir: PathBuf,
        /// Its reason.
        reason: io::Error,
    },
    /// The helper refused.
    #[error("cannot mount on {}: {said}", .dir.display())]
    Helper {
        /// The directory.
        dir: PathBuf,
        /// What it said.
        said: String,
    },
    /// The kernel and the transport do not understand each other.
    #[error("the kernel's FUSE does not answer as it should: {0}")]
    Connection(io::Error),
}

/// Why something is still mounted.
#[derive(Debug, thiserror::Error)]
pub enum UnmountFault {
    /// A file or directory of it is open.
    #[error(
        "{} is in use, by nothing that can be seen from here (as root, `fuser -vm DIR` may show more); end that, or unmount lazily \
         with -l",
        .dir.display()
    )]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// The kernel or the helper refused.
    #[error("cannot unmount {}: {reason}", .dir.display())]
    Refused {
        /// The directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Mounts a new FUSE connection on `dir` (absolute, no symbolic links in it). Processes that use the
/// directory wait until the connection is served. `read_max`: bytes that the kernel reads at a time, at most.
///
/// # Errors
/// See [`MountFault`].
pub(crate) fn mount(dir: &Path, options: &MountOptions, read_max: usize) -> Result<OwnedFd, MountFault> {
    let directory = |reason| MountFault::Directory { dir: dir.to_owned(), reason };
    let metadata = std::fs::metadata(dir).map_err(directory)?;
    if !metadata.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    // Opened with open(2): the helper would do it with the rights of its caller, and threads need connections
    // of their own.
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| {
        match error.kind() {
            // ENODEV and ENXIO: the node is there, the driver is not.
            _ if matches!(error.raw_os_error(), Some(6 | 19)) => MountFault::NoDevice,
            io::ErrorKind::NotFound => MountFault::NoDevice,
            _ => MountFault::DeviceForbidden(error),
        }
    })?;
    if !geteuid().is_root() {
        return mount_by_helper(dir, options, read_max);
    }
    match mount_directly(dir, options, read_max, device.into()) {
        // Root in a container may lack the capability, and the helper has it no more than he.
        Err(MountFault::Kernel { reason, .. })
            if reason.kind() == io::ErrorKind::PermissionDenied && helper().is_some() =>
        {
            mount_by_helper(dir, options, read_max)
        }
        result => result,
    }
}

fn mount_directly(
    dir: &Path,
    options: &MountOptions,
    read_max: usize,
    device: OwnedFd,
) -> Result<OwnedFd, MountFault> {
    let (flags, _) = options.switches();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},subtype={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
        options.subtype
    );
    for word in options.words(read_max) {
        data.push(',');
        data.push_str(&word);
    }
    let refused = |reason| MountFault::Kernel { dir: dir.to_owned(), reason };
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    match rustix::mount::mount(options.fs_name.as_os_str(), dir, "fuse", flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::NODEV) => Err(MountFault::NoDevice),
        Err(error) => Err(refused(error.into())),
    }
}

fn mount_by_helper(dir: &Path, options: &MountOptions, read_max: usize) -> Result<OwnedFd, MountFault> {
    let helper = helper().ok_or(MountFault::NoHelper)?;
    let (_, words) = options.switches();
    let words = words.into_iter().map(str::to_owned).chain(options.words(read_max));
    let mut list = words.collect::<Vec<_>>().join(",").into_bytes();
    for (key, value) in [("fsname", options.fs_name.as_bytes()), ("subtype", options.subtype.as_bytes())] {
        list.extend_from_slice(format!(",{key}=").as_bytes());
        // The helper takes a backslash off whatever follows.
        for &byte in value {
            if matches!(byte, b',' | b'\\') {
                list.push(b'\\');
            }
            list.push(byte);
        }
    }
    let said = |said: String| MountFault::Helper { dir: dir.to_owned(), said };
    let (ours, theirs) = UnixStream::pair().map_err(|error| said(error.to_string()))?;
    let child = Command::new(&helper)
        .arg("-o")
        .arg(OsString::from_vec(list))
        .arg("--")
        .arg(dir)
        // The helper gets the number of the socket, and its own standard input is the one number known in
        // advance.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| said(format!("{}: {error}", helper.display())))?;
    let received = receive_connection(&ours);
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let status = child.wait().map_err(|error| said(error.to_string()))?;
    match received {
        Ok(Some(connection)) => Ok(connection),
        _ if text.contains("user_allow_other") => Err(MountFault::AllowOther),
        Ok(None) if text.trim().is_empty() => Err(said(format!("fusermount3 ended with {status}"))),
        Ok(None) => Err(said(text.trim().to_owned())),
        Err(error) => Err(said(format!("nothing came back from fusermount3: {error}"))),
    }
}

/// The descriptor that the helper sends; `None` when it ended without.
fn receive_connection(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let mut slices = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut connections = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(connections.next())
}

/// `fusermount3`, or its forerunner, which speaks the same.
fn helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Some systems keep it out of an ordinary user's PATH.
    let directories = std::env::split_paths(&path).chain(["/usr/bin", "/bin", "/sbin"].map(PathBuf::from));
    let directories: Vec<PathBuf> = directories.collect();
    ["fusermount3", "fusermount"]
        .iter()
        .flat_map(|name| directories.iter().map(move |directory| directory.join(name)))
        .find(|file| file.is_file())
}

/// Unmounts what is on top of `dir` (absolute). `lazy`: out of the tree at once, gone when its last user is.
///
/// # Errors
/// See [`UnmountFault`].
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), UnmountFault> {
    if geteuid().is_root() {
        let flags = UnmountFlags::NOFOLLOW | if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(dir, flags) {
            Ok(()) => return Ok(()),
            Err(Errno::BUSY) => return Err(UnmountFault::Busy { dir: dir.to_owned() }),
            Err(Errno::PERM) => {}
            Err(error) => {
                return Err(UnmountFault::Refused { dir: dir.to_owned(), reason: error.to_string() });
            }
        }
    }
    unmount_by_helper(dir, lazy)
}

fn unmount_by_helper(dir: &Path, lazy: bool) -> Result<(), UnmountFault> {
    let refused = |reason: String| UnmountFault::Refused { dir: dir.to_owned(), reason };
    let helper = helper().ok_or_else(|| {
        refused("only root can unmount without fusermount3: install the package fuse3".to_owned())
    })?;
    let mut command = Command::new(helper);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| refused(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false if said.contains("busy") => Err(UnmountFault::Busy { dir: dir.to_owned() }),
        // Systems made by debootstrap alone lack the link.
        false if said.contains("/etc/mtab") => {
            Err(refused(format!("{said} (as root: ln -s /proc/self/mounts /etc/mtab)")))
        }
        false => Err(refused(said)),
    }
}

/// May `word` stand among options of a mount, where commas part them?
#[must_use]
pub fn is_plain_word(word: &OsStr) -> bool {
    !word.is_empty()
        && word.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'\\'))
}
