//! A file system in memory, mounted by the kernel as ext4, for as long as the studies run.
//!
//! The image is a sparse file in `/dev/shm`, made by this project's mkfs. `mount -o loop` attaches it to a
//! loop device, which the kernel detaches when the file system is unmounted.

use std::path::{Path, PathBuf};
use std::process::Command;

use extant_image::options::FormatOptions;
use extant_lab::LabFault;
use extant_lab::ground::{Ground, Site};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::super::usage;
use crate::exit;

/// Unmounts and removes the file system when it is dropped.
pub(super) struct KernelMount {
    folder: PathBuf,
    place: PathBuf,
    signals: Handle,
}

impl KernelMount {
    /// Makes and mounts a file system of this size.
    ///
    /// # Errors
    /// Not root; or it cannot be made or mounted.
    pub(super) fn new(size_bytes: u64) -> Result<Self, LabFault> {
        if !rustix::process::geteuid().is_root() {
            return Err(usage(
                "--kernel without DIR mounts a file system, which needs root: run it with sudo, or name a \
                 directory on a mounted ext4 (--kernel DIR)"
                    .to_owned(),
            ));
        }
        let made = tempfile::Builder::new().prefix("extant-lab-").tempdir_in("/dev/shm");
        let made = made.map_err(|fault| LabFault::Device(format!("/dev/shm: {fault}")))?;
        let image = made.path().join("image");
        // Sparse: only written blocks take memory.
        Ground::fresh(&Site::File(image.clone()), size_bytes, &FormatOptions::default())?;
        let folder = made.path().join("mounted");
        std::fs::create_dir(&folder)
            .map_err(|fault| LabFault::Device(format!("{}: {fault}", folder.display())))?;
        system(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&image).arg(&folder))?;
        let place = made.keep();
        let failed = |fault: std::io::Error| LabFault::Device(format!("signals: {fault}"));
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|fault| {
            clean(&place, &folder);
            failed(fault)
        })?;
        let this = Self { folder: folder.clone(), place: place.clone(), signals: signals.handle() };
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                clean(&place, &folder);
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        });
        Ok(this)
    }

    /// The root of the mounted file system.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        self.signals.close();
        clean(&self.place, &self.folder);
    }
}

/// Unmounts and removes everything. Lazily, because workers may still use it after a signal.
fn clean(place: &Path, folder: &Path) {
    if system(Command::new("umount").arg(folder)).is_err() {
        let _ = system(Command::new("umount").arg("-l").arg(folder));
    }
    let _ = std::fs::remove_file(place.join("image"));
    let _ = std::fs::remove_dir(folder);
    let _ = std::fs::remove_dir(place);
}

fn system(command: &mut Command) -> Result<(), LabFault> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|fault| LabFault::Device(format!("{name}: {fault}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(LabFault::Device(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
