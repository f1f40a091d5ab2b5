//! Rules of the area `EX`: extent trees, indirect maps, and the owners of clusters.

crate::rule::rules! { Map;
    EX001 HEADER Error
        "An extent node's header has the magic, room for as many entries as fit, no more entries than room, and the depth its place in the tree gives it."
        "The node was overwritten, or the pointer to it is wrong. What it maps cannot be reached."
        "Write the map anew from the entries that make sense; the rest becomes a hole.";
    EX002 CHECKSUM Error
        "The checksum of an extent node fits."
        "The node was overwritten or never completely written."
        "Write the map anew from the entries that make sense.";
    EX003 ORDER Error
        "Entries of an extent tree are in order of logical blocks, do not overlap, and keep to the range of their parent's entry."
        "A lookup may find the wrong blocks, or none."
        "Write the map anew; an entry that overlaps the next one is cut, one that is out of order is dropped.";
    EX004 EMPTY_EXTENT Error
        "An extent has at least one block."
        "The entry maps nothing; the kernel refuses the tree."
        "Write the map anew without the entry.";
    EX005 EMPTY_INDEX Error
        "An inner extent node has at least one entry."
        "The kernel refuses the tree."
        "Write the map anew without the node.";
    EX006 OUTSIDE Error
        "Blocks that a map leads to are inside the file system."
        "The file's data cannot be reached; writing there would be refused."
        "Write the map anew; what leads outside becomes a hole.";
    EX007 LOOP Error
        "A block of a map has one place in it."
        "The map leads in a circle or uses one block twice."
        "Write the map anew without the second use.";
    EX008 UNREADABLE Error
        "Blocks of a map can be read."
        "The device refuses to give the block."
        "None: copy the device to a sound one first.";
    EX009 KEY Error
        "The entry that leads to an extent node names the first logical block that the node maps."
        "A lookup between the two numbers goes astray."
        "Write the map anew.";
    EX010 METADATA Error
        "No map leads into superblocks, descriptors, bitmaps or inode tables."
        "Writing to the file would destroy the file system."
        "Write the map anew; what leads into metadata becomes a hole. A bitmap whose address leads into a file moves away instead.";
    EX011 SHARED Error
        "A cluster belongs to one file only."
        "Two files believe that the cluster is theirs: writing to one changes the other."
        "Give each owner a copy of its own; without space, the blocks become holes.";
    EX012 UNWRITTEN_DIR Error
        "A directory has no unwritten extents."
        "The block reads as zeros, which is no directory block."
        "Mark the extent as written.";
    EX013 CLUSTER Error
        "With bigalloc, blocks lie at the same offset of their cluster as of the file's cluster."
        "Two logical clusters would share one on the device."
        "Move the file's data to a cluster of its own.";
    EX015 ABANDONED Fatal
        "Blocks of maps belong to one map only."
        "So many maps lead through the same blocks that the walk over them was given up: the image is damaged on purpose or beyond repair."
        "None.";
}
