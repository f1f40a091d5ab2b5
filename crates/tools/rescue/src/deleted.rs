//! Deleted files.
//!
//! ext4 clears the map of an inode that it deletes, and a kernel since 5.13 clears the name as well. The
//! journal's area holds older copies of both until later transactions overwrite them:
//!
//! ```text
//! older copy of an inode table:  the inode with its map, as of transaction T
//! older copies of directories:   names of the inode, as of T or before
//! copies of bitmaps after T:     was a block allocated again after it was freed?
//! ```
//!
//! What ext4 makes impossible: contents of a file whose inode was not in any transaction that the journal
//! still holds; bytes that were written again, or discarded, since.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};

use extant_base::{Ino, Pblk};
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags};

use crate::ground::{Ground, is_live};
use crate::maps::Map;
use crate::names::{self, Name};
use crate::sink::{Item, RescueSink};
use crate::{Confidence, FoundFile, RescueFault, RescueObserver, RescueScope, check_stop, found_of};

/// A deleted inode.
struct Deleted {
    inode: Inode,
    bytes: Vec<u8>,
    /// The transaction of the copy; `None`: the inode table itself still has the map.
    age: Option<i64>,
    /// Its deletion time, if known.
    time: Option<u32>,
    /// The first transaction in which it was gone, if a copy shows it.
    gone: Option<i64>,
}

/// Where a directory held a name: the oldest transaction that is known to have it, or -infinity for names in
/// the space that removed entries left.
struct Link {
    age: i64,
    parent: Ino,
    name: Vec<u8>,
}

/// Finds deleted files.
pub(crate) fn run(
    ground: &Ground,
    wanted: RescueScope,
    sink: &mut dyn RescueSink,
    watch: &dyn RescueObserver,
) -> Result<(), RescueFault> {
    let mut deleted = in_journal(ground, watch)?;
    in_place(ground, watch, &mut deleted)?;
    let paths = Paths::new(ground, watch, &deleted)?;
    let mut taken = HashSet::new();
    for ((ino, generation), of) in &deleted {
        check_stop(watch)?;
        let kind = FileType::from_mode(of.inode.mode);
        if !matches!(kind, FileType::Regular | FileType::Symlink) {
            continue;
        }
        if let (Some(since), Some(time)) = (wanted.since, of.time)
            && time < since
        {
            continue;
        }
        let ino = Ino(*ino);
        let map = match (has_map(&of.inode), of.age) {
            (false, _) => Map::default(),
            (true, Some(age)) => ground.map_as_of(ino, &of.inode, age),
            (true, None) => ground.map(ino, &of.inode),
        };
        let mut path = paths.of(ino, of, 0).unwrap_or_else(|| unnamed(ino, *generation));
        if !taken.insert(path.join(&b'/')) {
            if let Some(last) = path.last_mut() {
                last.extend(format!(".#{ino}-{generation}").into_bytes());
            }
            taken.insert(path.join(&b'/'));
        }
        let mut found = FoundFile { deleted: of.time, ..found_of(path, ino, &of.inode) };
        (found.confidence, found.reason) = judge(ground, of, &map);
        if !watch.wants(&found) {
            continue;
        }
        let lost = {
            let (inode, bytes) = (&of.inode, &of.bytes[..]);
            let item =
                Item { ground, found: &found, inode, bytes, map: &map, link: None, lost: Cell::new(0) };
            sink.put(&item)?;
            item.lost.get()
        };
        if lost > 0 {
            found.confidence = Confidence::Low;
            found.reason = format!("{lost} bytes cannot be read; they are zeros in the output");
        }
        watch.found(&found);
    }
    Ok(())
}

fn unnamed(ino: Ino, generation: u32) -> Vec<Vec<u8>> {
    vec![b"lost+found".to_vec(), format!("#{ino}-{generation}").into_bytes()]
}

/// Whether the content is in blocks.
fn has_map(inode: &Inode) -> bool {
    let is_fast_link = FileType::from_mode(inode.mode) == FileType::Symlink
        && !inode.has_flag(flags::EXTENTS)
        && inode.size < inode.block.len() as u64;
    !inode.has_flag(flags::INLINE_DATA) && !is_fast_link
}

/// Inodes that were live in an older copy of their table and are not now.
fn in_journal(
    ground: &Ground,
    watch: &dyn RescueObserver,
) -> Result<BTreeMap<(u32, u32), Deleted>, RescueFault> {
    let mut last: BTreeMap<(u32, u32), Deleted> = BTreeMap::new();
    let tables = table_blocks(ground);
    for (block, copies) in &ground.history.copies {
        check_stop(watch)?;
        let Some(first) = tables.first_inode(*block) else { continue };
        for copy in copies {
            let Some(bytes) = copy.read(&|at| ground.read_raw(at)) else { continue };
            for (slot, bytes) in bytes.chunks_exact(ground.geometry.inode_size).enumerate() {
                let ino = Ino(first + slot as u32);
                if bytes.iter().all(|byte| *byte == 0) || ino.0 > ground.geometry.inodes() {
                    continue;
                }
                let Some(inode) = ground.decode(ino, bytes) else { continue };
                let key = (ino.0, inode.generation);
                if is_live(&inode) {
                    let bytes = bytes.to_vec();
                    last.insert(key, Deleted { inode, bytes, age: Some(copy.age), time: None, gone: None });
                } else if let Some(of) = last.get_mut(&key)
                    && of.gone.is_none()
                {
                    of.gone = Some(copy.age);
                    of.time = Some(inode.dtime).filter(|time| *time > 0);
                }
            }
        }
    }
    // What is there now, with the same generation, was not deleted.
    last.retain(|(ino, generation), of| {
        let Some((block, at)) = ground.place(Ino(*ino)) else { return false };
        let now = ground.read(block);
        let now = now.as_deref().and_then(|bytes| bytes.get(at..at + ground.geometry.inode_size));
        let Some(now) = now.and_then(|bytes| ground.decode(Ino(*ino), bytes)) else { return true };
        if now.generation == *generation && is_live(&now) {
            return false;
        }
        if now.generation == *generation && now.dtime != 0 && of.time.is_none() {
            of.time = Some(now.dtime);
        }
        true
    });
    Ok(last)
}

/// Deleted inodes that still have a map in the table.
fn in_place(
    ground: &Ground,
    watch: &dyn RescueObserver,
    deleted: &mut BTreeMap<(u32, u32), Deleted>,
) -> Result<(), RescueFault> {
    for group in 0..ground.geometry.groups {
        check_stop(watch)?;
        if ground.is_unused(group) {
            continue;
        }
        ground.for_inodes(group, &mut |ino, bytes| {
            let Some(inode) = ground.decode(ino, bytes) else { return };
            if inode.dtime == 0 || inode.size == 0 || inode.mode == 0 || inode.links > 0 {
                return;
            }
            if has_map(&inode) && ground.map(ino, &inode).runs.is_empty() {
                return;
            }
            deleted.entry((ino.0, inode.generation)).or_insert_with(|| Deleted {
                time: Some(inode.dtime),
                bytes: bytes.to_vec(),
                inode,
                age: None,
                gone: None,
            });
        });
    }
    Ok(())
}

/// Blocks of inode tables, by their first block.
struct Tables {
    firsts: BTreeMap<u64, u32>,
    blocks: u64,
    per_block: u32,
}

fn table_blocks(ground: &Ground) -> Tables {
    let per_group = ground.geometry.inodes_per_group;
    Tables {
        firsts: ground.tables.iter().map(|(block, group)| (*block, group * per_group + 1)).collect(),
        blocks: ground.geometry.itable_blocks().into(),
        per_block: ground.geometry.inodes_per_block(),
    }
}

impl Tables {
    /// The first inode of a block of a table.
    fn first_inode(&self, block: u64) -> Option<u32> {
        let (first, ino) = self.firsts.range(..=block).next_back()?;
        let index = block - first;
        (index < self.blocks).then(|| ino + index as u32 * self.per_block)
    }
}

/// How certain it is that the blocks still have the file's bytes.
fn judge(ground: &Ground, of: &Deleted, map: &Map) -> (Confidence, String) {
    if let Some(fault) = map.faults.first() {
        return (Confidence::Low, format!("a part is missing: {fault}"));
    }
    let source = match of.age {
        Some(_) => "its inode is in the journal",
        None => "its inode still has its map",
    };
    if !has_map(&of.inode) {
        return (Confidence::High, format!("{source}; its content is in the inode"));
    }
    let (mut again, mut touched, mut total) = (0, 0, 0);
    for run in &map.runs {
        for block in run.pblk..run.pblk + run.len {
            total += 1;
            match fate(ground, block, of.age) {
                Fate::Untouched => {}
                Fate::GroupChanged => touched += 1,
                Fate::UsedAgain => again += 1,
            }
        }
    }
    match (again, touched) {
        (0, 0) => (Confidence::High, format!("{source}; no block was allocated since")),
        (0, _) => {
            let why = "allocation in the groups of its blocks changed since; none of them is in use";
            (Confidence::Medium, format!("{source}; {why}"))
        }
        (again, _) => (Confidence::Low, format!("{source}; {again} of {total} blocks were used again")),
    }
}

/// What became of a block of a deleted file.
enum Fate {
    /// Free, and its bitmap did not change after it was freed.
    Untouched,
    /// Free in all that is known, but its bitmap changed after it was freed, or nothing shows when.
    GroupChanged,
    /// In use now, or at some time after it was freed.
    UsedAgain,
}

fn fate(ground: &Ground, block: u64, age: Option<i64>) -> Fate {
    let Some(group) = ground.geometry.group_of(Pblk(block)) else { return Fate::UsedAgain };
    let desc = &ground.groups[group.0 as usize];
    let within = block - ground.geometry.group_start(group).0;
    let bit = (within >> ground.geometry.cluster_log) as usize;
    let is_set = |bytes: &[u8]| bytes.get(bit / 8).is_none_or(|byte| byte >> (bit % 8) & 1 == 1);
    if ground.read(desc.block_bitmap).is_none_or(|bytes| is_set(&bytes)) {
        return Fate::UsedAgain;
    }
    let Some(age) = age else { return Fate::GroupChanged };
    if ground.history.copies.get(&block).is_some_and(|copies| copies.iter().any(|copy| copy.age > age)) {
        return Fate::UsedAgain;
    }
    let copies = ground.history.copies.get(&desc.block_bitmap).map_or(&[][..], Vec::as_slice);
    let mut freed = None;
    let mut newest = None;
    for copy in copies.iter().filter(|copy| copy.age > age) {
        let Some(bytes) = copy.read(&|at| ground.read_raw(at)) else { return Fate::GroupChanged };
        match (is_set(&bytes), freed) {
            (true, Some(_)) => return Fate::UsedAgain,
            (false, None) => freed = Some(copy.age),
            _ => {}
        }
        newest = Some(copy.age);
    }
    match (freed, newest) {
        (Some(freed), Some(newest)) if freed == newest => Fate::Untouched,
        _ => Fate::GroupChanged,
    }
}

/// Paths of inodes, deleted ones as well.
struct Paths {
    links: HashMap<u32, Vec<Link>>,
}

/// Directories in a path; more is a loop.
const DEPTH_MAX: usize = 256;

impl Paths {
    /// Collects names from directories as they are, from their older copies, and from what removed entries
    /// left.
    fn new(
        ground: &Ground,
        watch: &dyn RescueObserver,
        deleted: &BTreeMap<(u32, u32), Deleted>,
    ) -> Result<Self, RescueFault> {
        let mut links: HashMap<u32, Vec<Link>> = HashMap::new();
        let mut add = |age: i64, parent: Ino, found: Vec<Name>| {
            for Name { name, ino } in found {
                links.entry(ino.0).or_default().push(Link { age, parent, name });
            }
        };
        let format = ground.dir_format();
        // The directory of each block of a directory.
        let mut owners: HashMap<u64, Ino> = HashMap::new();
        for group in 0..ground.geometry.groups {
            check_stop(watch)?;
            if ground.is_unused(group) {
                continue;
            }
            let mut directories = Vec::new();
            ground.for_inodes(group, &mut |ino, bytes| {
                let Some(inode) = ground.decode(ino, bytes) else { return };
                if is_live(&inode) && FileType::from_mode(inode.mode) == FileType::Directory {
                    directories.push((ino, inode, bytes.to_vec()));
                }
            });
            for (ino, inode, bytes) in directories {
                let (found, _) = names::of(ground, ino, &inode, &bytes);
                add(i64::MAX, ino, found);
                if inode.has_flag(flags::INLINE_DATA) {
                    continue;
                }
                for run in ground.map(ino, &inode).runs {
                    for block in run.pblk..run.pblk + run.len {
                        owners.insert(block, ino);
                        let mut removed = Vec::new();
                        if let Some(bytes) = ground.read(block) {
                            names::removed_in(&format, &bytes, &mut removed);
                        }
                        add(i64::MIN, ino, removed);
                    }
                }
            }
        }
        for ((ino, _), of) in deleted {
            if FileType::from_mode(of.inode.mode) == FileType::Directory
                && has_map(&of.inode)
                && let Some(age) = of.age
            {
                for run in ground.map_as_of(Ino(*ino), &of.inode, age).runs {
                    for block in run.pblk..run.pblk + run.len {
                        owners.entry(block).or_insert(Ino(*ino));
                    }
                }
            }
        }
        for (block, copies) in &ground.history.copies {
            let Some(parent) = owners.get(block) else { continue };
            for copy in copies {
                let Some(bytes) = copy.read(&|at| ground.read_raw(at)) else { continue };
                let mut found = Vec::new();
                names::in_area(&format, &bytes, &mut found);
                add(copy.age, *parent, found);
            }
        }
        Ok(Self { links })
    }

    /// The path that an inode had when it was deleted.
    fn of(&self, ino: Ino, of: &Deleted, depth: usize) -> Option<Vec<Vec<u8>>> {
        let gone = of.gone.unwrap_or(i64::MAX);
        let known = self.links.get(&ino.0)?;
        // The newest name before the deletion; names that are there now are another inode's.
        let in_copies = known.iter().filter(|link| link.age < gone && link.age != i64::MAX);
        let link = in_copies.max_by_key(|link| link.age)?;
        let mut path = self.current(link.parent, depth + 1)?;
        path.push(link.name.clone());
        Some(path)
    }

    /// The path of a directory: as it is, or as it was.
    fn current(&self, ino: Ino, depth: usize) -> Option<Vec<Vec<u8>>> {
        if ino == Ino::ROOT {
            return Some(Vec::new());
        }
        if depth > DEPTH_MAX {
            return None;
        }
        let link = self.links.get(&ino.0)?.iter().max_by_key(|link| link.age)?;
        let mut path = self.current(link.parent, depth + 1)?;
        path.push(link.name.clone());
        Some(path)
    }
}
