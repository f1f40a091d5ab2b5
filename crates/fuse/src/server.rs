//! A volume that answers.
//!
//! Names of encrypted directories are ciphertext that no kernel takes as names; they go out and come in spelled (see
//! [`extant::spelled`]).

use std::ops::ControlFlow;

use base::Ino;
use extant::spelled::{self, Meaning};
use ondisk::Features;
use ondisk::inode::flags;
use volume::{Cursor, Fault, FileType, Inode, InodeRef, Refusal, Seek, Stat, StatFs, Volume};

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

    fn find(&self, dir: &Inode, name: &[u8]) -> Result<InodeRef, Fault> {
        if !dir.has_flag(flags::ENCRYPT) {
            return self.volume.lookup(dir, name);
        }
        match spelled::meaning(name) {
            Meaning::Name(name) => self.volume.lookup(dir, &name),
            Meaning::Nothing => Err(Refusal::NotFound.into()),
            Meaning::Listed => {
                let mut found = None;
                let mut each = |entry: volume::DirEntry<'_>| {
                    if *spelled::spell(entry.name) == *name {
                        found = Some(entry.name.to_vec());
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                };
                // Damage is told by whoever lists the directory, which is how one comes by such a name.
                self.volume.read_dir(dir, Cursor::START, &mut each, &mut |_| ())?;
                self.volume.lookup(dir, &found.ok_or(Refusal::NotFound)?)
            }
        }
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
        let found = self.volume.inode(dir).and_then(|dir| self.find(&dir, name));
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
            let encrypted = dir.has_flag(flags::ENCRYPT);
            let mut pass_on = |entry: volume::DirEntry<'_>| {
                let name = if encrypted { spelled::spell(entry.name) } else { entry.name.into() };
                each(Name { ino: entry.ino, kind: entry.kind, name: &name, next: entry.next })
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::FileDevice;
    use volume::OpenOptions;

    use super::*;

    /// An image whose directory `enc` says that it is encrypted, and holds this name in the place of `plain`.
    fn server(scratch: &std::path::Path, plain: &str, cipher: &[u8]) -> Server {
        let (tree, image) = (scratch.join("tree"), scratch.join("a.img"));
        std::fs::create_dir_all(tree.join("enc")).unwrap();
        std::fs::write(tree.join("enc").join(plain), "secret").unwrap();
        std::fs::write(tree.join("enc/b~"), "secret").unwrap();
        let features = ["-q", "-t", "ext4", "-O", "encrypt,^metadata_csum", "-d"];
        let mut command = testkit::command("mke2fs");
        let made = command.args(features).arg(&tree).arg(&image).arg("8M").output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut command = testkit::command("debugfs");
        let flagged = command.args(["-w", "-R", "sif /enc flags 0x80800"]).arg(&image).output().unwrap();
        assert!(flagged.status.success(), "{flagged:?}");
        let mut bytes = std::fs::read(&image).unwrap();
        let places: Vec<usize> = bytes
            .windows(plain.len())
            .enumerate()
            .filter(|(_, at)| *at == plain.as_bytes())
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty());
        for at in places {
            bytes[at..at + plain.len()].copy_from_slice(cipher);
        }
        std::fs::write(&image, bytes).unwrap();
        let device = Arc::new(FileDevice::open_read_only(&image).unwrap());
        let volume = Volume::open_read_only(device, &OpenOptions::default()).unwrap();
        Server::new(volume, Box::new(|damage| panic!("{damage}")))
    }

    #[test]
    fn names_of_encrypted_directories_can_be_listed_and_asked_for() {
        let every: Vec<u8> = (0..=254).collect();
        for cipher in [&b"a/b\0%"[..], &every[1..=100], &every[..189], &every] {
            let scratch = testkit::scratch();
            let plain = "N".repeat(cipher.len());
            let server = server(scratch.path(), &plain, cipher);
            let enc = server.lookup(Ino::ROOT, b"enc").unwrap().unwrap().ino;
            let mut names = Vec::new();
            let mut each = |name: Name<'_>| {
                names.push((name.name.to_vec(), name.ino));
                ControlFlow::Continue(())
            };
            server.list(enc, Cursor::START, &mut each).unwrap();
            assert_eq!(names.len(), 4, "{names:?}");
            for (name, ino) in names {
                assert!(name.len() <= 255 && !name.contains(&b'/') && !name.contains(&0));
                assert_eq!(server.lookup(enc, &name).unwrap().unwrap().ino, ino);
            }
            assert_eq!(server.lookup(enc, b"~nothing.12345678"), Ok(None));
            assert_eq!(server.lookup(enc, b"%62~"), Ok(None), "spelled otherwise");
        }
    }
}
