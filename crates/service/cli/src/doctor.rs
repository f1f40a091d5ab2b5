//! `extant doctor`: what a mount needs of the system, what of it works here, and how to get the rest.
//!
//! Owns: the probes and their remedies. Does **not** own: mounting (see [`crate::mount`]).
//!
//! A finding comes from trying the thing where that has no side effect: /dev/fuse is opened, a ring is set
//! up, a child process mounts in a namespace of its own. Only the set-uid program is not run; its mode and
//! what would void the mode are read.

use std::fmt::Write;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use extant_fuse::mounting::helper;
use landlock::{AccessFs, LandlockStatus, Ruleset, RulesetAttr};
use rustix::fs::{Access, StatVfsMountFlags};
use rustix::process::{Resource, geteuid};
use rustix::thread::CapabilitySet;

use crate::mount::user_namespace;
use crate::schema::tagged;
use crate::{exit, voice};

/// Size of the pipes through which large reads are spliced.
const PIPE_BYTES: usize = 1 << 20;
/// Open files of a mount: two per server thread, the image, the log, some of the libraries'.
const FILES_MIN: u64 = 64;

const DOCTOR_HELP: &str = "\
Each line has a state, an item, the finding, and after a semicolon what to do. States: ok; off: it is
there, but not switched on or not permitted; missing. A mount needs fuse_device, and one of mount,
fusermount3 and user_namespaces; the other items make it faster, safer or more widely usable. Neither
libfuse nor e2fsprogs is needed.

Exit codes: 0 images can be mounted here; 1 they cannot; 2 usage.";

/// Show what a mount needs of the system, what of it works here, and how to get the rest.
#[derive(Debug, clap::Args)]
#[command(after_help = DOCTOR_HELP)]
pub(crate) struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Called by this command itself: mount in a user namespace, and print the result.
    #[arg(long, hide = true)]
    probe_namespace: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Off,
    Missing,
}

#[derive(Debug, serde::Serialize)]
struct Item {
    name: &'static str,
    state: State,
    finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// The way in which a mount is made here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    /// By mount(2).
    Direct,
    Fusermount3,
    /// With `--namespace` only.
    Namespace,
}

#[derive(Debug, serde::Serialize)]
struct Report {
    /// `None`: images cannot be mounted.
    mounts_by: Option<Way>,
    items: Vec<Item>,
}

fn ok(name: &'static str, finding: impl Into<String>) -> Item {
    Item { name, state: State::Ok, finding: finding.into(), remedy: None }
}

fn off(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Item {
    Item { name, state: State::Off, finding: finding.into(), remedy: Some(remedy.into()) }
}

fn missing(name: &'static str, finding: impl Into<String>, remedy: impl Into<String>) -> Item {
    Item { state: State::Missing, ..off(name, finding, remedy) }
}

/// Runs `extant doctor`.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    if args.probe_namespace {
        let text = mounted_in_namespace().map_or_else(|why| why, |()| String::new());
        return voice::print(&text, 0);
    }
    let report = report();
    let text = match args.json {
        true => {
            format!("{}\n", serde_json::to_string_pretty(&tagged("doctor:1", &report)).unwrap_or_default())
        }
        false => report.items.iter().fold(String::new(), |mut text, item| {
            let state = match item.state {
                State::Ok => "ok",
                State::Off => "off",
                State::Missing => "missing",
            };
            let remedy = item.remedy.as_ref().map_or(String::new(), |remedy| format!("; {remedy}"));
            let _ = writeln!(text, "{state:<8} {:<16} {}{remedy}", item.name, item.finding);
            text
        }),
    };
    let text = voice::without_numbers(&text);
    voice::print(&text, if report.mounts_by.is_some() { 0 } else { exit::TARGET })
}

fn report() -> Report {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let (device, direct, helper, namespace) = (fuse_device(), direct(), fusermount3(), namespaces());
    let works = |item: &Item| item.state == State::Ok;
    let ways = [(&direct, Way::Direct), (&helper, Way::Fusermount3), (&namespace, Way::Namespace)];
    let mounts_by = ways.into_iter().find(|(item, _)| works(&device) && works(item)).map(|(_, way)| way);
    let items = vec![
        device,
        direct,
        helper,
        namespace,
        allow_other(),
        fuse_rings(),
        rings(),
        placement(),
        pipes(),
        open_files(),
        landlock(),
        seccomp(&status),
    ];
    Report { mounts_by, items }
}

/// A setting below /proc/sys or /sys; `None` if the kernel has none of this name.
fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

fn open_fuse() -> io::Result<fs::File> {
    fs::File::options().read(true).write(true).open("/dev/fuse")
}

fn fuse_device() -> Item {
    let name = "fuse_device";
    match open_fuse() {
        Ok(_) => ok(name, "/dev/fuse can be opened"),
        // ENXIO and ENODEV: the node exists, the driver does not.
        Err(error) if error.kind() == ErrorKind::NotFound || matches!(error.raw_os_error(), Some(6 | 19)) => {
            let remedy = "as root: modprobe fuse; a container is started with `--device /dev/fuse`";
            missing(name, "there is no /dev/fuse", remedy)
        }
        Err(error) => {
            let mode = fs::metadata("/dev/fuse").map_or(0, |metadata| metadata.mode() & 0o777);
            let finding = format!("/dev/fuse, mode {mode:03o}, cannot be opened: {error}");
            let remedy = "as root: chmod 666 /dev/fuse; a container is started with `--device /dev/fuse`";
            off(name, finding, remedy)
        }
    }
}

fn direct() -> Item {
    let name = "mount";
    match (geteuid().is_root(), has_capability(CapabilitySet::SYS_ADMIN)) {
        (true, true) => ok(name, "root mounts by mount(2), with no help"),
        (true, false) => {
            let finding = "root lacks CAP_SYS_ADMIN, and cannot call mount(2)";
            off(name, finding, "use --namespace, or start the container with `--cap-add SYS_ADMIN`")
        }
        (false, _) => off(name, "only root may call mount(2)", "use fusermount3 or --namespace"),
    }
}

/// fusermount3 mounts for ordinary users, which works only if it runs as root.
fn fusermount3() -> Item {
    let name = "fusermount3";
    let Some(path) = helper() else {
        return missing(name, "it is not installed", "install the package fuse3");
    };
    let shown = path.display();
    let is_set_id = fs::metadata(&path).is_ok_and(|file| file.uid() == 0 && file.mode() & 0o4000 != 0);
    let has_capabilities = rustix::fs::getxattr(&path, "security.capability", &mut [0u8; 64][..]).is_ok();
    if rustix::fs::access(&path, Access::EXEC_OK).is_err() {
        return off(name, format!("this user may not run {shown}"), format!("as root: chmod a+x {shown}"));
    }
    if geteuid().is_root() {
        return ok(name, format!("{shown}; root does not need it"));
    }
    if !is_set_id && !has_capabilities {
        let remedy = format!("as root: chown root {shown} && chmod u+s {shown}");
        return off(name, format!("{shown} is not set-uid root"), remedy);
    }
    if rustix::thread::no_new_privs().unwrap_or(false) {
        let remedy = "start this shell or service without it (systemd: NoNewPrivileges=no)";
        return off(name, "no_new_privs is set, so its set-uid bit has no effect", remedy);
    }
    if rustix::fs::statvfs(&path).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        let finding = format!("{shown} is on a file system mounted with nosuid");
        return off(name, finding, "use --namespace, or remount that with suid");
    }
    ok(name, format!("{shown} is set-uid root"))
}

/// Mounts in new namespaces, in a child process: the namespaces and the mount end with it.
fn namespaces() -> Item {
    let name = "user_namespaces";
    let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(program);
    command.args(["doctor", "--probe-namespace"]).stdin(Stdio::null()).stderr(Stdio::null());
    let said = match command.output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(output) => format!("the probe ended with {}", output.status),
        Err(error) => format!("the probe cannot be started: {error}"),
    };
    match said.split_once("; ") {
        _ if said.is_empty() => ok(name, "FUSE can be mounted in one, as --namespace does"),
        Some((finding, remedy)) => off(name, finding, remedy),
        None => off(name, said, "mount as root, or with fusermount3"),
    }
}

fn mounted_in_namespace() -> Result<(), String> {
    use std::os::fd::AsRawFd;

    user_namespace::enter_users()?;
    let device = open_fuse().map_err(|error| format!("/dev/fuse cannot be opened: {error}"))?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap_or_default();
    let flags = rustix::mount::MountFlags::NODEV | rustix::mount::MountFlags::NOSUID;
    // In this namespace only: what it covers stays visible elsewhere.
    rustix::mount::mount("extant-doctor", std::env::temp_dir(), "fuse", flags, data.as_c_str())
        .map_err(|error| format!("FUSE cannot be mounted in a user namespace: {error}"))
}

fn allow_other() -> Item {
    let name = "allow_other";
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    if conf.lines().any(|line| line.trim() == "user_allow_other") {
        return ok(name, "/etc/fuse.conf has user_allow_other: every user may give -o allow_other");
    }
    if geteuid().is_root() {
        return ok(name, "root may give -o allow_other; other users not (/etc/fuse.conf)");
    }
    let remedy = "as root: echo user_allow_other >>/etc/fuse.conf";
    off(name, "/etc/fuse.conf lacks user_allow_other: only root may give -o allow_other", remedy)
}

fn fuse_rings() -> Item {
    let name = "fuse_io_uring";
    let path = "/sys/module/fuse/parameters/enable_uring";
    match setting(path).as_deref() {
        Some("Y" | "1") => ok(name, "read-write mounts use it"),
        Some(_) => {
            let remedy = format!(
                "as root: echo Y >{path}; for every boot, `options fuse enable_uring=Y` in /etc/modprobe.d"
            );
            off(name, "the fuse module's enable_uring is N, so several clients of a mount are slower", remedy)
        }
        None => {
            let release = rustix::system::uname().release().to_string_lossy().into_owned();
            let finding = format!("the fuse module of kernel {release} has no parameter enable_uring");
            missing(name, finding, "Linux 6.14 or later with CONFIG_FUSE_IO_URING has it")
        }
    }
}

fn rings() -> Item {
    let name = "io_uring";
    let error = match io_uring::IoUring::new(2) {
        Ok(_) => return ok(name, "-o io=rings works"),
        Err(error) => error,
    };
    let finding = format!("io_uring_setup fails: {error}, so -o io=calls is used");
    match (setting("/proc/sys/kernel/io_uring_disabled").as_deref(), error.kind()) {
        (_, ErrorKind::Unsupported) => {
            missing(name, finding, "Linux 5.6 or later with CONFIG_IO_URING has it")
        }
        (Some("1"), _) => {
            let remedy = "as root: sysctl -w kernel.io_uring_disabled=0, or add the user to the group of \
                          kernel.io_uring_group";
            off(name, finding, remedy)
        }
        (Some("2"), _) => off(name, finding, "as root: sysctl -w kernel.io_uring_disabled=0"),
        // Kernels before 5.12 count the rings.
        (_, ErrorKind::OutOfMemory) => off(name, finding, "ulimit -l unlimited"),
        _ => {
            let remedy = "a seccomp filter forbids it; Docker: `--security-opt seccomp=unconfined`";
            off(name, finding, remedy)
        }
    }
}

/// See `placement` in the crate `fuse-lowlevel`.
fn placement() -> Item {
    let name = "cap_sys_nice";
    if extant_fuse_lowlevel::can_follow_clients() {
        return ok(name, "a single client is served on its own CPU, which is faster");
    }
    let remedy = "mount as root, with CAP_SYS_NICE, or with `ulimit -e 20` (systemd: LimitNICE=20)";
    let finding =
        "a server thread may not change its scheduling policy, so a mount with a single client is slower";
    off(name, finding, remedy)
}

fn pipes() -> Item {
    let name = "pipe_size";
    let set =
        rustix::pipe::pipe().and_then(|(_out, into)| rustix::pipe::fcntl_setpipe_size(&into, PIPE_BYTES));
    match set {
        Ok(_) => ok(name, "reads of 64 KiB and more are spliced, without a copy"),
        Err(error) => {
            let finding =
                format!("a pipe of {PIPE_BYTES} bytes is refused: {error}, so large reads are copied");
            let remedy =
                format!("as root: sysctl -w fs.pipe-max-size={PIPE_BYTES} fs.pipe-user-pages-soft=16384");
            off(name, finding, remedy)
        }
    }
}

fn open_files() -> Item {
    let name = "open_files";
    match rustix::process::getrlimit(Resource::Nofile).current {
        Some(limit) if limit < FILES_MIN => {
            let finding = format!("the limit is {limit}, a mount needs up to {FILES_MIN}");
            off(name, finding, format!("ulimit -n {}", FILES_MIN * 4))
        }
        Some(limit) => ok(name, format!("the limit is {limit}, a mount needs up to {FILES_MIN}")),
        None => ok(name, "there is no limit"),
    }
}

/// Restricts a thread that ends right away: the crate reports the kernel's ABI only then.
fn landlock() -> Item {
    let name = "landlock";
    let restrict = || Ruleset::default().handle_access(AccessFs::Execute)?.create()?.restrict_self();
    let restricted = std::thread::scope(|scope| scope.spawn(restrict).join());
    match restricted.map(|result| result.map(|status| status.landlock)) {
        Ok(Ok(LandlockStatus::Available { effective_abi, kernel_abi })) => {
            ok(name, format!("ABI {}", kernel_abi.unwrap_or(effective_abi as i32)))
        }
        Ok(Ok(LandlockStatus::NotEnabled)) => {
            off(name, "it is not enabled", "add landlock to the kernel's boot parameter lsm=")
        }
        Ok(Ok(LandlockStatus::NotImplemented)) => missing(
            name,
            "the kernel has none, or a seccomp filter hides it",
            "Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK has it",
        ),
        Ok(Err(error)) => off(name, format!("a thread cannot be restricted: {error}"), "see landlock(7)"),
        Err(_) => off(name, "the probe failed", "see landlock(7)"),
    }
}

fn seccomp(status: &str) -> Item {
    let name = "seccomp";
    let field =
        |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim).map(str::to_owned);
    match (field("Seccomp:").as_deref(), Path::new("/proc/sys/kernel/seccomp/actions_avail").exists()) {
        (Some("0"), true) => ok(name, "a process can filter its system calls"),
        (Some(_), true) => {
            let count = field("Seccomp_filters:").unwrap_or_else(|| "some".to_owned());
            ok(name, format!("{count} filter(s) hold for this process already, as in a container"))
        }
        _ => missing(name, "the kernel has no filters", "CONFIG_SECCOMP_FILTER has them"),
    }
}
