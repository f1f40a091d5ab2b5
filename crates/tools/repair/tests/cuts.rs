//! A power cut at any write of a repair: repairing again gives a clean image with all files, and the undo
//! files restore the damaged image byte for byte.

use std::path::Path;
use std::sync::Arc;

use extant_check::Severity;
use extant_device::{Device, FileDevice, MemDevice};
use extant_repair::{RepairOptions, UndoFile, UndoState, plan_repair, undo_cut_repair};
use extant_simdisk::{Image, SimDisk};
use extant_testkit::{command, debugfs, run};

const OPTIONS: RepairOptions =
    RepairOptions { threads: None, backup: None, now: 1_700_000_000, progress: None, cancel: None };

/// A file system with a lost directory, wrong counts, and a block that two files claim.
fn damaged(dir: &Path) -> Image {
    let source = dir.join("source");
    std::fs::create_dir_all(source.join("lost/below")).unwrap();
    for at in 0..60 {
        std::fs::write(source.join(format!("lost/file-{at}")), format!("{at}").repeat(900)).unwrap();
    }
    std::fs::write(source.join("a"), vec![b'a'; 9000]).unwrap();
    std::fs::write(source.join("b"), vec![b'b'; 9000]).unwrap();
    let path = dir.join("image");
    let source = source.to_str().unwrap();
    run(
        "mke2fs",
        ["-q", "-F", "-t", "ext4", "-b", "1024", "-J", "size=1", "-d", source, path.to_str().unwrap(), "6M"],
    );
    let block = debugfs(&path, "bmap /a 0").trim().to_owned();
    for request in [
        "unlink /lost".to_owned(),
        "sif /b links_count 7".to_owned(),
        "ssv free_blocks_count 1".to_owned(),
        format!("freeb {block}"),
        "clri /lost/file-3".to_owned(),
    ] {
        let out = command("debugfs").args(["-w", "-R", &request]).arg(&path).output().unwrap();
        assert!(out.status.success(), "{request}");
    }
    Image::read_from(&FileDevice::open(&path, false).unwrap()).unwrap()
}

fn errors(device: &dyn Device) -> Vec<String> {
    let report = extant_check::check(device, &extant_check::Options::default()).unwrap();
    let bad = report.findings.iter().filter(|found| found.rule.severity != Severity::Note);
    bad.map(|found| format!("{} {:?} {}", found.rule.code, found.place, found.says)).collect()
}

fn bytes(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn a_cut_at_any_write_is_repaired_and_undone() {
    let dir = extant_testkit::scratch();
    let image = damaged(dir.path());
    let disk = Arc::new(SimDisk::recording(image.clone()));
    let device: Arc<dyn Device> = Arc::<SimDisk>::clone(&disk);
    let before = bytes(&*device);
    assert!(!errors(&*device).is_empty());
    let repair = plan_repair(Arc::clone(&device), &OPTIONS).unwrap();
    assert!(repair.plan().total() > 3, "{:#?}", repair.plan());
    let undo = dir.path().join("undo");
    repair.write(&*device, Some(&undo)).unwrap();
    assert_eq!(errors(&*device), Vec::<String>::new());
    let finished = bytes(&*device);
    let kept = std::fs::read(&undo).unwrap();
    // As the undo file was while the image was written.
    let mut begun = kept.clone();
    begun[52] = 1;
    let crc = extant_base::checksum::crc32c(!0, &begun[..56]).to_le_bytes();
    begun[56..60].copy_from_slice(&crc);
    let recording = disk.recorded().unwrap();
    let mut cuts = 0;
    for at in recording.moments() {
        for seed in 0..1 {
            cuts += 1;
            let name = format!("cut at {at} of {}, seed {seed}", recording.end());
            let device: Arc<dyn Device> = Arc::new(recording.cut(at, seed));
            std::fs::write(&undo, &begun).unwrap();
            // The next repair undoes the cut one first.
            assert!(undo_cut_repair(&device, &undo).unwrap(), "{name}");
            assert_eq!(bytes(&*device), before, "{name}");
            assert_eq!(UndoFile::open(&undo).unwrap().state(), UndoState::Undone);
            let again = plan_repair(Arc::clone(&device), &OPTIONS).unwrap();
            again.write(&*device, None).unwrap();
            assert_eq!(bytes(&*device), finished, "{name}");
            // Also without its undo file, the image becomes clean.
            let device: Arc<dyn Device> = Arc::new(recording.cut(at, seed));
            let again = plan_repair(Arc::clone(&device), &OPTIONS).unwrap();
            again.write(&*device, None).unwrap();
            assert_eq!(errors(&*device), Vec::<String>::new(), "{name}, without the undo file");
        }
    }
    println!("{cuts} cuts");
    std::fs::write(&undo, &kept).unwrap();
    let mut file = UndoFile::open(&undo).unwrap();
    assert_eq!(file.state(), UndoState::Finished);
    file.undo(&device, false).unwrap();
    assert_eq!(bytes(&*device), before);
}

/// The undo file is not used for an image that changed after the repair.
#[test]
fn an_image_that_changed_is_not_undone_by_mistake() {
    let dir = extant_testkit::scratch();
    let image = damaged(dir.path());
    let device = Arc::new(MemDevice::new(image.size_bytes()));
    image.write_to(&*device).unwrap();
    let device: Arc<dyn Device> = device;
    let repair = plan_repair(Arc::clone(&device), &OPTIONS).unwrap();
    let undo = dir.path().join("undo");
    repair.write(&*device, Some(&undo)).unwrap();
    let before = bytes(&*device);
    device.write_at(1024 + 0x78, b"another label").unwrap();
    let mut file = UndoFile::open(&undo).unwrap();
    assert!(file.undo(&device, false).is_err());
    device.write_at(0, &before).unwrap();
    let repeated = repair.write(&*device, Some(&undo));
    assert!(repeated.is_err(), "an undo file is never overwritten");
    file.undo(&device, false).unwrap();
    assert!(file.undo(&device, false).is_err(), "it was undone already");
}

#[test]
fn a_cancelled_repair_writes_nothing() {
    let dir = extant_testkit::scratch();
    let image = damaged(dir.path());
    let disk: Arc<dyn Device> = Arc::new(SimDisk::recording(image));
    let before = bytes(&*disk);
    let cancel = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let options = RepairOptions { cancel: Some(cancel), ..OPTIONS };
    let planned = plan_repair(Arc::clone(&disk), &options);
    assert!(matches!(planned, Err(extant_repair::RepairFault::Cancelled)), "{:?}", planned.err());
    assert!(bytes(&*disk) == before);
}
