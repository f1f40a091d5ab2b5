//! Changes of maps without extents: block numbers are stored in the indirect block that they belong to, and
//! cleared from the end of the file backwards.

use std::ops::Range;

use extant_base::{BlockSize, Lblk, Pblk};
use extant_buffer::{Kind, Owner, Seal};
use extant_ondisk::indirect::max_blocks;

use crate::{EditFault, Editor, FileMap, Freed, lies_inside, outside};

/// Slots in `i_block` for data blocks.
const DIRECT: u64 = 12;

fn entries(block_size: BlockSize) -> u64 {
    block_size.bytes() / 4
}

fn get(bytes: &[u8], at: u64) -> u32 {
    let (words, _) = bytes.as_chunks::<4>();
    words.get(at as usize).map_or(0, |word| u32::from_le_bytes(*word))
}

fn put(bytes: &mut [u8], at: u64, number: u32) {
    let (words, _) = bytes.as_chunks_mut::<4>();
    if let Some(word) = words.get_mut(at as usize) {
        *word = number.to_le_bytes();
    }
}

/// Stores consecutive block numbers.
fn put_run(bytes: &mut [u8], at: u64, start: u32, len: u64) {
    (0..len).for_each(|i| put(bytes, at + i, start + i as u32));
}

/// The path of slots to a logical block: one in `i_block`, then one in each indirect block. At most four.
struct SlotPath {
    slots: [u64; 4],
    len: usize,
}

impl SlotPath {
    /// `None` past the reach of three levels.
    fn to(block_size: BlockSize, lblk: u64) -> Option<Self> {
        if lblk < DIRECT {
            return Some(Self { slots: [lblk, 0, 0, 0], len: 1 });
        }
        let a = entries(block_size);
        let mut index = lblk - DIRECT;
        for levels in 1..=3 {
            let reach = a.pow(levels);
            if index < reach {
                let mut slots = [DIRECT + u64::from(levels) - 1, 0, 0, 0];
                for (slot, level) in slots[1..].iter_mut().zip((0..levels).rev()) {
                    *slot = index / a.pow(level) % a;
                }
                return Some(Self { slots, len: levels as usize + 1 });
            }
            index -= reach;
        }
        None
    }
}

impl FileMap {
    /// Indirect blocks have no checksum.
    fn indirect_seal(&self) -> Seal {
        Seal { owner: Owner { kind: Kind::Indirect, ino: self.ino.0 }, seed: None }
    }

    /// Changes an indirect block, or `i_block` for `None`.
    fn change_numbers(
        &mut self,
        editor: &Editor<'_>,
        block: Option<Pblk>,
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), EditFault> {
        match block {
            None => change(&mut self.i_block),
            Some(block) => editor.edit.change(block, self.indirect_seal(), change)?,
        }
        Ok(())
    }
}

/// Maps as many of `len` blocks as have slots in one indirect block, or in `i_block`. Returns their number.
pub(crate) fn insert(
    map: &mut FileMap,
    editor: &Editor<'_>,
    lblk: Lblk,
    start: Pblk,
    len: u32,
) -> Result<u32, EditFault> {
    let block_size = editor.buffers.block_size();
    let first = u64::from(lblk.0);
    let reach = max_blocks(block_size).saturating_sub(first);
    let path = SlotPath::to(block_size, first).filter(|_| reach > 0).ok_or(EditFault::TooLarge)?;
    let last = path.len - 1;
    let room = if last == 0 { DIRECT } else { entries(block_size) } - path.slots[last];
    let len = u64::from(len).min(room).min(reach);
    if start.checked_add(len).is_none_or(|end| end.0 > 1 << 32) {
        return Err(EditFault::TooLarge);
    }
    let number = start.0 as u32;

    // Descend to the first missing block, or to the block with the numbers.
    let (mut block, mut level) = (None, 0);
    loop {
        let held;
        let bytes = match block {
            None => &map.i_block[..],
            Some(block) => {
                held = map.indirect(editor.buffers, block)?;
                &held
            }
        };
        if level == last {
            let is_free = (0..len).all(|i| get(bytes, path.slots[level] + i) == 0);
            if !is_free {
                return Err(EditFault::Occupied(lblk));
            }
            break;
        }
        let child = Pblk(get(bytes, path.slots[level]).into());
        if child.0 == 0 {
            break;
        }
        if !lies_inside(editor.buffers, child, 1) {
            return Err(outside(lblk.0, child).into());
        }
        (block, level) = (Some(child), level + 1);
    }
    if level == last {
        map.change_numbers(editor, block, &mut |bytes| put_run(bytes, path.slots[level], number, len))?;
        return Ok(len as u32);
    }
    add_blocks(map, editor, &path, (block, level), (number, len))?;
    Ok(len as u32)
}

/// Creates the indirect blocks missing below `level` of a path, stores the numbers in the lowest, and links
/// the highest into `parent`.
fn add_blocks(
    map: &mut FileMap,
    editor: &Editor<'_>,
    path: &SlotPath,
    (parent, level): (Option<Pblk>, usize),
    (number, len): (u32, u64),
) -> Result<(), EditFault> {
    let last = path.len - 1;
    let missing = last - level;
    let mut blocks = [Pblk(0); 3];
    let mut taken = 0;
    let mut result = Ok(());
    let near = parent.unwrap_or(Pblk(u64::from(number)));
    while taken < missing && result.is_ok() {
        match editor.space.allocate(near) {
            Ok(block) if block.0 > u64::from(u32::MAX) => {
                editor.space.free(block);
                result = Err(EditFault::TooLarge);
            }
            Ok(block) => {
                blocks[taken] = block;
                taken += 1;
            }
            Err(fault) => result = Err(fault),
        }
    }
    // The only change that can fail comes first.
    let result = result.and_then(|()| {
        map.change_numbers(editor, parent, &mut |bytes| put(bytes, path.slots[level], blocks[0].0 as u32))
    });
    if result.is_err() {
        blocks[..taken].iter().for_each(|block| editor.space.free(*block));
        return result;
    }
    for (i, block) in blocks[..missing].iter().enumerate() {
        let slot = path.slots[level + 1 + i];
        editor.edit.fresh(*block, map.indirect_seal(), &mut |bytes| match blocks[..missing].get(i + 1) {
            Some(child) => put(bytes, slot, child.0 as u32),
            None => put_run(bytes, slot, number, len),
        });
    }
    Ok(())
}

/// A removal in progress.
struct Remover<'a, 'e> {
    editor: &'a Editor<'e>,
    range: Range<u64>,
    /// Runs that may still be unmapped.
    left: u32,
    /// The start of the part that is unmapped already.
    reached: u64,
    freed: Freed<'a>,
}

/// Unmaps from the end of `range` backwards; returns the end of the rest.
pub(crate) fn remove_step(
    map: &mut FileMap,
    editor: &Editor<'_>,
    range: Range<u64>,
    runs_max: u32,
    freed: Freed<'_>,
) -> Result<Option<u64>, EditFault> {
    let a = entries(editor.buffers.block_size());
    let reached = range.end;
    let mut remover = Remover { editor, range, left: runs_max.max(1), reached, freed };
    for level in (0..3u32).rev() {
        // The tree with `level` levels below its root block maps a^(level+1) blocks, after those of the
        // smaller trees.
        let first = DIRECT + (1..=level).map(|below| a.pow(below)).sum::<u64>();
        let slot = DIRECT + u64::from(level);
        let block = Pblk(get(&map.i_block, slot).into());
        if block.0 == 0 || !remover.is_wanted(first, a.pow(level + 1)) {
            continue;
        }
        if remover.below(map, block, level, first)? {
            put(&mut map.i_block, slot, 0);
            editor.space.free(block);
        }
        if remover.left == 0 {
            return Ok(Some(remover.reached).filter(|reached| *reached > remover.range.start));
        }
    }
    if remover.is_wanted(0, DIRECT) {
        let bytes = map.i_block;
        let gone = remover.numbers(&bytes[..48], 0);
        put_run_of_zeros(&mut map.i_block, &gone);
    }
    Ok(Some(remover.reached).filter(|reached| remover.left == 0 && *reached > remover.range.start))
}

fn put_run_of_zeros(bytes: &mut [u8], slots: &Range<u64>) {
    slots.clone().for_each(|slot| put(bytes, slot, 0));
}

impl Remover<'_, '_> {
    /// Whether these logical blocks overlap the range.
    fn is_wanted(&self, first: u64, len: u64) -> bool {
        self.left > 0 && first < self.range.end && first + len > self.range.start
    }

    /// Passes the data of the last runs to `freed`: those in the range that `bytes` maps, with numbers from
    /// logical block `first` on. Returns the slots to clear.
    fn numbers(&mut self, bytes: &[u8], first: u64) -> Range<u64> {
        let from = self.range.start.saturating_sub(first);
        let to = self.range.end.saturating_sub(first).min(bytes.len() as u64 / 4);
        let mut at = to;
        while at > from && self.left > 0 {
            if get(bytes, at - 1) == 0 {
                at -= 1;
                continue;
            }
            let last = at - 1;
            at = last;
            let follows = |at: u64| {
                get(bytes, at - 1) != 0 && get(bytes, at - 1).checked_add(1) == Some(get(bytes, at))
            };
            while at > from && follows(at) {
                at -= 1;
            }
            (self.freed)(Lblk((first + at) as u32), Pblk(get(bytes, at).into()), (last - at + 1) as u32);
            self.left -= 1;
        }
        self.reached = first + at;
        at..to
    }

    /// Unmaps below an indirect block with `level` levels below it and the first logical block `first`.
    /// Returns whether it is empty then: in that case it is not changed, and the caller unlinks and frees it.
    fn below(&mut self, map: &mut FileMap, block: Pblk, level: u32, first: u64) -> Result<bool, EditFault> {
        if !lies_inside(self.editor.buffers, block, 1) {
            return Err(outside(first as u32, block).into());
        }
        let held = map.indirect(self.editor.buffers, block)?;
        let a = entries(self.editor.buffers.block_size());
        if level == 0 {
            let wanted = self.range.start.saturating_sub(first)..self.range.end.saturating_sub(first).min(a);
            let is_wanted = |at: &u64| wanted.contains(at) && get(&held, *at) != 0;
            let used = (0..a).filter(|at| get(&held, *at) != 0).count();
            let wanted = (0..a).filter(is_wanted).count();
            if wanted == 0 {
                self.reached = first.max(self.range.start);
                self.left -= 1; // looking counts too: a map of empty blocks is no endless step
                return Ok(used == 0);
            }
            // Pinned, so that clearing cannot fail after the data was passed to `freed`.
            map.change_numbers(self.editor, Some(block), &mut |_| ())?;
            let gone = self.numbers(&held, first);
            let cleared = gone.clone().filter(|at| get(&held, *at) != 0).count();
            drop(held);
            if cleared == used {
                return Ok(true);
            }
            map.change_numbers(self.editor, Some(block), &mut |bytes| put_run_of_zeros(bytes, &gone))?;
            return Ok(false);
        }
        let span = a.pow(level);
        let mut used = (0..a).filter(|at| get(&held, *at) != 0).count();
        for at in (0..a).rev() {
            let (child, child_first) = (Pblk(get(&held, at).into()), first + at * span);
            if child.0 == 0 || !self.is_wanted(child_first, span) {
                continue;
            }
            map.change_numbers(self.editor, Some(block), &mut |_| ())?;
            if self.below(map, child, level - 1, child_first)? {
                map.change_numbers(self.editor, Some(block), &mut |bytes| put(bytes, at, 0))?;
                self.editor.space.free(child);
                used -= 1;
            }
        }
        if self.left > 0 {
            self.reached = first.max(self.range.start);
        }
        Ok(used == 0)
    }
}
