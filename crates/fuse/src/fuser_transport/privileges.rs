//! What somebody's writing takes off a file: set-user-id, and set-group-id where the group may execute it, unless he has CAP_FSETID.
//!
//! The kernel says so with a write. With other requests that change bytes it does not, or `fuser` does not pass it on: then we look
//! at the one who asks, but only of files that have such bits, which are few. The attribute `security.capability` the kernel
//! takes off by itself.
//!
//! Source: kernel include/uapi/linux/fuse.h (FUSE_HANDLE_KILLPRIV_V2), linux/capability.h; proc_pid_status(5).

use base::Ino;
use fuser::INodeNo;
use volume::{FileType, SetAttr, unprivileged};

use super::Transport;
use crate::{Errno, Serve};

/// Bit of CAP_FSETID in a set of capabilities.
const FSETID: u64 = 1 << 4;

/// Has the thread CAP_FSETID? Whom we know nothing about has not.
pub(super) fn may_keep_set_id(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    is_among_effective(&status)
}

fn is_among_effective(status: &str) -> bool {
    let told = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    told.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).is_some_and(|set| set & FSETID != 0)
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
    use super::*;

    #[test]
    fn who_has_the_capability_is_told_by_the_system() {
        let status = |set: &str| format!("Name:\tsh\nCapPrm:\t0000000000000010\nCapEff:\t{set}\n");
        assert!(is_among_effective(&status("000001ffffffffff")));
        assert!(is_among_effective(&status("0000000000000010")));
        assert!(!is_among_effective(&status("000001ffffffffef")));
        assert!(!is_among_effective("") && !is_among_effective(&status("x")));
        assert_eq!(may_keep_set_id(std::process::id()), testkit::is_root());
        assert!(!may_keep_set_id(0));
    }
}
