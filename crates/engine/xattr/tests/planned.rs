//! Plans change attributes of files made by the kernel; e2fsck checks the result, and the kernel reads it.

#[path = "../../mapping/tests/common/mod.rs"]
mod common;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::Image;
use extant_base::{Ino, Pblk};
use extant_buffer::{Direct, Edit, Kind, Owner, ReadFault, Seal};
use extant_testkit::LoopMount;
use extant_xattr::{BlockPlan, Change, ChangeFault, Mode, Places, Rules, ValueInodes};
use rustix::fs::{XattrFlags, lgetxattr, llistxattr, lremovexattr, lsetxattr};

struct NoValues;

impl ValueInodes for NoValues {
    fn value(&self, ino: Ino, _: u32) -> Result<Vec<u8>, ReadFault> {
        panic!("no value lies in inode {ino}")
    }
}

type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

fn kernel_attrs(path: &Path) -> Attrs {
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

/// Changes many attributes of an inode that has a block of its own. Returns the resulting attributes.
fn change(path: &Path, ino: u64) -> Attrs {
    let image = Image::open(path);
    let (inode, mut bytes) = image.inode(ino);
    let at = inode.xattr_offset();
    let block = Pblk(inode.file_acl);
    assert_ne!(block.0, 0);
    let fs_seed = image.sb.features.metadata_csum().then(|| image.sb.fs_seed());
    let rules = Rules { block_size: image.geometry.block_size, value_seed: None };
    let direct = Direct(&image.buffers);
    let seal = Seal { owner: Owner { kind: Kind::Xattr, ino: 0 }, seed: fs_seed };
    let mut refused = 0;
    for i in 0..400usize {
        let body = bytes[at..].to_vec();
        let places = Places { ino: Ino(ino as u32), body: &body, block, fs_seed };
        let name = format!("user.{}{}", "n".repeat(i * 7 % 23), i % 5);
        let value = vec![i as u8; i * 37 % 130];
        let change = match i % 4 {
            3 => Change { mode: Mode::Any, ..Change::remove(name.as_bytes()).unwrap() },
            _ => Change::set(name.as_bytes(), &value, Mode::Any).unwrap(),
        };
        let plan = match change.plan(&places, &image.buffers, &rules) {
            Ok(plan) => plan,
            Err(ChangeFault::NoSpace) => {
                refused += 1;
                continue;
            }
            Err(fault) => panic!("{fault}"),
        };
        match plan.block {
            BlockPlan::Keep => {}
            BlockPlan::Replace(new) => {
                direct.change(block, seal, &mut |bytes| bytes.copy_from_slice(&new)).unwrap();
            }
            other => panic!("the block stays the inode's own: {other:?}"),
        }
        if let Some(body) = plan.body {
            bytes[at..].copy_from_slice(&body);
        }
    }
    assert!((1..350).contains(&refused), "{refused} found no room");
    let places = Places { ino: Ino(ino as u32), body: &bytes[at..], block, fs_seed };
    let all = places.all(&image.buffers, &NoValues).unwrap();
    let mut new = image.buffers.get(block, seal.owner, |_| Ok(())).unwrap().to_vec();
    if let Some(seed) = fs_seed {
        extant_ondisk::xattr::seal_block(&mut new, seed, block);
    }
    image.write(path, block, 0, &new);
    image.write_inode(path, ino, bytes);
    all.into_iter().map(|attr| (attr.name, attr.value)).collect()
}

#[test]
fn plans_are_good_for_e2fsck_and_the_kernel() {
    if extant_testkit::not_root() {
        return;
    }
    for (features, block_size) in
        [("metadata_csum", "1024"), ("^metadata_csum", "4096"), ("inline_data", "1024")]
    {
        let scratch = extant_testkit::scratch();
        let image = scratch.path().join("image");
        let fixed = ["-q", "-F", "-t", "ext4", "-b", block_size, "-I", "256", "-O", features];
        extant_testkit::run("mke2fs", fixed.into_iter().chain([image.to_str().unwrap(), "32M"]));
        let set = |path: &Path, name: &str, value: &[u8]| {
            lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
        };
        let ino;
        {
            let mount = LoopMount::new(&image, "rw").unwrap();
            let file = mount.path().join("file");
            std::fs::write(&file, vec![0xAB; 80]).unwrap();
            set(&file, "security.kept", &[3; 200]);
            set(&file, "trusted.kept", &[4; 9]);
            ino = file.metadata().unwrap().ino();
        }
        let expected = change(&image, ino);
        assert!(expected.len() > 6, "{features}: {} attributes", expected.len());
        assert_eq!(expected[&b"security.kept"[..]], [3; 200]);
        extant_testkit::e2fsck_clean(&image);
        {
            let mount = LoopMount::new(&image, "rw").unwrap();
            let file = mount.path().join("file");
            assert!(kernel_attrs(&file) == expected, "{features}");
            assert_eq!(std::fs::read(&file).unwrap(), vec![0xAB; 80], "inline data stays");
            // The kernel continues with this layout.
            let names: Vec<_> = expected.keys().filter(|name| name.starts_with(b"user.")).collect();
            for name in &names[..names.len() / 2] {
                lremovexattr(&file, &name[..]).unwrap();
            }
            set(&file, "user.new", &[1; 40]);
            assert_eq!(kernel_attrs(&file).len(), expected.len() - names.len() / 2 + 1);
        }
        extant_testkit::e2fsck_clean(&image);
    }
}
