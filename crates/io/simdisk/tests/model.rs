//! The disk against a simple model: a list of versions for each sector. The model must explain every cut.

use std::collections::BTreeSet;
use std::io::IoSlice;

use extant_device::Device;
use extant_simdisk::{Image, SimDisk};
use proptest::prelude::*;

/// Not a multiple of 512, and more than one chunk.
const SIZE: u64 = 24 * 512 + 100;

#[derive(Debug, Clone)]
enum Step {
    Write { offset: u64, len: u64, fill: u8 },
    WriteVectored { offset: u64, lens: Vec<u64>, fill: u8 },
    WriteDurable { offset: u64, len: u64, fill: u8 },
    Zero { offset: u64, len: u64 },
    Flush,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    let aligned = (0..24u64, 1..6u64).prop_map(|(first, count)| (first * 512, count * 512));
    let any = (0..SIZE, 0..3000u64);
    let to_end = (0..SIZE).prop_map(|offset| (offset, SIZE));
    prop_oneof![4 => aligned, 2 => any, 1 => to_end].prop_map(|(at, len)| (at, len.min(SIZE - at)))
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (range(), 1..=255u8).prop_map(|((offset, len), fill)| Step::Write { offset, len, fill }),
        1 => (range(), 1..=255u8).prop_map(|((offset, len), fill)| {
            Step::WriteVectored { offset, lens: vec![len / 3, 0, len - len / 3], fill }
        }),
        2 => (range(), 1..=255u8).prop_map(|((offset, len), fill)| Step::WriteDurable { offset, len, fill }),
        2 => range().prop_map(|(offset, len)| Step::Zero { offset, len }),
        2 => Just(Step::Flush),
    ];
    prop::collection::vec(step, 0..14)
}

/// Bytes that depend on their offset, so that a shifted copy shows.
fn content(offset: u64, len: u64, fill: u8) -> Vec<u8> {
    (offset..offset + len).map(|at| fill.wrapping_add((at % 7) as u8)).collect()
}

fn apply(disk: &SimDisk, step: &Step) {
    match step {
        Step::Write { offset, len, fill } => disk.write_at(*offset, &content(*offset, *len, *fill)),
        Step::WriteVectored { offset, lens, fill } => {
            let bytes = content(*offset, lens.iter().sum(), *fill);
            let mut rest = bytes.as_slice();
            let mut bufs = Vec::new();
            for len in lens {
                let (buf, after) = rest.split_at(*len as usize);
                bufs.push(IoSlice::new(buf));
                rest = after;
            }
            disk.write_vectored_at(*offset, &bufs)
        }
        Step::WriteDurable { offset, len, fill } => {
            disk.write_durable_at(*offset, &content(*offset, *len, *fill))
        }
        Step::Zero { offset, len } => disk.zero_at(*offset, *len),
        Step::Flush => disk.flush(),
    }
    .unwrap();
}

/// Versions of each sector: first the durable one, then those in the cache, oldest first.
#[derive(Debug, Clone, PartialEq)]
struct Model(Vec<Vec<Vec<u8>>>);

impl Model {
    fn new() -> Self {
        let sector = |start: u64| vec![vec![0; (SIZE - start).min(512) as usize]];
        Self((0..SIZE).step_by(512).map(sector).collect())
    }

    fn change(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        for (number, versions) in self.0.iter_mut().enumerate() {
            let start = number as u64 * 512;
            let mut new = versions.last().unwrap().clone();
            let end = start + new.len() as u64;
            let (from, to) = (offset.max(start), (offset + bytes.len() as u64).min(end));
            if from < to {
                new[(from - start) as usize..(to - start) as usize]
                    .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
                if durable {
                    versions.clear();
                }
                versions.push(new);
            }
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Write { offset, len, fill } => self.change(*offset, &content(*offset, *len, *fill), false),
            Step::WriteVectored { offset, lens, fill } => {
                self.change(*offset, &content(*offset, lens.iter().sum(), *fill), false);
            }
            Step::WriteDurable { offset, len, fill } => {
                self.change(*offset, &content(*offset, *len, *fill), true);
            }
            Step::Zero { offset, len } => self.change(*offset, &vec![0; *len as usize], false),
            Step::Flush => self.0.iter_mut().for_each(|versions| drop(versions.drain(..versions.len() - 1))),
        }
    }

    /// Whether each sector holds one of its versions.
    fn explains(&self, disk: &SimDisk) -> bool {
        let bytes = bytes_of(disk);
        self.0
            .iter()
            .zip(bytes.chunks(512))
            .all(|(versions, now)| versions.iter().any(|version| version == now))
    }

    /// The disk with the first or the last version of each sector.
    fn all(&self, last: bool) -> Vec<u8> {
        let pick = |versions: &Vec<Vec<u8>>| versions[if last { versions.len() - 1 } else { 0 }].clone();
        self.0.iter().flat_map(pick).collect()
    }
}

fn bytes_of(disk: &SimDisk) -> Vec<u8> {
    let mut bytes = vec![0xAA; SIZE as usize];
    disk.read_at(0, &mut bytes).unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_is_explainable(steps in steps(), base in 0..5usize, seed in any::<u64>()) {
        let disk = SimDisk::new(SIZE);
        let mut model = Model::new();
        let mut models = Vec::new(); // (moment, model) since the recording began
        for (number, step) in steps.iter().enumerate() {
            if number == base {
                disk.start_recording();
            }
            if number >= base {
                models.push((disk.events(), model.clone()));
            }
            apply(&disk, step);
            model.apply(step);
            prop_assert_eq!(bytes_of(&disk), model.all(true));
            // Cuts now, without the recording.
            prop_assert_eq!(bytes_of(&disk.cut_all_lost()), model.all(false));
            prop_assert_eq!(bytes_of(&disk.cut_all_kept()), model.all(true));
            prop_assert_eq!(bytes_of(&disk.cut(&mut |_| usize::MAX)), model.all(true));
            for seed in seed..seed.saturating_add(20) {
                prop_assert!(model.explains(&disk.cut_random(seed)), "seed {}", seed);
            }
        }
        let Some(recording) = disk.recorded() else { return Ok(()) };
        models.push((disk.events(), model));
        prop_assert_eq!(recording.end(), disk.events());
        for ((at, model), next) in models.iter().zip(models.iter().skip(1).map(Some).chain([None])) {
            prop_assert_eq!(bytes_of(&recording.cut_all_lost(*at)), model.all(false));
            prop_assert_eq!(bytes_of(&recording.cut_all_kept(*at)), model.all(true));
            for seed in seed..seed.saturating_add(20) {
                prop_assert!(model.explains(&recording.cut(*at, seed)), "seed {} at {}", seed, at);
            }
            // During the next step, its writes may be present or absent as well.
            for event in *at..next.map_or(*at, |(next, _)| *next) {
                let mut both = model.clone();
                for (both, new) in both.0.iter_mut().zip(&next.unwrap().1.0) {
                    both.extend(new.iter().cloned());
                }
                for seed in seed..seed.saturating_add(10) {
                    prop_assert!(both.explains(&recording.cut_during(event, seed)), "seed {} in {}", seed, event);
                }
            }
        }
        let end = recording.end();
        prop_assert_eq!(disk.cut_random(seed).image(), recording.cut(end, seed).image());
        prop_assert_eq!(disk.pending_writes(), recording.pending_writes(end));
    }

    /// A choice is called for exactly the sectors in the cache, with exactly their versions, and its result
    /// is used.
    #[test]
    fn a_choice_sees_every_version_and_gets_the_one_it_chooses(steps in steps(), seed in any::<u64>()) {
        let (disk, mut model) = (SimDisk::recording(Image::new(SIZE)), Model::new());
        for step in &steps {
            apply(&disk, step);
            model.apply(step);
        }
        let recording = disk.recorded().unwrap();
        let mut expected = model.all(false);
        let mut asked = BTreeSet::new();
        let mut state = seed;
        let cut = disk.cut(&mut |sector| {
            assert!(asked.insert(sector.number));
            let versions = &model.0[sector.number as usize];
            assert_eq!(sector.versions.len(), versions.len() - 1);
            for write in sector.versions {
                let write = sector.pending[*write as usize];
                assert!((write.first_sector..write.first_sector + write.sectors).contains(&sector.number));
                let event = recording.event(write.event).unwrap();
                assert!(event.kind.is_cached(), "{event}");
            }
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = (state >> 33) as usize % versions.len();
            let start = sector.number as usize * 512;
            expected[start..start + versions[choice].len()].copy_from_slice(&versions[choice]);
            choice
        });
        prop_assert_eq!(bytes_of(&cut), expected);
        let in_cache = model.0.iter().filter(|versions| versions.len() > 1).count();
        prop_assert_eq!(asked.len(), in_cache);
    }
}
