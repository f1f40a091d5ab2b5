//! An open file: how it was read and written last, by all users of the handle, and which errors it has
//! reported.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::backing::Backing;
use crate::file::File;
use crate::readahead::{Streams, Window};
use crate::{ErrorCursor, Order, WriteError};

/// The largest folio that a writer of small pieces gets because they follow each other.
const APPEND_BYTES_MAX: u64 = 256 << 10;

/// An open file. Everything of [`File`] can be done with it.
pub struct Handle {
    file: Arc<File>,
    readahead: Mutex<Streams>,
    /// Where the last write ended, and how many bytes followed each other up to there.
    append_end: AtomicU64,
    append_len: AtomicU64,
    told: ErrorCursor,
}

impl File {
    /// Opens it. Write-back errors that were not reported yet will be reported to this handle too.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Handle {
        Handle {
            told: self.errors.sample(),
            file: self.clone(),
            readahead: Mutex::default(),
            append_end: AtomicU64::new(0),
            append_len: AtomicU64::new(0),
        }
    }
}

impl Deref for Handle {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl Handle {
    /// As [`File::read`]; says which bytes to bring in next with [`File::fill`], now or on another thread.
    ///
    /// # Errors
    /// As [`File::read`].
    pub fn read<B: Backing + ?Sized>(
        &self,
        pos: u64,
        buf: &mut [u8],
        backing: &B,
    ) -> Result<Option<Window>, B::Error> {
        let was_here = self.file.read(pos, buf, backing)?;
        let window_max = self.file.shared.config.readahead_bytes_max;
        let mut window = self.readahead.lock().after_read(pos, buf.len() as u64, !was_here, window_max);
        if let Some(window) = &mut window {
            window.order = window.order.min(self.file.order_max());
        }
        Ok(window)
    }

    /// As [`File::write`]. Small writes that follow each other get folios as large as what was written in a
    /// row so far, up to 256 KiB: so half of a folio at most is more than it holds.
    ///
    /// # Errors
    /// As [`File::write`].
    pub fn write<B: Backing + ?Sized>(
        &self,
        pos: u64,
        bytes: &[u8],
        now_ms: u64,
        backing: &B,
    ) -> Result<usize, B::Error> {
        let len = bytes.len() as u64;
        // Writers of one file are kept apart by the caller; if not, this is only a hint.
        let is_next = self.append_end.load(Ordering::Relaxed) == pos;
        let row = if is_next { self.append_len.load(Ordering::Relaxed) + len } else { len };
        self.append_len.store(row, Ordering::Relaxed);
        self.append_end.store(pos + len, Ordering::Relaxed);
        let expected = Order::within(row.min(APPEND_BYTES_MAX)).bytes();
        self.file.write_expecting(pos, bytes, expected, now_ms, backing)
    }

    /// Write-back errors since this open file reported the last one. The result of `fsync` and `close`.
    #[must_use]
    pub fn take_error(&self) -> Option<WriteError> {
        self.file.errors.tell(&self.told)
    }
}
