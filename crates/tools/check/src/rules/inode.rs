//! Rules of the area `IN`: inodes.

crate::rule::rules! { Inode;
    IN001 CHECKSUM Error
        "The checksum of an inode fits."
        "The inode was overwritten or never completely written; drivers refuse to open it."
        "Store the right checksum; other rules judge the fields.";
    IN002 MODE Error
        "An inode in use has a known file type."
        "The inode was overwritten."
        "Set the type that the map and the first block suggest; where they suggest none, clear the inode.";
    IN003 DTIME Error
        "An inode with links has no deletion time."
        "The file was deleted by halves, or the orphan list lost it."
        "Store 0.";
    IN004 NO_DTIME Error
        "A deleted inode with a mode has a deletion time."
        "The file was deleted by halves."
        "Store the present time; where the inode is marked in use and has content, set its link count instead.";
    IN005 BLOCKS Error
        "i_blocks is what the file's data, map and attribute block take."
        "Disk usage and quota are wrong; removing the file makes the count of its owner wrong."
        "Store the number counted.";
    IN006 SIZE Error
        "A file's size covers its last written block, and is within what its map can reach."
        "The end of the file cannot be read."
        "Store the end of the last written block.";
    IN007 DIR_SIZE Error
        "A directory's size is that of its blocks, without holes at its end."
        "Entries behind the end are lost."
        "Store the end of the last block.";
    IN008 EXTENTS_FLAG Error
        "Inodes with an extent tree have the EXTENTS flag, others have not, and the feature is on."
        "Drivers would read one form of map as the other."
        "Set the feature where i_block holds an extent tree, else clear the flag.";
    IN009 FLAG Error
        "Flags stand only on inodes and file systems that can have them."
        "Drivers refuse the inode or treat it wrongly."
        "Clear the flag.";
    IN010 EXTRA_ISIZE Error
        "extra_isize is 0, or a multiple of 4 from 4 to what the inode has room for."
        "Newer fields and attributes cannot be found."
        "Store the number that the place of the attributes shows, else 32.";
    IN011 FADDR Error
        "The fragment address, which Linux never used, is 0."
        "The inode was overwritten."
        "Store 0.";
    IN012 SPECIAL_SIZE Error
        "Devices, pipes and sockets have no size."
        "The inode was overwritten."
        "Store 0.";
    IN013 SPECIAL Error
        "Devices, pipes and sockets have no map."
        "The inode was overwritten."
        "Clear the flags and the rest of the map; where i_block holds an extent tree, set the type that it suggests.";
    IN014 SYMLINK Error
        "A symbolic link's text is as long as its size says, and lies in the inode or in its first block."
        "The link leads nowhere."
        "Store the length of the text; where there is no text, clear the inode.";
    IN015 RESERVED Error
        "Reserved inodes that the file system does not use are empty, others have the shape that their use asks for."
        "The inode was overwritten, or the feature that uses it was switched off by hand."
        "Clear the inode; make a quota or orphan file a regular file.";
    IN016 ROOT Error
        "Inode 2 is a directory."
        "Nothing can be reached."
        "Set the type where its blocks are those of a directory, else make a new root directory.";
    IN017 INLINE Error
        "An inode with inline data has the attribute system.data, and its size is that of both parts."
        "The data cannot be found."
        "Clear the flag that i_block contradicts, store the length of both parts, or add an empty attribute.";
    IN018 IMMUTABLE Note
        "Devices, pipes, sockets and symbolic links are neither immutable nor append-only."
        "The inode may have been overwritten."
        "Clear the flags.";
    IN019 EMPTY_DIR Error
        "A directory has at least one block."
        "Its entries are lost."
        "Give the directory an empty block; what its names led to goes to lost+found.";
    IN020 UNREADABLE Error
        "Blocks of inode tables can be read."
        "The device refuses to give the block."
        "None: copy the device to a sound one first.";
    IN021 JOURNAL Error
        "The journal's inode is a regular file with a link."
        "The journal cannot be used."
        "Use the backup of the journal's map, make it a regular file with one link, or make a new journal.";
    IN022 HIGH Error
        "High halves of numbers are 0 where the features that give them meaning are off."
        "The inode was overwritten."
        "Store 0.";
    IN023 TIME Note
        "Nanoseconds are below 1,000,000,000."
        "The inode was overwritten, or written by a broken driver."
        "Store 0.";
    IN024 HIDDEN_FIELDS Note
        "Fields that an inode without a name does not use are as small tools leave them."
        "The inode was overwritten, in unused places."
        "Store 0.";
}
