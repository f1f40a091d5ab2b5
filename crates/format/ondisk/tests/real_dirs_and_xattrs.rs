//! Compares directories and extended attributes with e2fsprogs: this crate reads what e2fsprogs writes, and
//! e2fsprogs accepts what this crate writes.
//!
//! Needs mke2fs, debugfs and e2fsck; without them the tests print a message and pass. The one test that uses
//! the kernel needs root and loop mounts, and is ignored by default: `cargo test --test real_dirs_and_xattrs
//! -- --ignored`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use extant_base::checksum::crc32c;
use extant_base::{BlockSize, Ino, Lblk, Pblk};
use extant_ondisk::Features;
use extant_ondisk::acl::{Acl, AclEntry, AclTag};
use extant_ondisk::dirent::{DirBlockWriter, DirFormat, min_rec_len, seal_tail, verify_tail};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, NameHash, dirhash, seed_words};
use extant_ondisk::htree::{DxFormat, IndexPlan, Lookup, RootInfo, Step};
use extant_ondisk::xattr::{self, AttrValue};

fn tool(name: &str) -> Command {
    let sbin = Path::new("/usr/sbin").join(name);
    Command::new(if sbin.exists() { sbin } else { PathBuf::from(name) })
}

fn have_tools() -> bool {
    let have = ["mke2fs", "debugfs", "e2fsck"].iter().all(|name| tool(name).arg("-V").output().is_ok());
    if !have {
        println!("skipped: not installed: e2fsprogs");
    }
    have
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// An image in a temporary directory, with the superblock's values that the tests need.
struct Image {
    path: PathBuf,
    block_size: BlockSize,
    features: Features,
    inodes_count: u32,
    fs_seed: u32,
    hash_seed: [u32; 4],
    unsigned_hash: bool,
}

impl Image {
    fn make(dir: &Path, size: &str, options: &[&str]) -> Self {
        let path = dir.join("image");
        let made = tool("mke2fs")
            .args(["-q", "-F", "-t", "ext4"])
            .args(options)
            .arg(&path)
            .arg(size)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", text(&made));
        Self::open(path)
    }

    fn open(path: PathBuf) -> Self {
        let mut sb = [0; 1024];
        let mut file = fs::File::open(&path).unwrap();
        file.seek(SeekFrom::Start(1024)).unwrap();
        file.read_exact(&mut sb).unwrap();
        let word = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().unwrap());
        let features = Features { compat: word(0x5C), incompat: word(0x60), ro_compat: word(0x64) };
        let stored_seed = features.has_incompat(Features::CSUM_SEED);
        Self {
            path,
            block_size: BlockSize::from_log(word(0x18)).unwrap(),
            features,
            inodes_count: word(0),
            fs_seed: if stored_seed { word(0x270) } else { crc32c(!0, &sb[0x68..0x78]) },
            hash_seed: seed_words(sb[0xEC..0xFC].try_into().unwrap()),
            unsigned_hash: word(0x160) & 2 != 0,
        }
    }

    fn debugfs(&self, commands: &[String]) -> String {
        let script = self.path.with_extension("cmd");
        fs::write(&script, commands.join("\n") + "\n").unwrap();
        text(&tool("debugfs").arg("-w").arg("-f").arg(&script).arg(&self.path).output().unwrap())
    }

    fn debugfs1(&self, command: &str) -> String {
        self.debugfs(&[command.to_owned()])
    }

    /// e2fsck without repairs must find nothing; otherwise the failure prints `context`.
    fn assert_clean(&self, context: &str) {
        let checked = tool("e2fsck").args(["-fn"]).arg(&self.path).output().unwrap();
        let said: String = text(&checked).lines().take(40).collect::<Vec<_>>().join(
            "
",
        );
        assert!(
            checked.status.success(),
            "{context}
{said}"
        );
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut file = fs::File::open(&self.path).unwrap();
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        let mut file = fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        file.seek(SeekFrom::Start(offset)).unwrap();
        file.write_all(bytes).unwrap();
    }

    fn block(&self, pblk: u64) -> Vec<u8> {
        self.read(pblk * self.block_size.bytes(), self.block_size.len())
    }

    /// Byte offset and bytes (256) of the inode at `path`.
    fn inode(&self, path: &str) -> (u64, Vec<u8>) {
        let said = self.debugfs1(&format!("imap {path}"));
        let number = |after: &str, radix| {
            let tail = said.split(after).nth(1).unwrap_or_else(|| panic!("{said}"));
            let digits: String = tail.chars().take_while(char::is_ascii_hexdigit).collect();
            u64::from_str_radix(&digits, radix).unwrap()
        };
        let offset = number("located at block ", 10) * self.block_size.bytes() + number("offset 0x", 16);
        (offset, self.read(offset, 256))
    }

    fn ino(&self, path: &str) -> u32 {
        let said = self.debugfs1(&format!("imap {path}"));
        said.split("Inode ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    fn inode_seed(&self, ino: u32, inode: &[u8]) -> u32 {
        crc32c(crc32c(self.fs_seed, &ino.to_le_bytes()), &inode[0x64..0x68])
    }

    /// The blocks of a file, in logical order.
    fn blocks_of(&self, path: &str) -> Vec<Vec<u8>> {
        let (_, inode) = self.inode(path);
        let size = u64::from(u32::from_le_bytes(inode[4..8].try_into().unwrap()));
        let commands: Vec<_> =
            (0..self.block_size.blocks_for(size)).map(|lblk| format!("bmap {path} {lblk}")).collect();
        let said = self.debugfs(&commands);
        let pblks = said.lines().filter_map(|line| line.trim().parse::<u64>().ok());
        let blocks: Vec<_> = pblks.map(|pblk| self.block(pblk)).collect();
        assert_eq!(blocks.len(), commands.len(), "{said}");
        blocks
    }

    fn dir_format(&self) -> DirFormat {
        DirFormat::new(self.block_size, &self.features, self.inodes_count)
    }

    fn dx_format(&self) -> DxFormat {
        DxFormat::new(self.block_size, &self.features)
    }
}

/// Looks up `name` in the leaf that the index selects.
fn find_by_index(image: &Image, blocks: &[Vec<u8>], name: &[u8]) -> Option<Ino> {
    let mut lookup =
        Lookup::by_name(image.dx_format(), blocks.len() as u32, image.hash_seed, image.unsigned_hash, name);
    let mut step = lookup.start();
    loop {
        step = match step {
            Step::NeedBlock(lblk) => lookup.feed(&blocks[lblk.0 as usize]).unwrap(),
            Step::Leaf(lblk) => match image.dir_format().find(&blocks[lblk.0 as usize], name).unwrap() {
                Some(entry) => return Some(entry.ino),
                None => lookup.next_same_hash(),
            },
            Step::End => return None,
        }
    }
}

#[test]
fn directories_of_mke2fs_and_indexes_of_e2fsck_are_read() {
    if !have_tools() {
        return;
    }
    for (options, name_len) in [
        (&["-b", "1024"][..], 200),
        (&["-b", "4096"], 30),
        (&["-b", "65536"], 200),
        (&["-b", "1024", "-O", "^metadata_csum"], 200),
        (&["-b", "1024", "-E", "hash_alg=tea"], 100),
        (&["-b", "2048", "-E", "hash_alg=legacy"], 100),
    ] {
        // mke2fs copies in a directory of 1500 names, some of them not ASCII. Its blocks have no index.
        let temp = tempfile::tempdir().unwrap();
        let from = temp.path().join("from/d");
        fs::create_dir_all(&from).unwrap();
        let mut names = BTreeSet::new();
        for i in 0..1500 {
            let start = if i % 3 == 0 { format!("näme{i}-") } else { format!("name{i}-") };
            let name = format!("{start}{}", "x".repeat(name_len - start.len()));
            fs::write(from.join(&name), b"").unwrap();
            names.insert(name.into_bytes());
        }
        let (known, extra) = options.split_at(2);
        let mut args = known.to_vec();
        let from = temp.path().join("from");
        args.extend(["-N", "4096", "-d", from.to_str().unwrap()]);
        let mut hash_alg = None;
        match extra {
            ["-E", alg] => hash_alg = alg.strip_prefix("hash_alg="),
            other => args.extend(other),
        }
        let image = Image::make(temp.path(), "64M", &args);
        if let Some(alg) = hash_alg {
            image.debugfs1(&format!("set_super_value def_hash_version {alg}"));
        }
        let format = image.dir_format();
        let read_all = |blocks: &[Vec<u8>]| -> BTreeSet<Vec<u8>> {
            let entries = blocks.iter().flat_map(|block| format.entries(block).map(Result::unwrap));
            let kept = entries.filter(|e| e.is_used() && !e.is_dot_or_dotdot());
            kept.inspect(|e| assert_eq!(e.file_type, FileType::Regular)).map(|e| e.name.to_vec()).collect()
        };
        let (_, inode) = image.inode("/d");
        let seed = image.inode_seed(image.ino("/d"), &inode);
        let linear = image.blocks_of("/d");
        assert_eq!(read_all(&linear), names);
        for block in linear.iter().filter(|_| format.csum) {
            verify_tail(block, seed).unwrap();
        }

        // e2fsck -D builds an index. The index finds every name, and no other.
        let packed = tool("e2fsck").args(["-fyD"]).arg(&image.path).output().unwrap();
        assert!(packed.status.code().unwrap() <= 1, "{}", text(&packed));
        let (_, inode) = image.inode("/d");
        assert_ne!(inode[0x21] & 0x10, 0, "the INDEX flag is set");
        let blocks = image.blocks_of("/d");
        let root = image.dx_format().decode_root(&blocks[0]).unwrap();
        assert_eq!((root.ino, root.parent), (Ino(image.ino("/d")), Ino(2)));
        if let Some(alg) = hash_alg {
            assert_eq!(root.hash_code, if alg == "tea" { 2 } else { 0 });
        }
        for name in &names {
            assert!(find_by_index(&image, &blocks, name).is_some(), "{}", String::from_utf8_lossy(name));
        }
        assert_eq!(find_by_index(&image, &blocks, b"absent"), None);

        // Every block is an index block or a leaf, each with a right checksum. Encoding the index again
        // changes nothing.
        let mut lookup = Lookup::by_hash(image.dx_format(), blocks.len() as u32, 0);
        let mut step = lookup.start();
        let mut index = BTreeSet::new();
        let mut leaves = BTreeSet::new();
        loop {
            step = match step {
                Step::NeedBlock(lblk) => {
                    let block = &blocks[lblk.0 as usize];
                    image.dx_format().verify(block, seed).unwrap();
                    index.insert(lblk);
                    lookup.feed(block).unwrap()
                }
                Step::Leaf(lblk) => {
                    if format.csum {
                        verify_tail(&blocks[lblk.0 as usize], seed).unwrap();
                    }
                    leaves.insert(lblk);
                    lookup.next_leaf()
                }
                Step::End => break,
            }
        }
        assert_eq!(index.len() + leaves.len(), blocks.len());
        let dx = image.dx_format();
        for lblk in index {
            let old = &blocks[lblk.0 as usize];
            let mut new = vec![0; old.len()];
            let at = if lblk == Lblk(0) { 0x20 } else { 8 };
            if lblk == Lblk(0) {
                let info = RootInfo {
                    ino: root.ino,
                    parent: root.parent,
                    hash_code: root.hash_code,
                    filetype: format.filetype,
                };
                dx.encode_root(&info, root.levels, root.entries.iter(), &mut new);
            } else {
                dx.encode_node(dx.decode_node(old).unwrap().iter(), &mut new);
            }
            dx.seal(&mut new, seed);
            let count = usize::from(u16::from_le_bytes([new[at + 2], new[at + 3]]));
            assert_eq!(new[..at + 8 * count], old[..at + 8 * count]);
            dx.verify(&new, seed).unwrap();
        }
    }
}

/// Packs names into leaves and an index, like a builder. Returns the blocks of the whole directory.
fn packed_directory(image: &Image, ino: u32, target: Ino, names: &[Vec<u8>], seed: u32) -> Vec<Vec<u8>> {
    let version = HashVersion::from_code(1, image.unsigned_hash).unwrap();
    let mut hashed: Vec<(NameHash, &Vec<u8>)> =
        names.iter().map(|name| (dirhash(version, &image.hash_seed, name).unwrap(), name)).collect();
    hashed.sort();
    let format = image.dir_format();
    let mut leaves: Vec<Vec<u8>> = Vec::new();
    let mut first_hashes = Vec::new();
    let mut rest = &hashed[..];
    let mut last_hash = None;
    while let Some((first, _)) = rest.first() {
        first_hashes.push(first.hash | u32::from(last_hash == Some(first.hash)));
        let mut block = vec![0; image.block_size.len()];
        let mut writer = DirBlockWriter::new(&format, &mut block);
        while let Some(((hash, name), after)) = rest.split_first() {
            if min_rec_len(name.len(), false) > writer.remaining() {
                break;
            }
            assert!(writer.push(target, FileType::Regular, name));
            last_hash = Some(hash.hash);
            rest = after;
        }
        writer.finish();
        if format.csum {
            seal_tail(&mut block, seed);
        }
        leaves.push(block);
    }
    let plan = IndexPlan::new(leaves.len() as u64, &image.dx_format()).unwrap();
    let root = RootInfo { ino: Ino(ino), parent: Ino::ROOT, hash_code: 1, filetype: format.filetype };
    let mut blocks = Vec::new();
    for i in 0..plan.index_blocks() {
        let mut block = vec![0; image.block_size.len()];
        plan.encode_index_block(i, &first_hashes, &root, seed, &mut block);
        blocks.push(block);
    }
    blocks.extend(leaves);
    assert_eq!(blocks.len() as u32, plan.total_blocks());
    blocks
}

#[test]
fn packed_directories_are_accepted_by_e2fsck() {
    if !have_tools() {
        return;
    }
    // Options, number of names, length of each, resulting index levels.
    for (options, count, name_len, levels) in [
        (&["-b", "1024"][..], 300, 250, 0),
        (&["-b", "1024"], 3000, 250, 1),
        (&["-b", "1024", "-O", "large_dir"], 50_000, 250, 2),
        (&["-b", "1024", "-O", "^metadata_csum"], 3000, 250, 1),
        (&["-b", "4096"], 60_000, 40, 1),
        (&["-b", "65536"], 60_000, 40, 0),
        (&["-b", "65536", "-O", "^metadata_csum"], 60_000, 40, 0),
        (&["-b", "1024", "-O", "^filetype"], 3000, 250, 1),
    ] {
        // The directory's bytes are copied in as a regular file, which is then changed to a directory. All of
        // its names are links to one file.
        let temp = tempfile::tempdir().unwrap();
        let image = Image::make(temp.path(), "128M", options);
        let (ino, target) = (12, 13);
        let names: Vec<Vec<u8>> = (0..count).map(|i| format!("{i:x<name_len$}").into_bytes()).collect();
        // debugfs chooses the generation; the first pass only determines the number of blocks.
        let bytes = packed_directory(&image, ino, Ino(target), &names, 0).concat();
        let host = temp.path().join("bytes");
        fs::write(&host, &bytes).unwrap();
        let empty = temp.path().join("empty");
        fs::write(&empty, b"").unwrap();
        let script = [
            format!("write {} d", host.display()),
            format!("write {} target", empty.display()),
            "unlink d".into(),
            "unlink target".into(),
        ];
        image.debugfs(&script);
        let (_, inode) = image.inode(&format!("<{ino}>"));
        let seed = image.inode_seed(ino, &inode);
        let blocks = packed_directory(&image, ino, Ino(target), &names, seed);
        assert_eq!(image.dx_format().decode_root(&blocks[0]).unwrap().levels, levels);
        let commands: Vec<_> = (0..blocks.len()).map(|lblk| format!("bmap <{ino}> {lblk}")).collect();
        let said = image.debugfs(&commands);
        let pblks: Vec<u64> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
        assert_eq!(pblks.len(), blocks.len());
        for (pblk, block) in pblks.iter().zip(&blocks) {
            image.write(pblk * image.block_size.bytes(), block);
        }
        let script = [
            format!("sif <{ino}> mode 040755"),
            format!("sif <{ino}> links_count 2"),
            format!("sif <{ino}> flags 0x81000"),
            format!("sif <{target}> links_count {count}"),
            format!("link <{ino}> d"),
            "sif <2> links_count 4".into(),
            "set_block_group 0 used_dirs_count 3".into(),
            "set_block_group 0 checksum calc".into(),
        ];
        let said = image.debugfs(&script);
        image.assert_clean(&said);
        for name in names.iter().step_by(97) {
            assert_eq!(find_by_index(&image, &blocks, name), Some(Ino(target)));
        }
    }
}

#[test]
fn attributes_of_debugfs_are_read_and_ours_are_accepted() {
    if !have_tools() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let image = Image::make(temp.path(), "64M", &["-b", "4096", "-I", "256", "-O", "ea_inode"]);
    let host = temp.path().join("value");
    let empty = temp.path().join("empty");
    fs::write(&empty, b"").unwrap();
    fs::write(&host, vec![0x5A; 3000]).unwrap();
    let big = temp.path().join("big");
    let big_value: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
    fs::write(&big, &big_value).unwrap();
    let said = image.debugfs(&[
        format!("write {} f", empty.display()),
        "ea_set f user.small tiny".into(),
        "ea_set f security.näme value".into(),
        format!("ea_set -f {} f user.large", host.display()),
        "ea_set f trusted.block in-the-block-with-more-than-fits-in-the-rest-of-the-inode-0123456789".into(),
        format!("ea_set -f {} f user.huge", big.display()),
    ]);
    // debugfs does not add the EA inode's blocks to the file's count; e2fsck fixes the count.
    let fixed = tool("e2fsck").args(["-fy"]).arg(&image.path).output().unwrap();
    assert!(fixed.status.code().unwrap() <= 1, "{}", text(&fixed));
    image.assert_clean(&said);

    // Small values are after the inode's fields, the others in the block; all hashes are right.
    let (inode_at, inode) = image.inode("f");
    let ino = image.ino("f");
    let area_at = 128 + usize::from(u16::from_le_bytes([inode[0x80], inode[0x81]]));
    let acl_block = u64::from(u32::from_le_bytes(inode[0x68..0x6C].try_into().unwrap()));
    let block = image.block(acl_block);
    xattr::verify_block(&block, image.fs_seed, Pblk(acl_block)).unwrap();
    let in_inode = xattr::decode_ibody(&inode[area_at..]).unwrap();
    let (header, in_block) = xattr::decode_block(&block).unwrap();
    assert_eq!(header.refcount, 1);
    assert!(!in_inode.is_empty() && !in_block.is_empty());
    let all: Vec<_> = in_inode.iter().chain(&in_block).collect();
    assert!(all.iter().all(|attr| attr.hash_matches()), "{all:?}");
    let value_of = |name: &str| {
        let (index, suffix) = xattr::split_name(name.as_bytes()).unwrap();
        all.iter().find(|a| a.attr.index == index && a.attr.name == suffix).unwrap().attr.value
    };
    assert_eq!(value_of("user.small"), AttrValue::Bytes(b"tiny"));
    assert_eq!(value_of("security.näme"), AttrValue::Bytes(b"value"));
    assert_eq!(value_of("user.large"), AttrValue::Bytes(&[0x5A; 3000]));
    let AttrValue::Inode { ino: ea_ino, size, hash } = value_of("user.huge") else {
        panic!("in an EA inode")
    };
    assert_eq!(size as usize, big_value.len());
    assert_eq!(hash, crc32c(image.fs_seed, &big_value));
    let (_, ea_inode) = image.inode(&format!("<{ea_ino}>"));
    assert_eq!(ea_inode[8..12], hash.to_le_bytes(), "i_atime of the EA inode");

    // Both areas are encoded again with the same attributes: e2fsck and debugfs see no difference.
    let listed = image.debugfs1("ea_list f");
    let attrs: Vec<_> = in_inode.iter().map(|a| a.attr).collect();
    let mut new_inode = inode.clone();
    xattr::encode_ibody(&attrs, &mut new_inode[area_at..]).unwrap();
    let seed = image.inode_seed(ino, &inode);
    new_inode[0x7C..0x7E].fill(0);
    new_inode[0x82..0x84].fill(0);
    let sum = crc32c(seed, &new_inode).to_le_bytes();
    new_inode[0x7C..0x7E].copy_from_slice(&sum[..2]);
    new_inode[0x82..0x84].copy_from_slice(&sum[2..]);
    image.write(inode_at, &new_inode);
    let attrs: Vec<_> = in_block.iter().rev().map(|a| a.attr).collect();
    let mut new_block = vec![0; block.len()];
    xattr::encode_block(&attrs, 1, &mut new_block).unwrap();
    xattr::seal_block(&mut new_block, image.fs_seed, Pblk(acl_block));
    image.write(acl_block * image.block_size.bytes(), &new_block);
    image.assert_clean("attributes written anew");
    let sorted = |said: &str| said.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&image.debugfs1("ea_list f")), sorted(&listed));
}

/// A mounted image; dropping it unmounts, also when a test fails.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

#[test]
#[ignore = "mounts an image: needs root"]
fn the_kernels_directories_attributes_and_acls_are_read_and_it_reads_ours() {
    // The kernel builds the index by insertion, and stores the ACL and attributes in both areas.
    let temp = tempfile::tempdir().unwrap();
    let image = Image::make(temp.path(), "64M", &["-b", "1024"]);
    let mounted = temp.path().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    };
    let mount = || {
        run(Command::new("mount").args(["-o", "loop"]).arg(&image.path).arg(&mounted));
        Mounted(&mounted)
    };
    let hex = |bytes: &[u8]| bytes.iter().fold("0x".to_owned(), |hex, byte| hex + &format!("{byte:02x}"));
    let set = |name: &str, value: &[u8], file: &Path| {
        run(Command::new("setfattr").args(["-n", name, "-v", &hex(value)]).arg(file));
    };
    let acl = Acl {
        entries: [
            (AclTag::UserObj, 6),
            (AclTag::User(1000), 4),
            (AclTag::GroupObj, 4),
            (AclTag::Mask, 4),
            (AclTag::Other, 0),
        ]
        .map(|(tag, perm)| AclEntry { tag, perm })
        .to_vec(),
    };
    let names: Vec<Vec<u8>> = (0..2500).map(|i| format!("näme-{i:x<150}").into_bytes()).collect();
    let live = mount();
    fs::create_dir(mounted.join("d")).unwrap();
    for name in &names {
        fs::write(mounted.join("d").join(String::from_utf8_lossy(name).as_ref()), b"").unwrap();
    }
    let f = mounted.join("f");
    fs::write(&f, b"").unwrap();
    set("system.posix_acl_access", &acl.to_xattr(), &f);
    set("user.small", b"s", &f);
    set("user.large", &[9; 500], &f);
    set("user.lärge", &[8; 100], &f);
    drop(live);

    let blocks = image.blocks_of("/d");
    let (_, inode) = image.inode("/d");
    let seed = image.inode_seed(image.ino("/d"), &inode);
    assert!(image.dx_format().decode_root(&blocks[0]).unwrap().levels > 0);
    for block in &blocks {
        let good = image.dx_format().verify(block, seed).is_ok() || verify_tail(block, seed).is_ok();
        assert!(good, "every block is sealed");
    }
    for name in &names {
        assert!(find_by_index(&image, &blocks, name).is_some());
    }

    let (_, inode) = image.inode("/f");
    let area_at = 128 + usize::from(u16::from_le_bytes([inode[0x80], inode[0x81]]));
    let place = u64::from(u32::from_le_bytes(inode[0x68..0x6C].try_into().unwrap()));
    let block = image.block(place);
    xattr::verify_block(&block, image.fs_seed, Pblk(place)).unwrap();
    let in_inode = xattr::decode_ibody(&inode[area_at..]).unwrap();
    let (header, in_block) = xattr::decode_block(&block).unwrap();
    assert!(in_inode.iter().all(|attr| attr.hash == 0), "as the kernel writes them");
    assert!(in_block.iter().chain(&in_inode).all(|attr| attr.hash_matches()));
    assert_eq!(header.hash, xattr::block_hash(in_block.iter().map(|attr| attr.hash)));
    assert_eq!(in_inode.len() + in_block.len(), 4);
    let stored_acl =
        in_inode.iter().chain(&in_block).find(|attr| attr.attr.index == xattr::INDEX_ACL_ACCESS).unwrap();
    assert_eq!(stored_acl.attr.value, AttrValue::Bytes(&acl.to_disk()));

    // Our encoding of the block differs from the kernel's only in the offsets of the values; the kernel reads
    // it.
    let attrs: Vec<_> = in_block.iter().map(|attr| attr.attr).collect();
    let mut ours = vec![0; block.len()];
    xattr::encode_block(&attrs, 1, &mut ours).unwrap();
    xattr::seal_block(&mut ours, image.fs_seed, Pblk(place));
    image.write(place * image.block_size.bytes(), &ours);
    image.assert_clean("attributes written anew");
    let live = mount();
    let read =
        Command::new("getfattr").args(["-d", "-m", "-", "-e", "hex", "--absolute-names"]).arg(&f).output();
    drop(live);
    let read = text(&read.unwrap());
    for (name, value) in [
        ("system.posix_acl_access", acl.to_xattr()),
        ("user.small", b"s".to_vec()),
        ("user.large", vec![9; 500]),
    ] {
        assert!(read.contains(&format!("{name}={}", hex(&value))), "{read}");
    }
}
