//! Rules of the area `QU`: hidden quota files.

crate::rule::rules! { Quota;
    QU001 INODE Error
        "With the quota feature, each quota file named by the superblock is a regular file in use."
        "The kernel cannot count usage, and refuses to mount with quotas."
        "Write a new quota file from the usage counted.";
    QU003 FILE Error
        "A quota file is a sound tree of entries."
        "Limits and usage of some ids cannot be found."
        "Write the file anew from the limits that can be read and the usage counted.";
    QU004 USAGE Error
        "A quota file's usage is what the inodes of its owner use."
        "Owners are refused space they should have, or get more than their limit."
        "Write the usage counted.";
    QU005 MISSING Error
        "Every owner of space has an entry in the quota file."
        "The owner's usage is not limited."
        "Add an entry with the usage counted.";
}
