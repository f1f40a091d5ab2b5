//! A volume that answers.

use std::ops::ControlFlow;

use base::Ino;
use ondisk::Features;
use volume::{Cursor, Fault, FileType, Refusal, Seek, Stat, StatFs, Volume};

use crate::{Caller, Errno, Name, Serve};

/// Is told, in words, what is damaged; called from any thread.
pub type Report = Box<dyn Fn(&str) + Send + Sync>;

/// Answers requests out of a [`Volume`].
pub struct Server {
    volume: Volume,
    report: Report,
}

impl Server {
    /// A server of this volume. Damage and errors of the device are told to `report`, as callers see just a number.
    #[must_use]
    pub fn new(volume: Volume, report: Report) -> Self {
        Self { volume, report }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Refusals are the caller's business; everything else should be heard of.
    fn refuse(&self, fault: &Fault) -> Errno {
        if !matches!(fault, Fault::Refused(_)) {
            (self.report)(&fault.to_string());
        }
        Errno(fault.errno())
    }
}

impl Serve for Server {
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Stat>, Errno> {
        let found = self.volume.inode(dir).and_then(|dir| self.volume.lookup(&dir, name));
        match found {
            Ok(inode) => Ok(Some(self.volume.stat(&inode))),
            Err(fault) if fault.is(Refusal::NotFound) => Ok(None),
            Err(fault) => Err(self.refuse(&fault)),
        }
    }

    fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        let inode = self.volume.inode(ino).map_err(|fault| self.refuse(&fault))?;
        Ok(self.volume.stat(&inode))
    }

    fn prefetch(&self, inos: &[Ino]) {
        self.volume.prefetch_inodes(inos);
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>, Errno> {
        let target = self.volume.inode(ino).and_then(|link| self.volume.read_link(&link));
        target.map_err(|fault| self.refuse(&fault))
    }

    fn open(&self, ino: Ino) -> Result<(), Errno> {
        let opened = self.volume.inode(ino).and_then(|file| match file.kind() {
            // Reading nothing is refused for the reasons for which reading something is.
            FileType::Regular => self.volume.read(&file, 0, &mut []).map(|_| ()),
            _ => Ok(()),
        });
        opened.map_err(|fault| self.refuse(&fault))
    }

    fn asks_to_open(&self) -> bool {
        self.volume.superblock().features.has_incompat(Features::ENCRYPT)
    }

    fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let read = self.volume.inode(ino).and_then(|file| self.volume.read(&file, offset, buf));
        read.map_err(|fault| self.refuse(&fault))
    }

    fn list(
        &self,
        dir: Ino,
        from: Cursor,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let listed = self.volume.inode(dir).and_then(|dir| {
            let mut pass_on = |entry: volume::DirEntry<'_>| {
                each(Name { ino: entry.ino, kind: entry.kind, name: entry.name, next: entry.next })
            };
            // As the kernel does: what can be read is listed, and the damage goes to the log.
            let mut damage = |fault: Fault| (self.report)(&fault.to_string());
            self.volume.read_dir(&dir, from, &mut pass_on, &mut damage)
        });
        listed.map_err(|fault| self.refuse(&fault))
    }

    fn stat_fs(&self) -> Result<StatFs, Errno> {
        self.volume.statfs().map_err(|fault| self.refuse(&fault))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let value = self.volume.inode(ino).and_then(|inode| self.volume.xattr(&inode, name));
        value.map_err(|fault| self.refuse(&fault))
    }

    fn xattr_names(&self, ino: Ino, caller: Caller) -> Result<Vec<Vec<u8>>, Errno> {
        let names = self.volume.inode(ino).and_then(|inode| self.volume.xattr_names(&inode));
        let mut names = names.map_err(|fault| self.refuse(&fault))?;
        // The kernel asks for CAP_SYS_ADMIN, which no transport tells; it guards the values by itself.
        names.retain(|name| caller.uid == 0 || !name.starts_with(b"trusted."));
        Ok(names)
    }

    fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        let place = self.volume.inode(ino).and_then(|file| self.volume.seek(&file, offset, what));
        place.map_err(|fault| self.refuse(&fault))
    }
}
