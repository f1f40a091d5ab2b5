/*
 * Builds an image from a directory, reads it, changes it and checks it:
 *
 *     cc tour.c -o tour $(pkg-config --cflags --libs extant)
 *     ./tour tree tour.img
 */
#include <extant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the message of an error. */
static void must(int result, extant_error *error)
{
    if (result < 0) {
        fprintf(stderr, "%s (errno %d)\n", extant_error_message(error), extant_error_errno(error));
        extant_error_free(error);
        exit(1);
    }
}

static int print_entry(void *user, const extant_entry *entry)
{
    (void)user;
    printf("%06o %5llu /%s\n", (unsigned)entry->stat.mode, (unsigned long long)entry->stat.size, entry->path);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s DIRECTORY IMAGE\n", argv[0]);
        return 2;
    }
    extant_error *error = NULL;

    /* Build. The same directory gives the same bytes. */
    extant_source source = {.kind = EXTANT_SOURCE_DIRECTORY, .path = argv[1]};
    extant_build_options options = {
        .size = sizeof options,
        .headroom_bytes = 1 << 20,
        .flags = EXTANT_BUILD_REPLACE | EXTANT_BUILD_ROOT_OWNS,
        .label = "tour",
    };
    extant_build_report built;
    must(extant_build(argv[2], &source, 1, &options, &built, &error), error);
    printf("built: %llu file, %llu directories\n", (unsigned long long)built.files,
           (unsigned long long)built.directories);

    /* Change: all of it is durable when the file system is closed. */
    extant_fs *fs;
    extant_file *file;
    must(extant_fs_open_writable(argv[2], &fs, &error), error);
    must(extant_fs_mkdir(fs, "/srv", 0755, &error), error);
    must(extant_fs_create(fs, "/srv/notes", 0644, &error), error);
    must(extant_file_open(fs, "/srv/notes", &file, &error), error);
    must(extant_file_append(file, "first line\n", 11, NULL, &error), error);
    extant_file_close(file);
    must(extant_fs_close(fs, &error), error);

    /* Read. */
    char text[64];
    size_t len;
    must(extant_fs_open(argv[2], &fs, &error), error);
    must(extant_fs_walk(fs, "/", EXTANT_WALK_SORTED, print_entry, NULL, &error), error);
    must(extant_file_open(fs, "/srv/notes", &file, &error), error);
    must(extant_file_pread(file, text, sizeof text, 0, &len, &error), error);
    printf("/srv/notes: %.*s", (int)len, text);
    extant_file_close(file);
    must(extant_fs_close(fs, &error), error);

    /* Check. */
    extant_report *report;
    must(extant_check(argv[2], NULL, &report, &error), error);
    printf("check: %s\n", extant_report_is_clean(report) ? "clean" : "damaged");
    for (size_t i = 0; i < extant_report_count(report); i++) {
        extant_finding finding;
        must(extant_report_finding(report, i, &finding, &error), error);
        printf("%s: %s\n", finding.code, finding.message);
    }
    extant_report_free(report);
    return 0;
}
