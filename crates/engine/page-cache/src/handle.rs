//! An open file: its recent reads and writes, and which errors it has reported.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::backing::Backing;
use crate::file::File;
use crate::readahead::{Streams, Window};
use crate::{ErrorCursor, Order, WriteError};

/// The largest folio for small sequential writes.
const APPEND_BYTES_MAX: u64 = 256 << 10;

/// An open file. It dereferences to [`File`].
pub struct Handle {
    file: Arc<File>,
    readahead: Mutex<Streams>,
    /// Where the last write ended, and how many sequential bytes ended there.
    append_end: AtomicU64,
    append_len: AtomicU64,
    error_cursor: ErrorCursor,
}

impl File {
    /// Opens the file. The handle also reports earlier writeback errors that no open file has reported yet.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> Handle {
        Handle {
            error_cursor: self.errors.sample(),
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
    /// Like [`File::read`]. Returns the window to read in next with [`File::fill`], now or on another thread.
    ///
    /// # Errors
    /// Like [`File::read`].
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
            window.order = window.order.min(self.file.blocks.order_max);
        }
        Ok(window)
    }

    /// Like [`File::write`]. Small sequential writes get folios as large as the bytes written in a row so
    /// far, up to 256 KiB: so at most half of a folio is unused.
    ///
    /// # Errors
    /// Like [`File::write`].
    pub fn write<B: Backing + ?Sized>(
        &self,
        pos: u64,
        bytes: &[u8],
        now_ms: u64,
        backing: &B,
    ) -> Result<usize, B::Error> {
        let len = bytes.len() as u64;
        // The caller serializes writers of one file; otherwise this is only a hint.
        let is_next = self.append_end.load(Ordering::Relaxed) == pos;
        let row = if is_next { self.append_len.load(Ordering::Relaxed) + len } else { len };
        self.append_len.store(row, Ordering::Relaxed);
        self.append_end.store(pos + len, Ordering::Relaxed);
        let expected = Order::within(row.min(APPEND_BYTES_MAX)).bytes();
        self.file.write_expecting(pos, bytes, expected, now_ms, backing)
    }

    /// The writeback error since this open file last reported one, as `fsync` and `close` return it.
    #[must_use]
    pub fn take_error(&self) -> Option<WriteError> {
        self.file.errors.check_and_advance(&self.error_cursor)
    }
}
