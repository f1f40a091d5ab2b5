//! Power cuts while superblock fields change: the file system has all old values or all new ones.

use std::sync::Arc;

use extant_ondisk::superblock::{self, Superblock};
use extant_simdisk::{Image, SimDisk};
use extant_volume::{OpenOptions, Volume, WriteOptions};

fn superblock_at(image: &Image, offset: u64) -> Superblock {
    let mut bytes = [0; superblock::SIZE];
    image.read(offset, &mut bytes);
    Superblock::decode(&bytes).unwrap()
}

#[test]
fn a_cut_leaves_all_old_values_or_all_new_ones() {
    let dir = extant_testkit::scratch();
    for (kind, features) in
        [("metadata_csum", "metadata_csum,metadata_csum_seed"), ("uninit_bg", "^metadata_csum,uninit_bg")]
    {
        let path = dir.path().join(kind);
        let args = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", features];
        let args = args.iter().map(std::ffi::OsStr::new).chain([path.as_os_str(), "20M".as_ref()]);
        extant_testkit::run("mke2fs", args);
        let before = Image::from_bytes(&std::fs::read(&path).unwrap());
        let disk = Arc::new(SimDisk::recording(before.clone()));
        let options = OpenOptions {
            write: WriteOptions { is_no_mount: true, ..WriteOptions::default() },
            ..OpenOptions::default()
        };
        let old_uuid = superblock_at(&before, superblock::OFFSET).uuid;
        let volume = Volume::open(disk.clone(), &options).unwrap();
        volume
            .admin()
            .tune(&|sb| {
                sb.uuid = [9; 16];
                sb.volume_name[..3].copy_from_slice(b"new");
            })
            .unwrap();
        let acknowledged = disk.events();
        volume.close().unwrap();
        let recording = disk.recorded().unwrap();
        for at in 0..=recording.end() {
            for seed in 0..4 {
                let after = recording.cut(at, seed);
                let target = dir.path().join("cut");
                let cut = Arc::new(after);
                // Replays, and cleans up.
                let volume = Volume::open(cut.clone(), &options)
                    .unwrap_or_else(|why| panic!("{kind} {at} {seed}: {why}"));
                volume.close().unwrap();
                let image = cut.durable_image();
                let primary = superblock_at(&image, superblock::OFFSET);
                // The backup in group 1: block 8193 of 1 KiB.
                let backup = superblock_at(&image, 8193 << 10);
                let values = |sb: &Superblock| (sb.uuid, sb.label().to_vec());
                assert_eq!(values(&primary), values(&backup), "{kind} at {at}, seed {seed}");
                let is_new = values(&primary) == ([9; 16], b"new".to_vec());
                assert!(
                    is_new || values(&primary) == (old_uuid, Vec::new()),
                    "{kind} at {at}, seed {seed}: a mixture"
                );
                assert!(is_new || at < acknowledged, "{kind} at {at}, seed {seed}: acknowledged and lost");
                if seed == 0 {
                    std::fs::write(&target, &*read_all(&image)).unwrap();
                    extant_testkit::e2fsck_clean(&target);
                }
            }
        }
    }
}

fn read_all(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; image.size_bytes() as usize];
    image.read(0, &mut bytes);
    bytes
}
