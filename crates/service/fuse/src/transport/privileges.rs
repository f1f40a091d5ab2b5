//! Set-id bits, which writes and changes of owners clear unless the caller has CAP_FSETID.
//!
//! Cleared are set-user-id; and set-group-id, if the group may execute the file or the caller is not in the
//! group. With FUSE_HANDLE_KILLPRIV_V2 this is the server's task. The kernel marks the WRITE requests that
//! clear the bits. For truncate, fallocate, copy_file_range, chown and ACLs the server checks the caller
//! itself, and ignores the kernel's marks (FATTR_KILL_SUIDGID, FUSE_SETXATTR_ACL_KILL_SGID). The caller is
//! looked up only for files with such a bit, which are few. The kernel removes `security.capability` itself,
//! before it sends the request: also if the request is then refused.
//!
//! A request has only the caller's thread, user and one group; where idmapped mounts are possible, requests
//! that create no inode have only the thread. The rest is read from /proc.
//!
//! Owns: whether the server has this task ([`SetIdBits`]), which INIT decides. Does **not** own: the modes
//! (see [`Serve`]).
//!
//! Invariant: if the caller cannot be examined (it has ended, or is in another PID namespace), it counts as
//! unprivileged.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_HANDLE_KILLPRIV_V2), linux/capability.h;
//! proc_pid_status(5).

use std::sync::Arc;

use extant_base::Ino;
use extant_fuse_lowlevel::Request;
use extant_volume::{FileType, SetAttr, Stat, unprivileged};

use super::invalidator::Invalidator;
use crate::{Errno, Serve};

/// CAP_FSETID as a bit of a capability set.
const FSETID: u64 = 1 << 4;
/// CAP_SYS_RESOURCE as a bit of a capability set.
pub(super) const SYS_RESOURCE: u64 = 1 << 24;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;

/// Does the thread have CAP_FSETID?
pub(super) fn may_keep_set_id(thread: u32) -> bool {
    has_capability(thread, &status(thread), FSETID)
}

/// May the thread change the flag `j` (data journaling)? As in the kernel, this needs CAP_SYS_RESOURCE.
pub(super) fn may_journal(thread: u32) -> bool {
    has_capability(thread, &status(thread), SYS_RESOURCE)
}

/// /proc/TID/status; empty if the thread has ended or is not visible.
pub(super) fn status(thread: u32) -> String {
    std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default()
}

/// Does the thread with this status have a capability in the server's user namespace? As in the kernel,
/// capabilities in another user namespace do not count, because any user can create one.
///
/// Namespaces are compared by the ids that they map, which any process may read; the namespace itself is
/// hidden from a confined server. Only root of the server's namespace can create another one with the same
/// ids.
pub(super) fn has_capability(thread: u32, status: &str, bit: u64) -> bool {
    let ids = |of: &str| std::fs::read(format!("/proc/{of}/uid_map")).ok().filter(|ids| !ids.is_empty());
    is_capable(status, bit)
        && matches!((ids(&thread.to_string()), ids("self")), (Some(its), Some(ours)) if its == ours)
}

/// Is this bit set in the effective capabilities?
fn is_capable(status: &str, bit: u64) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).is_some_and(|set| set & bit != 0)
}

/// Is this the group for file accesses, or one of the supplementary groups?
pub(super) fn has_group(status: &str, group: u32) -> bool {
    let has = |name: &str, skipped: usize| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|text| text.split_whitespace().skip(skipped).any(|word| word.parse() == Ok(group)))
    };
    // The line has the real, effective and saved group, and then the one for file accesses.
    has("Gid:", 3) || has("Groups:", 0)
}

/// The user of a request for file accesses; `u32::MAX` if that is not known.
pub(super) fn user_of(request: &Request<'_>) -> u32 {
    match request.uid() {
        u32::MAX => user_in(&status(request.pid())),
        user => user,
    }
}

/// The user for file accesses of a thread with this status.
pub(super) fn user_in(status: &str) -> u32 {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.and_then(|text| text.split_whitespace().nth(3)?.parse().ok()).unwrap_or(u32::MAX)
}

/// Returns whether set-group-id needs no clearing: it is not set, or the caller is in the file's group, or
/// has CAP_FSETID.
fn keeps_set_gid(request: &Request<'_>, stat: &Stat) -> bool {
    if stat.mode & SETGID == 0 || request.gid() == stat.gid {
        return true;
    }
    let status = status(request.pid());
    has_group(&status, stat.gid) || has_capability(request.pid(), &status, FSETID)
}

/// The set-id bits of a mount's files.
pub(super) struct SetIdBits<S> {
    serve: Arc<S>,
    invalidator: Arc<Invalidator>,
    /// The server must clear the bits (FUSE_HANDLE_KILLPRIV_V2).
    pub(super) is_ours: bool,
}

impl<S: Serve> SetIdBits<S> {
    pub(super) fn new(serve: Arc<S>, invalidator: Arc<Invalidator>) -> Self {
        Self { serve, invalidator, is_ours: false }
    }

    /// The mode that a file gets by a write; `None` if the mode does not change.
    pub(super) fn mode_after_write(&self, request: &Request<'_>, ino: Ino) -> Result<Option<u16>, Errno> {
        if !self.is_ours {
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

    /// The mode that a file gets by chown(2), if set-group-id has to be cleared, too; otherwise `None`, and
    /// the volume clears the usual bits itself.
    pub(super) fn mode_after_chown(&self, request: &Request<'_>, ino: Ino) -> Result<Option<u16>, Errno> {
        if !self.is_ours {
            return Ok(None);
        }
        let stat = self.serve.stat(ino)?;
        let after = unprivileged(stat.mode & 0o7777);
        let stays = stat.kind == FileType::Directory || keeps_set_gid(request, &stat);
        Ok((!stays).then_some(after & !SETGID))
    }

    /// Clears set-group-id of a file whose ACL was set by a caller that is not in the file's group, as
    /// chmod(2) does. Returns whether it was set.
    pub(super) fn clear_after_acl(&self, request: &Request<'_>, ino: Ino) -> Result<bool, Errno> {
        if !self.is_ours {
            return Ok(false);
        }
        let stat = self.serve.stat(ino)?;
        if keeps_set_gid(request, &stat) {
            return Ok(false);
        }
        let mode = Some(stat.mode & 0o7777 & !SETGID);
        self.serve.set_attr(ino, &SetAttr { mode, ..SetAttr::default() })?;
        Ok(true)
    }

    /// Clears set-id bits before a write, and invalidates the kernel's attributes if the mode changed.
    pub(super) fn clear(&self, request: &Request<'_>, node: u64, ino: Ino) -> Result<(), Errno> {
        if let Some(mode) = self.mode_after_write(request, ino)? {
            self.serve.set_attr(ino, &SetAttr { mode: Some(mode), ..SetAttr::default() })?;
            self.invalidator.invalidate_attributes(node);
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
    fn capabilities_and_groups_are_read_from_the_status() {
        let status = |set: &str| format!("Name:\tsh\nCapPrm:\t0000000000000010\nCapEff:\t{set}\n");
        let keeps = |status: &str| is_capable(status, FSETID);
        assert!(keeps(&status("000001ffffffffff")));
        assert!(keeps(&status("0000000000000010")));
        assert!(!keeps(&status("000001ffffffffef")));
        assert!(!keeps("") && !keeps(&status("x")));
        let ids = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 24 1000 \n";
        let groups: Vec<u32> = (0..2000).filter(|group| has_group(ids, *group)).collect();
        assert_eq!((groups, has_group("", 0)), (vec![4, 8, 24, 1000], false));
        assert_eq!((user_in(ids), user_in("")), (4, u32::MAX));
        assert_eq!(may_keep_set_id(std::process::id()), extant_testkit::is_root());
        assert!(!may_keep_set_id(0));
    }

    /// Any user can have all capabilities in a new user namespace.
    #[test]
    fn capabilities_in_another_user_namespace_do_not_count() {
        let script = "grep CapEff /proc/self/status; exec cat";
        let mut command = Command::new("unshare");
        let child = command.args(["-Ur", "sh", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let Ok(mut child) = child.spawn() else { return };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // Where user namespaces are forbidden, they give no access.
        if is_capable(&line, FSETID) {
            let status = status(child.id());
            assert!(is_capable(&status, FSETID) && !has_capability(child.id(), &status, FSETID), "{status}");
        }
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
