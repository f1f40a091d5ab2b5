//! A volume's label and UUID.
//!
//! Backup superblocks keep their old label: nothing reads it there.

use parking_lot::Mutex;

use crate::ops::errors::Operation;
use crate::{Fault, Refusal, Volume};

/// Most bytes of a label.
pub const LABEL_MAX: usize = 16;

/// The label, once it was changed.
#[derive(Debug, Default)]
pub(super) struct NewLabel(Mutex<Option<[u8; LABEL_MAX]>>);

impl Volume {
    /// The label up to its first zero byte.
    #[must_use]
    pub fn label(&self) -> Vec<u8> {
        let changed = self.writer.as_ref().and_then(|writer| *writer.label.0.lock());
        let label = changed.unwrap_or(self.superblock().volume_name);
        label.iter().copied().take_while(|byte| *byte != 0).collect()
    }

    /// Changes the label and makes the change durable.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for more than [`LABEL_MAX`] bytes or a zero byte; the device failed.
    pub fn set_label(&self, label: &[u8]) -> Result<(), Fault> {
        let writer = self.writer()?;
        if label.len() > LABEL_MAX || label.contains(&0) {
            return Err(Refusal::Invalid.into());
        }
        let mut name = [0; LABEL_MAX];
        name[..label.len()].copy_from_slice(label);
        let changed = writer.run(1, |change| {
            writer.keeper.edit_superblock(change, &|sb| sb.volume_name = name)?;
            Ok(())
        });
        self.noted(Operation::Tune, changed)?;
        *writer.label.0.lock() = Some(name);
        self.sync()
    }
}
