//! The error log of the superblock: the number of errors since the last check, the first error and the last.
//!
//! Owns: the contents of the fields `s_error_count`, `s_first_error_*`, `s_last_error_*` and the ERROR bit of
//! `s_state`. Does **not** own: what counts as an error, and the reaction to it (`s_errors`).
//!
//! Source: kernel Documentation/filesystems/ext4/super.rst.

use crate::superblock::{STATE_ERRORS, Superblock};

/// `s_*_error_errcode`: input/output error.
pub const CODE_IO: u8 = 2;
/// `s_*_error_errcode`: the structure is damaged.
pub const CODE_CORRUPT: u8 = 5;

/// One recorded error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorRecord {
    /// Seconds since 1970 (40 bits).
    pub time: u64,
    /// Inode; 0 for none.
    pub ino: u32,
    /// Block; 0 for none.
    pub block: u64,
    /// The function or program that found the error: a text, padded with zeros.
    pub func: [u8; 32],
    /// Source line; 0 if it is meaningless.
    pub line: u32,
    /// The kind of error: `CODE_*`.
    pub code: u8,
}

impl ErrorRecord {
    /// Sets the text in the field where the kernel stores a function name. A text that does not fit is cut.
    #[must_use]
    pub fn met_by(mut self, text: &str) -> Self {
        // The last byte stays 0: readers expect a terminator.
        let len = text.len().min(self.func.len() - 1);
        self.func = [0; 32];
        self.func[..len].copy_from_slice(&text.as_bytes()[..len]);
        self
    }
}

/// The error fields of a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorLog {
    /// Errors since the last check.
    pub count: u32,
    /// The first of them.
    pub first: ErrorRecord,
    /// The last of them.
    pub last: ErrorRecord,
}

impl ErrorLog {
    /// Reads the error fields of a superblock.
    #[must_use]
    pub fn of(sb: &Superblock) -> Self {
        let first = ErrorRecord {
            time: sb.first_error_time,
            ino: sb.first_error_ino,
            block: sb.first_error_block,
            func: sb.first_error_func,
            line: sb.first_error_line,
            code: sb.first_error_errcode,
        };
        let last = ErrorRecord {
            time: sb.last_error_time,
            ino: sb.last_error_ino,
            block: sb.last_error_block,
            func: sb.last_error_func,
            line: sb.last_error_line,
            code: sb.last_error_errcode,
        };
        Self { count: sb.error_count, first, last }
    }

    /// Adds one error.
    pub fn note(&mut self, error: ErrorRecord) {
        if self.count == 0 {
            self.first = error;
        }
        self.last = error;
        self.count = self.count.saturating_add(1);
    }

    /// Writes these fields into the superblock. If there are errors, also sets the ERROR bit; else the bit
    /// stays as it is.
    pub fn put(&self, sb: &mut Superblock) {
        let Self { count, first, last } = *self;
        sb.error_count = count;
        sb.first_error_time = first.time;
        sb.first_error_ino = first.ino;
        sb.first_error_block = first.block;
        sb.first_error_func = first.func;
        sb.first_error_line = first.line;
        sb.first_error_errcode = first.code;
        sb.last_error_time = last.time;
        sb.last_error_ino = last.ino;
        sb.last_error_block = last.block;
        sb.last_error_func = last.func;
        sb.last_error_line = last.line;
        sb.last_error_errcode = last.code;
        if count > 0 {
            sb.state |= STATE_ERRORS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_stays_and_the_last_moves() {
        let mut sb = Superblock::default();
        let error = |ino| ErrorRecord { ino, code: CODE_CORRUPT, ..ErrorRecord::default() };
        let mut log = ErrorLog::of(&sb);
        log.put(&mut sb);
        assert_eq!((sb.error_count, sb.state), (0, 0));
        for ino in [5, 6, 7] {
            log.note(error(ino).met_by("a text that is longer than thirty-two bytes"));
        }
        log.put(&mut sb);
        assert_eq!((sb.error_count, sb.first_error_ino, sb.last_error_ino), (3, 5, 7));
        assert_eq!(sb.state, STATE_ERRORS);
        assert_eq!(&sb.last_error_func, b"a text that is longer than thir\0");
        assert_eq!(ErrorLog::of(&Superblock::decode(&sb.encode()).unwrap()), log);
    }
}
