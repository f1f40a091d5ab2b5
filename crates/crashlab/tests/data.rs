//! The bytes of files as the engine reads, finds and cuts them, against the model; the kernel writes them in between.
//!
//! More operations: `EXTANT_OPS=100000`; another seed: `EXTANT_SEED=7`; all bytes compared after each: `EXTANT_EACH=1`.

use std::path::Path;
use std::sync::Arc;

use base::Ino;
use device::FileDevice;
use fsmodel::Errno;
use fsmodel::data::{
    Answer, DataFs, Generator, Kernel, Limits, Model, Op, Options, Rules, Whence, compare, map_by_seeks,
    replay,
};
use volume::{Fault, Inode, New, OpenOptions, Seek, SetAttr, Volume, WriteOptions};

/// Turns of the kernel and the engine.
const N_TURNS: u64 = 8;
/// The directory that the kernel's adapter makes.
const DIR: &[u8] = b"files-0";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A volume that is open for writing, behind the face of the model.
struct Files<'a> {
    path: &'a Path,
    /// Open but for the moment in which it is opened again.
    open: Option<(Volume, Ino)>,
}

impl<'a> Files<'a> {
    fn open(path: &'a Path) -> Self {
        let mut files = Self { path, open: None };
        files.reopen().unwrap();
        files
    }

    fn reopen(&mut self) -> Result<(), Fault> {
        self.close()?;
        let device = Arc::new(FileDevice::open(self.path, true).unwrap());
        let options = OpenOptions { write: WriteOptions::default(), ..OpenOptions::default() };
        let volume =
            Volume::open(device, &options).unwrap_or_else(|fault| panic!("it does not open: {fault}"));
        let dir = volume.lookup(&*volume.root()?, DIR)?.ino();
        self.open = Some((volume, dir));
        Ok(())
    }

    fn close(&mut self) -> Result<(), Fault> {
        self.open.take().map_or(Ok(()), |(volume, _)| volume.close())
    }

    fn call(&mut self, op: &Op) -> Result<Answer, Fault> {
        if matches!(op, Op::Reopen) {
            return self.reopen().map(|()| Answer::Done);
        }
        let (volume, dir) = self.open.as_ref().expect("it is open between operations");
        let name = |file: u8| format!("f{file}").into_bytes();
        let find = |file: u8| volume.lookup(&*volume.inode(*dir)?, &name(file));
        match *op {
            Op::Create { file } => volume.create(*dir, &name(file), &New::file(0o644)).map(drop)?,
            Op::Unlink { file } => volume.unlink(*dir, &name(file))?,
            Op::Read { file, pos, len } => {
                let mut bytes = vec![0xee; usize::try_from(len).expect("reads are short")];
                let n = volume.read(&*find(file)?, pos, &mut bytes)?;
                bytes.truncate(n);
                return Ok(Answer::Bytes(bytes));
            }
            Op::Truncate { file, size } => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                volume.set_attr(find(file)?.ino(), &set).map(drop)?;
            }
            Op::Seek { file, whence, pos } => {
                return seek(volume, &*find(file)?, whence, pos).map(Answer::Place);
            }
            Op::Stat { file } => return Ok(Answer::Size(volume.stat(&*find(file)?).size)),
            Op::Fsync { file } | Op::Fdatasync { file } => volume.fsync(find(file)?.ino())?,
            Op::Map { file } => {
                let inode = find(file)?;
                volume.fsync(inode.ino())?;
                let mut failed = None;
                let ranges = map_by_seeks(|whence, pos| {
                    seek(volume, &inode, whence, pos).map_err(|fault| {
                        let errno = Errno(fault.errno());
                        failed = Some(fault);
                        errno
                    })
                });
                return ranges.map(Answer::Ranges).map_err(|_| failed.expect("a seek has failed"));
            }
            Op::Write { .. } | Op::Fallocate { .. } | Op::Reopen => unreachable!("{op:?} is not asked for"),
        }
        Ok(Answer::Done)
    }
}

fn seek(volume: &Volume, inode: &Inode, whence: Whence, pos: u64) -> Result<u64, Fault> {
    let what = match whence {
        Whence::Data => Seek::Data,
        Whence::Hole => Seek::Hole,
    };
    volume.seek(inode, pos, what)
}

/// Positions that a system call does not pass on: they are negative there.
fn is_negative(op: &Op) -> bool {
    match *op {
        Op::Read { pos, len, .. } => i64::try_from(pos.saturating_add(len)).is_err(),
        Op::Truncate { size, .. } => i64::try_from(size).is_err(),
        _ => false,
    }
}

impl DataFs for Files<'_> {
    fn apply(&mut self, op: &Op) -> Result<Answer, Errno> {
        if is_negative(op) {
            let file = op.file().expect("it is of a file");
            return self.apply(&Op::Stat { file }).and(Err(Errno::EINVAL));
        }
        self.call(op).map_err(|fault| {
            if matches!(fault, Fault::Corrupt(_) | Fault::Device(_) | Fault::Aborted(_)) {
                eprintln!("{op:?}: {fault}");
            }
            Errno(fault.errno())
        })
    }
}

/// The kernel writes, punches and moves; then the engine reads, finds and cuts what it left; and so on.
fn in_turns(features: &[&str], limits: Limits) {
    if !testkit::is_root() {
        println!("skipped: needs root and loop devices");
        return;
    }
    let scratch = testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    let block_size = limits.block_size.to_string();
    let args = ["-q", "-F", "-t", "ext4", "-b", block_size.as_str()];
    testkit::run("mke2fs", args.iter().chain(features).copied().chain([name, "2G"]));
    let rules = Rules { check_every: number("EXTANT_EACH", 250), ..Rules::default() };
    let n_ops = number("EXTANT_OPS", 4_000).div_ceil(2 * N_TURNS);
    let mut model = Model::new(limits);
    let mut generator = Generator::new(number("EXTANT_SEED", 1), Options { limits, ..Options::default() });
    for turn in 0..N_TURNS {
        generator.change(|options| (options.writes, options.modes) = (true, Options::default().modes));
        let mount = testkit::LoopMount::new(&path, "noatime").unwrap();
        let kernel = match turn {
            0 => Kernel::fresh(mount.path(), 0).unwrap(),
            _ => Kernel::new(&mount.path().join("files-0")),
        };
        let mut kernel = kernel.with(limits);
        let turn_of_kernel = compare(&mut model, &mut [&mut kernel], &mut generator, n_ops, rules);
        turn_of_kernel.unwrap_or_else(|found| panic!("turn {turn}, the kernel: {found}"));
        let maps: Vec<Op> = (0..Options::default().n_files).map(|file| Op::Map { file }).collect();
        let settled = replay(&mut model, &mut [&mut kernel], &maps, rules);
        settled.unwrap_or_else(|found| panic!("turn {turn}, the kernel at last: {found}"));
        drop((kernel, mount));

        generator.change(|options| (options.writes, options.modes) = (false, Vec::new()));
        let mut engine = Files::open(&path);
        let as_left = replay(&mut model, &mut [&mut engine], &maps, rules);
        as_left.unwrap_or_else(|found| panic!("turn {turn}, as the kernel left it: {found}"));
        let report = compare(&mut model, &mut [&mut engine], &mut generator, n_ops, rules);
        let report = report.unwrap_or_else(|found| panic!("turn {turn}, the engine: {found}"));
        println!("turn {turn}: {report}");
        engine.close().unwrap();
        if limits.cluster_size == limits.block_size {
            crashlab::e2fsck_says(&path).unwrap();
        }
    }
}

#[test]
fn plain() {
    in_turns(&["-O", "metadata_csum_seed,orphan_file"], Limits::default());
}

#[test]
fn small_blocks() {
    in_turns(&[], Limits { block_size: 1024, cluster_size: 1024, ..Limits::default() });
}

#[test]
fn without_extents() {
    in_turns(&["-O", "^extent,^64bit"], Limits { extents: false, ..Limits::default() });
}

#[test]
fn without_extents_in_small_blocks() {
    let limits = Limits { block_size: 1024, cluster_size: 1024, extents: false, ..Limits::default() };
    in_turns(&["-O", "^extent,^64bit"], limits);
}

#[test]
fn bigalloc() {
    in_turns(&["-O", "bigalloc", "-C", "65536"], Limits { cluster_size: 64 << 10, ..Limits::default() });
}

#[test]
fn inline_data() {
    in_turns(&["-O", "inline_data"], Limits { inline_data: true, ..Limits::default() });
}
