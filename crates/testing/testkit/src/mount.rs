//! Mounts of an image by the kernel, the external judge of everything except metadata consistency.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::tools::{command, not_root, output_of, run, story};

/// An image mounted through a loop device; unmounted on drop.
#[derive(Debug)]
pub struct LoopMount {
    dir: TempDir,
}

/// The kernel or `mount` refused.
#[derive(Debug, Clone)]
pub struct MountError {
    /// The command line, its exit status and its output.
    pub text: String,
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for MountError {}

impl LoopMount {
    /// Mounts `image` as ext4 with `-o loop,OPTIONS` on a new directory: `"ro"`, `"ro,noload"`, `"rw"`.
    ///
    /// # Errors
    /// The output of `mount`. The usual reasons: not root, no free loop device, a block size above the page
    /// size, a feature that this kernel does not know.
    ///
    /// # Panics
    /// A temporary directory cannot be created, or `mount` cannot be started.
    pub fn new(image: &Path, options: &str) -> Result<Self, MountError> {
        Self::of(image, &format!("loop,{options}"))
    }

    /// Mounts a block device as ext4 with `-o OPTIONS` on a new directory.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn device(device: &LoopDevice, options: &str) -> Result<Self, MountError> {
        Self::of(device.path(), options)
    }

    fn of(source: &Path, options: &str) -> Result<Self, MountError> {
        let dir =
            tempfile::Builder::new().prefix("extant-mount-").tempdir().expect("a directory to mount on");
        let mut command = command("mount");
        command.args(["-t", "ext4", "-o"]).arg(options).arg(source).arg(dir.path());
        let output = output_of(&mut command);
        if output.status.success() {
            Ok(Self { dir })
        } else {
            Err(MountError { text: story(&command, &output) })
        }
    }

    /// Mounts read-only (`-o loop,ro`).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn read_only(image: &Path) -> Result<Self, MountError> {
        Self::new(image, "ro")
    }

    /// The root directory of the file system.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Another process may still hold a file open for a moment (a scanner, a child that is exiting). Try
        // again before falling back to a lazy unmount, which leaves the loop device busy until the last user
        // has closed it.
        for attempt in 0..20 {
            let output = output_of(command("umount").arg(self.dir.path()));
            if output.status.success() {
                return;
            }
            if attempt == 0 {
                eprintln!("umount {}: {}", self.path().display(), String::from_utf8_lossy(&output.stderr));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = command("umount").arg("-l").arg(self.dir.path()).status();
    }
}

/// A file attached to a writable loop device. Dropping it writes the device's cache out and detaches the
/// file.
///
/// After the drop, the file has everything that was written to the device, even if the device is still open
/// elsewhere. This needs an explicit sync: the kernel writes a device's cache out only when its *last* user
/// closes it, and that may be any scan of devices on the machine.
///
/// `mount -o loop,ro` attaches read-only, and the kernel then refuses to replay a journal. If the device is
/// attached separately, the kernel replays before it mounts read-only.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `file` to the next free loop device.
    ///
    /// # Errors
    /// The output of `losetup`; usually: not root.
    ///
    /// # Panics
    /// `losetup` cannot be started.
    pub fn attach(file: &Path) -> Result<Self, MountError> {
        let mut command = command("losetup");
        command.args(["--find", "--show"]).arg(file);
        let output = output_of(&mut command);
        let path = PathBuf::from(OsStr::from_bytes(output.stdout.trim_ascii()));
        if output.status.success() && path.is_absolute() {
            Ok(Self { path })
        } else {
            Err(MountError { text: story(&command, &output) })
        }
    }

    /// The path of the device, `/dev/loop0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = std::fs::File::open(&self.path).and_then(|device| device.sync_all()) {
            eprintln!("sync {}: {error}", self.path.display());
        }
        // If it is still mounted (a lazy unmount), the kernel detaches it when the last user has closed it.
        let output = output_of(command("losetup").arg("--detach").arg(&self.path));
        if !output.status.success() {
            eprintln!("losetup -d {}: {}", self.path.display(), String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Features that describe an image's history, that mke2fs does not make, or that delay a mount.
const NOT_PROBED: [&str; 5] = ["needs_recovery", "orphan_present", "shared_blocks", "snapshot_bitmap", "mmp"];

/// Whether the kernel can mount file systems with the features and the block size of `image` for this
/// process. It mounts one made by `mke2fs`, so the answer is about the machine: if it is true, `image` must
/// mount. Prints the reason if it is false.
///
/// # Panics
/// `mke2fs`, `dumpe2fs` or a temporary directory is missing, or `image` has no superblock.
#[must_use]
pub fn kernel_mounts_kind_of(image: &Path) -> bool {
    if not_root() {
        return false;
    }
    let head = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]).stdout;
    let head = String::from_utf8_lossy(&head);
    let field = |name: &str| {
        let value =
            head.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name}"));
        value.trim().to_owned()
    };
    let wanted = field("Filesystem features:");
    let features = wanted.split_whitespace().filter(|feature| !NOT_PROBED.contains(feature));
    let features = std::iter::once("none").chain(features).collect::<Vec<_>>().join(",");
    let block_size = field("Block size:");
    let kib = block_size.parse::<u64>().expect("a number") * 4;
    let can = kernel_mounts(kib, &["-b", &block_size, "-I", &field("Inode size:"), "-O", &features]);
    if !can {
        println!("skipped: this kernel does not mount block size {block_size} with {wanted}");
    }
    can
}

/// Whether the kernel can mount an ext4 of this block size (in bytes) for this process. It mounts one made by
/// `mke2fs`.
///
/// # Panics
/// `mke2fs` or a temporary directory is missing.
#[must_use]
pub fn kernel_mounts_block_size(block_size: u64) -> bool {
    if not_root() {
        return false;
    }
    let kib = (block_size * 1024).max(8 << 20) / 1024;
    kernel_mounts(kib, &["-t", "ext4", "-O", "^has_journal", "-b", &block_size.to_string()])
}

/// Whether the kernel mounts an image of this size that `mke2fs` makes with these options.
fn kernel_mounts(kib: u64, options: &[&str]) -> bool {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let image = dir.path().join("probe.img");
    let size = format!("{kib}K");
    let args = ["-q", "-F"].iter().chain(options).map(OsStr::new);
    run("mke2fs", args.chain([image.as_os_str(), OsStr::new(&size)]));
    LoopMount::read_only(&image).is_ok()
}
