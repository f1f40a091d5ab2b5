//! A fake kernel sends random requests to a server: well-formed ones with arbitrary values, truncated ones,
//! ones with a wrong length, and unknown operations. Each request that expects a reply gets exactly one, of
//! the form in the protocol's table. Nothing panics or hangs, and the file system is consistent afterwards.
//!
//! Runs for a second. `FAKE_KERNEL_SECONDS` sets another duration, `FAKE_KERNEL_SEED` the seed.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use extant_device::FileDevice;
use extant_fuse::{MountOptions, Server, Threads, WritebackCache, serve_connection};
use extant_fuse_lowlevel::operation::{Answer, TABLE, row_of};
use extant_fuse_lowlevel::protocol::{EntryOut, InHeader, InitIn, OutHeader};
use extant_testkit::trees::Random;
use extant_volume::{OpenOptions, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use zerocopy::{FromBytes, IntoBytes};

/// A reply that takes longer than this counts as a hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest request and reply: the limit of a message on the socket.
const MESSAGE_MAX: usize = 64 << 10;

struct Kernel {
    socket: OwnedFd,
    random: Random,
    unique: u64,
    /// Node ids and file handles from replies.
    nodes: Vec<u64>,
    handles: Vec<u64>,
    /// The last truncated request without a reply in the protocol. Another thread of the server may send
    /// the error for it after the reply to a later request.
    truncated: u64,
    sent: u64,
    refused: u64,
}

impl Kernel {
    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn pick(&mut self, numbers: &[u64]) -> u64 {
        numbers[self.below(numbers.len())]
    }

    /// A random value for a field: small, large, like an inode number, like an offset.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => self.random.below(16),
            2 => self.random.below(4096),
            3 => self.random.below(1 << 20),
            4 => self.random.below(1 << 33),
            5 => u64::MAX - self.random.below(4),
            6 => 1 << self.below(64),
            _ => self.random.below(u64::MAX),
        }
    }

    fn name(&mut self) -> Vec<u8> {
        match self.below(12) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => vec![b'n'; self.below(300)],
            3 => (0..self.below(20)).map(|_| self.random.below(256) as u8).collect(),
            4 => b"user.a".to_vec(),
            5 => b"system.posix_acl_access".to_vec(),
            _ => format!("f{}", self.below(20)).into_bytes(),
        }
    }

    fn fixed(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let number = match self.below(3) {
                0 if !self.handles.is_empty() => {
                    let handles = std::mem::take(&mut self.handles);
                    let handle = self.pick(&handles);
                    self.handles = handles;
                    handle
                }
                1 => u64::from(self.below(0x1_0000) as u16) | (self.number() << 32),
                _ => self.number(),
            };
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        bytes.truncate(len);
        bytes
    }

    /// A random request: header and body.
    fn request(&mut self) -> (InHeader, Vec<u8>) {
        let row = TABLE[self.below(TABLE.len())];
        let opcode = if self.below(200) == 0 { self.number() as u32 } else { row.opcode };
        let mut body = self.fixed(row.fixed);
        // The length field is usually right.
        let data_len = self.below(6000);
        match row.name {
            "write" => body[16..20].copy_from_slice(&(data_len as u32).to_ne_bytes()),
            "setxattr" => body[..4].copy_from_slice(&(data_len as u32).to_ne_bytes()),
            "ioctl" => body[24..28].copy_from_slice(&(data_len as u32).to_ne_bytes()),
            "read" | "readdir" | "readdirplus" => {
                body[16..20]
                    .copy_from_slice(&(self.random.below(MESSAGE_MAX as u64 / 2) as u32).to_ne_bytes());
            }
            "getxattr" | "listxattr" => body[..4].copy_from_slice(&(data_len as u32).to_ne_bytes()),
            // Offsets are usually small, because the truncation of a very large file takes seconds.
            "fallocate" | "copy_file_range" if self.below(4) > 0 => {
                body[8..16].copy_from_slice(&self.random.below(1 << 22).to_ne_bytes());
                body[16..24].copy_from_slice(&self.random.below(1 << 22).to_ne_bytes());
            }
            _ => {}
        }
        if self.below(2) == 0 && row.name == "write" {
            body[8..16].copy_from_slice(&self.random.below(1 << 22).to_ne_bytes());
        }
        let names = if matches!(row.name, "symlink" | "rename" | "rename2") { 2 } else { 1 };
        for _ in 0..names {
            body.extend(self.name());
            body.push(0);
        }
        body.extend((0..data_len).map(|at| at as u8));
        if self.below(50) == 0 {
            body.truncate(self.below(body.len() + 1));
        }
        if opcode == 15 && body.len() >= 20 {
            // READ, perhaps with other bytes as its fields: a socket takes no longer reply.
            body[16..20].copy_from_slice(&(self.below(MESSAGE_MAX / 2) as u32).to_ne_bytes());
        }
        self.unique += 2;
        let nodes = std::mem::take(&mut self.nodes);
        let nodeid = if self.below(20) == 0 { self.number() } else { self.pick(&nodes) };
        self.nodes = nodes;
        let id = if self.below(2) == 0 { 0 } else { 1000 };
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let pid = if self.below(4) == 0 { self.number() as u32 } else { std::process::id() };
        (
            InHeader {
                len,
                opcode,
                unique: self.unique,
                nodeid,
                uid: id,
                gid: id,
                pid,
                ..InHeader::default()
            },
            body,
        )
    }

    fn send(&mut self, header: &InHeader, body: &[u8]) {
        rustix::io::writev(&self.socket, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)]).unwrap();
        self.sent += 1;
    }

    /// Receives the reply to a request. Skips invalidations that arrive before it.
    fn receive(&mut self, header: &InHeader) -> (OutHeader, Vec<u8>) {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            assert!(poll(&mut fds, Some(&wait)).unwrap() > 0, "no reply to {header:?}");
            let mut reply = vec![0; 2 * MESSAGE_MAX];
            let len = rustix::io::read(&self.socket, &mut reply).unwrap();
            assert!(len > 0, "the server has ended at {header:?}");
            reply.truncate(len);
            let (out, body) = OutHeader::read_from_prefix(&reply).unwrap();
            assert_eq!(out.len as usize, len);
            if out.unique == 0 || out.unique == self.truncated {
                continue;
            }
            assert_eq!(out.unique, header.unique, "a reply to another request");
            return (out, body.to_vec());
        }
    }

    /// Sends a random request, and checks its reply.
    fn ask(&mut self) {
        let (header, body) = self.request();
        let row = row_of(header.opcode);
        self.send(&header, &body);
        let malformed_forget = row.is_some_and(|row| row.answer == Answer::Never) && body.len() < 16;
        if malformed_forget {
            // A truncated request of this kind is answered with an error.
            return self.drain(&header);
        }
        if row.is_some_and(|row| row.answer == Answer::Never) {
            return;
        }
        let (out, answer) = self.receive(&header);
        if out.error != 0 {
            assert!((-4095..0).contains(&out.error), "{out:?}");
            assert!(answer.is_empty(), "an error with an answer: {header:?}");
            self.refused += 1;
            return;
        }
        let row = row.expect("an unknown operation is refused");
        match row.answer {
            Answer::Fixed(size) => assert_eq!(answer.len(), size, "{}", row.name),
            Answer::Empty => assert!(answer.is_empty(), "{}", row.name),
            Answer::Data | Answer::Xattr | Answer::Ioctl => {
                assert!(answer.len() <= MESSAGE_MAX, "{}", row.name)
            }
            Answer::Never => unreachable!("not received"),
        }
        let number = || answer.get(..8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap()));
        match row.name {
            "lookup" | "mknod" | "mkdir" | "symlink" | "link" | "create" | "tmpfile" => {
                self.nodes.extend(number().filter(|node| *node != 0));
            }
            "open" => self.handles.extend(number()),
            _ => {}
        }
        if self.nodes.len() > 60 {
            self.nodes.remove(1);
        }
        self.handles.truncate(20);
    }

    /// Sends a GETATTR of the root, and skips all messages before its reply.
    fn drain(&mut self, skipped: &InHeader) {
        self.unique += 2;
        self.truncated = skipped.unique;
        let len = (size_of::<InHeader>() + 16) as u32;
        let header = InHeader { len, opcode: 3, unique: self.unique, nodeid: 1, ..InHeader::default() };
        self.send(&header, &[0; 16]);
        let mut reply = vec![0; 2 * MESSAGE_MAX];
        loop {
            let len = rustix::io::read(&self.socket, &mut reply).unwrap();
            let (out, _) = OutHeader::read_from_prefix(&reply[..len]).unwrap();
            if out.unique == header.unique {
                return;
            }
            assert!(out.unique == 0 || out.unique == skipped.unique, "{out:?}");
        }
    }

    /// Sends a request, and returns its reply.
    fn call(&mut self, opcode: u32, nodeid: u64, body: &[u8]) -> (OutHeader, Vec<u8>) {
        self.unique += 2;
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: self.unique, nodeid, ..InHeader::default() };
        self.send(&header, body);
        self.receive(&header)
    }

    fn init(&mut self) {
        let init =
            InitIn { major: 7, minor: 45, max_readahead: 1 << 20, flags: u32::MAX, ..InitIn::default() };
        let len = (size_of::<InHeader>() + size_of::<InitIn>()) as u32;
        let header = InHeader { len, opcode: 26, unique: 1, ..InHeader::default() };
        self.send(&header, init.as_bytes());
    }
}

fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn whatever_the_kernel_sends_is_answered_and_the_file_system_stays_consistent() {
    let end = Instant::now() + Duration::from_secs(knob("FAKE_KERNEL_SECONDS", 1));
    let mut seed = knob("FAKE_KERNEL_SEED", 1);
    while Instant::now() < end {
        round(seed, end.min(Instant::now() + Duration::from_secs(10)));
        seed += 1;
    }
}

/// A server of a new image, and the fake kernel that is connected to it.
struct Served {
    kernel: Kernel,
    server: Arc<Server>,
    serving: std::thread::JoinHandle<std::io::Result<()>>,
    has_panicked: Arc<AtomicBool>,
    image: std::path::PathBuf,
    _scratch: tempfile::TempDir,
}

impl Served {
    fn new(seed: u64, size: &str, options: MountOptions) -> Self {
        let scratch = extant_testkit::scratch();
        let image = scratch.path().join("image");
        extant_testkit::run("mke2fs", ["-q", "-F", "-t", "ext4", image.to_str().unwrap(), size]);
        let device = Arc::new(FileDevice::open_locked(&image).unwrap());
        let volume = Volume::open(device, &OpenOptions::default()).unwrap();
        let has_panicked = Arc::new(AtomicBool::new(false));
        let report = {
            let has_panicked = Arc::clone(&has_panicked);
            move |text: &str| {
                if text.contains("internal error") {
                    eprintln!("{text}");
                    has_panicked.store(true, Ordering::Relaxed);
                }
            }
        };
        let server = Arc::new(Server::new(volume, Box::new(report)).with_opens());
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let serving = {
            let server = Arc::clone(&server);
            std::thread::spawn(move || serve_connection(server, theirs, &options, Threads { count: 3 }))
        };
        let random = Random::new(seed);
        let mut kernel = Kernel {
            socket: ours,
            random,
            unique: 2,
            nodes: vec![1],
            handles: Vec::new(),
            truncated: 0,
            sent: 0,
            refused: 0,
        };
        kernel.init();
        let _ = kernel.receive(&InHeader { unique: 1, ..InHeader::default() });
        Self { kernel, server, serving, has_panicked, image, _scratch: scratch }
    }

    /// Ends the connection and checks the image.
    fn end(self) {
        // Read up to the end: if the socket were closed with unread invalidations, the server would get
        // ECONNRESET instead of the end of the connection.
        let socket = &self.kernel.socket;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Write).unwrap();
        let mut message = vec![0; 2 * MESSAGE_MAX];
        while rustix::io::read(socket, &mut message).unwrap() > 0 {}
        self.serving.join().unwrap().unwrap();
        assert!(!self.has_panicked.load(Ordering::Relaxed), "a panic");
        let closed = self.server.close();
        // After EXT4_IOC_SHUTDOWN the close fails, and the journal has to be replayed.
        if closed.is_err() {
            let device = Arc::new(FileDevice::open_locked(&self.image).unwrap());
            Volume::open(device, &OpenOptions::default()).unwrap().close().unwrap();
        }
        extant_testkit::e2fsck_clean(&self.image);
    }
}

fn round(seed: u64, end: Instant) {
    let options = MountOptions {
        read_only: false,
        default_permissions: seed.is_multiple_of(2),
        writeback_cache: if seed.is_multiple_of(3) { WritebackCache::Always } else { WritebackCache::Never },
        ..MountOptions::new("fake")
    };
    println!("seed {seed}");
    let mut served = Served::new(seed, "32M", options);
    let kernel = &mut served.kernel;
    while Instant::now() < end {
        kernel.ask();
    }
    assert!(kernel.refused < kernel.sent, "seed {seed}: everything is refused");
    println!("{} requests, {} refused", kernel.sent, kernel.refused);
    served.end();
}

/// The kernel ignores the size in the reply to a write from its page cache. If space ends within such a
/// write, the reply must be an error, or the loss is never reported to the writer.
#[test]
fn a_write_from_the_page_cache_is_refused_if_it_is_short() {
    const CREATE: u32 = 35;
    const WRITE: u32 = 16;
    const WRITE_CACHE: u32 = 1;
    let options = MountOptions {
        read_only: false,
        writeback_cache: WritebackCache::Always,
        ..MountOptions::new("fake")
    };
    let mut served = Served::new(1, "8M", options);
    let kernel = &mut served.kernel;
    let mut create = vec![0; 16];
    create[..4].copy_from_slice(&2u32.to_ne_bytes());
    create[4..8].copy_from_slice(&0o100_644_u32.to_ne_bytes());
    create.extend(b"f\0");
    let (out, made) = kernel.call(CREATE, 1, &create);
    assert_eq!(out.error, 0);
    let number = |at: usize| u64::from_ne_bytes(made[at..at + 8].try_into().unwrap());
    let (node, handle) = (number(0), number(size_of::<EntryOut>()));
    // Writes of 61 blocks, so that the free space is not a multiple of their size.
    let size = 61 << 10;
    let mut written = 0;
    let error = loop {
        let mut write = Vec::new();
        write.extend(handle.to_ne_bytes());
        write.extend((written as u64).to_ne_bytes());
        write.extend((size as u32).to_ne_bytes());
        write.extend(WRITE_CACHE.to_ne_bytes());
        write.resize(40, 0);
        write.resize(40 + size, 7);
        let (out, answer) = kernel.call(WRITE, node, &write);
        if out.error != 0 {
            break out.error;
        }
        assert_eq!(answer[..4], (size as u32).to_ne_bytes(), "a short write at {written}");
        written += size;
        assert!(written < 8 << 20, "more than there is");
    };
    assert_eq!(error, -28);
    served.end();
}
