//! Damage that is met while writing: noted in the superblock, and what becomes of the volume then.
//!
//! ```text
//!                        .- continue ----------> into the superblock with the next commit; the operation failed, others go on
//!   damage -> noted -----|
//!   in memory            '- remount-ro, panic -> the journal is aborted; the superblock is written in place, the log's too
//! ```
//!
//! Owns: [`OnError`], the record. Does **not** own: whether an operation that failed half-way may be
//! committed. It never may: the journal is aborted then whatever was chosen here (see `Writer::run`), and
//! that is noted as any other error.
//!
//! Only the primary superblock is written. In place, it is not part of a transaction: what the log has of it
//! may be older, so replay keeps the newer record (see `write/open.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

use extant_buffer::{Edit, ReadFault};
use extant_ondisk::errors::{CODE_CORRUPT, CODE_IO, ErrorLog, ErrorRecord};
use extant_ondisk::superblock::{self, Superblock};
use parking_lot::Mutex;

use super::Writer;
use super::open::{SUPERBLOCK, seconds_now, superblock_place};
use crate::{Fault, Volume};

/// What to do when damage is met while writing; the kernel's mount option `errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Note it and go on: the operation fails, others do not.
    Continue,
    /// Note it, and write nothing any more: what was not committed is lost, as with the kernel's
    /// `remount-ro`.
    ReadOnly,
    /// As [`ReadOnly`](Self::ReadOnly), and reading ends as well: every operation is refused. The kernel
    /// stops the machine; a library must not stop its program, but refuses everything.
    Panic,
}

impl OnError {
    /// What the superblock asks for (`s_errors`); what is no known number counts as `remount-ro`, as in the
    /// kernel.
    fn of(sb: &Superblock) -> Self {
        match sb.errors {
            1 => Self::Continue,
            3 => Self::Panic,
            _ => Self::ReadOnly,
        }
    }
}

/// The errors of a volume.
pub(super) struct Errors {
    on: OnError,
    log: Mutex<ErrorLog>,
    /// The superblock does not have all of them.
    is_behind: AtomicBool,
    /// That the journal was aborted is noted, and written in place.
    is_told: AtomicBool,
    /// The file system is another machine's now: nothing is written, not even that.
    pub(super) is_lost: AtomicBool,
    is_stopped: AtomicBool,
    /// On purpose: nothing is noted any more.
    pub(super) is_shut_down: AtomicBool,
}

impl Errors {
    pub(super) fn new(sb: &Superblock, on: Option<OnError>) -> Self {
        let no = || AtomicBool::new(false);
        let log = Mutex::new(ErrorLog::of(sb));
        Self {
            on: on.unwrap_or(OnError::of(sb)),
            log,
            is_behind: no(),
            is_told: no(),
            is_lost: no(),
            is_stopped: no(),
            is_shut_down: no(),
        }
    }

    fn note(&self, error: ErrorRecord) {
        self.log.lock().note(ErrorRecord { time: seconds_now(), ..error });
        self.is_behind.store(true, Ordering::Release);
    }

    /// Blocks that [`write`](Self::write) will change.
    pub(super) fn blocks_to_come(&self) -> u32 {
        u32::from(self.is_behind.load(Ordering::Acquire))
    }

    /// With a commit.
    pub(super) fn write(&self, edit: &dyn Edit, geometry: &extant_ondisk::Geometry) -> Result<(), ReadFault> {
        if !self.is_behind.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let log = *self.log.lock();
        let (block, at) = superblock_place(geometry);
        edit.change(block, SUPERBLOCK, &mut |bytes| {
            let place = bytes.get_mut(at..at + superblock::SIZE).unwrap_or_default();
            if let Ok(mut sb) = Superblock::decode(place) {
                log.put(&mut sb);
                place.copy_from_slice(&sb.encode());
            }
        })
    }
}

impl Volume {
    /// Where operations of a volume that is open for writing end: what they met is noted. Without a handle or
    /// an inode's lock.
    pub(crate) fn noted<R>(&self, done: Result<R, Fault>) -> Result<R, Fault> {
        match (done, &self.writer) {
            (Err(fault), Some(writer)) if writer.is_shut_down() => Err(match fault {
                Fault::Refused(_) => fault,
                _ => Fault::ShutDown,
            }),
            (Err(fault), Some(writer)) => {
                writer.note(&fault);
                Err(fault)
            }
            (done, _) => done,
        }
    }

    /// Ends all writing, as damage does where `errors=remount-ro` is set: for a caller that caught a panic
    /// out of this volume, since what is in memory may be half changed. What was synced is safe, the
    /// superblock gets the error, and closing reports it. A volume that is open for reading has nothing to
    /// end.
    pub fn abort(&self, cause: &str) {
        if let Some(writer) = &self.writer {
            writer.abort(cause.to_owned());
        }
    }

    /// Why nothing is written any more, if that is so: the first cause.
    #[must_use]
    pub fn aborted(&self) -> Option<&extant_journal::Aborted> {
        self.writer.as_ref()?.journal.aborted()
    }

    /// May anything be done at all?
    pub(crate) fn check_going(&self) -> Result<(), Fault> {
        let Some(writer) = &self.writer else { return Ok(()) };
        if writer.is_shut_down() {
            return Err(Fault::ShutDown);
        }
        if !writer.keeper.errors.is_stopped.load(Ordering::Relaxed) {
            return Ok(());
        }
        writer.journal.aborted().map_or(Ok(()), |aborted| Err(Fault::Stopped(aborted.clone())))
    }
}

impl Writer {
    /// Aborts the journal, and notes that.
    fn abort(&self, cause: String) {
        self.journal.abort(cause);
        if let Some(aborted) = self.journal.aborted() {
            self.note(&Fault::Aborted(aborted.clone()));
        }
    }

    /// Notes what an operation failed with, if it is damage or the end of the journal.
    pub(super) fn note(&self, fault: &Fault) {
        let errors = &self.keeper.errors;
        match fault {
            Fault::Refused(_) | Fault::Stopped(_) | Fault::ShutDown => return,
            Fault::Corrupt(corrupt) => {
                errors.note(ErrorRecord {
                    ino: corrupt.place.ino.map_or(0, |ino| ino.0),
                    block: corrupt.place.block.map_or(0, |block| block.0),
                    code: CODE_CORRUPT,
                    ..told_by(corrupt.fact.structure)
                });
                if errors.on != OnError::Continue {
                    self.journal.abort(fault.to_string());
                }
            }
            // Of an operation's own reads: noted if that ended the journal.
            Fault::Device(_) | Fault::NotFlushed(_) | Fault::LostWrite | Fault::Aborted(_) => {}
        }
        if self.journal.aborted().is_none() {
            return;
        }
        if !errors.is_told.swap(true, Ordering::AcqRel) {
            if !matches!(fault, Fault::Corrupt(_)) {
                errors.note(ErrorRecord { code: CODE_IO, ..told_by("journal") });
            }
            self.journal.after_abort(|| {
                let may_write = !self.is_shut_down() && !errors.is_lost.load(Ordering::Acquire);
                if may_write {
                    // Best effort: the device may be what failed.
                    let _ = self.write_errors_in_place();
                }
                may_write
            });
        }
        errors.is_stopped.store(errors.on == OnError::Panic, Ordering::Relaxed);
    }

    fn write_errors_in_place(&self) -> Result<(), Fault> {
        let device = &self.shared().device;
        let mut bytes = [0; superblock::SIZE];
        device.read_at(superblock::OFFSET, &mut bytes).map_err(Fault::Device)?;
        let mut sb = Superblock::decode(&bytes).map_err(|fact| Fault::corrupt(extant_base::Ino(0), fact))?;
        self.keeper.errors.log.lock().put(&mut sb);
        device.write_at(superblock::OFFSET, &sb.sealed()).map_err(Fault::Device)?;
        device.flush().map_err(Fault::Device)
    }
}

/// The kernel stores the name of a function; here the damaged structure says more, and `extant` as the
/// finder.
fn told_by(structure: &str) -> ErrorRecord {
    ErrorRecord::default().met_by(&format!("extant: {structure}"))
}
