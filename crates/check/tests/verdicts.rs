//! One field at a time is damaged, checksums are made to fit again, and our verdict is held against e2fsck's.

use std::path::Path;

use base::{BlockSize, Group, Ino, Pblk};
use check::Options;
use device::{Device, MemDevice};
use ondisk::group_desc::{ChecksumRule, GroupDesc};
use ondisk::inode::{self, Inode};
use ondisk::{Geometry, Superblock, extent, xattr};
use testkit::corrupt::{Region, corpus};

/// A structure with a checksum of its own.
enum Sealed {
    Superblock,
    Desc(u32),
    Inode(u32),
    ExtentNode { ino: u32 },
    XattrBlock,
    Nothing,
}

struct Layout {
    sb: Superblock,
    geometry: Geometry,
    parts: Vec<(Region, Sealed)>,
}

impl Layout {
    fn of(image: &[u8]) -> Self {
        let sb = Superblock::decode(&image[1024..]).unwrap();
        let geometry = Geometry::new(&sb).unwrap();
        let mut layout = Self { sb, geometry, parts: Vec::new() };
        layout.add("superblock", 1024, 1020, Sealed::Superblock);
        for group in 0..layout.geometry.groups {
            let at = layout.desc_at(group);
            layout.add("group descriptor", at, layout.geometry.desc_size, Sealed::Desc(group));
            let desc = GroupDesc::decode(&image[at..at + layout.geometry.desc_size]).unwrap();
            layout.add("block bitmap", layout.at(desc.block_bitmap), layout.bs(), Sealed::Nothing);
            if group == 0 {
                layout.add("inode bitmap", layout.at(desc.inode_bitmap), layout.bs(), Sealed::Nothing);
            }
        }
        let size = layout.geometry.inode_size;
        for number in 1..=40u32 {
            let at = layout.inode_at(image, number);
            let bytes = &image[at..at + size];
            let Ok(inode) = Inode::decode(bytes) else { continue };
            if inode.mode == 0 && number > 10 {
                continue;
            }
            let kind = if number < 11 { "reserved inode" } else { "inode" };
            layout.add(kind, at, size, Sealed::Inode(number));
            if number > 10 {
                // A second time, so that the attributes in the inode get their share.
                layout.add("inode attributes", at + 160, size - 160, Sealed::Inode(number));
            }
            if inode.file_acl != 0 {
                layout.add("attribute block", layout.at(inode.file_acl), layout.bs(), Sealed::XattrBlock);
            }
            if inode.has_flag(inode::flags::EXTENTS) && inode.block[6] == 1 {
                let child = u32::from_le_bytes([16, 17, 18, 19].map(|i| inode.block[i]));
                let at = layout.at(child.into());
                layout.add("extent node", at, 12 + 12 * 20, Sealed::ExtentNode { ino: number });
            }
        }
        layout
    }

    fn add(&mut self, kind: &str, offset: usize, len: usize, seal: Sealed) {
        self.parts.push((Region { kind: kind.into(), offset, len }, seal));
    }

    fn bs(&self) -> usize {
        self.geometry.block_size.len()
    }

    fn at(&self, block: u64) -> usize {
        block as usize * self.bs()
    }

    fn desc_at(&self, group: u32) -> usize {
        let (block, within) = self.geometry.descriptor_place(Group(group));
        self.at(block.0) + within
    }

    fn inode_at(&self, image: &[u8], number: u32) -> usize {
        let (group, index) = self.geometry.inode_place(Ino(number)).unwrap();
        let desc = self.desc_at(group.0);
        let desc = GroupDesc::decode(&image[desc..desc + self.geometry.desc_size]).unwrap();
        self.at(desc.inode_table) + index as usize * self.geometry.inode_size
    }

    /// The checksum that fits the damaged structure: where it stands, and its bytes.
    fn reseal(&self, whole: &[u8], image: &[u8], part: &(Region, Sealed)) -> Option<(usize, Vec<u8>)> {
        let seed_of = |number: u32| {
            let at = self.inode_at(whole, number);
            let generation = u32::from_le_bytes([0x64, 0x65, 0x66, 0x67].map(|i| image[at + i]));
            inode::inode_seed(self.sb.fs_seed(), Ino(number), generation)
        };
        if !self.sb.features.metadata_csum() {
            return None;
        }
        match part.1 {
            Sealed::Superblock => {
                Superblock::decode(&image[1024..]).ok().map(|sb| (1024, sb.sealed().to_vec()))
            }
            Sealed::Desc(group) => {
                let at = self.desc_at(group);
                let mut bytes = image[at..at + self.geometry.desc_size].to_vec();
                ChecksumRule::of(&self.sb).seal(group, &mut bytes);
                Some((at, bytes))
            }
            Sealed::Inode(number) => {
                let at = self.inode_at(whole, number);
                let mut bytes = image[at..at + self.geometry.inode_size].to_vec();
                inode::seal(&mut bytes, seed_of(number));
                Some((at, bytes))
            }
            Sealed::ExtentNode { ino } => {
                let at = part.0.offset;
                let mut bytes = image[at..at + self.bs()].to_vec();
                let max = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
                (16 + 12 * max <= bytes.len()).then(|| {
                    extent::seal(&mut bytes, seed_of(ino));
                    (at, bytes)
                })
            }
            Sealed::XattrBlock => {
                let at = part.0.offset;
                let mut bytes = image[at..at + self.bs()].to_vec();
                xattr::seal_block(&mut bytes, self.sb.fs_seed(), Pblk((at / self.bs()) as u64));
                Some((at, bytes))
            }
            Sealed::Nothing => None,
        }
    }
}

/// Fields whose damage we call an error though e2fsck lets it pass, and why.
fn knowingly_stricter(codes: &[&str]) -> bool {
    // The kernel refuses to use the tree (EX001: depth of a node) or the journal (IN021, for which e2fsck takes the
    // superblock's copy of the inode).
    codes.iter().all(|code| ["EX001", "IN021", "BM002", "JO001", "JO017", "JO020"].contains(code))
}

fn populate(dir: &Path) {
    std::fs::write(dir.join("small"), vec![7; 300]).unwrap();
    std::fs::write(dir.join("file"), vec![7; 5000]).unwrap();
    std::fs::create_dir(dir.join("dir")).unwrap();
    std::os::unix::fs::symlink("small", dir.join("fast")).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), dir.join("slow")).unwrap();
    // A file of many pieces has an extent tree with a node.
    let sparse = std::fs::File::create(dir.join("sparse")).unwrap();
    for i in 0..12 {
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 1024], i * 4096).unwrap();
    }
    for (name, len) in [("user.a", 5), ("user.big", 400), ("user.c", 2)] {
        let value = "v".repeat(len);
        let file = dir.join("file");
        testkit::run("setfattr", ["-n", name, "-v", &value, file.to_str().unwrap()]);
    }
}

fn compare(recipe: &[&str], n: usize, seed: u64) {
    let dir = testkit::scratch();
    let (source, path) = (dir.path().join("src"), dir.path().join("t.img"));
    std::fs::create_dir(&source).unwrap();
    populate(&source);
    let fixed = ["-q", "-F", "-b", "1024", "-d", source.to_str().unwrap()];
    testkit::run("mke2fs", recipe.iter().chain(&fixed).chain(&[path.to_str().unwrap(), "16M"]));
    testkit::e2fsck_clean(&path);
    let whole = std::fs::read(&path).unwrap();
    let layout = Layout::of(&whole);
    assert_eq!(layout.geometry.block_size, BlockSize::MIN);
    let regions: Vec<Region> = layout.parts.iter().map(|(region, _)| region.clone()).collect();
    let device = MemDevice::new(whole.len() as u64);
    device.write_at(0, &whole).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let put = |at: usize, bytes: &[u8]| {
        device.write_at(at as u64, bytes).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at as u64).unwrap();
    };
    let mut image = whole.clone();
    let (mut differ, mut stricter, mut count) = (Vec::new(), 0, 0);
    for mutation in corpus(&whole, &regions, n, seed) {
        let part = layout
            .parts
            .iter()
            .find(|(region, _)| region.kind == mutation.kind && region.offset == mutation.region);
        let part = part.unwrap();
        let mut patch = mutation.apply(&mut image);
        if let Some((at, bytes)) = layout.reseal(&whole, patch.image(), part) {
            patch.write(at, &bytes);
        }
        let changes = patch.changes();
        for change in &changes {
            put(change.start, &patch.image()[change.clone()]);
        }
        let report = check::check(&device, &Options::default()).unwrap();
        let mut fsck = testkit::command("e2fsck");
        let fsck = fsck.arg("-fn").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&fsck.stdout) + String::from_utf8_lossy(&fsck.stderr);
        // e2fsck exits with 0 when it found the primary superblock or descriptors unusable and all is well with a
        // backup's, and when descriptors' checksums are wrong. It does not call that sound.
        let complains =
            said.contains("trying backup blocks") || said.contains("descriptor checksums are invalid");
        let (ours, theirs) = (report.clean(), fsck.status.code() == Some(0) && !complains);
        count += 1;
        if ours != theirs {
            let codes: Vec<&str> = report.counts.keys().copied().collect();
            if !ours && knowingly_stricter(&codes) {
                stricter += 1;
            } else {
                let says: String = said.replace('\n', " | ").chars().take(300).collect();
                differ.push(format!("{mutation}: we {codes:?}, e2fsck {:?} {says}", fsck.status.code()));
            }
        }
        drop(patch);
        for change in changes {
            put(change.start, &whole[change]);
        }
    }
    eprintln!("{recipe:?}: {count} mutations, {} differ, {stricter} knowingly", differ.len());
    for line in &differ {
        eprintln!("  {line}");
    }
    assert!(differ.len() + stricter <= count / 50, "more than 2 % of the verdicts differ");
}

#[test]
fn verdicts_on_ext4_agree_with_e2fsck() {
    compare(&["-t", "ext4"], 1200, 1);
}

#[test]
fn verdicts_without_checksums_agree_with_e2fsck() {
    compare(&["-t", "ext4", "-O", "^metadata_csum,^64bit,^flex_bg"], 800, 2);
}

#[test]
fn verdicts_on_ext3_agree_with_e2fsck() {
    compare(&["-t", "ext3"], 800, 3);
}
