//! Rules of the area `BM`: bitmaps.

crate::rule::rules! { Bitmap;
    BM001 BLOCKS_UNMARKED Error
        "Every cluster in use is marked in its group's block bitmap."
        "The next allocation may hand out a file's blocks once more: two files would overwrite each other."
        "Mark the clusters.";
    BM002 BLOCKS_LEAKED Error
        "Every cluster marked in a block bitmap is in use."
        "The space is lost until the mark is cleared."
        "Clear the marks.";
    BM003 INODES_UNMARKED Error
        "Every inode in use is marked in its group's inode bitmap."
        "The next file may get this inode and destroy it."
        "Mark the inodes.";
    BM004 INODES_LEAKED Error
        "Every inode marked in an inode bitmap is in use."
        "The inode cannot be used until the mark is cleared."
        "Clear the marks.";
    BM005 BLOCK_CHECKSUM Error
        "The checksum of a block bitmap fits."
        "The bitmap was overwritten or never completely written; drivers refuse to allocate in the group."
        "Store the right checksum.";
    BM006 INODE_CHECKSUM Error
        "The checksum of an inode bitmap fits."
        "The bitmap was overwritten or never completely written; drivers refuse to allocate in the group."
        "Store the right checksum.";
    BM007 BLOCK_PADDING Error
        "Bits of a block bitmap behind the last cluster of the group are set."
        "A driver might allocate what does not exist."
        "Set the bits.";
    BM008 INODE_PADDING Error
        "Bits of an inode bitmap behind the last inode of the group are set."
        "A driver might allocate what does not exist."
        "Set the bits.";
}
