//! Rules of the area `XA`: extended attributes.

crate::rule::rules! { Xattr;
    XA001 IN_INODE Error
        "Entries and values of the attributes in an inode lie inside it."
        "Attributes, among them rights and labels, are lost."
        "Keep the attributes that make sense, remove the others.";
    XA002 BLOCK Error
        "An attribute block has the magic and is one block, and its entries and values lie inside it, apart from each other."
        "Attributes, among them rights and labels, are lost."
        "Keep the attributes that make sense, remove the others; without any, remove the block from all inodes.";
    XA003 BLOCK_PLACE Error
        "An attribute block lies inside the file system, outside its metadata, and the feature ext_attr is on."
        "The inode was overwritten."
        "Store 0.";
    XA004 CHECKSUM Error
        "The checksum of an attribute block fits."
        "The block was overwritten or never completely written."
        "Store the right checksum; other rules judge the entries.";
    XA005 HASH Error
        "An entry's hash is that of its name and value; in an inode it may be 0."
        "The entry was overwritten."
        "Remove the attribute.";
    XA006 REFCOUNT Error
        "The reference count of an attribute block is the number of inodes that name it."
        "Too small a number frees the block while it is in use; too large a one leaks it."
        "Store the number counted.";
    XA007 EA_INODE Error
        "The value of a large attribute is the content of an inode with the EA_INODE flag, of the size and checksum that the entry says."
        "The attribute cannot be read."
        "Remove the attribute; where only the value's checksum is wrong, store it.";
    XA008 EA_REFCOUNT Error
        "The reference count of an EA inode is the number of attributes that name it."
        "Too small a number frees the value while it is in use; too large a one leaks it."
        "Store the number counted.";
    XA009 ORDER Note
        "Entries of an attribute block are sorted by index, length of the name, and name."
        "The kernel stops its search early and may not find an attribute."
        "Sort the entries.";
    XA010 UNREADABLE Error
        "Attribute blocks can be read."
        "The device refuses to give the block."
        "None: copy the device to a sound one first.";
    XA011 ODD_ENTRY Note
        "In an inode, names of attributes have no NUL, and values begin at multiples of 4."
        "The entry was overwritten. It can still be read."
        "Remove the attribute.";
    XA012 EA_UNUSED Error
        "An inode with the EA_INODE flag holds the value of an attribute that refers to it."
        "Nothing frees the value; if the inode is a file, drivers refuse to open it."
        "Clear the flag; without a name, the inode goes to lost+found.";
}
