//! The read operations. Each checks its arguments, looks up the data and returns it.

pub(crate) mod errors;
mod lookup;
mod read;
mod statfs;

pub use lookup::Follow;
pub(crate) use lookup::with_dir;
pub use read::Seek;
pub(crate) use read::seek_by;
