//! Repairs damaged images, and judges the results: the checker and e2fsck find nothing, files that were
//! intact are intact or announced as lost, and the undo file restores every byte.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::Ino;
use extant_device::{Device, MemDevice};
use extant_ondisk::filetype::FileType;
use extant_repair::{Plan, RepairOptions, UndoFile, plan_repair};
use extant_volume::{OpenOptions, Volume};

use crate::Mutator;

/// Files larger than this are not compared.
const FILE_MAX: u64 = 16 << 20;

/// What became of one damaged image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Why there was no repair.
    pub refused: Option<String>,
    /// The first error that the checker finds afterwards.
    pub ours: Option<String>,
    /// What e2fsck says first, if it is not silent afterwards.
    pub theirs: Option<String>,
    /// Files that were intact, are not any more, and are not in the plan.
    pub lost: Vec<u32>,
    /// The undo file restores every byte.
    pub undone: bool,
    /// A second repair finds nothing to do.
    pub settled: bool,
}

impl Repaired {
    /// Whether both checkers are silent.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.refused.is_none() && self.ours.is_none() && self.theirs.is_none()
    }
}

/// Repairs a copy of a damaged image in memory. `scratch` is a directory for the judges.
///
/// # Panics
/// The scratch directory cannot be written, or e2fsck cannot be run.
#[must_use]
pub fn repair(damaged: &[u8], intact: &BTreeMap<u32, Content>, scratch: &Path) -> Repaired {
    let device = memory(damaged);
    let options = RepairOptions { now: 1_700_000_000, ..RepairOptions::default() };
    let shared: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
    let planned = match plan_repair(shared, &options) {
        Ok(planned) => planned,
        Err(fault) => {
            return Repaired { refused: Some(fault.to_string()), undone: true, ..Repaired::default() };
        }
    };
    let undo = scratch.join("undo");
    let _ = std::fs::remove_file(&undo);
    if let Err(fault) = planned.write(&*device, Some(&undo)) {
        return Repaired { refused: Some(format!("not written: {fault}")), ..Repaired::default() };
    }
    let mut result = Repaired::default();
    let report =
        extant_check::check(&*device, &extant_check::Options::default()).expect("memory can be read");
    result.ours = match report.opened && report.clean() {
        true => None,
        false => {
            let first =
                report.findings.iter().find(|found| found.rule.severity != extant_check::Severity::Note);
            Some(first.map_or("not opened".into(), |found| {
                format!("{} {:?}: {}", found.rule.code, found.place.ino, found.says)
            }))
        }
    };
    let mut after = vec![0; damaged.len()];
    device.read_at(0, &mut after).expect("memory can be read");
    result.theirs = e2fsck(&after, scratch);
    let repaired = open(&after);
    let now = files(&after);
    let before = files(damaged);
    for (ino, content) in intact {
        if before.get(ino) != Some(content) || now.get(ino) == Some(content) {
            continue;
        }
        let has_grown =
            || repaired.as_ref().is_some_and(|volume| has_grown(volume, planned.plan(), *ino, content));
        if !is_announced(planned.plan(), *ino) && !has_grown() {
            result.lost.push(*ino);
        }
    }
    let again: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
    result.settled = plan_repair(again, &options).is_ok_and(|again| again.plan().is_empty());
    result.undone = if planned.plan().is_empty() {
        after == damaged
    } else {
        let mut file = UndoFile::open(&undo).expect("the undo file of this repair");
        let shared: Arc<dyn Device> = Arc::<MemDevice>::clone(&device);
        let undone = file.undo(&shared, false).is_ok();
        device.read_at(0, &mut after).expect("memory can be read");
        undone && after == damaged
    };
    result
}

fn memory(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, bytes).expect("the image fits the memory made for it");
    Arc::new(device)
}

/// Whether the plan makes a file longer, up to blocks behind its end, and its bytes are what they were.
fn has_grown(volume: &Volume, plan: &Plan, ino: u32, before: &Content) -> bool {
    let is_planned = plan.fixes.iter().any(|fix| fix.rule.code == "IN006" && fix.place.ino == Some(Ino(ino)));
    let now = content(volume, ino, Some(before.size));
    is_planned && now.is_some_and(|now| now.size > before.size && now.hash == before.hash)
}

fn is_announced(plan: &Plan, ino: u32) -> bool {
    plan.losses().any(|fix| {
        let loss = fix.loss.as_deref().unwrap_or_default();
        // What a fast commit created or changed is not in any other place.
        if fix.rule.code == "JO024" {
            return true;
        }
        let words: Vec<&str> = loss.split([' ', ',', ':', ';']).collect();
        let named = words.windows(2).any(|pair| pair[0] == "inode" && pair[1] == ino.to_string());
        let ranged = words.windows(4).any(|part| {
            part[0] == "inodes"
                && part[2] == "to"
                && part[1].parse().is_ok_and(|first: u32| first <= ino)
                && part[3].parse().is_ok_and(|last: u32| ino <= last)
        });
        named || ranged || fix.place.ino == Some(Ino(ino))
    })
}

/// What e2fsck says first; `None` if it is silent.
fn e2fsck(bytes: &[u8], scratch: &Path) -> Option<String> {
    let path = scratch.join("image");
    std::fs::write(&path, bytes).expect("the scratch directory can be written");
    let judged = Command::new("timeout")
        .args(["20", "e2fsck", "-fn"])
        .arg(&path)
        .env("LC_ALL", "C")
        .output()
        .expect("e2fsck can be run");
    let said =
        String::from_utf8_lossy(&judged.stdout).into_owned() + &String::from_utf8_lossy(&judged.stderr);
    let turned = said.contains("trying backup blocks") || said.contains("checksums are invalid");
    if judged.status.code() == Some(0) && !turned {
        return None;
    }
    let passes = |line: &&str| !line.is_empty() && !line.starts_with("Pass ") && !line.starts_with("e2fsck ");
    let lines: Vec<&str> = said.lines().filter(passes).take(3).collect();
    Some(format!("({:?}) {}", judged.status.code(), lines.join(" | ")))
}

/// The size of a file, and a hash of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    /// In bytes.
    pub size: u64,
    /// Of all bytes.
    pub hash: u64,
}

/// Each regular file that can be read.
#[must_use]
pub fn files(bytes: &[u8]) -> BTreeMap<u32, Content> {
    let mut found = BTreeMap::new();
    let Some(volume) = open(bytes) else { return found };
    let sb = volume.superblock().clone();
    let own = [sb.journal_inum, sb.orphan_file_inum, sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum];
    for number in sb.first_ino.max(11)..=volume.geometry().inodes() {
        if own.contains(&number) {
            continue;
        }
        if let Some(content) = content(&volume, number, None) {
            found.insert(number, content);
        }
    }
    found
}

fn open(bytes: &[u8]) -> Option<Volume> {
    let device: Arc<dyn Device> = memory(bytes);
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
    Volume::open_read_only(device, &options).ok()
}

/// A regular file, or the first bytes of it; `None` if they cannot be read. The size is the inode's.
fn content(volume: &Volume, number: u32, first: Option<u64>) -> Option<Content> {
    let inode = volume.inode(Ino(number)).ok()?;
    let len = first.unwrap_or(u64::MAX).min(inode.size());
    if inode.kind() != FileType::Regular || inode.fields().links == 0 || len > FILE_MAX {
        return None;
    }
    let mut bytes = vec![0; len as usize];
    let mut done = 0;
    while done < bytes.len() {
        match volume.files().read(&inode, done as u64, &mut bytes[done..]) {
            Ok(0) | Err(_) => return None,
            Ok(count) => done += count,
        }
    }
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    Some(Content { size: inode.size(), hash: hasher.finish() })
}

/// The results of many repairs.
#[derive(Debug, Default)]
pub struct Repairs {
    /// Damaged images.
    pub rounds: u64,
    /// Both checkers are silent afterwards.
    pub clean: u64,
    /// The undo file restored every byte.
    pub undone: u64,
    /// A second repair found nothing to do.
    pub settled: u64,
    /// Rounds in which an intact file was lost, and the plan did not say so.
    pub losing: u64,
    /// Image, seed and reason of each round that was not perfect.
    pub stories: Vec<String>,
}

impl Repairs {
    /// Damages and repairs `rounds` images on two threads, from `seed` on.
    ///
    /// # Panics
    /// As [`repair`].
    #[must_use]
    pub fn run(images: &[(String, Mutator)], seed: u64, rounds: u64) -> Self {
        let intact: Vec<BTreeMap<u32, Content>> =
            images.iter().map(|(_, mutator)| files(mutator.sound())).collect();
        let next = AtomicU64::new(0);
        let all = Mutex::new(Self::default());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let scratch = tempfile::tempdir().expect("a scratch directory");
                    loop {
                        let round = next.fetch_add(1, Ordering::Relaxed);
                        if round >= rounds {
                            break;
                        }
                        let seed = seed + round;
                        let at = seed as usize % images.len();
                        let (name, mutator) = &images[at];
                        let mut bytes = mutator.sound().to_vec();
                        let damage = mutator.damage(&mut bytes, seed);
                        let result = repair(&bytes, &intact[at], scratch.path());
                        let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        all.count(name, &damage.story, &result);
                    }
                });
            }
        });
        let mut all = all.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.stories.sort();
        all
    }

    /// Counts the result of one damaged image.
    pub fn count(&mut self, name: &str, story: &str, result: &Repaired) {
        self.rounds += 1;
        self.clean += u64::from(result.is_clean());
        self.undone += u64::from(result.undone);
        self.settled += u64::from(result.settled);
        self.losing += u64::from(!result.lost.is_empty());
        if !result.is_clean() || !result.undone || !result.lost.is_empty() || !result.settled {
            self.stories.push(format!("{name}: {story} -> {result:?}"));
        }
    }

    /// The share of damaged images that both checkers find clean afterwards, in percent.
    #[must_use]
    pub fn clean_percent(&self) -> f64 {
        100.0 * self.clean as f64 / self.rounds.max(1) as f64
    }
}
