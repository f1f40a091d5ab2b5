//! Packs directories: names into leaves, and leaves under an index, with as few blocks as possible.
//!
//! Planning counts blocks. Writing repeats the same decisions and produces the bytes, so that only a count
//! per directory is kept in between.
//!
//! Invariant: [`DirPacker::plan`] and [`DirPacker::encode`] split the names into blocks at the same points.

use extant_base::{Ino, Malformed};
use extant_ondisk::dirent::{DirBlockWriter, DirFormat, min_rec_len, seal_tail};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, dirhash};
use extant_ondisk::htree::plan::{IndexPlan, TooLarge};
use extant_ondisk::htree::{DxFormat, RootInfo};
use extant_ondisk::inode::inode_seed;

/// One name for a directory block.
#[derive(Debug, Clone, Copy)]
pub struct Name<'t> {
    /// Its inode.
    pub ino: Ino,
    /// Its type.
    pub file_type: FileType,
    /// The name, 1 to 255 bytes.
    pub bytes: &'t [u8],
}

/// The size and form of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DirPlan {
    /// Number of blocks.
    pub blocks: u32,
    /// Whether it has a hash index.
    pub indexed: bool,
}

/// The properties of a file system that packing depends on. They are the same for all directories.
#[derive(Debug, Clone)]
pub struct DirPacker {
    /// Format of the blocks.
    pub format: DirFormat,
    /// Format of the index; `None` without the dir_index feature.
    pub index: Option<DxFormat>,
    /// The hash version and seed.
    pub hash: (HashVersion, [u32; 4]),
    /// Checksum seed of the file system.
    pub fs_seed: u32,
}

impl DirPacker {
    /// Plans a directory with these names, in order, and with at least `min_blocks` blocks.
    ///
    /// # Errors
    /// The names need more leaves than an index can have.
    pub fn plan<'t>(
        &self,
        names: impl Iterator<Item = &'t [u8]>,
        min_blocks: u32,
    ) -> Result<DirPlan, TooLarge> {
        let usable = self.format.usable_len();
        // Leaves contain only names. A directory without an index begins with "." and "..".
        let (mut leaves, mut used) = (1u64, 0);
        let (mut linear, mut linear_used) = (1u64, 2 * min_rec_len(1, false));
        for name in names {
            let len = min_rec_len(name.len(), false);
            for (blocks, used) in [(&mut leaves, &mut used), (&mut linear, &mut linear_used)] {
                if *used + len > usable {
                    *blocks += 1;
                    *used = 0;
                }
                *used += len;
            }
        }
        match &self.index {
            Some(index) if linear > u64::from(min_blocks.max(1)) => {
                let plan = IndexPlan::new(leaves, index)?;
                Ok(DirPlan { blocks: plan.total_blocks(), indexed: true })
            }
            _ => {
                let blocks = linear.max(min_blocks.into());
                let blocks =
                    u32::try_from(blocks).map_err(|_| TooLarge { leaf_count: blocks, large_dir: false })?;
                Ok(DirPlan { blocks, indexed: false })
            }
        }
    }

    /// Produces the blocks of a directory in order and passes each to `out`. An error of `out` ends it.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn encode<'t, E>(
        &self,
        plan: DirPlan,
        ino: Ino,
        parent: Ino,
        names: impl Iterator<Item = Name<'t>> + Clone,
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let seed = inode_seed(self.fs_seed, ino, 0);
        let mut block = vec![0; self.format.block_size.len()];
        if plan.indexed {
            self.encode_index(plan, ino, parent, seed, names.clone(), &mut block, out)?;
        }
        let mut names = names.peekable();
        let mut written = if plan.indexed { plan.blocks - self.leaves(plan) } else { 0 };
        while written < plan.blocks {
            let mut writer = DirBlockWriter::new(&self.format, &mut block);
            if written == 0 {
                writer.push_dots(ino, parent);
            }
            while let Some(name) = names.peek() {
                if !writer.push(name.ino, name.file_type, name.bytes) {
                    break;
                }
                names.next();
            }
            writer.finish();
            if self.format.csum {
                seal_tail(&mut block, seed);
            }
            out(&block)?;
            written += 1;
        }
        debug_assert!(names.peek().is_none(), "the plan has room for all names");
        Ok(())
    }

    fn leaves(&self, plan: DirPlan) -> u32 {
        // The plan has only the total; it determines the number of leaves uniquely.
        let index = self.index.as_ref().expect("an indexed directory has an index format");
        let mut leaves = plan.blocks - 1;
        loop {
            match IndexPlan::new(u64::from(leaves), index) {
                Ok(found) if found.total_blocks() <= plan.blocks => return leaves,
                _ => leaves -= 1,
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // properties of one directory, each used once
    fn encode_index<'t, E>(
        &self,
        plan: DirPlan,
        ino: Ino,
        parent: Ino,
        seed: u32,
        names: impl Iterator<Item = Name<'t>>,
        block: &mut [u8],
        out: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let index = self.index.as_ref().expect("an indexed directory has an index format");
        let first_hashes = self.first_hashes(names);
        let index_plan =
            IndexPlan::new(first_hashes.len() as u64, index).expect("planned before with as many leaves");
        debug_assert_eq!(index_plan.total_blocks(), plan.blocks);
        let root = RootInfo { ino, parent, hash_code: self.hash.0.code(), filetype: self.format.filetype };
        for i in 0..index_plan.index_blocks() {
            index_plan.encode_index_block(i, &first_hashes, &root, seed, block);
            out(block)?;
        }
        Ok(())
    }

    /// The hash of each leaf's first name. The lowest bit means that the leaf before ends with the same hash.
    fn first_hashes<'t>(&self, names: impl Iterator<Item = Name<'t>>) -> Vec<u32> {
        let usable = self.format.usable_len();
        let hash = |name: &[u8]| dirhash(self.hash.0, &self.hash.1, name).map_or(0, |h| h.hash);
        let mut first_hashes = Vec::new();
        let mut used = usable;
        let mut last_name: &[u8] = b"";
        for name in names {
            let len = min_rec_len(name.bytes.len(), false);
            if used + len > usable {
                let first = hash(name.bytes);
                let continued = !first_hashes.is_empty() && hash(last_name) == first;
                first_hashes.push(first | u32::from(continued));
                used = 0;
            }
            used += len;
            last_name = name.bytes;
        }
        first_hashes
    }
}

/// The hash version and seed for the directories of this superblock.
///
/// # Errors
/// The superblock's hash is unknown, or cannot be computed without a key.
pub fn hash_of(sb: &extant_ondisk::Superblock) -> Result<(HashVersion, [u32; 4]), Malformed> {
    HashVersion::from_code(sb.def_hash_version, sb.unsigned_hash())
        .filter(|version| *version != HashVersion::SipHash)
        .map(|version| (version, extant_ondisk::hash::seed_words(&sb.hash_seed)))
        .ok_or_else(|| {
            Malformed::new("superblock", "def_hash_version must be 0, 1 or 2", sb.def_hash_version)
        })
}
