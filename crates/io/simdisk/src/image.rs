//! The content of a disk: sparse, and cheap to copy.
//!
//! It is a tree of 64-way nodes over chunks of 4 KiB. Copies share nodes and chunks until one of them writes
//! there. A copy costs one reference. The first write to a chunk afterwards copies that chunk and the path to
//! it (two nodes in 16 MiB, six in 16 TiB).

use std::sync::Arc;

use extant_device::{Device, DeviceFault};

/// Bytes of a chunk.
const CHUNK: usize = 4096;
/// Children of a node, as a power of two.
const FAN_BITS: u32 = 6;
const FAN: usize = 1 << FAN_BITS;

type Chunk = [u8; CHUNK];
static ZEROS: Chunk = [0; CHUNK];

#[derive(Clone, Default)]
enum RadixNode {
    /// Reads as zeros.
    #[default]
    Empty,
    Inner(Arc<[RadixNode; FAN]>),
    Chunk(Arc<Chunk>),
}

/// The content of a disk. The cost of a clone is small and independent of the size. Bytes that were never
/// written read as zeros.
#[derive(Clone)]
pub struct Image {
    size: u64,
    /// Levels of inner nodes above the chunks.
    levels: u32,
    root: RadixNode,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes)", self.size)
    }
}

/// Splits `len` bytes at `offset` into parts that each lie in one chunk: (chunk, offset in it, range of the
/// buffer).
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let range = done..done + (CHUNK - within).min(len - done);
        done = range.end;
        Some((at / CHUNK as u64, within, range))
    })
}

/// The index of the child that leads to a chunk, in a node `level` levels above the chunks (1 is the lowest).
fn child_index(chunk: u64, level: u32) -> usize {
    (chunk >> (FAN_BITS * (level - 1))) as usize % FAN
}

impl Image {
    /// An image of `size` zero bytes.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let chunks = size.div_ceil(CHUNK as u64);
        let mut levels = 0;
        while levels * FAN_BITS < u64::BITS && chunks > 1 << (levels * FAN_BITS) {
            levels += 1;
        }
        Self { size, levels, root: RadixNode::Empty }
    }

    /// An image that holds `bytes`.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::new(bytes.len() as u64);
        for (start, piece) in (0..).step_by(CHUNK).zip(bytes.chunks(CHUNK)) {
            image.write_unless_zero(start, piece);
        }
        image
    }

    /// A copy of a device's current content. Chunks of zeros take no memory.
    ///
    /// # Errors
    /// A read fails.
    pub fn read_from(device: &dyn Device) -> Result<Self, DeviceFault> {
        let mut image = Self::new(device.size_bytes());
        let mut buf = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < image.size {
            let len = (image.size - offset).min(buf.len() as u64) as usize;
            device.read_at(offset, &mut buf[..len])?;
            for (start, piece) in (offset..).step_by(CHUNK).zip(buf[..len].chunks(CHUNK)) {
                image.write_unless_zero(start, piece);
            }
            offset += len as u64;
        }
        Ok(image)
    }

    /// Writes everything that is not zero to `device`, which must read as zeros and be at least as large: a
    /// new file for an external checker.
    ///
    /// # Errors
    /// A write fails.
    pub fn write_to(&self, device: &dyn Device) -> Result<(), DeviceFault> {
        self.for_each_chunk(|offset, bytes| device.write_at(offset, bytes))
    }

    /// Calls `each` with (offset in bytes, bytes) for every chunk of 4 KiB that was ever written, in
    /// ascending order. The last chunk may be shorter.
    ///
    /// # Errors
    /// The first error of `each`; it ends the walk.
    pub fn for_each_chunk<E>(&self, mut each: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        fn walk<E>(
            node: &RadixNode,
            first: u64,
            level: u32,
            each: &mut impl FnMut(u64, &Chunk) -> Result<(), E>,
        ) -> Result<(), E> {
            match node {
                RadixNode::Empty => Ok(()),
                RadixNode::Chunk(chunk) => each(first, chunk),
                RadixNode::Inner(children) => children.iter().enumerate().try_for_each(|(index, child)| {
                    walk(child, first + ((index as u64) << (FAN_BITS * (level - 1))), level - 1, each)
                }),
            }
        }
        walk(&self.root, 0, self.levels, &mut |chunk, bytes| {
            let offset = chunk * CHUNK as u64;
            each(offset, &bytes[..(self.size - offset).min(CHUNK as u64) as usize])
        })
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size
    }

    /// The node of a chunk, or an empty node above it.
    fn node(&self, chunk: u64) -> &RadixNode {
        let mut node = &self.root;
        let mut level = self.levels;
        while let RadixNode::Inner(children) = node {
            node = &children[child_index(chunk, level)];
            level -= 1;
        }
        node
    }

    fn chunk(&self, chunk: u64) -> Option<&Chunk> {
        match self.node(chunk) {
            RadixNode::Chunk(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The node of a chunk. Creates the path to it and makes it unshared.
    fn slot(&mut self, chunk: u64) -> &mut RadixNode {
        let mut node = &mut self.root;
        for level in (1..=self.levels).rev() {
            if matches!(node, RadixNode::Empty) {
                *node = RadixNode::Inner(Arc::new([const { RadixNode::Empty }; FAN]));
            }
            let RadixNode::Inner(children) = node else { unreachable!("chunks lie on level 0 only") };
            node = &mut Arc::make_mut(children)[child_index(chunk, level)];
        }
        node
    }

    /// Fills `buf` from byte `offset` on.
    ///
    /// # Panics
    /// The range ends after the image.
    pub fn read(&self, offset: u64, buf: &mut [u8]) {
        self.assert_inside(offset, buf.len() as u64);
        for (chunk, within, range) in parts(offset, buf.len()) {
            let len = range.len();
            buf[range].copy_from_slice(&self.chunk(chunk).unwrap_or(&ZEROS)[within..within + len]);
        }
    }

    /// Writes `bytes` at byte `offset`.
    ///
    /// # Panics
    /// The range ends after the image.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.assert_inside(offset, bytes.len() as u64);
        for (chunk, within, range) in parts(offset, bytes.len()) {
            let bytes = &bytes[range];
            let slot = self.slot(chunk);
            match slot {
                // Overwriting a whole shared chunk needs no copy of it.
                RadixNode::Chunk(old) if bytes.len() < CHUNK || Arc::strong_count(old) == 1 => {
                    Arc::make_mut(old)[within..within + bytes.len()].copy_from_slice(bytes);
                }
                _ => {
                    let mut new = ZEROS;
                    new[within..within + bytes.len()].copy_from_slice(bytes);
                    *slot = RadixNode::Chunk(Arc::new(new));
                }
            }
        }
    }

    fn write_unless_zero(&mut self, offset: u64, piece: &[u8]) {
        if *piece != ZEROS[..piece.len()] {
            self.write(offset, piece);
        }
    }

    /// Copies the bytes `offset..end` from an image of the same size. Whole chunks are shared with it.
    ///
    /// # Panics
    /// The sizes differ, or the range ends after the image.
    pub fn copy_range(&mut self, from: &Self, offset: u64, end: u64) {
        assert_eq!(self.size, from.size, "images of one size");
        self.assert_inside(offset, end - offset);
        let mut at = offset;
        while at < end {
            let chunk = at / CHUNK as u64;
            let within = (at % CHUNK as u64) as usize;
            let len = (CHUNK - within).min(usize::try_from(end - at).unwrap_or(CHUNK));
            match from.node(chunk) {
                RadixNode::Chunk(bytes) if len < CHUNK => self.write(at, &bytes[within..within + len]),
                node @ RadixNode::Chunk(_) => *self.slot(chunk) = node.clone(),
                _ if len < CHUNK => self.zero_inside(at, at + len as u64),
                _ => clear(&mut self.root, self.levels, chunk, chunk + 1),
            }
            at += len as u64;
        }
    }

    /// Makes a range read as zeros. Whole chunks of it are freed.
    ///
    /// # Panics
    /// The range ends after the image.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.assert_inside(offset, len);
        const SIZE: u64 = CHUNK as u64;
        let end = offset + len;
        let (first_whole, end_whole) = (offset.div_ceil(SIZE), end / SIZE);
        if first_whole > end_whole {
            return self.zero_inside(offset, end); // within one chunk
        }
        self.zero_inside(offset, first_whole * SIZE);
        clear(&mut self.root, self.levels, first_whole, end_whole);
        self.zero_inside(end_whole * SIZE, end);
    }

    /// Zeros a range within one chunk.
    fn zero_inside(&mut self, offset: u64, end: u64) {
        let chunk = offset / CHUNK as u64;
        if offset < end && self.chunk(chunk).is_some() {
            let within = (offset % CHUNK as u64) as usize;
            if let RadixNode::Chunk(bytes) = self.slot(chunk) {
                Arc::make_mut(bytes)[within..within + (end - offset) as usize].fill(0);
            }
        }
    }

    fn assert_inside(&self, offset: u64, len: u64) {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        assert!(inside, "{len} bytes at {offset} of an image of {} bytes", self.size);
    }
}

/// Drops the chunks `from..to`, counted from the node's first chunk.
fn clear(node: &mut RadixNode, level: u32, from: u64, to: u64) {
    if from >= to || matches!(node, RadixNode::Empty) {
        return;
    }
    let under = level.checked_sub(1).map_or(0, |below| FAN_BITS * below);
    let whole = if level == 0 { 1 } else { 1u64.checked_shl(under + FAN_BITS).unwrap_or(u64::MAX) };
    if from == 0 && to >= whole {
        *node = RadixNode::Empty;
        return;
    }
    let RadixNode::Inner(children) = node else { return };
    let children = Arc::make_mut(children);
    let last = ((to - 1) >> under) as usize;
    for (index, child) in children.iter_mut().enumerate().take(last + 1).skip((from >> under) as usize) {
        let first = (index as u64) << under;
        clear(child, level - 1, from.saturating_sub(first), (to - first).min(1 << under));
    }
}

impl PartialEq for Image {
    /// Compares the bytes. Shared parts are skipped.
    fn eq(&self, other: &Self) -> bool {
        fn same(a: &RadixNode, b: &RadixNode) -> bool {
            match (a, b) {
                (RadixNode::Empty, RadixNode::Empty) => true,
                (RadixNode::Chunk(a), RadixNode::Chunk(b)) => Arc::ptr_eq(a, b) || a == b,
                (RadixNode::Inner(a), RadixNode::Inner(b)) => {
                    Arc::ptr_eq(a, b) || a.iter().zip(b.iter()).all(|(a, b)| same(a, b))
                }
                (RadixNode::Empty, node) | (node, RadixNode::Empty) => is_zero(node),
                _ => false, // not of trees of one size
            }
        }
        fn is_zero(node: &RadixNode) -> bool {
            match node {
                RadixNode::Empty => true,
                RadixNode::Chunk(chunk) => **chunk == ZEROS,
                RadixNode::Inner(children) => children.iter().all(is_zero),
            }
        }
        self.size == other.size && same(&self.root, &other.root)
    }
}

impl Eq for Image {}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(image: &Image) -> Vec<u8> {
        let mut bytes = vec![0xAA; image.size_bytes() as usize];
        image.read(0, &mut bytes);
        bytes
    }

    #[test]
    fn copies_part_where_they_are_written() {
        let mut one = Image::new(1 << 50);
        one.write((1 << 49) - 3, b"abcdef");
        let two = one.clone();
        one.write((1 << 49) - 1, b"XY");
        one.zero(1 << 30, 1 << 48);
        let mut bytes = [0; 8];
        one.read((1 << 49) - 4, &mut bytes);
        assert_eq!(&bytes, b"\0abXYef\0");
        two.read((1 << 49) - 4, &mut bytes);
        assert_eq!(&bytes, b"\0abcdef\0");
        assert_ne!(one, two);
        one.zero(0, 1 << 50);
        assert_eq!(one, Image::new(1 << 50));
        assert_ne!(one, Image::new(1 << 51));
    }

    #[test]
    fn zeroing_takes_just_its_range() {
        for size in [5_000u64, 300_000, 600_000] {
            let full: Vec<u8> = (0..size).map(|i| (i % 251) as u8 + 1).collect();
            for (from, to) in [
                (0, size),
                (1, size - 1),
                (4096, 8192),
                (4095, 8193),
                (10, 20),
                (5000, 5000),
                (262_144, 290_000),
            ] {
                let (from, to) = (from.min(size), to.min(size));
                let (mut image, mut flat) = (Image::from_bytes(&full), full.clone());
                image.zero(from, to - from);
                flat[from as usize..to as usize].fill(0);
                assert!(bytes_of(&image) == flat, "{from}..{to} of {size}");
            }
        }
    }

    #[test]
    fn ranges_are_taken_from_another_image() {
        let full: Vec<u8> = (0..600_000u32).map(|i| (i % 251) as u8 + 1).collect();
        let mut sparse = Image::new(600_000);
        sparse.write(20_000, &[255; 10]);
        for (from, to) in
            [(0, 600_000), (1, 599_999), (4096, 8192), (4095, 8193), (10, 20), (5000, 5000), (12_288, 24_576)]
        {
            for (source, target) in
                [(&Image::from_bytes(&full), &sparse), (&sparse, &Image::from_bytes(&full))]
            {
                let (mut image, mut flat) = (target.clone(), bytes_of(target));
                image.copy_range(source, from, to);
                flat[from as usize..to as usize]
                    .copy_from_slice(&bytes_of(source)[from as usize..to as usize]);
                assert!(bytes_of(&image) == flat, "{from}..{to}");
            }
        }
    }

    #[test]
    fn the_largest_and_the_smallest() {
        let mut image = Image::new(u64::MAX);
        image.write(u64::MAX - 5, b"hello");
        image.zero(u64::MAX - 5, 1);
        image.zero(0, 1 << 63);
        let mut bytes = [1; 5];
        image.read(u64::MAX - 5, &mut bytes);
        assert_eq!(&bytes, b"\0ello");
        image.zero(0, u64::MAX);
        image.read(u64::MAX - 5, &mut bytes);
        assert_eq!(bytes, [0; 5]);
        Image::new(0).read(0, &mut []);
        let mut image = Image::new(100);
        image.write(99, b"x");
        assert_eq!(bytes_of(&image)[98..], *b"\0x");
    }

    #[test]
    fn to_a_device_and_back() {
        let mut image = Image::new(3 << 20);
        image.write(5, b"five");
        image.write((3 << 20) - 1, b"e");
        image.write(1 << 20, &[0; 9000]); // written, but zero
        let device = extant_device::MemDevice::new(3 << 20);
        image.write_to(&device).unwrap();
        let back = Image::read_from(&device).unwrap();
        assert_eq!(back, image);
        assert_eq!(Image::from_bytes(&bytes_of(&image)), image);
        let mut count = 0;
        back.for_each_chunk::<()>(|_, _| {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 2);
    }
}
