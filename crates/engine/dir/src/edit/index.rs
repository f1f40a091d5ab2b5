//! Indexed directories: paths to leaves, inserts, splits, growth of the index.

use extant_base::{Ino, Lblk, Malformed};
use extant_buffer::ReadFault;
use extant_ondisk::dirent::edit::{Found, Hole};
use extant_ondisk::dirent::{DirFormat, min_rec_len};
use extant_ondisk::filetype::FileType;
use extant_ondisk::hash::{HashVersion, NameHash};
use extant_ondisk::htree::{DxEntries, DxEntry, DxKind};

use super::cache::LeafSummary;
use super::hints::Expected;
use super::nodes::CachedNode;
use super::notes::HashMatches;
use super::path::{LEVELS_MAX, LeafSpan, Path};
use super::{EditFault, Editor, NoSpace, leaf};

/// The room for a name in a leaf.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// At an entry.
    Hole(Hole),
    /// After moving all entries together.
    Scattered,
    /// Only in another leaf.
    None,
}

/// The rule of the order: hashes rise, and are equal only if a child continues the one before.
fn check_rising(entries: DxEntries<'_>) -> Result<(), Malformed> {
    let mut before = 0;
    for entry in entries.iter().skip(1) {
        let hash = entry.hash & !1;
        let holds = hash > before || (hash == before && entry.hash & 1 == 1) || before == 0;
        Malformed::unless(holds, "index block", "hashes must rise", entry.hash)?;
        before = hash;
    }
    Ok(())
}

/// The entry at this offset, if it has this name.
fn named(block: &[u8], at: usize, name: &[u8]) -> Option<Found> {
    let entry = block.get(at..at + 8 + name.len())?;
    let ino = u32::from_le_bytes(*entry.first_chunk()?);
    let is_it = usize::from(entry[6]) == name.len() && entry[8..] == *name;
    (is_it && ino != 0).then_some(Found { at, ino: Ino(ino) })
}

fn kind_of(lblk: Lblk) -> DxKind {
    if lblk.0 == 0 { DxKind::Root } else { DxKind::Node }
}

impl Editor<'_> {
    pub(super) fn load_root(&mut self) -> Result<(), ReadFault> {
        let lblk = Lblk(0);
        if self.cache.node(lblk).is_some() {
            return Ok(());
        }
        let block = self.index_block(lblk)?;
        let fact = |fact| self.corrupt(&block, lblk, fact);
        let root = self.format.index.decode_root(&block).map_err(fact)?;
        self.check_entries(root.entries).map_err(fact)?;
        let version = HashVersion::from_code(root.hash_code, self.format.unsigned_hash);
        let version = version.filter(|version| *version != HashVersion::SipHash);
        let version = version
            .ok_or(Malformed::new("index root", "the hash must need no key", root.hash_code))
            .map_err(fact)?;
        self.cache.levels = root.levels;
        self.cache.set_hasher(self.dir().hasher(self.format, version));
        self.cache.set_root(root.entries.iter(), self.format.index.limit(DxKind::Node));
        Ok(())
    }

    pub(super) fn load_node(&mut self, lblk: Lblk) -> Result<(), ReadFault> {
        if self.cache.node(lblk).is_some() {
            return Ok(());
        }
        let block = self.index_block(lblk)?;
        let fact = |fact| self.corrupt(&block, lblk, fact);
        let entries = self.format.index.decode_node(&block).map_err(fact)?;
        self.check_entries(entries).map_err(fact)?;
        self.cache.nodes_mut().put(lblk, entries.iter());
        Ok(())
    }

    fn check_entries(&self, entries: DxEntries<'_>) -> Result<(), Malformed> {
        for entry in entries.iter() {
            let holds = entry.block.0 > 0 && entry.block.0 < self.blocks.len();
            Malformed::unless(holds, "index block", "child must lie inside the directory", entry.block.0)?;
        }
        check_rising(entries)
    }

    /// A loaded node.
    pub(super) fn node(&self, lblk: Lblk) -> CachedNode<'_> {
        self.cache.node(lblk).expect("nodes of a path are loaded, and dropped only between operations")
    }

    /// The path to the first leaf that may hold names of a hash. The root must be loaded.
    pub(super) fn descend(&mut self, hash: u32) -> Result<Path, ReadFault> {
        self.descend_from(Path::START, Some(hash))
    }

    /// Continues a path that ends at an index block: to this hash, or to the first leaf.
    fn descend_from(&mut self, mut path: Path, hash: Option<u32>) -> Result<Path, ReadFault> {
        while path.len() <= usize::from(self.cache.levels) {
            let lblk = path.leaf();
            let node = match self.cache.node(lblk) {
                Some(node) => node,
                None => {
                    self.load_node(lblk)?;
                    self.node(lblk)
                }
            };
            hash.into_iter().for_each(|hash| path.prefetch(node, hash));
            path.go_on(node, hash);
            if path.is_circle() {
                let fact = Malformed::new("index block", "child must not be an ancestor", path.leaf().0);
                return Err(self
                    .dir()
                    .placed(ReadFault::corrupt(extant_base::CorruptAt::default(), fact), lblk));
            }
        }
        Ok(path)
    }

    /// The key after these steps.
    fn next_key(&self, path: &Path) -> Option<u32> {
        path.steps().iter().rev().find_map(|step| self.node(step.lblk).key(step.at + 1))
    }

    /// The path to the next leaf.
    fn next_leaf(&mut self, mut path: Path) -> Result<Option<Path>, ReadFault> {
        while let Some(next) = path.back_to_next() {
            let node = self.node(next.lblk);
            if let Some(child) = node.child(next.at) {
                let next_key = node.key(next.at + 1).or_else(|| self.next_key(&path));
                path.go_to(next, child, next_key);
                return self.descend_from(path, None).map(Some);
            }
        }
        Ok(None)
    }

    /// The path to the next leaf, if it may hold names of the same hash.
    pub(super) fn continued(&mut self, path: &Path, hash: u32) -> Result<Option<Path>, ReadFault> {
        if path.span().is_continued(hash) { self.next_leaf(*path) } else { Ok(None) }
    }

    /// As [`continued`](Self::continued), for callers with only the [`LeafSpan`] to the first leaf of this
    /// hash. `path` is `None` at first, and then the result of the previous call.
    fn next_span(
        &mut self,
        span: LeafSpan,
        hash: u32,
        path: &mut Option<Path>,
    ) -> Result<Option<LeafSpan>, ReadFault> {
        if !span.is_continued(hash) {
            return Ok(None);
        }
        let at = match path.take() {
            Some(at) => at,
            None => self.descend(hash)?,
        };
        *path = self.next_leaf(at)?;
        Ok(path.map(|path| path.span()))
    }

    /// Finds a name: its leaf, its hash, and the entry.
    pub(super) fn find_indexed(&mut self, name: &[u8]) -> Result<Option<(Lblk, u32, Found)>, EditFault> {
        self.begin()?;
        let (hash, mut span) = self.span_of(name)?;
        let mut path = None;
        loop {
            if let (Some(found), _) = self.look(span.leaf, hash, name, usize::MAX)? {
                return Ok(Some((span.leaf, hash.hash, found)));
            }
            match self.next_span(span, hash.hash, &mut path)? {
                Some(next) => span = next,
                None => return Ok(None),
            }
        }
    }

    /// A name's hashes, and the [`LeafSpan`] to its first possible leaf, with the leaf's memory prefetched.
    /// The root must be loaded.
    fn span_of(&mut self, name: &[u8]) -> Result<(NameHash, LeafSpan), ReadFault> {
        let (hash, span) = match self.cache.hints(name) {
            Some(Expected { hash, span: Some(span), is_prefetched: true }) => return Ok((hash, span)),
            Some(Expected { hash, span, .. }) => (hash, span),
            None => (self.hasher().hash(name), None),
        };
        let span = match span {
            Some(span) => span,
            None => self.descend(hash.hash)?.span(),
        };
        self.prefetch_leaf(span.leaf, hash);
        Ok((hash, span))
    }

    /// Starts an operation.
    fn begin(&mut self) -> Result<(), ReadFault> {
        self.cache.trim();
        self.load_root()
    }

    /// Prefetches all memory needed to search and change a leaf. In a large directory none of it is in the
    /// CPU caches, and some of it is found through other parts. The cache's data about the leaf and the
    /// leaf's slot are loaded in parallel.
    fn prefetch_leaf(&self, leaf: Lblk, hash: NameHash) {
        self.cache.prefetch(leaf);
        self.cache.prefetch_filter(leaf, hash);
        if let Some((at, what)) = self.cache.prefetch_notes(leaf) {
            self.blocks.prefetch_leaf(at, what);
        }
    }

    /// Searches a leaf for the name, and for room of `need` bytes.
    fn look(
        &mut self,
        lblk: Lblk,
        hash: NameHash,
        name: &[u8],
        need: usize,
    ) -> Result<(Option<Found>, Room), ReadFault> {
        let format = self.format.entries;
        let room = |hole: Hole, live_bytes: usize| match hole.len {
            len if len >= need => Room::Hole(hole),
            _ if need <= format.usable_len().saturating_sub(live_bytes) => Room::Scattered,
            _ => Room::None,
        };
        let is_noted = self.cache.notes(lblk).is_some();
        if !is_noted {
            let deserved = self.cache.deserved(lblk);
            if deserved == LeafSummary::Nothing
                && let Some((hole, live_bytes)) = self.cache.room(lblk)
                && !self.may_hold(lblk, hash, name)?
            {
                return Ok((None, room(hole, live_bytes)));
            }
            let block = self.leaf_block(lblk)?;
            let scan = format.scan(&block, name, need).map_err(|fact| self.corrupt(&block, lblk, fact))?;
            if deserved != LeafSummary::Nothing {
                let mut map = std::mem::take(&mut self.cache.map);
                let mapped = leaf::map(&format, self.hasher(), &block, 0, &mut map);
                mapped.map_err(|fact| self.corrupt(&block, lblk, fact))?;
                self.remember(lblk, map.iter().copied(), scan.live_bytes, scan.hole);
                self.cache.map = map;
            } else {
                self.cache.set_room(lblk, scan.hole, scan.live_bytes);
            }
            return Ok((scan.found, room(scan.hole, scan.live_bytes)));
        }
        let Some(notes) = self.cache.notes(lblk) else { return Ok((None, Room::None)) };
        let noted = notes.look(hash.hash);
        let room = room(notes.hole(), notes.live_bytes as usize);
        let found = match noted {
            HashMatches::None => None,
            HashMatches::One(at) => {
                let mut found = None;
                self.look_leaf(lblk, &mut |bytes| found = named(bytes, at, name))?;
                found
            }
            HashMatches::Several => self.compare(lblk, hash.hash, name)?,
        };
        Ok((found, room))
    }

    /// Whether a leaf without notes may hold this name.
    fn may_hold(&mut self, lblk: Lblk, hash: NameHash, name: &[u8]) -> Result<bool, ReadFault> {
        if !self.cache.may_hold(lblk, hash) {
            return Ok(false);
        }
        let mut may_hold = true;
        self.look_leaf(lblk, &mut |bytes| {
            extant_buffer::prefetch(bytes);
            may_hold = DirFormat::may_hold(bytes, name);
        })?;
        if !may_hold {
            self.cache.filter_failed(lblk);
        }
        Ok(may_hold)
    }

    /// Stores the entries of a leaf in the cache (hashes and offsets), and its room.
    fn remember(
        &mut self,
        lblk: Lblk,
        entries: impl ExactSizeIterator<Item = leaf::LeafEntry> + Clone,
        live_bytes: usize,
        hole: Hole,
    ) {
        let leaf_bytes = self.format.entries.block_size.len();
        let is_noted = self.cache.make_notes(lblk, entries.len(), |notes| {
            notes.set(entries.clone().map(|entry| (entry.hash(), entry.at())), live_bytes, hole);
        });
        if !is_noted {
            self.cache.make_filter(lblk, leaf_bytes, entries);
        }
        self.cache.set_room(lblk, hole, live_bytes);
    }

    /// Compares a name with those of its hash, in a leaf with notes.
    fn compare(&mut self, lblk: Lblk, hash: u32, name: &[u8]) -> Result<Option<Found>, ReadFault> {
        let block = self.leaf_block(lblk)?;
        let Some(notes) = self.cache.notes(lblk) else { return Ok(None) };
        Ok(notes.offsets(hash).find_map(|at| named(&block, at, name)))
    }

    pub(super) fn insert_indexed(&mut self, name: &[u8], ino: Ino, kind: FileType) -> Result<(), EditFault> {
        self.begin()?;
        let need = min_rec_len(name.len(), false);
        let (hash, first) = self.span_of(name)?;
        let (mut span, mut path, mut chosen) = (first, None, None);
        loop {
            let (found, room) = self.look(span.leaf, hash, name, need)?;
            if found.is_some() {
                return Err(EditFault::Exists);
            }
            if chosen.is_none() && room != Room::None {
                chosen = Some((span.leaf, room));
            }
            match self.next_span(span, hash.hash, &mut path)? {
                Some(next) => span = next,
                None => break,
            }
        }
        let (lblk, hole) = match chosen {
            Some((lblk, Room::Hole(hole))) => (lblk, hole),
            Some((lblk, _)) => {
                self.blocks.mark_packed();
                (lblk, self.pack(lblk)?)
            }
            None => {
                let path = self.descend(hash.hash)?;
                if path.leaf() != first.leaf {
                    // The leaf had names outside its range when it was split, so this leaf was not searched
                    // for the name.
                    return Err(self.stale(path.leaf()));
                }
                self.split(path, hash.hash, need)?
            }
        };
        self.place(lblk, hole, hash, name, ino, kind)
    }

    /// Inserts at an entry with room.
    fn place(
        &mut self,
        lblk: Lblk,
        hole: Hole,
        hash: NameHash,
        name: &[u8],
        ino: Ino,
        kind: FileType,
    ) -> Result<(), EditFault> {
        let format = self.format.entries;
        let mut placed = None;
        let mut insert = |bytes: &mut [u8]| placed = format.insert_at(bytes, hole.at, ino, kind, name);
        // If memory does not suffice for the notes of all leaves, there are more leaves than blocks in a
        // transaction. Most leaves then change once per transaction, and a patch saves fetching them: from
        // memory, and from the device if memory does not suffice for the leaves.
        let is_noted = self.cache.notes(lblk).is_some();
        let at = self.cache.at(lblk);
        if is_noted && self.blocks.change_leaf_in_memory(lblk, at, &mut insert) {
        } else if let Some(insertion) = format.insertion(hole, ino, kind, name)
            && self.blocks.patch_leaf(lblk, at, insertion.expected(), &insertion.pieces())?
        {
            placed = Some(insertion.left());
        } else {
            self.blocks.change_leaf(lblk, at, &mut insert)?;
        }
        let room = placed.ok_or_else(|| self.stale(lblk))?;
        self.cache.note_insert(lblk, hash, min_rec_len(name.len(), false), room);
        self.cache.touch(lblk);
        Ok(())
    }

    /// Copies a leaf to the cache's buffer, and maps its entries in the order of their hashes.
    fn map_leaf(&mut self, lblk: Lblk) -> Result<(), ReadFault> {
        let format = self.format.entries;
        let mut map = std::mem::take(&mut self.cache.map);
        let block = self.leaf_block(lblk)?;
        if let Some(notes) = self.cache.notes(lblk) {
            map.clear();
            map.extend(notes.entries());
            leaf::check(&format, &block, &map).map_err(|fact| self.corrupt(&block, lblk, fact))?;
        } else {
            let mapped = leaf::map(&format, self.hasher(), &block, 0, &mut map);
            mapped.map_err(|fact| self.corrupt(&block, lblk, fact))?;
        }
        map.sort_unstable();
        self.cache.map = map;
        self.cache.source.clear();
        self.cache.source.extend_from_slice(&block);
        Ok(())
    }

    /// Moves a leaf's entries together. Returns the room after them.
    fn pack(&mut self, lblk: Lblk) -> Result<Hole, EditFault> {
        self.map_leaf(lblk)?;
        self.cache.stats.packed += 1;
        let map = std::mem::take(&mut self.cache.map);
        let hole = self.fill_leaf(lblk, &map);
        self.cache.map = map;
        Ok(hole?)
    }

    /// Fills an existing leaf with these entries of the cache's buffer, and updates its notes. Returns its
    /// room.
    fn fill_leaf(&mut self, lblk: Lblk, entries: &[leaf::LeafEntry]) -> Result<Hole, ReadFault> {
        let format = self.format.entries;
        let source = std::mem::take(&mut self.cache.source);
        let mut hole = Hole::default();
        let changed = self.blocks.change_leaf(lblk, self.cache.at(lblk), &mut |bytes| {
            hole = format.repack(&source, entries.iter().map(|entry| entry.at()), bytes, 0, |_| ());
        });
        self.cache.source = source;
        changed?;
        self.note_packed(lblk, entries, hole);
        Ok(hole)
    }

    /// Updates the notes of a leaf that was just filled with these entries of the cache's buffer, without
    /// gaps.
    fn note_packed(&mut self, lblk: Lblk, entries: &[leaf::LeafEntry], hole: Hole) {
        let source = std::mem::take(&mut self.cache.source);
        let len = |entry: &leaf::LeafEntry| min_rec_len(usize::from(source[entry.at() + 6]), false);
        let mut next = 0;
        let placed = entries.iter().map(move |entry| {
            let at = next;
            next += len(entry);
            entry.moved_to(at)
        });
        self.remember(lblk, placed, entries.iter().map(len).sum(), hole);
        self.cache.source = source;
    }

    /// Splits a full leaf. Returns the place for the new name of this hash.
    fn split(&mut self, path: Path, hash: u32, need: usize) -> Result<(Lblk, Hole), EditFault> {
        self.map_leaf(path.leaf())?;
        let map = std::mem::take(&mut self.cache.map);
        let split = self.split_mapped(path, hash, need, &map);
        self.cache.map = map;
        split
    }

    fn split_mapped(
        &mut self,
        mut path: Path,
        hash: u32,
        need: usize,
        map: &[leaf::LeafEntry],
    ) -> Result<(Lblk, Hole), EditFault> {
        if map.len() < 2 {
            // A full leaf holds at least three names.
            return Err(self.stale(path.leaf()));
        }
        let format = self.format.entries;
        let (lower, upper) = map.split_at(leaf::cut(&self.cache.source, map));
        let hash2 = upper[0].hash();
        let is_continued = lower.last().is_some_and(|last| last.hash() == hash2);

        // Loaded before, so that the changes below cannot fail to read it.
        self.index_block(path.bottom().lblk)?;
        let spare = self.reserve_nodes(&path)?;
        let mut upper_hole = Hole::default();
        let source = std::mem::take(&mut self.cache.source);
        let appended = self.append(false, &mut |bytes| {
            upper_hole = format.repack(&source, upper.iter().map(|entry| entry.at()), bytes, 0, |_| ());
        });
        self.cache.source = source;
        let new = match appended {
            Ok(new) => new,
            Err(fault) => {
                for _ in spare.list() {
                    self.pop()?;
                }
                return Err(fault);
            }
        };
        // No refusal is possible from here on.
        self.grow(&mut path, &spare)?;
        self.note_packed(new, upper, upper_hole);
        let lower_hole = self.fill_leaf(path.leaf(), lower)?;
        let bottom = path.bottom();
        let entry = DxEntry { hash: hash2 | u32::from(is_continued), block: new };
        self.cache.nodes_for_split(path.leaf()).insert(bottom.lblk, bottom.at + 1, entry);
        self.write_node(bottom.lblk, bottom.at + 1)?;
        self.cache.stats.splits += 1;

        let (lblk, hole) = if hash >= hash2 { (new, upper_hole) } else { (path.leaf(), lower_hole) };
        // Each half has room: at most half a block and half an entry moves, and at least the same less one
        // entry.
        if hole.len < need { Err(self.stale(lblk)) } else { Ok((lblk, hole)) }
    }

    fn limit(&self, lblk: Lblk) -> usize {
        self.format.index.limit(kind_of(lblk))
    }

    /// Appends the nodes that another leaf at this path needs: one per full index block, from the bottom up.
    fn reserve_nodes(&mut self, path: &Path) -> Result<AppendedNodes, EditFault> {
        let full = path.steps().iter().rev();
        let full = full.take_while(|step| self.node(step.lblk).len() >= self.limit(step.lblk)).count();
        let mut spare = AppendedNodes::default();
        if full == 0 {
            return Ok(spare);
        }
        let index = self.format.index;
        if full == path.len() && self.cache.levels >= index.levels_max() {
            return Err(NoSpace::IndexFull { large_dir: index.large_dir }.into());
        }
        self.check_size(full as u32 + 1)?;
        for step in path.steps() {
            self.index_block(step.lblk)?;
        }
        for _ in 0..full {
            let placeholder = DxEntry { hash: 0, block: Lblk(0) };
            match self.append(true, &mut |bytes| index.encode_node([placeholder], bytes)) {
                Ok(lblk) => spare.push(lblk),
                Err(fault) => {
                    for _ in spare.list() {
                        self.pop()?;
                    }
                    return Err(fault);
                }
            }
        }
        Ok(spare)
    }

    /// Uses the reserved nodes to make room in the path's lowest index block. Updates the path.
    fn grow(&mut self, path: &mut Path, spare: &AppendedNodes) -> Result<(), EditFault> {
        let mut spare = spare.list().iter().copied();
        let mut first_full = path.len() - spare.len();
        if spare.len() == path.len() {
            // All index blocks are full: the root's entries move one level down, to a node with room for a
            // few more.
            let below = spare.next().unwrap_or_default();
            let nodes = self.cache.nodes_for_split(path.leaf());
            let root = nodes.take(Lblk(0)).unwrap_or_else(|| unreachable!("the root is on the path"));
            nodes.put(below, root.into_iter());
            nodes.put(Lblk(0), std::iter::once(DxEntry { hash: 0, block: below }));
            self.cache.levels += 1;
            let levels = self.cache.levels;
            self.write_new_node(below)?;
            let index = self.format.index;
            self.blocks.change_index(Lblk(0), &mut |bytes| index.put_levels(bytes, levels))?;
            self.write_node(Lblk(0), 0)?;
            path.lengthen(below);
            self.cache.stats.levels_added += 1;
            first_full = 2;
        }
        for (depth, new) in (first_full..path.len()).zip(spare) {
            let (above, full) = (path.steps()[depth - 1], path.steps()[depth]);
            let half = self.node(full.lblk).len() / 2;
            let nodes = self.cache.nodes_for_split(path.leaf());
            let key = nodes.split(full.lblk, half, new);
            nodes.insert(above.lblk, above.at + 1, DxEntry { hash: key, block: new });
            self.write_new_node(new)?;
            self.write_node(full.lblk, half)?;
            self.write_node(above.lblk, above.at + 1)?;
            path.follow_split(depth, half, new);
            self.cache.stats.index_splits += 1;
        }
        Ok(())
    }

    /// Writes an index block's entries from `from` on, and their count.
    pub(super) fn write_node(&self, lblk: Lblk, from: usize) -> Result<(), ReadFault> {
        let (index, node) = (self.format.index, self.node(lblk));
        self.blocks.change_index(lblk, &mut |bytes| {
            index.put_entries(kind_of(lblk), bytes, from, node.len(), node.entries()[from..].iter().copied());
        })
    }

    /// Writes a block as a node, whatever its kind was.
    fn write_new_node(&self, lblk: Lblk) -> Result<(), ReadFault> {
        let (index, node) = (self.format.index, self.node(lblk));
        self.blocks.change_index(lblk, &mut |bytes| index.encode_node(node.entries().iter().copied(), bytes))
    }
}

/// Nodes appended for an insert.
#[derive(Default)]
struct AppendedNodes {
    nodes: [Lblk; LEVELS_MAX],
    len: usize,
}

impl AppendedNodes {
    fn push(&mut self, lblk: Lblk) {
        self.nodes[self.len] = lblk;
        self.len += 1;
    }

    fn list(&self) -> &[Lblk] {
        &self.nodes[..self.len]
    }
}
