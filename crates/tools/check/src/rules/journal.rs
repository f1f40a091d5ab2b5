//! Rules of the area `JO`: where the journal is, what its superblock says, what its log holds.

crate::rule::rules! { Journal;
    JO001 INODE Error
        "With the has_journal feature, the superblock names a journal: a regular file in use, 1024 blocks or more, without holes."
        "The file system cannot be mounted."
        "Use the backup of the journal's map in the superblock, else make a new journal; without space for one, clear the feature.";
    JO002 NO_JOURNAL Error
        "Only file systems with a journal wait for its replay."
        "The feature needs_recovery keeps older drivers out, and there is nothing to recover from."
        "Clear the feature.";
    JO003 BOTH Error
        "A journal is either inside or on another device."
        "It is unknown which of the two to replay."
        "Forget the external journal.";
    JO004 EXTERNAL Note
        "The journal lies inside the file system."
        "This one is on another device, which was not looked at; what its log holds is not part of this check."
        "None needed.";
    JO010 SUPERBLOCK Error
        "The journal begins with a journal superblock of the file system's block size."
        "The file system cannot be mounted, and what the log holds is lost."
        "Write a new journal superblock.";
    JO011 SUPERBLOCK_CHECKSUM Error
        "The checksum of the journal superblock matches its bytes."
        "The kernel refuses to mount."
        "Store the right checksum if the fields make sense, else write a new journal superblock.";
    JO012 FEATURES Error
        "The journal has known features only, and checksums of one version."
        "A reader that ignores an unknown feature would misread the log."
        "Write a new journal superblock.";
    JO013 LENGTH Error
        "The journal superblock counts no more blocks than the journal has."
        "The log would run past its end."
        "Set the number to the journal's blocks.";
    JO014 USERS Error
        "One file system uses the journal."
        "A journal inside a file system cannot be shared."
        "Store 1.";
    JO015 LOG_RANGE Note
        "The log lies inside the journal, and its first transaction inside the log."
        "The kernel refuses to mount."
        "Write a new journal superblock.";
    JO016 ABORTED Note
        "The journal was not aborted."
        "The kernel met an error while writing and stopped; it wants a full check, which this is."
        "Clear the number.";
    JO017 BACKUP Note
        "The superblock's backup of the journal's map is that of its inode."
        "Would the journal's inode be lost, the backup would lead to the wrong blocks."
        "Copy the map into the backup.";
    JO020 PENDING Note
        "The journal is empty."
        "The file system was not unmounted. It was checked as it will be once the log is replayed."
        "Replay the log.";
    JO021 FLAG Note
        "Only with the needs_recovery feature does the log hold anything."
        "The kernel throws such a log away, and so did this check."
        "Clear the log; where the superblock was damaged, replay it.";
    JO022 LOG_DAMAGED Error
        "Every block of the log that will be replayed has a matching checksum."
        "Something else than the file system wrote into the journal; the kernel refuses to go on with what it holds."
        "Replay what is sound, and empty the log.";
    JO023 LOG_TARGET Error
        "The log holds blocks of this file system, outside of the journal."
        "Replaying would write over the journal or past the end."
        "Replay the other blocks, and empty the log.";
    JO024 FAST_COMMITS Note
        "No fast commits wait to be replayed."
        "The check is of the state before them, which is a sound one; the next mount applies them."
        "Replay the log and the fast commits, as a mount does.";
    JO025 LOG_UNREADABLE Fatal
        "A journal that has to be replayed can be read."
        "What its log holds is missing from the state that was checked, so other findings may be false."
        "Write a new journal superblock: what the log holds is lost.";
}
