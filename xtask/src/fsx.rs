//! `cargo xtask fsx`: runs the file system exerciser, an external program, on files of mounted images.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::workspace;

const VERSION: &str = "0.3.2";
const IMAGE_SIZE: &str = "256M";
/// Operations per start of fsx. It keeps half of the mappings that it makes, and slows down with their
/// number.
const OPS_MAX: u64 = 20_000;

/// A kind of image and mount.
struct Kind {
    name: &'static str,
    /// Options of mke2fs.
    format: &'static [&'static str],
    /// Options of the mount.
    options: &'static str,
    /// Maximum bytes of the file.
    file_max: u32,
    /// Whether the file supports reservations and holes.
    allocates: bool,
    /// Whether the mounted file system changes its size meanwhile.
    resizes: bool,
}

const MIB: u32 = 1 << 20;

const KINDS: [Kind; 13] = [
    Kind::new("iomap-4k", &["-b", "4096"], "rw"),
    Kind::new("iomap-1k", &["-b", "1024"], "rw,nowriteback_cache"),
    Kind::new("iomap-64k", &["-b", "65536"], "rw,nowriteback_cache"),
    Kind::new("bigalloc-64k", &["-b", "4096", "-O", "bigalloc", "-C", "65536"], "rw,nowriteback_cache"),
    Kind {
        file_max: 140,
        allocates: false,
        ..Kind::new("inline", &["-O", "inline_data"], "rw,nowriteback_cache")
    },
    Kind::new("inline-and-out", &["-O", "inline_data"], "rw,nowriteback_cache"),
    Kind::new("per-block-4k", &["-b", "4096"], "rw,nowriteback_cache,nobuffered_iomap"),
    Kind::new("per-block-1k", &["-b", "1024"], "rw,nowriteback_cache,nobuffered_iomap"),
    Kind::new("indirect-1k", &["-b", "1024", "-O", "^extents,^64bit"], "rw,nowriteback_cache"),
    Kind::new("data-journal", &["-b", "4096"], "rw,nowriteback_cache,data=journal"),
    Kind::new("writeback-cache", &["-b", "4096"], "rw,writeback_cache"),
    // Over /dev/fuse where the kernel does not offer io_uring.
    Kind::new("uring", &["-b", "4096"], "rw,transport=uring"),
    Kind { resizes: true, ..Kind::new("resized", &["-b", "1024"], "rw") },
];

impl Kind {
    const fn new(name: &'static str, format: &'static [&'static str], options: &'static str) -> Self {
        Self { name, format, options, file_max: MIB, allocates: true, resizes: false }
    }

    /// The configuration of fsx: operations and their weights.
    fn config(&self) -> String {
        let allocations = u32::from(self.allocates) * 3;
        let (file_max, op_max) = (self.file_max, self.file_max.min(65536));
        format!(
            "flen = {file_max}\n[opsize]\nmax = {op_max}\n[weights]\nclose_open = 1\nread = 10\nwrite = 10\n\
             mapread = 5\nmapwrite = 5\ninvalidate = 1\ntruncate = 5\nfsync = 1\nfdatasync = 1\n\
             posix_fallocate = {allocations}\npunch_hole = {allocations}\nsendfile = 3\nposix_fadvise = 1\n\
             copy_file_range = 3\n"
        )
    }
}

struct Arguments {
    seed: u64,
    ops: u64,
    kinds: Option<Vec<String>>,
    time: Duration,
}

/// `cargo xtask fsx [--seed S] [--ops N] [--kinds LIST] [--seconds N]`
pub(crate) fn run(args: &[&str]) -> Result<(), String> {
    let arguments = parse(args)?;
    let is_asked = |kind: &Kind| match &arguments.kinds {
        Some(names) => names.iter().any(|name| name == kind.name),
        None => true,
    };
    let kinds: Vec<&Kind> = KINDS.iter().filter(|kind| is_asked(kind)).collect();
    if arguments.kinds.as_ref().is_some_and(|names| names.len() != kinds.len()) {
        let known: Vec<&str> = KINDS.iter().map(|kind| kind.name).collect();
        return Err(format!("--kinds: of {}", known.join(",")));
    }
    let fsx = installed()?;
    // A copy, because the original may be rebuilt meanwhile.
    let (scratch, built) = (scratch("program")?, built()?);
    let extant = scratch.join("extant");
    std::fs::copy(&built, &extant).map_err(|error| format!("{}: {error}", built.display()))?;
    let begun = Instant::now();
    let mut failed = Vec::new();
    for kind in kinds {
        if begun.elapsed() > arguments.time {
            println!("{}: not begun, the time is over", kind.name);
            continue;
        }
        let since = Instant::now();
        let result = exercise(kind, &arguments, &fsx, &extant);
        let seconds = since.elapsed().as_secs_f64();
        let (ops, seed) = (arguments.ops, arguments.seed);
        match result {
            Ok(()) => println!("{}: {ops} operations, seed {seed}: clean, {seconds:.0} s", kind.name),
            Err(why) => {
                println!("{}: seed {seed}: FAILED: {why}", kind.name);
                failed.push(kind.name);
            }
        }
    }
    std::fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    if failed.is_empty() { Ok(()) } else { Err(format!("fsx: failed: {}", failed.join(", "))) }
}

fn parse(args: &[&str]) -> Result<Arguments, String> {
    let mut arguments = Arguments { seed: 1, ops: 20_000, kinds: None, time: Duration::MAX };
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let value = *words.next().ok_or(format!("{word} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{word} {value}: {error}"));
        match *word {
            "--seed" => arguments.seed = number()?,
            "--ops" => arguments.ops = number()?,
            "--seconds" => arguments.time = Duration::from_secs(number()?),
            "--kinds" => arguments.kinds = Some(value.split(',').map(str::to_owned).collect()),
            _ => return Err(format!("fsx: unknown argument {word}")),
        }
    }
    Ok(arguments)
}

/// The path of fsx, built from the registry once.
fn installed() -> Result<PathBuf, String> {
    let root = workspace::target_dir().join("tools");
    let program = root.join("bin/fsx");
    if !program.exists() {
        let mut command = workspace::cargo();
        command
            .args(["install", "--quiet", "--locked", "--version", VERSION, "--root"])
            .arg(&root)
            .arg("fsx");
        done(&mut command)?;
    }
    Ok(program)
}

/// Builds extant. Returns the path of the binary.
fn built() -> Result<PathBuf, String> {
    done(workspace::cargo().args(["build", "--quiet", "--profile", "ci", "-p", "extant-cli"]))?;
    Ok(workspace::target_dir().join("ci/extant"))
}

/// A new directory, in memory if possible. It is kept if the test in it fails.
fn scratch(name: &str) -> Result<PathBuf, String> {
    let memory = PathBuf::from("/dev/shm");
    let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let dir = parent.join(format!("extant-fsx-{}-{name}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    Ok(dir)
}

/// A program that Debian may install outside of an ordinary user's PATH.
fn command(name: &str) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    let mut command = Command::new(name);
    command.env("PATH", path);
    command
}

fn done(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?}: {status}")) }
}

/// Whether fsx refused its own last operation: posix_fallocate of 0 bytes. Some seeds contain it, and every
/// file system refuses it.
fn is_its_own(last: &str) -> bool {
    last.contains("POSIX_FALLOCATE")
        && last.split('(').nth(1).is_some_and(|len| len.trim_start().starts_with("0x0 "))
}

/// Changes the size of a mounted file system again and again: it grows in steps, and shrinks back.
struct Resizing {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Result<u32, String>>,
}

impl Resizing {
    fn start(extant: &Path, dir: &Path) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, extant, dir) = (Arc::clone(&ends), extant.to_owned(), dir.to_owned());
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            for size in ["300M", "364M", "1G", "280M"].iter().cycle() {
                if seen.load(Ordering::Relaxed) {
                    return Ok(count);
                }
                done(Command::new(&extant).args(["resize", "-q"]).arg(&dir).arg(size))?;
                count += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            Ok(count)
        });
        Self { ends, thread }
    }

    /// Waits for the last change; its error, or that of an earlier one.
    fn stop(self) -> Result<(), String> {
        self.ends.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(Ok(count)) => {
                println!("the size changed {count} times");
                Ok(())
            }
            Ok(Err(why)) => Err(format!("resize: {why}")),
            Err(_) => Err("resize: a panic".to_owned()),
        }
    }
}

fn exercise(kind: &Kind, arguments: &Arguments, fsx: &Path, extant: &Path) -> Result<(), String> {
    let scratch = scratch(kind.name)?;
    let (image, dir, config) = (scratch.join("image"), scratch.join("dir"), scratch.join("fsx.toml"));
    std::fs::create_dir(&dir)
        .and_then(|()| std::fs::write(&config, kind.config()))
        .map_err(|error| error.to_string())?;
    let mut format = command("mke2fs");
    done(format.args(["-q", "-F", "-F", "-t", "ext4"]).args(kind.format).arg(&image).arg(IMAGE_SIZE))?;
    done(Command::new(extant).args(["mount", "-o", kind.options]).arg(&image).arg(&dir))?;
    let resizing = kind.resizes.then(|| Resizing::start(extant, &dir));
    let (mut left, mut seed, mut failed) = (arguments.ops, arguments.seed, None);
    while left > 0 && failed.is_none() {
        let ops = OPS_MAX.min(left);
        let mut command = Command::new(fsx);
        command.args(["-q", "-N", &ops.to_string(), "-S", &seed.to_string(), "-f"]).arg(&config);
        command.arg("-P").arg(&scratch).arg(dir.join("file"));
        match command.output() {
            Ok(output) if output.status.success() => left -= ops,
            Ok(output) => {
                let stderr = String::from_utf8_lossy(&output.stderr);
                let lines: Vec<&str> = stderr.lines().collect();
                if lines.last().is_some_and(|last| is_its_own(last)) {
                    println!(
                        "{}: seed {seed} asks for no bytes, which is refused anywhere: left out",
                        kind.name
                    );
                } else {
                    let last = lines[lines.len().saturating_sub(12)..].join("\n    ");
                    failed = Some(format!("with seed {seed}: {last}"));
                }
            }
            Err(error) => failed = Some(format!("fsx: {error}")),
        }
        seed += 1;
    }
    let resized = resizing.map_or(Ok(()), Resizing::stop);
    let unmounted = done(Command::new(extant).arg("umount").arg(&dir));
    if let Some(why) = failed {
        // The path of what is left for inspection.
        return Err(format!("{why}; all of it is in {}", scratch.display()));
    }
    resized.and(unmounted)?;
    let judged = command("e2fsck").arg("-fn").arg(&image).output().map_err(|error| error.to_string())?;
    match judged.status.success() {
        true => std::fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display())),
        false => Err(format!("e2fsck: {}", String::from_utf8_lossy(&judged.stdout))),
    }
}

#[cfg(test)]
mod tests {
    use super::is_its_own;

    #[test]
    fn a_refusal_of_no_bytes_is_distinguished_from_others() {
        assert!(is_its_own("[ERROR fsx] 11191 POSIX_FALLOCATE  0xecce5 =>  0xecce4 (    0x0 bytes)"));
        assert!(!is_its_own("[ERROR fsx] 11184 POSIX_FALLOCATE  0xa1e00 =>  0xa390c ( 0x1b0d bytes)"));
        assert!(!is_its_own("[ERROR fsx] 11190 MAPWRITE  0xb4336 =>  0xbb228 (    0x0 bytes)"));
    }
}
