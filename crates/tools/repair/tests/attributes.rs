//! Damaged attributes: e2fsck is silent after the repair, and the other attributes stay.

use std::path::Path;
use std::sync::Arc;

use extant_base::le::{put_u16, put_u32, u32_at};
use extant_device::{Device, FileDevice};
use extant_repair::{RepairOptions, plan_repair};
use extant_testkit::{debugfs, e2fsck_clean, run, scratch};
use extant_volume::{Follow, New, OpenOptions, SetXattr, Volume};

/// The header of an attribute block, and of an entry.
const HEADER: usize = 32;
const ENTRY: usize = 16;

/// An image with a file that has these attributes of the user, and the byte offset of its attribute block.
fn image(path: &Path, features: &str, attributes: &[(&[u8], &[u8])]) -> usize {
    run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-I", "128", "-O", features, path.to_str().unwrap(), "8M"],
    );
    let device = Arc::new(FileDevice::open(path, true).unwrap());
    let volume = Volume::open(device, &OpenOptions::default()).unwrap();
    let file = volume.names().create(volume.root().unwrap().ino(), b"file", &New::file(0o644)).unwrap();
    for (name, value) in attributes {
        volume.attributes().set_xattr(file.ino(), name, value, SetXattr::Any).unwrap();
    }
    let block = volume.inode(file.ino()).unwrap().fields().file_acl;
    volume.close().unwrap();
    e2fsck_clean(path);
    block as usize * 1024
}

/// Repairs the image. Returns the names of the attributes that are left.
fn repaired(path: &Path) -> Vec<Vec<u8>> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, true).unwrap());
    let planned = plan_repair(Arc::clone(&device), &RepairOptions::default()).unwrap();
    planned.write(&*device, None).unwrap();
    assert!(planned.plan().left.is_empty(), "{:?}", planned.plan().left);
    e2fsck_clean(path);
    let volume = Volume::open_read_only(device, &OpenOptions::default()).unwrap();
    let file = volume.names().resolve(b"/file", Follow::Links).unwrap();
    volume.attributes().xattrs(&file).unwrap().into_iter().map(|attribute| attribute.name).collect()
}

/// An entry of a block begins after the others.
fn end_of_entries(bytes: &[u8], block: usize) -> usize {
    let mut at = block + HEADER;
    while u32_at(bytes, at) != 0 {
        at += ENTRY + usize::from(bytes[at]).next_multiple_of(4);
    }
    at
}

/// The kernel does not look at the place of an empty value, and e2fsck does.
#[test]
fn an_empty_value_after_the_end_of_its_block_goes() {
    let dir = scratch();
    let path = dir.path().join("image");
    let block = image(&path, "^metadata_csum", &[(b"user.kept", &[7; 200])]);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = end_of_entries(&bytes, block);
    bytes[at + 1] = 255;
    put_u16(&mut bytes, at + 2, 0xFF00);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(repaired(&path), [b"user.kept"]);
}

#[test]
fn an_attribute_whose_value_has_no_inode_goes() {
    let dir = scratch();
    let path = dir.path().join("image");
    let kept: (&[u8], &[u8]) = (b"user.kept", &[7; 200]);
    let block = image(&path, "ea_inode,^metadata_csum", &[kept, (b"user.lost", &[8; 300])]);
    let mut bytes = std::fs::read(&path).unwrap();
    let mut at = block + HEADER;
    while &bytes[at + ENTRY..at + ENTRY + 4] != b"lost" {
        at += ENTRY + usize::from(bytes[at]).next_multiple_of(4);
    }
    put_u32(&mut bytes, at + 4, 1 << 24);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(repaired(&path), [b"user.kept"]);
}

/// Attributes of different prefixes can have the same suffix.
#[test]
fn an_attribute_of_another_prefix_with_the_same_name_stays() {
    let dir = scratch();
    let path = dir.path().join("image");
    let attributes: [(&[u8], &[u8]); 3] =
        [(b"user.kept", &[7; 200]), (b"user.same", &[8; 300]), (b"trusted.same", &[9; 1200])];
    let block = image(&path, "ea_inode,^metadata_csum", &attributes);
    let mut bytes = std::fs::read(&path).unwrap();
    let mut at = block + HEADER;
    // The index of the prefix `user.` is 1.
    while bytes[at + 1] != 1 || &bytes[at + ENTRY..at + ENTRY + 4] != b"same" {
        at += ENTRY + usize::from(bytes[at]).next_multiple_of(4);
    }
    put_u32(&mut bytes, at + 4, 1 << 24);
    std::fs::write(&path, &bytes).unwrap();
    let mut names = repaired(&path);
    names.sort();
    assert_eq!(names, [&b"trusted.same"[..], b"user.kept"]);
}

#[test]
fn a_value_to_which_nothing_refers_goes_to_lost_and_found() {
    let dir = scratch();
    let path = dir.path().join("image");
    let kept: (&[u8], &[u8]) = (b"user.kept", &[7; 200]);
    let block = image(&path, "ea_inode,^metadata_csum", &[kept, (b"user.lost", &[8; 1200])]);
    // Nothing refers to the block of attributes from now on, and so nothing to the inode of the value.
    let value = u32_at(&std::fs::read(&path).unwrap(), value_entry(&path, block) + 4);
    run("debugfs", ["-w", "-R", "set_inode_field /file file_acl 0", path.to_str().unwrap()]);
    assert_eq!(repaired(&path), [b""; 0]);
    assert!(debugfs(&path, "ls /lost+found").contains(&format!("#{value}")));
}

/// The entry of an attribute block whose value is in an inode.
fn value_entry(path: &Path, block: usize) -> usize {
    let bytes = std::fs::read(path).unwrap();
    let mut at = block + HEADER;
    while u32_at(&bytes, at + 4) == 0 {
        at += ENTRY + usize::from(bytes[at]).next_multiple_of(4);
    }
    at
}

/// Drivers refuse a file that looks like a value. Before, the repair removed its name.
#[test]
fn a_file_with_the_flag_of_a_value_keeps_its_name() {
    let dir = scratch();
    let path = dir.path().join("image");
    image(&path, "ea_inode,^metadata_csum", &[(b"user.kept", &[7; 200])]);
    run("debugfs", ["-w", "-R", "set_inode_field /file flags 0x280000", path.to_str().unwrap()]);
    assert_eq!(repaired(&path), [b"user.kept"]);
}

/// The block may refer to the value, so nothing is known about it until the block is sound.
#[test]
fn a_value_stays_while_the_block_that_refers_to_it_is_damaged() {
    let dir = scratch();
    let path = dir.path().join("image");
    let kept: (&[u8], &[u8]) = (b"user.kept", &[8; 1200]);
    let block = image(&path, "ea_inode,^metadata_csum", &[kept, (b"user.lost", &[7; 200])]);
    let mut bytes = std::fs::read(&path).unwrap();
    let mut at = block + HEADER;
    while &bytes[at + ENTRY..at + ENTRY + 4] != b"lost" {
        at += ENTRY + usize::from(bytes[at]).next_multiple_of(4);
    }
    put_u16(&mut bytes, at + 2, 0xFFFF);
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(repaired(&path), [b"user.kept"]);
}
