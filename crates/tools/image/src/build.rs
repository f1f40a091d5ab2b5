//! Builds an image from sources: reads everything, plans everything, writes once, and only then gives the
//! image its name.
//!
//! Owns the order of the steps and the reports to the user. Each step consumes the result of the one before:
//!
//! ```text
//! sources --> tree --> labels, owners --> digest (UUID, hash seed) --> order --> plan --> write --> publish
//! ```
//!
//! Invariants
//! 1. INV-B1: the same sources and options make the same bytes, on any machine, at any time and with any
//!    number of threads. No random number and no clock value goes into the image.
//! 2. No file appears under the target's name before it is complete.

mod gather;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use extant_base::BlockSize;
use extant_device::{Device, FileDevice, NewFile};
use extant_ondisk::acl::{Acl, AclTag};
use extant_ondisk::filetype::FileType;
use extant_ondisk::time::Timestamp;
use extant_ondisk::{Features, Superblock};

use crate::dirpack::hash_of;
use crate::exclude::Excludes;
use crate::idmap::{IdMap, Owner};
use crate::labels::FileContexts;
use crate::options::FormatOptions;
use crate::plan::{Input, Plan, Style};
use crate::rules::{self, Rule, RuleFault};
use crate::sizing::Sized;
use crate::solve::{SizeChoice, SolveFault, group_ratio, solve};
use crate::source::dir::{XattrChoice, identity_of};
use crate::source::entry::Xattr;
use crate::source::fault::{ShownPath, SourceFault};
use crate::source::oci::Platform;
use crate::source::pretend::Unseen;
use crate::source::tar::{TarInput, Unpacking};
use crate::tree::{InsertFault, NONE, Tree};
use crate::write::{Meter, Problem, WriteFault, WriteOptions, write};

pub use gather::{Gathered, read_sources};
use gather::{Watch, gather};

/// One source of a tree.
#[derive(Debug)]
pub enum Source {
    /// A directory.
    Dir(PathBuf),
    /// A tar archive.
    Tar(TarInput),
    /// An image in an OCI layout.
    Oci {
        /// The directory of the layout.
        layout: PathBuf,
        /// Tag or digest; `None` if the layout has only one image.
        reference: Option<String>,
    },
}

/// Options of a build.
#[derive(Debug)]
pub struct BuildOptions {
    /// Options of the file system. `uuid` and `hash_seed` are derived from the tree if they are `None`.
    pub format: FormatOptions,
    /// Size of the image.
    pub size: SizeChoice,
    /// Time stamp of the file system, seconds since 1970. If `None`, that of the newest file in the tree.
    pub time: Option<u64>,
    /// Later times in the tree are set to this one (`SOURCE_DATE_EPOCH` with `--clamp-mtime`).
    pub clamp_mtime: Option<u64>,
    /// Whether to keep atime, ctime and crtime of the sources. Otherwise they equal mtime.
    pub keep_times: bool,
    /// The owner of all files, instead of those that the maps give. ACLs are mapped.
    pub owner: Option<Owner>,
    /// The map of user ids.
    pub uid_map: IdMap,
    /// The map of group ids.
    pub gid_map: IdMap,
    /// SELinux labels by path.
    pub file_contexts: Option<FileContexts>,
    /// Patterns of paths to leave out.
    pub excludes: Excludes,
    /// Files of the host that are no part of a source directory, such as the image itself.
    pub leave_out: Vec<PathBuf>,
    /// Rules that make and change files by path, applied after owners are mapped.
    pub rules: Vec<Rule>,
    /// Limit on the unpacked size of an archive or a layer.
    pub unpacking: Unpacking,
    /// Attributes to leave out.
    pub xattrs: XattrChoice,
    /// Whether to skip other file systems below a source directory.
    pub one_file_system: bool,
    /// Platform to choose from an OCI image.
    pub platform: Platform,
    /// Number of threads.
    pub threads: usize,
    /// Whether to pad or cut files that change while they are read, instead of failing.
    pub tolerate_changes: bool,
    /// Whether to replace an existing file.
    pub replace: bool,
    /// Whether to wait until everything is durable.
    pub sync: bool,
    /// Whether to plan without writing.
    pub dry_run: bool,
}

impl Default for BuildOptions {
    /// The smallest image, built with one thread, with everything from the sources and with owners unchanged.
    fn default() -> Self {
        Self {
            format: FormatOptions::default(),
            size: SizeChoice::default(),
            time: None,
            clamp_mtime: None,
            keep_times: false,
            owner: None,
            uid_map: IdMap::default(),
            gid_map: IdMap::default(),
            file_contexts: None,
            excludes: Excludes::default(),
            leave_out: Vec::new(),
            rules: Vec::new(),
            unpacking: Unpacking::default(),
            xattrs: XattrChoice::default(),
            one_file_system: false,
            platform: Platform::host(),
            threads: 1,
            tolerate_changes: false,
            replace: false,
            sync: true,
            dry_run: false,
        }
    }
}

/// The report of a build.
#[derive(Debug, Clone)]
pub struct BuildReport {
    /// Length of the image in bytes.
    pub image_bytes: u64,
    /// Bytes written to the image.
    pub written_bytes: u64,
    /// Superblock of the image.
    pub superblock: Superblock,
    /// Number of regular files; a file with hard links counts once.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of symbolic links.
    pub symlinks: u64,
    /// Number of devices, pipes and sockets.
    pub others: u64,
    /// Number of additional names of files.
    pub extra_links: u64,
    /// Size of all file contents in bytes, including holes.
    pub content_bytes: u64,
    /// Size of all data blocks of files in bytes.
    pub data_bytes: u64,
    /// Number of distinct sets of extended attributes.
    pub xattr_sets: u64,
    /// Findings that the user should see.
    pub warnings: Vec<String>,
}

/// Why a build failed.
#[derive(Debug, thiserror::Error)]
pub enum BuildFault {
    /// The target exists.
    #[error("{0} exists already")]
    TargetExists(String),
    /// The target cannot be created or written.
    #[error("cannot write {path}: {source}")]
    Target {
        /// The target.
        path: String,
        /// The system error.
        source: io::Error,
    },
    /// A source cannot be read.
    #[error(transparent)]
    Source(#[from] SourceFault),
    /// A preloaded library that fakes owners and devices has no effect on this program.
    #[error(transparent)]
    Unseen(#[from] Unseen),
    /// An entry of a source cannot be merged into the tree.
    #[error("{path}: {fault}")]
    Insert {
        /// Source and path.
        path: String,
        /// The reason.
        fault: InsertFault,
    },
    /// Files that could not be read, or that changed while they were read.
    #[error("{} of the source's files could not be read", .0.len())]
    Problems(Vec<Problem>),
    /// A rule cannot be applied.
    #[error(transparent)]
    Rule(#[from] RuleFault),
    /// An owner is not in the given map.
    #[error("{0}")]
    Ids(String),
    /// The options are invalid, the tree cannot be stored, or the size is too small.
    #[error(transparent)]
    Solve(#[from] SolveFault),
    /// Writing failed.
    #[error(transparent)]
    Write(WriteFault),
}

impl BuildFault {
    /// Whether the caller ended the work: `cancel` became true.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Solve(fault) => fault.is_interrupted(),
            Self::Write(fault) => fault.is_interrupted(),
            _ => false,
        }
    }
}

impl From<WriteFault> for BuildFault {
    fn from(fault: WriteFault) -> Self {
        match fault {
            WriteFault::Problems(problems) => Self::Problems(problems),
            other => Self::Write(other),
        }
    }
}

/// Reports the progress of a build.
pub trait Observer: Meter {
    /// A new step begins: "reading", "planning", "writing".
    fn step(&self, name: &'static str);
    /// `entries` more entries of sources were read. Threads may call it concurrently.
    fn read(&self, entries: u64);
    /// Writing begins. The arguments are the total bytes and files of contents.
    fn writing(&self, total_bytes: u64, total_files: u64);
}

/// Ignores the reports.
impl Observer for () {
    fn step(&self, _name: &'static str) {}
    fn read(&self, _entries: u64) {}
    fn writing(&self, _total_bytes: u64, _total_files: u64) {}
}

/// The destination of an image.
#[derive(Debug)]
pub enum BuildTarget<'t> {
    /// A file, which appears under its name when it is complete.
    File(&'t Path),
    /// An empty file that is already open.
    Open {
        /// Name for messages.
        name: &'t str,
        /// The file.
        file: File,
        /// Directory for temporary files with unpacked content.
        beside: &'t Path,
    },
    /// A device, or a part of one. Its old content is overwritten in place.
    Device {
        /// Name for messages.
        name: &'t str,
        /// The bytes of the image.
        device: &'t dyn Device,
    },
}

impl BuildTarget<'_> {
    fn shown(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Open { name, .. } | Self::Device { name, .. } => (*name).to_owned(),
        }
    }

    /// Directory for temporary files. The directory of an image has room for one.
    fn spool_dir(&self) -> PathBuf {
        match self {
            Self::File(path) => {
                path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
            }
            Self::Open { beside, .. } => (*beside).to_owned(),
            Self::Device { .. } => std::env::temp_dir(),
        }
    }
}

/// Builds an image at `target`.
///
/// # Errors
/// See [`BuildFault`]. A [`BuildTarget::File`] does not appear then.
pub fn build(
    options: &BuildOptions,
    sources: Vec<Source>,
    target: BuildTarget<'_>,
    observer: &(impl Observer + Sync),
    cancel: &AtomicBool,
) -> Result<BuildReport, BuildFault> {
    let shown = target.shown();
    let refused = |source| BuildFault::Target { path: shown.clone(), source };
    // Fail before the long work if the target cannot be created.
    let new = match &target {
        BuildTarget::File(path) if !options.dry_run => {
            if !options.replace && path.symlink_metadata().is_ok() {
                return Err(BuildFault::TargetExists(shown));
            }
            Some(NewFile::create(path).map_err(refused)?)
        }
        _ => None,
    };
    observer.step("reading");
    let mut skip = identities(&options.leave_out);
    if let BuildTarget::File(path) = &target {
        skip.extend(identity_of(path));
    }
    let watch = Watch { skip: &skip, cancel, read: &|entries| observer.read(entries) };
    let mut gathered = gather(options, sources, &target.spool_dir(), watch)?;
    if cancel.load(Ordering::Relaxed) {
        return Err(BuildFault::Write(WriteFault::Interrupted));
    }
    if !gathered.problems.is_empty() {
        gathered.problems.sort_by(|a, b| a.path.cmp(&b.path));
        return Err(BuildFault::Problems(gathered.problems));
    }
    observer.step("planning");
    let mut tree = gathered.tree;
    let Edited { time, newest, lost_found } = edit(&mut tree, options, true)?;
    tree.order_xattr_sets();
    let digest = tree.digest();
    let uuid = options.format.uuid.unwrap_or_else(|| as_uuid(derive(digest, b"uuid")));
    let hash_seed = options.format.hash_seed.unwrap_or_else(|| as_uuid(derive(digest, b"hash seed")));
    let block_size = options.format.block_size.unwrap_or(BlockSize::KIB4);
    let sealed = tree.order(directory_hash(&options.format, block_size, hash_seed)?);
    let ratio = options.format.group_inode_ratio.or(group_ratio(&options.format, options.size));
    let format = FormatOptions { group_inode_ratio: ratio, ..options.format.clone() };
    let input = Input {
        tree: &tree,
        sealed: &sealed,
        lost_found,
        options: &format,
        uuid,
        hash_seed,
        time,
        style: Style::Packed,
        fresh_device: match &target {
            BuildTarget::Device { device, .. } => device.is_fresh(),
            _ => true,
        },
    };
    let (plan, image_bytes) = solve(&input, block_size, options.size, cancel)?;
    if let BuildTarget::Device { device, .. } = &target
        && image_bytes > device.size_bytes()
    {
        let (given_bytes, needed_bytes) = (device.size_bytes(), image_bytes);
        return Err(SolveFault::TooSmall { given_bytes, needed_bytes }.into());
    }
    let mut report = survey(&plan, image_bytes);
    report.warnings = std::mem::take(&mut gathered.warnings);
    report.warnings.extend(newest.and_then(|node| warn_of_future(&tree, node, lost_found)));
    if plan.clamped_times > 0 {
        let (count, bits) = (plan.clamped_times, plan.geometry().inode_size);
        report
            .warnings
            .push(format!("{count} times do not fit an inode of {bits} bytes; the nearest were stored"));
    }
    if options.dry_run {
        return Ok(report);
    }
    let file = match (&new, &target) {
        (Some(new), _) => Some(new.file()),
        (None, BuildTarget::Open { file, .. }) => Some(file),
        (None, _) => None,
    };
    let made = match file {
        Some(file) => {
            file.set_len(image_bytes).map_err(refused)?;
            Some(FileDevice::fresh(file.try_clone().map_err(refused)?).map_err(refused)?)
        }
        None => None,
    };
    let device: &dyn Device = match (&made, &target) {
        (Some(made), _) => made,
        (None, BuildTarget::Device { device, .. }) => *device,
        (None, _) => return Ok(report),
    };
    observer.step("writing");
    observer.writing(report.data_bytes, report.files);
    let write_options = WriteOptions {
        threads: options.threads,
        tolerate_changes: options.tolerate_changes,
        cancel,
        sync: options.sync,
    };
    let written = write(&plan, device, &gathered.roots, write_options, observer)?;
    report.written_bytes = written.bytes;
    if written.changed_files > 0 {
        let text =
            format!("{} files changed while they were read; they were padded or cut", written.changed_files);
        report.warnings.push(text);
    }
    if let Some(new) = new {
        new.publish(options.replace, options.sync).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => BuildFault::TargetExists(shown.clone()),
            _ => refused(error),
        })?;
    }
    Ok(report)
}

/// Device and inode number of each of these files that exists.
fn identities(paths: &[PathBuf]) -> Vec<(u64, u64)> {
    paths.iter().filter_map(|path| identity_of(path)).collect()
}

/// What [`edit`] found.
struct Edited {
    /// The time stamp of the image.
    time: u64,
    /// The node with the newest mtime.
    newest: Option<u32>,
    /// The node of /lost+found; [`NONE`] if the tree has none.
    lost_found: u32,
}

/// Changes the tree of the sources as the options say: owners, rules by path, times, labels. Adds a missing
/// /lost+found if `adds_lost_found`. Counts the links.
fn edit(tree: &mut Tree, options: &BuildOptions, adds_lost_found: bool) -> Result<Edited, BuildFault> {
    tree.count_links();
    map_owners(tree, options)?;
    if let Some((uid, gid)) = options.format.root_owner {
        (tree.nodes[0].uid, tree.nodes[0].gid) = (uid, gid);
    }
    rules::apply(tree, &options.rules)?;
    tree.count_links();
    let newest = newest_file(tree);
    let time = options.time.unwrap_or_else(|| newest.map_or(0, |node| time_stamp(tree, node)));
    if let Some(limit) = options.clamp_mtime {
        clamp_times(tree, limit);
    }
    let lost_found = match adds_lost_found {
        true => crate::mkfs::ensure_lost_found(tree, time)
            .map_err(|fault| BuildFault::Insert { path: "/lost+found".to_owned(), fault })?,
        false => NONE,
    };
    if let Some(contexts) = &options.file_contexts {
        label(tree, contexts);
    }
    tree.count_links();
    Ok(Edited { time, newest, lost_found })
}

/// The hash that orders children: that of the file system if its directories are indexed, otherwise none.
fn directory_hash(
    format: &FormatOptions,
    block_size: BlockSize,
    hash_seed: [u8; 16],
) -> Result<Option<(extant_ondisk::hash::HashVersion, [u32; 4])>, BuildFault> {
    let sample: Sized = crate::sizing::size(format, block_size, 1 << 20, Some(1), crate::sizing::Tail::Keep)
        .map_err(SolveFault::from)?;
    let mut sb = sample.superblock;
    sb.hash_seed = hash_seed;
    let indexed = sb.features.has_compat(Features::DIR_INDEX);
    Ok(if indexed { hash_of(&sb).ok() } else { None })
}

/// The node with the newest mtime.
fn newest_file(tree: &Tree) -> Option<u32> {
    let live = (0..tree.nodes.len() as u32).filter(|&node| tree.nodes[node as usize].links > 0);
    live.max_by_key(|&node| tree.nodes[node as usize].mtime_seconds)
}

fn time_stamp(tree: &Tree, node: u32) -> u64 {
    tree.nodes[node as usize].mtime_seconds.clamp(0, Timestamp::MAX_SECONDS) as u64
}

/// A warning if files are dated in the future. It does not change the image: the same tree makes the same
/// bytes tomorrow.
fn warn_of_future(tree: &Tree, newest: u32, lost_found: u32) -> Option<String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs() as i64);
    let is_ahead = |index: &usize| {
        let node = &tree.nodes[*index];
        node.links > 0 && node.mtime_seconds > now && *index != lost_found as usize
    };
    let count = (0..tree.nodes.len()).filter(is_ahead).count();
    (count > 0).then(|| {
        let ahead = tree.nodes[newest as usize].mtime_seconds.saturating_sub(now);
        let path = tree.path(newest);
        format!("/{}: its time is {ahead} s ahead of this machine's clock; {count} files have times in the future", ShownPath(&path))
    })
}

fn clamp_times(tree: &mut Tree, limit: u64) {
    for node in &mut tree.nodes {
        if node.mtime_seconds >= limit as i64 {
            (node.mtime_seconds, node.mtime_nanos) = (limit as i64, 0);
        }
    }
    for times in &mut tree.times {
        for time in [&mut times.atime, &mut times.ctime, &mut times.crtime] {
            if time.seconds >= limit as i64 {
                (time.seconds, time.nanos) = (limit as i64, 0);
            }
        }
    }
}

/// Sets the image's owners of all files, in inodes and in ACLs.
fn map_owners(tree: &mut Tree, options: &BuildOptions) -> Result<(), BuildFault> {
    let (uids, gids) = (&options.uid_map, &options.gid_map);
    if let Some(owner) = &options.owner {
        for node in &mut tree.nodes {
            (node.uid, node.gid) = (owner.uid, owner.gid);
        }
    }
    if uids.is_empty() && gids.is_empty() {
        return Ok(());
    }
    let mut used_sets = vec![false; tree.xattr_sets.len()];
    for index in 0..tree.nodes.len() {
        let node = &tree.nodes[index];
        if node.links == 0 {
            continue; // replaced, or removed by a whiteout
        }
        used_sets[node.xattrs as usize] = true;
        if options.owner.is_some() {
            continue;
        }
        let mapped = uids
            .apply(node.uid)
            .map_err(|e| format!("user: {e}"))
            .and_then(|uid| Ok((uid, gids.apply(node.gid).map_err(|e| format!("group: {e}"))?)));
        match mapped {
            Ok((uid, gid)) => (tree.nodes[index].uid, tree.nodes[index].gid) = (uid, gid),
            Err(why) => {
                let path = tree.path(index as u32);
                return Err(BuildFault::Ids(format!("/{}: {why}", ShownPath(&path))));
            }
        }
    }
    for (set, _) in tree.xattr_sets.iter_mut().zip(used_sets).filter(|(_, used)| *used) {
        for xattr in set.iter_mut().filter(|xattr| xattr.name.starts_with(b"system.posix_acl_")) {
            let Ok(mut acl) = Acl::from_xattr(&xattr.value) else { continue };
            for entry in &mut acl.entries {
                match &mut entry.tag {
                    AclTag::User(id) => {
                        *id = uids.apply(*id).map_err(|e| BuildFault::Ids(format!("ACL: {e}")))?
                    }
                    AclTag::Group(id) => {
                        *id = gids.apply(*id).map_err(|e| BuildFault::Ids(format!("ACL: {e}")))?
                    }
                    _ => {}
                }
            }
            xattr.value = acl.to_xattr();
        }
    }
    Ok(())
}

/// Sets the label of every file that the contexts match. Other files keep their label.
fn label(tree: &mut Tree, contexts: &FileContexts) {
    let mut known: std::collections::HashMap<(u32, Vec<u8>), u32> = std::collections::HashMap::new();
    for index in 0..tree.nodes.len() as u32 {
        let node = &tree.nodes[index as usize];
        if node.links == 0 {
            continue;
        }
        let (old, file_type) = (node.xattrs, node.file_type());
        let mut path = vec![b'/'];
        path.extend_from_slice(&tree.path(index));
        let Some(context) = contexts.lookup(&path, file_type) else { continue };
        let mut value = context.to_vec();
        value.push(0);
        let set = match known.get(&(old, value.clone())) {
            Some(&set) => set,
            None => {
                let mut xattrs = tree.xattr_sets[old as usize].clone();
                xattrs.retain(|xattr| xattr.name != b"security.selinux");
                xattrs.push(Xattr { name: b"security.selinux".to_vec(), value: value.clone() });
                let set = tree.intern_xattrs(xattrs);
                known.insert((old, value), set);
                set
            }
        };
        tree.nodes[index as usize].xattrs = set;
    }
}

/// A value that depends only on a tree's digest and the purpose.
fn derive(digest: u128, purpose: &[u8]) -> [u8; 16] {
    let mut bytes = digest.to_le_bytes().to_vec();
    bytes.extend_from_slice(purpose);
    xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes()
}

/// Makes a UUID from arbitrary bytes by setting version and variant. It is version 4, which every tool
/// supports.
#[must_use]
pub fn as_uuid(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

fn survey(plan: &Plan<'_>, image_bytes: u64) -> BuildReport {
    let mut report = BuildReport {
        image_bytes,
        written_bytes: 0,
        superblock: plan.superblock.clone(),
        files: 0,
        directories: plan.sealed.directories.len() as u64,
        symlinks: 0,
        others: 0,
        extra_links: 0,
        content_bytes: 0,
        data_bytes: 0,
        xattr_sets: plan.xattrs.sets.iter().filter(|set| !set.is_empty()).count() as u64,
        warnings: Vec::new(),
    };
    let bs = plan.geometry().block_size.bytes();
    for &node_index in &plan.by_ino {
        let node = &plan.tree.nodes[node_index as usize];
        match node.file_type() {
            FileType::Directory => continue,
            FileType::Regular => {
                report.files += 1;
                report.content_bytes += node.size;
                report.data_bytes += match plan.simple_start(node_index) {
                    Some(_) => plan.dense_blocks(node_index) * bs,
                    None => plan.extents_of(node_index).iter().map(|e| u64::from(e.len) * bs).sum(),
                };
            }
            FileType::Symlink => report.symlinks += 1,
            _ => report.others += 1,
        }
        report.extra_links += u64::from(node.links.saturating_sub(1));
    }
    report
}
