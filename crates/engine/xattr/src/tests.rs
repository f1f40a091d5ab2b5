//! Tests with bodies and blocks made by ondisk's encoders, and with hostile ones.

use std::sync::Arc;

use extant_base::BlockSize;
use extant_device::{Device, MemDevice};
use extant_memory::Budget;
use extant_ondisk::acl::{AclEntry, AclTag};
use extant_ondisk::xattr::{
    Attr, INDEX_ENCRYPTION, INDEX_SECURITY, INDEX_TRUSTED, INDEX_USER, INDEX_VERITY, encode_block,
    encode_ibody, seal_block,
};
use proptest::prelude::*;

use super::*;

const INO: Ino = Ino(15);
const SEED: u32 = 0x1234;
const BLOCK: Pblk = Pblk(9);

/// Inode 30 holds a value of any length; 31 always holds 5000 bytes.
struct Toys;

impl ValueInodes for Toys {
    fn value(&self, ino: Ino, len: u32) -> Result<Vec<u8>, ReadFault> {
        match ino.0 {
            30 => Ok(vec![0xAB; len as usize]),
            31 => Ok(vec![0xAB; 5000]),
            _ => Err(ReadFault::corrupt(CorruptAt::ino(ino), Malformed::new("toy", "must exist", ino.0))),
        }
    }
}

fn attr<'a>(index: u8, name: &'a [u8], value: &'a [u8]) -> Attr<'a> {
    Attr { index, name, value: AttrValue::Bytes(value) }
}

fn in_inode(name: &[u8], ino: u32, size: u32, content: u8) -> Attr<'_> {
    let hash = crc32c(SEED, &vec![content; size as usize]);
    Attr { index: INDEX_USER, name, value: AttrValue::Inode { ino: Ino(ino), size, hash } }
}

fn body(attrs: &[Attr<'_>]) -> Vec<u8> {
    let mut body = vec![0; 400];
    encode_ibody(attrs, &mut body).unwrap();
    body
}

fn image(attrs: &[Attr<'_>]) -> Arc<Buffers> {
    let mut block = vec![0; 1024];
    encode_block(attrs, 1, &mut block).unwrap();
    seal_block(&mut block, SEED, BLOCK);
    buffers_of(&block)
}

fn buffers_of(block: &[u8]) -> Arc<Buffers> {
    let device = MemDevice::new(20 * 1024);
    device.write_at(BLOCK.0 * 1024, block).unwrap();
    Buffers::new(Arc::new(device), BlockSize::MIN, 20, &Budget::new(1 << 20))
}

fn places(body: &[u8], block: u64) -> Places<'_> {
    Places { ino: INO, body, block: Pblk(block), fs_seed: Some(SEED) }
}

fn texts(names: Vec<Vec<u8>>) -> Vec<String> {
    names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect()
}

#[test]
fn names_of_body_and_block_come_in_the_kernels_order() {
    let body = body(&[
        attr(INDEX_USER, b"zebra", b"1"),
        attr(INDEX_SYSTEM, b"data", b"inline"),
        attr(INDEX_ENCRYPTION, b"c", b"context"),
        attr(INDEX_TRUSTED, b"overlay.opaque", b"y"),
    ]);
    let buffers = image(&[
        attr(INDEX_SECURITY, b"capability", b"caps"),
        attr(INDEX_USER, b"zebra", b"hidden by the body's"),
        attr(INDEX_VERITY, b"v", b"descriptor"),
        attr(INDEX_USER, b"apple", b""),
    ]);
    let places = places(&body, BLOCK.0);
    assert_eq!(
        texts(places.names(&buffers).unwrap()),
        ["user.zebra", "trusted.overlay.opaque", "user.apple", "security.capability"]
    );
    let get = |name: &str| places.get(&buffers, &Toys, name.as_bytes()).unwrap();
    assert_eq!(get("user.zebra"), Some(b"1".to_vec()));
    assert_eq!(get("user.apple"), Some(vec![]));
    assert_eq!(get("security.capability"), Some(b"caps".to_vec()));
    for absent in ["user.ze", "user.", "system.data", "encryption.c", "nonsense", "", "system.richacl"] {
        assert_eq!(get(absent), None, "{absent}");
    }
    assert_eq!(places.inline_data().unwrap(), Some(&b"inline"[..]));
    let all = places.all(&buffers, &Toys).unwrap();
    assert_eq!(all.len(), 4);
    assert_eq!(all[0], Attribute { name: b"user.zebra".to_vec(), value: b"1".to_vec() });
}

#[test]
fn without_a_body_or_a_block_there_is_nothing() {
    let buffers = image(&[]);
    let places = places(&[], 0);
    assert!(places.names(&buffers).unwrap().is_empty());
    assert!(places.all(&buffers, &Toys).unwrap().is_empty());
    assert_eq!(places.inline_data().unwrap(), None);
}

#[test]
fn acls_are_returned_in_the_form_of_user_space() {
    let entries = [(AclTag::UserObj, 6), (AclTag::User(7), 4), (AclTag::GroupObj, 4), (AclTag::Mask, 4)];
    let acl = Acl { entries: entries.into_iter().map(|(tag, perm)| AclEntry { tag, perm }).collect() };
    let (access, none) = (acl.to_disk(), Acl::default().to_disk());
    let body = body(&[attr(INDEX_ACL_ACCESS, b"", &access), attr(INDEX_ACL_DEFAULT, b"", &none)]);
    let (places, buffers) = (places(&body, 0), image(&[]));
    let got = places.get(&buffers, &Toys, b"system.posix_acl_access").unwrap();
    assert_eq!(got, Some(acl.to_xattr()));
    assert_eq!(places.get(&buffers, &Toys, b"system.posix_acl_default").unwrap(), None);
    assert_eq!(places.all(&buffers, &Toys).unwrap().len(), 1);
}

#[test]
fn values_in_inodes_are_held_against_their_entries() {
    let buffers = image(&[
        in_inode(b"good", 30, 3000, 0xAB),
        in_inode(b"long", 31, 3000, 0xAB),
        in_inode(b"other", 30, 3000, 0xAC),
        in_inode(b"gone", 32, 3000, 0xAB),
    ]);
    let places = places(&[], BLOCK.0);
    let get = |name: &[u8]| places.get(&buffers, &Toys, name).map_err(|fault| fault.to_string());
    assert_eq!(get(b"user.good"), Ok(Some(vec![0xAB; 3000])));
    let fault = get(b"user.long").unwrap_err();
    assert_eq!(
        fault,
        "inode 15: extended attribute: its value's inode must be as long as the entry says, found 0x1388"
    );
    assert!(get(b"user.other").unwrap_err().contains("hash must be that of its value's inode"));
    assert!(get(b"user.gone").unwrap_err().contains("must exist"));
    assert_eq!(places.names(&buffers).unwrap().len(), 4, "names need no values");
    assert!(places.all(&buffers, &Toys).is_err());
}

#[test]
fn values_of_one_inode_are_summed_before_they_are_read() {
    let huge = |name| Attr {
        index: INDEX_USER,
        name,
        value: AttrValue::Inode { ino: Ino(32), size: 1 << 24, hash: 0 },
    };
    let names: [&[u8]; 5] = [b"a", b"b", b"c", b"d", b"e"];
    let fault = |count: usize| {
        let buffers = image(&names[..count].iter().map(|name| huge(*name)).collect::<Vec<_>>());
        places(&[], BLOCK.0).all(&buffers, &Toys).unwrap_err().to_string()
    };
    assert!(fault(4).contains("must exist"), "64 MiB are read: {}", fault(4));
    assert!(fault(5).contains("at most 64 MiB together"), "{}", fault(5));
}

#[test]
fn damage_has_its_place() {
    let mut block = vec![0; 1024];
    encode_block(&[attr(INDEX_USER, b"a", b"b")], 1, &mut block).unwrap();
    let buffers = buffers_of(&block);
    let fault = places(&[], BLOCK.0).names(&buffers).unwrap_err().to_string();
    assert!(fault.starts_with("inode 15, block 9: attribute block: checksum must match"), "{fault}");
    let unsealed = Places { fs_seed: None, ..places(&[], BLOCK.0) };
    assert_eq!(texts(unsealed.names(&buffers).unwrap()), ["user.a"]);
    let fault = places(&[], 20).names(&buffers).unwrap_err().to_string();
    assert!(fault.starts_with("inode 15, block 20: block number: block must lie inside"), "{fault}");
    let mut broken = body(&[attr(INDEX_USER, b"a", b"b")]);
    broken[6..8].copy_from_slice(&[0xFF, 0xFF]);
    let fault = places(&broken, 0).get(&buffers, &Toys, b"user.b").unwrap_err().to_string();
    assert!(fault.starts_with("inode 15: attribute entry: "), "{fault}");
}

proptest! {
    #[test]
    fn any_bytes_are_attributes_or_corrupt(
        mut body in prop::collection::vec(prop_oneof![2 => 0u8..12, 1 => any::<u8>()], 4..200),
        mut block in prop::collection::vec(prop_oneof![2 => 0u8..12, 1 => any::<u8>()], 1024),
    ) {
        body[..4].copy_from_slice(&extant_ondisk::xattr::MAGIC.to_le_bytes());
        block[..4].copy_from_slice(&extant_ondisk::xattr::MAGIC.to_le_bytes());
        block[8..12].copy_from_slice(&[1, 0, 0, 0]);
        let buffers = buffers_of(&block);
        let places = Places { fs_seed: None, ..places(&body, BLOCK.0) };
        let _ = places.inline_data();
        let _ = places.all(&buffers, &Toys);
        for name in places.names(&buffers).unwrap_or_default() {
            let _ = places.get(&buffers, &Toys, &name);
        }
    }
}
