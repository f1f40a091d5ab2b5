//! Builds of images from directories, archives and container images.

use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use facade::build::{
    BuildOptions as How, BuildReport, BuildTarget, Meter, Observer, Owner, SizeChoice, Source, TarInput,
    build_to,
};

use crate::border::{Array, Context, ErrorOut, Growing, Options, Out, Text, call};
use crate::error::{Failure, terminated};
use crate::mkfs::{Uuid, format};

/// For extant_source.kind: a directory.
pub const EXTANT_SOURCE_DIRECTORY: u32 = 0;
/// For extant_source.kind: a tar archive, also compressed with gzip, zstd or xz.
pub const EXTANT_SOURCE_TAR: u32 = 1;
/// For extant_source.kind: a container image in the directory of an OCI layout.
pub const EXTANT_SOURCE_OCI: u32 = 2;

/// A source of a build.
#[repr(C)]
pub struct extant_source {
    /// EXTANT_SOURCE_DIRECTORY, EXTANT_SOURCE_TAR or EXTANT_SOURCE_OCI.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Its path on this machine.
    pub path: Text,
    /// Tag or digest of a container image; NULL if the layout has only one.
    pub reference: Text,
}

/// For extant_build_options.flags: replace an existing file.
pub const EXTANT_BUILD_REPLACE: u32 = 1;
/// For extant_build_options.flags: do not wait until the image is durable.
pub const EXTANT_BUILD_NO_SYNC: u32 = 2;
/// For extant_build_options.flags: `time` is the time of the file system, and later times in the tree become
/// this time. Otherwise it is the time of the newest file.
pub const EXTANT_BUILD_TIME: u32 = 4;
/// For extant_build_options.flags: root owns all files.
pub const EXTANT_BUILD_ROOT_OWNS: u32 = 8;

/// The state of a build. Valid during the callback.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_progress {
    /// "reading", "planning" or "writing".
    pub step: *const c_char,
    /// Entries of sources that were read so far.
    pub entries: u64,
    /// Bytes of contents that were written so far.
    pub bytes: u64,
    /// Bytes of contents to write; 0 before writing.
    pub bytes_total: u64,
    /// Files that were written so far.
    pub files: u64,
    /// Files to write; 0 before writing.
    pub files_total: u64,
}

/// Options of a build. The same sources and options make the same bytes.
#[repr(C)]
pub struct extant_build_options {
    /// sizeof(extant_build_options).
    pub size: usize,
    /// Bytes of the image; 0 for the smallest that fits, with the headroom below.
    pub image_bytes: u64,
    /// Headroom in percent of blocks and inodes.
    pub headroom_percent: f64,
    /// Additional headroom in bytes.
    pub headroom_bytes: u64,
    /// EXTANT_BUILD_REPLACE and others, combined by OR.
    pub flags: u32,
    /// Number of threads; 0 for one per core.
    pub threads: u32,
    /// Seconds since 1970, with EXTANT_BUILD_TIME.
    pub time: u64,
    /// Bytes in a block: a power of two from 1024 to 65536; 0 for 4096.
    pub block_size: u32,
    /// Zero.
    pub reserved: u32,
    /// At most 16 bytes, or NULL.
    pub label: Text,
    /// As for mke2fs -O, or NULL.
    pub features: Text,
    /// 16 bytes; NULL to derive it from the tree.
    pub uuid: Uuid,
    /// Passed to the functions below.
    pub user: Context,
    /// Called with the state of the build, by several threads but one at a time. Any result but 0 ends the
    /// build with the error EXTANT_CODE_CANCELLED. May be NULL.
    pub progress: Option<extern "C" fn(user: Context, progress: *const extant_progress) -> c_int>,
    /// Called at the end with each finding that the user should see. May be NULL.
    pub warning: Option<extern "C" fn(user: Context, text: *const c_char)>,
}

// SAFETY: `repr(C)`, the size first, and only numbers, pointers and nullable functions.
unsafe impl Growing for extant_build_options {}

/// An image that was built.
#[repr(C)]
#[derive(Default)]
pub struct extant_build_report {
    /// Length of the image in bytes.
    pub image_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// Regular files; one with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub others: u64,
    /// Bytes of all contents, including holes.
    pub content_bytes: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// The UUID.
    pub uuid: [u8; 16],
    /// Zero.
    pub reserved: [u64; 4],
}

impl From<&BuildReport> for extant_build_report {
    fn from(report: &BuildReport) -> Self {
        Self {
            image_bytes: report.image_bytes,
            written_bytes: report.written_bytes,
            files: report.files,
            directories: report.directories,
            symlinks: report.symlinks,
            others: report.others,
            content_bytes: report.content_bytes,
            blocks_free: report.superblock.free_blocks_count,
            uuid: report.superblock.uuid,
            reserved: [0; 4],
        }
    }
}

pub type BuildOptions = Options<extant_build_options>;
pub type BuildReportOut = Out<extant_build_report>;
pub type Sources = Array<extant_source>;

/// Passes the progress of a build on.
struct Watcher<'a> {
    progress: Option<extern "C" fn(Context, *const extant_progress) -> c_int>,
    user: Context,
    counts: Mutex<Counts>,
    cancel: &'a AtomicBool,
}

#[derive(Default)]
struct Counts {
    step: &'static str,
    entries: u64,
    bytes: (u64, u64),
    files: (u64, u64),
}

impl Watcher<'_> {
    fn update(&self, change: impl FnOnce(&mut Counts)) {
        let Some(progress) = self.progress else { return };
        // Locked during the callback, so that threads call it one at a time.
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut counts);
        if self.cancel.load(Ordering::Relaxed) {
            return;
        }
        let step = match counts.step {
            "planning" => c"planning",
            "writing" => c"writing",
            _ => c"reading",
        };
        let state = extant_progress {
            step: step.as_ptr(),
            entries: counts.entries,
            bytes: counts.bytes.0,
            bytes_total: counts.bytes.1,
            files: counts.files.0,
            files_total: counts.files.1,
        };
        if progress(self.user, &state) != 0 {
            self.cancel.store(true, Ordering::Relaxed);
        }
    }
}

impl Meter for Watcher<'_> {
    fn wrote(&self, bytes: u64, files: u64) {
        self.update(|counts| {
            counts.bytes.0 += bytes;
            counts.files.0 += files;
        });
    }
}

impl Observer for Watcher<'_> {
    fn step(&self, name: &'static str) {
        self.update(|counts| counts.step = name);
    }

    fn read(&self, entries: u64) {
        self.update(|counts| counts.entries += entries);
    }

    fn writing(&self, total_bytes: u64, total_files: u64) {
        self.update(|counts| {
            counts.step = "writing";
            (counts.bytes.1, counts.files.1) = (total_bytes, total_files);
        });
    }
}

fn how(options: &extant_build_options) -> Result<How, Failure> {
    let known = EXTANT_BUILD_REPLACE | EXTANT_BUILD_NO_SYNC | EXTANT_BUILD_TIME | EXTANT_BUILD_ROOT_OWNS;
    if options.flags & !known != 0 {
        return Err(Failure::argument(format!("unknown flags {:#x}", options.flags & !known)));
    }
    let has = |flag| options.flags & flag != 0;
    let percent = options.headroom_percent;
    if !(0.0..=1e6).contains(&percent) {
        return Err(Failure::argument(format!("a headroom of {percent} percent")));
    }
    let size = match options.image_bytes {
        0 => SizeChoice::Smallest { headroom_percent: percent, more_bytes: options.headroom_bytes },
        bytes => SizeChoice::Bytes(bytes),
    };
    let time = has(EXTANT_BUILD_TIME).then_some(options.time);
    let threads = match options.threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads as usize,
    };
    Ok(How {
        format: format(options.block_size, &options.label, &options.features, &options.uuid)?,
        size,
        time,
        clamp_mtime: time,
        owner: has(EXTANT_BUILD_ROOT_OWNS).then_some(Owner { uid: 0, gid: 0 }),
        threads,
        replace: has(EXTANT_BUILD_REPLACE),
        sync: !has(EXTANT_BUILD_NO_SYNC),
        ..How::default()
    })
}

fn source(from: &extant_source) -> Result<Source, Failure> {
    let path = PathBuf::from(OsStr::from_bytes(from.path.bytes("the path of a source")?));
    match from.kind {
        EXTANT_SOURCE_DIRECTORY => Ok(Source::Dir(path)),
        EXTANT_SOURCE_TAR => Ok(Source::Tar(TarInput::Path(path))),
        EXTANT_SOURCE_OCI => {
            Ok(Source::Oci { layout: path, reference: from.reference.utf8("reference")?.map(str::to_owned) })
        }
        other => Err(Failure::argument(format!("a source of the unknown kind {other}"))),
    }
}

/// Builds an image from `count` sources; later sources override earlier ones. The image appears under its
/// name when it is complete: after an error there is none, and an existing one is unchanged. `options` and
/// `report` may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn extant_build(
    image: Text,
    sources: Sources,
    count: usize,
    options: BuildOptions,
    report: BuildReportOut,
    error: ErrorOut,
) -> c_int {
    call(&error, || {
        let options = options.get_or_zeros("options")?;
        // SAFETY: `sources` and `count` belong together.
        let sources = unsafe { sources.slice(count, "sources") }?;
        let sources = sources.iter().map(source).collect::<Result<Vec<_>, _>>()?;
        let cancel = AtomicBool::new(false);
        let watcher = Watcher {
            progress: options.progress,
            user: options.user,
            counts: Mutex::default(),
            cancel: &cancel,
        };
        let target = BuildTarget::File(image.path()?);
        let built = build_to(&how(&options)?, sources, target, &watcher, &cancel)?;
        if let Some(warning) = options.warning {
            for text in &built.warnings {
                warning(options.user, terminated(text.clone().into_bytes()).as_ptr());
            }
        }
        report.set((&built).into());
        Ok(())
    })
}
