//! Attributes written by the kernel, listed by the kernel and here: same names, order and values.

#[path = "../../mapping/tests/common/mod.rs"]
mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::Image;
use extant_base::{Ino, Pblk};
use extant_buffer::ReadFault;
use extant_testkit::LoopMount;
use extant_xattr::{Places, ValueInodes};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lsetxattr};

impl ValueInodes for Image {
    fn value(&self, ino: Ino, _: u32) -> Result<Vec<u8>, ReadFault> {
        Ok(self.read(u64::from(ino.0)))
    }
}

/// Names and values, as the kernel returns them.
fn kernel_attrs(path: &Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut names = vec![0; 64 << 10];
    let len = llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 64 << 10];
        let len = lgetxattr(path, name, &mut value[..]).unwrap();
        value[..len].to_vec()
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

#[test]
fn attributes_are_returned_as_by_the_kernel() {
    if extant_testkit::not_root() {
        return;
    }
    for features in ["ea_inode,metadata_csum", "^metadata_csum", "inline_data"] {
        let scratch = extant_testkit::scratch();
        let image = scratch.path().join("image");
        let fixed = ["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-O", features];
        extant_testkit::run("mke2fs", fixed.into_iter().chain([image.to_str().unwrap(), "32M"]));
        let (inos, expected);
        {
            let mount = LoopMount::new(&image, "rw").unwrap();
            let dir = mount.path().join("dir");
            let paths = ["none", "few", "many"].map(|name| dir.join(name));
            std::fs::create_dir(&dir).unwrap();
            for path in &paths {
                std::fs::write(path, "some bytes").unwrap();
            }
            let set = |path: &Path, name: &str, value: &[u8]| {
                lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
            };
            set(&paths[1], "user.b", b"1");
            set(&paths[1], "trusted.a", b"");
            for i in (0..60).rev() {
                set(&paths[2], &format!("user.{}{i}", "n".repeat(i % 9)), &vec![i as u8; i]);
                if i % 20 == 0 {
                    set(&paths[2], &format!("security.s{i}"), b"x");
                }
            }
            if features.contains("ea_inode") {
                set(&paths[1], "user.large", &vec![0xAB; 50_000]);
                set(&paths[2], "user.large", &vec![0xCD; 9_999]);
            }
            // Owner rwx, user 7 r--, group r-x, mask r-x, others ---.
            let mut acl = vec![2, 0, 0, 0];
            for (tag, perm, id) in [(1u16, 7u16, !0u32), (2, 4, 7), (4, 5, !0), (16, 5, !0), (32, 0, !0)] {
                acl.extend(tag.to_le_bytes());
                acl.extend(perm.to_le_bytes());
                acl.extend(id.to_le_bytes());
            }
            set(&paths[1], "system.posix_acl_access", &acl);
            set(&dir, "system.posix_acl_access", &acl);
            set(&dir, "system.posix_acl_default", &acl);
            let [none, few, many] = paths;
            let all = [none, few, many, dir];
            expected = all.clone().map(|path| kernel_attrs(&path));
            inos = all.map(|path| path.metadata().unwrap().ino());
        }
        assert!(expected[2].len() > 60);
        let image = Image::open(&image);
        for (ino, expected) in inos.into_iter().zip(expected) {
            let (inode, bytes) = image.inode(ino);
            let places = Places {
                ino: Ino(ino as u32),
                body: &bytes[inode.xattr_offset()..],
                block: Pblk(inode.file_acl),
                fs_seed: image.sb.features.metadata_csum().then(|| image.sb.fs_seed()),
            };
            let names: Vec<_> = expected.iter().map(|(name, _)| name.clone()).collect();
            assert_eq!(places.names(&image.buffers).unwrap(), names, "{features}: inode {ino}");
            let all = places.all(&image.buffers, &image).unwrap();
            let all: Vec<_> = all.into_iter().map(|attr| (attr.name, attr.value)).collect();
            assert!(all == expected, "{features}: values of inode {ino}");
            for (name, value) in expected {
                assert!(places.get(&image.buffers, &image, &name).unwrap() == Some(value));
            }
            assert_eq!(places.get(&image.buffers, &image, b"user.absent").unwrap(), None);
        }
    }
}
