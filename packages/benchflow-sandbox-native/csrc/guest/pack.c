/*
 * Write a tar of files to stdout, as root of the sandbox, in the format of GNU tar. This follows
 * only links above the path that root owns. The host checks the archive, and does not trust it.
 */
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 512, NAME = 100, MAX_LINKS = 40, MAX_DEPTH = 80, MAX_ENTRIES = 200000 };

struct head {
    char name[NAME], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type;
    char link[NAME], magic[8], unused[BLOCK - 265];
};

_Static_assert(sizeof(struct head) == BLOCK, "a header of tar has one block");

static uint64_t left;
static size_t entries;
static bool skips;

static void refuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    exit(1);
}

static void put_bytes(const void *bytes, size_t size)
{
    if (fwrite(bytes, 1, size, stdout) != size)
        exit(1);
}

static void pad(uint64_t size)
{
    static const char zeros[BLOCK];
    put_bytes(zeros, (size_t)(-size & (BLOCK - 1)));
}

static void put_head(const char *name, char type, mode_t mode, uint64_t size)
{
    struct head head = {.type = type, .magic = "ustar  "};
    const unsigned char *bytes = (const unsigned char *)&head;
    unsigned sum = 0;
    memcpy(head.name, name, strnlen(name, NAME));
    snprintf(head.mode, sizeof head.mode, "%07o", (unsigned)mode & 0777);
    memset(head.uid, '0', sizeof head.uid - 1);
    memset(head.gid, '0', sizeof head.gid - 1);
    memset(head.mtime, '0', sizeof head.mtime - 1);
    if (size >= 1ull << 33)
        refuse("%s: the file is too large", name);
    snprintf(head.size, sizeof head.size, "%011llo", (unsigned long long)size);
    memset(head.checksum, ' ', sizeof head.checksum);
    for (size_t i = 0; i < sizeof head; i++)
        sum += bytes[i];
    snprintf(head.checksum, sizeof head.checksum, "%06o", sum);
    put_bytes(&head, sizeof head);
}

static void put_entry(const char *name, char type, mode_t mode, uint64_t size)
{
    if (++entries > MAX_ENTRIES)
        refuse("the tree has more than %d entries", MAX_ENTRIES);
    size_t length = strlen(name);
    if (length > NAME) {
        put_head("././@LongLink", 'L', 0644, length + 1);
        put_bytes(name, length + 1);
        pad(length + 1);
    }
    put_head(name, type, mode, size);
}

static void put_file(int file, const char *name, const struct stat *info)
{
    static char bytes[1 << 16];
    uint64_t size = (uint64_t)info->st_size;
    if (size > left)
        refuse("%s: the files exceed the limit", name);
    left -= size;
    put_entry(name, '0', info->st_mode, size);
    for (uint64_t wanted = size; wanted > 0;) {
        size_t part = wanted < sizeof bytes ? (size_t)wanted : sizeof bytes;
        ssize_t got = read(file, bytes, part);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            refuse("%s shrinks while it is read", name);
        put_bytes(bytes, (size_t)got);
        wanted -= (uint64_t)got;
    }
    pad(size);
}

static void put_any(int parent, const char *entry, const char *name, int depth);

static void put_directory(int directory, const char *name, mode_t mode, int depth)
{
    char below[PATH_MAX];
    DIR *stream = fdopendir(directory);
    if (stream == NULL || depth > MAX_DEPTH)
        refuse("%s: %s", name, stream == NULL ? strerror(errno) : "the tree is too deep");
    put_entry(name, '5', mode, 0);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (snprintf(below, sizeof below, "%s/%s", name, entry->d_name) >= PATH_MAX)
            refuse("%s: a path below it is too long", name);
        put_any(dirfd(stream), entry->d_name, below, depth + 1);
    }
    closedir(stream);
}

static void put_any(int parent, const char *entry, const char *name, int depth)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    struct stat info;
    if (fstatat(parent, entry, &info, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT && depth > 0)
            return; /* it was removed meanwhile */
        refuse("%s: %s", name, strerror(errno));
    }
    bool plain = S_ISREG(info.st_mode) || S_ISDIR(info.st_mode);
    int file = plain ? openat(parent, entry, flags) : -1;
    plain = file >= 0 && fstat(file, &info) == 0 && (S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
    if (!plain && skips && depth > 0) {
        if (file >= 0)
            close(file);
        return;
    }
    if (!plain)
        refuse("%s is neither a regular file nor a directory", name);
    if (S_ISDIR(info.st_mode)) {
        put_directory(file, name, info.st_mode, depth);
        return;
    }
    put_file(file, name, &info);
    close(file);
}

/* Open the directory above the last part of `path`, which then begins at `*last`. */
static int open_parent(char *path, char **last)
{
    char rest[PATH_MAX], target[PATH_MAX], joined[2 * PATH_MAX];
    char *slash = strrchr(path, '/');
    *last = slash + 1;
    snprintf(rest, sizeof rest, "%.*s", (int)(slash - path), path);
    int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int links = 0;;) {
        size_t start = strspn(rest, "/"), length = strcspn(rest + start, "/");
        if (length == 0)
            return at;
        rest[start + length] = rest[start + length] == '\0' ? '\0' : '/';
        char name[NAME_MAX + 1];
        struct stat info;
        snprintf(name, sizeof name, "%.*s", (int)length, rest + start);
        memmove(rest, rest + start + length, strlen(rest + start + length) + 1);
        int next = openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (next < 0 || fstat(next, &info) < 0)
            refuse("%s: %s", path, strerror(errno));
        if (S_ISLNK(info.st_mode)) {
            ssize_t size = readlinkat(next, "", target, sizeof target - 1);
            if (info.st_uid != 0 || size < 0 || ++links > MAX_LINKS)
                refuse("%s goes through a symlink at %s", path, name);
            target[size] = '\0';
            if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= PATH_MAX)
                refuse("%s: a symlink is too long", path);
            strcpy(rest, joined);
            close(next);
            next = target[0] == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : dup(at);
        }
        close(at);
        at = next;
    }
}

int pack_all(const char *path, uint64_t limit, bool leave_out)
{
    static const char zeros[2 * BLOCK];
    char copy[PATH_MAX], *last;
    left = limit, skips = leave_out;
    if (path[0] != '/' || snprintf(copy, sizeof copy, "%s", path) >= PATH_MAX)
        refuse("%s is not a path inside", path);
    for (size_t length = strlen(copy); length > 1 && copy[length - 1] == '/'; length--)
        copy[length - 1] = '\0';
    int parent = open_parent(copy, &last);
    put_any(parent, *last == '\0' ? "." : last, *last == '\0' ? "root" : last, 0);
    put_bytes(zeros, sizeof zeros);
    return fflush(stdout) != 0;
}
