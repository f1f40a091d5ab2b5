//! A tree as the engine reads it, with contents, for comparisons.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_device::Device;
use extant_volume::{Cursor, FileType, OpenOptions, Volume};

/// Every path with its metadata and a hash of its content. Inode numbers are replaced by the first path that
/// has them, so that a tree with other inode numbers is equal.
pub(crate) type Tree = BTreeMap<Vec<u8>, String>;

/// Reads the tree of a device.
pub(crate) fn tree_of(device: Arc<dyn Device>) -> Result<Tree, String> {
    let volume =
        Volume::open_read_only(device, &OpenOptions::default()).map_err(|fault| fault.to_string())?;
    let mut tree = Tree::new();
    let mut first_paths = BTreeMap::new();
    let mut left = vec![(Vec::new(), volume.root().map_err(|fault| fault.to_string())?)];
    while let Some((path, inode)) = left.pop() {
        let at = |fault: &dyn std::fmt::Display| format!("{}: {fault}", path.escape_ascii());
        let stat = volume.attributes().stat(&inode);
        let mut content = DefaultHasher::new();
        match stat.kind {
            FileType::Directory => {
                let mut names = Vec::new();
                let mut damage = None;
                volume
                    .names()
                    .read_dir(
                        &inode,
                        Cursor::default(),
                        &mut |entry| {
                            names.push(entry.name.to_vec());
                            ControlFlow::Continue(())
                        },
                        &mut |fault| damage = Some(fault.to_string()),
                    )
                    .map_err(|fault| at(&fault))?;
                if let Some(damage) = damage {
                    return Err(at(&damage));
                }
                names.sort();
                for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
                    let below = volume.names().lookup(&inode, &name).map_err(|fault| at(&fault))?;
                    left.push(([&path[..], b"/", &name].concat(), below));
                }
                let up = volume.names().lookup(&inode, b"..").map_err(|fault| at(&fault))?;
                content.write_u32(u32::from(up.ino() == inode.ino()));
            }
            FileType::Regular => {
                let mut buf = vec![0; 64 << 10];
                let mut offset = 0;
                loop {
                    let got = volume.files().read(&inode, offset, &mut buf).map_err(|fault| at(&fault))?;
                    if got == 0 {
                        break;
                    }
                    content.write(&buf[..got]);
                    offset += got as u64;
                }
            }
            FileType::Symlink => {
                content.write(&volume.files().read_link(&inode).map_err(|fault| at(&fault))?);
            }
            _ => {}
        }
        for attribute in volume.attributes().xattrs(&inode).map_err(|fault| at(&fault))? {
            content.write(&attribute.name);
            content.write(&attribute.value);
        }
        let first = first_paths.entry(stat.ino).or_insert_with(|| path.clone()).clone();
        let size = if stat.kind == FileType::Directory { 0 } else { stat.size };
        let line = format!(
            "{:?} {:o} {} {} {} {size} {:?} {:?} {:?} {:x}",
            stat.kind,
            stat.mode,
            stat.uid,
            stat.gid,
            stat.links,
            stat.mtime,
            stat.device,
            String::from_utf8_lossy(&first),
            content.finish()
        );
        tree.insert(path, line);
    }
    Ok(tree)
}
