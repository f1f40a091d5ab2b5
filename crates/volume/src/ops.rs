//! The operations, each a recipe: refuse, look, answer.

mod lookup;
mod read;
mod statfs;

pub use lookup::Follow;
pub use read::Seek;
