//! Runs many rounds of damage over several images, on several threads. The tests and the long soak use it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use extant_device::{Device, MemDevice};

use crate::change::Restorable;
use crate::{Mutator, change, verify, walk};

/// Parameters of a soak.
#[derive(Debug, Clone, Copy)]
pub struct Soak {
    /// First seed; round `n` has seed `first_seed + n`.
    pub first_seed: u64,
    /// Maximum number of rounds.
    pub rounds: u64,
    /// Maximum total time.
    pub time_max: Duration,
    /// Number of threads.
    pub threads: usize,
    /// Maximum time of a round; a longer round is a failure.
    pub round_max: Duration,
    /// Whether to change the damaged images as well; otherwise they are only read.
    pub changes: bool,
}

/// Results of a soak.
#[derive(Debug, Clone, Default)]
pub struct Soaked {
    /// Rounds that were run.
    pub rounds: u64,
    /// Rounds in which the image still opened.
    pub opened: u64,
    /// Rounds in which the checker found damage, or failed.
    pub found: u64,
    /// Operations that changed a damaged image.
    pub changed: u64,
    /// Rounds after which the checker found errors by rules that were not broken before the changes: the
    /// engine did not detect the damage, and its changes added to it. As text, with the codes of the rules.
    pub worse: Vec<String>,
    /// The longest round.
    pub slowest: Duration,
    /// Panics and rounds that took too long, as text, with the image's name and the seed.
    pub failures: Vec<String>,
}

/// Runs rounds of damage, walk and check. The round with seed `seed` uses image `seed % images`.
#[must_use]
pub fn soak(images: &[(String, Mutator)], what: Soak) -> Soaked {
    let start = Instant::now();
    let next = AtomicU64::new(0);
    let total = Mutex::new(Soaked::default());
    std::thread::scope(|scope| {
        for _ in 0..what.threads.max(1) {
            scope.spawn(|| {
                let mut copies: Vec<Copy> = images.iter().map(|(_, mutator)| Copy::new(mutator)).collect();
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= what.rounds || start.elapsed() > what.time_max {
                        break;
                    }
                    let seed = what.first_seed.wrapping_add(round);
                    let at = (seed % images.len() as u64) as usize;
                    let soaked = copies[at].round(&images[at].1, &images[at].0, seed, &what);
                    let mut total = total.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    total.rounds += 1;
                    total.opened += soaked.opened;
                    total.found += soaked.found;
                    total.changed += soaked.changed;
                    total.worse.extend(soaked.worse);
                    total.slowest = total.slowest.max(soaked.slowest);
                    total.failures.extend(soaked.failures);
                }
            });
        }
    });
    total.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn is_damaged(verdict: &Option<Vec<&str>>) -> bool {
    verdict.as_ref().is_none_or(|errors| !errors.is_empty())
}

/// One thread's copy of an image, sound between rounds.
struct Copy {
    bytes: Vec<u8>,
    device: Arc<MemDevice>,
}

impl Copy {
    fn new(mutator: &Mutator) -> Self {
        let device = MemDevice::new(mutator.sound().len() as u64);
        device.write_at(0, mutator.sound()).expect("the image fits the memory made for it");
        Self { bytes: mutator.sound().to_vec(), device: Arc::new(device) }
    }

    fn round(&mut self, mutator: &Mutator, name: &str, seed: u64, what: &Soak) -> Soaked {
        let damage = mutator.damage(&mut self.bytes, seed);
        self.show(&damage.undo);
        let mut soaked = Soaked::default();
        let start = Instant::now();
        let restorable = Arc::new(Restorable::over(&self.device));
        let ran = catch_unwind(AssertUnwindSafe(|| {
            if !what.changes {
                let walked = walk(Arc::<MemDevice>::clone(&self.device));
                soaked.opened = u64::from(walked.opened);
                soaked.found = u64::from(is_damaged(&verify(&*self.device)));
                return;
            }
            let before = verify(&*self.device);
            let changed = change(Arc::<Restorable>::clone(&restorable), seed);
            soaked.opened = u64::from(changed.opened);
            soaked.found = u64::from(is_damaged(&before));
            soaked.changed = changed.done as u64;
            let (before, after) = (before.unwrap_or_default(), verify(&*self.device).unwrap_or_default());
            let mut codes: Vec<_> = after.into_iter().filter(|code| !before.contains(code)).collect();
            codes.dedup();
            if !codes.is_empty() {
                soaked.worse.push(format!("{name}: {}: {}", codes.join(" "), damage.story));
            }
        }));
        soaked.slowest = start.elapsed();
        if ran.is_err() {
            soaked.failures.push(format!("{name}: panic: {}", damage.story));
        }
        if soaked.slowest > what.round_max {
            soaked.failures.push(format!("{name}: took {:?}: {}", soaked.slowest, damage.story));
        }
        mutator.undo(&mut self.bytes, &damage);
        self.show(&damage.undo);
        restorable.restore(&self.bytes);
        soaked
    }

    /// Copies the changed ranges of the image to the device.
    fn show(&self, changed: &[(usize, Vec<u8>)]) {
        for (offset, before) in changed {
            let now = &self.bytes[*offset..offset + before.len()];
            self.device.write_at(*offset as u64, now).expect("damage lies inside the image");
        }
    }
}
