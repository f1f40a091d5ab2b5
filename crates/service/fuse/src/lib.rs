//! Serves an ext4 file system through FUSE.
//!
//! Owns: the file system's operations on an open volume ([`Server`]); FUSE requests and replies
//! ([`transport`]); mounting and unmounting, by root and by ordinary users ([`Mounted`], [`MountOptions`],
//! [`unmount`]). Does **not** own: the volume (see `volume`), the protocol (see `fuse-lowlevel`), the command
//! line, daemons and signals (see the command).
//!
//! ```text
//!  kernel --- fuse-lowlevel --- transport --- trait Serve --- Server --- Volume
//!                               or: NFS, ...                  or: a null server, a fake in tests
//! ```
//!
//! Invariants
//! 1. [`Serve`] has the operations of a file system, and nothing of FUSE. [`transport`] depends on ext4 only
//!    in the inode number of the root, inode flags and a few ioctls. So both sides of [`Serve`] can be
//!    replaced: `transport` by NFS, for example, and [`Server`] by a null server.
//! 2. A volume that is open for reading is never written: changes fail with EROFS. A volume that is open for
//!    writing must have been opened with [`extant_volume::WriteOptions::keeps_set_id`], so that it does not
//!    clear set-id bits at each write. `transport` clears them if the caller has no CAP_FSETID.
//! 3. If a request finds damage in the image, the damage is reported ([`Report`]) and the request fails. A
//!    listing does not fail: it leaves out the damaged part. If the volume is open for writing, its option
//!    `errors` decides whether later requests fail, too.
//! 4. A volume that is open for writing must be closed with [`Server::close`]. Without that call, the image
//!    is left as after a power cut.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use extant_fuse::{MountOptions, Mounted, Server, Threads};
//! # fn volume() -> extant_volume::Volume { unimplemented!() }
//! let server = Arc::new(Server::new(volume(), Box::new(|damage| eprintln!("{damage}"))));
//! let options = MountOptions::new("a.img");
//! let mounted = Mounted::new(Arc::clone(&server), "/mnt".as_ref(), &options, Threads::default())?;
//! mounted.serve()?; // returns after the unmount
//! server.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod attributes;
mod listing;
pub mod mounting;
mod openers;
mod remounting;
mod serve;
mod server;
pub mod status;
pub mod transport;

pub use mounting::{Channel, MountFault, MountOptions, UnmountFault, WritebackCache, unmount};
pub use openers::Opener;
pub use remounting::{Remount, RemountFault, remount};
pub use serve::{Access, Caller, Errno, Name, Opened, Serve};
pub use server::{Report, Resized, Resizer, Server};
pub use status::{MountStatus, STATUS_ATTRIBUTE};
pub use transport::{
    ALLOCATOR_STATS_ATTRIBUTE, EXTENT_STATS_ATTRIBUTE, KernelCache, MODE_ATTRIBUTE, Mounted,
    SERVER_ATTRIBUTE, SHUTDOWN_ATTRIBUTE, Shown, Threads, UUID_ATTRIBUTE, abort, serve_connection,
};
