//! Rules of the area `OR`: inodes that are to be deleted or truncated at the next mount.

crate::rule::rules! { Orphan;
    OR001 LIST_HEAD Note
        "The orphan list begins with an inode that files use."
        "Drivers clear the list when its first number is impossible; what it held stays in use for nothing."
        "Clear the list; inodes without a name are found by the check of link counts.";
    OR002 LIST_LINK Error
        "Each inode on the orphan list leads to another one in use, or ends the list."
        "Orphans after a wrong link stay in use for nothing; a link back would be an endless loop in a careless driver."
        "Delete and truncate the orphans up to the wrong link, clear the list.";
    OR003 PENDING Note
        "No inode waits to be deleted or truncated."
        "The file system was not unmounted; the next mount does this work. Nothing is damaged."
        "Delete and truncate these inodes, clear the list and the file.";
    OR010 FILE_INODE Error
        "With the orphan_file feature, the superblock names a regular file of at most 512 whole blocks, all of them mapped."
        "Without its orphan file, the file system cannot be mounted for writing."
        "Clear the feature; orphans are then kept on the list in the superblock.";
    OR011 FILE_BLOCK Error
        "Each block of the orphan file ends in its magic."
        "The kernel refuses to mount."
        "Delete and truncate the orphans of the other blocks, write empty blocks.";
    OR012 FILE_CHECKSUM Error
        "The checksum of an orphan file's block matches its slots; without metadata_csum it is 0."
        "The kernel refuses to mount."
        "Delete and truncate the orphans, write empty blocks.";
    OR013 FILE_SLOT Error
        "The slots of the orphan file hold inodes that files may use."
        "Drivers skip such a slot."
        "Delete and truncate the other orphans, write empty blocks.";
    OR014 FILE_NOT_EMPTY Error
        "Without the orphan_present feature, the orphan file is empty."
        "The next mount does not look into the file, so what waits there stays in use for nothing."
        "Delete and truncate these inodes, clear the slots.";
    OR015 FILE_EMPTY Error
        "With the orphan_present feature, and the journal replayed, there are orphans in the file."
        "Drivers that do not know the feature refuse to write, for nothing."
        "Clear the feature.";
    OR016 FILE_UNEXPECTED Error
        "Only with the orphan_file feature does the superblock name an orphan file."
        "Its inode is in use and belongs to nothing."
        "Store 0, and free the inode if it is an orphan file.";
    OR017 FILE_WITHOUT_JOURNAL Error
        "Only file systems with a journal have an orphan file."
        "Orphans are found again after a replay; without a journal the file is not read."
        "Clear the feature, and free the inode.";
}
