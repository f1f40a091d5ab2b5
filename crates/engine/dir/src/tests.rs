//! Directories made by ondisk's encoders on a device in memory: a directory's logical block is the device's
//! block.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_base::{BlockSize, Pblk};
use extant_buffer::{Buffers, Kind, Owner};
use extant_device::{Device, MemDevice};
use extant_memory::Budget;
use extant_ondisk::dirent::{self, DirBlockWriter, min_rec_len};
use extant_ondisk::hash::dirhash;
use extant_ondisk::htree::{IndexPlan, RootInfo};
use extant_ondisk::inline_data::InlineDir;
use proptest::prelude::*;

use super::*;

const INO: Ino = Ino(12);
const PARENT: Ino = Ino(2);
const BS: BlockSize = BlockSize::MIN;
const SEED: u32 = 0x77;
const HASH_SEED: [u32; 4] = [1, 2, 3, 4];

/// The blocks of a directory on a device of its own.
struct Toy {
    buffers: Arc<Buffers>,
    len: u32,
    csum: bool,
    /// Blocks that are stored; the directory may be longer.
    stored: u32,
    holes: BTreeSet<u32>,
    asked: AtomicUsize,
}

impl Toy {
    fn new(blocks: &[Vec<u8>], csum: bool) -> Self {
        let device = MemDevice::new(blocks.len() as u64 * BS.bytes());
        for (lblk, block) in (0u64..).zip(blocks) {
            device.write_at(lblk * BS.bytes(), block).unwrap();
        }
        let buffers = Buffers::new(Arc::new(device), BS, blocks.len() as u64, &Budget::new(64 << 20));
        let len = blocks.len() as u32;
        Self { buffers, len, csum, stored: len, holes: BTreeSet::new(), asked: AtomicUsize::new(0) }
    }

    fn get(
        &self,
        lblk: Lblk,
        kind: Kind,
        verify: impl FnOnce(&[u8]) -> Result<(), extant_base::Malformed>,
    ) -> Result<Option<Buffer>, ReadFault> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if lblk.0 >= self.stored || self.holes.contains(&lblk.0) {
            return Ok(None);
        }
        self.buffers.get(Pblk(lblk.0.into()), Owner { kind, ino: INO.0 }, verify).map(Some)
    }
}

impl DirBlocks for Toy {
    fn len(&self) -> u32 {
        self.len
    }

    fn leaf(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        let csum = self.csum;
        self.get(lblk, Kind::DirLeaf, |bytes| if csum { dirent::verify_tail(bytes, SEED) } else { Ok(()) })
    }

    fn index(&self, lblk: Lblk) -> Result<Option<Buffer>, ReadFault> {
        let format = format(self.csum);
        self.get(lblk, Kind::DirIndex, |bytes| format.index.verify(bytes, SEED))
    }

    fn hole_len(&self, lblk: Lblk) -> u32 {
        // After the stored blocks everything is a hole, reported in two pieces.
        if lblk.0 < self.stored { 1 } else { (self.len - lblk.0).div_ceil(2) }
    }

    fn prefetch(&self, first: Lblk, len: u32) {
        assert!(len <= self.len - first.0, "{first} + {len} of {}", self.len);
        self.buffers.prefetch(Pblk(first.0.into()), len);
    }
}

fn format(csum: bool) -> Format {
    let features = Features {
        incompat: Features::FILETYPE | Features::LARGEDIR,
        ro_compat: if csum { Features::METADATA_CSUM } else { 0 },
        compat: 0,
    };
    Format {
        entries: DirFormat::new(BS, &features, 1_000_000),
        index: DxFormat::new(BS, &features),
        features,
        hash_seed: HASH_SEED,
        unsigned_hash: false,
        default_hash: Some(HashVersion::HalfMd4),
    }
}

/// One block with these entries; the first block of a directory gets "." and "..".
fn block(csum: bool, dots: bool, names: &[(Vec<u8>, u32)]) -> Vec<u8> {
    let format = format(csum).entries;
    let mut bytes = vec![0; BS.len()];
    let mut writer = DirBlockWriter::new(&format, &mut bytes);
    if dots {
        writer.push_dots(INO, PARENT);
    }
    for (name, ino) in names {
        assert!(writer.push(Ino(*ino), FileType::Regular, name));
    }
    writer.finish();
    if csum {
        dirent::seal_tail(&mut bytes, SEED);
    }
    bytes
}

fn numbered(names: impl IntoIterator<Item = String>) -> Vec<(Vec<u8>, u32)> {
    names.into_iter().map(String::into_bytes).zip(100..).collect()
}

/// Packs names, in the order of their hashes, into leaves of at most `per_leaf`, under an index.
fn indexed(csum: bool, version: HashVersion, names: &[(Vec<u8>, u32)], per_leaf: usize) -> Vec<Vec<u8>> {
    let format = format(csum);
    let hash = |name: &[u8]| dirhash(version, &HASH_SEED, name).unwrap();
    let mut sorted = names.to_vec();
    sorted.sort_by_key(|(name, _)| hash(name));
    let mut leaves: Vec<Vec<(Vec<u8>, u32)>> = vec![vec![]];
    let mut used = 0;
    for (name, ino) in sorted {
        let len = min_rec_len(name.len(), false);
        if leaves.last().unwrap().len() == per_leaf || used + len > format.entries.usable_len() {
            leaves.push(vec![]);
            used = 0;
        }
        used += len;
        leaves.last_mut().unwrap().push((name, ino));
    }
    let mut firsts = vec![0];
    for pair in leaves.windows(2) {
        let (last, first) = (hash(&pair[0].last().unwrap().0).hash, hash(&pair[1][0].0).hash);
        firsts.push(first | u32::from(first == last));
    }
    let plan = IndexPlan::new(leaves.len() as u64, &format.index).unwrap();
    let root = RootInfo { ino: INO, parent: PARENT, hash_code: version.code(), filetype: true };
    let mut blocks = vec![vec![0; BS.len()]; plan.total_blocks() as usize];
    for i in 0..plan.index_blocks() {
        plan.encode_index_block(i, &firsts, &root, SEED, &mut blocks[i as usize]);
    }
    for (i, leaf) in (0..).zip(&leaves) {
        blocks[plan.leaf_lblk(i).0 as usize] = block(csum, false, leaf);
    }
    blocks
}

fn dir<'a>(storage: Storage<'a>) -> Dir<'a> {
    Dir { ino: INO, storage, casefold: false, encrypted: false }
}

/// A whole listing that stops after every `at_a_time` entries and continues from there: names, inodes and
/// positions.
fn listed(dir: &Dir<'_>, format: &Format, at_a_time: usize) -> (Vec<(String, u32, u64)>, Vec<String>) {
    let (mut listing, mut faults) = (Vec::new(), Vec::new());
    let mut from = Cursor::START;
    loop {
        let mut count = 0;
        dir.list(
            format,
            from,
            &mut |entry| {
                assert!(entry.next > from, "positions rise: {:?} behind {from:?}", entry.next);
                from = entry.next;
                listing.push((String::from_utf8_lossy(entry.name).into_owned(), entry.ino.0, entry.next.0));
                count += 1;
                if count < at_a_time { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            },
            &mut |fault| faults.push(fault.to_string()),
        )
        .unwrap();
        if count < at_a_time {
            return (listing, faults);
        }
        assert!(listing.len() < 100_000, "a listing ends");
    }
}

fn names_of(listing: &[(String, u32, u64)]) -> Vec<&str> {
    listing.iter().map(|(name, _, _)| name.as_str()).collect()
}

#[test]
fn a_linear_directory() {
    for csum in [false, true] {
        let format = format(csum);
        let blocks = [
            block(csum, true, &numbered(["a", "bb"].map(String::from))),
            block(csum, false, &[]),
            block(csum, false, &numbered(["ccc", "a long name"].map(String::from))),
        ];
        let toy = Toy::new(&blocks, csum);
        let dir = dir(Storage::Linear(&toy));
        for (name, ino) in [(".", 12), ("..", 2), ("a", 100), ("bb", 101), ("a long name", 101)] {
            assert_eq!(dir.lookup(&format, name.as_bytes()).unwrap(), Some(Ino(ino)), "{name}");
        }
        for absent in ["", "c", "a long nam", &"x".repeat(255), &"x".repeat(256)] {
            assert_eq!(dir.lookup(&format, absent.as_bytes()).unwrap(), None);
        }
        for at_a_time in 1..7 {
            let (listing, faults) = listed(&dir, &format, at_a_time);
            assert_eq!(names_of(&listing), [".", "..", "a", "bb", "ccc", "a long name"]);
            assert!(faults.is_empty());
            assert_eq!((listing[0].2, listing[1].2, listing[2].2, listing[4].2), (12, 24, 36, 2060));
        }
        // A position inside an entry means the next one.
        let mut first = None;
        let mut each = |entry: DirEntry<'_>| {
            first = Some(entry.name.to_vec());
            ControlFlow::Break(())
        };
        dir.list(&format, Cursor(25), &mut each, &mut |_| ()).unwrap();
        assert_eq!(first.unwrap(), b"bb");
        for end in [Cursor(3072), Cursor(u64::MAX), Cursor::END] {
            dir.list(&format, end, &mut |_| panic!("behind the end"), &mut |_| ()).unwrap();
        }
    }
}

/// With the dir_index feature: in the order of hashes, wherever the listing stops.
fn assert_listed_by_hash(dir: &Dir<'_>, count: usize) {
    let mut format = format(true);
    format.features.compat = Features::DIR_INDEX;
    let (whole, faults) = listed(dir, &format, usize::MAX);
    assert_eq!((whole.len(), faults.len()), (count, 0));
    let hash = |name: &str| dirhash(HashVersion::HalfMd4, &HASH_SEED, name.as_bytes()).unwrap();
    assert!(whole.is_sorted_by_key(|(name, _, _)| hash(name)));
    for at_a_time in 1..count {
        assert_eq!(listed(dir, &format, at_a_time).0, whole);
    }
}

#[test]
fn a_directory_of_one_block_is_listed_by_hash() {
    let names = numbered((0..20).map(|i| format!("{i}")));
    let toy = Toy::new(&[block(true, true, &names)], true);
    assert_listed_by_hash(&dir(Storage::Linear(&toy)), 22);
}

#[test]
fn holes_are_skipped_by_the_run() {
    let format = format(true);
    let mut toy = Toy::new(&[block(true, true, &numbered([String::from("a")]))], true);
    toy.len = u32::MAX;
    let dir = dir(Storage::Linear(&toy));
    let (listing, faults) = listed(&dir, &format, 100);
    assert_eq!(names_of(&listing), [".", "..", "a"]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("inode 12, logical block 1: directory: must have no holes"), "{faults:?}");
    assert_eq!(dir.lookup(&format, b"b").unwrap(), None);
    assert!(toy.asked.load(Ordering::Relaxed) < 200, "{toy:?}", toy = toy.asked);
}

#[test]
fn damage_in_a_linear_directory_costs_its_block() {
    let format = format(true);
    let mut blocks =
        ["a", "b", "c", "d"].map(|name| block(true, name == "a", &numbered([String::from(name)])));
    blocks[1][500] ^= 1;
    let mut toy = Toy::new(&blocks, true);
    toy.holes.insert(2);
    let dir = dir(Storage::Linear(&toy));
    let (listing, faults) = listed(&dir, &format, 100);
    assert_eq!(names_of(&listing), [".", "..", "a", "d"]);
    assert!(
        faults[0].starts_with("inode 12, logical block 1, block 1: directory block: checksum"),
        "{faults:?}"
    );
    assert!(faults[1].starts_with("inode 12, logical block 2: directory: must have no holes"), "{faults:?}");
    assert_eq!(dir.lookup(&format, b"d").unwrap(), Some(Ino(100)), "found behind the damage");
    assert!(dir.lookup(&format, b"b").is_err(), "it may have been in the damaged block");

    // A malformed entry hides the entries after it, up to the end of its block.
    let mut plain = block(false, true, &numbered(["x", "y/z", "w"].map(String::from)));
    let blocks = [plain.clone(), block(false, false, &numbered([String::from("v")]))];
    let toy = Toy::new(&blocks, false);
    let plain_format = self::format(false);
    let (listing, faults) = listed(&self::dir(Storage::Linear(&toy)), &plain_format, 100);
    assert_eq!(names_of(&listing), [".", "..", "x", "w", "v"]);
    assert!(faults[0].contains("a name must have no slash"), "{faults:?}");
    plain[36 + 4] = 1;
    let toy = Toy::new(&[plain, blocks[1].clone()], false);
    let (listing, faults) = listed(&self::dir(Storage::Linear(&toy)), &plain_format, 100);
    assert_eq!(names_of(&listing), [".", "..", "x", "v"]);
    assert_eq!(faults.len(), 1);

    let toy = Toy::new(&[vec![0xFF; 1024], vec![0xFF; 1024]], true);
    let mut faults = 0;
    let list = self::dir(Storage::Linear(&toy)).list(
        &format,
        Cursor::START,
        &mut |_| panic!("nothing is there"),
        &mut |_| faults += 1,
    );
    assert!(list.is_err(), "nothing could be read at all");
    assert_eq!(faults, 1, "the first is the answer");
}

#[test]
fn an_inline_directory() {
    let format = format(true);
    let mut first = [0; 56];
    let mut second = vec![0; 40];
    for (region, names) in
        [(&mut first[..], &[("one", 20u32), ("two", 21)][..]), (&mut second[..], &[("three", 22)])]
    {
        let (mut at, len) = (0, region.len());
        for (i, (name, ino)) in names.iter().enumerate() {
            let rec_len = if i + 1 == names.len() { len - at } else { 12 };
            region[at..at + 4].copy_from_slice(&ino.to_le_bytes());
            region[at + 4..at + 8].copy_from_slice(&[rec_len as u8, 0, name.len() as u8, 1]);
            region[at + 8..at + 8 + name.len()].copy_from_slice(name.as_bytes());
            at += rec_len;
        }
    }
    let inline = InlineDir { parent: PARENT, first: &first, second: &second };
    let dir = dir(Storage::Inline(&inline));
    for (name, ino) in [(".", 12), ("..", 2), ("one", 20), ("two", 21), ("three", 22)] {
        assert_eq!(dir.lookup(&format, name.as_bytes()).unwrap(), Some(Ino(ino)), "{name}");
    }
    assert_eq!(dir.lookup(&format, b"four").unwrap(), None);
    for at_a_time in 1..6 {
        let (listing, faults) = listed(&dir, &format, at_a_time);
        assert_eq!(names_of(&listing), [".", "..", "one", "two", "three"]);
        assert!(faults.is_empty());
        let positions: Vec<_> = listing.iter().map(|(_, _, next)| *next).collect();
        assert_eq!(positions, [12, 24, 36, 80, 120]);
    }
    assert_listed_by_hash(&dir, 5);
}

#[test]
fn indexed_directories_of_every_depth_and_hash() {
    for (version, count, per_leaf, levels) in [
        (HashVersion::HalfMd4, 900, 50, 0),
        (HashVersion::Tea, 900, 2, 1),
        (HashVersion::Legacy, 900, 2, 1),
        (HashVersion::HalfMd4, 16_000, 1, 2),
    ] {
        for csum in [false, true] {
            let format = format(csum);
            let names = numbered((0..count).map(|i| format!("name{i}")));
            let blocks = indexed(csum, version, &names, per_leaf);
            assert_eq!(format.index.decode_root(&blocks[0]).unwrap().levels, levels);
            let toy = Toy::new(&blocks, csum);
            let dir = dir(Storage::Indexed(&toy));
            for (name, ino) in &names {
                assert_eq!(dir.lookup(&format, name).unwrap(), Some(Ino(*ino)));
            }
            let before = toy.asked.load(Ordering::Relaxed);
            assert_eq!(dir.lookup(&format, b"absent").unwrap(), None);
            assert_eq!(
                toy.asked.load(Ordering::Relaxed) - before,
                usize::from(levels) + 2,
                "root to leaf, no more"
            );
            assert_eq!(dir.lookup(&format, b".").unwrap(), Some(INO));
            assert_eq!(dir.lookup(&format, b"..").unwrap(), Some(PARENT));

            let (whole, faults) = listed(&dir, &format, usize::MAX);
            assert!(faults.is_empty(), "{faults:?}");
            assert_eq!(names_of(&whole[..2]), [".", ".."]);
            assert_eq!((whole[0].2, whole[1].2), (1, (1 << 32) + 1));
            let listing: BTreeMap<_, _> =
                whole.iter().map(|(name, ino, _)| (name.as_bytes().to_vec(), *ino)).collect();
            assert_eq!(listing.len(), names.len() + 2);
            assert!(names.iter().all(|(name, ino)| listing[name] == *ino));
            let hashes: Vec<_> = whole[2..]
                .iter()
                .map(|(name, _, _)| dirhash(version, &HASH_SEED, name.as_bytes()).unwrap())
                .collect();
            assert!(hashes.is_sorted());
            if count < 1000 {
                assert_eq!(listed(&dir, &format, 1), (whole.clone(), vec![]));
                assert_eq!(listed(&dir, &format, 7), (whole, vec![]));
            }
        }
    }
}

/// Names that share one legacy hash (which uses no seed and has no minor hash); found by trial.
const COLLIDING: [&str; 6] = ["zNWUb", "hfAde", "gZdJf", "VXLVg", "9-89h", "SMCkm"];

#[test]
fn names_of_one_hash_over_several_leaves_are_listed_once_wherever_a_listing_stops() {
    let others = (0..40).map(|i| format!("other{i}"));
    let names = numbered(COLLIDING.map(String::from).into_iter().chain(others));
    for per_leaf in 1..5 {
        let format = format(true);
        let blocks = indexed(true, HashVersion::Legacy, &names, per_leaf);
        let toy = Toy::new(&blocks, true);
        let dir = dir(Storage::Indexed(&toy));
        let (whole, faults) = listed(&dir, &format, usize::MAX);
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(whole.len(), names.len() + 2);
        for at_a_time in 1..8 {
            assert_eq!(listed(&dir, &format, at_a_time), (whole.clone(), vec![]), "{at_a_time} at a time");
        }
        for (name, ino) in &names {
            assert_eq!(dir.lookup(&format, name).unwrap(), Some(Ino(*ino)));
        }
    }
}

#[test]
fn a_damaged_index() {
    let names = numbered((0..900).map(|i| format!("name{i}")));
    for csum in [false, true] {
        let format = format(csum);
        let good = indexed(csum, HashVersion::HalfMd4, &names, 2);

        // A damaged root: listed and (without checksums) searched block by block.
        let mut blocks = good.clone();
        blocks[0][0x1D] = 9;
        let toy = Toy::new(&blocks, csum);
        let by_block = dir(Storage::Indexed(&toy));
        let (listing, faults) = listed(&by_block, &format, 50);
        let all: BTreeSet<_> = listing.iter().map(|(name, _, _)| name.clone()).collect();
        assert_eq!(all.len(), if csum { 900 } else { 902 }, "the dots are in the damaged block");
        assert!(!faults.is_empty());
        assert_eq!(by_block.lookup(&format, b"name77").is_ok(), !csum);

        // A damaged node: its names are missing from the listing, no others.
        let mut blocks = good.clone();
        blocks[2][8] ^= 1;
        let toy = Toy::new(&blocks, csum);
        let (listing, faults) = listed(&dir(Storage::Indexed(&toy)), &format, 50);
        assert!((600..902).contains(&listing.len()), "{}", listing.len());
        assert!(faults[0].starts_with("inode 12, logical block 2, block 2: index "), "{faults:?}");
        let lookups =
            names.iter().filter(|(name, _)| dir(Storage::Indexed(&toy)).lookup(&format, name).is_ok());
        assert_eq!(lookups.count(), if csum { listing.len() - 2 } else { 900 });

        // A leaf that is a hole.
        let mut toy = Toy::new(&good, csum);
        toy.holes.insert(20);
        let (listing, faults) = listed(&dir(Storage::Indexed(&toy)), &format, 50);
        assert_eq!(listing.len(), 900);
        assert!(faults.iter().all(|fault| fault.contains("logical block 20: directory: must have no holes")));
    }
}

#[test]
fn casefolded_directories() {
    let names = numbered(["Straße", "README", "readme.txt", "Ångström"].map(String::from));
    let format = format(true);
    let folded: Vec<_> =
        names.iter().map(|(name, ino)| (extant_ondisk::casefold::fold(name).into_owned(), *ino)).collect();
    // The index uses folded names: build it with them, then write the real ones to the leaf.
    let mut blocks = indexed(true, HashVersion::HalfMd4, &folded, 50);
    blocks[1] = block(true, false, &names);
    let toy = Toy::new(&blocks, true);
    for storage in [Storage::Indexed(&toy), Storage::Linear(&toy)] {
        let is_indexed = matches!(storage, Storage::Indexed(_));
        let dir = Dir { casefold: true, ..dir(storage) };
        for (name, ino) in
            [("STRASSE", 100), ("Readme", 101), ("readme.txt", 102), ("A\u{30A}NGSTRO\u{308}M", 103)]
        {
            let found = dir.lookup(&format, name.as_bytes());
            if is_indexed {
                assert_eq!(found.unwrap(), Some(Ino(ino)), "{name}");
            } else {
                assert_eq!(found.unwrap(), Some(Ino(ino)), "{name}, though the root is no leaf");
            }
        }
        if is_indexed {
            assert_eq!(dir.lookup(&format, b"absent").unwrap(), None);
            assert_eq!(listed(&dir, &format, 1).0.len(), 6);
        }
    }
}

#[test]
fn an_encrypted_and_casefolded_directory_is_searched_by_its_bytes() {
    let format = format(true);
    // Entries with hashes after their names: "." and "..", then two of 24 bytes.
    let mut leaf = block(true, true, &[]);
    let mut put = |at: usize, ino: u32, rec_len: u16, name: &[u8]| {
        leaf[at..at + 4].copy_from_slice(&ino.to_le_bytes());
        leaf[at + 4..at + 6].copy_from_slice(&rec_len.to_le_bytes());
        leaf[at + 6..at + 8].copy_from_slice(&[name.len() as u8, 1]);
        leaf[at + 8..at + 8 + name.len()].copy_from_slice(name);
    };
    put(12, 2, 12, b"..");
    put(24, 50, 24, b"\xFF/\0C");
    put(48, 51, (1012 - 48) as u16, b"\xFF/\0c");
    dirent::seal_tail(&mut leaf, SEED);
    let toy = Toy::new(&[leaf], true);
    let dir = Dir { casefold: true, encrypted: true, ..dir(Storage::Linear(&toy)) };
    assert_eq!(dir.lookup(&format, b"\xFF/\0C").unwrap(), Some(Ino(50)));
    assert_eq!(dir.lookup(&format, b"\xFF/\0c").unwrap(), Some(Ino(51)));
    assert_eq!(listed(&dir, &format, 1).0.len(), 4, "ciphertext may hold any byte");
}

/// Leaves are read ahead as far as the directory goes, whatever an index says (the toy holds that).
#[test]
fn nothing_behind_the_end_is_read_ahead() {
    let format = format(false);
    let root = RootInfo { ino: INO, parent: PARENT, hash_code: 0, filetype: true };
    let entries =
        [(0, 2), (1 << 28, 3)].map(|(hash, lblk)| extant_ondisk::htree::DxEntry { hash, block: Lblk(lblk) });
    let mut first = vec![0; BS.len()];
    format.index.encode_root(&root, 0, entries, &mut first);
    let leaf = block(false, false, &numbered(["name".to_owned()]));
    let toy = Toy::new(&[first, leaf.clone(), leaf], false);
    let (listing, faults) = listed(&dir(Storage::Indexed(&toy)), &format, 10);
    assert_eq!((listing.len(), faults.len()), (3, 1));
}

proptest! {
    #[test]
    fn hostile_directories_end(
        words in prop::collection::vec(prop::collection::vec((0u32..12, 0u32..9), 1..12), 1..8),
        noise in prop::collection::vec((0usize..8, 0usize..1024, any::<u8>()), 0..40),
        levels in 0u8..3, code in 0u8..4, linear: bool, at_a_time in 1usize..20,
    ) {
        // Every block starts as an index with small hashes and block numbers, or (odd blocks) as a leaf.
        let format = format(false);
        let root = RootInfo { ino: INO, parent: PARENT, hash_code: code, filetype: true };
        let mut blocks: Vec<_> = words.iter().enumerate().map(|(i, entries)| {
            let mut bytes = vec![0; BS.len()];
            let entries = entries.iter().map(|&(hash, lblk)| extant_ondisk::htree::DxEntry { hash: hash << 28, block: Lblk(lblk) });
            match i {
                0 => format.index.encode_root(&root, levels, entries, &mut bytes),
                i if i % 2 == 0 => format.index.encode_node(entries, &mut bytes),
                i => bytes = block(false, false, &numbered((0..20).map(|n| format!("{i}-{n}")))),
            }
            bytes
        }).collect();
        let count = blocks.len();
        for (i, at, byte) in noise {
            blocks[i % count][at] = byte;
        }
        let toy = Toy::new(&blocks, false);
        let dir = dir(if linear { Storage::Linear(&toy) } else { Storage::Indexed(&toy) });
        let _ = dir.lookup(&format, b"1-7");
        let mut from = Cursor::START;
        for _ in 0..50 {
            let mut count = 0;
            let _ = dir.list(&format, from, &mut |entry| {
                assert!(entry.next > from);
                assert!(!entry.name.is_empty());
                from = entry.next;
                count += 1;
                if count < at_a_time { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            }, &mut |_| ());
            if count < at_a_time {
                break;
            }
        }
    }

    #[test]
    fn a_listing_that_stops_and_continues_has_each_name_once(
        count in 1usize..400, per_leaf in 1usize..30, at_a_time in 1usize..50, code in 0u8..3, unsigned: bool,
    ) {
        let format = Format { unsigned_hash: unsigned, ..format(true) };
        let version = HashVersion::from_code(code, unsigned).unwrap();
        let names = numbered((0..count).map(|i| format!("{i}é{}", i * i)));
        let toy = Toy::new(&indexed(true, version, &names, per_leaf), true);
        let dir = dir(Storage::Indexed(&toy));
        let (listing, faults) = listed(&dir, &format, at_a_time);
        prop_assert!(faults.is_empty());
        let set: BTreeSet<_> = listing.iter().map(|(name, _, _)| name).collect();
        prop_assert_eq!((set.len(), listing.len()), (count + 2, count + 2));
        for (name, ino) in &names {
            prop_assert_eq!(dir.lookup(&format, name).unwrap(), Some(Ino(*ino)));
        }
    }
}

/// A damaged directory with files called "." and "..", and with a duplicate name. Readers leave the first two
/// out and can create only one of the duplicates. Each is reported as damage: linear, by hash and inline.
#[test]
fn names_that_cannot_be_listed_are_damage() {
    let names = |names: &[&str]| numbered(names.iter().map(|name| (*name).to_owned()));
    let later = names(&["a", ".", "..", "a"]);
    for dir_index in [false, true] {
        let mut format = format(false);
        format.features.compat = if dir_index { Features::DIR_INDEX } else { 0 };
        let one = Toy::new(&[block(false, true, &later)], false);
        let two = Toy::new(&[block(false, true, &[]), block(false, false, &later)], false);
        for (toy, dots) in [(&one, 2), (&two, 2)] {
            let (listing, faults) = listed(&dir(Storage::Linear(toy)), &format, usize::MAX);
            assert_eq!(names_of(&listing).iter().filter(|name| name.starts_with('.')).count(), dots);
            assert_eq!(names_of(&listing).iter().filter(|name| **name == "a").count(), 2);
            let by_hash = dir_index && toy.len == 1;
            assert_eq!(faults.len(), 2 + usize::from(by_hash), "{faults:?}");
            assert!(faults[0].contains("first two entries"), "{faults:?}");
        }
        let mut region = [0; 56];
        region.copy_from_slice(&block(false, false, &names(&[".", "x"]))[..56]);
        region[16 - 4..][4..6].copy_from_slice(&44u16.to_le_bytes());
        let inline = InlineDir { parent: PARENT, first: &region, second: &[] };
        let (listing, faults) = listed(&dir(Storage::Inline(&inline)), &format, usize::MAX);
        assert_eq!(listing.len(), 3, "{listing:?}");
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
    let format = format(false);
    let version = HashVersion::HalfMd4;
    let blocks = indexed(false, version, &names(&["a", "b", "..", "c", "b"]), 2);
    let toy = Toy::new(&blocks, false);
    let (listing, faults) = listed(&dir(Storage::Indexed(&toy)), &format, usize::MAX);
    assert_eq!(names_of(&listing).iter().filter(|name| **name == "..").count(), 1);
    assert_eq!(faults.len(), 2, "{faults:?}");
}
