//! Rules of the area `GD`: group descriptors.

crate::rule::rules! { Group;
    GD001 CHECKSUM Error
        "The checksum of a group descriptor fits."
        "The descriptor was overwritten or never completely written. The kernel refuses to mount."
        "Use the addresses of the backup where they differ; store the right checksum, and count the group anew.";
    GD002 PLACE Error
        "A group's bitmaps and inode table are inside the file system and, without flex_bg, inside the group."
        "The descriptor was overwritten; the group cannot be used."
        "Use the addresses of the backup, or those that the layout implies; search for the inode table; move bitmaps to free blocks. Where no inode table is found, make an empty one: its inodes are lost.";
    GD003 OVERLAP Error
        "Superblocks, descriptors, bitmaps and inode tables do not overlap."
        "The descriptor was overwritten; writing to one destroys the other."
        "As for an address outside the file system: the group whose addresses differ from the backup is changed.";
    GD004 UNINIT_FLAGS Note
        "Flags of uninitialised bitmaps and unused inodes stand only where descriptors have checksums."
        "An old driver would read garbage as a bitmap."
        "Clear the flags.";
    GD005 HIDDEN_INODES Error
        "No inode in use lies in the part of the table that itable_unused declares never used."
        "Drivers and checkers that trust the number lose these files."
        "Store the number of inodes behind the last one in use.";
    GD006 UNUSED_COUNT Note
        "itable_unused is at most the number of inodes of a group."
        "The descriptor was damaged."
        "Store the number of inodes behind the last one in use.";
    GD007 LAST_BLOCK_UNINIT Error
        "The block bitmap of the last group is initialised."
        "It has padding where the device ends, which a driver that builds the bitmap would miss."
        "Write the bitmap and clear the flag.";
    GD008 FREE_CLUSTERS Error
        "free_clusters is the number of clear bits in the block bitmap."
        "Allocation goes astray or stops early."
        "Store the number counted.";
    GD009 FREE_INODES Error
        "free_inodes is the number of clear bits in the inode bitmap."
        "Allocation goes astray or stops early."
        "Store the number counted.";
    GD010 USED_DIRS Error
        "used_dirs is the number of directories in the group."
        "New directories are spread by this number."
        "Store the number counted.";
    GD011 UNREADABLE Error
        "A group's bitmaps and inode table can be read."
        "The device refuses to give the block, or ends before it."
        "None: restore the device first.";
    GD012 BACKUP Note
        "Backup descriptors name the same bitmaps and inode tables as the primary."
        "The backup would mislead a repair."
        "Write the primary over the backup.";
    GD013 UNUSED_ABOVE_FREE Error
        "itable_unused is at most free_inodes."
        "One of the two numbers was damaged."
        "Count both anew.";
    GD014 UNINIT_IN_USE Error
        "A group with inodes in use has an initialised inode bitmap."
        "Drivers and checkers that trust the flag lose these files."
        "Clear the flag.";
}
