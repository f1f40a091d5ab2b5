//! `extant ls`: lists names, and the fields of their inodes.

use std::cmp::Reverse;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use extant::walk::{Entry, Listing, Order};
use extant::{FileType, Follow, InodeRef, Stat, Timestamp};
use serde_json::{Map, Value};

use crate::inspect::format::{escape, iso_seconds, json_bytes, mode_letters};
use crate::look::print::{JsonList, is_device, put_target, short_size, stat_json};
use crate::look::{ExistingFile, IMAGES_HELP, OpenArgs, Session, below, output};
use crate::sandbox::Needs;

const EXAMPLES: &str = "\
Examples:
  extant ls -l root.img:/etc
  extant ls -R 'root.img:/usr/**/*.so'          find by name; add -d not to look into directories
  extant ls -lS root.img:/var/log | head        the largest first
  extant ls -Rz root.img | xargs -0 ...         raw paths, each ended by a NUL
  extant ls -R --json root.img | jq '.[] | select(.size > 1e6) | .path'";

/// List directories and files.
///
/// Sorted by the bytes of their names. Names that a terminal could misunderstand are escaped as by `ls -b`.
/// Owners are numbers and times are in UTC.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = format!("{IMAGES_HELP}\n\n{EXAMPLES}"))]
pub(crate) struct LsArgs {
    /// What to list; the root directory without a path.
    #[arg(required = true, value_name = "IMG[:PATH]")]
    files: Vec<OsString>,
    /// One line per name with type, mode, links, owner, size, time of last change; + marks an ACL.
    #[arg(short, long, visible_short_alias = 'n', visible_alias = "numeric-uid-gid")]
    long: bool,
    /// Names that begin with a dot too.
    #[arg(short, long, visible_short_alias = 'A', visible_alias = "almost-all")]
    all: bool,
    /// Directories below directories too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Directories themselves, not what is in them.
    #[arg(short, long)]
    directory: bool,
    /// One name per line, which is also what happens when the output is no terminal.
    #[arg(short = '1', long)]
    one: bool,
    /// Numbers of inodes.
    #[arg(short, long)]
    inode: bool,
    /// Sizes for people: 1.5K, 234M, 2.0G.
    #[arg(short = 'h', long, visible_alias = "human-readable")]
    human: bool,
    /// Blocks that the files use, in units of 1 KiB; with -h as sizes for people.
    #[arg(short = 's', long)]
    size: bool,
    /// Newest first; as --sort=time.
    #[arg(short = 't', conflicts_with_all = ["by_size", "unsorted", "sort"])]
    by_time: bool,
    /// Largest first; as --sort=size.
    #[arg(short = 'S', conflicts_with_all = ["unsorted", "sort"])]
    by_size: bool,
    /// As stored in the directory; as --sort=none.
    #[arg(short = 'U', long, conflicts_with = "sort")]
    unsorted: bool,
    /// The order of the names.
    #[arg(long, value_name = "WORD")]
    sort: Option<Sorted>,
    /// The time that -l shows and -t sorts by: of the last change of the content, of the inode, of the last
    /// access, or of the creation. Without -l and another order, also sorts by it.
    #[arg(long, value_name = "WORD")]
    time: Option<WhichTime>,
    /// As --time=ctime.
    #[arg(short = 'c', conflicts_with_all = ["by_access", "time"])]
    by_change: bool,
    /// As --time=atime.
    #[arg(short = 'u', conflicts_with = "time")]
    by_access: bool,
    /// The other way round.
    #[arg(short, long)]
    reverse: bool,
    /// Whole paths, raw, each ended by a NUL byte, and nothing else.
    #[arg(short = 'z', long, visible_alias = "zero", conflicts_with_all = ["long", "inode", "json"])]
    null: bool,
    /// Print one JSON list of everything, with all fields of stat.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    open: OpenArgs,
}

/// An order, by the words of ls(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Sorted {
    /// By the bytes of the names
    Name,
    /// Newest first
    Time,
    /// Largest first
    Size,
    /// As stored in the directory
    None,
}

/// A time of a file, by the words of ls(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WhichTime {
    /// Last change of the content
    #[value(alias = "modification")]
    Mtime,
    /// Last change of the inode
    #[value(alias = "status")]
    Ctime,
    /// Last access
    #[value(aliases = ["access", "use"])]
    Atime,
    /// Creation
    #[value(alias = "creation")]
    Birth,
}

impl LsArgs {
    fn needs_stat(&self) -> bool {
        let is_sorted = matches!(self.order(), Sorted::Time | Sorted::Size);
        self.long || self.size || self.json || self.human || is_sorted
    }

    fn order(&self) -> Sorted {
        match self.sort {
            Some(order) => order,
            None if self.by_time => Sorted::Time,
            None if self.by_size => Sorted::Size,
            None if self.unsorted => Sorted::None,
            // As in ls(1): without -l the time has no other use.
            None if self.which_time().is_some() && !self.long => Sorted::Time,
            None => Sorted::Name,
        }
    }

    fn which_time(&self) -> Option<WhichTime> {
        match (self.by_change, self.by_access) {
            (true, _) => Some(WhichTime::Ctime),
            (_, true) => Some(WhichTime::Atime),
            _ => self.time,
        }
    }

    /// The time that is shown; an inode without a creation time has none.
    fn time_of(&self, stat: &Stat) -> Option<Timestamp> {
        match self.which_time().unwrap_or(WhichTime::Mtime) {
            WhichTime::Mtime => Some(stat.mtime),
            WhichTime::Ctime => Some(stat.ctime),
            WhichTime::Atime => Some(stat.atime),
            WhichTime::Birth => stat.crtime,
        }
    }

    /// The blocks in use, as -s shows them.
    fn used(&self, stat: &Stat) -> String {
        match self.human {
            true => short_size(stat.blocks_512.saturating_mul(512)),
            false => stat.blocks_512.div_ceil(2).to_string(),
        }
    }
}

/// A line of the listing.
struct Line {
    name: Vec<u8>,
    /// The path from the root of the image.
    path: Vec<u8>,
    ino: u32,
    inode: Option<(InodeRef, Stat)>,
}

pub(crate) fn run(args: &LsArgs) -> ExitCode {
    let mut session = Session::new(&args.open);
    session.confine(&args.files, &Needs::default());
    // As ls does: a link on the command line stands for its directory, unless the link itself is wanted.
    let follow = if args.long || args.directory { Follow::NotTheLast } else { Follow::Links };
    let targets = session.targets(&args.files, follow);
    let mut out = output();
    let printed = if args.json {
        print_json(args, &mut session, &targets, &mut out)
    } else {
        print_text(args, &mut session, &targets, &mut out)
    };
    session.finish(printed.and_then(|()| out.flush()))
}

/// Splits the targets into those listed themselves, and directories whose contents are listed.
fn split<'t>(args: &LsArgs, targets: &'t [ExistingFile]) -> (Vec<&'t ExistingFile>, Vec<&'t ExistingFile>) {
    targets.iter().partition(|target| args.directory || target.inode.kind() != FileType::Directory)
}

fn line_of(target: &ExistingFile) -> Line {
    let inode = Some((target.inode.clone(), target.fs.volume().attributes().stat(&target.inode)));
    Line { name: target.path.clone(), path: target.path.clone(), ino: target.inode.ino().0, inode }
}

fn print_text(
    args: &LsArgs,
    session: &mut Session,
    targets: &[ExistingFile],
    out: &mut dyn Write,
) -> io::Result<()> {
    let (files, directories) = split(args, targets);
    let mut first = true;
    // Files of one image are listed together, since a line shows no image.
    for part in files.chunk_by(|a, b| a.image == b.image) {
        let mut lines: Vec<Line> = part.iter().map(|target| line_of(target)).collect();
        sort(args, &mut lines, true);
        print_lines(args, part[0], &lines, out)?;
        first = false;
    }
    for target in &directories {
        let heads = targets.len() > 1 || args.recursive;
        for listing in listings(args, target) {
            for fault in &listing.faults {
                session.walk_fault(target, fault);
            }
            let dir = below(&target.path, &listing.path);
            if heads && !args.null {
                if !first {
                    writeln!(out)?;
                }
                writeln!(out, "{}:", crate::look::shown(&target.image, &dir))?;
            }
            first = false;
            let lines = lines(args, session, target, listing);
            print_lines(args, target, &lines, out)?;
        }
    }
    Ok(())
}

fn print_json(
    args: &LsArgs,
    session: &mut Session,
    targets: &[ExistingFile],
    out: &mut dyn Write,
) -> io::Result<()> {
    let (files, directories) = split(args, targets);
    let mut list = JsonList::new(out, "ls:1");
    let item = |target: &ExistingFile, line: &Line| -> Value {
        let mut map = Map::new();
        map.insert("image".to_owned(), target.image.clone().into());
        map.insert("path".to_owned(), json_bytes(&line.path));
        map.insert(
            "name".to_owned(),
            json_bytes(line.path.rsplit(|b| *b == b'/').next().unwrap_or_default()),
        );
        if let Some((inode, stat)) = &line.inode {
            map.extend(stat_json(stat));
            put_target(&mut map, target.fs.volume(), inode);
        }
        map.into()
    };
    for target in files {
        list.item(&item(target, &line_of(target)))?;
    }
    for target in directories {
        for listing in listings(args, target) {
            for fault in &listing.faults {
                session.walk_fault(target, fault);
            }
            for line in lines(args, session, target, listing) {
                list.item(&item(target, &line))?;
            }
        }
    }
    list.finish()
}

/// The directories to list for one target of the command line.
fn listings(args: &LsArgs, target: &ExistingFile) -> extant::walk::Listings {
    let order = if args.order() == Sorted::None { Order::Stored } else { Order::Names };
    let mut walk = target.fs.walk_inode(target.inode.clone()).order(order).inodes(args.needs_stat());
    if !args.recursive {
        // One directory needs no further threads.
        walk = walk.depth_max(1).threads(1);
    }
    if !args.all {
        walk = walk.enter_if(|path| {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            !name.starts_with(b".")
        });
    }
    walk.listings()
}

fn lines(args: &LsArgs, session: &mut Session, target: &ExistingFile, listing: Listing) -> Vec<Line> {
    let mut lines = Vec::with_capacity(listing.entries.len());
    let is_shown = |entry: &Entry| args.all || !entry.name().starts_with(b".");
    for entry in listing.entries.iter().filter(|entry| is_shown(entry)) {
        let path = below(&target.path, entry.path());
        let inode = match args.needs_stat().then(|| entry.inode()).transpose() {
            Ok(inode) => inode.map(|inode| {
                let stat = target.fs.volume().attributes().stat(&inode);
                (inode, stat)
            }),
            Err(fault) => {
                session.fault(crate::look::shown(&target.image, &path), &fault);
                None
            }
        };
        lines.push(Line { name: entry.name().to_vec(), path, ino: entry.ino().0, inode });
    }
    sort(args, &mut lines, false);
    lines
}

/// Sorts as the options say; `unordered`: the lines are not in the order of their names yet.
fn sort(args: &LsArgs, lines: &mut [Line], unordered: bool) {
    let stat = |line: &Line| line.inode.as_ref().map(|(_, stat)| (args.time_of(stat), stat.size));
    let order = args.order();
    if unordered && order != Sorted::None {
        lines.sort_by(|a, b| a.path.cmp(&b.path));
    }
    match order {
        Sorted::Time => lines.sort_by_key(|line| Reverse(stat(line).map(|(time, _)| time))),
        Sorted::Size => lines.sort_by_key(|line| Reverse(stat(line).map(|(_, size)| size))),
        Sorted::Name | Sorted::None => {}
    }
    if args.reverse {
        lines.reverse();
    }
}

fn print_lines(args: &LsArgs, target: &ExistingFile, lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    if args.null {
        for line in lines {
            out.write_all(&line.path)?;
            out.write_all(b"\0")?;
        }
        return Ok(());
    }
    if args.long {
        return print_long(args, target, lines, out);
    }
    let mut cells: Vec<String> = Vec::with_capacity(lines.len());
    for line in lines {
        let name = escape(&line.name);
        let mut cell = name;
        if let Some((_, stat)) = &line.inode {
            if args.size {
                cell = format!("{:>5} {cell}", args.used(stat));
            } else if args.human {
                cell = format!("{:>5} {cell}", short_size(stat.size));
            }
        }
        if args.inode {
            cell = format!("{:>10} {cell}", line.ino);
        }
        cells.push(cell);
    }
    let width = if args.one || !io::stdout().is_terminal() { 0 } else { terminal_width() };
    print_columns(&cells, width, out)
}

/// Columns of the terminal; 80 if they are unknown.
fn terminal_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stdout());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(80)
}

/// Prints cells in columns, top to bottom, as many columns as fit into `width`; one cell per line if it is 0.
fn print_columns(cells: &[String], width: usize, out: &mut dyn Write) -> io::Result<()> {
    let widths: Vec<usize> = cells.iter().map(|cell| cell.chars().count()).collect();
    let fit = |columns: usize| {
        let rows = cells.len().div_ceil(columns).max(1);
        let each: Vec<usize> =
            widths.chunks(rows).map(|column| column.iter().max().copied().unwrap_or(0)).collect();
        (each.iter().sum::<usize>() + 2 * each.len().saturating_sub(1) <= width).then_some((rows, each))
    };
    let columns_max = (width / 3).clamp(1, cells.len().max(1));
    let found = (2..=columns_max).rev().find_map(fit);
    let (rows, each) = found.unwrap_or((cells.len(), vec![0]));
    for row in 0..rows {
        for (column, wide) in each.iter().enumerate() {
            let Some(cell) = cells.get(column * rows + row) else { continue };
            let is_last = (column + 1) * rows + row >= cells.len();
            let pad = if is_last { 0 } else { wide + 2 - cell.chars().count() };
            write!(out, "{cell}{:pad$}", "")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn print_long(args: &LsArgs, target: &ExistingFile, lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    let volume = target.fs.volume();
    let mut rows = Vec::with_capacity(lines.len());
    for line in lines {
        let mut name = escape(&line.name);
        let ino = if args.inode { line.ino.to_string() } else { String::new() };
        let Some((inode, stat)) = &line.inode else {
            let used = if args.size { "?".to_owned() } else { String::new() };
            let unknown = || "?".to_owned();
            let row = [ino, used, unknown(), unknown(), unknown(), unknown(), unknown(), unknown()];
            rows.push((row, name));
            continue;
        };
        if stat.kind == FileType::Symlink {
            let link = volume.files().read_link(inode);
            name = format!("{name} -> {}", link.map_or("?".to_owned(), |link| escape(&link)));
        }
        let size = match stat.kind {
            kind if is_device(kind) => format!("{},{}", stat.device.0, stat.device.1),
            _ if args.human => short_size(stat.size),
            _ => stat.size.to_string(),
        };
        let has_acl = volume
            .attributes()
            .xattr_names(inode)
            .is_ok_and(|names| names.iter().any(|name| name.starts_with(b"system.posix_acl_")));
        let mode = format!("{}{}", mode_letters(stat.mode), if has_acl { "+" } else { "" });
        let time = args.time_of(stat).map_or("-".to_owned(), |time| iso_seconds(time.seconds));
        let used = if args.size { args.used(stat) } else { String::new() };
        let row =
            [ino, used, mode, stat.links.to_string(), stat.uid.to_string(), stat.gid.to_string(), size, time];
        rows.push((row, name));
    }
    let wide = |column: usize| rows.iter().map(|(row, _)| row[column].len()).max().unwrap_or(0);
    let [w0, used_wide, w1, w2, w3, w4, w5, w6]: [usize; 8] = std::array::from_fn(wide);
    for ([ino, used, mode, links, uid, gid, size, time], name) in &rows {
        if args.inode {
            write!(out, "{ino:>w0$} ")?;
        }
        if args.size {
            write!(out, "{used:>used_wide$} ")?;
        }
        writeln!(out, "{mode:<w1$} {links:>w2$} {uid:>w3$} {gid:>w4$} {size:>w5$} {time:<w6$} {name}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_go_from_top_to_bottom_and_fit() {
        let cells: Vec<String> = ["a", "bb", "ccc", "d", "e"].map(str::to_owned).to_vec();
        let print = |width| {
            let mut out = Vec::new();
            print_columns(&cells, width, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(print(0), "a\nbb\nccc\nd\ne\n");
        assert_eq!(print(100), "a  bb  ccc  d  e\n");
        assert_eq!(print(9), "a    d\nbb   e\nccc\n");
        let mut out = Vec::new();
        print_columns(&[], 80, &mut out).unwrap();
        assert!(out.is_empty());
    }
}
