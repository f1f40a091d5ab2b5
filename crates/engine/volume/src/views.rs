//! What a volume does, by subject: each view has the operations of one.

use crate::Volume;

macro_rules! views {
    ($($(#[$doc:meta])* $name:ident $view:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub struct $view<'v> {
                pub(crate) volume: &'v Volume,
            }
        )*

        impl Volume {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(&self) -> $view<'_> {
                    $view { volume: self }
                }
            )*
        }
    };
}

views! {
    /// Operations on names: looking up and listing, new files and directories, links, renames, removals.
    names Names;
    /// Operations on the contents of files: reading, writing, allocating, making durable.
    files Files;
    /// Operations on attributes of inodes: the fields of stat(2), extended attributes, ACLs.
    attributes Attributes;
    /// Operations on the file system as a whole: label, UUID, values of the superblock, discards, shutdown.
    admin Admin;
    /// Counters of what happened since the volume was opened.
    counters Counters;
}
