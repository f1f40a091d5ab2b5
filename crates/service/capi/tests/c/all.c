/*
 * Calls every function of libextant: with good arguments, with bad ones, on storage in memory, and from two
 * threads. The argument is an empty directory. Prints the failed condition and exits with 1 on a failure.
 */
#define _XOPEN_SOURCE 700

#include <errno.h>
#include <extant.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

#define CHECK(condition)                                                                   \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,             \
                    extant_error_message(error));                                          \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* Expects success. `error` may be set before; it is NULL after a success. */
#define OK(call) CHECK((call) == 0 && error == NULL)

/* Expects this errno and this kind, and frees the error. */
#define FAILS(call, number, kind)                                                          \
    do {                                                                                   \
        CHECK((call) == -(number));                                                        \
        CHECK(error != NULL && extant_error_errno(error) == (number));                     \
        CHECK(extant_error_code(error) == (kind));                                         \
        CHECK(strlen(extant_error_message(error)) > 5);                                    \
        extant_error_free(error);                                                          \
        error = NULL;                                                                      \
    } while (0)

static extant_error *error = NULL;

static void write_host(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

/* Storage in memory. */
struct memory {
    unsigned char *bytes;
    int reads, writes, flushes, closes;
    int fails;
    pthread_mutex_t lock;
};

static int memory_read(void *user, uint64_t offset, void *buffer, size_t len)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memory->reads++;
    memcpy(buffer, memory->bytes + offset, len);
    pthread_mutex_unlock(&memory->lock);
    return memory->fails ? -EREMOTEIO : 0;
}

static int memory_write(void *user, uint64_t offset, const void *bytes, size_t len)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memory->writes++;
    memcpy(memory->bytes + offset, bytes, len);
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static int memory_flush(void *user)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memory->flushes++;
    pthread_mutex_unlock(&memory->lock);
    return 0;
}

static void memory_close(void *user)
{
    struct memory *memory = user;
    pthread_mutex_lock(&memory->lock);
    memory->closes++;
    pthread_mutex_unlock(&memory->lock);
}

struct seen {
    int steps, warnings, stop;
    char last[16];
};

static int progress(void *user, const extant_progress *state)
{
    struct seen *seen = user;
    seen->steps++;
    snprintf(seen->last, sizeof seen->last, "%s", state->step);
    return seen->stop;
}

static void warning(void *user, const char *text)
{
    ((struct seen *)user)->warnings += text != NULL;
}

/* The steps of a check, repair, resize or mkfs. */
struct steps {
    int count, stop;
    int stop_at; /* The report from which on the work is to end; 0 for none. */
    uint64_t done, total;
    char name[32];
};

static int step(void *user, const extant_step *state)
{
    struct steps *steps = user;
    steps->count++;
    steps->done = state->done;
    steps->total = state->total;
    snprintf(steps->name, sizeof steps->name, "%s", state->name);
    return steps->stop || (steps->stop_at != 0 && steps->count >= steps->stop_at);
}

static void test_build(void)
{
    struct seen seen = {0};
    extant_source sources[2] = {
        {.kind = EXTANT_SOURCE_DIRECTORY, .path = "tree"},
        {.kind = EXTANT_SOURCE_TAR, .path = "more.tar"},
    };
    extant_build_options options = {
        .size = sizeof options,
        .headroom_percent = 10,
        .headroom_bytes = 4 * MIB,
        .flags = EXTANT_BUILD_TIME | EXTANT_BUILD_ROOT_OWNS | EXTANT_BUILD_NO_SYNC,
        .time = 1700000000,
        .label = "tour",
        .user = &seen,
        .progress = progress,
        .warning = warning,
    };
    extant_build_report report;
    OK(extant_build("a.img", sources, 2, &options, &report, &error));
    CHECK(report.files == 3 && report.directories >= 2 && report.symlinks == 1);
    CHECK(report.content_bytes == 6 + 4 + 5 && report.image_bytes > 4 * MIB);
    CHECK(seen.steps >= 3 && strcmp(seen.last, "writing") == 0);

    /* The same bytes again, with another number of threads. */
    options.threads = 1;
    OK(extant_build("b.img", sources, 2, &options, NULL, &error));
    CHECK(system("cmp -s a.img b.img") == 0);

    FAILS(extant_build("a.img", sources, 2, &options, NULL, &error), EEXIST, EXTANT_CODE_IMAGE);
    seen.stop = 1;
    options.flags |= EXTANT_BUILD_REPLACE;
    FAILS(extant_build("a.img", sources, 2, &options, NULL, &error), ECANCELED, EXTANT_CODE_CANCELLED);
    seen.stop = 0;
    options.image_bytes = 16384;
    FAILS(extant_build("a.img", sources, 2, &options, NULL, &error), ENOSPC, EXTANT_CODE_SIZE);
    options.flags = 1 << 30;
    FAILS(extant_build("a.img", sources, 2, &options, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    options.size = 4;
    FAILS(extant_build("a.img", sources, 2, &options, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    sources[0].path = "missing";
    CHECK(extant_build("c.img", sources, 1, NULL, NULL, &error) == -ENOENT);
    CHECK(extant_error_code(error) == EXTANT_CODE_SOURCE && strstr(extant_error_path(error), "missing"));
    extant_error_free(error);
    sources[0].kind = 77;
    FAILS(extant_build("c.img", sources, 1, NULL, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_build("c.img", NULL, 1, NULL, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    CHECK(access("c.img", F_OK) != 0);

    /* Fields that a later version may add must be zero here. */
    struct {
        extant_build_options known;
        uint64_t unknown;
    } later = {.known = {.size = sizeof later}};
    sources[0] = (extant_source){.path = "tree"};
    OK(extant_build("later.img", sources, 1, &later.known, NULL, &error));
    later.unknown = 1;
    FAILS(extant_build("c.img", sources, 1, &later.known, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
}

static int count_entries(void *user, const extant_entry *entry)
{
    int *count = user;
    CHECK(entry->problem == NULL && strlen(entry->path) == entry->path_len);
    CHECK(entry->name + entry->name_len == entry->path + entry->path_len);
    CHECK(entry->stat.ino != 0);
    ++*count;
    return *count == 1000;
}

static int stop_at_motd(void *user, const extant_entry *entry)
{
    *(int *)user += 1;
    return strcmp(entry->path, "etc/motd") == 0;
}

static void test_read(void)
{
    extant_fs *fs;
    extant_stat stat;
    extant_statfs space;
    size_t len;
    char text[64];
    bool exists;

    OK(extant_fs_open("a.img", &fs, &error));
    OK(extant_fs_stat(fs, "/link", &stat, &error));
    CHECK(S_ISREG(stat.mode) && stat.size == 6 && stat.uid == 0 && stat.mtime.seconds == 1700000000);
    OK(extant_fs_lstat(fs, "link", &stat, &error));
    CHECK(S_ISLNK(stat.mode));
    OK(extant_fs_exists(fs, "/etc/motd", &exists, &error));
    CHECK(exists);
    OK(extant_fs_exists(fs, "/etc/nothing", &exists, &error));
    CHECK(!exists);
    OK(extant_fs_read_link(fs, "/link", text, sizeof text, &len, &error));
    CHECK(len == 8 && strcmp(text, "etc/motd") == 0);
    OK(extant_fs_read_link(fs, "/link", NULL, 0, &len, &error));
    FAILS(extant_fs_read_link(fs, "/link", text, 8, NULL, &error), ERANGE, EXTANT_CODE_REFUSED);
    OK(extant_fs_statfs(fs, &space, &error));
    CHECK(space.block_size == 4096 && space.blocks_free > 0 && space.inodes > space.inodes_free);

    extant_dir *dir;
    extant_dirent entry;
    int names = 0, result;
    OK(extant_dir_open(fs, "/", &dir, &error));
    while ((result = extant_dir_next(dir, &entry, &error)) > 0) {
        CHECK(strlen(entry.name) == entry.name_len && entry.ino != 0);
        names += strcmp(entry.name, "etc") == 0 && S_ISDIR(entry.type);
        names += strcmp(entry.name, "link") == 0 && S_ISLNK(entry.type);
        names += strcmp(entry.name, "extra") == 0 && S_ISREG(entry.type);
    }
    CHECK(result == 0 && names == 3);
    extant_dir_close(dir);
    extant_dir_close(NULL);
    FAILS(extant_dir_open(fs, "/etc/motd", &dir, &error), ENOTDIR, EXTANT_CODE_REFUSED);
    CHECK(dir == NULL);

    int count = 0;
    OK(extant_fs_walk(fs, "/", EXTANT_WALK_SORTED, count_entries, &count, &error));
    CHECK(count >= 7);
    count = 0;
    OK(extant_fs_walk(fs, "/", EXTANT_WALK_SORTED, stop_at_motd, &count, &error));
    CHECK(count >= 3);
    FAILS(extant_fs_walk(fs, "/", 0, NULL, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);

    FAILS(extant_fs_mkdir(fs, "/new", 0755, &error), EROFS, EXTANT_CODE_REFUSED);
    FAILS(extant_fs_stat(NULL, "/", &stat, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_fs_stat(fs, NULL, &stat, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_fs_stat(fs, "/", NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    CHECK(extant_fs_stat(fs, "/a/b", &stat, NULL) == -ENOENT);
    CHECK(extant_fs_stat(fs, "/a/b", &stat, &error) == -ENOENT);
    CHECK(strcmp(extant_error_path(error), "/a/b") == 0);
    CHECK(strcmp(extant_error_message(error), "/a/b: no such file or directory") == 0);
    extant_error_free(error);
    OK(extant_fs_close(fs, &error));
    OK(extant_fs_close(NULL, &error));

    FAILS(extant_fs_open("missing.img", &fs, &error), ENOENT, EXTANT_CODE_IMAGE);
    CHECK(fs == NULL);
    FAILS(extant_fs_open("zeros", &fs, &error), EINVAL, EXTANT_CODE_NOT_EXT4);
    FAILS(extant_fs_open("a.img", NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
}

static void test_write(void)
{
    extant_fs *fs, *second;
    extant_stat stat;
    extant_file *file;
    extant_time atime = {.seconds = 1, .nanos = 2}, mtime = {.seconds = -5, .nanos = 999999999};
    uint64_t offset, size;
    size_t len;
    char text[64];

    OK(extant_fs_open_writable("a.img", &fs, &error));
    FAILS(extant_fs_open_writable("a.img", &second, &error), EBUSY, EXTANT_CODE_IN_USE);

    OK(extant_fs_mkdir(fs, "/srv", 0750, &error));
    FAILS(extant_fs_mkdir(fs, "/srv", 0750, &error), EEXIST, EXTANT_CODE_REFUSED);
    FAILS(extant_fs_mkdir(fs, "/dir", 040755, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    OK(extant_fs_create(fs, "/srv/file", 0640, &error));
    OK(extant_fs_mknod(fs, "/srv/null", S_IFCHR | 0666, 1, 3, &error));
    OK(extant_fs_stat(fs, "/srv/null", &stat, &error));
    CHECK(S_ISCHR(stat.mode) && stat.dev_major == 1 && stat.dev_minor == 3);
    FAILS(extant_fs_mknod(fs, "/srv/dir", S_IFDIR | 0755, 0, 0, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    OK(extant_fs_symlink(fs, "file", "/srv/link", &error));
    OK(extant_fs_link(fs, "/srv/file", "/srv/second", &error));
    OK(extant_fs_chmod(fs, "/srv/link", 0604, &error));
    OK(extant_fs_chown(fs, "/srv/link", 1000, EXTANT_KEEP_ID, &error));
    OK(extant_fs_lchown(fs, "/srv/link", 7, 8, &error));
    OK(extant_fs_utimes(fs, "/srv/link", &atime, &mtime, &error));
    OK(extant_fs_lutimes(fs, "/srv/link", NULL, &atime, &error));
    OK(extant_fs_stat(fs, "/srv/file", &stat, &error));
    CHECK(stat.mode == (S_IFREG | 0604) && stat.uid == 1000 && stat.gid == 0 && stat.links == 2);
    CHECK(stat.atime.nanos == 2 && stat.mtime.seconds == -5 && stat.mtime.nanos == 999999999);
    OK(extant_fs_lstat(fs, "/srv/link", &stat, &error));
    CHECK(stat.uid == 7 && stat.gid == 8 && stat.mtime.seconds == 1);
    atime.nanos = 1000000000;
    FAILS(extant_fs_utimes(fs, "/srv/file", &atime, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);

    OK(extant_fs_set_xattr(fs, "/srv/file", "user.a", "value", 5, EXTANT_XATTR_CREATE, &error));
    FAILS(extant_fs_set_xattr(fs, "/srv/file", "user.a", "v", 1, EXTANT_XATTR_CREATE, &error), EEXIST,
          EXTANT_CODE_REFUSED);
    FAILS(extant_fs_set_xattr(fs, "/srv/file", "user.b", "v", 1, EXTANT_XATTR_REPLACE, &error), ENODATA,
          EXTANT_CODE_REFUSED);
    OK(extant_fs_set_xattr(fs, "/srv/file", "user.b", NULL, 0, 0, &error));
    OK(extant_fs_get_xattr(fs, "/srv/file", "user.a", text, sizeof text, &len, &error));
    CHECK(len == 5 && memcmp(text, "value", 5) == 0);
    OK(extant_fs_get_xattr(fs, "/srv/file", "user.a", NULL, 0, &len, &error));
    FAILS(extant_fs_get_xattr(fs, "/srv/file", "user.a", text, 4, &len, &error), ERANGE,
          EXTANT_CODE_REFUSED);
    CHECK(len == 5);
    OK(extant_fs_list_xattrs(fs, "/srv/file", text, sizeof text, &len, &error));
    CHECK(len == 14 && strlen(text) == 6 && strlen(text + 7) == 6);
    OK(extant_fs_remove_xattr(fs, "/srv/file", "user.a", &error));
    FAILS(extant_fs_remove_xattr(fs, "/srv/file", "user.a", &error), ENODATA, EXTANT_CODE_REFUSED);

    OK(extant_file_open(fs, "/srv/file", &file, &error));
    OK(extant_file_pwrite(file, "hello", 5, 0, &error));
    OK(extant_file_append(file, " world", 6, &offset, &error));
    CHECK(offset == 5);
    OK(extant_file_pread(file, text, sizeof text, 3, &len, &error));
    CHECK(len == 8 && memcmp(text, "lo world", 8) == 0);
    OK(extant_file_truncate(file, 4, &error));
    OK(extant_file_size(file, &size, &error));
    CHECK(size == 4);
    OK(extant_file_sync(file, &error));
    OK(extant_file_stat(file, &stat, &error));
    CHECK(stat.size == 4 && stat.blocks > 0);
    FAILS(extant_file_pwrite(file, "x", 1, UINT64_MAX, &error), EFBIG, EXTANT_CODE_REFUSED);
    FAILS(extant_file_pwrite(file, NULL, 1, 0, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_file_pread(file, text, 1, 0, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    extant_file_close(file);
    extant_file_close(NULL);
    FAILS(extant_file_open(fs, "/srv", &file, &error), EISDIR, EXTANT_CODE_REFUSED);

    FAILS(extant_fs_rename(fs, "/srv/second", "/srv/file", EXTANT_RENAME_NO_REPLACE, &error), EEXIST,
          EXTANT_CODE_REFUSED);
    OK(extant_fs_rename(fs, "/srv/null", "/srv/link", EXTANT_RENAME_EXCHANGE, &error));
    OK(extant_fs_rename(fs, "/srv/second", "/srv/third", 0, &error));
    OK(extant_fs_unlink(fs, "/srv/third", &error));
    FAILS(extant_fs_unlink(fs, "/srv/third", &error), ENOENT, EXTANT_CODE_REFUSED);
    FAILS(extant_fs_rmdir(fs, "/srv", &error), ENOTEMPTY, EXTANT_CODE_REFUSED);
    OK(extant_fs_mkdir(fs, "/srv/empty", 0755, &error));
    OK(extant_fs_rmdir(fs, "/srv/empty", &error));
    OK(extant_fs_sync(fs, &error));
    OK(extant_fs_remove_tree(fs, "/srv", &error));
    OK(extant_fs_close(fs, &error));
}

static void test_mkfs_check_resize(void)
{
    static const uint8_t uuid[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    extant_mkfs_options options = {
        .size = sizeof options, .block_size = 1024, .label = "empty", .features = "quota", .uuid = uuid};
    extant_mkfs_report made;
    extant_check_options threads = {.size = sizeof threads, .threads = 1};
    extant_report *report;
    extant_finding finding;
    extant_resize_report resized;

    OK(extant_mkfs("e.img", 8 * MIB, &options, &made, &error));
    CHECK(made.blocks == 8192 && made.block_size == 1024 && memcmp(made.uuid, uuid, 16) == 0);
    options.generation = EXTANT_EXT2;
    options.uuid = NULL;
    OK(extant_mkfs("e2.img", 8 * MIB, &options, NULL, &error));
    options.generation = 5;
    FAILS(extant_mkfs("e.img", 8 * MIB, &options, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    options.generation = EXTANT_EXT3;
    options.block_size = 1000;
    FAILS(extant_mkfs("e.img", 8 * MIB, &options, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    options.block_size = 0;
    options.features = "nonsense";
    FAILS(extant_mkfs("e.img", 8 * MIB, &options, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_mkfs("no/e.img", 8 * MIB, NULL, NULL, &error), ENOENT, EXTANT_CODE_IMAGE);

    OK(extant_check("e.img", NULL, &report, &error));
    CHECK(extant_report_is_clean(report) && extant_report_is_file_system(report));
    CHECK(extant_report_count(report) == 0);
    FAILS(extant_report_finding(report, 0, &finding, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    extant_report_free(report);
    extant_report_free(NULL);

    /* A program that was compiled before the options had the callback. */
    struct { size_t size; uint32_t threads, reserved; } old = {.size = 16, .threads = 1};
    OK(extant_check("e.img", (const extant_check_options *)(const void *)&old, &report, &error));
    extant_report_free(report);

    OK(extant_resize("e.img", 16 * MIB, NULL, &resized, &error));
    CHECK(resized.before_bytes == 8 * MIB && resized.after_bytes == 16 * MIB);
    CHECK(resized.moved_blocks == 0 && resized.moved_inodes == 0);
    OK(extant_resize("e.img", EXTANT_RESIZE_SMALLEST, NULL, &resized, &error));
    CHECK(resized.after_bytes < 16 * MIB);
    FAILS(extant_resize("e.img", MIB / 8, NULL, NULL, &error), ENOSPC, EXTANT_CODE_SIZE);
    FAILS(extant_resize("missing.img", MIB, NULL, NULL, &error), ENOENT, EXTANT_CODE_IMAGE);

    /* Damage: the number of free blocks in the superblock. */
    FILE *file = fopen("e2.img", "r+b");
    CHECK(file != NULL && fseek(file, 1024 + 12, SEEK_SET) == 0);
    CHECK(fputc(0x77, file) >= 0 && fclose(file) == 0);
    OK(extant_check("e2.img", &threads, &report, &error));
    CHECK(!extant_report_is_clean(report) || extant_report_count(report) > 0);
    OK(extant_report_finding(report, 0, &finding, &error));
    CHECK(strlen(finding.code) == 5 && strlen(finding.message) > 5 && strlen(finding.rule) > 5);
    CHECK(finding.severity <= EXTANT_SEVERITY_FATAL && finding.ino == EXTANT_NONE);
    extant_report_free(report);

    OK(extant_check("zeros", NULL, &report, &error));
    CHECK(!extant_report_is_file_system(report) && !extant_report_is_clean(report));
    extant_report_free(report);
    FAILS(extant_check("missing.img", NULL, &report, &error), ENOENT, EXTANT_CODE_IMAGE);
}

/* Progress of mkfs, check, repair and resize, and their cancelling. */
static void test_steps(void)
{
    struct steps steps = {0};
    extant_mkfs_options made = {.size = sizeof made, .user = &steps, .progress = step};
    extant_check_options checked = {.size = sizeof checked, .user = &steps, .progress = step};
    extant_repair_options repaired = {.size = sizeof repaired, .user = &steps, .progress = step};
    extant_resize_options resized = {.size = sizeof resized, .user = &steps, .progress = step};
    extant_report *report;
    extant_repair_report *repair;

    OK(extant_mkfs("s.img", 8 * MIB, &made, NULL, &error));
    CHECK(steps.count > 0 && steps.done == steps.total && strcmp(steps.name, "writing") == 0);
    steps.count = 0;
    OK(extant_check("s.img", &checked, &report, &error));
    CHECK(steps.count > 0 && steps.done == steps.total && strncmp(steps.name, "pass ", 5) == 0);
    extant_report_free(report);
    steps.count = 0;
    OK(extant_repair("s.img", &repaired, &repair, &error));
    CHECK(steps.count > 0 && extant_repair_report_total(repair) == 0);
    extant_repair_report_free(repair);
    steps.count = 0;
    OK(extant_resize("s.img", 16 * MIB, &resized, NULL, &error));
    CHECK(steps.count > 0 && strcmp(steps.name, "growing") == 0);

    steps.stop = 1;
    steps.count = 0;
    FAILS(extant_mkfs("t.img", 8 * MIB, &made, NULL, &error), ECANCELED, EXTANT_CODE_CANCELLED);
    CHECK(access("t.img", F_OK) != 0);
    FAILS(extant_check("s.img", &checked, &report, &error), ECANCELED, EXTANT_CODE_CANCELLED);
    CHECK(report == NULL && steps.count == 2);
    FAILS(extant_repair("s.img", &repaired, &repair, &error), ECANCELED, EXTANT_CODE_CANCELLED);
    CHECK(repair == NULL && steps.count == 3);
    FAILS(extant_resize("s.img", EXTANT_RESIZE_SMALLEST, &resized, NULL, &error), ECANCELED,
          EXTANT_CODE_CANCELLED);
    OK(extant_check("s.img", NULL, &report, &error));
    CHECK(extant_report_is_clean(report));
    extant_report_free(report);
}

/* Each report of a resize as the one that cancels. The call returns 0 with the new size, or fails with a valid
 * file system that does not have it. A report during the last step is too late. */
static void test_late_cancelling(void)
{
    struct steps steps = {0};
    extant_resize_options options = {.size = sizeof options, .user = &steps, .progress = step};
    uint64_t from = 32 * MIB, to = 600 * MIB;

    for (int shrinks = 0; shrinks < 2; shrinks++) {
        int cancelled = 0, done = 0;
        uint64_t before = shrinks ? to : from, after = shrinks ? from : to;
        unlink("l.img");
        OK(extant_mkfs("l.img", before, NULL, NULL, &error));
        steps = (struct steps){0};
        OK(extant_resize("l.img", after, &options, NULL, &error));
        int reports = steps.count;
        CHECK(reports > 0);
        for (int at = 1; at <= reports; at++) {
            extant_resize_report report = {0};
            extant_report *checked;
            unlink("l.img");
            OK(extant_mkfs("l.img", before, NULL, NULL, &error));
            steps = (struct steps){.stop_at = at};
            int result = extant_resize("l.img", after, &options, &report, &error);
            CHECK(result == 0 || result == -ECANCELED);
            if (result == 0) {
                CHECK(report.after_bytes == after);
                done++;
            } else {
                CHECK(extant_error_code(error) == EXTANT_CODE_CANCELLED);
                extant_error_free(error);
                OK(extant_check("l.img", NULL, &checked, &error));
                CHECK(extant_report_is_clean(checked));
                extant_report_free(checked);
                OK(extant_resize("l.img", after, NULL, &report, &error));
                CHECK(report.before_bytes != after && report.after_bytes == after);
                cancelled++;
            }
        }
        /* Growing reports during its only step here, and shrinking before its last one. */
        CHECK(shrinks ? cancelled > 0 : done == reports);
    }
}

static void put_byte(const char *path, long offset, int byte)
{
    FILE *file = fopen(path, "r+b");
    CHECK(file != NULL && fseek(file, offset, SEEK_SET) == 0);
    CHECK(fputc(byte, file) >= 0 && fclose(file) == 0);
}

static void test_repair(void)
{
    extant_repair_options options = {.size = sizeof options, .flags = EXTANT_REPAIR_DRY_RUN, .threads = 1};
    extant_repair_report *report;
    extant_report *checked;
    extant_fix fix;

    OK(extant_mkfs("r.img", 8 * MIB, NULL, NULL, &error));
    /* The number of free blocks in the superblock, which has a checksum, too. */
    put_byte("r.img", 1024 + 12, 0x77);
    CHECK(system("cp r.img damaged.img") == 0);
    OK(extant_repair("r.img", &options, &report, &error));
    CHECK(extant_repair_report_total(report) > 0 && extant_repair_report_count(report) > 0);
    CHECK(extant_repair_report_changed_bytes(report) > 0 && extant_repair_report_is_complete(report));
    OK(extant_repair_report_fix(report, 0, &fix, &error));
    CHECK(strlen(fix.code) == 5 && strlen(fix.message) > 5 && strlen(fix.rule) > 5);
    CHECK(strlen(fix.remedy) > 5 && fix.loss == NULL && fix.why == NULL && fix.name == NULL);
    CHECK(fix.ino == EXTANT_NONE && fix.severity <= EXTANT_SEVERITY_FATAL);
    FAILS(extant_repair_report_fix(report, 1000, &fix, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    extant_repair_report_free(report);
    extant_repair_report_free(NULL);
    CHECK(system("cmp -s r.img damaged.img") == 0);

    options.flags = 0;
    options.undo = "r.undo";
    OK(extant_repair("r.img", &options, &report, &error));
    extant_repair_report_free(report);
    OK(extant_check("r.img", NULL, &checked, &error));
    CHECK(extant_report_is_clean(checked));
    extant_report_free(checked);

    put_byte("r.img", 1024 + 12, 0x78);
    FAILS(extant_undo("r.img", "r.undo", 0, &error), EINVAL, EXTANT_CODE_REFUSED);
    OK(extant_undo("r.img", "r.undo", EXTANT_UNDO_FORCE, &error));
    CHECK(system("cmp -s r.img damaged.img") == 0);
    FAILS(extant_undo("r.img", "r.undo", 0, &error), EINVAL, EXTANT_CODE_REFUSED);
    FAILS(extant_undo("r.img", "zeros", 0, &error), EINVAL, EXTANT_CODE_REFUSED);
    FAILS(extant_undo("r.img", "missing", 0, &error), ENOENT, EXTANT_CODE_IMAGE);
    FAILS(extant_undo("r.img", "r.undo", 2, &error), EINVAL, EXTANT_CODE_ARGUMENT);

    options.flags = 8;
    FAILS(extant_repair("r.img", &options, &report, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_repair("missing.img", NULL, &report, &error), ENOENT, EXTANT_CODE_IMAGE);
    FAILS(extant_repair("zeros", NULL, &report, &error), EUCLEAN, EXTANT_CODE_NOT_EXT4);
    FAILS(extant_repair("r.img", NULL, NULL, &error), EINVAL, EXTANT_CODE_ARGUMENT);
}

struct job {
    extant_fs *fs;
    int number;
};

/* Each thread makes files in its own directory, and appends to a file of both. */
static void *work(void *argument)
{
    struct job *job = argument;
    extant_error *own = NULL;
    extant_file *shared;
    char path[32];
    int failures = 0;
    snprintf(path, sizeof path, "/%d", job->number);
    failures += extant_fs_mkdir(job->fs, path, 0755, &own) != 0;
    failures += extant_file_open(job->fs, "/shared", &shared, &own) != 0;
    for (int i = 0; i < 50; i++) {
        snprintf(path, sizeof path, "/%d/%d", job->number, i);
        failures += extant_fs_create(job->fs, path, 0644, &own) != 0;
        failures += extant_file_append(shared, "0123456789", 10, NULL, &own) != 0;
    }
    extant_file_close(shared);
    return failures == 0 ? NULL : job;
}

static void test_storage_and_threads(void)
{
    struct memory memory = {.bytes = calloc(1, 8 * MIB), .lock = PTHREAD_MUTEX_INITIALIZER};
    extant_storage storage = {
        .size = sizeof storage,
        .user = &memory,
        .bytes = 8 * MIB,
        .flags = EXTANT_STORAGE_ZEROED,
        .read_at = memory_read,
        .write_at = memory_write,
        .flush = memory_flush,
        .close = memory_close,
    };
    extant_fs *fs;
    extant_file *file;
    extant_report *report;
    extant_stat stat;
    uint64_t size;
    pthread_t threads[2];
    struct job jobs[2];

    OK(extant_mkfs_storage(&storage, NULL, NULL, &error));
    CHECK(memory.writes > 0 && memory.closes == 1);
    OK(extant_fs_open_storage(&storage, EXTANT_OPEN_WRITABLE, &fs, &error));
    OK(extant_fs_create(fs, "/shared", 0644, &error));
    for (int i = 0; i < 2; i++) {
        jobs[i] = (struct job){.fs = fs, .number = i};
        CHECK(pthread_create(&threads[i], NULL, work, &jobs[i]) == 0);
    }
    for (int i = 0; i < 2; i++) {
        void *failed;
        CHECK(pthread_join(threads[i], &failed) == 0 && failed == NULL);
    }
    OK(extant_file_open(fs, "/shared", &file, &error));
    OK(extant_file_size(file, &size, &error));
    CHECK(size == 2 * 50 * 10);
    extant_file_close(file);
    OK(extant_fs_close(fs, &error));
    CHECK(memory.flushes > 0 && memory.closes == 2);

    OK(extant_check_storage(&storage, NULL, &report, &error));
    CHECK(extant_report_is_clean(report) && memory.closes == 3);
    extant_report_free(report);

    /* A damaged file system on storage; then one that is smaller than its storage. */
    extant_repair_report *repair;
    extant_resize_report resized;
    memory.bytes[1024 + 12] ^= 0x77;
    OK(extant_repair_storage(&storage, NULL, &repair, &error));
    CHECK(extant_repair_report_total(repair) > 0 && memory.closes == 4);
    extant_repair_report_free(repair);
    OK(extant_resize_storage(&storage, EXTANT_RESIZE_SMALLEST, NULL, &resized, &error));
    CHECK(resized.after_bytes < 8 * MIB);
    OK(extant_resize_storage(&storage, 8 * MIB, NULL, &resized, &error));
    CHECK(resized.after_bytes == 8 * MIB);
    FAILS(extant_resize_storage(&storage, 9 * MIB, NULL, NULL, &error), ENOSPC, EXTANT_CODE_SIZE);
    memory.closes = 3;

    /* A file outlives the handle of its file system. */
    storage.write_at = NULL;
    storage.flush = NULL;
    OK(extant_fs_open_storage(&storage, 0, &fs, &error));
    OK(extant_file_open(fs, "/shared", &file, &error));
    OK(extant_fs_stat(fs, "/1/49", &stat, &error));
    OK(extant_fs_close(fs, &error));
    OK(extant_file_size(file, &size, &error));
    CHECK(size == 1000 && memory.closes == 3);
    extant_file_close(file);
    CHECK(memory.closes == 4);

    FAILS(extant_fs_open_storage(&storage, EXTANT_OPEN_WRITABLE, &fs, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    FAILS(extant_fs_open_storage(NULL, 0, &fs, &error), EINVAL, EXTANT_CODE_ARGUMENT);
    CHECK(memory.closes == 4);
    memory.fails = 1;
    FAILS(extant_fs_open_storage(&storage, 0, &fs, &error), EREMOTEIO, EXTANT_CODE_DEVICE);
    CHECK(fs == NULL && memory.closes == 5);
    free(memory.bytes);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && chdir(argv[1]) == 0);
    CHECK(extant_version()[0] != '\0');
    CHECK(extant_error_code(NULL) == EXTANT_CODE_NONE && extant_error_errno(NULL) == 0);
    CHECK(extant_error_path(NULL) == NULL && extant_error_message(NULL) != NULL);
    extant_error_free(NULL);

    CHECK(mkdir("tree", 0755) == 0 && mkdir("tree/etc", 0755) == 0 && mkdir("more", 0755) == 0);
    write_host("tree/etc/motd", "hello\n");
    write_host("tree/etc/issue", "hi!\n");
    write_host("more/extra", "more\n");
    write_host("zeros", "");
    CHECK(symlink("etc/motd", "tree/link") == 0 && truncate("zeros", MIB) == 0);
    CHECK(system("tar -C more -cf more.tar extra") == 0);

    test_build();
    test_read();
    test_write();
    test_mkfs_check_resize();
    test_steps();
    test_late_cancelling();
    test_repair();
    test_storage_and_threads();
    return 0;
}
