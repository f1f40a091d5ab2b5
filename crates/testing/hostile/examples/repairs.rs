//! Damages images, repairs them, and judges the results: `cargo xtask repair`.

#[path = "../tests/images/mod.rs"]
mod images;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| -> Option<&String> {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)
    };
    let number = |name: &str, default: u64| {
        value(name).map_or(default, |given| given.parse().unwrap_or_else(|_| panic!("{name} wants a number")))
    };
    let (rounds, seed) = (number("--corruptions", 5000), number("--seed", 1));
    let images = images::of_repairs();
    if let Some(dir) = value("--keep") {
        // The damaged images alone, to be looked at by hand.
        for seed in seed..seed + rounds {
            let (name, mutator) = &images[seed as usize % images.len()];
            let mut bytes = mutator.sound().to_vec();
            let damage = mutator.damage(&mut bytes, seed);
            let path = std::path::Path::new(dir).join(format!("{seed}.img"));
            std::fs::write(&path, bytes).unwrap_or_else(|fault| panic!("{}: {fault}", path.display()));
            println!("{}: {name}: {}", path.display(), damage.story);
        }
        return ExitCode::SUCCESS;
    }
    let repairs = extant_hostile::Repairs::run(&images, seed, rounds);
    for story in &repairs.stories {
        println!("{story}");
    }
    println!(
        "{} corruptions (seeds from {seed}) of {} kinds of image: both checkers silent after {:.2} %, intact \
         files lost without a word in {}, undone byte for byte {}, settled {}",
        repairs.rounds,
        images.len(),
        repairs.clean_percent(),
        repairs.losing,
        repairs.undone,
        repairs.settled,
    );
    let is_good = repairs.clean_percent() >= 99.0 && repairs.losing == 0 && repairs.undone == repairs.rounds;
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
