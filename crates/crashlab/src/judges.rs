//! e2fsck as a judge.

use std::path::Path;
use std::sync::Arc;

use base::Ino;
use device::FileDevice;
use simdisk::SimDisk;
use volume::{FileType, OpenOptions, Volume};

/// What `e2fsck -fn` has to say against an image.
///
/// # Errors
/// Its words.
pub fn e2fsck_says(path: &Path) -> Result<(), String> {
    let output =
        testkit::command("e2fsck").arg("-fn").arg(path).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() || is_about_short_links(path, &said) {
        return Ok(());
    }
    Err(format!("e2fsck: {said}"))
}

/// Does it complain of nothing but the targets of short symbolic links? e2fsck 1.47 takes the text for block numbers when such
/// a link has an attribute whose value is in an inode of its own: that counts in i_blocks, in the kernel's images too.
fn is_about_short_links(path: &Path, said: &str) -> bool {
    let Ok(device) = FileDevice::open(path, false) else { return false };
    let options = OpenOptions::default();
    let Ok(volume) = Volume::open_read_only(Arc::new(device), &options) else {
        return false;
    };
    let is_short_link = |ino: u32| {
        let inode = volume.inode(Ino(ino));
        inode.is_ok_and(|inode| inode.kind() == FileType::Symlink && inode.size() < 60)
    };
    let number = |text: &str| text.split([' ', '.']).find_map(|word| word.parse().ok());
    let mut complaints = 0;
    said.lines().all(|line| {
        let of_inode = line.strip_prefix("Inode ").filter(|rest| rest.contains("has illegal block(s)"));
        if let Some(rest) = of_inode {
            complaints += 1;
            return number(rest).is_some_and(is_short_link);
        }
        let is_noise = ["Pass ", "Illegal block #", "e2fsck "].iter().any(|noise| line.starts_with(noise));
        line.is_empty()
            || is_noise
            || line.contains("WARNING: Filesystem still has errors")
            || line.contains(" blocks")
    }) && complaints > 0
}

/// Is the superblock half old and half new? We read such a one; the kernel wants e2fsck to.
#[must_use]
pub fn superblock_is_torn(disk: &SimDisk) -> bool {
    let mut bytes = [0; ondisk::superblock::SIZE];
    disk.image().read(ondisk::superblock::OFFSET, &mut bytes);
    ondisk::Superblock::decode(&bytes).is_ok_and(|sb| !sb.verify())
}
