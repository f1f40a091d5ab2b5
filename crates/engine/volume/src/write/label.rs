//! A volume's label and UUID.
//!
//! Backup superblocks keep their old label: nothing reads it there. The UUID identifies the file system, so
//! they get the new one.

use extant_ondisk::Features;
use parking_lot::Mutex;

use crate::ops::errors::Operation;
use crate::{Admin, Fault, Refusal};

/// Most bytes of a label.
pub const LABEL_MAX: usize = 16;

/// The label and the UUID, once they were changed.
#[derive(Debug, Default)]
pub(super) struct NewNames {
    label: Mutex<Option<[u8; LABEL_MAX]>>,
    uuid: Mutex<Option<[u8; 16]>>,
}

impl Admin<'_> {
    /// The label up to its first zero byte.
    #[must_use]
    pub fn label(self) -> Vec<u8> {
        let changed = self.volume.writer.as_ref().and_then(|writer| *writer.names.label.lock());
        let label = changed.unwrap_or(self.volume.superblock().volume_name);
        label.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// Changes the label and makes the change durable.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for more than [`LABEL_MAX`] bytes or a zero byte; the device failed.
    pub fn set_label(self, label: &[u8]) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        if label.len() > LABEL_MAX || label.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        let mut name = [0; LABEL_MAX];
        name[..label.len()].copy_from_slice(label);
        let changed = writer.run(1, |change| {
            writer.keeper.edit_superblock(change, &|sb| sb.volume_name = name)?;
            Ok(())
        });
        self.volume.noted(Operation::Tune, changed)?;
        *writer.names.label.lock() = Some(name);
        self.volume.sync()
    }

    /// The UUID.
    #[must_use]
    pub fn uuid(self) -> [u8; 16] {
        let changed = self.volume.writer.as_ref().and_then(|writer| *writer.names.uuid.lock());
        changed.unwrap_or(self.volume.superblock().uuid)
    }

    /// Changes the UUID, in the superblock and its backups, and makes the change durable.
    ///
    /// # Errors
    /// [`Refusal::NotSupported`] if other things depend on the UUID: descriptors without metadata_csum but
    /// with a checksum (`uninit_bg`), values in inodes of their own without metadata_csum (`ea_inode`),
    /// encrypted files (`stable_inodes`), an external journal; the device failed.
    pub fn set_uuid(self, uuid: [u8; 16]) -> Result<(), Fault> {
        let writer = self.volume.writer()?;
        let sb = self.volume.superblock();
        let features = &sb.features;
        let mut current = writer.names.uuid.lock();
        if current.unwrap_or(sb.uuid) == uuid {
            return Ok(());
        }
        let depends = features.has_compat(Features::STABLE_INODES)
            || features.has_incompat(Features::EA_INODE) && !features.metadata_csum()
            || features.has_ro_compat(Features::GDT_CSUM) && !features.metadata_csum()
            || features.has_compat(Features::HAS_JOURNAL) && sb.journal_inum == 0;
        if depends {
            return Err(Refusal::NotSupported.into());
        }
        self.change_superblocks(
            &|sb| {
                sb.set_uuid(uuid);
            },
            current.unwrap_or(sb.uuid),
        )?;
        *current = Some(uuid);
        Ok(())
    }
}
