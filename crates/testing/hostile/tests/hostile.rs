//! Hostile images: no bytes cause a panic or a hang. The test runs 20,000 rounds of seeded damage, with
//! corrected checksums, over images of every kind; each round opens, walks, reads and checks the image.
//!
//! Repeat one round: `cargo xtask fuzz --seed SEED --rounds 1`.

mod images;

use std::time::Duration;

#[test]
fn twenty_thousand_damaged_images_neither_panic_nor_hang() {
    let images = images::all();
    // Sound images open, and the checker finds no error: all errors below come from the damage.
    for (name, mutator) in &images {
        let device = extant_device::MemDevice::new(mutator.sound().len() as u64);
        extant_device::Device::write_at(&device, 0, mutator.sound()).unwrap();
        let report = extant_check::check(&device, &extant_check::Options::default()).unwrap();
        assert!(report.clean() && report.opened, "{name}: {:#?}", report.findings);
        let walked = extant_hostile::walk(std::sync::Arc::new(device));
        assert!(walked.opened && walked.errors == 0 && walked.entries > 150, "{name}: {walked:?}");
    }
    let soaked = extant_hostile::soak(
        &images,
        extant_hostile::Soak {
            first_seed: 1,
            rounds: 20_000,
            time_max: Duration::from_secs(600),
            threads: 2,
            round_max: Duration::from_secs(2),
            changes: false,
        },
    );
    println!("{soaked:#?}");
    assert!(soaked.failures.is_empty(), "{:#?}", soaked.failures);
    assert_eq!(soaked.rounds, 20_000, "not all rounds were run in ten minutes");
    // The damage must be neither harmless nor so coarse that no image opens.
    assert!(soaked.opened > soaked.rounds / 3, "{soaked:?}");
    assert!(soaked.found > soaked.rounds / 2, "{soaked:?}");
}

/// Runs the operations of `extant edit -k` and of a mount on damaged images.
#[test]
fn changing_damaged_images_neither_panics_nor_hangs() {
    let images = images::all();
    let soaked = extant_hostile::soak(
        &images,
        extant_hostile::Soak {
            first_seed: 1,
            rounds: 4_000,
            time_max: Duration::from_secs(300),
            threads: 2,
            round_max: Duration::from_secs(2),
            changes: true,
        },
    );
    println!("{soaked:#?}");
    assert!(soaked.failures.is_empty(), "{:#?}", soaked.failures);
    assert_eq!(soaked.rounds, 4_000, "not all rounds were run in five minutes");
    assert!(soaked.opened > soaked.rounds / 2 && soaked.changed > 10 * soaked.opened, "{soaked:?}");
}
