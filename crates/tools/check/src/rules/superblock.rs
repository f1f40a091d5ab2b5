//! Rules of the area `SB`: superblock, features, backups.

crate::rule::rules! { Superblock;
    SB001 UNREADABLE Fatal
        "Byte 1024 of the device begins a superblock."
        "This is no ext4 file system, its beginning was overwritten, or the offset is wrong; no backup was found either."
        "Use a backup superblock, found by its usual places or named by -b; without one, nothing.";
    SB002 PRIMARY Error
        "The primary superblock has the magic, fits its checksum, and its numbers make sense."
        "The beginning of the device was overwritten. A backup superblock was used instead."
        "Write a backup over the primary; where all but the checksum fits the backups, store the right checksum.";
    SB003 GEOMETRY Fatal
        "The superblock's numbers make sense together."
        "No block can be found with them; no backup is better."
        "Use a backup superblock, found by its usual places or named by -b; without one, nothing.";
    SB004 FEATURES Fatal
        "All features are known."
        "The file system was made by a newer or other tool; what an unknown feature changes cannot be checked."
        "Use a backup superblock without the feature, if the file system fits it; else a newer version of this tool.";
    SB005 DEVICE Error
        "The device is at least as large as the file system."
        "The image was cut off, or the partition shrunk. Files in the missing part are lost."
        "None: restore the missing part, or shrink the file system.";
    SB007 RESERVED Error
        "At most half of the blocks are reserved."
        "The superblock was damaged."
        "Store 5 % of the blocks.";
    SB008 FIRST_INO Error
        "first_ino is 11 or more, and is an inode's number."
        "The superblock was damaged."
        "Store 11.";
    SB009 FIRST_BLOCK Error
        "first_data_block is 1 with clusters of 1 KiB, else 0."
        "The superblock was damaged."
        "Store the right number.";
    SB010 CHECKSUM_TYPE Fatal
        "checksum_type is 1 (CRC-32C) with metadata_csum."
        "The superblock was damaged, or made by a newer tool."
        "Store 1.";
    SB011 FEATURE_SET Error
        "Features that exclude or need each other are set accordingly."
        "The superblock was damaged, or changed by a tool that did not know better."
        "Clear the feature that cannot be, or set the one that is needed.";
    SB012 FREE_BLOCKS Note
        "free_blocks_count is the sum over all groups."
        "Drivers keep the sum in memory and write it now and then; it is recomputed at mount."
        "Store the sum.";
    SB013 FREE_INODES Note
        "free_inodes_count is the sum over all groups."
        "Drivers keep the sum in memory and write it now and then; it is recomputed at mount."
        "Store the sum.";
    SB014 EXTRA_ISIZE Note
        "min_extra_isize and want_extra_isize are multiples of 4 that fit an inode."
        "New inodes may have no room for newer fields."
        "Store 32, or 0 where inodes have no room.";
    SB015 RESERVED_GDT Note
        "Reserved descriptor blocks belong to the resize inode; without it there are none."
        "Blocks are reserved for growing the file system and will not be used."
        "Store 0.";
    SB016 QUOTA_INODE Note
        "Quota inodes are named only with the quota feature, and are those that the format keeps for it."
        "The superblock was damaged."
        "Store the format's own inode, or 0.";
    SB017 BACKUP Note
        "Backup superblocks agree with the primary in all that does not change in use."
        "The backup would mislead a repair. Growing and tuning update the backups, mounting does not."
        "Write the primary over the backup.";
    SB018 ERRORS Note
        "The kernel has recorded no errors."
        "A driver met damage and noted it; the time, place and function of the first and the last error are in the superblock."
        "Clear the record.";
    SB019 MMP Error
        "With multiple-mount protection, the superblock names a block that holds its magic, and the file system is not in use."
        "Another machine may be writing at this moment, or the block was overwritten."
        "Write a clean block.";
    SB021 RESIZE_INODE Error
        "The resize inode maps exactly the reserved descriptor blocks of every copy of the table."
        "Growing the file system would overwrite files."
        "Build the resize inode anew.";
    SB022 JOURNAL_HINT Note
        "With has_journal off, no journal is named."
        "The superblock was damaged, or changed by hand."
        "Set the feature where the inode holds a journal, else store 0.";
    SB023 TWO_JOURNALS Error
        "The superblock names a journal inode or an external journal, not both."
        "It is unclear which journal must be replayed."
        "Forget the external journal.";
    SB024 HIGH Note
        "High halves of block counts are 0 without the feature 64bit."
        "The superblock was damaged, or the feature was cleared by hand. Some drivers use the high halves all the same."
        "Store 0.";
}
