//! Values of inodes, allocated group by group.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::{Group, Ino};
use extant_ondisk::Geometry;

/// A value per inode, allocated per group at the first access.
#[derive(Debug)]
pub(crate) struct PerGroup<T> {
    inodes_per_group: u32,
    groups: Vec<OnceLock<Box<[T]>>>,
}

impl<T: Default> PerGroup<T> {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        let groups = (0..geometry.groups).map(|_| OnceLock::new()).collect();
        Self { inodes_per_group: geometry.inodes_per_group, groups }
    }

    /// Sets the values of a whole group; the first call wins.
    pub(crate) fn set_group(&self, group: Group, values: Box<[T]>) {
        if let Some(slot) = self.groups.get(group.0 as usize) {
            let _ = slot.set(values);
        }
    }

    /// The values of a group, if it was accessed before.
    pub(crate) fn group(&self, group: Group) -> Option<&[T]> {
        self.groups.get(group.0 as usize)?.get().map(AsRef::as_ref)
    }

    /// The value of an inode; `None` if its group was never accessed or the inode does not exist.
    pub(crate) fn get(&self, ino: Ino) -> Option<&T> {
        let index = ino.0.checked_sub(1)?;
        self.group(Group(index / self.inodes_per_group))?.get((index % self.inodes_per_group) as usize)
    }

    /// The value of an inode; allocates its group.
    pub(crate) fn touch(&self, ino: Ino) -> Option<&T> {
        let index = ino.0.checked_sub(1)?;
        let slot = self.groups.get((index / self.inodes_per_group) as usize)?;
        let values = slot.get_or_init(|| (0..self.inodes_per_group).map(|_| T::default()).collect());
        values.get((index % self.inodes_per_group) as usize)
    }
}

impl PerGroup<AtomicU32> {
    /// Adds one to the inode's value.
    pub(crate) fn add(&self, ino: Ino) {
        if let Some(count) = self.touch(ino) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}
