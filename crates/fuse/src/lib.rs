//! An extant volume as a FUSE file system.
//!
//! Owns: answering everything that can be asked ([`Server`]), and carrying it to and from the kernel
//! ([`Mounted`]); mounting and unmounting by root and by ordinary users ([`MountOptions`], [`unmount`]). Does
//! **not** own: what a volume holds (see `volume`), the command line, daemons and signals (see the command).
//!
//! ```text
//!  kernel --- fuse-lowlevel --- transport --- Serve (a trait, values only) --- Server --- Volume
//!                              (could be NFS, virtiofs ...)             a null server, a test's fake
//! ```
//!
//! Invariants
//! 1. [`Serve`] has no word of FUSE in it, [`transport`] none of ext4 but the root's number: either can
//!    be replaced.
//! 2. A volume that is open for reading is never written: changes are refused with EROFS. One that is open
//!    for writing is opened with [`extant_volume::WriteOptions::keeps_set_id`]: the kernel knows which
//!    writers keep those bits.
//! 3. Damage of the image is an error of the one request that meets it, and goes to the server's report.
//! 4. A volume that is open for writing ends with [`Server::close`]; without, it is as after a power cut.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use extant_fuse::{MountOptions, Mounted, Server, Threads};
//! # fn volume() -> extant_volume::Volume { unimplemented!() }
//! let server = Arc::new(Server::new(volume(), Box::new(|damage| eprintln!("{damage}"))));
//! let options = MountOptions::new("a.img");
//! let mounted = Mounted::new(Arc::clone(&server), "/mnt".as_ref(), &options, Threads::default())?;
//! mounted.serve()?; // until it is unmounted
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
pub mod transport;

pub use mounting::{MountFault, MountOptions, UnmountFault, unmount};
pub use openers::Opener;
pub use remounting::{Remount, RemountFault, remount};
pub use serve::{Access, Caller, Errno, Name, Opened, Serve};
pub use server::{Report, Server};
pub use transport::{
    ALLOCATIONS_ATTRIBUTE, Channel, EXTENTS_ATTRIBUTE, MODE_ATTRIBUTE, Mounted, SERVER_ATTRIBUTE,
    SHUTDOWN_ATTRIBUTE, Threads, serve_connection,
};
