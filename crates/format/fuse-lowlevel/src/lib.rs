//! The FUSE kernel protocol, over /dev/fuse and over io_uring.
//!
//! Owns: the protocol as data ([`protocol`], [`operation::TABLE`]), reading requests and writing replies
//! ([`Request`], [`Reply`]), the INIT handshake, invalidations of the kernel's caches ([`Notifier`]), the
//! threads that serve a connection ([`Session`]), and the statistics of its requests
//! ([`OperationStatistics`]). Does **not** own: the file system (see [`Handler`]), mounting (the caller
//! passes the descriptor of a mount).
//!
//! ```text
//!             +-- /dev/fuse: read(2) --> Request::parse --+
//!  kernel ----|                                           |--> Handler::handle(Request, Reply)
//!             +-- io_uring: fetched entry --> parse_parts +          |
//!  kernel <---- writev(2) | splice(2) | commit and fetch <--- Reply -+  (any thread, any time)
//! ```
//!
//! Invariants
//! 1. Every request that expects a reply gets exactly one. (FORGET, BATCH_FORGET and NOTIFY_REPLY expect
//!    none.) Sending a [`Reply`] consumes it, and a [`Reply`] that is dropped unsent sends EIO. A malformed
//!    request gets EIO, an unknown operation ENOSYS.
//! 2. The kernel accepts the reply to a request only on the descriptor from which the request was read. All
//!    threads share one descriptor of /dev/fuse, so any of them can reply.
//! 3. Over /dev/fuse, a handler that blocks delays other requests for a few milliseconds at most, as long as
//!    another thread is free (see `workers`). Over io_uring each CPU has one thread. So a handler that blocks
//!    delays all requests of its CPU.
//! 4. The connection is closed when the session and all its replies and notifiers have been dropped.
//!
//! Source: Linux, include/uapi/linux/fuse.h, Documentation/filesystems/fuse/.

#![deny(unsafe_code)]

mod connection;
pub mod operation;
mod placement;
pub mod protocol;
mod reply;
mod ring_entry;
mod ring_policy;
mod serving;
mod session;
mod spliced;
mod statistics;
mod uring;
mod workers;

pub use connection::{Connection, Notifier};
pub use operation::{Bytes, Layout, Malformed, Name, NameAndBytes, Names, Operation, Request};
pub use placement::can_return as can_follow_clients;
pub use reply::{Listing, Reply};
pub use session::{Config, Handler, Offered, Session, Taken};
pub use spliced::len_max as splice_len_max;
pub use statistics::{BUCKETS, OperationStatistics, bucket_bound};
