//! Damage found while writing: it is recorded in the superblock, and the volume continues or stops.
//!
//! ```text
//!                        .- continue ----------> superblock at the next commit; only this operation fails
//!   damage -> noted -----|
//!   in memory            '- remount-ro, panic -> the journal is aborted; the superblock, and the
//!                                                log's, are written in place
//! ```
//!
//! Owns: [`OnError`], the error record. Does **not** own: whether a half-done operation may be committed. It
//! never may: the journal is aborted then, whatever [`OnError`] says (see `Writer::run`), and that is
//! recorded like any other error.
//!
//! Only the primary superblock is written. The write in place is not part of a transaction: the log's copy
//! may be older, so replay keeps the newer record (see `mount/replay.rs`).

use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::rank::{self, Mutex};
use extant_buffer::{Edit, ReadFault};
use extant_ondisk::errors::{CODE_CORRUPT, CODE_IO, ErrorLog, ErrorRecord};
use extant_ondisk::superblock::{self, Superblock};

use super::Writer;
use super::primary::{SUPERBLOCK, seconds_now, superblock_place};
use crate::ops::errors::Operation;
use crate::{Fault, Volume};

/// What to do on damage found while writing; the kernel's mount option `errors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnError {
    /// Record it and go on: only the operation fails.
    Continue,
    /// Record it and stop writing: what was not committed is lost, as with the kernel's `remount-ro`.
    ReadOnly,
    /// As [`ReadOnly`](Self::ReadOnly), and every further operation is refused, reads included. The kernel
    /// halts the machine to stop all work; a library must not stop its program.
    Panic,
}

impl OnError {
    /// The superblock's setting (`s_errors`). An unknown number counts as `remount-ro`, as in the kernel.
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
    log: Mutex<ErrorLog, { rank::ERRORS }>,
    /// The superblock lacks some of them.
    is_stale: AtomicBool,
    /// The journal's abort is recorded and written in place.
    is_recorded: AtomicBool,
    /// Another machine owns the file system now: nothing is written, not even the error.
    pub(super) is_lost: AtomicBool,
    is_stopped: AtomicBool,
    /// A deliberate shutdown: no further error is recorded.
    pub(super) is_shut_down: AtomicBool,
}

impl Errors {
    pub(super) fn new(sb: &Superblock, on: Option<OnError>) -> Self {
        let no = || AtomicBool::new(false);
        let log = Mutex::new(ErrorLog::of(sb));
        Self {
            on: on.unwrap_or(OnError::of(sb)),
            log,
            is_stale: no(),
            is_recorded: no(),
            is_lost: no(),
            is_stopped: no(),
            is_shut_down: no(),
        }
    }

    fn note(&self, error: ErrorRecord) {
        self.log.lock().note(ErrorRecord { time: seconds_now(), ..error });
        self.is_stale.store(true, Ordering::Release);
    }

    /// Errors since the last check of the file system.
    pub(super) fn recorded(&self) -> u32 {
        self.log.lock().count
    }

    /// Blocks that [`write`](Self::write) will change.
    pub(super) fn blocks_to_come(&self) -> u32 {
        u32::from(self.is_stale.load(Ordering::Acquire))
    }

    /// Writes the record with a commit.
    pub(super) fn write(&self, edit: &dyn Edit, geometry: &extant_ondisk::Geometry) -> Result<(), ReadFault> {
        if !self.is_stale.swap(false, Ordering::AcqRel) {
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
    /// The end of each operation of a volume that is open for writing: records the operation's error. The
    /// caller must not hold a handle or an inode's lock.
    pub(crate) fn noted<R>(&self, operation: Operation, done: Result<R, Fault>) -> Result<R, Fault> {
        if let Err(Fault::Refused(refusal)) = &done {
            operation.check(*refusal);
        }
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

    /// Stops all writing, like damage with `errors=remount-ro`. For a caller that caught a panic out of this
    /// volume, because memory may be half changed. What was synced is safe, the superblock gets the error,
    /// and closing reports it. Does nothing if the volume is open for reading.
    pub fn abort(&self, cause: &str) {
        if let Some(writer) = &self.writer {
            writer.abort(cause.to_owned());
        }
    }

    /// The first cause that stopped writing, if any.
    #[must_use]
    pub fn aborted(&self) -> Option<&extant_journal::Aborted> {
        self.writer.as_ref()?.journal.aborted()
    }

    /// Refuses every operation after a shutdown, or after damage with [`OnError::Panic`].
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
    /// Aborts the journal, and records that.
    fn abort(&self, cause: String) {
        self.journal.abort(cause);
        if let Some(aborted) = self.journal.aborted() {
            self.note(&Fault::Aborted(aborted.clone()));
        }
    }

    /// Records an operation's error if it is damage or the journal's abort.
    pub(crate) fn note(&self, fault: &Fault) {
        let errors = &self.keeper.errors;
        match fault {
            Fault::Refused(_) | Fault::Stopped(_) | Fault::ShutDown => return,
            Fault::Corrupt(corrupt) => {
                errors.note(ErrorRecord {
                    ino: corrupt.place.ino.map_or(0, |ino| ino.0),
                    block: corrupt.place.block.map_or(0, |block| block.0),
                    code: CODE_CORRUPT,
                    ..record_for(corrupt.fact.structure)
                });
                if errors.on != OnError::Continue {
                    self.journal.abort(fault.to_string());
                }
            }
            // Failures of an operation's own reads: recorded only if they aborted the journal.
            Fault::Device(_) | Fault::NotFlushed(_) | Fault::LostWrite | Fault::Aborted(_) => {}
        }
        if self.journal.aborted().is_none() {
            return;
        }
        if !errors.is_recorded.swap(true, Ordering::AcqRel) {
            if !matches!(fault, Fault::Corrupt(_)) {
                errors.note(ErrorRecord { code: CODE_IO, ..record_for("journal") });
            }
            self.journal.after_abort(|| {
                let may_write = !self.is_shut_down() && !errors.is_lost.load(Ordering::Acquire);
                if may_write {
                    // Best effort: the device itself may have failed.
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

/// The kernel records the name of a function; this records the damaged structure, and that `extant` found it.
fn record_for(structure: &str) -> ErrorRecord {
    ErrorRecord::default().met_by(&format!("extant: {structure}"))
}
