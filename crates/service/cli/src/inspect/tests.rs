//! Damage: the tests flip seeded bytes all over small images, and print every view of each. Nothing may
//! panic, hang, or print invalid JSON.
//!
//! `EXTANT_SEED=n cargo test -p extant-cli inspect` tries other bytes; a failure names the seed and the view.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_device::{Device, DeviceFault};
use extant_testkit::{command, run, scratch};
use serde_json::Value;

use super::{InspectError, TargetArg, What, print};

/// Time limit for one view of one small image, however damaged. It is far above the expected time, for slow
/// machines.
const SLOW: Duration = Duration::from_secs(20);

/// A read-only image with some bytes replaced.
struct Patched {
    base: Arc<Vec<u8>>,
    patches: Vec<(usize, u8)>,
    /// Where the device ends.
    size: usize,
}

impl Device for Patched {
    fn size_bytes(&self) -> u64 {
        self.size as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.size_bytes()) {
            return Err(DeviceFault::OutOfRange { what: "read", offset, len, size: self.size_bytes() });
        }
        let start = offset as usize;
        buf.copy_from_slice(&self.base[start..start + buf.len()]);
        for &(at, byte) in &self.patches {
            if let Some(target) = at.checked_sub(start).and_then(|at| buf.get_mut(at)) {
                *target = byte;
            }
        }
        Ok(())
    }

    fn write_at(&self, _: u64, _: &[u8]) -> Result<(), DeviceFault> {
        unreachable!("inspect never writes")
    }

    fn zero_at(&self, _: u64, _: u64) -> Result<(), DeviceFault> {
        unreachable!("inspect never writes")
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        unreachable!("inspect never writes")
    }
}

/// A small random number generator (xorshift64*), good enough to choose bytes.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// A tree with contents for every view: an indexed directory, a file in many pieces, attributes, links.
fn make_tree(dir: &Path) {
    std::fs::create_dir_all(dir.join("many")).unwrap();
    for i in 0..300 {
        std::fs::write(dir.join(format!("many/a file with a long name {i}")), b"").unwrap();
    }
    let mut pieces = std::fs::File::create(dir.join("pieces")).unwrap();
    for _ in 0..12 {
        pieces.write_all(&[7; 4096]).unwrap();
        std::io::Seek::seek(&mut pieces, std::io::SeekFrom::Current(4096)).unwrap();
    }
    pieces.write_all(b"end").unwrap();
    std::fs::write(dir.join("small"), b"small").unwrap();
    std::os::unix::fs::symlink("small", dir.join("link")).unwrap();
    std::os::unix::fs::symlink("x/".repeat(40), dir.join("long link")).unwrap();
}

/// The bytes of an image of that tree, with an indexed directory, attributes, an orphan, and a journal to
/// replay.
fn make_image(name: &str, mkfs: &[&str]) -> Arc<Vec<u8>> {
    let dir = scratch();
    let (tree, image) = (dir.path().join("tree"), dir.path().join(name));
    make_tree(&tree);
    let mut args: Vec<OsString> = ["-q", "-F", "-b", "1024"].map(OsString::from).to_vec();
    args.extend(mkfs.iter().map(OsString::from));
    args.extend(["-d".into(), tree.into(), image.clone().into(), "6M".into()]);
    run("mke2fs", args);
    // Exit code 1: e2fsck changed the image, as requested.
    let optimized = command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    assert!(optimized.status.code().is_some_and(|code| code <= 1), "{optimized:?}");
    let block = dir.path().join("block");
    std::fs::write(&block, [0x5A; 2048]).unwrap();
    let requests = dir.path().join("requests");
    let journal = format!(
        "ea_set small user.text value\nea_set small user.long {}\nssv last_orphan 14\njo\njw -b 700,701 {}\njw -r 700\njc\n",
        "v".repeat(200),
        block.display()
    );
    std::fs::write(&requests, journal).unwrap();
    run("debugfs", ["-w".as_ref(), "-f".as_ref(), requests.as_os_str(), image.as_os_str()]);
    Arc::new(std::fs::read(&image).unwrap())
}

fn target(text: &str) -> TargetArg {
    TargetArg { target: text.into() }
}

fn views() -> Vec<What> {
    let mut views = vec![What::Super, What::Groups, What::Group { number: 0 }];
    for name in ["2", "7", "8", "12", "13", "/small", "/link", "/long link", "/pieces"] {
        views.push(What::Inode(target(name)));
    }
    for name in ["/pieces", "8", "7", "/many"] {
        views.push(What::Extents(target(name)));
    }
    views.extend([What::Dir(target("/")), What::Dir(target("/many")), What::Htree(target("/many"))]);
    views.extend([What::Xattr(target("/small")), What::Xattr(target("2"))]);
    views.extend([What::Journal, What::Orphans, What::Free]);
    views
}

/// Prints every view, and checks the JSON. Returns the number of printed views, and of damages found.
fn print_all(base: &Arc<Vec<u8>>, patches: &[(usize, u8)], size: usize, story: &str) -> (usize, usize) {
    let (mut printed, mut damages) = (0, 0);
    for (i, what) in views().iter().enumerate() {
        let json = i % 2 == patches.len() % 2;
        let device = Patched { base: Arc::clone(base), patches: patches.to_vec(), size };
        let mut out = Vec::new();
        let begun = Instant::now();
        let result = print(Box::new(device), what, json, &mut out);
        let took = begun.elapsed();
        assert!(took < SLOW, "{story}: {what:?} took {took:?}");
        match result {
            Ok(damage) => {
                printed += 1;
                damages += damage.len();
                if json {
                    let value: Value = serde_json::from_slice(&out)
                        .unwrap_or_else(|error| panic!("{story}: {what:?}: no JSON: {error}"));
                    assert_eq!(
                        value["damage"].as_array().map(Vec::len),
                        Some(damage.len()),
                        "{story}: {what:?}"
                    );
                } else {
                    let text =
                        String::from_utf8(out).unwrap_or_else(|_| panic!("{story}: {what:?}: no UTF-8"));
                    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{story}: {what:?}: {text}");
                }
            }
            Err(error) => {
                assert!(out.is_empty(), "{story}: {what:?}: {error}, but something was printed before")
            }
        }
    }
    (printed, damages)
}

/// Sectors with contents, where mutations have an effect.
fn used_sectors(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() / 512)
        .filter(|sector| bytes[sector * 512..][..512].iter().any(|byte| *byte != 0))
        .collect()
}

fn flip_everywhere(name: &str, base: &Arc<Vec<u8>>, rounds: u64) {
    let first: u64 = std::env::var("EXTANT_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let all = views().len();
    let (printed, _) = print_all(base, &[], base.len(), name);
    assert!(printed + 4 >= all, "{name}: only {printed} of {all} views of the sound image");
    let sectors = used_sectors(base);
    let (mut damages, mut printed) = (0, 0);
    for seed in first..first + rounds {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut patches = Vec::new();
        // One to a few dozen bytes; extreme values are more likely to pass checks than random ones.
        for _ in 0..1 << rng.below(6) {
            let at = match rng.below(4) {
                0 => 1024 + rng.below(0x180),
                1 => 2048 + rng.below(64),
                _ => sectors[rng.below(sectors.len())] * 512 + rng.below(512),
            };
            let byte = match rng.below(4) {
                0 => 0,
                1 => 0xFF,
                2 => base[at] ^ 1 << rng.below(8),
                _ => rng.next() as u8,
            };
            patches.push((at, byte));
        }
        let size = if seed % 16 == 0 { rng.below(base.len()) } else { base.len() };
        let story = format!("{name}, EXTANT_SEED={seed}");
        let (count, damage) = print_all(base, &patches, size, &story);
        printed += count;
        damages += damage;
    }
    // The test would prove nothing if all images were refused at once, or no damage were found.
    assert!(
        damages > 0 && printed > rounds as usize * all / 4,
        "{name}: {printed} printed, {damages} damages"
    );
}

#[test]
fn no_damage_to_an_image_with_checksums_makes_inspect_panic_or_hang() {
    let features =
        "metadata_csum,orphan_file,inline_data,ea_inode,quota,fast_commit,64bit,^resize_inode,meta_bg";
    let base = make_image("checksums.img", &["-t", "ext4", "-O", features]);
    flip_everywhere("checksums", &base, 150);
}

#[test]
fn no_damage_to_an_image_with_extents_but_no_checksums_makes_inspect_panic_or_hang() {
    let base = make_image("extents.img", &["-t", "ext4", "-O", "^metadata_csum,^64bit,large_dir"]);
    flip_everywhere("extents", &base, 150);
}

#[test]
fn no_damage_to_an_image_with_block_maps_makes_inspect_panic_or_hang() {
    let base = make_image("maps.img", &["-t", "ext3"]);
    flip_everywhere("maps", &base, 150);
}

#[test]
fn no_damage_to_the_mount_protection_block_makes_inspect_panic() {
    // A separate image: e2fsck and debugfs wait for many seconds before they access one with this feature.
    let dir = scratch();
    let image = dir.path().join("mmp.img");
    run(
        "mke2fs",
        ["-q".as_ref(), "-F".as_ref(), "-O".as_ref(), "mmp".as_ref(), image.as_os_str(), "6M".as_ref()],
    );
    let base = Arc::new(std::fs::read(&image).unwrap());
    let magic = 0x004D_4D50u32.to_le_bytes();
    let block = base.chunks(1024).position(|block| block.starts_with(&magic)).unwrap() * 1024;
    let mut rng = Rng(11);
    for round in 0..200 {
        // Anywhere in the block, or in the superblock's field with its number.
        let at = if round % 4 == 0 { 1024 + 0x168 + rng.below(8) } else { block + rng.below(1024) };
        let device =
            Patched { base: Arc::clone(&base), patches: vec![(at, rng.next() as u8)], size: base.len() };
        let damage = print(Box::new(device), &What::Super, round % 2 == 0, &mut Vec::new()).unwrap();
        assert!(damage.iter().all(|line| line.contains("mount protection") || line.contains("superblock")));
    }
}

#[test]
fn a_small_image_that_claims_to_be_huge_is_given_up_soon() {
    let base =
        make_image("huge.img", &["-t", "ext4", "-O", "^metadata_csum,^64bit,sparse_super2,^resize_inode"]);
    // Offset of the field in the superblock, and its bytes.
    let fields: [(usize, &[u8]); 3] = [(0x150, &[0xFF, 0x0F]), (0x20, &[8, 0, 0, 0]), (0x28, &[8, 0, 0, 0])];
    let patches: Vec<(usize, u8)> =
        fields.iter().flat_map(|(at, bytes)| (1024 + at..).zip(bytes.iter().copied())).collect();
    for count in [2, 6, patches.len()] {
        print_all(&base, &patches[..count], base.len(), &format!("first {count} bytes"));
    }
}

#[test]
fn rubbish_is_refused() {
    let mut rng = Rng(7);
    let rubbish: Arc<Vec<u8>> = Arc::new((0..1 << 16).map(|_| rng.next() as u8).collect());
    for size in [0, 1, 1024, 2047, 2048, 1 << 16] {
        let device = Patched { base: Arc::clone(&rubbish), patches: Vec::new(), size };
        let result = print(Box::new(device), &What::Super, false, &mut Vec::new());
        assert!(matches!(result, Err(InspectError::Unreadable(_))), "{size} bytes");
    }
}
