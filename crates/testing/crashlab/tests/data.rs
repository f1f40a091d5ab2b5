//! File data: the engine against the model, which answers as the kernel does, and against the kernel itself.
//!
//! Environment: `EXTANT_OPS=100000` makes more operations, `EXTANT_SEED=7` sets another seed, `EXTANT_EACH=1`
//! compares all bytes after each operation, `EXTANT_HOLES=0` compares holes only by the bytes in them.

use std::path::Path;
use std::sync::Arc;

use extant_base::Ino;
use extant_device::FileDevice;
use extant_fsmodel::Errno;
use extant_fsmodel::data::{
    Answer, DataFs, Fallocate, Generator, Kernel, Limits, Model, Op, Options, Rules, Whence, bytes_of,
    compare, map_by_seeks, replay, shrink,
};
use extant_volume::{
    Allocate, DataPath, Fault, Inode, New, OpenOptions, Seek, SetAttr, Volume, WriteOptions,
};

/// Turns of the kernel and the engine.
const N_TURNS: u64 = 8;
/// The directory that the kernel's adapter makes.
const DIR: &[u8] = b"files-0";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A volume open for writing, behind the model's interface.
struct Files<'a> {
    path: &'a Path,
    data: DataPath,
    /// `None` only while the volume is reopened.
    open: Option<(Volume, Ino)>,
}

impl<'a> Files<'a> {
    fn open(path: &'a Path, data: DataPath) -> Self {
        let mut files = Self { path, data, open: None };
        files.reopen().unwrap();
        files
    }

    fn reopen(&mut self) -> Result<(), Fault> {
        self.close()?;
        let device = Arc::new(FileDevice::open(self.path, true).unwrap());
        let write = WriteOptions { data: self.data, ..WriteOptions::default() };
        let options = OpenOptions { write, ..OpenOptions::default() };
        let volume =
            Volume::open(device, &options).unwrap_or_else(|fault| panic!("it does not open: {fault}"));
        let dir = volume.names().lookup(&*volume.root()?, DIR)?.ino();
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
        let find = |file: u8| volume.names().lookup(&*volume.inode(*dir)?, &name(file));
        match *op {
            Op::Create { file } => volume.names().create(*dir, &name(file), &New::file(0o644)).map(drop)?,
            Op::Unlink { file } => volume.names().unlink(*dir, &name(file))?,
            Op::Read { file, pos, len } => {
                let mut bytes = vec![0xee; usize::try_from(len).expect("reads are short")];
                let n = volume.files().read(&*find(file)?, pos, &mut bytes)?;
                bytes.truncate(n);
                return Ok(Answer::Bytes(bytes));
            }
            Op::Truncate { file, size } => {
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                volume.attributes().set_attr(find(file)?.ino(), &set).map(drop)?;
            }
            Op::Seek { file, whence, pos } => {
                return seek(volume, &*find(file)?, whence, pos).map(Answer::Place);
            }
            Op::Stat { file } => return Ok(Answer::Size(volume.attributes().stat(&*find(file)?).size)),
            Op::Write { file, pos, len, seed } => {
                let n = volume.files().write_at(find(file)?.ino(), pos, &bytes_of(seed, pos, len))?;
                return Ok(Answer::Count(n as u64));
            }
            Op::Fallocate { file, mode, pos, len } => {
                let mode = match mode {
                    Fallocate::Reserve => Allocate::Reserve,
                    Fallocate::Keep => Allocate::Keep,
                    Fallocate::Punch => Allocate::Punch,
                    Fallocate::Zero => Allocate::Zero,
                    Fallocate::ZeroKeep => Allocate::ZeroKeep,
                    Fallocate::Collapse => Allocate::Collapse,
                    Fallocate::Insert => Allocate::Insert,
                    Fallocate::WriteZeroes => Allocate::WriteZeroes,
                    Fallocate::Unshare => Allocate::Unshare,
                };
                volume.files().fallocate(find(file)?.ino(), mode, pos, len)?;
            }
            Op::Fsync { file } => volume.files().fsync(find(file)?.ino())?,
            Op::Fdatasync { file } => volume.files().fdatasync(find(file)?.ino())?,
            Op::Map { file } => {
                volume.files().fsync(find(file)?.ino())?;
                let inode = find(file)?;
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
            Op::Reopen => unreachable!("it is done above"),
        }
        Ok(Answer::Done)
    }
}

fn seek(volume: &Volume, inode: &Inode, whence: Whence, pos: u64) -> Result<u64, Fault> {
    let what = match whence {
        Whence::Data => Seek::Data,
        Whence::Hole => Seek::Hole,
    };
    volume.files().seek(inode, pos, what)
}

/// Whether an offset or length is negative as a signed 64-bit number: system calls refuse these.
fn is_negative(op: &Op) -> bool {
    match *op {
        Op::Read { pos, len, .. } | Op::Write { pos, len, .. } => {
            i64::try_from(pos.saturating_add(len)).is_err()
        }
        Op::Truncate { size, .. } => i64::try_from(size).is_err(),
        Op::Fallocate { pos, len, .. } => i64::try_from(pos.max(len)).is_err(),
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

/// Leaves out write-zeroes where the model says that the loop device cannot do it. The engine could.
fn options(limits: Limits) -> Options {
    let options = Options { limits, ..Options::default() };
    let is_asked = |mode: &Fallocate| limits.write_zeroes || *mode != Fallocate::WriteZeroes;
    let modes = options.modes.into_iter().filter(is_asked).collect();
    Options { modes, ..options }
}

/// Holes must be the kernel's. With `EXTANT_HOLES=0`, or where the kernel `fills` holes, only their bytes
/// count.
fn rules(check_every: u64, fills: bool) -> Rules {
    Rules { check_every: number("EXTANT_EACH", check_every), same_maps: !fills }
}

/// Whether the comparison of holes is off: the kernel fills small reserved extents, or `EXTANT_HOLES=0` is
/// set.
fn fills(data: DataPath) -> bool {
    data == DataPath::Journal || number("EXTANT_HOLES", 1) == 0
}

/// The kernel's mount options for this way of writing.
fn mount_options(data: DataPath) -> &'static str {
    if data == DataPath::Journal { "noatime,data=journal" } else { "noatime" }
}

/// The modes that the kernel can be given. With `data=journal`, Linux 6.18 may lose the last block of a file
/// when a range before it is inserted or collapsed. Without this rule, seed 7 shows it on a file that the
/// kernel itself made.
fn asked_of_the_kernel(modes: &[Fallocate], data: DataPath) -> Vec<Fallocate> {
    let is_asked = |mode: &Fallocate| {
        data != DataPath::Journal || !matches!(mode, Fallocate::Collapse | Fallocate::Insert)
    };
    modes.iter().copied().filter(is_asked).collect()
}

/// Makes an image that contains the directory.
fn make(path: &Path, features: &[&str], limits: Limits) {
    let _ = std::fs::remove_file(path);
    let name = path.to_str().unwrap();
    let block_size = limits.block_size.to_string();
    let args = ["-q", "-F", "-t", "ext4", "-b", block_size.as_str()];
    extant_testkit::run("mke2fs", args.iter().chain(features).copied().chain([name, "2G"]));
    let options = OpenOptions { write: WriteOptions::default(), ..OpenOptions::default() };
    let volume = Volume::open(Arc::new(FileDevice::open(path, true).unwrap()), &options).unwrap();
    volume.names().create(volume.root().unwrap().ino(), DIR, &New::directory(0o755)).unwrap();
    volume.close().unwrap();
}

/// The engine against the model, without the kernel.
fn against_the_model(features: &[&str], limits: Limits, data: DataPath) {
    let limits = Limits { fills: number("EXTANT_HOLES", 1) == 0, write_zeroes: true, ..limits };
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    make(&path, features, limits);
    let rules = rules(500, limits.fills);
    let (mut model, mut engine) = (Model::new(limits), Files::open(&path, data));
    let mut generator = Generator::new(number("EXTANT_SEED", 1), options(limits));
    let n_ops = number("EXTANT_OPS", 8_000);
    let report = compare(&mut model, &mut [&mut engine], &mut generator, n_ops, rules);
    let report = report.unwrap_or_else(|found| {
        let again = scratch.path().join("again");
        let least = shrink(&found, &model, rules, || {
            make(&again, features, limits);
            vec![Files::open(&again, data)]
        });
        panic!("{found}\nthe least: {least:#?}")
    });
    println!("{report}");
    engine.close().unwrap();
    extant_crashlab::e2fsck_says(&path).unwrap();
}

/// The kernel and the engine on one image each: their answers must agree, also where the model leaves them
/// open.
fn beside_the_kernel(features: &[&str], limits: Limits, data: DataPath) {
    let limits = Limits { fills: fills(data), ..limits };
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let scratch = extant_testkit::scratch();
    let (ours, theirs) = (scratch.path().join("ours"), scratch.path().join("theirs"));
    make(&ours, features, limits);
    make(&theirs, features, limits);
    let mount = extant_testkit::LoopMount::new(&theirs, mount_options(data)).unwrap();
    let mut kernel = Kernel::new(&mount.path().join("files-0")).with(limits);
    let (mut model, mut engine) = (Model::new(limits), Files::open(&ours, data));
    let mut options = options(limits);
    options.modes = asked_of_the_kernel(&options.modes, data);
    let mut generator = Generator::new(number("EXTANT_SEED", 1), options);
    let rules = rules(1000, limits.fills);
    let n_ops = number("EXTANT_OPS", 4_000);
    let report = compare(&mut model, &mut [&mut kernel, &mut engine], &mut generator, n_ops, rules);
    println!("{}", report.unwrap_or_else(|found| panic!("{found}")));
    engine.close().unwrap();
    extant_crashlab::e2fsck_says(&ours).unwrap();
    // The kernel must read what the engine wrote.
    drop((kernel, mount));
    let mount = extant_testkit::LoopMount::new(&ours, mount_options(data)).unwrap();
    let mut kernel = Kernel::new(&mount.path().join("files-0")).with(limits);
    let maps: Vec<Op> = (0..Options::default().n_files).map(|file| Op::Map { file }).collect();
    let read = replay(&mut model, &mut [&mut kernel], &maps, rules);
    read.unwrap_or_else(|found| panic!("as the engine left it: {found}"));
}

/// The kernel and the engine in turns on one image: each continues with what the other left.
fn in_turns(features: &[&str], limits: Limits, data: DataPath) {
    let limits = Limits { fills: fills(data), ..limits };
    if !extant_testkit::is_root() {
        println!("skipped: not root, or no loop device");
        return;
    }
    let scratch = extant_testkit::scratch();
    let path = scratch.path().join("image");
    let name = path.to_str().unwrap();
    let block_size = limits.block_size.to_string();
    let args = ["-q", "-F", "-t", "ext4", "-b", block_size.as_str()];
    extant_testkit::run("mke2fs", args.iter().chain(features).copied().chain([name, "2G"]));
    let rules = rules(250, limits.fills);
    let n_ops = number("EXTANT_OPS", 4_000).div_ceil(2 * N_TURNS);
    let mut model = Model::new(limits);
    let mut generator = Generator::new(number("EXTANT_SEED", 1), options(limits));
    for turn in 0..N_TURNS {
        generator.change(|options| options.modes = asked_of_the_kernel(&Fallocate::ALL, data));
        let mount = extant_testkit::LoopMount::new(&path, mount_options(data)).unwrap();
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

        generator.change(|now| now.modes = options(limits).modes);
        let mut engine = Files::open(&path, data);
        let as_left = replay(&mut model, &mut [&mut engine], &maps, rules);
        as_left.unwrap_or_else(|found| panic!("turn {turn}, as the kernel left it: {found}"));
        let report = compare(&mut model, &mut [&mut engine], &mut generator, n_ops, rules);
        let report = report.unwrap_or_else(|found| panic!("turn {turn}, the engine: {found}"));
        println!("turn {turn}: {report}");
        engine.close().unwrap();
        if limits.cluster_size == limits.block_size {
            extant_crashlab::e2fsck_says(&path).unwrap();
        }
    }
}

/// The tests for each kind of file system.
macro_rules! kinds {
    ($($name:ident: $features:expr, $limits:expr, $data:expr;)*) => {
        $(
            mod $name {
                use super::*;

                #[test]
                fn against_the_model() {
                    super::against_the_model(&$features, $limits, $data);
                }

                #[test]
                fn beside_the_kernel() {
                    super::beside_the_kernel(&$features, $limits, $data);
                }

                #[test]
                fn in_turns() {
                    super::in_turns(&$features, $limits, $data);
                }
            }
        )*
    };
}

const SMALL: Limits = Limits {
    block_size: 1024,
    cluster_size: 1024,
    extents: true,
    inline_data: false,
    write_zeroes: false,
    fills: false,
};
const PLAIN: Limits = Limits { block_size: 4096, cluster_size: 4096, ..SMALL };

const IOMAP: DataPath = DataPath::Iomap;

kinds! {
    plain: ["-O", "metadata_csum_seed,orphan_file"], PLAIN, IOMAP;
    small_blocks: [], SMALL, IOMAP;
    without_extents: ["-O", "^extent,^64bit"], Limits { extents: false, ..PLAIN }, IOMAP;
    without_extents_in_small_blocks: ["-O", "^extent,^64bit"], Limits { extents: false, ..SMALL }, IOMAP;
    bigalloc: ["-O", "bigalloc", "-C", "65536"], Limits { cluster_size: 64 << 10, ..PLAIN }, IOMAP;
    inline_data: ["-O", "inline_data"], Limits { inline_data: true, ..PLAIN }, IOMAP;
    journaled: [], PLAIN, DataPath::Journal;
    journaled_in_small_blocks: [], SMALL, DataPath::Journal;
    journaled_without_extents: ["-O", "^extent,^64bit"], Limits { extents: false, ..PLAIN }, DataPath::Journal;
}
