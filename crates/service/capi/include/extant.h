/*
 * libextant: ext4 in user space. docs/c.md explains how to use and link it.
 *
 * Generated from the Rust sources of crates/service/capi; do not edit.
 *
 * Errors: functions that can fail return 0, or a negative errno. Their last argument, which may be NULL,
 * receives NULL on success and a new error on failure; the caller frees it with extant_error_free().
 *
 * Paths are NUL-terminated bytes, not necessarily UTF-8. Paths inside an image begin at its root, with or
 * without a slash; symbolic links never lead out of the image.
 *
 * Threads: several threads may use one extant_fs, extant_file, extant_dir or extant_report at the same time,
 * but none may use it during or after the call that closes or frees it. Callbacks must return normally: no
 * C++ exception and no longjmp() may leave them.
 *
 * Options and reports: structures that begin with the field `size` must have it set to their sizeof. All
 * other fields may be zero, which chooses the default. Fields named `reserved` are zero.
 */

#ifndef EXTANT_H
#define EXTANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * For extant_fs_open_storage(): open for reading and writing.
 */
#define EXTANT_OPEN_WRITABLE 1

/**
 * For extant_fs_walk(): the names of each directory in the order of their bytes, not as they are stored.
 */
#define EXTANT_WALK_SORTED 1

/**
 * For extant_fs_set_xattr(): EEXIST if the attribute exists.
 */
#define EXTANT_XATTR_CREATE 1

/**
 * For extant_fs_set_xattr(): ENODATA if the attribute does not exist.
 */
#define EXTANT_XATTR_REPLACE 2

/**
 * For extant_fs_chown() and extant_fs_lchown(): leaves the owner or the group as it is.
 */
#define EXTANT_KEEP_ID 4294967295

/**
 * For extant_fs_rename(): EEXIST if the new name exists.
 */
#define EXTANT_RENAME_NO_REPLACE 1

/**
 * For extant_fs_rename(): the two names swap their inodes.
 */
#define EXTANT_RENAME_EXCHANGE 2

/**
 * For extant_storage.flags: bytes that were never written read as zeros.
 */
#define EXTANT_STORAGE_ZEROED 1

/**
 * For extant_source.kind: a directory.
 */
#define EXTANT_SOURCE_DIRECTORY 0

/**
 * For extant_source.kind: a tar archive, also compressed with gzip, zstd or xz.
 */
#define EXTANT_SOURCE_TAR 1

/**
 * For extant_source.kind: a container image in the directory of an OCI layout.
 */
#define EXTANT_SOURCE_OCI 2

/**
 * For extant_build_options.flags: replace an existing file.
 */
#define EXTANT_BUILD_REPLACE 1

/**
 * For extant_build_options.flags: do not wait until the image is durable.
 */
#define EXTANT_BUILD_NO_SYNC 2

/**
 * For extant_build_options.flags: `time` is the time of the file system, and later times in the tree become
 * this time. Otherwise it is the time of the newest file.
 */
#define EXTANT_BUILD_TIME 4

/**
 * For extant_build_options.flags: root owns all files.
 */
#define EXTANT_BUILD_ROOT_OWNS 8

/**
 * For extant_mkfs_options.generation: no journal, block maps.
 */
#define EXTANT_EXT2 2

/**
 * For extant_mkfs_options.generation: ext2 with a journal.
 */
#define EXTANT_EXT3 3

/**
 * For extant_mkfs_options.generation: the default.
 */
#define EXTANT_EXT4 4

/**
 * The value of a number in an extant_finding that the finding does not have.
 */
#define EXTANT_NONE 18446744073709551615ull

/**
 * For extant_repair_options.flags: plan the repair, and write nothing.
 */
#define EXTANT_REPAIR_DRY_RUN 1

/**
 * For extant_undo(): also over bytes that changed after the repair.
 */
#define EXTANT_UNDO_FORCE 1

/**
 * For extant_resize(): the smallest size to which the file system can shrink.
 */
#define EXTANT_RESIZE_SMALLEST 18446744073709551615ull

/**
 * The kind of a failure. Later versions may add kinds.
 */
typedef enum extant_code {
  /**
   * No error.
   */
  EXTANT_CODE_NONE = 0,
  /**
   * A defect of libextant. The handle of the failed call can only be closed.
   */
  EXTANT_CODE_INTERNAL = 1,
  /**
   * An argument is NULL or invalid. Nothing was done.
   */
  EXTANT_CODE_ARGUMENT = 2,
  /**
   * The image file cannot be opened, created or resized.
   */
  EXTANT_CODE_IMAGE = 3,
  /**
   * The image is in use: it has another writer, or is mounted.
   */
  EXTANT_CODE_IN_USE = 4,
  /**
   * There is no ext2, ext3 or ext4 file system in the image.
   */
  EXTANT_CODE_NOT_EXT4 = 5,
  /**
   * The file system has features that cannot be read, or not be written.
   */
  EXTANT_CODE_UNSUPPORTED = 6,
  /**
   * The operation was refused, and changed nothing; the errno is that of the system call (ENOENT, EEXIST,
   * ENOSPC, EROFS, ...).
   */
  EXTANT_CODE_REFUSED = 7,
  /**
   * The file system is damaged.
   */
  EXTANT_CODE_DAMAGED = 8,
  /**
   * The storage failed.
   */
  EXTANT_CODE_DEVICE = 9,
  /**
   * Nothing is written any more because of an earlier failure.
   */
  EXTANT_CODE_STOPPED = 10,
  /**
   * A source of a build cannot be read, or has something that an image cannot store.
   */
  EXTANT_CODE_SOURCE = 11,
  /**
   * The size is too small or too large.
   */
  EXTANT_CODE_SIZE = 12,
  /**
   * A callback ended the work.
   */
  EXTANT_CODE_CANCELLED = 13,
} extant_code;

/**
 * How severe a finding is.
 */
typedef enum extant_severity {
  /**
   * Information; the file system is valid.
   */
  EXTANT_SEVERITY_NOTE = 0,
  /**
   * The file system is damaged.
   */
  EXTANT_SEVERITY_ERROR = 1,
  /**
   * The damage prevents parts of the check.
   */
  EXTANT_SEVERITY_FATAL = 2,
} extant_severity;

/**
 * An open listing of a directory. Closed with extant_dir_close(). It stays usable after extant_fs_close().
 */
typedef struct extant_dir extant_dir;

/**
 * An error. Freed with extant_error_free().
 */
typedef struct extant_error extant_error;

/**
 * An open regular file. Closed with extant_file_close(). It stays usable after extant_fs_close().
 */
typedef struct extant_file extant_file;

/**
 * An open file system. Closed with extant_fs_close().
 */
typedef struct extant_fs extant_fs;

/**
 * The report of a repair. Freed with extant_repair_report_free().
 */
typedef struct extant_repair_report extant_repair_report;

/**
 * The report of a check. Freed with extant_report_free().
 */
typedef struct extant_report extant_report;

/**
 * A time.
 */
typedef struct extant_time {
  /**
   * Seconds since 1970-01-01 00:00 UTC.
   */
  int64_t seconds;
  /**
   * Nanoseconds, below 10^9.
   */
  uint32_t nanos;
  /**
   * Zero.
   */
  uint32_t reserved;
} extant_time;

/**
 * The attributes of an inode, as stat(2) and statx(2) return them.
 */
typedef struct extant_stat {
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * Size in bytes.
   */
  uint64_t size;
  /**
   * Space in units of 512 bytes.
   */
  uint64_t blocks;
  /**
   * Type and permissions, as st_mode.
   */
  uint32_t mode;
  /**
   * Number of names.
   */
  uint32_t links;
  /**
   * Owner.
   */
  uint32_t uid;
  /**
   * Group.
   */
  uint32_t gid;
  /**
   * Block size of the file system in bytes.
   */
  uint32_t block_size;
  /**
   * Major number of a device node.
   */
  uint32_t dev_major;
  /**
   * Minor number of a device node.
   */
  uint32_t dev_minor;
  /**
   * Inode flags, as FS_IOC_GETFLAGS returns them.
   */
  uint32_t flags;
  /**
   * Generation, which distinguishes successive uses of an inode number.
   */
  uint32_t generation;
  /**
   * Project ID.
   */
  uint32_t project;
  /**
   * Last access.
   */
  extant_time atime;
  /**
   * Last change of the data.
   */
  extant_time mtime;
  /**
   * Last change of the inode.
   */
  extant_time ctime;
  /**
   * Birth; zero if the inode has no room for it.
   */
  extant_time crtime;
  /**
   * Zero.
   */
  uint64_t reserved[4];
} extant_stat;

/**
 * What a walk found. Valid during the callback.
 */
typedef struct extant_entry {
  /**
   * The path from the root of the walk, without a slash at its beginning and with a NUL after it; empty
   * for the root.
   */
  const char *path;
  /**
   * Its length in bytes without the NUL.
   */
  size_t path_len;
  /**
   * The last component of the path.
   */
  const char *name;
  /**
   * Its length in bytes without the NUL.
   */
  size_t name_len;
  /**
   * Components of the path: 0 for the root.
   */
  size_t depth;
  /**
   * NULL, or why the name or the directory at this path cannot be read; the walk continues after it.
   */
  const char *problem;
  /**
   * The attributes; all zero if there is a problem.
   */
  extant_stat stat;
} extant_entry;

/**
 * Called for each entry of a walk, by the thread that called extant_fs_walk(). Any result but 0 ends the
 * walk.
 */
typedef int (*extant_walk_fn)(void *user, const extant_entry *entry);

/**
 * Space and inodes of a file system, as statfs(2) returns them.
 */
typedef struct extant_statfs {
  /**
   * Blocks available for files: without those of the file system itself.
   */
  uint64_t blocks;
  /**
   * Free blocks.
   */
  uint64_t blocks_free;
  /**
   * Free blocks without root's reserve.
   */
  uint64_t blocks_available;
  /**
   * Inodes.
   */
  uint64_t inodes;
  /**
   * Free inodes.
   */
  uint64_t inodes_free;
  /**
   * Block size in bytes.
   */
  uint32_t block_size;
  /**
   * Longest name in bytes.
   */
  uint32_t name_max;
  /**
   * Zero.
   */
  uint64_t reserved[4];
} extant_statfs;

/**
 * A name in a directory.
 */
typedef struct extant_dirent {
  /**
   * The name, with a NUL after it. Valid until the next call of extant_dir_next() or extant_dir_close().
   */
  const char *name;
  /**
   * Its length in bytes without the NUL, 1 to 255.
   */
  size_t name_len;
  /**
   * Inode number.
   */
  uint64_t ino;
  /**
   * The type bits of st_mode (S_IFREG, S_IFDIR, ...); 0 on old file systems without types.
   */
  uint32_t type;
  /**
   * Zero.
   */
  uint32_t reserved;
} extant_dirent;

/**
 * Storage of the caller: memory, a part of a file, a network. The functions return 0 or a negative errno,
 * and any thread may call them, also several at a time and also after the call that got this structure,
 * until `close`. The structure itself is copied.
 */
typedef struct extant_storage {
  /**
   * sizeof(extant_storage).
   */
  size_t size;
  /**
   * Passed to each function.
   */
  void *user;
  /**
   * The number of bytes. It must not change while the storage is in use.
   */
  uint64_t bytes;
  /**
   * 0 or EXTANT_STORAGE_ZEROED.
   */
  uint32_t flags;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * Fills the buffer completely from byte `offset` on. The range is inside the storage.
   */
  int (*read_at)(void *user, uint64_t offset, void *buffer, size_t len);
  /**
   * Writes all bytes at byte `offset`. NULL if the storage is only read.
   */
  int (*write_at)(void *user, uint64_t offset, const void *bytes, size_t len);
  /**
   * Makes all earlier writes durable. NULL if the storage is only read, or if each write is durable
   * when it returns.
   */
  int (*flush)(void *user);
  /**
   * Called once, when the storage is not used any more; also after a failure, unless its kind is
   * EXTANT_CODE_ARGUMENT. May be NULL.
   */
  void (*close)(void *user);
} extant_storage;

/**
 * A source of a build.
 */
typedef struct extant_source {
  /**
   * EXTANT_SOURCE_DIRECTORY, EXTANT_SOURCE_TAR or EXTANT_SOURCE_OCI.
   */
  uint32_t kind;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * Its path on this machine.
   */
  const char *path;
  /**
   * Tag or digest of a container image; NULL if the layout has only one.
   */
  const char *reference;
} extant_source;

/**
 * The state of a build. Valid during the callback.
 */
typedef struct extant_progress {
  /**
   * "reading", "planning" or "writing".
   */
  const char *step;
  /**
   * Entries of sources that were read so far.
   */
  uint64_t entries;
  /**
   * Bytes of contents that were written so far.
   */
  uint64_t bytes;
  /**
   * Bytes of contents to write; 0 before writing.
   */
  uint64_t bytes_total;
  /**
   * Files that were written so far.
   */
  uint64_t files;
  /**
   * Files to write; 0 before writing.
   */
  uint64_t files_total;
} extant_progress;

/**
 * Options of a build. The same sources and options make the same bytes.
 */
typedef struct extant_build_options {
  /**
   * sizeof(extant_build_options).
   */
  size_t size;
  /**
   * Bytes of the image; 0 for the smallest that fits, with the headroom below.
   */
  uint64_t image_bytes;
  /**
   * Headroom in percent of blocks and inodes.
   */
  double headroom_percent;
  /**
   * Additional headroom in bytes.
   */
  uint64_t headroom_bytes;
  /**
   * EXTANT_BUILD_REPLACE and others, combined by OR.
   */
  uint32_t flags;
  /**
   * Number of threads; 0 for one per core.
   */
  uint32_t threads;
  /**
   * Seconds since 1970, with EXTANT_BUILD_TIME.
   */
  uint64_t time;
  /**
   * Bytes in a block: a power of two from 1024 to 65536; 0 for 4096.
   */
  uint32_t block_size;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * At most 16 bytes, or NULL.
   */
  const char *label;
  /**
   * As for mke2fs -O, or NULL.
   */
  const char *features;
  /**
   * 16 bytes; NULL to derive it from the tree.
   */
  const uint8_t *uuid;
  /**
   * Passed to the functions below.
   */
  void *user;
  /**
   * Called with the state of the build, by several threads but one at a time. Any result but 0 ends the
   * build with the error EXTANT_CODE_CANCELLED. May be NULL.
   */
  int (*progress)(void *user, const extant_progress *progress);
  /**
   * Called at the end with each finding that the user should see. May be NULL.
   */
  void (*warning)(void *user, const char *text);
} extant_build_options;

/**
 * An image that was built.
 */
typedef struct extant_build_report {
  /**
   * Length of the image in bytes.
   */
  uint64_t image_bytes;
  /**
   * Bytes that were written.
   */
  uint64_t written_bytes;
  /**
   * Regular files; one with several names counts once.
   */
  uint64_t files;
  /**
   * Directories.
   */
  uint64_t directories;
  /**
   * Symbolic links.
   */
  uint64_t symlinks;
  /**
   * Devices, pipes and sockets.
   */
  uint64_t others;
  /**
   * Bytes of all contents, including holes.
   */
  uint64_t content_bytes;
  /**
   * Free blocks.
   */
  uint64_t blocks_free;
  /**
   * The UUID.
   */
  uint8_t uuid[16];
  /**
   * Zero.
   */
  uint64_t reserved[4];
} extant_build_report;

/**
 * The state of a check, repair, resize or mkfs. Valid during the callback.
 */
typedef struct extant_step {
  /**
   * The name of the step, such as "pass 1: inodes", "moving" or "zeroing".
   */
  const char *name;
  /**
   * Units of the step that are done: groups, directories, blocks.
   */
  uint64_t done;
  /**
   * All units of the step.
   */
  uint64_t total;
} extant_step;

/**
 * Options of an empty file system. What is zero or NULL has the default of mke2fs 1.47.
 */
typedef struct extant_mkfs_options {
  /**
   * sizeof(extant_mkfs_options).
   */
  size_t size;
  /**
   * EXTANT_EXT2, EXTANT_EXT3 or EXTANT_EXT4.
   */
  uint32_t generation;
  /**
   * Bytes in a block: a power of two from 1024 to 65536.
   */
  uint32_t block_size;
  /**
   * At most 16 bytes.
   */
  const char *label;
  /**
   * As for mke2fs -O: names separated by commas, with ^ before those to leave out.
   */
  const char *features;
  /**
   * 16 bytes; NULL for a random UUID.
   */
  const uint8_t *uuid;
  /**
   * Bytes of the file system for each inode.
   */
  uint64_t inode_ratio;
  /**
   * Passed to the function below.
   */
  void *user;
  /**
   * Called with the state of the work. Any result but 0 ends it with the error EXTANT_CODE_CANCELLED: then
   * there is no new file, or no file system on the storage. May be NULL.
   */
  int (*progress)(void *user, const extant_step *step);
} extant_mkfs_options;

/**
 * What was made.
 */
typedef struct extant_mkfs_report {
  /**
   * Blocks of the file system.
   */
  uint64_t blocks;
  /**
   * Blocks that are not in use.
   */
  uint64_t blocks_free;
  /**
   * Bytes that were written.
   */
  uint64_t written_bytes;
  /**
   * Bytes in a block.
   */
  uint32_t block_size;
  /**
   * The number of inodes that the file system has room for.
   */
  uint32_t inodes;
  /**
   * The UUID.
   */
  uint8_t uuid[16];
  /**
   * Zero.
   */
  uint64_t reserved[4];
} extant_mkfs_report;

/**
 * Options of a check.
 */
typedef struct extant_check_options {
  /**
   * sizeof(extant_check_options).
   */
  size_t size;
  /**
   * Number of threads; 0 for one per core.
   */
  uint32_t threads;
  /**
   * Zero.
   */
  uint32_t reserved;
  /**
   * Passed to the function below.
   */
  void *user;
  /**
   * Called with the state of the check, by several threads but one at a time. Any result but 0 ends the
   * check with the error EXTANT_CODE_CANCELLED. May be NULL.
   */
  int (*progress)(void *user, const extant_step *step);
} extant_check_options;

/**
 * A finding of a check. Its strings are valid until the report is freed.
 */
typedef struct extant_finding {
  /**
   * The permanent code of the rule: two letters and three digits.
   */
  const char *code;
  /**
   * One sentence with the numbers.
   */
  const char *message;
  /**
   * The rule in one sentence, as it holds for a valid file system.
   */
  const char *rule;
  /**
   * The name of a directory entry or attribute, or NULL.
   */
  const char *name;
  /**
   * Length of the name in bytes.
   */
  size_t name_len;
  /**
   * Inode number, or EXTANT_NONE.
   */
  uint64_t ino;
  /**
   * Block number, or EXTANT_NONE.
   */
  uint64_t block;
  /**
   * Block group, or EXTANT_NONE.
   */
  uint64_t group;
  /**
   * The severity.
   */
  extant_severity severity;
  /**
   * Zero.
   */
  uint32_t reserved;
} extant_finding;

/**
 * Options of a repair.
 */
typedef struct extant_repair_options {
  /**
   * sizeof(extant_repair_options).
   */
  size_t size;
  /**
   * Number of threads; 0 for one per core.
   */
  uint32_t threads;
  /**
   * 0 or EXTANT_REPAIR_DRY_RUN.
   */
  uint32_t flags;
  /**
   * Path of the undo file, or NULL. The bytes that the repair overwrites are durable in this file before
   * the first of them changes. The file must not exist, unless it belongs to a repair of this image that
   * was interrupted: that one is undone first.
   */
  const char *undo;
  /**
   * Passed to the function below.
   */
  void *user;
  /**
   * Called with the state of the checks that the plan consists of, by several threads but one at a time.
   * Any result but 0 ends the repair with the error EXTANT_CODE_CANCELLED: then nothing of this repair was
   * written. A repair whose writing has begun is not ended any more: it completes, and the call returns 0.
   * May be NULL.
   */
  int (*progress)(void *user, const extant_step *step);
} extant_repair_options;

/**
 * A fix of a repair, or a finding that the repair leaves. Its strings are valid until the report is freed.
 */
typedef struct extant_fix {
  /**
   * The permanent code of the rule: two letters and three digits.
   */
  const char *code;
  /**
   * What was found: one sentence with the numbers.
   */
  const char *message;
  /**
   * The rule in one sentence, as it holds for a valid file system.
   */
  const char *rule;
  /**
   * What the repair does; NULL for a finding that stays.
   */
  const char *remedy;
  /**
   * What becomes unreachable; NULL if nothing does.
   */
  const char *loss;
  /**
   * Why the finding stays; NULL for a fix.
   */
  const char *why;
  /**
   * The name of a directory entry or attribute, or NULL.
   */
  const char *name;
  /**
   * Length of the name in bytes.
   */
  size_t name_len;
  /**
   * Inode number, or EXTANT_NONE.
   */
  uint64_t ino;
  /**
   * Block number, or EXTANT_NONE.
   */
  uint64_t block;
  /**
   * Block group, or EXTANT_NONE.
   */
  uint64_t group;
  /**
   * The severity of the finding.
   */
  extant_severity severity;
  /**
   * Zero.
   */
  uint32_t reserved;
} extant_fix;

/**
 * Options of a resize.
 */
typedef struct extant_resize_options {
  /**
   * sizeof(extant_resize_options).
   */
  size_t size;
  /**
   * Passed to the function below.
   */
  void *user;
  /**
   * Called with the state of the resize. Any result but 0 ends the resize before its next step, with the
   * error EXTANT_CODE_CANCELLED: then the file system is valid, it does not have the new size yet, and the
   * same call continues. If there is no next step, the resize is complete, and the call returns 0. May be
   * NULL.
   */
  int (*progress)(void *user, const extant_step *step);
} extant_resize_options;

/**
 * A resize that is done.
 */
typedef struct extant_resize_report {
  /**
   * Bytes of the file system before.
   */
  uint64_t before_bytes;
  /**
   * Bytes of the file system after.
   */
  uint64_t after_bytes;
  /**
   * Blocks that moved.
   */
  uint64_t moved_blocks;
  /**
   * Inodes that have another number.
   */
  uint64_t moved_inodes;
  /**
   * Zero.
   */
  uint64_t reserved[4];
} extant_resize_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * The version of the library, such as "0.1.0".
 */
const char *extant_version(void);

/**
 * The message: the finding, the place and, where known, the remedy; UTF-8 without a line end. Valid until
 * the error is freed.
 */
const char *extant_error_message(const extant_error *error);

/**
 * The kind of the failure.
 */
extant_code extant_error_code(const extant_error *error);

/**
 * The number of errno.h, positive; 0 for NULL.
 */
int extant_error_errno(const extant_error *error);

/**
 * The path that the failure concerns, as the caller passed it; NULL if there is none. Valid until the error
 * is freed.
 */
const char *extant_error_path(const extant_error *error);

/**
 * Frees an error. NULL is allowed.
 */
void extant_error_free(extant_error *error);

/**
 * Opens an image file or block device for reading. It is never written: a journal that needs replay is
 * replayed in memory.
 */
int extant_fs_open(const char *image,
                   extant_fs **fs,
                   extant_error **error);

/**
 * Opens an image file or block device for reading and writing. Replays a journal that needs it first. There
 * is one writer at a time: a second one gets EBUSY.
 */
int extant_fs_open_writable(const char *image,
                            extant_fs **fs,
                            extant_error **error);

/**
 * Opens a file system on the caller's storage. `flags` is 0 or EXTANT_OPEN_WRITABLE. The caller ensures that
 * there is one writer.
 */
int extant_fs_open_storage(const extant_storage *storage,
                           uint32_t flags,
                           extant_fs **fs,
                           extant_error **error);

/**
 * Makes all changes durable, and closes the file system. The handle is freed even if an error is returned;
 * NULL is allowed. The image is left clean if all its files and directories are closed already. Otherwise
 * they stay usable, and the next writer replays the journal.
 */
int extant_fs_close(extant_fs *fs,
                    extant_error **error);

/**
 * Makes all changes so far durable. Does nothing if the file system is open for reading.
 */
int extant_fs_sync(extant_fs *fs, extant_error **error);

/**
 * The attributes of the inode at a path. Symbolic links are followed.
 */
int extant_fs_stat(extant_fs *fs, const char *path, extant_stat *stat, extant_error **error);

/**
 * The attributes of the inode at a path. A symbolic link at its end is not followed.
 */
int extant_fs_lstat(extant_fs *fs, const char *path, extant_stat *stat, extant_error **error);

/**
 * Whether a path exists. Symbolic links are followed, so a dangling one does not exist.
 */
int extant_fs_exists(extant_fs *fs, const char *path, bool *exists, extant_error **error);

/**
 * The target of a symbolic link, with a NUL after it. `len`, which may be NULL, receives its length without
 * the NUL. With a capacity of 0 nothing else is done; ERANGE if the target does not fit.
 */
int extant_fs_read_link(extant_fs *fs,
                        const char *path,
                        char *target,
                        size_t capacity,
                        size_t *len,
                        extant_error **error);

/**
 * Space and inodes of the file system.
 */
int extant_fs_statfs(extant_fs *fs, extant_statfs *statfs, extant_error **error);

/**
 * Starts to list a directory. Symbolic links are followed.
 */
int extant_dir_open(extant_fs *fs, const char *path, extant_dir **dir, extant_error **error);

/**
 * The next name, in the order in which they are stored, without "." and "..". Returns 1 if there is one,
 * 0 at the end. After an error, the next call continues after the damage.
 */
int extant_dir_next(extant_dir *dir,
                    extant_dirent *entry,
                    extant_error **error);

/**
 * Ends a listing. NULL is allowed.
 */
void extant_dir_close(extant_dir *dir);

/**
 * Walks everything below a path, a directory before its entries, and reads ahead with several threads.
 * `flags` is 0 or EXTANT_WALK_SORTED. Returns 0 also if the callback ended the walk. A symbolic link at the
 * end of the path is not followed.
 */
int extant_fs_walk(extant_fs *fs,
                   const char *path,
                   uint32_t flags,
                   extant_walk_fn callback,
                   void *user,
                   extant_error **error);

/**
 * The value of an extended attribute by its full name ("user.comment"), of a file or of a symbolic link
 * itself. `len`, which may be NULL, receives its length. With a capacity of 0 nothing else is done; ERANGE
 * if the value does not fit. ACLs have the format of getxattr(2).
 */
int extant_fs_get_xattr(extant_fs *fs,
                        const char *path,
                        const char *name,
                        void *value,
                        size_t capacity,
                        size_t *len,
                        extant_error **error);

/**
 * The full names of all extended attributes of a file or of a symbolic link itself, each with a NUL after
 * it. `len`, which may be NULL, receives the length of all. With a capacity of 0 nothing else is done;
 * ERANGE if the names do not fit.
 */
int extant_fs_list_xattrs(extant_fs *fs,
                          const char *path,
                          char *names,
                          size_t capacity,
                          size_t *len,
                          extant_error **error);

/**
 * Sets an extended attribute of a file or of a symbolic link itself. `flags` is 0, EXTANT_XATTR_CREATE or
 * EXTANT_XATTR_REPLACE.
 */
int extant_fs_set_xattr(extant_fs *fs,
                        const char *path,
                        const char *name,
                        const void *value,
                        size_t len,
                        uint32_t flags,
                        extant_error **error);

/**
 * Removes an extended attribute of a file or of a symbolic link itself.
 */
int extant_fs_remove_xattr(extant_fs *fs,
                           const char *path,
                           const char *name,
                           extant_error **error);

/**
 * Opens a regular file, for writing as well if the file system is. Symbolic links are followed.
 */
int extant_file_open(extant_fs *fs, const char *path, extant_file **file, extant_error **error);

/**
 * Closes a file. NULL is allowed. What was written is durable after extant_file_sync(), extant_fs_sync() or
 * extant_fs_close().
 */
void extant_file_close(extant_file *file);

/**
 * Reads up to `len` bytes from byte `offset` on. `done` receives their number, which is smaller than `len`
 * only at the end of the file.
 */
int extant_file_pread(extant_file *file,
                      void *buffer,
                      size_t len,
                      uint64_t offset,
                      size_t *done,
                      extant_error **error);

/**
 * Writes all `len` bytes from byte `offset` on, which may lie past the end. After ENOSPC, those that fit are
 * written.
 */
int extant_file_pwrite(extant_file *file,
                       const void *bytes,
                       size_t len,
                       uint64_t offset,
                       extant_error **error);

/**
 * Writes all `len` bytes at the end of the file. `offset`, which may be NULL, receives the place where they
 * begin. Appends of several threads do not overlap.
 */
int extant_file_append(extant_file *file,
                       const void *bytes,
                       size_t len,
                       uint64_t *offset,
                       extant_error **error);

/**
 * Sets the size in bytes: frees what is past it, or extends the file by a hole.
 */
int extant_file_truncate(extant_file *file, uint64_t size, extant_error **error);

/**
 * Makes all written bytes and all other changes of the file durable.
 */
int extant_file_sync(extant_file *file, extant_error **error);

/**
 * The size in bytes.
 */
int extant_file_size(extant_file *file, uint64_t *size, extant_error **error);

/**
 * The attributes of the file.
 */
int extant_file_stat(extant_file *file, extant_stat *stat, extant_error **error);

/**
 * Creates an empty regular file, owned by root, with these permission bits (0 to 07777). EEXIST if the name
 * exists.
 */
int extant_fs_create(extant_fs *fs,
                     const char *path,
                     uint32_t mode,
                     extant_error **error);

/**
 * Creates an empty directory, owned by root, with these permission bits.
 */
int extant_fs_mkdir(extant_fs *fs, const char *path, uint32_t mode, extant_error **error);

/**
 * Creates a file, device, named pipe or socket, owned by root. `mode` has type and permissions, as for
 * mknod(2).
 */
int extant_fs_mknod(extant_fs *fs,
                    const char *path,
                    uint32_t mode,
                    uint32_t major,
                    uint32_t minor,
                    extant_error **error);

/**
 * Creates a symbolic link to `target`, which need not exist.
 */
int extant_fs_symlink(extant_fs *fs,
                      const char *target,
                      const char *path,
                      extant_error **error);

/**
 * Gives the file at `original` a second name. A symbolic link is not followed.
 */
int extant_fs_link(extant_fs *fs, const char *original, const char *link, extant_error **error);

/**
 * Removes a name of a file, link or device. The file is deleted with its last name, after it is closed.
 */
int extant_fs_unlink(extant_fs *fs,
                     const char *path,
                     extant_error **error);

/**
 * Removes an empty directory.
 */
int extant_fs_rmdir(extant_fs *fs, const char *path, extant_error **error);

/**
 * Removes a directory and everything in it. Symbolic links are removed, not followed. This takes many
 * operations: after an error, the names that were not removed yet remain.
 */
int extant_fs_remove_tree(extant_fs *fs,
                          const char *path,
                          extant_error **error);

/**
 * Moves a name. `flags` is 0, which replaces a file or an empty directory that has the new name,
 * EXTANT_RENAME_NO_REPLACE or EXTANT_RENAME_EXCHANGE.
 */
int extant_fs_rename(extant_fs *fs,
                     const char *from,
                     const char *to,
                     uint32_t flags,
                     extant_error **error);

/**
 * Sets the permission bits (0 to 07777). Symbolic links are followed.
 */
int extant_fs_chmod(extant_fs *fs, const char *path, uint32_t mode, extant_error **error);

/**
 * Sets owner and group; EXTANT_KEEP_ID leaves one as it is. Symbolic links are followed.
 */
int extant_fs_chown(extant_fs *fs,
                    const char *path,
                    uint32_t uid,
                    uint32_t gid,
                    extant_error **error);

/**
 * The same for a symbolic link itself.
 */
int extant_fs_lchown(extant_fs *fs,
                     const char *path,
                     uint32_t uid,
                     uint32_t gid,
                     extant_error **error);

/**
 * Sets the times of last access and of last change; NULL leaves one as it is. A time out of range is stored
 * as the nearest possible one. Symbolic links are followed.
 */
int extant_fs_utimes(extant_fs *fs,
                     const char *path,
                     const extant_time *atime,
                     const extant_time *mtime,
                     extant_error **error);

/**
 * The same for a symbolic link itself.
 */
int extant_fs_lutimes(extant_fs *fs,
                      const char *path,
                      const extant_time *atime,
                      const extant_time *mtime,
                      extant_error **error);

/**
 * Builds an image from `count` sources; later sources override earlier ones. The image appears under its
 * name when it is complete: after an error there is none, and an existing one is unchanged. `options` and
 * `report` may be NULL.
 */
int extant_build(const char *image,
                 const extant_source *sources,
                 size_t count,
                 const extant_build_options *options,
                 extant_build_report *report,
                 extant_error **error);

/**
 * Makes an empty file system of `bytes` bytes in a new file. An existing file is replaced when the new
 * one is complete, unless it is in use. `options` and `report` may be NULL.
 */
int extant_mkfs(const char *image,
                uint64_t bytes,
                const extant_mkfs_options *options,
                extant_mkfs_report *report,
                extant_error **error);

/**
 * Makes an empty file system on all of the caller's storage, whose old content is lost.
 */
int extant_mkfs_storage(const extant_storage *storage,
                        const extant_mkfs_options *options,
                        extant_mkfs_report *report,
                        extant_error **error);

/**
 * Checks the file system in an image file or on a block device, and writes nothing. Damage is not an
 * error of this function: the report has it. `options` may be NULL.
 */
int extant_check(const char *image,
                 const extant_check_options *options,
                 extant_report **report,
                 extant_error **error);

/**
 * Checks the file system on the caller's storage.
 */
int extant_check_storage(const extant_storage *storage,
                         const extant_check_options *options,
                         extant_report **report,
                         extant_error **error);

/**
 * Whether there is no finding above a note. False for NULL.
 */
bool extant_report_is_clean(const extant_report *report);

/**
 * Whether a usable superblock was found. If not, nothing else was checked. False for NULL.
 */
bool extant_report_is_file_system(const extant_report *report);

/**
 * The number of findings: at most 1000 for each code. 0 for NULL.
 */
size_t extant_report_count(const extant_report *report);

/**
 * A finding by its number, which counts from 0. They are in the order of their codes and places.
 */
int extant_report_finding(const extant_report *report,
                          size_t number,
                          extant_finding *finding,
                          extant_error **error);

/**
 * Frees a report. NULL is allowed.
 */
void extant_report_free(extant_report *report);

/**
 * Repairs the file system in an image file or on a block device that is not mounted. The whole repair is
 * planned in memory before anything is written. A finding that cannot be repaired is not an error of this
 * function: the report has it. `options` may be NULL.
 */
int extant_repair(const char *image,
                  const extant_repair_options *options,
                  extant_repair_report **report,
                  extant_error **error);

/**
 * Repairs the file system on the caller's storage.
 */
int extant_repair_storage(const extant_storage *storage,
                          const extant_repair_options *options,
                          extant_repair_report **report,
                          extant_error **error);

/**
 * Takes a repair back: writes the old bytes of its undo file into the image. `flags` is 0 or
 * EXTANT_UNDO_FORCE. Without it, an image that changed after the repair is refused.
 */
int extant_undo(const char *image, const char *undo, uint32_t flags, extant_error **error);

/**
 * The number of all fixes. 0 for NULL.
 */
uint64_t extant_repair_report_total(const extant_repair_report *report);

/**
 * The number of bytes of the image that changed, or would change. 0 for NULL.
 */
uint64_t extant_repair_report_changed_bytes(const extant_repair_report *report);

/**
 * Whether no finding above a note is left. False for NULL.
 */
bool extant_repair_report_is_complete(const extant_repair_report *report);

/**
 * How many fixes and left findings extant_repair_report_fix() returns: all fixes with a loss, at most 1000
 * others for each code, and all left findings. 0 for NULL.
 */
size_t extant_repair_report_count(const extant_repair_report *report);

/**
 * A fix or left finding by its number, which counts from 0. The fixes are first, in the order in which they
 * were made.
 */
int extant_repair_report_fix(const extant_repair_report *report,
                             size_t number,
                             extant_fix *fix,
                             extant_error **error);

/**
 * Frees a report. NULL is allowed.
 */
void extant_repair_report_free(extant_repair_report *report);

/**
 * Grows or shrinks the file system in an image file or on a block device to `bytes` bytes, or to
 * EXTANT_RESIZE_SMALLEST. An image file gets the length of its file system. With a journal, a power cut at
 * any moment is harmless, and the same call continues. `options` and `report` may be NULL.
 */
int extant_resize(const char *image,
                  uint64_t bytes,
                  const extant_resize_options *options,
                  extant_resize_report *report,
                  extant_error **error);

/**
 * Resizes the file system on the caller's storage, whose length stays.
 */
int extant_resize_storage(const extant_storage *storage,
                          uint64_t bytes,
                          const extant_resize_options *options,
                          extant_resize_report *report,
                          extant_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /*EXTANT_H */
