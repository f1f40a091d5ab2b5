//! A user namespace and a mount namespace of this process's own, in which it may mount without privileges.
//!
//! The caller's user and group become 0 there: only ids of the namespace can own files or be given to them,
//! and most files of an image are root's. All other ids appear as 65534, the overflow id.
//!
//! Does **not** own: what is mounted there (see [`super::namespace`]).
//!
//! Source: user_namespaces(7), mount_namespaces(7), unshare(2).

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::MountPropagationFlags;
use rustix::process::{getegid, geteuid};

/// Which namespaces were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A mount namespace: the caller may mount already.
    Mounts,
    /// A mount namespace in a user namespace.
    Users,
}

/// Moves this process, which must have no other thread, into namespaces of its own. Root gets a mount
/// namespace if the system allows it, so that all ids stay what they are.
///
/// # Errors
/// A sentence with the reason and the remedy.
pub(crate) fn enter() -> Result<Kind, String> {
    if geteuid().is_root() && unshare(CloneFlags::CLONE_NEWNS).is_ok() {
        // Mounts made here stay here; unmounts of the system still arrive here.
        let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        rustix::mount::mount_change("/", flags)
            .map_err(|error| format!("the mounts of the new namespace cannot be separated: {error}"))?;
        return Ok(Kind::Mounts);
    }
    enter_users().map(|()| Kind::Users)
}

/// The same with a user namespace in any case.
///
/// # Errors
/// See [`enter`].
pub(crate) fn enter_users() -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .map_err(|error| why_not("a user namespace cannot be made", error as i32))?;
    let write = |file: &str, text: String| match fs::write(Path::new("/proc/self").join(file), text) {
        Ok(()) => Ok(()),
        Err(error) if file == "setgroups" && error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            let finding = format!("/proc/self/{file} of a new user namespace cannot be written");
            Err(why_not(&finding, error.raw_os_error().unwrap_or_default()))
        }
    };
    // Without it an unprivileged process may not set groups.
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("0 {user} 1"))?;
    write("gid_map", format!("0 {group} 1"))
}

fn sysctl(name: &str) -> Option<String> {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Names the setting of the system that forbids it.
fn why_not(finding: &str, errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    let is = |name: &str, value: &str| sysctl(name).as_deref() == Some(value);
    let is_filtered = fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"])));
    let remedy = if is("kernel.unprivileged_userns_clone", "0") {
        "as root: sysctl -w kernel.unprivileged_userns_clone=1".to_owned()
    } else if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for \
         extant with the rule `userns,`"
            .to_owned()
    } else if let Some(limit) = ["user.max_user_namespaces", "user.max_mnt_namespaces"]
        .into_iter()
        .find(|limit| is(limit, "0") || [Errno::ENOSPC, Errno::EUSERS].contains(&Errno::from_raw(errno)))
    {
        let value = sysctl(limit).unwrap_or_default();
        format!("{limit} is {value}; as root: sysctl -w {limit}=10000")
    } else if Errno::from_raw(errno) == Errno::EINVAL || !Path::new("/proc/self/ns/user").exists() {
        "the kernel needs CONFIG_USER_NS".to_owned()
    } else if is_filtered {
        "a seccomp filter forbids it, as Docker's default does; start the container with `--security-opt \
         seccomp=unconfined`, or with `--cap-add SYS_ADMIN`"
            .to_owned()
    } else {
        "a security module or a chroot forbids it; mount as root, or with fusermount3".to_owned()
    };
    format!("{finding}: {error}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_its_sysctl() {
        let said = why_not("it cannot be made", Errno::ENOSPC as i32);
        let names = ["unprivileged_userns_clone", "apparmor", "user.max_user_namespaces"];
        assert!(said.starts_with("it cannot be made: No space left on device"), "{said}");
        assert!(names.iter().any(|name| said.contains(name)) && said.contains("sysctl -w "), "{said}");
    }
}
