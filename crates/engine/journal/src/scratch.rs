//! A device in memory over a base: it reads as the base, and keeps what is written to it.
//!
//! A volume that is opened for reading is recovered on it: recovery writes as it would to the disk, and the
//! image stays as it is.
//!
//! Invariants
//! 1. The base is never written.
//! 2. Memory is bounded. A write that needs more is refused, and the error has the number of bytes needed.
//! 3. A block that was never written is not in memory: an overlay without writes costs nothing.
//!
//! One thread at a time may write, because a write of a part of a block reads the rest first.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_base::{BlockSize, Pblk};
use extant_device::{Device, DeviceFault};

use crate::overlay::Overlay;

/// A device that shows its base with the blocks that were written to it since.
pub struct ScratchOverlay {
    base: Arc<dyn Device>,
    block_size: BlockSize,
    bytes_max: u64,
    /// By number of the block.
    blocks: Mutex<BTreeMap<u64, Arc<[u8]>>>,
}

impl ScratchOverlay {
    /// An overlay of `base` without writes. It keeps at most `bytes_max` bytes of blocks in memory.
    #[must_use]
    pub fn new(base: Arc<dyn Device>, block_size: BlockSize, bytes_max: u64) -> Self {
        Self { base, block_size, bytes_max, blocks: Mutex::new(BTreeMap::new()) }
    }

    /// Bytes of blocks in memory.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.lock().len() as u64 * self.block_size.bytes()
    }

    /// The device as it is now, for reading: later writes do not change it. The base, if nothing was written.
    #[must_use]
    pub fn freeze(&self) -> Arc<dyn Device> {
        let blocks = self.blocks.lock();
        if blocks.is_empty() {
            return Arc::clone(&self.base);
        }
        let builder = Overlay::builder(Arc::clone(&self.base), self.block_size);
        let builder = blocks
            .iter()
            .fold(builder, |builder, (block, bytes)| builder.patch(Pblk(*block), Arc::clone(bytes)));
        Arc::new(builder.build())
    }

    /// The written blocks that overlap a range, by the byte offsets of their starts.
    fn written_in(&self, offset: u64, len: u64) -> Vec<(u64, Arc<[u8]>)> {
        let log2 = self.block_size.log2();
        // The range lies inside the device, so its end does not pass 2^64.
        let range = offset >> log2..(offset + len).div_ceil(self.block_size.bytes());
        let blocks = self.blocks.lock();
        blocks.range(range).map(|(block, bytes)| (block << log2, Arc::clone(bytes))).collect()
    }

    /// A block's bytes, to be changed. The device may end inside it.
    fn block(&self, block: u64) -> Result<Vec<u8>, DeviceFault> {
        if let Some(bytes) = self.blocks.lock().get(&block) {
            return Ok(bytes.to_vec());
        }
        let mut bytes = vec![0; self.block_size.len()];
        let start = block << self.block_size.log2();
        let len = (self.size_bytes() - start).min(self.block_size.bytes());
        self.base.read_at(start, &mut bytes[..len as usize])?;
        Ok(bytes)
    }

    fn put(&self, block: u64, bytes: Arc<[u8]>) -> Result<(), DeviceFault> {
        let mut blocks = self.blocks.lock();
        let is_new = !blocks.contains_key(&block);
        let needed = (blocks.len() as u64 + u64::from(is_new)) * self.block_size.bytes();
        if needed > self.bytes_max {
            let why = format!(
                "recovery in memory changes at least {needed} bytes, and at most {} are kept",
                self.bytes_max
            );
            let source = io::Error::new(io::ErrorKind::StorageFull, why);
            let offset = block << self.block_size.log2();
            return Err(DeviceFault::Io { what: "write", offset, len: self.block_size.bytes(), source });
        }
        blocks.insert(block, bytes);
        Ok(())
    }

    /// Calls `change` for the part of each block that the range overlaps.
    fn change(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        mut change: impl FnMut(&mut [u8]),
    ) -> Result<(), DeviceFault> {
        DeviceFault::check_len(what, offset, len, self.size_bytes())?;
        let bs = self.block_size.bytes();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (block, within) = (at >> self.block_size.log2(), at & (bs - 1));
            let part = (bs - within).min(end - at);
            let mut bytes = if part == bs { vec![0; self.block_size.len()] } else { self.block(block)? };
            change(&mut bytes[within as usize..][..part as usize]);
            self.put(block, bytes.into())?;
            at += part;
        }
        Ok(())
    }
}

impl Device for ScratchOverlay {
    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceFault> {
        DeviceFault::check_len("read", offset, buf.len() as u64, self.size_bytes())?;
        let written = self.written_in(offset, buf.len() as u64);
        let (mut at, mut rest) = (offset, buf);
        for (start, bytes) in written {
            if at < start {
                let gap;
                (gap, rest) = rest.split_at_mut((start - at) as usize);
                self.base.read_at(at, gap)?;
                at = start;
            }
            let bytes = &bytes[(at - start) as usize..];
            let here;
            (here, rest) = rest.split_at_mut(bytes.len().min(rest.len()));
            here.copy_from_slice(&bytes[..here.len()]);
            at += here.len() as u64;
        }
        if rest.is_empty() { Ok(()) } else { self.base.read_at(at, rest) }
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.base.prefetch(offset, len);
    }

    fn sector_bytes(&self) -> u32 {
        self.base.sector_bytes()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceFault> {
        let mut rest = bytes;
        self.change("write", offset, bytes.len() as u64, |part| {
            let (here, later) = rest.split_at(part.len());
            part.copy_from_slice(here);
            rest = later;
        })
    }

    fn zero_at(&self, offset: u64, len: u64) -> Result<(), DeviceFault> {
        self.change("zero", offset, len, |part| part.fill(0))
    }

    fn flush(&self) -> Result<(), DeviceFault> {
        Ok(())
    }
}

impl fmt::Debug for ScratchOverlay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScratchOverlay({} of {} bytes)", self.bytes(), self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use extant_device::MemDevice;
    use proptest::prelude::*;

    use super::*;

    const LEN: u64 = 8 * 1024 + 300;

    fn base() -> Arc<MemDevice> {
        let device = MemDevice::new(LEN);
        let bytes: Vec<u8> = (0..LEN).map(|at| (at / 100) as u8).collect();
        device.write_at(0, &bytes).unwrap();
        Arc::new(device)
    }

    fn all(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn it_reads_as_an_array_that_is_written(
            writes in prop::collection::vec((0..LEN, 0u64..3000, any::<u8>()), 0..20),
            reads in prop::collection::vec((0..LEN, 0u64..3000), 1..20),
        ) {
            let base = base();
            let overlay = ScratchOverlay::new(base.clone(), BlockSize::MIN, 1 << 20);
            let mut expected = all(&*base);
            for (at, len, byte) in writes {
                let len = len.min(LEN - at);
                let before = overlay.freeze();
                if byte == 0 {
                    overlay.zero_at(at, len).unwrap();
                } else {
                    overlay.write_at(at, &vec![byte; len as usize]).unwrap();
                }
                prop_assert!(all(&*before) == expected, "a frozen device changed");
                expected[at as usize..][..len as usize].fill(byte);
            }
            for (at, len) in reads {
                let len = len.min(LEN - at) as usize;
                let (mut bytes, mut frozen) = (vec![1; len], vec![2; len]);
                overlay.read_at(at, &mut bytes).unwrap();
                overlay.freeze().read_at(at, &mut frozen).unwrap();
                prop_assert!(bytes == expected[at as usize..][..len] && frozen == bytes);
            }
        }
    }

    #[test]
    fn the_base_is_never_written_and_memory_is_bounded() {
        let base = base();
        let before = all(&*base);
        let overlay = ScratchOverlay::new(base.clone(), BlockSize::MIN, 3 * 1024);
        assert!(Arc::ptr_eq(&overlay.freeze(), &(base.clone() as Arc<dyn Device>)), "nothing was written");
        overlay.write_at(1000, &[7; 2000]).unwrap();
        assert_eq!(overlay.bytes(), 3 * 1024);
        overlay.write_at(0, &[8]).unwrap();
        let fault = overlay.write_at(3 * 1024, &[9]).unwrap_err().to_string();
        assert!(fault.contains("at least 4096 bytes, and at most 3072"), "{fault}");
        overlay.flush().unwrap();
        assert_eq!(all(&*base), before);
        assert!(overlay.write_at(LEN - 1, &[1, 2]).is_err());
    }
}
