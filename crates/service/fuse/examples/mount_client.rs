//! A client that measures a mounted file system: one kind of operation, many times. For `bench/mount.sh`.
//!
//! ```text
//! mount_client create|mknod|stat|unlink DIR COUNT [CLIENTS]   names, a thousand in each directory
//! mount_client write|read DIR MIB BLOCK_BYTES                 DIR/bytes, from its start to its end
//! mount_client randwrite DIR COUNT                            blocks of 4 KiB anywhere in DIR/bytes
//! mount_client append DIR COUNT                               80 bytes, with O_APPEND
//! mount_client bytes DIR COUNT                                one byte
//! mount_client fsync DIR COUNT                                4 KiB and fsync
//! mount_client make-small|small DIR COUNT                     files of 4 KiB: made; read twice
//! ```
//!
//! It prints a rate: MiB/s for write and read, files/s for the small ones, operations/s for the rest. Opening
//! the file that is written or read, and making directories, are not part of the time. With CLIENTS, that
//! many processes share COUNT, each with directories of its own.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const USAGE: &str = "usage: mount_client create|mknod|stat|unlink DIR COUNT [CLIENTS]
       mount_client write|read DIR MIB BLOCK_BYTES
       mount_client randwrite|append|bytes|fsync|make-small|small DIR COUNT";

const NAMES_PER_DIRECTORY: u64 = 1000;
const SMALL_BYTES: usize = 4096;
const BLOCK: usize = 4096;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let per_s = match args.as_slice() {
        [row @ ("create" | "mknod" | "stat" | "unlink"), dir, count, rest @ ..] => {
            let count: u64 = count.parse()?;
            match rest {
                [] => names(row, Path::new(dir), 0, count, || Ok(()))?,
                // What the parent starts: it waits for the others between its preparations and its work.
                ["client", number] => return one_of_many(row, Path::new(dir), number.parse()?, count),
                [clients] => many(row, dir, count, clients.parse()?)?,
                _ => return Err(USAGE.into()),
            }
        }
        [row @ ("write" | "read"), dir, mib, block_bytes] => {
            sequential(row, Path::new(dir), mib.parse()?, block_bytes.parse()?)?
        }
        ["randwrite", dir, count] => random_writes(Path::new(dir), count.parse()?)?,
        ["append", dir, count] => appends(Path::new(dir), count.parse()?)?,
        ["bytes", dir, count] => bytes(Path::new(dir), count.parse()?)?,
        ["fsync", dir, count] => fsyncs(Path::new(dir), count.parse()?)?,
        ["make-small", dir, count] => make_small(Path::new(dir), count.parse()?)?,
        ["small", dir, count] => read_small(Path::new(dir), count.parse()?)?,
        _ => return Err(USAGE.into()),
    };
    println!("{per_s:.1}");
    Ok(())
}

/// The rate of `amount` things that were done since `start`.
fn rate(amount: u64, start: Instant) -> f64 {
    amount as f64 / start.elapsed().as_secs_f64()
}

/// The names of one client, and the directories they are in.
fn places(dir: &Path, client: u64, count: u64) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let of = |directory: u64| dir.join(format!("c{client}d{directory}"));
    let directories: Vec<_> = (0..count.div_ceil(NAMES_PER_DIRECTORY)).map(of).collect();
    let names = (0..count).map(|n| of(n / NAMES_PER_DIRECTORY).join(format!("file{n}"))).collect();
    (directories, names)
}

/// One client's operations on names; `begin` is called when only they are left to do.
fn names(row: &str, dir: &Path, client: u64, count: u64, begin: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (directories, names) = places(dir, client, count);
    if matches!(row, "create" | "mknod") {
        for directory in &directories {
            std::fs::create_dir(directory)?;
        }
    }
    begin()?;
    let start = Instant::now();
    match row {
        "create" => {
            for name in &names {
                OpenOptions::new().write(true).create_new(true).open(name)?;
            }
        }
        "mknod" => {
            for name in &names {
                rustix::fs::mknodat(CWD, name, FileType::RegularFile, Mode::from(0o644), 0)?;
            }
        }
        "stat" => {
            for name in &names {
                std::fs::symlink_metadata(name)?;
            }
        }
        _ => {
            for name in &names {
                std::fs::remove_file(name)?;
            }
        }
    }
    Ok(rate(count, start))
}

/// A client among several: says when it is ready, begins at a line of its standard input, and says when it is
/// done.
fn one_of_many(row: &str, dir: &Path, client: u64, count: u64) -> Result<()> {
    names(row, dir, client, count, || {
        println!("ready");
        std::io::stdin().lock().read_line(&mut String::new())?;
        Ok(())
    })?;
    println!("done");
    Ok(())
}

/// A started client, and what it prints.
struct Client(Child, BufReader<std::process::ChildStdout>);

impl Client {
    fn expect(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.1.read_line(&mut line)?;
        if line.trim() == word { Ok(()) } else { Err("a client failed".into()) }
    }
}

/// The rate of `clients` processes together: from when they all are ready to when the last is done.
fn many(row: &str, dir: &str, count: u64, clients: u64) -> Result<f64> {
    let each = (count / clients).to_string();
    let mut all = Vec::new();
    for number in 0..clients {
        let mut child = Command::new(std::env::current_exe()?)
            .args([row, dir, &each, "client", &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        all.push(Client(child, output));
    }
    for client in &mut all {
        client.expect("ready")?;
    }
    let start = Instant::now();
    for client in &mut all {
        client.0.stdin.take().ok_or("no standard input")?.write_all(b"\n")?;
    }
    for client in &mut all {
        client.expect("done")?;
    }
    let per_s = rate(count / clients * clients, start);
    for client in &mut all {
        client.0.wait()?;
    }
    Ok(per_s)
}

/// Bytes that no file system can take for zeros.
fn content(len: usize) -> Vec<u8> {
    let mut random = 1;
    (0..len).map(|_| next(&mut random) as u8 | 1).collect()
}

/// A linear congruential generator: its upper half.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 32
}

fn sequential(row: &str, dir: &Path, mib: u64, block_bytes: usize) -> Result<f64> {
    let path = dir.join("bytes");
    let blocks = (mib << 20) / block_bytes as u64;
    let mut block = content(block_bytes);
    let start;
    if row == "write" {
        let mut file = File::create(path)?;
        start = Instant::now();
        for _ in 0..blocks {
            file.write_all(&block)?;
        }
    } else {
        let mut file = File::open(path)?;
        start = Instant::now();
        for _ in 0..blocks {
            file.read_exact(&mut block)?;
        }
    }
    Ok(rate(mib, start))
}

fn random_writes(dir: &Path, count: u64) -> Result<f64> {
    let file = OpenOptions::new().write(true).open(dir.join("bytes"))?;
    let blocks = file.metadata()?.len() / BLOCK as u64;
    let block = content(BLOCK);
    let mut random = 1;
    let start = Instant::now();
    for _ in 0..count {
        file.write_all_at(&block, next(&mut random) % blocks * BLOCK as u64)?;
    }
    Ok(rate(count, start))
}

fn appends(dir: &Path, count: u64) -> Result<f64> {
    let mut file = OpenOptions::new().append(true).create_new(true).open(dir.join("log"))?;
    let line = content(80);
    let start = Instant::now();
    for _ in 0..count {
        file.write_all(&line)?;
    }
    Ok(rate(count, start))
}

fn bytes(dir: &Path, count: u64) -> Result<f64> {
    let mut file = File::create_new(dir.join("single"))?;
    let start = Instant::now();
    for _ in 0..count {
        file.write_all(b"x")?;
    }
    Ok(rate(count, start))
}

fn fsyncs(dir: &Path, count: u64) -> Result<f64> {
    let mut file = File::create_new(dir.join("synced"))?;
    let block = content(BLOCK);
    let start = Instant::now();
    for _ in 0..count {
        file.write_all(&block)?;
        file.sync_all()?;
    }
    Ok(rate(count, start))
}

fn make_small(dir: &Path, count: u64) -> Result<f64> {
    let (directories, names) = places(dir, 0, count);
    for directory in &directories {
        std::fs::create_dir(directory)?;
    }
    let small = content(SMALL_BYTES);
    let start = Instant::now();
    for name in &names {
        File::create_new(name)?.write_all(&small)?;
    }
    Ok(rate(count, start))
}

fn read_small(dir: &Path, count: u64) -> Result<f64> {
    let (_, names) = places(dir, 0, count);
    // Room for one byte more, or a file that is too long would not be seen.
    let mut buffer = [0; SMALL_BYTES + 1];
    let start = Instant::now();
    for _ in 0..2 {
        for name in &names {
            let mut file = File::open(name)?;
            let len = file.read(&mut buffer)?;
            // Readers go on until a read returns nothing.
            if len != SMALL_BYTES || file.read(&mut buffer)? != 0 {
                return Err(format!("{}: {len} bytes instead of {SMALL_BYTES}", name.display()).into());
            }
        }
    }
    Ok(rate(2 * count, start))
}
