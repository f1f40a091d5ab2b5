//! Builds an image from a recipe.

use std::ffi::{OsStr, OsString};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Built, Judge, Needs, Recipe, Step};
use crate::tools::{command, is_root, output_of, story};
use crate::walk::copy_sparse;
use crate::{LoopDevice, LoopMount};

/// The defaults of e2fsprogs 1.47.0 upstream, for every machine.
const CONFIGURATION: &str = "\
[defaults]
\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
\tdefault_mntopts = acl,user_xattr
\tenable_periodic_fsck = 0
\tblocksize = 4096
\tinode_size = 256
\tinode_ratio = 8192
[fs_types]
\text3 = {
\t\tfeatures = has_journal
\t}
\text4 = {
\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,metadata_csum_seed,64bit,dir_nlink,\
extra_isize,orphan_file
\t}
\tsmall = {
\t}
\tfloppy = {
\t}
";

/// The current time for e2fsprogs: 2020-09-13.
const NOW: &str = "1600000000";

/// The result of a recipe in [`build_all`].
#[derive(Debug)]
pub struct Outcome {
    /// The recipe.
    pub recipe: Recipe,
    /// The image, or the reason why there is none: this process is not root, or a step failed.
    pub built: Result<Built, String>,
    /// Duration of the build.
    pub time: Duration,
}

/// Builds the recipes in `n_threads` threads. The outcomes are in the order of the recipes, the images in
/// `dir`.
///
/// # Panics
/// Never: the outcome of a recipe reports its failure.
#[must_use]
pub fn build_all(recipes: &[Recipe], dir: &Path, n_threads: usize) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<(usize, Outcome)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..n_threads.max(1) {
            scope.spawn(|| {
                while let Some((i, recipe)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    recipes.get(i).map(|recipe| (i, recipe))
                } {
                    let start = Instant::now();
                    let built = if recipe.needs() == Needs::Root && !is_root() {
                        Err("needs root".to_owned())
                    } else {
                        catch_unwind(AssertUnwindSafe(|| build(recipe, dir)))
                            .map_err(|panic| text_of(&*panic))
                    };
                    let outcome = Outcome { recipe: *recipe, built, time: start.elapsed() };
                    outcomes.lock().expect("no builder panics while it holds this").push((i, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().expect("builders are done");
    outcomes.sort_by_key(|(i, _)| *i);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The message of a panic.
fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Builds one image in `dir`.
///
/// # Panics
/// A step fails, or an image that should be clean is not clean by `e2fsck -fn`. For recipes that need root:
/// this process is not root.
#[must_use]
pub fn build(recipe: &Recipe, dir: &Path) -> Built {
    let work = dir.join(format!("{}.work", recipe.name));
    std::fs::create_dir_all(&work).unwrap_or_else(|error| panic!("{}: {error}", work.display()));
    let bench = Bench { recipe, image: dir.join(format!("{}.img", recipe.name)), work };
    let journal = recipe.journal.map(|args| bench.journal(dir, args));
    let device = journal.as_deref().map(attach);
    bench.mke2fs(device.as_ref());
    for step in recipe.steps {
        bench.step(step, journal.as_deref(), device.as_ref());
    }
    if !recipe.is_dirty() {
        bench.check(device.as_ref());
    }
    std::fs::remove_dir_all(&bench.work).unwrap_or_else(|error| panic!("{}: {error}", bench.work.display()));
    Built {
        name: recipe.name,
        image: bench.image,
        journal,
        mountable: recipe.judge == Judge::Kernel,
        dirty: recipe.is_dirty(),
        fast_commits: recipe.leaves_fast_commits(),
    }
}

/// An image during its build.
struct Bench<'a> {
    recipe: &'a Recipe,
    image: PathBuf,
    /// Directory for the configuration, scripts and sources.
    work: PathBuf,
}

impl Bench<'_> {
    /// A tool of e2fsprogs with this crate's configuration and time.
    fn tool(&self, program: &str) -> Command {
        let mut command = command(program);
        command.env("MKE2FS_CONFIG", self.work.join("mke2fs.conf"));
        command
            .env("E2FSPROGS_FAKE_TIME", NOW)
            .env("MKE2FS_SKIP_CHECK_MSG", "1")
            .env("MKE2FS_SKIP_PROGRESS", "1");
        command
    }

    /// Runs a command. Panics with its full output if the exit code is not one of `good`.
    fn run(&self, command: &mut Command, good: &[i32]) -> Output {
        let output = output_of(command);
        let is_good = output.status.code().is_some_and(|code| good.contains(&code));
        assert!(is_good, "{}: {}", self.recipe.name, story(command, &output));
        output
    }

    /// Writes a file into the work directory.
    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.work.join(name);
        std::fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// Creates a file with an external journal.
    fn journal(&self, dir: &Path, args: &[&str]) -> PathBuf {
        self.put("mke2fs.conf", CONFIGURATION.as_bytes());
        let path = dir.join(format!("{}.journal", self.recipe.name));
        let mut command = self.tool("mke2fs");
        command.args(["-q", "-F", "-O", "journal_dev", "-U", &uuid(self.recipe.name, 3)]).args(args);
        self.run(command.arg(&path).arg("8M"), &[0]);
        path
    }

    fn mke2fs(&self, journal: Option<&LoopDevice>) {
        self.put("mke2fs.conf", CONFIGURATION.as_bytes());
        let mut extended = format!(
            "lazy_itable_init=0,lazy_journal_init=0,nodiscard,hash_seed={}",
            uuid(self.recipe.name, 1)
        );
        if !self.recipe.extended.is_empty() {
            extended = format!("{extended},{}", self.recipe.extended);
        }
        // mke2fs would keep the size of an existing smaller file.
        let _ = std::fs::remove_file(&self.image);
        let mut command = self.tool("mke2fs");
        command
            .args(["-q", "-F", "-U", &uuid(self.recipe.name, 2), "-E", &extended])
            .args(self.recipe.mke2fs);
        if let Some(journal) = journal {
            let mut device = OsString::from("device=");
            device.push(journal.path());
            command.arg("-J").arg(device);
        }
        if let Some(fill) = self.recipe.source {
            let source = self.work.join("source");
            std::fs::create_dir(&source).unwrap_or_else(|error| panic!("{}: {error}", source.display()));
            fill(&source);
            command.arg("-d").arg(source);
        }
        self.run(command.arg(&self.image).arg(self.recipe.size), &[0]);
    }

    fn step(&self, step: &Step, journal: Option<&Path>, device: Option<&LoopDevice>) {
        match *step {
            Step::Kernel(options, work) => {
                let (image, mount) = self.mount(options, device);
                work(mount.path());
                drop(mount);
                drop(image);
            }
            Step::Crash(options, work) => {
                let (image, mount) = self.mount(options, device);
                let held_open = work(mount.path());
                // The suffix is appended, because the image and its journal differ only in the extension.
                let after_crash = |path: &Path| {
                    let mut name = path.file_name().expect("a file").to_owned();
                    name.push(".crash");
                    self.work.join(name)
                };
                let files: Vec<&Path> = [Some(self.image.as_path()), journal].into_iter().flatten().collect();
                for file in &files {
                    copy_sparse(file, &after_crash(file));
                }
                drop(held_open);
                drop(mount);
                drop(image);
                for file in &files {
                    // Overwritten in place: a loop device may have the journal's file open.
                    copy_sparse(&after_crash(file), file);
                }
            }
            Step::Debugfs(requests) => self.debugfs(requests),
            Step::DebugfsBy(make) => self.debugfs(&make()),
            Step::Tune2fs(args) => {
                self.run(self.tool("tune2fs").args(args).arg(&self.image), &[0]);
            }
            Step::E2fsck(args) => {
                self.run(
                    self.tool("e2fsck").args(args.iter().map(|arg| self.in_dir(arg))).arg(&self.image),
                    &[0, 1],
                );
            }
            Step::Resize2fs(size) => {
                self.run(self.tool("resize2fs").arg(&self.image).arg(size), &[0]);
            }
            Step::Host(name, make) => {
                self.put(name, &make());
            }
        }
    }

    fn mount(&self, options: &str, journal: Option<&LoopDevice>) -> (LoopDevice, LoopMount) {
        let image = attach(&self.image);
        let options = match journal {
            Some(journal) => format!("{options},journal_path={}", journal.path().display()),
            None => options.to_owned(),
        };
        let mount = LoopMount::device(&image, &options);
        let mount = mount.unwrap_or_else(|error| panic!("{}: {error}", self.recipe.name));
        (image, mount)
    }

    /// Replaces `{dir}` with the build's directory.
    fn in_dir(&self, text: &str) -> String {
        text.replace("{dir}", &self.work.to_string_lossy())
    }

    fn debugfs(&self, requests: &[impl AsRef<str>]) {
        let text: String = requests.iter().map(|request| self.in_dir(request.as_ref()) + "\n").collect();
        let script = self.put("requests", text.as_bytes());
        let mut command = self.tool("debugfs");
        command.args([OsStr::new("-w"), OsStr::new("-f"), script.as_os_str(), self.image.as_os_str()]);
        let output = self.run(&mut command, &[0]);
        // debugfs always exits with 0. But a request that succeeds prints nothing, or what it allocated.
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let said = String::from_utf8_lossy(&said);
        let is_expected = |line: &str| {
            line.is_empty() || line.starts_with("debugfs") || line.starts_with("Allocated inode: ")
        };
        assert!(said.lines().all(is_expected), "{}: {}", self.recipe.name, story(&command, &output));
    }

    /// Runs `e2fsck -fn`, which must find nothing.
    fn check(&self, journal: Option<&LoopDevice>) {
        let mut command = self.tool("e2fsck");
        command.arg("-fn");
        if let Some(journal) = journal {
            command.arg("-j").arg(journal.path());
        }
        self.run(command.arg(&self.image), &[0]);
    }
}

fn attach(file: &Path) -> LoopDevice {
    LoopDevice::attach(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// A UUID that depends on the recipe's name and on its purpose.
fn uuid(name: &str, purpose: u64) -> String {
    // FNV-1a, then this crate's generator to mix the bits.
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let bytes = crate::trees::Random::for_item(hash, purpose).bytes(16);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-4{}-a{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..])
}
