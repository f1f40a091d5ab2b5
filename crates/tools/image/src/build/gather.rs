//! Reads sources and merges them into one tree.
//!
//! Owns: the order of the sources, merge rules by kind of source, excluded paths, warnings about sources.
//! Does **not** own: reading a source (see [`crate::source`]), inserting an entry (see [`crate::tree`]).

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{BuildFault, BuildOptions, Source};
use crate::exclude::Excludes;
use crate::source::dir::{DirOptions, DirReport, identity_of, open_root, read_dir};
use crate::source::entry::{Entry, Kind};
use crate::source::fault::{ShownPath, SourceFault};
use crate::source::oci::{OciImage, read_oci};
use crate::source::pretend::pretender;
use crate::source::spool::Spool;
use crate::source::tar::{TarInput, read_tar};
use crate::tree::{MergeRules, Placement, Tree};
use crate::write::{Problem, SourceRoot, WriteFault};

/// The result of reading all sources.
#[derive(Debug)]
pub struct Gathered {
    /// The merged tree.
    pub tree: Tree,
    /// The directory sources, which hold the bytes of their files.
    pub roots: Vec<SourceRoot>,
    /// The time stamp of an image of the tree, in seconds since 1970; 0 before the tree is edited.
    pub time: u64,
    /// Whether a source has metadata for the root directory. An archive need not have an entry for it.
    pub has_root: bool,
    /// Findings that the user should see.
    pub warnings: Vec<String>,
    /// Entries that could not be read, and are missing in the tree.
    pub problems: Vec<Problem>,
}

/// Reads all sources into one tree, for programs that need no new image, and changes it as the options say:
/// owners, rules by path, times, labels. `spool_dir`: the directory of a temporary file for unpacked content.
/// `images`: files that are no part of a source. `read`: called by any thread with the number of entries read
/// since the last call.
///
/// # Errors
/// See [`BuildFault`]. Entries that cannot be read are in [`Gathered::problems`].
pub fn read_sources(
    options: &BuildOptions,
    sources: Vec<Source>,
    spool_dir: &Path,
    images: &[&Path],
    cancel: &AtomicBool,
    read: &(dyn Fn(u64) + Sync),
) -> Result<Gathered, BuildFault> {
    let mut skip = super::identities(&options.leave_out);
    skip.extend(images.iter().filter_map(|path| identity_of(path)));
    let mut gathered = gather(options, sources, spool_dir, Watch { skip: &skip, cancel, read })?;
    if cancel.load(Ordering::Relaxed) {
        return Err(BuildFault::Write(WriteFault::Interrupted));
    }
    if !gathered.problems.is_empty() {
        // The caller reports them; rules may not match what is missing.
        gathered.tree.count_links();
        return Ok(gathered);
    }
    gathered.time = super::edit(&mut gathered.tree, options, false)?.time;
    Ok(gathered)
}

/// Progress reports and cancellation of reading.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    /// Device and inode number of files to leave out of directories.
    pub(super) skip: &'a [(u64, u64)],
    pub(super) cancel: &'a AtomicBool,
    pub(super) read: &'a (dyn Fn(u64) + Sync),
}

/// Reads all sources into one tree.
pub(super) fn gather(
    options: &BuildOptions,
    sources: Vec<Source>,
    spool_dir: &Path,
    watch: Watch<'_>,
) -> Result<Gathered, BuildFault> {
    let mut gathered = Gathered {
        tree: Tree::new(),
        roots: Vec::new(),
        time: 0,
        has_root: false,
        warnings: Vec::new(),
        problems: Vec::new(),
    };
    let mut spool = Spool::new(spool_dir);
    let mut layer = 0;
    for source in sources {
        match source {
            Source::Dir(path) => gathered.add_dir(options, &path, layer, watch)?,
            Source::Tar(input) => gathered.add_tar(options, input, &mut spool, layer, watch)?,
            Source::Oci { layout, reference } => {
                layer = gathered.add_oci(options, &layout, reference.as_deref(), &mut spool, layer, watch)?;
            }
        }
        layer += 1;
    }
    Ok(gathered)
}

fn rules(options: &BuildOptions, layer: u16, replace_directories: bool) -> MergeRules {
    MergeRules { layer, replace_directories, keep_times: options.keep_times }
}

/// Maximum number of warnings that are kept. An archive may cause a warning for every member.
const WARNINGS_MAX: usize = 10_000;

/// Adds a warning, up to the maximum.
fn note(warnings: &mut Vec<String>, text: String) {
    match warnings.len() {
        WARNINGS_MAX => warnings.push("more warnings are left out".to_owned()),
        len if len < WARNINGS_MAX => warnings.push(text),
        _ => {}
    }
}

impl Gathered {
    fn add_dir(
        &mut self,
        options: &BuildOptions,
        path: &Path,
        layer: u16,
        watch: Watch<'_>,
    ) -> Result<(), BuildFault> {
        pretender()?;
        let root = open_root(path).map_err(|errno| SourceFault::io("open directory", path, errno.into()))?;
        let source = self.roots.len() as u32;
        let dir_options = DirOptions {
            source,
            rules: rules(options, layer, false),
            excludes: &options.excludes,
            one_file_system: options.one_file_system,
            skip: watch.skip,
            threads: options.threads,
            check_access: true,
            xattrs: &options.xattrs,
            cancel: watch.cancel,
            read: watch.read,
        };
        let DirReport { mut problems, mut warnings, .. } = read_dir(&mut self.tree, &root, &dir_options)
            .map_err(|(entry, fault)| BuildFault::Insert {
                path: format!("{}/{}", path.display(), ShownPath(&entry)),
                fault,
            })?;
        self.problems.append(&mut problems);
        self.warnings.append(&mut warnings);
        self.roots.push(root);
        self.has_root = true;
        Ok(())
    }

    fn add_tar(
        &mut self,
        options: &BuildOptions,
        input: TarInput,
        spool: &mut Spool,
        layer: u16,
        watch: Watch<'_>,
    ) -> Result<(), BuildFault> {
        let name = match &input {
            TarInput::Path(path) => path.display().to_string(),
            TarInput::Stdin => "standard input".to_owned(),
            TarInput::Reader { name, .. } => name.clone(),
        };
        let (tree, warnings, has_root) = (&mut self.tree, &mut self.warnings, &mut self.has_root);
        let mut duplicates = 0u64;
        let mut hint = ImageHint::default();
        let mut sink = |entry: Entry| {
            hint.see(&entry.path);
            *has_root |= entry.path.is_empty();
            let placement = merge(tree, entry, options, rules(options, layer, false), &name, watch)?;
            duplicates += u64::from(placement == Placement::Duplicate);
            Ok::<(), BuildFault>(())
        };
        read_tar(input, options.unpacking, spool, &mut sink, &mut |warning| {
            note(warnings, warning.to_string())
        })?;
        if hint.is_image() {
            let text = "this is an archive of a container's image, and its files were taken as they are; --oci takes the image that is in it";
            self.warnings.push(format!("{name}: {text}"));
        }
        if duplicates > 0 {
            self.warnings.push(format!("{name}: {duplicates} entries came twice; the later ones were taken"));
        }
        Ok(())
    }

    /// Adds all layers of an OCI image. Returns the number of the last layer.
    fn add_oci(
        &mut self,
        options: &BuildOptions,
        layout: &Path,
        reference: Option<&str>,
        spool: &mut Spool,
        first_layer: u16,
        watch: Watch<'_>,
    ) -> Result<u16, BuildFault> {
        let (tree, warnings, has_root) = (&mut self.tree, &mut self.warnings, &mut self.has_root);
        let layer = Cell::new(first_layer);
        let mut sink = |entry: Entry| {
            *has_root |= entry.path.is_empty() && matches!(entry.kind, Kind::Directory);
            let rules = rules(options, layer.get(), true);
            merge(tree, entry, options, rules, &layout.display().to_string(), watch).map(|_| ())
        };
        let platform = &options.platform;
        read_oci(
            OciImage { path: layout, reference, platform, unpacking: options.unpacking },
            spool,
            &mut |number| layer.set(first_layer.saturating_add(number as u16)),
            &mut sink,
            &mut |warning| note(warnings, warning.to_string()),
        )?;
        Ok(layer.get())
    }
}

/// Detects an archive of a container image that is used as an archive of a tree.
#[derive(Default)]
struct ImageHint {
    index: bool,
    blobs: bool,
}

impl ImageHint {
    fn see(&mut self, path: &[u8]) {
        self.index |= path == b"oci-layout" || path == b"manifest.json";
        self.blobs |= path.starts_with(b"blobs/sha256/") || path.ends_with(b"/layer.tar");
    }

    fn is_image(&self) -> bool {
        self.index && self.blobs
    }
}

/// Inserts one entry of an archive into the tree, unless it is excluded. `name` is the archive's name for
/// messages.
fn merge(
    tree: &mut Tree,
    mut entry: Entry,
    options: &BuildOptions,
    rules: MergeRules,
    name: &str,
    watch: Watch<'_>,
) -> Result<Placement, BuildFault> {
    if watch.cancel.load(Ordering::Relaxed) {
        return Err(BuildFault::Write(WriteFault::Interrupted));
    }
    (watch.read)(1);
    if is_excluded(&options.excludes, &entry.path) {
        return Ok(Placement::New);
    }
    let path = entry.path.clone();
    entry.metadata.xattrs.retain(|xattr| !options.xattrs.leaves_out(&xattr.name));
    tree.insert(entry, rules)
        .map_err(|fault| BuildFault::Insert { path: format!("{name}: {}", ShownPath(&path)), fault })
}

/// Whether a path of an archive, or any of its parents, is excluded.
fn is_excluded(excludes: &Excludes, path: &[u8]) -> bool {
    !excludes.is_empty() && !path.is_empty() && excludes.is_pruned(path)
}
