// Included by the examples of the documentation and by tests: an empty file system in memory, as `extant
// mkfs` creates it.

/// Creates a device in memory of `bytes` bytes with an empty ext4 file system.
pub fn empty_memory(bytes: u64) -> std::sync::Arc<extant::MemDevice> {
    let memory = extant::MemDevice::new(bytes);
    let options = extant_image::options::FormatOptions::default();
    let identity = extant_image::mkfs::Identity { uuid: [7; 16], hash_seed: [9; 16], time: 1_700_000_000 };
    let tree = extant_image::mkfs::EmptyTree::new(identity.time, (0, 0));
    let plan = extant_image::mkfs::plan(&tree.input(&options, identity, true), bytes).unwrap();
    extant_image::mkfs::write_plan(&plan, &memory, false).unwrap();
    std::sync::Arc::new(memory)
}
