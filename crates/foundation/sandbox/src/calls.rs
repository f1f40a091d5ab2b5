//! The system calls that a confined process may make.
//!
//! ```text
//!              first filter                              second filter
//!  server      listed: allowed; others: SIGSYS           listed: fail with an error; others: allowed
//!  command     listed: SIGSYS; others: allowed           the same
//! ```
//!
//! The kernel runs both filters and takes the stricter result. The second one is for calls after which the
//! caller goes on by other means, as a C library does without clone3.
//!
//! Calls without conditions on their arguments cost next to nothing: the kernel keeps one bit for each that
//! is always allowed, and runs no filter (since Linux 5.11).
//!
//! Source: seccomp(2), syscalls(2); the calls that the server makes, from strace(1) under the tests.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use crate::SandboxFault;

/// Which calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// See [`Sandbox::server`](crate::Sandbox::server). `rings`: io_uring, too.
    Server { rings: bool },
    /// See [`Sandbox::command`](crate::Sandbox::command).
    Command,
}

/// Calls that a server may make with any arguments.
const SERVER: &[c_long] = &[
    // Requests, replies and the image. Files are opened for reading only: see `writing_opens`.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_splice,
    libc::SYS_vmsplice,
    libc::SYS_tee,
    libc::SYS_pipe2,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    // The image's length follows a change of the file system's size.
    libc::SYS_ftruncate,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_openat,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
    libc::SYS_chdir,
    libc::SYS_getdents64,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    // What is received comes from a connected socket; none can be made.
    libc::SYS_recvfrom,
    libc::SYS_shutdown,
    // Memory. mmap and mprotect: see `conditions`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // Threads and signals. clone, prctl and tgkill: see `conditions`.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_getparam,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_setsid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    // Time and facts.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Refused with an error, unless rings are allowed: the device then transfers by calls.
    libc::SYS_io_uring_setup,
];

/// Older forms, which new machines do not have.
#[cfg(target_arch = "x86_64")]
const SERVER_OLD: &[c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_dup2,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const SERVER_OLD: &[c_long] = &[];

/// Calls of rings that exist.
const RINGS: &[c_long] = &[libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// Calls that no command makes after its files are open.
const FORBIDDEN: &[c_long] = &[
    // Programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_tkill,
    // The network, and other programs.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_by_handle_at,
    // The kernel and the machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_personality,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // io_uring_setup fails with an error.
];

#[cfg(target_arch = "x86_64")]
const FORBIDDEN_OLD: &[c_long] =
    &[libc::SYS_fork, libc::SYS_vfork, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_OLD: &[c_long] = &[];

/// Names for anonymous memory, `PR_SET_VMA`: allocators give them.
const PR_SET_VMA: u64 = 0x5356_4D41;
/// The only change of a block device that the server makes, `BLKDISCARD`, and the question of C libraries
/// whether a file is a terminal, `TCGETS`.
const IOCTLS: [u64; 2] = [0x1277, 0x5401];
/// `TIOCSTI` and `TIOCLINUX` put input into a terminal.
const TERMINAL_INPUT: [u64; 2] = [0x5412, 0x541C];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Conditions that must all hold.
struct When(Vec<(u8, SeccompCmpArgLen, SeccompCmpOp, u64)>);

impl When {
    fn is(argument: u8, value: u64) -> Self {
        Self(vec![(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)])
    }

    fn is_not(argument: u8, value: u64) -> Self {
        Self(vec![(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value)])
    }

    /// A null pointer.
    fn is_null(argument: u8) -> Self {
        Self(vec![(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)])
    }

    /// The bits of `mask` have this value.
    fn masked(argument: u8, mask: u64, value: u64) -> Self {
        Self(vec![(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(mask), value)])
    }

    fn and(mut self, other: Self) -> Self {
        self.0.extend(other.0);
        self
    }

    fn rule(self) -> Result<SeccompRule, seccompiler::BackendError> {
        let conditions = self.0.into_iter();
        SeccompRule::new(
            conditions
                .map(|(argument, len, op, value)| SeccompCondition::new(argument, len, op, value))
                .collect::<Result<_, _>>()?,
        )
    }
}

fn this_process() -> u64 {
    std::process::id().into()
}

/// Calls that a server may make under conditions, any of which suffices.
fn conditions() -> Vec<(c_long, Vec<When>)> {
    let thread = libc::CLONE_THREAD as u64;
    let exec = libc::PROT_EXEC as u64;
    let policy = |policy: i32| When::is(1, policy as u64);
    vec![
        (libc::SYS_clone, vec![When::masked(0, thread, thread)]),
        (libc::SYS_mmap, vec![When::masked(2, exec, 0)]),
        (libc::SYS_mprotect, vec![When::masked(2, exec, 0)]),
        (libc::SYS_prctl, vec![When::is(0, libc::PR_SET_NAME as u64), When::is(0, PR_SET_VMA)]),
        (libc::SYS_sched_setscheduler, vec![policy(libc::SCHED_OTHER), policy(libc::SCHED_IDLE)]),
        (libc::SYS_tgkill, vec![When::is(0, this_process())]),
        // A connected socket: the log.
        (libc::SYS_sendto, vec![When::is_null(4)]),
        (libc::SYS_ioctl, IOCTLS.iter().map(|request| When::is(1, *request)).collect()),
        // What it is now: C libraries ask for the size of the stack, allocators for memory that is locked.
        (libc::SYS_prlimit64, vec![When::is(0, 0).and(When::is_null(2))]),
    ]
}

/// Calls that a command must not make under conditions, any of which suffices.
fn forbidden_conditions() -> Vec<(c_long, Vec<When>)> {
    vec![
        (libc::SYS_clone, vec![When::masked(0, libc::CLONE_THREAD as u64, 0)]),
        (libc::SYS_kill, vec![When::is_not(0, this_process())]),
        (libc::SYS_tgkill, vec![When::is_not(0, this_process())]),
        (libc::SYS_ioctl, TERMINAL_INPUT.iter().map(|request| When::is(1, *request)).collect()),
    ]
}

/// The programs for the kernel; `None` on machines for which the library cannot make them.
pub(crate) fn filters(profile: Profile) -> Result<Option<Vec<BpfProgram>>, SandboxFault> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(None) };
    let made = made(profile, arch);
    made.map(Some).map_err(|why| SandboxFault::Rules { step: "seccomp", reason: why.to_string() })
}

fn made(profile: Profile, arch: TargetArch) -> Result<Vec<BpfProgram>, seccompiler::BackendError> {
    let with_errors = |errno: i32, rules: Rules| {
        SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno as u32), arch)
    };
    // C libraries then use clone, whose flags can be seen.
    let mut filters = vec![with_errors(libc::ENOSYS, any(&[libc::SYS_clone3]))?];
    match profile {
        Profile::Server { rings } => {
            let mut allowed = any(SERVER);
            allowed.extend(any(SERVER_OLD));
            if rings {
                allowed.extend(any(RINGS));
            } else {
                filters.push(with_errors(libc::EPERM, any(&[libc::SYS_io_uring_setup]))?);
            }
            allowed.extend(when(conditions())?);
            filters.push(with_errors(libc::EACCES, writing_opens()?)?);
            filters.push(SeccompFilter::new(allowed, SeccompAction::Trap, SeccompAction::Allow, arch)?);
        }
        Profile::Command => {
            let mut forbidden = any(FORBIDDEN);
            forbidden.extend(any(FORBIDDEN_OLD));
            forbidden.extend(when(forbidden_conditions())?);
            filters.push(with_errors(libc::EPERM, any(&[libc::SYS_io_uring_setup]))?);
            filters.push(SeccompFilter::new(forbidden, SeccompAction::Allow, SeccompAction::Trap, arch)?);
        }
    }
    filters.into_iter().map(TryInto::try_into).collect()
}

/// Opens other than for reading, which landlock refuses with the same error.
fn writing_opens() -> Result<Rules, seccompiler::BackendError> {
    let writing = |flags: u8| {
        [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC]
            .into_iter()
            .map(|flag| When::masked(flags, flag as u64, flag as u64))
            .collect()
    };
    when(vec![
        (libc::SYS_openat, writing(2)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, writing(1)),
    ])
}

fn any(calls: &[c_long]) -> Rules {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

fn when(calls: Vec<(c_long, Vec<When>)>) -> Result<Rules, seccompiler::BackendError> {
    let rules = |whens: Vec<When>| whens.into_iter().map(When::rule).collect::<Result<_, _>>();
    calls.into_iter().map(|(call, whens)| Ok((call, rules(whens)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_each_call_once_and_the_programs_are_short() {
        for list in [SERVER, SERVER_OLD, RINGS, FORBIDDEN, FORBIDDEN_OLD] {
            assert_eq!(any(list).len(), list.len());
        }
        let free: Vec<_> = SERVER.iter().chain(SERVER_OLD).collect();
        assert!(conditions().iter().all(|(call, _)| !free.contains(&call)));
        for profile in [Profile::Server { rings: false }, Profile::Server { rings: true }, Profile::Command] {
            let filters = filters(profile).unwrap().unwrap();
            assert!(filters.iter().all(|filter| (1..800).contains(&filter.len())), "{profile:?}");
        }
    }
}
