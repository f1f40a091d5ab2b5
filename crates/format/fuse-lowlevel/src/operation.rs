//! Requests: one table of all operations, and the parser that it drives.
//!
//! A request is a header, a structure of fixed size, and a tail: a name, two names, bytes, or nothing. The
//! table states these for each operation, with what a reply without an error holds. /dev/fuse delivers the
//! parts one after the other, io_uring delivers structure and tail in two buffers; both give the parser the
//! same three slices.
//!
//! Invariants
//! 1. Every byte of a request is checked before it is used: a request that is too short, or whose name is not
//!    terminated, is [`Malformed`], whatever the rest says.
//! 2. An operation that the table lacks is [`Operation::Unknown`], which a server answers with ENOSYS.

use zerocopy::{FromBytes, IntoBytes};

use crate::protocol::{
    AccessIn, BatchForgetIn, BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn, ForgetOne,
    FsyncIn, GetattrIn, GetxattrIn, InHeader, InitIn, InterruptIn, IoctlIn, LinkIn, LkIn, LseekIn, MkdirIn,
    MknodIn, OpenIn, PollIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn, StatxIn,
    SyncfsIn, WriteIn,
};

/// Why a request cannot be parsed. The kernel never sends such a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// The request is shorter than its header, its structure or its length field requires.
    Short,
    /// A name without its terminating zero, or an empty one.
    Name,
}

/// What a reply without an error holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// There is no reply.
    Never,
    /// The header alone.
    Empty,
    /// A structure of this size.
    Fixed(usize),
    /// At most as many bytes as the request's size field says.
    Data,
    /// [`Data`](Self::Data), or only its size if the request's size is 0.
    Xattr,
    /// A structure of 16 bytes, then at most as many bytes as the request says.
    Ioctl,
}

/// One operation in the protocol's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its number.
    pub opcode: u32,
    /// Its name in the header, without the prefix, in lower case.
    pub name: &'static str,
    /// Size of its fixed structure.
    pub fixed: usize,
    /// Size of this structure in older kernels.
    pub fixed_min: usize,
    /// What a reply holds.
    pub answer: Answer,
}

/// What follows the fixed structure.
trait Tail<'a>: Sized {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed>;
}

impl<'a> Tail<'a> for () {
    fn parse(_: &'a [u8]) -> Result<Self, Malformed> {
        Ok(())
    }
}

/// One name, without its terminating zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Name<'a>(pub &'a [u8]);

/// Two names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names<'a>(pub &'a [u8], pub &'a [u8]);

/// A name and the bytes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameAndBytes<'a>(pub &'a [u8], pub &'a [u8]);

/// Bytes up to the end of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes<'a>(pub &'a [u8]);

/// A name, and what follows its zero.
fn name(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    match bytes.iter().position(|byte| *byte == 0) {
        None | Some(0) => Err(Malformed::Name),
        Some(end) => Ok((&bytes[..end], &bytes[end + 1..])),
    }
}

impl<'a> Tail<'a> for Name<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        name(bytes).map(|(name, _)| Self(name))
    }
}

impl<'a> Tail<'a> for Names<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (first, rest) = name(bytes)?;
        name(rest).map(|(second, _)| Self(first, second))
    }
}

impl<'a> Tail<'a> for NameAndBytes<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        name(bytes).map(|(name, rest)| Self(name, rest))
    }
}

impl<'a> Tail<'a> for Bytes<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self(bytes))
    }
}

/// Parses the fixed structure. If an older kernel sent a shorter one, the missing fields are zero.
fn fixed<T: FromBytes + IntoBytes + zerocopy::Immutable + Default>(bytes: &[u8]) -> Result<T, Malformed> {
    if let Ok(whole) = T::read_from_bytes(bytes) {
        return Ok(whole);
    }
    let mut value = T::default();
    let into = value.as_mut_bytes();
    into.get_mut(..bytes.len()).ok_or(Malformed::Short)?.copy_from_slice(bytes);
    Ok(value)
}

/// No fixed structure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub struct Nothing {}

macro_rules! operations {
    ($($opcode:literal $variant:ident ($fixed:ident, $tail:ty) $name:literal $answer:expr,)*) => {
        /// What the kernel requests: the operation's structure and its tail.
        #[derive(Debug, Clone, Copy, PartialEq)]
        #[allow(missing_docs)]
        pub enum Operation<'a> {
            $($variant($fixed, $tail),)*
            /// An operation of a later version of the protocol.
            Unknown,
        }

        /// All operations of the protocol that a file system can serve.
        pub const TABLE: &[Row] = &[
            $(Row {
                opcode: $opcode,
                name: $name,
                fixed: size_of::<$fixed>(),
                fixed_min: fixed_min($opcode, size_of::<$fixed>()),
                answer: $answer,
            },)*
        ];

        fn operation<'a>(opcode: u32, head: &[u8], tail: &'a [u8]) -> Result<Operation<'a>, Malformed> {
            Ok(match opcode {
                $($opcode => Operation::$variant(fixed(head)?, <$tail as Tail<'a>>::parse(tail)?),)*
                _ => Operation::Unknown,
            })
        }
    };
}

/// SETXATTR's structure is 8 bytes long without [`SETXATTR_EXT`](crate::protocol::init::SETXATTR_EXT), INIT's
/// 16 before 7.36.
const fn fixed_min(opcode: u32, size: usize) -> usize {
    match opcode {
        21 => 8,
        26 => 16,
        _ => size,
    }
}

const ENTRY: Answer = Answer::Fixed(128);
const ATTR: Answer = Answer::Fixed(104);
const OPEN: Answer = Answer::Fixed(16);
const WRITE: Answer = Answer::Fixed(8);

operations! {
    1 Lookup(Nothing, Name<'a>) "lookup" ENTRY,
    2 Forget(ForgetIn, ()) "forget" Answer::Never,
    3 Getattr(GetattrIn, ()) "getattr" ATTR,
    4 Setattr(SetattrIn, ()) "setattr" ATTR,
    5 Readlink(Nothing, ()) "readlink" Answer::Data,
    6 Symlink(Nothing, Names<'a>) "symlink" ENTRY,
    8 Mknod(MknodIn, Name<'a>) "mknod" ENTRY,
    9 Mkdir(MkdirIn, Name<'a>) "mkdir" ENTRY,
    10 Unlink(Nothing, Name<'a>) "unlink" Answer::Empty,
    11 Rmdir(Nothing, Name<'a>) "rmdir" Answer::Empty,
    12 Rename(RenameIn, Names<'a>) "rename" Answer::Empty,
    13 Link(LinkIn, Name<'a>) "link" ENTRY,
    14 Open(OpenIn, ()) "open" OPEN,
    15 Read(ReadIn, ()) "read" Answer::Data,
    16 Write(WriteIn, Bytes<'a>) "write" WRITE,
    17 Statfs(Nothing, ()) "statfs" Answer::Fixed(80),
    18 Release(ReleaseIn, ()) "release" Answer::Empty,
    20 Fsync(FsyncIn, ()) "fsync" Answer::Empty,
    21 Setxattr(SetxattrIn, NameAndBytes<'a>) "setxattr" Answer::Empty,
    22 Getxattr(GetxattrIn, Name<'a>) "getxattr" Answer::Xattr,
    23 Listxattr(GetxattrIn, ()) "listxattr" Answer::Xattr,
    24 Removexattr(Nothing, Name<'a>) "removexattr" Answer::Empty,
    25 Flush(FlushIn, ()) "flush" Answer::Empty,
    26 Init(InitIn, ()) "init" Answer::Fixed(64),
    27 Opendir(OpenIn, ()) "opendir" OPEN,
    28 Readdir(ReadIn, ()) "readdir" Answer::Data,
    29 Releasedir(ReleaseIn, ()) "releasedir" Answer::Empty,
    30 Fsyncdir(FsyncIn, ()) "fsyncdir" Answer::Empty,
    31 Getlk(LkIn, ()) "getlk" Answer::Fixed(24),
    32 Setlk(LkIn, ()) "setlk" Answer::Empty,
    33 Setlkw(LkIn, ()) "setlkw" Answer::Empty,
    34 Access(AccessIn, ()) "access" Answer::Empty,
    35 Create(CreateIn, Name<'a>) "create" Answer::Fixed(144),
    36 Interrupt(InterruptIn, ()) "interrupt" Answer::Empty,
    37 Bmap(BmapIn, ()) "bmap" Answer::Fixed(8),
    38 Destroy(Nothing, ()) "destroy" Answer::Empty,
    39 Ioctl(IoctlIn, Bytes<'a>) "ioctl" Answer::Ioctl,
    40 Poll(PollIn, ()) "poll" Answer::Fixed(8),
    41 NotifyReply(Nothing, Bytes<'a>) "notify_reply" Answer::Never,
    42 BatchForget(BatchForgetIn, Bytes<'a>) "batch_forget" Answer::Never,
    43 Fallocate(FallocateIn, ()) "fallocate" Answer::Empty,
    44 Readdirplus(ReadIn, ()) "readdirplus" Answer::Data,
    45 Rename2(Rename2In, Names<'a>) "rename2" Answer::Empty,
    46 Lseek(LseekIn, ()) "lseek" Answer::Fixed(8),
    47 CopyFileRange(CopyFileRangeIn, ()) "copy_file_range" WRITE,
    50 Syncfs(SyncfsIn, ()) "syncfs" Answer::Empty,
    51 Tmpfile(CreateIn, Name<'a>) "tmpfile" Answer::Fixed(144),
    52 Statx(StatxIn, ()) "statx" Answer::Fixed(288),
}

/// Index in [`TABLE`] of each opcode; [`u8::MAX`] for opcodes that the table lacks.
const INDEX: [u8; 64] = {
    let mut index = [u8::MAX; 64];
    let mut at = 0;
    while at < TABLE.len() {
        index[TABLE[at].opcode as usize] = at as u8;
        at += 1;
    }
    index
};

/// Index of an operation in [`TABLE`].
pub(crate) fn index_of(opcode: u32) -> Option<usize> {
    INDEX.get(opcode as usize).map(|at| usize::from(*at)).filter(|at| *at < TABLE.len())
}

/// Row of an operation in [`TABLE`].
#[must_use]
pub fn row_of(opcode: u32) -> Option<&'static Row> {
    TABLE.get(index_of(opcode)?)
}

/// Space for the structure of a request in an entry of a ring.
pub(crate) const FIXED_MAX: usize = 128;

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    header: InHeader,
    /// What the kernel requests.
    pub operation: Operation<'a>,
}

impl<'a> Request<'a> {
    /// A request in one piece, as it is read from /dev/fuse.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &'a [u8], layout: Layout) -> Result<Self, Malformed> {
        let (header, rest) = InHeader::read_from_prefix(bytes).map_err(|_| Malformed::Short)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Short);
        }
        let len = layout.fixed_len(header.opcode, rest.len());
        let (head, tail) = rest.split_at_checked(len).ok_or(Malformed::Short)?;
        Self::of(header, head, tail)
    }

    /// A request in the three buffers of a ring: `fixed` is larger than any structure.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse_parts(
        header: &[u8],
        fixed: &[u8],
        tail: &'a [u8],
        layout: Layout,
    ) -> Result<Self, Malformed> {
        let (header, _) = InHeader::read_from_prefix(header).map_err(|_| Malformed::Short)?;
        let len = layout.fixed_len(header.opcode, fixed.len());
        let head = fixed.get(..len).ok_or(Malformed::Short)?;
        Self::of(header, head, tail)
    }

    fn of(header: InHeader, head: &[u8], tail: &'a [u8]) -> Result<Self, Malformed> {
        let operation = operation(header.opcode, head, tail)?;
        // Check that the request has as many bytes as its length field states.
        let operation = match operation {
            Operation::Write(write, Bytes(bytes)) => {
                let bytes = bytes.get(..write.size as usize).ok_or(Malformed::Short)?;
                Operation::Write(write, Bytes(bytes))
            }
            Operation::Setxattr(set, NameAndBytes(name, value)) => {
                let value = value.get(..set.size as usize).ok_or(Malformed::Short)?;
                Operation::Setxattr(set, NameAndBytes(name, value))
            }
            Operation::Ioctl(ioctl, Bytes(bytes)) => {
                let bytes = bytes.get(..ioctl.in_size as usize).ok_or(Malformed::Short)?;
                Operation::Ioctl(ioctl, Bytes(bytes))
            }
            other => other,
        };
        Ok(Self { header, operation })
    }

    /// The request's number, which its reply repeats.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The operation's number.
    #[must_use]
    pub fn opcode(&self) -> u32 {
        self.header.opcode
    }

    /// The inode that the request is about, or the directory.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.header.nodeid
    }

    /// The caller's user id, or [`INVALID_ID`](crate::protocol::INVALID_ID).
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// The caller's group id, or [`INVALID_ID`](crate::protocol::INVALID_ID).
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// The calling thread; 0 if there is none, or if it is not visible in the server's PID namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.header.pid
    }
}

/// The pairs of a BATCH_FORGET: as many as its count states, limited to the pairs that it contains.
pub(crate) fn forgets(batch: BatchForgetIn, bytes: &[u8]) -> impl Iterator<Item = ForgetOne> {
    let pairs = bytes.chunks_exact(size_of::<ForgetOne>()).take(batch.count as usize);
    pairs.filter_map(|pair| ForgetOne::read_from_bytes(pair).ok())
}

/// The layout of requests, as INIT negotiated it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// [`SETXATTR_EXT`](crate::protocol::init::SETXATTR_EXT) was taken.
    pub setxattr_ext: bool,
}

impl Layout {
    fn fixed_len(self, opcode: u32, there: usize) -> usize {
        match row_of(opcode) {
            None => 0,
            Some(row) if opcode == 21 && !self.setxattr_ext => row.fixed_min,
            Some(row) if opcode == 26 => there.clamp(row.fixed_min, row.fixed),
            Some(row) => row.fixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, rest: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + rest.len()) as u32;
        let header = InHeader { len, opcode, unique: 7, nodeid: 1, ..InHeader::default() };
        [header.as_bytes(), rest].concat()
    }

    const EXT: Layout = Layout { setxattr_ext: true };

    #[test]
    fn names_end_with_a_zero_and_are_not_empty() {
        let lookup = |rest: &[u8]| {
            Request::parse(&request(1, rest), EXT).map(|request| match request.operation {
                Operation::Lookup(_, Name(name)) => name.to_vec(),
                other => panic!("{other:?}"),
            })
        };
        assert_eq!(lookup(b"name\0"), Ok(b"name".to_vec()));
        assert_eq!(lookup(b"name"), Err(Malformed::Name));
        assert_eq!(lookup(b"\0"), Err(Malformed::Name));
        assert_eq!(lookup(b""), Err(Malformed::Name));
        let rename = [&5_u64.to_ne_bytes()[..], b"a\0b\0"].concat();
        let parsed = request(12, &rename);
        let parsed = Request::parse(&parsed, EXT).unwrap();
        assert_eq!(parsed.operation, Operation::Rename(RenameIn { newdir: 5 }, Names(b"a", b"b")));
    }

    #[test]
    fn no_prefix_of_a_request_is_taken_for_it() {
        for row in TABLE {
            let rest: Vec<u8> = std::iter::repeat_n(0, row.fixed).chain(*b"a\0b\0").collect();
            let whole = request(row.opcode, &rest);
            assert!(Request::parse(&whole, EXT).is_ok(), "{}", row.name);
            for len in 0..whole.len() {
                assert!(Request::parse(&whole[..len], EXT).is_err(), "{} of {len} bytes", row.name);
            }
        }
    }

    #[test]
    fn bytes_that_a_request_says_it_has_are_there() {
        let write = WriteIn { size: 5, ..WriteIn::default() };
        let of =
            |bytes: &[u8]| Request::parse(&request(16, &[write.as_bytes(), bytes].concat()), EXT).is_ok();
        assert!(of(b"12345") && !of(b"1234"));
        let old = [&2_u32.to_ne_bytes()[..], &0_u32.to_ne_bytes(), b"user.a\0xy"].concat();
        let old = request(21, &old);
        let parsed = Request::parse(&old, Layout::default()).unwrap();
        let Operation::Setxattr(set, NameAndBytes(name, value)) = parsed.operation else { panic!() };
        assert_eq!((set.size, set.setxattr_flags, name, value), (2, 0, &b"user.a"[..], &b"xy"[..]));
    }

    #[test]
    fn opcodes_are_listed_once_and_in_order() {
        assert!(TABLE.windows(2).all(|pair| pair[0].opcode < pair[1].opcode));
        assert!(TABLE.iter().all(|row| row.fixed <= FIXED_MAX));
        assert_eq!(row_of(16).map(|row| row.name), Some("write"));
        assert_eq!(row_of(7), None);
    }
}
