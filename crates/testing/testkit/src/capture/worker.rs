//! The workload that changes the file system during captures.
//!
//! Each worker has a shell that does the work and reads commands line by line; this process never touches the
//! mount. It serves the disk below: if one of its threads waited for that disk when the process is killed,
//! the process could not end, the disk would never fail, and all callers of `sync` would hang.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use super::gate::Gate;
use crate::tools::command;
use crate::trees::Random;

/// Names per directory; few, so that they are reused often.
const N_NAMES: u64 = 30;
/// Requests between two checks of the gate.
const BATCH: usize = 4;

/// Works below `root` until stopped.
///
/// # Panics
/// The shell cannot be started, or ends.
pub(super) fn work(root: &Path, number: usize, seed: u64, gate: &Gate) {
    let mut shell = Shell::start(root);
    let mut random = Random::for_item(seed, number as u64 + 1);
    let own = format!("worker-{number}");
    shell.run(&format!("mkdir -p {own}/dir-{{0,1,2,3}} shared/dir-{{0,1,2,3}}\n"));
    let mut serial = 0;
    while gate.pass() {
        let mut batch = String::new();
        for _ in 0..BATCH {
            let dir = if random.below(4) == 0 { "shared" } else { &own };
            // Contents show which write they come from.
            serial += 1;
            batch.push_str(&request(dir, &format!("worker-{number}-write-{serial}"), &mut random));
            batch.push('\n');
        }
        shell.run(&batch);
    }
}

/// A shell in a directory.
struct Shell {
    child: Child,
}

impl Shell {
    fn start(root: &Path) -> Self {
        let mut command = command("bash");
        command.current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        Self { child }
    }

    /// Runs lines and ignores their results: a name may exist or not.
    fn run(&mut self, lines: &str) {
        let (Some(stdin), Some(stdout)) = (&mut self.child.stdin, &mut self.child.stdout) else {
            unreachable!("both were piped")
        };
        let lines = format!("{lines}echo done\n");
        stdin.write_all(lines.as_bytes()).unwrap_or_else(|error| panic!("the worker's shell: {error}"));
        // Each call is answered by one line, so that dropping the reader loses nothing.
        let mut answer = String::new();
        let read = BufReader::new(stdout).read_line(&mut answer);
        assert!(read.is_ok() && answer == "done\n", "the worker's shell answers {answer:?} ({read:?})");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell ends at the end of its input.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn name(dir: &str, random: &mut Random) -> String {
    let number = random.below(N_NAMES);
    let long =
        if number.is_multiple_of(5) { "-with-a-longer-name-that-fills-directory-blocks-sooner" } else { "" };
    match random.below(5) {
        0 => format!("{dir}/name-{number}{long}"),
        i => format!("{dir}/dir-{}/name-{number}{long}", i - 1),
    }
}

/// A random line of shell.
fn request(dir: &str, tag: &str, random: &mut Random) -> String {
    let (one, other) = (name(dir, random), name(dir, random));
    let most = [100, 3000, 20_000, 200_000][random.below(4) as usize];
    let (len, offset) = (random.below(most), random.below(2 * most));
    let sync = match random.below(9) {
        0 => format!("; sync {one}"),
        1 => format!("; sync -d {one}"),
        2 => format!("; sync {dir}"),
        _ => String::new(),
    };
    match random.below(20) {
        0..=3 => format!("yes {tag} | head -c {len} > {one}{sync}"),
        4..=6 => format!(
            "yes {tag} | head -c {} | dd of={one} bs=64K seek={offset} oflag=seek_bytes conv=notrunc{sync}",
            len.min(9000)
        ),
        7 => format!("truncate -s {len} {one}{sync}"),
        8..=9 => format!("mv -T {one} {other}; sync {other}"),
        10..=11 => format!("rm -f {one} || rmdir {one}"),
        12 => format!("mkdir {one} && echo {tag} > {one}/within{sync}"),
        13 => format!("rm -rf {one}"),
        14 => format!("ln {one} {other}{sync}"),
        15 => format!("ln -s {}{tag} {one}", "t".repeat(random.below(80) as usize)),
        16 => {
            let value = tag.repeat(1 + random.below(20) as usize);
            format!("setfattr -h -n user.attribute-{} -v {value} {one}{sync}", random.below(4))
        }
        17 => format!("setfattr -h -x user.attribute-{} {one}{sync}", random.below(4)),
        18 => {
            let mode = ["", "--keep-size", "--punch-hole", "--zero-range"][random.below(4) as usize];
            format!("fallocate {mode} -o {offset} -l {} {one}{sync}", len + 1)
        }
        // Unlinked while open: an orphan while it is being written.
        _ => format!("{{ rm -f {one}; yes {tag} | head -c {len}; sync {dir}; }} > {one}"),
    }
}
