use super::*;

#[test]
fn the_knee_is_where_the_rate_falls_for_good() {
    let of = |rates: &[u32]| {
        let point = |(at, rate): (usize, &u32)| Point { names: at as u64 + 1, per_s: f64::from(*rate) };
        knee(&rates.iter().enumerate().map(point).collect::<Vec<_>>())
    };
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[100, 95, 90, 85]), None);
    assert_eq!(of(&[100, 70, 100, 60, 50]), Some(3));
    assert_eq!(of(&[100, 100, 79]), Some(2));
}

#[test]
fn both_hashes_make_a_sound_directory() {
    let scratch = tempfile::tempdir().unwrap();
    let study = Study {
        names: 70_000,
        per: 20_000,
        hashes: vec![HashVersion::HalfMd4, HashVersion::Tea],
        runs: 2,
        ahead: 16,
        make: FormatOptions {
            block_size: extant_base::BlockSize::from_bytes(1024),
            ..FormatOptions::default()
        },
        check: true,
        kernel_dir: Some(scratch.path().to_owned()),
        ..Study::default()
    };
    let report = run(&study, &crate::Quiet).unwrap();
    for of in &report.hashes {
        assert_eq!((of.done, of.failed.as_deref()), (70_000, None), "{report}");
        assert_eq!(of.points.len(), 4);
        assert_eq!(of.points[3].names, 70_000);
        assert!(of.last_to_first.is_some_and(|ratio| ratio > 0.0), "{report}");
        assert!(of.runs.runs == 2 && of.runs.min <= of.per_s && of.per_s <= of.runs.max, "{report}");
        let Some(engine) = of.engine else { continue };
        assert_eq!(of.check_errors, Some(0));
        assert!(engine.splits > 1000 && engine.levels >= 2, "{report}");
        assert!(engine.fill > 0.5 && engine.fill < 1.0, "{report}");
        assert!(engine.dir_extents > 0 && engine.dir_extents < 1000, "{report}");
        assert!(engine.resident_bytes > engine.dir_bytes / 2, "{report}");
        assert!(engine.leaves_touched > 1000 && engine.leaf_looks_per_name > 0.0, "{report}");
        // All leaves are in memory.
        assert!(engine.leaf_reads_per_name < 0.01, "{report}");
    }
    let names: Vec<&str> = report.hashes.iter().map(|of| of.hash.as_str()).collect();
    assert_eq!(names, ["half_md4", "tea", "kernel"]);
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

/// Names are removed until none is left, with little memory while the drive has latency. In the other study
/// old names are removed as new ones come.
#[test]
fn a_directory_shrinks_and_is_renewed_with_memory_for_a_share_of_its_leaves() {
    let base = Study {
        names: 40_000,
        per: 10_000,
        drives: vec![Drive::Nvme],
        window: Duration::from_millis(50),
        reopen: Some(Reopen { cache_bytes: 1 << 20, each_time: true }),
        check: true,
        ..Study::default()
    };
    for reopen in [base.reopen, None] {
        let study = Study { course: Course::Shrink, reopen, ..base.clone() };
        let report = run(&study, &crate::Quiet).unwrap();
        let of = &report.hashes[0];
        assert!(of.failed.is_none() && of.check_errors == Some(0), "{report}");
        assert_eq!((of.done, of.removals.last().map(|point| point.names)), (40_000, Some(0)), "{report}");
        assert!(of.windows.len() >= 3 && of.windows.iter().all(|window| window.done > 0), "{report}");
        assert!(of.windows[0].names < 40_000 && of.windows_last_to_first.len() == 1, "{report}");
        assert!(report.to_string().contains("removals per second"), "{report}");
    }
    let report = run(&Study { course: Course::Replace, ..base }, &crate::Quiet).unwrap();
    let of = &report.hashes[0];
    assert!(of.failed.is_none() && of.check_errors == Some(0) && of.removals.is_empty(), "{report}");
    let last = of.windows.last().unwrap();
    assert!(last.done.is_multiple_of(2) && last.names < of.done, "{report}");
}

/// The counter of blocks read moves: with little memory, most names need a leaf from the device. On a
/// drive each of these reads is a wait.
#[test]
fn leaves_that_do_not_fit_into_memory_are_read_and_waited_for() {
    let study = Study {
        names: 60_000,
        per: 30_000,
        format: NameFormat::parse("a-name-that-takes-a-whole-line-of-an-editor-and-more-than-that-%d")
            .unwrap(),
        make: FormatOptions { journal_size: JournalSize::MiB(4), ..FormatOptions::default() },
        open: OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() },
        drives: vec![Drive::Hdd, Drive::Nvme],
        window: Duration::from_millis(100),
        window_on_hdd: Duration::from_millis(100),
        check: true,
        ..Study::default()
    };
    let report = run(&study, &crate::Quiet).unwrap();
    let of = &report.hashes[0];
    assert!(of.failed.is_none() && of.check_errors == Some(0), "{report}");
    assert!(of.engine.unwrap().leaf_reads_per_name > 0.2, "{report}");
    let drives: Vec<Drive> = of.windows.iter().map(|window| window.drive).collect();
    assert_eq!(drives, [Drive::Hdd, Drive::Nvme, Drive::Hdd, Drive::Nvme]);
    let [.., hdd, nvme] = of.windows.as_slice() else { panic!("{report}") };
    assert!(hdd.leaf_reads_per_name > 0.2 && hdd.per_s < nvme.per_s, "{report}");
    assert!(of.windows.iter().all(|window| window.per_s < of.per_s / 2.0), "{report}");
    assert!(of.done > 60_000 && report.to_string().contains("blocks read per name"), "{report}");
}
