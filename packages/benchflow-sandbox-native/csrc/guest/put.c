/*
 * Write files from the host, as root of the sandbox. This follows only symlinks that root owns: a
 * symlink of the agent could redirect a write of root to any place.
 */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINKS = 40, DIRECTORY_MODE = 0755 };

static uid_t owner;
static gid_t group;

static void refuse(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

static void refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    exit(1);
}

static void read_whole(void *to, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t more = read(STDIN_FILENO, (char *)to + got, size - got);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0)
            refuse("the upload ends early");
        got += (size_t)more;
    }
}

static int make_directory(int parent, const char *name, mode_t mode, const char *shown)
{
    if (mkdirat(parent, name, 0700) < 0)
        refuse("%s: %s", shown, strerror(errno));
    int directory = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0 || fchown(directory, owner, group) < 0 || fchmod(directory, mode) < 0)
        refuse("%s: %s", shown, strerror(errno));
    return directory;
}

/* Put the target of the symlink `link` before `rest`; return the directory where it begins. */
static int follow(int directory, int link, const struct stat *info, char *rest, const char *shown)
{
    char target[PATH_MAX], joined[2 * PATH_MAX];
    if (info->st_uid != 0)
        refuse("%s has a symlink of another user than root", shown);
    ssize_t size = readlinkat(link, "", target, sizeof target - 1);
    if (size < 0)
        refuse("%s: %s", shown, strerror(errno));
    target[size] = '\0';
    if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= PATH_MAX)
        refuse("%s: a symlink is too long", shown);
    strcpy(rest, joined);
    return target[0] == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : dup(directory);
}

static int enter(int directory, const char *name, mode_t mode, char *rest, const char *shown)
{
    int next = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    if (next < 0 && errno == ENOENT)
        return make_directory(directory, name, *rest ? DIRECTORY_MODE : mode, shown);
    if (next < 0 || fstat(next, &info) < 0)
        refuse("%s: %s", shown, strerror(errno));
    if (S_ISDIR(info.st_mode))
        return next;
    if (!S_ISLNK(info.st_mode))
        refuse("%s: %s exists and is not a directory", shown, name);
    int start = follow(directory, next, &info, rest, shown);
    close(next);
    return start;
}

/* Open the directory at `path`; create missing directories, the last one with `mode`. */
static int walk(const char *path, mode_t mode)
{
    char rest[PATH_MAX];
    if (snprintf(rest, sizeof rest, "%s", path) >= PATH_MAX)
        refuse("%s: the path is too long", path);
    int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int steps = 0;; steps++) {
        char name[NAME_MAX + 1];
        size_t start = strspn(rest, "/"), length = strcspn(rest + start, "/");
        if (length == 0)
            return at;
        if (length > NAME_MAX || steps > PATH_MAX * MAX_LINKS)
            refuse("%s: the path is too long", path);
        memcpy(name, rest + start, length);
        name[length] = '\0';
        start += length;
        start += strspn(rest + start, "/");
        memmove(rest, rest + start, strlen(rest + start) + 1);
        int next = enter(at, name, mode, rest, path);
        close(at);
        if (next < 0)
            refuse("%s: %s", path, strerror(errno));
        at = next;
    }
}

static void fill(int file, uint64_t size, const char *shown)
{
    static char bytes[1 << 16];
    while (size > 0) {
        size_t part = size < sizeof bytes ? (size_t)size : sizeof bytes;
        read_whole(bytes, part);
        for (size_t done = 0; done < part;) {
            ssize_t more = write(file, bytes + done, part - done);
            if (more < 0 && errno == EINTR)
                continue;
            if (more < 0)
                refuse("%s: %s", shown, strerror(errno));
            done += (size_t)more;
        }
        size -= part;
    }
}

static void put_file(char *path, mode_t mode, uint64_t size)
{
    char *slash = strrchr(path, '/');
    char temporary[64];
    struct stat info;
    *slash = '\0';
    int parent = walk(path, DIRECTORY_MODE);
    *slash = '/';
    if (fstatat(parent, slash + 1, &info, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(info.st_mode))
        refuse("%s exists and is not a regular file", path);
    snprintf(temporary, sizeof temporary, ".bf-put-%d", getpid());
    unlinkat(parent, temporary, 0);
    int file = openat(parent, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file < 0)
        refuse("%s: %s", path, strerror(errno));
    fill(file, size, path);
    /* A rename replaces a symlink of that name instead of following it. */
    if (fchown(file, owner, group) < 0 || fchmod(file, mode) < 0 || close(file) < 0 ||
        renameat(parent, temporary, parent, slash + 1) < 0) {
        int error = errno;
        unlinkat(parent, temporary, 0);
        refuse("%s: %s", path, strerror(error));
    }
    close(parent);
}

int put_all(uid_t uid, gid_t gid)
{
    owner = uid, group = gid;
    umask(0);
    for (;;) {
        struct put_entry entry;
        char path[PATH_MAX];
        read_whole(&entry, sizeof entry);
        if (entry.kind == PUT_END)
            return 0;
        if (entry.length == 0 || entry.length >= sizeof path)
            refuse("a path is too long");
        read_whole(path, entry.length);
        path[entry.length] = '\0';
        if (path[0] != '/' || strlen(path) != entry.length)
            refuse("a path is not absolute");
        if (entry.kind == PUT_DIRECTORY)
            close(walk(path, (mode_t)entry.mode & 0777));
        else
            put_file(path, (mode_t)entry.mode & 0777, entry.size);
    }
}

int show_file(const char *path)
{
    static char bytes[1 << 16];
    struct stat info;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) < 0 || !S_ISREG(info.st_mode))
        return 1;
    for (;;) {
        ssize_t got = read(file, bytes, sizeof bytes);
        if (got == 0)
            return 0;
        if (got < 0 || write(STDOUT_FILENO, bytes, (size_t)got) != got)
            return 1;
    }
}
