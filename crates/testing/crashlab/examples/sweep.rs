//! The failure sweep: `sweep [--world NAME] [--one-in K] [--seed S] [--threads T] [--case C] [--failing F]
//! [--number N] [--e2fsck K]`.
//!
//! It makes every read, write and flush of every operation fail, in every world. Of all pairs of a case and a
//! failure it runs one in `K`. The options `--case`, `--failing` and `--number` repeat the run that a
//! violation names.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use extant_crashlab::sweep::{Counts, Grid, Sweep, World};

fn main() {
    let (grid, worlds, threads) = parse();
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let done = Mutex::new((Counts::default(), Vec::new()));
    let work = || {
        while let Some(world) = worlds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let begun = Instant::now();
            let mut sweep = Sweep::new(*world, grid);
            sweep.run();
            let Counts { runs, aborted, lost, e2fsck } = sweep.counts;
            println!(
                "{world:?}: {runs} runs, {aborted} aborted, {lost} with bytes lost and reported, {e2fsck} judged by e2fsck, {} \
                 violations, {:.0} s",
                sweep.violations.len(),
                begun.elapsed().as_secs_f64()
            );
            let mut done = done.lock().expect("no thread panics with it");
            done.0.runs += runs;
            done.0.aborted += aborted;
            done.0.lost += lost;
            done.0.e2fsck += e2fsck;
            done.1.append(&mut sweep.violations);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let (counts, violations) = done.into_inner().expect("no thread panics with it");
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    println!(
        "seed {}: {} runs, {} aborted, {} with bytes lost and reported, {} judged by e2fsck, {} violations, {:.0} s",
        grid.seed,
        counts.runs,
        counts.aborted,
        counts.lost,
        counts.e2fsck,
        violations.len(),
        begun.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(!violations.is_empty()));
}

fn parse() -> (Grid, Vec<World>, u64) {
    let mut grid = Grid { one_in: 1, seed: 1, case: None, failing: None, number: None, e2fsck_one_in: 200 };
    let mut worlds = World::ALL.to_vec();
    let mut threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let value = words.next().unwrap_or_else(|| usage(&format!("{word} needs a value")));
        let number = || value.parse().unwrap_or_else(|_| usage(&format!("{word} needs a number")));
        match word.as_str() {
            "--world" => worlds.retain(|world| format!("{world:?}") == *value),
            "--one-in" => grid.one_in = number(),
            "--seed" => grid.seed = number(),
            "--threads" => threads = number(),
            "--case" => grid.case = Some(number() as usize),
            "--failing" => grid.failing = Some(number() as usize),
            "--number" => grid.number = Some(number()),
            "--e2fsck" => grid.e2fsck_one_in = number(),
            other => usage(&format!("unknown option {other}")),
        }
    }
    if worlds.is_empty() {
        usage(&format!("the worlds are {:?}", World::ALL));
    }
    (grid, worlds, threads)
}

fn usage(why: &str) -> ! {
    eprintln!(
        "sweep: {why}\nusage: sweep [--world NAME] [--one-in K] [--seed S] [--threads T] [--case C] [--failing F] [--number N] \
         [--e2fsck K]"
    );
    std::process::exit(2);
}
