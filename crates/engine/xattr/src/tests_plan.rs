//! Plans carried out on a toy volume of a few inodes that share blocks, compared with maps of names to
//! values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::BlockSize;
use extant_buffer::{Direct, Edit, Seal};
use extant_device::MemDevice;
use extant_memory::Budget;
use extant_ondisk::xattr::{
    Attr, INDEX_USER, REFCOUNT_MAX, VALUE_LEN_MAX, block_hash, encode_ibody, set_refcount,
};
use proptest::prelude::*;

use super::*;

const SEED: u32 = 0x77;
const BODY: usize = 96;
const INODES: usize = 3;

/// A toy volume: inodes with bodies and blocks, and value inodes with reference counts.
struct Toy {
    buffers: Arc<Buffers>,
    rules: Rules,
    bodies: [Vec<u8>; INODES],
    blocks: [Pblk; INODES],
    values: BTreeMap<u32, (Vec<u8>, i64)>,
    free: Vec<u64>,
    next_ino: u32,
    index: BlockIndex,
    shares: usize,
}

impl ValueInodes for Toy {
    fn value(&self, ino: Ino, _: u32) -> Result<Vec<u8>, ReadFault> {
        Ok(self.values[&ino.0].0.clone())
    }
}

impl Toy {
    fn new(block_size: BlockSize, ea_inode: bool) -> Self {
        let device = Arc::new(MemDevice::new(64 * block_size.bytes()));
        let buffers = Buffers::new(device, block_size, 64, &Budget::new(1 << 20));
        let rules = Rules { block_size, value_seed: ea_inode.then_some(SEED) };
        Self {
            buffers,
            rules,
            bodies: [const { Vec::new() }; INODES].map(|_: Vec<u8>| vec![0; BODY]),
            blocks: [Pblk(0); INODES],
            values: BTreeMap::new(),
            free: (1..20).collect(),
            next_ino: 100,
            index: BlockIndex::new(8),
            shares: 0,
        }
    }

    fn places(&self, i: usize) -> Places<'_> {
        Places { ino: Ino(12 + i as u32), body: &self.bodies[i], block: self.blocks[i], fs_seed: Some(SEED) }
    }

    fn seal() -> Seal {
        Seal { owner: Owner { kind: Kind::Xattr, ino: 0 }, seed: Some(SEED) }
    }

    /// Applies a change to inode `i`.
    fn change(&mut self, i: usize, change: &Change<'_>) -> Result<(), ChangeFault> {
        let mut plan = change.plan(&self.places(i), &self.buffers, &self.rules)?;
        if let Some(checksum) = plan.value_checksum {
            let value = change.value.unwrap().to_vec();
            assert_eq!(checksum, crc32c(SEED, &value));
            self.next_ino += 1;
            self.values.insert(self.next_ino, (value, 1));
            plan.set_value_inode(Ino(self.next_ino));
        }
        plan.share(&self.index, &self.buffers, Some(SEED))?;
        for (ino, delta) in plan.value_references() {
            let references = &mut self.values.get_mut(&ino.0).unwrap().1;
            *references += i64::from(delta);
            if *references == 0 {
                self.values.remove(&ino.0);
            }
        }
        let hash = plan.block_hash();
        let edit = Direct(&self.buffers);
        let loses = match plan.block {
            BlockPlan::Keep => false,
            BlockPlan::New(bytes) => {
                self.blocks[i] = Pblk(self.free.pop().unwrap());
                edit.fresh(self.blocks[i], Self::seal(), &mut |block| block.copy_from_slice(&bytes));
                true
            }
            BlockPlan::Replace(bytes) => {
                let block = self.blocks[i];
                let old = decode_block(&verified_block(&self.buffers, block, None).unwrap()).unwrap().0.hash;
                self.index.remove(old, block);
                edit.change(block, Self::seal(), &mut |block| block.copy_from_slice(&bytes)).unwrap();
                false
            }
            BlockPlan::Drop => {
                self.blocks[i] = Pblk(0);
                true
            }
            BlockPlan::Share { block, refcount } => {
                self.shares += 1;
                self.blocks[i] = block;
                edit.change(block, Self::seal(), &mut |bytes| set_refcount(bytes, refcount)).unwrap();
                true
            }
        };
        if let Some(hash) = hash {
            self.index.insert(hash, self.blocks[i]);
        }
        if let Some((old, refcount)) = plan.old_block.filter(|_| loses) {
            if refcount <= 1 {
                let hash = decode_block(&verified_block(&self.buffers, old, None).unwrap()).unwrap().0.hash;
                self.index.remove(hash, old);
                self.buffers.forget(old);
                self.free.push(old.0);
            } else {
                let lower = &mut |bytes: &mut [u8]| set_refcount(bytes, refcount - 1);
                edit.change(old, Self::seal(), lower).unwrap();
            }
        }
        if let Some(body) = plan.body {
            self.bodies[i] = body;
        }
        Ok(())
    }

    /// Checks all layouts, counts and names.
    fn verify(&self) {
        let mut named: BTreeMap<u32, i64> = BTreeMap::new();
        let mut name = |stored: &StoredAttr<'_>| {
            if let AttrValue::Inode { ino, size, .. } = stored.attr.value {
                *named.entry(ino.0).or_default() += 1;
                assert_eq!(self.values[&ino.0].0.len(), size as usize);
                assert!(stored.hash_matches_crc(crc32c(SEED, &self.values[&ino.0].0)));
            }
        };
        for body in &self.bodies {
            let stored = decode_ibody(body).unwrap();
            assert!(stored.iter().all(|attr| attr.hash_matches()));
            stored.iter().for_each(&mut name);
        }
        let used: BTreeSet<_> = self.blocks.into_iter().filter(|block| block.0 != 0).collect();
        assert_eq!(used.len() + self.free.len(), 19, "no block is lost");
        for block in used {
            let held = verified_block(&self.buffers, block, None).unwrap();
            let (header, stored) = decode_block(&held).unwrap();
            let sharers = self.blocks.iter().filter(|other| **other == block).count();
            assert_eq!(header.refcount as usize, sharers);
            assert!(!stored.is_empty() && stored.is_sorted_by_key(|stored| stored.attr.sort_key()));
            assert_eq!(header.hash, block_hash(stored.iter().map(|stored| stored.hash)));
            assert!(stored.iter().all(|attr| attr.hash_matches()));
            stored.iter().for_each(&mut name);
        }
        let counted: BTreeMap<_, _> = self.values.iter().map(|(ino, (_, count))| (*ino, *count)).collect();
        assert_eq!(counted, named, "value inodes are counted as they are named");
        for i in 0..INODES {
            let places = self.places(i);
            let block = places.block(&self.buffers).unwrap();
            let stored = places.stored(block.as_deref()).unwrap();
            let names: BTreeSet<_> =
                stored.iter().map(|stored| (stored.attr.index, stored.attr.name)).collect();
            assert_eq!(names.len(), stored.len(), "each name is stored once");
        }
    }

    /// Bytes left for an attribute in the body and in the block.
    fn room(&self, i: usize, name: &[u8]) -> [usize; 2] {
        let places = self.places(i);
        let block = places.block(&self.buffers).unwrap();
        let others = |stored: Vec<StoredAttr<'_>>| {
            let is_it = |attr: &Attr<'_>| split_name(name) == Some((attr.index, attr.name));
            let others = stored.iter().filter(|stored| !is_it(&stored.attr));
            others.map(|stored| stored.attr.stored_len()).sum::<usize>()
        };
        let in_body = others(places.decoded_body().unwrap());
        let in_block = others(places.decoded_block(block.as_deref()).unwrap());
        [BODY - 8 - in_body, self.rules.block_size.len() - 36 - in_block]
    }

    fn all(&self, i: usize) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let all = self.places(i).all(&self.buffers, self).unwrap();
        all.into_iter().map(|attr| (attr.name, attr.value)).collect()
    }
}

fn set<'a>(name: &'a str, value: &'a [u8]) -> Change<'a> {
    Change::set(name.as_bytes(), value, Mode::Any).unwrap()
}

#[test]
fn attributes_go_to_the_body_then_the_block_then_an_inode() {
    let mut toy = Toy::new(BlockSize::MIN, true);
    toy.change(0, &set("user.a", &[1; 20])).unwrap();
    assert_eq!(toy.blocks[0], Pblk(0));
    toy.change(0, &set("user.b", &[2; 40])).unwrap();
    assert!(toy.blocks[0].0 != 0 && toy.values.is_empty());
    // The body's attribute grows and moves to the block; its place is free for another.
    toy.change(0, &set("user.a", &[1; 100])).unwrap();
    assert_eq!(toy.bodies[0], [0; BODY]);
    // Too long for the block with the others; the entry fits into the body.
    toy.change(0, &set("user.c", &[3; 900])).unwrap();
    assert_eq!(toy.values.len(), 1);
    toy.verify();
    toy.change(0, &set("user.c", &[])).unwrap();
    assert!(toy.values.is_empty());
    for name in ["user.a", "user.b", "user.c"] {
        toy.change(0, &Change::remove(name.as_bytes()).unwrap()).unwrap();
        toy.verify();
    }
    assert_eq!((toy.blocks[0], &toy.bodies[0][..]), (Pblk(0), &[0; BODY][..]));
}

#[test]
fn the_kernels_limits() {
    // In the body: magic, entry, end and value. In a block: header, entry, end and value.
    let largest = |name_len: usize, ea_inode: bool| {
        let toy = Toy::new(BlockSize::MIN, ea_inode);
        let name = format!("user.{}", "n".repeat(name_len));
        let fits =
            |len: &usize| set(&name, &vec![1; *len]).plan(&toy.places(0), &toy.buffers, &toy.rules).is_ok();
        (0..=VALUE_LEN_MAX).step_by(4).take_while(|len| fits(len)).last().unwrap()
    };
    assert_eq!(largest(3, false), 1024 - 32 - 20 - 4);
    assert_eq!(largest(255 - 5, false), 1024 - 32 - 268 - 4);
    assert_eq!(largest(3, true), VALUE_LEN_MAX);
    let fault = |result: Result<Change<'_>, ChangeFault>| result.unwrap_err().to_string();
    let long = format!("user.{}", "n".repeat(251));
    assert!(fault(Change::set(long.as_bytes(), b"", Mode::Any)).contains("too long"));
    assert!(
        fault(Change::set(b"user.a", &vec![0; VALUE_LEN_MAX + 1], Mode::Any)).contains("value is too long")
    );
    assert!(fault(Change::set(b"user.", b"", Mode::Any)).contains("empty behind"));
    for name in [&b"system.data"[..], b"system.posix_acl_access", b"btrfs.x", b"gnu.x", b"system.richacl"] {
        assert!(fault(Change::set(name, b"", Mode::Any)).contains("not supported"));
    }
    assert_eq!(Change::remove(b"system.posix_acl_access").unwrap().mode, Mode::Any);
}

#[test]
fn create_and_replace_look_first() {
    let mut toy = Toy::new(BlockSize::MIN, false);
    let with = |mode| Change::set(b"user.a", b"1", mode).unwrap();
    assert!(matches!(toy.change(0, &with(Mode::Replace)), Err(ChangeFault::Absent)));
    toy.change(0, &with(Mode::Create)).unwrap();
    assert!(matches!(toy.change(0, &with(Mode::Create)), Err(ChangeFault::Exists)));
    toy.change(0, &with(Mode::Replace)).unwrap();
    let plan = with(Mode::Any).plan(&toy.places(0), &toy.buffers, &toy.rules).unwrap();
    assert!(plan.is_unchanged());
    let remove = Change::remove(b"user.a").unwrap();
    toy.change(0, &remove).unwrap();
    assert!(matches!(toy.change(0, &remove), Err(ChangeFault::Absent)));
    toy.change(0, &Change { mode: Mode::Any, ..remove }).unwrap();
}

#[test]
fn inline_data_stays_in_the_body() {
    let mut toy = Toy::new(BlockSize::MIN, true);
    let data = |value| Change { index: INDEX_SYSTEM, name: b"data", value, mode: Mode::Any };
    let room = toy.places(0).body_room(INDEX_SYSTEM, b"data").unwrap();
    assert_eq!(room, Some(BODY - 4 - 20 - 4));
    toy.change(0, &data(Some(&[9; 30]))).unwrap();
    for i in 0..20 {
        toy.change(0, &set(&format!("user.{i}"), &[i; 30])).unwrap();
        assert_eq!(toy.places(0).inline_data().unwrap(), Some(&[9; 30][..]));
    }
    assert!(matches!(toy.change(0, &data(Some(&[9; 69]))), Err(ChangeFault::NoSpace)));
    toy.change(0, &data(Some(&[]))).unwrap();
    assert_eq!(toy.places(0).inline_data().unwrap(), Some(&[][..]));
    toy.verify();
}

#[test]
fn equal_blocks_are_shared_up_to_their_limit() {
    let mut toy = Toy::new(BlockSize::MIN, false);
    for i in 0..INODES {
        toy.change(i, &set("user.same", &[5; 200])).unwrap();
    }
    assert_eq!((toy.blocks, toy.shares), ([toy.blocks[0]; INODES], 2));
    toy.verify();
    toy.change(1, &set("user.same", &[6; 200])).unwrap();
    toy.change(1, &set("user.same", &[5; 200])).unwrap();
    assert_eq!(toy.blocks, [toy.blocks[0]; INODES]);
    toy.verify();
    let full = &mut |bytes: &mut [u8]| set_refcount(bytes, REFCOUNT_MAX);
    Direct(&toy.buffers).change(toy.blocks[0], Toy::seal(), full).unwrap();
    toy.blocks[2] = Pblk(0);
    toy.change(2, &set("user.same", &[5; 200])).unwrap();
    assert_ne!(toy.blocks[2], toy.blocks[0]);
}

#[test]
fn a_body_that_is_damaged_is_not_changed() {
    let toy = Toy::new(BlockSize::MIN, false);
    let mut body = vec![0; BODY];
    let one = Attr { index: INDEX_USER, name: b"a", value: AttrValue::Bytes(b"1") };
    encode_ibody(&[one], &mut body).unwrap();
    body[6..8].copy_from_slice(&[0xFF, 0xFF]);
    let places = Places { body: &body, ..toy.places(0) };
    assert!(matches!(set("user.b", b"").plan(&places, &toy.buffers, &toy.rules), Err(ChangeFault::Read(_))));
}

const NAMES: [&str; 7] =
    ["user.a", "user.bb", "trusted.a", "security.selinux", "user.naïve", "user.longer-than-others", "user.z"];

proptest! {
    #[test]
    fn attributes_change_as_the_model_says(
        ops in prop::collection::vec(
            (0..INODES, 0usize..NAMES.len(), prop::option::weighted(0.8, (0usize..7, 0u8..3)), 0u8..6), 1..80),
        ea_inode: bool, large: bool,
    ) {
        let mut toy = Toy::new(if large { BlockSize::KIB4 } else { BlockSize::MIN }, ea_inode);
        let data = Change { index: INDEX_SYSTEM, name: b"data", value: Some(b"inline"), mode: Mode::Any };
        toy.change(0, &data).unwrap();
        let mut models: [BTreeMap<Vec<u8>, Vec<u8>>; INODES] = Default::default();
        for (i, name, value, mode) in ops {
            let name = NAMES[name].as_bytes();
            let mode = [Mode::Any, Mode::Create, Mode::Replace][usize::from(mode).saturating_sub(3)];
            let value = value.map(|(len, fill)| vec![fill; [0, 3, 16, 60, 300, 950, 5000][len]]);
            let change = match &value {
                Some(value) => Change::set(name, value, mode).unwrap(),
                None => Change::remove(name).unwrap(),
            };
            let was_there = models[i].contains_key(name);
            match toy.change(i, &change) {
                Ok(()) => {
                    prop_assert!(change.mode == Mode::Any || was_there == (change.mode == Mode::Replace));
                    match value {
                        Some(value) => drop(models[i].insert(name.to_vec(), value)),
                        None => drop(models[i].remove(name)),
                    }
                }
                Err(ChangeFault::Exists) => prop_assert!(was_there && mode == Mode::Create),
                Err(ChangeFault::Absent) => prop_assert!(!was_there && change.mode == Mode::Replace),
                Err(ChangeFault::NoSpace) => {
                    let value = if ea_inode { vec![] } else { value.unwrap() };
                    let (index, suffix) = split_name(name).unwrap();
                    let needed = Attr { index, name: suffix, value: AttrValue::Bytes(&value) }.stored_len();
                    prop_assert!(toy.room(i, name).iter().all(|room| *room < needed), "{needed} find no place");
                }
                Err(fault) => panic!("{fault}"),
            }
            toy.verify();
            for (i, model) in models.iter().enumerate() {
                prop_assert_eq!(&toy.all(i), model);
            }
            prop_assert_eq!(toy.places(0).inline_data().unwrap(), Some(&b"inline"[..]));
        }
    }
}
