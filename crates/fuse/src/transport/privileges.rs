//! What writing takes off a file, unless the writer has CAP_FSETID: set-user-id, and set-group-id where the
//! group may execute the file or the writer is not in its group.
//!
//! The kernel marks such writes. For other requests that change bytes or owners the server checks the caller,
//! but only for files with such bits, which are few; the marks that the kernel sets on some of them
//! (FATTR_KILL_SUIDGID, FUSE_SETXATTR_ACL_KILL_SGID) are not used. The kernel removes the attribute
//! `security.capability` by itself.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_HANDLE_KILLPRIV_V2), linux/capability.h;
//! proc_pid_status(5).

use extant_base::Ino;
use extant_fuse_lowlevel::Request;
use extant_volume::{FileType, SetAttr, Stat, unprivileged};

use super::Transport;
use crate::{Errno, Serve};

/// Bit of CAP_FSETID in a set of capabilities.
const FSETID: u64 = 1 << 4;
/// Bit of CAP_SYS_RESOURCE in a set of capabilities.
pub(super) const SYS_RESOURCE: u64 = 1 << 24;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

/// Has the thread CAP_FSETID? An unknown one has not.
pub(super) fn may_keep_set_id(thread: u32) -> bool {
    has_capability(thread, &status(thread), FSETID)
}

/// May the thread say which files have their bytes in the journal? That takes space which others need:
/// CAP_SYS_RESOURCE.
pub(super) fn may_journal(thread: u32) -> bool {
    has_capability(thread, &status(thread), SYS_RESOURCE)
}

/// A thread's status from the system; nothing for one that ended, or is invisible from here.
pub(super) fn status(thread: u32) -> String {
    std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default()
}

/// Has the thread with this status a capability where the server runs? Capabilities in a user namespace of
/// its own, which any user may make, do not count, as in the kernel.
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

/// Has the file no set-group-id, or is the caller in its group, or allowed to set it for others?
fn keeps_set_gid(request: &Request<'_>, stat: &Stat) -> bool {
    if stat.mode & SETGID == 0 || request.gid() == stat.gid {
        return true;
    }
    let status = status(request.pid());
    has_group(&status, stat.gid) || has_capability(request.pid(), &status, FSETID)
}

impl<S: Serve> Transport<S> {
    /// The permissions that a file gets because of a write; `None` if they stay.
    pub(super) fn mode_after_write(&self, request: &Request<'_>, ino: Ino) -> Result<Option<u16>, Errno> {
        if !self.kills_set_id {
            return Ok(None);
        }
        let stat = self.serve.stat(ino)?;
        let before = stat.mode & 0o7777;
        if stat.kind != FileType::Regular || before & (SETUID | SETGID) == 0 {
            return Ok(None);
        }
        let after = unprivileged(before);
        if after != before && may_keep_set_id(request.pid()) {
            return Ok(None);
        }
        let after = if keeps_set_gid(request, &stat) { after } else { after & !SETGID };
        Ok((after != before).then_some(after))
    }

    /// The permissions that a new owner or group leaves, where they are fewer than those that every such
    /// change leaves.
    pub(super) fn mode_after_chown(&self, request: &Request<'_>, ino: Ino) -> Result<Option<u16>, Errno> {
        if !self.kills_set_id {
            return Ok(None);
        }
        let stat = self.serve.stat(ino)?;
        let after = unprivileged(stat.mode & 0o7777);
        let stays = stat.kind == FileType::Directory || keeps_set_gid(request, &stat);
        Ok((!stays).then_some(after & !SETGID))
    }

    /// Clears set-group-id of a file whose ACL was set by a caller outside of its group, as chmod does, where
    /// the kernel leaves that to the server. Was it set?
    pub(super) fn drop_set_gid(&self, request: &Request<'_>, ino: Ino) -> Result<bool, Errno> {
        let stat = self.serve.stat(ino)?;
        if keeps_set_gid(request, &stat) {
            return Ok(false);
        }
        let mode = Some(stat.mode & 0o7777 & !SETGID);
        self.serve.set_attr(ino, &SetAttr { mode, ..SetAttr::default() })?;
        Ok(true)
    }

    /// Takes off what goes because of a write that is about to happen, and has the kernel ask for the mode
    /// again.
    pub(super) fn drop_set_id(&self, request: &Request<'_>, node: u64, ino: Ino) -> Result<(), Errno> {
        if let Some(mode) = self.mode_after_write(request, ino)? {
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
        assert_eq!(may_keep_set_id(std::process::id()), extant_testkit::is_root());
        assert!(!may_keep_set_id(0));
    }

    /// Any user may have all capabilities in a user namespace.
    #[test]
    fn what_may_be_done_in_a_namespace_of_its_own_does_not_count() {
        let script = "grep CapEff /proc/self/status; exec cat";
        let mut command = Command::new("unshare");
        let child = command.args(["-Ur", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = child.spawn() else { return };
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        // Where user namespaces are forbidden, they give no access.
        if is_capable(&told, FSETID) {
            let status = status(child.id());
            assert!(is_capable(&status, FSETID) && !has_capability(child.id(), &status, FSETID), "{status}");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
