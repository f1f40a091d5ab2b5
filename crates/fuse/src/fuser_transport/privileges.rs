//! What somebody's writing takes off a file: set-user-id, and set-group-id where the group may execute it, unless he has CAP_FSETID.
//!
//! The kernel says so with a write. With other requests that change bytes it does not, or `fuser` does not pass it on: then we look
//! at the one who asks, but only of files that have such bits, which are few. The attribute `security.capability` the kernel
//! takes off by itself.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_HANDLE_KILLPRIV_V2), linux/capability.h; proc_pid_status(5).

use base::Ino;
use fuser::{INodeNo, Request};
use volume::{FileType, SetAttr, unprivileged};

use super::Transport;
use crate::{Errno, Serve};

/// Bit of CAP_FSETID in a set of capabilities.
const FSETID: u64 = 1 << 4;

const SETGID: u16 = 0o2000;

/// Has the thread CAP_FSETID? Whom we know nothing about has not.
pub(super) fn may_keep_set_id(thread: u32) -> bool {
    has_capability(thread, &status(thread), FSETID)
}

/// What the system tells of a thread; nothing of one that is not there, or not to be seen from here.
pub(super) fn status(thread: u32) -> String {
    std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default()
}

/// Has the thread, whose status this is, a capability where the server runs? What it has in a user namespace of its own, which anybody
/// may make, does not count, as in the kernel.
pub(super) fn has_capability(thread: u32, status: &str, bit: u64) -> bool {
    let space = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user"));
    is_capable(status, bit)
        && matches!((space(&thread.to_string()), space("self")), (Ok(its), Ok(ours)) if its == ours)
}

/// Is this bit among the capabilities that count?
fn is_capable(status: &str, bit: u64) -> bool {
    let told = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    told.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).is_some_and(|set| set & bit != 0)
}

/// Is this group among those besides the first one?
pub(super) fn has_group(status: &str, group: u32) -> bool {
    let told = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    told.is_some_and(|text| text.split_whitespace().any(|word| word.parse() == Ok(group)))
}

impl<S: Serve> Transport<S> {
    /// The permissions that a file gets because of a write; `None` if they stay. `may_keep`: asked only if it matters.
    pub(super) fn mode_after_write(
        &self,
        ino: Ino,
        may_keep: impl FnOnce() -> bool,
    ) -> Result<Option<u16>, Errno> {
        if !self.kills_set_id {
            return Ok(None);
        }
        let stat = self.serve.stat(ino)?;
        let before = stat.mode & 0o7777;
        let after = unprivileged(before);
        let stays = stat.kind != FileType::Regular || after == before || may_keep();
        Ok((!stays).then_some(after))
    }

    /// Takes set-group-id off a file whose ACL was set by somebody who is not in its group, as chmod does, where the kernel that asks
    /// leaves it to us. Was it there?
    pub(super) fn drop_set_gid(&self, request: &Request, ino: Ino) -> Result<bool, Errno> {
        let stat = self.serve.stat(ino)?;
        if stat.mode & SETGID == 0 || request.gid() == stat.gid {
            return Ok(false);
        }
        let status = status(request.pid());
        if has_group(&status, stat.gid) || has_capability(request.pid(), &status, FSETID) {
            return Ok(false);
        }
        let mode = Some(stat.mode & 0o7777 & !SETGID);
        self.serve.set_attr(ino, &SetAttr { mode, ..SetAttr::default() })?;
        Ok(true)
    }

    /// Takes off what goes because of a write that is about to happen, and has the kernel ask for the mode again.
    pub(super) fn drop_set_id(
        &self,
        node: INodeNo,
        ino: Ino,
        may_keep: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        if let Some(mode) = self.mode_after_write(ino, may_keep)? {
            self.serve.set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
            self.drop_attributes(node);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_has_the_capability_is_told_by_the_system() {
        let status = |set: &str| format!("Name:\tsh\nCapPrm:\t0000000000000010\nCapEff:\t{set}\n");
        let keeps = |status: &str| is_capable(status, FSETID);
        assert!(keeps(&status("000001ffffffffff")));
        assert!(keeps(&status("0000000000000010")));
        assert!(!keeps(&status("000001ffffffffef")));
        assert!(!keeps("") && !keeps(&status("x")));
        let groups = "Gid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \n";
        assert!(has_group(groups, 24) && !has_group(groups, 2) && !has_group(groups, 5) && !has_group("", 0));
        assert_eq!(may_keep_set_id(std::process::id()), testkit::is_root());
        assert!(!may_keep_set_id(0));
    }

    /// Anybody may have all capabilities in a user namespace of his own.
    #[test]
    fn what_may_be_done_in_a_namespace_of_its_own_does_not_count() {
        let script = "grep CapEff /proc/self/status; exec cat";
        let mut command = Command::new("unshare");
        let child = command.args(["-Ur", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = child.spawn() else { return };
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        // Where nobody may make namespaces, nobody gets in by one.
        if is_capable(&told, FSETID) {
            let status = status(child.id());
            assert!(is_capable(&status, FSETID) && !has_capability(child.id(), &status, FSETID), "{status}");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
