//! The confinement of a server, from the mount to its end.
//!
//! It keeps: the image, the journal, the log and /dev/fuse, which are open; CAP_SYS_NICE, by which a thread
//! leaves the policy SCHED_IDLE; reading below /proc, where the policy, the CPU and the groups of callers
//! stand. It opens nothing for writing, executes nothing, makes no socket. `fuse`'s `Mounted` has set what
//! only root may set (readahead) before.

use extant_sandbox::{Access, CAP_SYS_NICE, OnRefusal, Sandbox};

use super::MountArgs;
use super::log::{Level, Log};
use super::options::MountFlags;
use crate::{exit, sandbox};

/// Open files besides those of each thread (pipe, ring, a file of /proc).
const OPEN_FILES: u64 = 512;
const OPEN_FILES_OF_A_THREAD: u64 = 8;

/// Confines the server. `threads`: how many serve. Parts that the kernel lacks are left out, with a line in
/// the log.
///
/// # Errors
/// The kernel refuses; as a message.
pub(super) fn confine(
    args: &MountArgs,
    flags: &MountFlags,
    (threads, has_rings): (usize, bool),
    log: &Log,
) -> Result<(), String> {
    if let Some(why) = sandbox::reason_against() {
        log.record(Level::Info, &format!("not confined: {why}"));
        return Ok(());
    }
    let image = std::path::Path::new(&args.image).display().to_string();
    let mut on_refusal = OnRefusal::exit_with(exit::REFUSED_CALL, &image);
    if let Some((fd, prefix)) = log.emergency() {
        on_refusal = on_refusal.with_log(fd, prefix);
    }
    let queues = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let open_files = OPEN_FILES + OPEN_FILES_OF_A_THREAD * threads.max(queues) as u64;
    // Only these use rings: see `Io`.
    let rings = has_rings || flags.io == extant_device::Io::Rings || flags.image_direct;
    let entered = Sandbox::server(on_refusal)
        .with_rings(rings)
        .keep_capabilities(CAP_SYS_NICE)
        .open_files_max(open_files)
        .allow("/proc", Access::ReadFiles)
        .allow("/sys/devices/system/cpu", Access::ReadFiles)
        .allow("/sys/fs/cgroup", Access::ReadFiles)
        .enter()
        .map_err(|fault| format!("the server cannot be confined: {fault}; --no-sandbox goes without"))?;
    if !entered.missing.is_empty() {
        let missing = entered.missing.join(" and ");
        log.record(Level::Info, &format!("confined without {missing}, which this kernel does not offer"));
    }
    Ok(())
}
