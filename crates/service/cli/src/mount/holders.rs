//! Users of a mount: open files, working directories, mounts below it, other mount namespaces.
//!
//! Reads only /proc and touches no file of the mount, whose server may hang. Users that are not visible
//! (processes of other users, for an ordinary user; namespaces without a process) are not found.
//!
//! Source: proc(5) (fdinfo, maps, mountinfo, ns), mount_namespaces(7).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use extant_device::mount_table::{self, MountEntry};

/// Maximum number of users to find: a message names some of them.
const FOUND_MAX: usize = 3;

/// A mount of the same file system in another mount namespace.
pub(super) struct Elsewhere {
    process: u32,
    /// The directory in the other namespace.
    dir: PathBuf,
}

impl Elsewhere {
    /// A message such as "process 12 (sleep) has it on /mnt".
    pub(super) fn says(&self) -> String {
        format!("process {} ({}) has it on {}", self.process, name_of(self.process), self.dir.display())
    }

    /// The directory, as this process reaches it. If the holder ends or unmounts it, the path leads
    /// elsewhere.
    pub(super) fn reached(&self) -> PathBuf {
        let dir = self.dir.strip_prefix("/").unwrap_or(&self.dir);
        Path::new(&format!("/proc/{}/root", self.process)).join(dir)
    }
}

/// Mounts of the file system with this device number in other processes' mount namespaces.
pub(super) fn elsewhere(device: (u32, u32)) -> Vec<Elsewhere> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen: HashSet<PathBuf> = own.into_iter().collect();
    let mut found = Vec::new();
    for process in processes() {
        // An ordinary user cannot identify namespaces of other users: each of their tables is read.
        if fs::read_link(format!("/proc/{process}/ns/mnt")).is_ok_and(|ns| !seen.insert(ns)) {
            continue;
        }
        let mounts = mount_table::mounts_of(&process.to_string()).unwrap_or_default();
        if let Some(entry) = mounts.into_iter().find(|entry| entry.device == device) {
            found.push(Elsewhere { process, dir: entry.dir });
        }
        if found.len() >= FOUND_MAX {
            break;
        }
    }
    found
}

/// The users that prevent an unmount, as messages.
pub(super) fn users(of: &MountEntry) -> Vec<String> {
    let inside = mount_table::mounts().unwrap_or_default().into_iter();
    let inside = inside.filter(|entry| entry.parent == of.id);
    let mut found: Vec<String> =
        inside.map(|entry| format!("{} is mounted in it", entry.dir.display())).collect();
    found.extend(loops_in(&of.dir));
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    for process in processes() {
        if found.len() >= FOUND_MAX {
            break;
        }
        let is_in_sight = fs::read_link(format!("/proc/{process}/ns/mnt")).ok() == own;
        if let Some(what) = use_by(process, of).filter(|_| is_in_sight) {
            found.push(format!("process {process} ({}) {what}", name_of(process)));
        }
    }
    found.truncate(FOUND_MAX);
    found
}

/// How a process uses the mount, if it does.
fn use_by(process: u32, of: &MountEntry) -> Option<String> {
    let link = |what: &str| fs::read_link(format!("/proc/{process}/{what}")).ok();
    for (what, says) in [("cwd", "works in"), ("root", "has its root in"), ("exe", "was started from")] {
        if let Some(path) = link(what).filter(|path| path.starts_with(&of.dir)) {
            return Some(format!("{says} {}", path.display()));
        }
    }
    let id = format!("mnt_id:\t{}", of.id);
    let open = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
    let mut open = open
        .filter(|file| fs::read_to_string(file.path()).is_ok_and(|text| text.lines().any(|line| line == id)));
    if let Some(file) = open.next() {
        let path = link(&format!("fd/{}", file.file_name().to_string_lossy()));
        return Some(format!("has {} open", path.unwrap_or_default().display()));
    }
    // `7f0c2000-7f0c3000 r--p 00000000 00:2d 12   /mnt/file`
    let number = format!("{:02x}:{:02x}", of.device.0, of.device.1);
    let maps = fs::read(format!("/proc/{process}/maps")).ok()?;
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().find(|line| line.split_ascii_whitespace().nth(3) == Some(&number))?;
    Some(format!("has {} mapped", mapped.split_ascii_whitespace().skip(5).collect::<Vec<_>>().join(" ")))
}

/// Loop devices that are backed by files in this directory.
fn loops_in(dir: &Path) -> Vec<String> {
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let stores = blocks.filter_map(|block| {
        let text = fs::read_to_string(block.path().join("loop/backing_file")).ok()?;
        let file = Path::new(text.trim_end_matches('\n'));
        let name = block.file_name();
        file.starts_with(dir).then(|| format!("/dev/{} stores in {}", name.to_string_lossy(), file.display()))
    });
    stores.collect()
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |process| *process != own)
}

fn name_of(process: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_in_a_directory_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let mut command = std::process::Command::new("sleep");
        let mut child = command.arg("60").current_dir(&dir).spawn().unwrap();
        let entry = MountEntry {
            id: u64::MAX,
            parent: 0,
            device: (u32::MAX, 0),
            dir: dir.clone(),
            fs_type: String::new(),
            source: "".into(),
            options: String::new(),
            is_writable: true,
        };
        let found = users(&entry);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("process {} (sleep) works in {}", child.id(), dir.display())]);
        assert_eq!(users(&entry), [""; 0]);
        assert!(elsewhere((u32::MAX, 0)).is_empty());
    }
}
