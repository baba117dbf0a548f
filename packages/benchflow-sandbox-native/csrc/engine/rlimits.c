/*
 * bf-engine.so: let CRIU read the limits of a process without CAP_SYS_RESOURCE.
 *
 * Without this capability, prlimit(2) refuses to read the limits of another user's process, even
 * for root. Root in a container or a micro VM often lacks it. Anyone can read the limits in /proc,
 * so this library reads them there when the kernel refuses. It links no libc, so one build serves
 * every CRIU; the loader resolves errno.
 */
#include "result.h"
#include "orders.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/* The columns of the table. Its sixteen lines fill half of TABLE. */
enum { SOFT = 26, HARD = 47, SHORTEST = 60, ARGUMENTS = 6, PATH = 40, TABLE = 4096 };

struct limits {
    uint64_t soft;
    uint64_t hard;
};

static uint64_t value_at(const char *text)
{
    uint64_t value = 0;
    if (*text == 'u')
        return UINT64_MAX; /* "unlimited" */
    for (; *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    return value;
}

static char *put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    return at;
}

static void path_of(long pid, char path[PATH])
{
    char digits[24], *first = digits + sizeof digits;
    *--first = '\0';
    do
        *--first = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    *put(put(put(path, "/proc/"), first), "/limits") = '\0';
}

/* Return the size of the table, or a negative number. */
static long read_table(long pid, char table[TABLE])
{
    char path[PATH];
    long size = 0, got;
    path_of(pid, path);
    long fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0)
        return fd;
    do
        size += got = kernel(SYS_read, fd, (long)(table + size), TABLE - size, 0, 0, 0);
    while (got > 0 && size < TABLE);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    return got < 0 ? got : size;
}

/* The table has a heading, then one line per resource in the order of their numbers. */
static int from_proc(long pid, long resource, struct limits *out)
{
    char table[TABLE];
    long size = read_table(pid, table), line = 0, number = -1;
    for (long end = 0; end < size; end++) {
        if (table[end] != '\n')
            continue;
        if (number++ == resource) {
            if (end - line < SHORTEST)
                return -1;
            *out = (struct limits){value_at(table + line + SOFT), value_at(table + line + HARD)};
            return 0;
        }
        line = end + 1;
    }
    return -1;
}

/* CRIU calls prlimit through syscall() of the libc. */
long bf_syscall(long number, ...) __asm__("syscall") __attribute__((visibility("default")));
long bf_syscall(long number, ...)
{
    long a[ARGUMENTS];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < ARGUMENTS; i++)
        a[i] = va_arg(arguments, long); /* the kernel ignores arguments that were not passed */
    va_end(arguments);
    if (number == SYS_clone3)
        return checked(clone_into_group((const void *)a[0], (size_t)a[1]));
    long answer = kernel(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    int reads_another = number == SYS_prlimit64 && a[0] > 0 && a[2] == 0 && a[3] != 0;
    if (answer == -EPERM && reads_another && from_proc(a[0], a[1], (struct limits *)a[3]) == 0)
        return 0;
    return checked(answer);
}
