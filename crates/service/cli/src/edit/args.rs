//! Arguments and options of the commands that change an image: the same on a command line and on a line of a
//! script.

use std::ffi::OsString;
use std::path::PathBuf;

use super::mode::ModeChange;
use crate::times::parse_time;

/// The part of the help about paths, shared by all commands that change an image.
const PATHS_HELP: &str = "\
Images: IMG is a file or block device, IMG@OFFSET a file system inside of one, IMG#N its partition N.
Paths: behind a colon, from the root of the image. What is there already can be named by patterns: * ? [a-z] {a,b}, and ** \
for any number of directories; quote them for the shell.
All paths of one image are changed in one commit. The image is locked meanwhile, and must not be mounted.";

/// A command that changes an image, or looks at what it changes. What help says of each stands at its
/// arguments.
#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Change {
    Mkdir(MkdirArgs),
    Mknod(MknodArgs),
    Mkfifo(MkfifoArgs),
    Rm(RmArgs),
    Mv(MvArgs),
    Ln(LnArgs),
    Chmod(ChmodArgs),
    Chown(ChownArgs),
    Project(ProjectArgs),
    Xattr(XattrArgs),
    Put(PutArgs),
    Truncate(TruncateArgs),
    Fallocate(FallocateArgs),
    Touch(TouchArgs),
}

impl Change {
    /// Whether the command only reads.
    pub(crate) fn only_looks(&self) -> bool {
        matches!(
            self,
            Self::Xattr(XattrArgs { command: XattrCommand::Get { .. } | XattrCommand::List { .. }, .. })
        )
    }

    pub(crate) fn journal(&self) -> Option<&PathBuf> {
        let journal = match self {
            Self::Mkdir(args) => &args.journal,
            Self::Mknod(args) => &args.journal,
            Self::Mkfifo(args) => &args.journal,
            Self::Rm(args) => &args.journal,
            Self::Mv(args) => &args.journal,
            Self::Ln(args) => &args.journal,
            Self::Chmod(args) => &args.journal,
            Self::Chown(args) => &args.journal,
            Self::Project(args) => &args.journal,
            Self::Xattr(args) => &args.journal,
            Self::Put(args) => &args.journal,
            Self::Truncate(args) => &args.journal,
            Self::Fallocate(args) => &args.journal,
            Self::Touch(args) => &args.journal,
        };
        journal.journal.as_ref()
    }
}

/// The journal of images that have it elsewhere.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct JournalArg {
    /// The external journal, written as an image is, for images that have one.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Image")]
    pub(crate) journal: Option<PathBuf>,
}

/// Make directories in an image.
///
/// They belong to root (0:0), with mode 0755.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant mkdir root.img:/srv
  extant mkdir -p -m 1777 root.img:/var/spool/drop 'disk.img#2:/opt/tools'"))]
pub(crate) struct MkdirArgs {
    /// Make those above too, and do not mind those that are there.
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Mode of the directories: octal, or as for chmod, from 0777 on.
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<ModeChange>,
    /// The directories.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Make a device, a pipe or a socket in an image.
///
/// It belongs to root (0:0), with mode 0644. In an image that takes no rights of the user's.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant mknod -m 0600 root.img:/dev/console c 5 1
  extant mknod root.img:/run/initctl p"))]
pub(crate) struct MknodArgs {
    /// Mode: octal, or as for chmod, from 0666 on.
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<ModeChange>,
    /// The name to make.
    #[arg(value_name = "IMG:PATH")]
    pub(crate) path: OsString,
    /// b (block device), c or u (character device), p (pipe) or s (socket).
    #[arg(value_name = "TYPE", value_parser = ["b", "c", "u", "p", "s"])]
    pub(crate) kind: String,
    /// Major number of a device.
    #[arg(required_if_eq_any([("kind", "b"), ("kind", "c"), ("kind", "u")]), requires = "minor")]
    pub(crate) major: Option<u32>,
    /// Minor number of a device.
    pub(crate) minor: Option<u32>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Make named pipes in an image.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant mkfifo root.img:/run/log"))]
pub(crate) struct MkfifoArgs {
    /// Mode: octal, or as for chmod, from 0666 on.
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<ModeChange>,
    /// The names to make.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Remove files and directories from an image.
///
/// Symbolic links are removed, not what they lead to.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant rm root.img:/etc/machine-id
  extant rm -rf 'root.img:/var/cache/*' root.img:/srv/old"))]
pub(crate) struct RmArgs {
    /// Directories with everything below them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Do not mind what is not there.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Empty directories too.
    #[arg(short, long)]
    pub(crate) dir: bool,
    /// Print each file that was removed, and at the end the time and memory that the command took.
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// What to remove.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Move and rename files and directories inside an image.
///
/// What has the new name already is replaced, unless it is a directory with something in it.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant mv root.img:/etc/motd root.img:/etc/issue
  extant mv 'root.img:/usr/lib/*.so' root.img:/opt/lib
  extant mv --exchange root.img:/slot-a root.img:/slot-b"))]
pub(crate) struct MvArgs {
    /// Refuse to replace what has the new name already.
    #[arg(short, long, conflicts_with = "exchange")]
    pub(crate) no_clobber: bool,
    /// Exchange the two: each gets the other's name.
    #[arg(long)]
    pub(crate) exchange: bool,
    /// The last path is the new name, also if a directory has it.
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// What to move, and last where to: a directory, or a new name.
    #[arg(required = true, num_args = 2.., value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Make hard and symbolic links in an image.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant ln root.img:/bin/busybox root.img:/bin/sh
  extant ln -s ../usr/share/zoneinfo/UTC root.img:/etc/localtime     the target is text, without the image
  extant ln -s -f /usr/lib/os-release root.img:/etc/os-release"))]
pub(crate) struct LnArgs {
    /// Symbolic links.
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace what has the link's name already, unless it is a directory.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// The last path is the link, also if a directory has that name.
    #[arg(short = 'T', long)]
    pub(crate) no_target_directory: bool,
    /// What the links lead to, and last the link: a new name, or a directory to make the links in.
    #[arg(required = true, num_args = 2.., value_name = "TARGET")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Change the permissions of files in an image.
///
/// MODE is octal (0755) or symbolic as in chmod(1): u=rwx,go+rX, parts set apart by commas, also copies like
/// g=u. One that begins with - stands behind --. Symbolic links are followed; -R leaves those that it finds
/// alone.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant chmod 0600 root.img:/etc/shadow
  extant chmod -R u=rwX,go=rX root.img:/srv/www
  extant chmod -- -x root.img:/usr/bin/nc"))]
pub(crate) struct ChmodArgs {
    /// Directories with everything below them.
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// The mode: octal, or like u=rwx,go=rX, +x, -x.
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    pub(crate) mode: ModeChange,
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Change the owners of files in an image, by numbers.
///
/// Names are in the image's own /etc/passwd, which this does not read. As the system call does, this takes
/// the setuid bit off a file, and the setgid bit off an executable one.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_help_flag = true, after_help = format!("{PATHS_HELP}\n\nExamples:
  extant chown 1000:1000 root.img:/srv/ann
  extant chown -R 33 root.img:/srv/www
  extant chown :4 'root.img:/var/log/*.log'"))]
pub(crate) struct ChownArgs {
    /// Directories with everything below them; symbolic links in there themselves.
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    #[command(flatten)]
    pub(crate) links: LinksArg,
    /// UID, UID:GID or :GID.
    #[arg(value_name = "OWNER", value_parser = parse_owner)]
    pub(crate) owner: Owner,
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Set the project of files in an image, by its number.
///
/// Projects are trees of files whose space and inodes are counted together, whatever their owners (quota type
/// prjquota). Every file has one; 0 is the default. The file system needs the feature `project`.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_help_flag = true, after_help = format!("{PATHS_HELP}\n\nExamples:
  extant project -R -s 42 root.img:/srv/www      the tree, and what will be made in it
  extant project 0 root.img:/srv/www/shared"))]
pub(crate) struct ProjectArgs {
    /// Directories with everything below them; symbolic links in there themselves.
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// What is made in the directories from now on gets their project too, and files of other projects cannot
    /// be moved there.
    #[arg(short = 's', long)]
    pub(crate) inherit: bool,
    /// No more of that.
    #[arg(long, conflicts_with = "inherit")]
    pub(crate) no_inherit: bool,
    #[command(flatten)]
    pub(crate) links: LinksArg,
    /// The project's number.
    #[arg(value_name = "ID")]
    pub(crate) id: u32,
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Show and change extended attributes.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant xattr list root.img:/usr/bin/ping
  extant xattr get security.capability root.img:/usr/bin/ping
  extant xattr set user.origin template 'root.img:/etc/**'
  extant xattr set user.raw 0x00ff10 root.img:/etc/motd
  extant xattr remove user.origin root.img:/etc/motd"))]
pub(crate) struct XattrArgs {
    #[command(subcommand)]
    pub(crate) command: XattrCommand,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum XattrCommand {
    /// Print an attribute: text in quotes, everything else in hex.
    #[command(disable_help_flag = true)]
    Get {
        /// Print the value's bytes as they are.
        #[arg(long, visible_alias = "only-values")]
        raw: bool,
        #[command(flatten)]
        links: LinksArg,
        /// Full name, like user.comment.
        name: OsString,
        /// The files.
        #[arg(required = true, value_name = "IMG:PATH")]
        paths: Vec<OsString>,
    },
    /// Set an attribute.
    #[command(disable_help_flag = true)]
    Set {
        /// Refuse when it is there already.
        #[arg(long, conflicts_with = "replace")]
        create: bool,
        /// Refuse when it is not there yet.
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        links: LinksArg,
        /// Full name, like user.comment.
        name: OsString,
        /// Text, or bytes in hex behind 0x.
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// The files.
        #[arg(required = true, value_name = "IMG:PATH")]
        paths: Vec<OsString>,
    },
    /// Remove an attribute.
    #[command(disable_help_flag = true)]
    Remove {
        #[command(flatten)]
        links: LinksArg,
        /// Full name, like user.comment.
        name: OsString,
        /// The files.
        #[arg(required = true, value_name = "IMG:PATH")]
        paths: Vec<OsString>,
    },
    /// Print all attributes, ACLs among them.
    #[command(disable_help_flag = true)]
    List {
        #[command(flatten)]
        links: LinksArg,
        /// The files.
        #[arg(required = true, value_name = "IMG:PATH")]
        paths: Vec<OsString>,
    },
}

/// The meaning of `-h` in chown(1) and setfattr(1); so help is `--help` here.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct LinksArg {
    /// Of symbolic links themselves.
    #[arg(short = 'h', long)]
    pub(crate) no_dereference: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Write standard input, or a file, into a file of an image.
///
/// A file that is there keeps its owner, mode and names, and gets new content; one that is not is made, of
/// root's (0:0), with mode 0644.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  echo box7 | extant put root.img:/etc/hostname
  date | extant put --append root.img:/var/log/edits
  extant put --from site.key -m 0600 root.img:/etc/ssl/site.key"))]
pub(crate) struct PutArgs {
    /// Behind what is there, instead of in its place.
    #[arg(short, long)]
    pub(crate) append: bool,
    /// Mode that the file gets: octal, or as for chmod.
    #[arg(short, long, value_name = "MODE")]
    pub(crate) mode: Option<ModeChange>,
    /// What to read instead of standard input; a script needs it.
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// The file.
    #[arg(value_name = "IMG:PATH")]
    pub(crate) path: OsString,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Reserve, free, zero, take out or insert a range of a file in an image.
///
/// Without an option the range gets blocks, and the file grows if the range ends behind it.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant fallocate root.img:/swapfile 0 4G
  extant fallocate --punch root.img:/var/log/old.log 0 1M
  extant fallocate --collapse root.img:/data.bin 4K 8K"))]
pub(crate) struct FallocateArgs {
    /// The size of the file stays.
    #[arg(short = 'n', long, conflicts_with_all = ["punch", "collapse", "insert"])]
    pub(crate) keep_size: bool,
    /// Make a hole of the range: its blocks are freed, it reads as zeros.
    #[arg(short, long, visible_alias = "punch-hole", group = "what")]
    pub(crate) punch: bool,
    /// Make zeros of the range, with blocks reserved.
    #[arg(short, long, visible_alias = "zero-range", group = "what")]
    pub(crate) zero: bool,
    /// Take the range out: what is behind it moves to the front. Whole blocks.
    #[arg(short, long, visible_alias = "collapse-range", group = "what")]
    pub(crate) collapse: bool,
    /// Make room: what is there and behind moves back. Whole blocks.
    #[arg(short, long, visible_alias = "insert-range", group = "what")]
    pub(crate) insert: bool,
    /// The files.
    #[arg(value_name = "IMG:PATH")]
    pub(crate) path: OsString,
    /// Where the range begins, in bytes, like 4096 or 1M.
    #[arg(value_parser = crate::sizes::parse_size)]
    pub(crate) offset: u64,
    /// How long it is.
    #[arg(value_parser = crate::sizes::parse_size)]
    pub(crate) len: u64,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Set the size of files in an image.
///
/// What is cut off is freed; what is added is a hole, which reads as zeros. Files that are not there are
/// made.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = format!("{PATHS_HELP}\n\nExamples:
  extant truncate -s 0 'root.img:/var/log/*.log'
  extant truncate -s 4G root.img:/swapfile
  extant truncate -s -1K root.img:/data.bin"))]
pub(crate) struct TruncateArgs {
    /// Bytes, like 4096, 512K or 1.5G; with + or - in front, more or less than now.
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, value_parser = parse_resize)]
    pub(crate) size: Resize,
    /// Do not make files that are not there.
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Make empty files in an image, or set the times of files to now.
///
/// New files belong to root (0:0), with mode 0644.
#[derive(Debug, Clone, clap::Args)]
#[command(disable_help_flag = true, after_help = format!("{PATHS_HELP}\n\nExamples:
  extant touch root.img:/etc/machine-id
  extant touch -d 2024-05-06 'root.img:/etc/*.conf'"))]
pub(crate) struct TouchArgs {
    /// Do not make files that are not there.
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
    /// Only the time of the last access.
    #[arg(short = 'a')]
    pub(crate) access: bool,
    /// Only the time of the last change.
    #[arg(short = 'm')]
    pub(crate) modification: bool,
    #[command(flatten)]
    pub(crate) links: LinksArg,
    /// Not now, but then: 2024-05-06, 2024-05-06T07:08:09Z (UTC, or with +02:00), or @SECONDS since 1970.
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) date: Option<extant::Timestamp>,
    /// The files.
    #[arg(required = true, value_name = "IMG:PATH")]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) journal: JournalArg,
}

/// Owner and group; `None` leaves one unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

fn parse_owner(text: &str) -> Result<Owner, String> {
    let number = |text: &str| match text {
        "" => Ok(None),
        // The system call takes the last number as "unchanged".
        _ => text.parse().ok().filter(|id| *id != u32::MAX).map(Some).ok_or_else(|| {
            format!("\"{text}\" is no number; the names of owners are in the image's own /etc/passwd")
        }),
    };
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    let owner = Owner { uid: number(uid)?, gid: number(gid)? };
    match owner {
        Owner { uid: None, gid: None } => Err("an owner is UID, UID:GID or :GID".to_owned()),
        owner => Ok(owner),
    }
}

/// How a size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resize {
    To(u64),
    By(i64),
}

fn parse_resize(text: &str) -> Result<Resize, String> {
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'+') => (1, &text[1..]),
        Some(b'-') => (-1, &text[1..]),
        _ => (0, text),
    };
    let bytes = crate::sizes::parse_size(digits)?;
    match sign {
        0 => Ok(Resize::To(bytes)),
        sign => i64::try_from(bytes)
            .map(|bytes| Resize::By(sign * bytes))
            .map_err(|_| format!("\"{text}\" is too large")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_sizes_and_times_are_parsed() {
        let owner = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!(parse_owner("7"), owner(Some(7), None));
        assert_eq!(parse_owner("7:8"), owner(Some(7), Some(8)));
        assert_eq!(parse_owner(":8"), owner(None, Some(8)));
        assert_eq!(parse_owner("7:"), owner(Some(7), None));
        for wrong in ["", ":", "root", "1:x", "4294967295", "-1", "1:2:3"] {
            assert!(parse_owner(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_resize("4K"), Ok(Resize::To(4096)));
        assert_eq!(parse_resize("+1"), Ok(Resize::By(1)));
        assert_eq!(parse_resize("-1K"), Ok(Resize::By(-1024)));
        assert!(parse_resize("+-1").is_err());
    }
}
