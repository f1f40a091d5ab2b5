//! Rules of the area `DI`: blocks of directories, their entries, their index, connectivity, link counts.

crate::rule::rules! { Directory;
    DI001 ENTRY_CHAIN Error
        "The entries of a directory block reach from its beginning to its end without a gap."
        "Each entry says where the next begins. Behind one that lies, every name of the block is lost to lookups and listings."
        "Keep the entries before and after the damage; files that lose their name go to lost+found.";
    DI002 DOT Error
        "The first entry of a directory is \".\" and names the directory itself."
        "Programs that walk up or count links rely on it; the kernel refuses to remove such a directory."
        "Write the directory anew from its sound entries.";
    DI003 DOTDOT Error
        "The second entry of a directory is \"..\"."
        "Without it there is no way up from here."
        "Write the directory anew from its sound entries.";
    DI004 DOTDOT_PARENT Error
        "\"..\" names the directory that holds this directory's name."
        "An interrupted rename leaves this behind; walking up leads to the wrong place and link counts of both parents are wrong."
        "Set \"..\" to the directory that holds the name.";
    DI005 HOLE Error
        "A directory has all blocks from the first to its size."
        "A directory is read block by block; at a hole the kernel reports corruption."
        "Write the directory anew from its sound entries, without a hole.";
    DI007 TAIL_MISSING Error
        "With metadata_csum, a directory block ends in a checksum tail."
        "The kernel refuses to use a block without it."
        "Write the directory anew from its sound entries, with tails.";
    DI008 TAIL_CHECKSUM Error
        "The checksum of a directory block matches its bytes."
        "Something else than the file system wrote here, or only a part of the block reached the disk."
        "Store the right checksum; other rules judge the entries.";
    DI009 NAME_BYTES Error
        "A name holds neither \"/\" nor NUL."
        "No path can reach such a name, so the file can be neither opened nor removed."
        "Replace these bytes by \"_\".";
    DI010 NAME_EMPTY Error
        "A name in use has at least one byte."
        "No path can reach it."
        "Clear the entry; the file goes to lost+found if it was its only name.";
    DI011 INODE_RANGE Error
        "An entry leads to an inode that exists and that files may use."
        "Numbers past the end, of reserved inodes, or of the file system's own files (journal, quota, orphan file) are damage; opening such a name could destroy metadata."
        "Clear the entry.";
    DI012 INODE_UNUSED Error
        "An entry leads to an inode in use."
        "The file was deleted or its inode lost; the kernel reports corruption when the name is looked up."
        "Clear the entry.";
    DI013 FILE_TYPE Error
        "The type in an entry is that of the inode it leads to."
        "Listings show the wrong type and tree walks skip or misread the file."
        "Set the type from the inode's mode.";
    DI014 FILE_TYPE_UNSET Note
        "With the filetype feature, entries say the type of their inode."
        "The type is unknown here; readers look into the inode instead. Old tools leave it out."
        "Set the type from the inode's mode.";
    DI015 FILE_TYPE_WITHOUT_FEATURE Error
        "Without the filetype feature, entries have no type."
        "The byte belongs to the length of the name there, which becomes impossible."
        "Clear the byte.";
    DI016 DUPLICATE Error
        "Each name is in its directory once."
        "Only one of the two can be found; removing the name removes either."
        "Rename the second one: \"~1\" is added.";
    DI017 SECOND_DOT Error
        "\".\" and \"..\" stand only at the beginning of a directory."
        "A second one is reached by no path, and counts as an unexpected link."
        "Clear the entry.";
    DI018 DIR_LINK Error
        "A directory has one name."
        "A second name makes a loop or lets one directory appear in two places; tree walks may never end."
        "Keep the name whose directory is the target's \"..\", clear the others.";
    DI019 ENCRYPTED_NAME Error
        "A name in an encrypted directory has at least 16 bytes."
        "Shorter ones cannot be a cipher text, so no key will ever make a name of it."
        "Clear the entry; the file goes to lost+found if it was its only name.";
    DI020 UNENCRYPTED Error
        "Files, directories and symbolic links in an encrypted directory are encrypted."
        "The kernel refuses to open such a file: it may have been planted to be taken for an encrypted one."
        "Clear the entry; the file goes to lost+found.";
    DI021 UNREADABLE Fatal
        "A directory's blocks can be read."
        "The device failed here; what these blocks name could not be checked."
        "None: copy the device to a sound one first.";
    DI022 TOO_MUCH Fatal
        "All directories together have no more blocks than the file system."
        "Maps that lead to the same blocks again and again are made by damage or on purpose; not all of them were followed."
        "None.";
    DI023 ENCODED_NAME Error
        "A name in a casefolded directory is valid UTF-8 where the superblock demands strict encoding."
        "The kernel refuses to look up or create such a name, so the file cannot be opened by it."
        "Replace the bytes above 0x7F by \"_\".";
    DI030 INDEX_ROOT Error
        "The root of a directory's index has known fields only."
        "The kernel does not use an index with such a root; with metadata_csum it refuses the directory."
        "Rebuild the directory's index.";
    DI031 INDEX_HASH Error
        "The index of a directory names a hash that the directory can have."
        "Lookups would compute other hashes than the ones the index is sorted by."
        "Rebuild the directory's index.";
    DI032 INDEX_DEPTH Error
        "All leaves of an index lie at the depth that its root says, and that the features allow."
        "A lookup would read names as an index or an index as names."
        "Rebuild the directory's index.";
    DI033 INDEX_LIMIT Error
        "An index block's limit is what fits, and its count is between 1 and the limit."
        "The kernel refuses such a block: a count too high leads out of the block."
        "Rebuild the directory's index.";
    DI034 INDEX_ORDER Error
        "The hashes of an index block ascend, within the range of its parent's entry."
        "Lookups search by halves; out of order, they miss names that exist."
        "Rebuild the directory's index.";
    DI035 INDEX_CHILD Error
        "An index entry leads to a block of the directory behind the first."
        "Lookups would leave the directory or run in circles."
        "Rebuild the directory's index.";
    DI036 INDEX_TWICE Error
        "A block has one entry in the index."
        "Its names would be listed twice, and splitting it would lose some."
        "Rebuild the directory's index.";
    DI037 INDEX_UNREFERENCED Error
        "Every block of an indexed directory is in the index."
        "No lookup finds the names in a block that is missing from the index."
        "Rebuild the directory's index.";
    DI038 INDEX_RANGE Error
        "The hashes of a leaf's names are in the range that the index gives it."
        "A name outside of the range exists and is not found."
        "Rebuild the directory's index.";
    DI039 INDEX_CHECKSUM Error
        "The checksum of an index block matches its bytes."
        "Something else than the file system wrote here, or only a part of the block reached the disk."
        "Rebuild the directory's index.";
    DI040 INDEX_FEATURE Error
        "Only with the dir_index feature do directories have an index."
        "Drivers without the feature change such a directory without its index."
        "Write the directory anew without an index.";
    DI041 INDEX_CONTINUATION Note
        "Where names of one hash fill two leaves, the second leaf's index entry says so."
        "Without the mark, a lookup does not go on to the second leaf."
        "Rebuild the directory's index.";
    DI051 UNCONNECTED Error
        "Every directory has a name."
        "It and all below it can be reached by no path; its name was lost with a damaged block."
        "Give it a name in lost+found.";
    DI052 LOOP Error
        "Walking up from a directory leads to the root."
        "A directory that lies below itself can be reached by no path from the root."
        "Cut the loop: give one of its directories a name in lost+found, and make that its \"..\".";
    DI053 LINKS Error
        "A link count is the number of names that lead to the inode."
        "Too low, the inode is freed while a name still leads to it; too high, its space is never freed."
        "Set the link count to the number of names.";
    DI054 UNATTACHED Error
        "An inode in use has a name, or is on its way to be deleted."
        "A crash between making the inode and its name, or a lost directory block; its space is in use and unreachable."
        "Give it a name in lost+found.";
    DI055 LINKS_STUCK Note
        "A directory has a link count of 1 only above 65,000 subdirectories."
        "It once had more: the count then sticks at 1, meaning \"unknown\", and that is allowed."
        "None needed.";
}
