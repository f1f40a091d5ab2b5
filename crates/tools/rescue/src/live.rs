//! Files that are there: by names from the root, and then those that no name leads to.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};

use extant_base::Ino;
use extant_ondisk::filetype::FileType;
use extant_ondisk::inode::{Inode, flags};

use crate::ground::{Ground, is_live};
use crate::maps::Map;
use crate::names::{self, Name};
use crate::sink::{Item, RescueSink};
use crate::{Confidence, FoundFile, RescueFault, RescueObserver, check_stop, found_of};

/// Finds all files.
pub(crate) fn run(
    ground: &Ground,
    sink: &mut dyn RescueSink,
    watch: &dyn RescueObserver,
) -> Result<(), RescueFault> {
    let mut walk = Walk { ground, sink, watch, first_path: HashMap::new(), paths: HashSet::new() };
    walk.tree(Ino::ROOT, Vec::new())?;
    walk.unnamed()
}

/// Inodes that are no files of a user.
fn is_internal(ground: &Ground, ino: Ino, inode: &Inode) -> bool {
    let sb = &ground.sb;
    let first = if sb.first_ino == 0 { 11 } else { sb.first_ino };
    let special = [sb.orphan_file_inum, sb.prj_quota_inum, sb.usr_quota_inum, sb.grp_quota_inum];
    ino.0 < first || special.contains(&ino.0) || inode.has_flag(flags::EA_INODE)
}

struct Walk<'a> {
    ground: &'a Ground,
    sink: &'a mut dyn RescueSink,
    watch: &'a dyn RescueObserver,
    /// The first path of each inode that was found.
    first_path: HashMap<u32, Vec<u8>>,
    /// Paths in the output.
    paths: HashSet<Vec<u8>>,
}

impl Walk<'_> {
    /// All that names lead to, from this inode on.
    fn tree(&mut self, ino: Ino, path: Vec<Vec<u8>>) -> Result<(), RescueFault> {
        let mut left = vec![(ino, path)];
        while let Some((ino, path)) = left.pop() {
            check_stop(self.watch)?;
            let children = self.one(ino, path.clone())?;
            for Name { name, ino } in children.into_iter().rev() {
                let mut child = path.clone();
                child.push(name);
                left.push((ino, child));
            }
        }
        Ok(())
    }

    /// One name; returns the names in it if it is a directory that was not seen before.
    fn one(&mut self, ino: Ino, mut path: Vec<Vec<u8>>) -> Result<Vec<Name>, RescueFault> {
        let Some((inode, bytes)) = self.ground.inode(ino) else {
            let mut found = found_of(path, ino, &Inode::default());
            found.confidence = Confidence::Low;
            found.reason = "its inode is lost or damaged; only the name is left".to_owned();
            self.watch.found(&found);
            return Ok(Vec::new());
        };
        let kind = FileType::from_mode(inode.mode);
        let link = self.first_path.get(&ino.0).cloned();
        if link.is_some() && kind == FileType::Directory {
            return Ok(Vec::new());
        }
        let shown = path.join(&b'/');
        if !self.paths.insert(shown.clone())
            && let Some(last) = path.last_mut()
        {
            last.extend(format!(".#{}", ino.0).into_bytes());
            self.paths.insert(path.join(&b'/'));
        }
        let mut found = found_of(path, ino, &inode);
        let (children, faults) = match kind {
            FileType::Directory => names::of(self.ground, ino, &inode, &bytes),
            _ => (Vec::new(), Vec::new()),
        };
        let has_map = matches!(kind, FileType::Regular | FileType::Symlink)
            && !inode.has_flag(flags::INLINE_DATA)
            && !(kind == FileType::Symlink && !inode.has_flag(flags::EXTENTS) && inode.size < 60);
        let map = if has_map { self.ground.map(ino, &inode) } else { Map::default() };
        self.first_path.entry(ino.0).or_insert_with(|| found.path.join(&b'/'));
        (found.confidence, found.reason) = self.judge(&inode, faults.first().or(map.faults.first()));
        self.put(&mut found, (&inode, &bytes, &map), link)?;
        Ok(children)
    }

    fn judge(&self, inode: &Inode, fault: Option<&String>) -> (Confidence, String) {
        match fault {
            Some(fault) => (Confidence::Low, format!("a part is missing: {fault}")),
            None if inode.has_flag(flags::ENCRYPT) => {
                (Confidence::Low, "encrypted: the content is as it is on the disk".to_owned())
            }
            None if self.ground.sb.features.metadata_csum() => {
                (Confidence::High, "checksums of its metadata match".to_owned())
            }
            None => (Confidence::Medium, "its metadata has no checksums".to_owned()),
        }
    }

    fn put(
        &mut self,
        found: &mut FoundFile,
        (inode, bytes, map): (&Inode, &[u8], &Map),
        link: Option<Vec<u8>>,
    ) -> Result<(), RescueFault> {
        if !self.watch.wants(found) {
            return Ok(());
        }
        let lost = {
            let (ground, lost) = (self.ground, Cell::new(0));
            let item = Item { ground, found, inode, bytes, map, link, lost };
            self.sink.put(&item)?;
            item.lost.get()
        };
        if lost > 0 {
            found.confidence = Confidence::Low;
            found.reason = format!("{lost} bytes cannot be read; they are zeros in the output");
        }
        self.watch.found(found);
        Ok(())
    }

    /// Inodes in use that no name led to, under `lost+found/#INO`.
    fn unnamed(&mut self) -> Result<(), RescueFault> {
        let mut unnamed = Vec::new();
        let mut is_child = HashSet::new();
        for group in 0..self.ground.geometry.groups {
            check_stop(self.watch)?;
            if self.ground.is_unused(group) {
                continue;
            }
            let mut of_group = Vec::new();
            self.ground.for_inodes(group, &mut |ino, bytes| {
                if self.first_path.contains_key(&ino.0) {
                    return;
                }
                let Some(inode) = self.ground.decode(ino, bytes) else { return };
                let kind = FileType::from_mode(inode.mode);
                if is_live(&inode) && kind != FileType::Unknown && !is_internal(self.ground, ino, &inode) {
                    of_group.push((ino, inode, bytes.to_vec()));
                }
            });
            for (ino, inode, bytes) in of_group {
                unnamed.push(ino);
                if FileType::from_mode(inode.mode) == FileType::Directory {
                    let (children, _) = names::of(self.ground, ino, &inode, &bytes);
                    is_child.extend(children.into_iter().map(|name| name.ino).filter(|child| *child != ino));
                }
            }
        }
        // Those in other lost directories come with these; what is left is in a loop of directories.
        let (roots, others): (Vec<Ino>, Vec<Ino>) =
            unnamed.into_iter().partition(|ino| !is_child.contains(ino));
        for ino in roots.into_iter().chain(others) {
            if !self.first_path.contains_key(&ino.0) {
                let name = format!("#{}", ino.0).into_bytes();
                self.tree(ino, vec![b"lost+found".to_vec(), name])?;
            }
        }
        Ok(())
    }
}
