//! Mounting: from a device to a volume. Each stage consumes the value of the one before.
//!
//! ```text
//!               read-only, all of it in memory          read-write
//! probe         a backup for a damaged superblock       the primary superblock only
//! claim         -                                       no other host may write (mmp)
//! locate        the blocks of the log                   <-
//! scan          what a replay does                      <- and nothing that was committed may be lost
//! replay        copies are shown at their homes         copies are written home
//! probe again   the log may hold a newer superblock     <-
//! fast_commit   one transaction                         <- in the log, in place of the fast commits
//! declare       -                                       the superblock says that the log is in use
//! wake          inodes, allocator, journal              <-
//! sweep         unfinished truncations                  <- and inodes without names are deleted
//! declare       -                                       mount time, mount count
//! ```
//!
//! INV-R7: there is one recovery. A volume that is opened for reading is recovered by the same stages, which
//! then run on a device in memory and without a log: their transactions go home, which is memory. The engine
//! is dropped afterwards, and the volume reads through that device. A clean volume needs no such device.
//!
//! A power cut may interrupt any stage of the read-write mount. The next mount runs it again: the log asks
//! for its replay until it is marked clean, fast commits count until the commit block of the transaction that
//! replaces them is durable, and an orphan is tracked until the transaction that finishes it.
//!
//! What a read-only mount tolerates and a read-write mount refuses: an image that ends early, a superblock or
//! group descriptors that only backups have, a log that has lost something, features that writing does not
//! maintain. If a stage fails in memory, the volume is shown without it, and [`Recovery::problems`] has the
//! reason.
//!
//! Does **not** own: the layout of the log and of the superblock, what an operation changes (see `write`).

mod declare;
mod fast_commit;
mod locate;
mod options;
pub(crate) mod probe;
mod problems;
mod read_only;
mod read_write;
mod rebuild;
mod replay;
mod scan;
mod sweep;
mod wake;

pub use self::locate::log_on;
pub use self::options::{OpenOptions, Recovery};

pub(crate) use self::read_only::read_only;
pub(crate) use self::read_write::read_write;
