//! Where a load runs in process: a device with a file system on it.

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

/// Where a study makes its file systems, one after the other.
#[derive(Debug, Clone, Default)]
pub enum Site {
    /// On a new device in memory each time.
    #[default]
    Memory,
    /// In this file, from the start each time; the last one stays.
    File(PathBuf),
}

/// A device with a file system.
pub struct Ground {
    device: Arc<dyn Device>,
}

impl Ground {
    /// A fresh file system on a new device in memory of `size` bytes. Memory is taken for what is written
    /// only.
    ///
    /// # Errors
    /// The options contradict each other, or what they ask for does not fit.
    pub fn memory(size: u64, options: &FormatOptions) -> Result<Self, LabFault> {
        let ground = Self { device: Arc::new(MemDevice::new(size)) };
        ground.format(options)?;
        Ok(ground)
    }

    /// A fresh file system of `size` bytes where the study makes them.
    ///
    /// # Errors
    /// As [`memory`](Self::memory); the file cannot be made.
    pub fn fresh(site: &Site, size: u64, options: &FormatOptions) -> Result<Self, LabFault> {
        let Site::File(path) = site else { return Self::memory(size, options) };
        let made = File::options().read(true).write(true).create(true).truncate(true).open(path);
        let device = made.and_then(|file| file.set_len(size).and_then(|()| FileDevice::fresh(file)));
        let device = device.map_err(|fault| LabFault::Device(format!("{}: {fault}", path.display())))?;
        let ground = Self { device: Arc::new(device) };
        ground.format(options)?;
        Ok(ground)
    }

    /// A device that has a file system already.
    #[must_use]
    pub fn of(device: Arc<dyn Device>) -> Self {
        Self { device }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.device)
    }

    fn format(&self, options: &FormatOptions) -> Result<(), LabFault> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        // Studies are repeated with the same hashes; two of these are never mounted together.
        let identity =
            Identity { uuid: [0x4C; 16], hash_seed: options.hash_seed.unwrap_or([0x1A; 16]), time };
        let tree = EmptyTree::new(time, (0, 0));
        let input = tree.input(options, identity, true);
        let made = |why: extant_image::mkfs::MkfsFault| LabFault::Make(why.to_string());
        let plan = extant_image::mkfs::plan(&input, self.device.size_bytes()).map_err(made)?;
        extant_image::mkfs::write_plan(&plan, &*self.device, false).map_err(made)?;
        Ok(())
    }

    /// Makes the file system hash the names of new directories in this way.
    ///
    /// # Errors
    /// The device refused, or there is no file system.
    pub fn set_hash(&self, hash: HashVersion) -> Result<(), LabFault> {
        let mut sb = self.superblock()?;
        sb.def_hash_version = hash.code();
        let written = self.device.write_at(superblock::OFFSET, &sb.sealed());
        written.map_err(|fault| LabFault::Device(fault.to_string()))
    }

    /// The superblock as it is on the device.
    ///
    /// # Errors
    /// The device refused, or there is no file system.
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

    /// Verifies everything on the device, which must not be open for writing.
    ///
    /// # Errors
    /// The check cannot be made: the device refused.
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
