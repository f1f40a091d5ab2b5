//! A device with a file system, on which a load runs in process.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use extant_device::{Device, FileDevice, MemDevice};
use extant_image::mkfs::{EmptyTree, Identity};
use extant_image::options::FormatOptions;
use extant_ondisk::hash::HashVersion;
use extant_ondisk::{Superblock, superblock};
use extant_volume::{OpenOptions, Volume};

use crate::LabFault;

/// Where a study creates its file systems, one after the other.
#[derive(Debug, Clone, Default)]
pub enum Site {
    /// A new device in memory each time.
    #[default]
    Memory,
    /// This file, truncated each time; the last file system stays.
    File(PathBuf),
}

/// A device with a file system.
pub struct Ground {
    device: Arc<dyn Device>,
}

impl Ground {
    /// A fresh file system on a new device in memory of `size` bytes. Only written blocks take memory.
    ///
    /// # Errors
    /// The options contradict each other, or the layout does not fit.
    pub fn memory(size: u64, options: &FormatOptions) -> Result<Self, LabFault> {
        let ground = Self { device: Arc::new(MemDevice::new(size)) };
        ground.format(options)?;
        Ok(ground)
    }

    /// A fresh file system of `size` bytes at `site`.
    ///
    /// # Errors
    /// As [`memory`](Self::memory); or the file cannot be created.
    pub fn fresh(site: &Site, size: u64, options: &FormatOptions) -> Result<Self, LabFault> {
        let Site::File(path) = site else { return Self::memory(size, options) };
        let made = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let device = made.and_then(|file| file.set_len(size).and_then(|()| FileDevice::fresh(file)));
        let device = device.map_err(|fault| LabFault::Device(format!("{}: {fault}", path.display())))?;
        let ground = Self { device: Arc::new(device) };
        ground.format(options)?;
        Ok(ground)
    }

    /// A device that already has a file system.
    #[must_use]
    pub fn of(device: Arc<dyn Device>) -> Self {
        Self { device }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    pub(crate) fn format(&self, options: &FormatOptions) -> Result<(), LabFault> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        // A fixed hash seed makes studies repeatable. The UUID may be fixed, too: two of these file systems
        // are never mounted together.
        let identity =
            Identity { uuid: [0x4C; 16], hash_seed: options.hash_seed.unwrap_or([0x1A; 16]), time };
        let tree = EmptyTree::new(time, (0, 0));
        let input = tree.input(options, identity, true);
        let made = |why: extant_image::mkfs::MkfsFault| LabFault::Make(why.to_string());
        let plan = extant_image::mkfs::plan(&input, self.device.size_bytes()).map_err(made)?;
        extant_image::mkfs::write_plan(&plan, &*self.device, false).map_err(made)?;
        Ok(())
    }

    /// Sets the hash that new directories use for names.
    ///
    /// # Errors
    /// The device failed, or has no file system.
    pub fn set_hash(&self, hash: HashVersion) -> Result<(), LabFault> {
        let mut sb = self.superblock()?;
        sb.def_hash_version = hash.code();
        let written = self.device.write_at(superblock::OFFSET, &sb.sealed());
        written.map_err(|fault| LabFault::Device(fault.to_string()))
    }

    /// Reads the superblock from the device.
    ///
    /// # Errors
    /// The device failed, or has no file system.
    pub fn superblock(&self) -> Result<Superblock, LabFault> {
        let mut bytes = [0; superblock::SIZE];
        let read = self.device.read_at(superblock::OFFSET, &mut bytes);
        read.map_err(|fault| LabFault::Device(fault.to_string()))?;
        Superblock::decode(&bytes).map_err(|fact| LabFault::Device(fact.to_string()))
    }

    /// Opens the file system for writing.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open(&self, options: &OpenOptions) -> Result<Volume, LabFault> {
        Ok(Volume::open(Arc::clone(&self.device), options)?)
    }

    /// Verifies everything on the device. It must not be open for writing.
    ///
    /// # Errors
    /// The check cannot run, because the device failed.
    pub fn check(&self) -> Result<extant_check::Report, LabFault> {
        let checked = extant_check::check(&*self.device, &extant_check::Options::default());
        checked.map_err(|why| LabFault::Device(why.to_string()))
    }
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ground: {} bytes", self.device.size_bytes())
    }
}
