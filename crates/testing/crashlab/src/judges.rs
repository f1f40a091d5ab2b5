//! e2fsck as a judge.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::{Device as _, FileDevice};
use extant_simdisk::SimDisk;
use extant_volume::{FileType, OpenOptions, Volume};

use crate::{Kind, base_image, to_file};

/// Runs `e2fsck -fn` on an image.
///
/// e2fsck 1.47 reads the target of a short symbolic link as block numbers if the link has an attribute whose
/// value is in an EA inode: that value counts in i_blocks, in the kernel's images too. If e2fsck complains
/// about such links, it runs again on a copy in which they have no attributes.
///
/// # Errors
/// The complaints of e2fsck.
pub fn e2fsck_says(path: &Path) -> Result<(), String> {
    let said = ask(path)?;
    let Err(complaint) = said else { return Ok(()) };
    let copy = path.with_extension("without-attributes");
    let again = match copy_without_attributes(path, &copy, &complaint) {
        true => ask(&copy),
        false => Ok(Err(complaint)),
    };
    let _ = std::fs::remove_file(&copy);
    again?.map_err(|said| format!("e2fsck: {said}"))
}

/// Whether the kernel mounts images of this kind for writing. A kernel built without quotas does not mount
/// all of them, and only root mounts.
///
/// # Panics
/// The image cannot be made.
#[must_use]
pub fn kernel_mounts(kind: Kind) -> bool {
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("base");
    let disk = SimDisk::from_image(base_image(kind));
    to_file(&disk, &path).expect("scratch can be written");
    extant_testkit::is_root() && extant_testkit::LoopMount::new(&path, "noatime").is_ok()
}

fn ask(path: &Path) -> Result<Result<(), String>, String> {
    let output =
        extant_testkit::command("e2fsck").arg("-fn").arg(path).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}

/// Makes a copy without the attributes of the short links that a complaint names. Returns whether there is
/// such a link.
fn copy_without_attributes(path: &Path, copy: &Path, complaint: &str) -> bool {
    let named: BTreeSet<u32> = complaint
        .lines()
        .filter(|line| line.contains("has illegal block(s)") || line.contains("i_blocks is"))
        .filter_map(|line| line.strip_prefix("Inode ")?.split([' ', ',']).next()?.parse().ok())
        .collect();
    let open = |path| -> Option<Volume> {
        let device = FileDevice::open(path, true).ok()?;
        Volume::open(Arc::new(device), &OpenOptions::default()).ok()
    };
    // Opening a dirty image repairs it and would hide damage from e2fsck. So only a clean image is copied.
    if named.is_empty() || !is_closed(path) || std::fs::copy(path, copy).is_err() {
        return false;
    }
    let Some(volume) = open(copy) else { return false };
    let mut is_any = false;
    for ino in named.into_iter().map(Ino) {
        let Ok(inode) = volume.inode(ino) else { continue };
        if inode.kind() != FileType::Symlink || inode.size() >= 60 {
            continue;
        }
        let Ok(names) = volume.attributes().xattr_names(&inode) else { return false };
        is_any |= !names.is_empty();
        if names.iter().any(|name| volume.attributes().remove_xattr(ino, name).is_err()) {
            return false;
        }
    }
    volume.close().is_ok() && is_any
}

fn is_closed(path: &Path) -> bool {
    let mut bytes = [0; extant_ondisk::superblock::SIZE];
    let read = FileDevice::open(path, false)
        .map(|device| device.read_at(extant_ondisk::superblock::OFFSET, &mut bytes));
    let sb = read.is_ok_and(|read| read.is_ok()).then(|| extant_ondisk::Superblock::decode(&bytes));
    sb.and_then(Result::ok).is_some_and(|sb| {
        sb.state & extant_ondisk::superblock::STATE_CLEAN != 0
            && !sb.features.has_incompat(extant_ondisk::Features::RECOVER)
    })
}

/// Whether the superblock is half old and half new. The engine reads such a superblock; the kernel requires
/// e2fsck first.
#[must_use]
pub fn superblock_is_torn(disk: &SimDisk) -> bool {
    let mut bytes = [0; extant_ondisk::superblock::SIZE];
    disk.image().read(extant_ondisk::superblock::OFFSET, &mut bytes);
    extant_ondisk::Superblock::decode(&bytes).is_ok_and(|sb| !sb.verify())
}
