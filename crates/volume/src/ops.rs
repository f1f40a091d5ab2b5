//! The operations, each a recipe: refuse, look, answer.

mod lookup;
mod read;
mod statfs;

pub use lookup::Follow;
pub(crate) use lookup::with_dir;
pub use read::Seek;
pub(crate) use read::seek_by;
