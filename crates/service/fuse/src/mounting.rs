//! Mounting and unmounting.
//!
//! Root uses mount(2) and umount2(2). Other users use `fusermount3`, which is setuid root, and passes the
//! connection (a descriptor of /dev/fuse) over a socket.
//!
//! Does **not** own: requests on the connection (see [`crate::transport`]).
//!
//! Invariant: the message of each fault that the user can remedy says how.
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

use crate::transport::Shown;

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Channel {
    /// As `Rings` for a read-write mount, since rings are much faster for several clients. A read-only mount
    /// uses /dev/fuse, since only there large reads are spliced.
    #[default]
    Auto,
    /// /dev/fuse.
    Device,
    /// io_uring, if the kernel offers it (parameter `enable_uring` of its module `fuse`); otherwise
    /// /dev/fuse.
    Rings,
}

/// Whether the kernel buffers writes, with sizes and times of its own, and writes them back later. Small
/// writes cost much less. But the kernel does not report how much dirty data it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WritebackCache {
    /// If the amount of dirty data is bounded, and the file system has space for eight times this amount when
    /// it is mounted. Never without [`tracks_opens`](crate::Serve::tracks_opens).
    #[default]
    Auto,
    /// Always. If there is no space for dirty data, this may be reported only by the next write, fsync or
    /// close.
    Always,
    /// Each write(2) is a request.
    Never,
}

/// Options of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "switches of mount(8), one each")]
pub struct MountOptions {
    /// The source in /proc/mounts: the image.
    pub fs_name: OsString,
    /// The type in /proc/mounts after "fuse.".
    pub subtype: String,
    /// The kernel refuses changes.
    pub read_only: bool,
    /// Other users have access, too.
    pub allow_other: bool,
    /// The kernel checks modes, owners and ACLs. Without this, each user with access to the mount has access
    /// to all files.
    pub default_permissions: bool,
    /// Device nodes can be opened.
    pub dev: bool,
    /// Set-id bits have an effect.
    pub suid: bool,
    /// Programs can be executed.
    pub exec: bool,
    /// Each write is durable when it returns.
    pub sync: bool,
    /// Symbolic links are not followed.
    pub no_symfollow: bool,
    /// Whether the kernel buffers writes.
    pub writeback_cache: WritebackCache,
    /// How requests come from the kernel.
    pub transport: Channel,
    /// Owners and permissions in place of those on disk.
    pub shown: Shown,
}

impl MountOptions {
    /// The defaults: read-only, no devices, no set-id bits, access for the mounting user only. Permissions
    /// are checked if root mounts, because other users can reach the mount through programs of root; an
    /// ordinary user can read the image anyway.
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
            writeback_cache: WritebackCache::Auto,
            transport: Channel::Auto,
            shown: Shown::default(),
        }
    }

    /// The flags of mount(2), and the same as options of fusermount3.
    fn mount_flags(&self) -> (MountFlags, Vec<&'static str>) {
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

    /// Options of the file system type fuse, the same for mount(2) and fusermount3.
    fn fuse_options(&self, read_max: usize) -> Vec<String> {
        let all = [(self.allow_other, "allow_other"), (self.default_permissions, "default_permissions")];
        let set = all.iter().filter(|(is_set, _)| *is_set).map(|(_, word)| (*word).to_owned());
        set.chain([format!("max_read={read_max}")]).collect()
    }
}

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountFault {
    /// There is no /dev/fuse, or no driver for it.
    #[error(
        "there is no /dev/fuse: load the kernel module (`modprobe fuse`), or start the container with \
         `--device /dev/fuse`"
    )]
    NoDevice,
    /// /dev/fuse cannot be opened, for example because of its mode.
    #[error(
        "/dev/fuse cannot be opened: {0}; make it accessible: `chmod 666 /dev/fuse` as root \
         (a container needs `--device /dev/fuse` as well)"
    )]
    DeviceForbidden(io::Error),
    /// An ordinary user mounts, and fusermount3 is missing.
    #[error("only root can mount without fusermount3: install the package fuse3, or mount as root")]
    NoHelper,
    /// The configuration of fusermount3 forbids `allow_other`.
    #[error(
        "allow_other is not permitted for ordinary users: omit it, or add the line `user_allow_other` to \
         /etc/fuse.conf as root"
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
    /// mount(2) failed.
    #[error("the kernel refuses to mount on {}: {reason}", .dir.display())]
    Kernel {
        /// The directory.
        dir: PathBuf,
        /// The error of mount(2).
        reason: io::Error,
    },
    /// fusermount3 failed.
    #[error("cannot mount on {}: {message}", .dir.display())]
    Helper {
        /// The directory.
        dir: PathBuf,
        /// Its message.
        message: String,
    },
    /// The negotiation of the protocol failed.
    #[error("cannot start the FUSE connection: {0}")]
    Connection(io::Error),
}

/// Why an unmount failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountFault {
    /// A process uses the mount: an open file, or a working directory.
    #[error(
        "{dir} is busy, and this user can see no process that uses it; find the process as root (`fuser -vm \
         {dir}`) and end it, or unmount lazily with -l",
        dir = .dir.display()
    )]
    Busy {
        /// The directory.
        dir: PathBuf,
    },
    /// umount2(2) or fusermount3 failed.
    #[error("cannot unmount {}: {reason}", .dir.display())]
    Refused {
        /// The directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Mounts a new FUSE connection on `dir` (an absolute path without symbolic links). Processes that access the
/// directory wait until the connection is served. `read_max`: the size of the largest read, in bytes.
///
/// # Errors
/// See [`MountFault`].
pub(crate) fn mount(dir: &Path, options: &MountOptions, read_max: usize) -> Result<OwnedFd, MountFault> {
    let directory = |reason| MountFault::Directory { dir: dir.to_owned(), reason };
    let metadata = std::fs::metadata(dir).map_err(directory)?;
    if !metadata.is_dir() {
        return Err(directory(io::ErrorKind::NotADirectory.into()));
    }
    // Opened here even if fusermount3 mounts, which opens the device itself with the user's rights: so a
    // failure is found first, and gets a precise message.
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").map_err(|error| {
        match error.kind() {
            // ENXIO and ENODEV: the device node exists, but not the driver.
            _ if matches!(error.raw_os_error(), Some(6 | 19)) => MountFault::NoDevice,
            io::ErrorKind::NotFound => MountFault::NoDevice,
            _ => MountFault::DeviceForbidden(error),
        }
    })?;
    if !geteuid().is_root() {
        return mount_by_helper(dir, options, read_max);
    }
    match mount_directly(dir, options, read_max, device.into()) {
        // Root in a container may lack CAP_SYS_ADMIN. fusermount3 lacks it, too, but its error is more
        // precise.
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
    let (flags, _) = options.mount_flags();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},subtype={}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
        options.subtype
    );
    for word in options.fuse_options(read_max) {
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
    let (_, words) = options.mount_flags();
    let words = words.into_iter().map(str::to_owned).chain(options.fuse_options(read_max));
    let mut list = words.collect::<Vec<_>>().join(",").into_bytes();
    for (key, value) in [("fsname", options.fs_name.as_bytes()), ("subtype", options.subtype.as_bytes())] {
        list.extend_from_slice(format!(",{key}=").as_bytes());
        // In these values fusermount3 removes a backslash before any byte.
        for &byte in value {
            if matches!(byte, b',' | b'\\') {
                list.push(b'\\');
            }
            list.push(byte);
        }
    }
    let message = |message: String| MountFault::Helper { dir: dir.to_owned(), message };
    let (ours, theirs) = UnixStream::pair().map_err(|error| message(error.to_string()))?;
    let child = Command::new(&helper)
        .arg("-o")
        .arg(OsString::from_vec(list))
        .arg("--")
        .arg(dir)
        // fusermount3 gets the number of the socket's descriptor. That of standard input is known in advance.
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| message(format!("{}: {error}", helper.display())))?;
    let received = receive_connection(&ours);
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let status = child.wait().map_err(|error| message(error.to_string()))?;
    match received {
        Ok(Some(connection)) => Ok(connection),
        _ if text.contains("user_allow_other") => Err(MountFault::AllowOther),
        Ok(None) if text.trim().is_empty() => Err(message(format!("fusermount3 ended with {status}"))),
        Ok(None) => Err(message(text.trim().to_owned())),
        Err(error) => Err(message(format!("fusermount3 passed no connection: {error}"))),
    }
}

/// Receives the descriptor that fusermount3 sends; `None` if it ended without sending one.
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

/// The path of `fusermount3`, or of its predecessor `fusermount`, which has the same interface.
#[must_use]
pub fn helper() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // On some systems its directory is not in the PATH of ordinary users.
    let directories = std::env::split_paths(&path).chain(["/usr/bin", "/bin", "/sbin"].map(PathBuf::from));
    let directories: Vec<PathBuf> = directories.collect();
    ["fusermount3", "fusermount"]
        .iter()
        .flat_map(|name| directories.iter().map(move |directory| directory.join(name)))
        .find(|file| file.is_file())
}

/// Unmounts the topmost mount on `dir` (an absolute path). `lazy`: detaches it from the tree at once, and
/// ends it when the last process has stopped using it.
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
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    match output.status.success() {
        true => Ok(()),
        false if message.contains("busy") => Err(UnmountFault::Busy { dir: dir.to_owned() }),
        // Minimal systems (debootstrap) lack the symbolic link /etc/mtab.
        false if message.contains("/etc/mtab") => {
            Err(refused(format!("{message} (as root: ln -s /proc/self/mounts /etc/mtab)")))
        }
        false => Err(refused(message)),
    }
}

/// May `word` be the value of a mount option without escapes? That is, printable ASCII without commas and
/// backslashes.
#[must_use]
pub fn is_plain_value(word: &OsStr) -> bool {
    !word.is_empty()
        && word.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b',' | b'\\'))
}
