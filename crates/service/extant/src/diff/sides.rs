//! The two sides of a comparison.

use super::side::Side;
use super::{DiffObserver, Which};

/// Both sides, and what is reported about the work on them.
pub(super) struct Sides<'d> {
    pub(super) a: &'d Side,
    pub(super) b: &'d Side,
    pub(super) observer: &'d dyn DiffObserver,
    /// Whether both sides are the same bytes of the same file.
    pub(super) is_one_file: bool,
}

impl Sides<'_> {
    pub(super) fn side(&self, which: Which) -> &Side {
        match which {
            Which::A => self.a,
            Which::B => self.b,
        }
    }
}
