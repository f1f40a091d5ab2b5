//! The steps of operations, by what they change.

use super::Writer;

macro_rules! views {
    ($($(#[$doc:meta])* $name:ident $view:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub(crate) struct $view<'w> {
                pub(super) writer: &'w Writer,
            }
        )*

        impl Writer {
            $(
                $(#[$doc])*
                pub(crate) fn $name(&self) -> $view<'_> {
                    $view { writer: self }
                }
            )*
        }
    };
}

views! {
    /// Names of directories.
    names NameEdits;
    /// How inodes come and go.
    life InodeLife;
    /// The bytes of files.
    data DataEdits;
    /// Sizes of files, and which blocks they have.
    sizes SizeEdits;
    /// Fields, extended attributes and ACLs.
    attributes AttributeEdits;
}
