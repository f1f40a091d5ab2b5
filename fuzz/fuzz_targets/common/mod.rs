//! What both targets share: the fuzzer's bytes are read as damage to one of the small images, checksums made
//! right.

#[path = "../../../crates/testing/hostile/tests/images/mod.rs"]
mod images;

use std::sync::{Arc, OnceLock};

use extant_device::{Device, MemDevice};
use extant_hostile::Mutator;

/// The damaged image that `data` describes.
pub fn damaged(data: &[u8]) -> Arc<MemDevice> {
    static IMAGES: OnceLock<Vec<(String, Mutator)>> = OnceLock::new();
    let images = IMAGES.get_or_init(images::all);
    let (which, edits) = data.split_first().unwrap_or((&0, &[]));
    let (_, mutator) = &images[usize::from(*which) % images.len()];
    let mut bytes = mutator.sound().to_vec();
    mutator.edit(&mut bytes, edits);
    let device = MemDevice::new(bytes.len() as u64);
    device.write_at(0, &bytes).expect("the image fits the memory made for it");
    Arc::new(device)
}
