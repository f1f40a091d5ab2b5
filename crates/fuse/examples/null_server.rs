//! A FUSE server that answers reads with zeros: what the kernel and the transport cost by themselves.
//!
//! ```text
//! null_server DIR SIZE_BYTES [THREADS]      DIR/zeros is a file of that size; SIGTERM or umount ends it
//! ```
//!
//! The same transport, options and threads as `extant mount`: the difference between the two is the volume.

#![forbid(unsafe_code)]

use std::ops::ControlFlow;
use std::path::PathBuf;

use extant_base::Ino;
use extant_fuse::{Errno, MountOptions, Mounted, Name, Serve, Threads};
use extant_volume::{Cursor, FileType, Seek, Stat, StatFs};

const FILE: Ino = Ino(11);
const FILE_NAME: &[u8] = b"zeros";

/// One directory with one file full of zeros.
struct Null {
    size: u64,
}

impl Null {
    fn stat_of(&self, ino: Ino, kind: FileType) -> Stat {
        let is_dir = kind == FileType::Directory;
        Stat {
            ino,
            kind,
            mode: if is_dir { 0o040_755 } else { 0o100_644 },
            uid: 0,
            gid: 0,
            links: if is_dir { 2 } else { 1 },
            size: if is_dir { 4096 } else { self.size },
            blocks_512: 8,
            block_size: 4096,
            device: (0, 0),
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            crtime: None,
            generation: 0,
            flags: 0,
            project: 0,
        }
    }
}

impl Serve for Null {
    fn lookup(&self, _: Ino, name: &[u8]) -> Result<Option<Stat>, Errno> {
        if name == FILE_NAME { self.stat(FILE).map(Some) } else { Ok(None) }
    }

    fn stat(&self, ino: Ino) -> Result<Stat, Errno> {
        match ino {
            Ino::ROOT => Ok(self.stat_of(ino, FileType::Directory)),
            FILE => Ok(self.stat_of(ino, FileType::Regular)),
            _ => Err(Errno::STALE),
        }
    }

    fn read_link(&self, _: Ino) -> Result<Vec<u8>, Errno> {
        Err(Errno::INVAL)
    }

    /// Leaves the buffer as it is: it contains zeros.
    fn read(&self, _: Ino, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        Ok(self.size.saturating_sub(offset).min(buf.len() as u64) as usize)
    }

    fn list(
        &self,
        _: Ino,
        from: Cursor,
        each: &mut dyn FnMut(Name<'_>) -> ControlFlow<()>,
    ) -> Result<(), Errno> {
        let names: [(Ino, FileType, &[u8]); 3] = [
            (Ino::ROOT, FileType::Directory, b"."),
            (Ino::ROOT, FileType::Directory, b".."),
            (FILE, FileType::Regular, FILE_NAME),
        ];
        for (place, (ino, kind, name)) in names.into_iter().enumerate().skip(from.0 as usize) {
            let next = Cursor(place as u64 + 1);
            if each(Name { ino, kind: Some(kind), name, next }).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn stat_fs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs {
            block_size: 4096,
            blocks: self.size / 4096,
            blocks_free: 0,
            blocks_available: 0,
            inodes: 2,
            inodes_free: 0,
            name_max: 255,
            fsid: 0,
        })
    }

    fn seek(&self, _: Ino, offset: u64, what: Seek) -> Result<u64, Errno> {
        match what {
            _ if offset >= self.size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(self.size),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(dir), Some(size)) = (args.next(), args.next()) else {
        return Err("usage: null_server DIR SIZE_BYTES [THREADS]".into());
    };
    let size = size.to_string_lossy().parse()?;
    let mut threads = Threads::default();
    if let Some(count) = args.next() {
        threads.count = count.to_string_lossy().parse()?;
    }
    let mut options = MountOptions::new("null");
    options.subtype = "extant-null".to_owned();
    let mounted = Mounted::new(std::sync::Arc::new(Null { size }), &PathBuf::from(dir), &options, threads)?;
    let dir = mounted.dir().to_owned();
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
    ])?;
    let handle = signals.handle();
    let watcher = std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            let _ = extant_fuse::unmount(&dir, true);
        }
    });
    mounted.serve()?;
    handle.close();
    let _ = watcher.join();
    Ok(())
}
