//! `extant tree`: draws a directory and everything below it as a tree.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use extant::{Fault, FileSystem, FileType, Follow, InodeRef};
use extant_base::Ino;
use serde_json::{Map, Value};

use crate::exit;
use crate::inspect::format::{count, escape, json_bytes};
use crate::look::print::{put_target, stat_json};
use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session, below, output, shown};
use crate::sandbox::Needs;
use crate::schema;

/// Maximum depth of directories; no path could name a deeper one.
const DEPTH_MAX: usize = 4096;

const EXAMPLES: &str = "\
Examples:
  extant tree -L 2 root.img
  extant tree -d disk.img#2:/var
  extant tree --json root.img:/etc | jq '.[0].contents[].name'";

/// Show a directory and everything below it as a tree.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct TreeArgs {
    /// Where to begin; the root directory without a path.
    #[arg(required = true, value_name = "IMG[:PATH]")]
    files: Vec<OsString>,
    /// Go only so many levels deep.
    #[arg(short = 'L', long, value_name = "LEVELS")]
    depth: Option<usize>,
    /// Directories only.
    #[arg(short, long)]
    directories: bool,
    /// Names that begin with a dot too.
    #[arg(short, long)]
    all: bool,
    /// Print nested JSON, with all fields of stat.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

/// A directory whose entries are being drawn.
struct Level {
    path: Vec<u8>,
    entries: std::vec::IntoIter<TreeEntry>,
    used: bool,
}

struct TreeEntry {
    name: Vec<u8>,
    kind: FileType,
    ino: Ino,
}

#[derive(Default)]
struct Counts {
    directories: u64,
    files: u64,
}

pub(crate) fn run(args: &TreeArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    session.confine(&args.files, &Needs::default());
    let targets = session.targets(&args.files, Follow::Links);
    let mut out = output();
    let printed = print_all(args, &mut session, &targets, &mut out);
    session.finish(printed.and_then(|()| out.flush()))
}

fn print_all(
    args: &TreeArgs,
    session: &mut Session,
    targets: &[ExistingFile],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut counts = Counts::default();
    for (at, target) in targets.iter().enumerate() {
        if args.json {
            out.write_all(if at == 0 { b"[\n" } else { b",\n" })?;
        }
        Drawing { args, session, target, out, counts: &mut counts }.draw()?;
    }
    if args.json {
        return out.write_all(if targets.is_empty() { b"[]\n" } else { b"\n]\n" });
    }
    if targets.is_empty() {
        return Ok(());
    }
    let directories = match counts.directories {
        1 => "1 directory".to_owned(),
        many => format!("{many} directories"),
    };
    match args.directories {
        true => writeln!(out, "\n{directories}"),
        false => writeln!(out, "\n{directories}, {}", count(counts.files, "file")),
    }
}

struct Drawing<'a> {
    args: &'a TreeArgs,
    session: &'a mut Session,
    target: &'a ExistingFile,
    out: &'a mut dyn Write,
    counts: &'a mut Counts,
}

impl Drawing<'_> {
    fn fs(&self) -> &FileSystem {
        &self.target.fs
    }

    fn draw(mut self) -> io::Result<()> {
        let root = Arc::clone(&self.target.inode);
        let path = self.target.path.clone();
        if self.args.json {
            self.json_head(&path, &path, &root)?;
        } else {
            writeln!(self.out, "{}", self.target.shown())?;
        }
        // No directory is drawn twice: in a damaged image directories may form a cycle.
        let mut seen = std::collections::HashSet::from([root.ino()]);
        let mut levels = Vec::new();
        if root.kind() == FileType::Directory && self.args.depth != Some(0) {
            levels.push(self.level(path, &root));
        }
        while let Some(level) = levels.last_mut() {
            let Some(node) = level.entries.next() else {
                let used = level.used;
                levels.pop();
                if self.args.json {
                    self.out.write_all(if used { b"\n]}" } else { b"]}" })?;
                }
                continue;
            };
            let path = below(&level.path, &node.name);
            let first = !level.used;
            level.used = true;
            let wants = self.args.json || matches!(node.kind, FileType::Directory | FileType::Symlink);
            let inode = match wants.then(|| self.fs().volume().inode(node.ino)).transpose() {
                Ok(inode) => inode,
                Err(fault) => {
                    self.report(&path, &fault);
                    None
                }
            };
            let is_dir = inode.as_ref().map_or(node.kind, |inode| inode.kind()) == FileType::Directory;
            if is_dir {
                self.counts.directories += 1
            } else {
                self.counts.files += 1
            }
            if self.args.json {
                self.out.write_all(if first { b"\n" } else { b",\n" })?;
            }
            self.node(&levels, &path, &node, inode.as_ref())?;
            let enters = is_dir && self.args.depth.is_none_or(|depth| levels.len() < depth);
            if let Some(dir) = inode.filter(|_| enters) {
                if levels.len() >= DEPTH_MAX || !seen.insert(dir.ino()) {
                    let why = "directory has two names, contains itself, or is nested too deep; not entered \
                               (run `extant check` on the image)";
                    self.session
                        .problem(exit::DAMAGED, format_args!("{}: {why}", shown(&self.target.image, &path)));
                    if self.args.json {
                        self.out.write_all(b"]}")?;
                    }
                    continue;
                }
                let level = self.level(path, &dir);
                levels.push(level);
            } else if self.args.json && is_dir {
                self.out.write_all(b"]}")?;
            }
        }
        Ok(())
    }

    /// The entries of a directory, sorted by name.
    fn level(&mut self, path: Vec<u8>, dir: &InodeRef) -> Level {
        let mut nodes = Vec::new();
        let volume = Arc::clone(self.target.fs.volume());
        let mut damage = Vec::new();
        let listed = volume.names().read_dir(
            dir,
            extant::Cursor::START,
            &mut |entry| {
                if !matches!(entry.name, b"." | b"..") && (self.args.all || !entry.name.starts_with(b".")) {
                    nodes.push((entry.name.to_vec(), entry.kind, entry.ino));
                }
                std::ops::ControlFlow::Continue(())
            },
            &mut |fault| damage.push(fault),
        );
        for fault in damage.iter().chain(listed.as_ref().err()) {
            self.report(&path, fault);
        }
        nodes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let mut sorted = Vec::with_capacity(nodes.len());
        for (name, kind, ino) in nodes {
            // Old file systems store no type with the name.
            let kind = kind.or_else(|| volume.inode(ino).ok().map(|inode| inode.kind())).unwrap_or_default();
            if !self.args.directories || kind == FileType::Directory {
                sorted.push(TreeEntry { name, kind, ino });
            }
        }
        Level { path, entries: sorted.into_iter(), used: false }
    }

    fn report(&mut self, path: &[u8], fault: &Fault) {
        // The inode of an entry must exist: its absence is damage.
        self.session.problem(exit::DAMAGED, format_args!("{}: {fault}", shown(&self.target.image, path)));
    }

    fn node(
        &mut self,
        levels: &[Level],
        path: &[u8],
        node: &TreeEntry,
        inode: Option<&InodeRef>,
    ) -> io::Result<()> {
        if self.args.json {
            return match inode {
                Some(inode) => self.json_inode(Map::new(), &node.name, inode),
                None => {
                    let mut map = Map::new();
                    map.insert("name".to_owned(), json_bytes(&node.name));
                    map.insert("type".to_owned(), node.kind.to_string().into());
                    map.insert("inode".to_owned(), node.ino.0.into());
                    self.json_open(map, node.kind == FileType::Directory)
                }
            };
        }
        let (last, above) = levels
            .split_last()
            .map_or((true, levels), |(last, above)| (last.entries.as_slice().is_empty(), above));
        for level in above {
            let line = if level.entries.as_slice().is_empty() { "    " } else { "│   " };
            self.out.write_all(line.as_bytes())?;
        }
        write!(self.out, "{}{}", if last { "└── " } else { "├── " }, escape(&node.name))?;
        if node.kind == FileType::Symlink
            && let Some(inode) = inode
        {
            match self.fs().volume().files().read_link(inode) {
                Ok(link) => write!(self.out, " -> {}", escape(&link))?,
                Err(fault) => self.report(path, &fault),
            }
        }
        writeln!(self.out)
    }

    fn json_head(&mut self, path: &[u8], name: &[u8], inode: &InodeRef) -> io::Result<()> {
        let mut map = Map::new();
        map.insert(schema::FIELD.to_owned(), schema::urn("tree:1").into());
        map.insert("image".to_owned(), self.target.image.clone().into());
        map.insert("path".to_owned(), json_bytes(path));
        self.json_inode(map, name, inode)?;
        if inode.kind() == FileType::Directory && self.args.depth == Some(0) {
            self.out.write_all(b"]}")?;
        }
        Ok(())
    }

    fn json_inode(&mut self, mut map: Map<String, Value>, name: &[u8], inode: &InodeRef) -> io::Result<()> {
        map.insert("name".to_owned(), json_bytes(name));
        map.extend(stat_json(&self.fs().volume().attributes().stat(inode)));
        put_target(&mut map, self.fs().volume(), inode);
        self.json_open(map, inode.kind() == FileType::Directory)
    }

    /// Prints an object; that of a directory stays open after `"contents": [`.
    fn json_open(&mut self, map: Map<String, Value>, is_dir: bool) -> io::Result<()> {
        let text = Value::from(map).to_string();
        match text.strip_suffix('}').filter(|_| is_dir) {
            Some(open) => write!(self.out, "{open},\"contents\":["),
            None => self.out.write_all(text.as_bytes()),
        }
    }
}
