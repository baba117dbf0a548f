#include "proc.h"

#include "result.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { STATUS = 4096 };

char *put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    return at;
}

char *put_number(char *at, uint64_t value)
{
    char digits[24], *start = digits + sizeof digits;
    *--start = '\0';
    do
        *--start = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    return put(at, start);
}

char *proc_path(char path[PROC_PATH], long pid, const char *name)
{
    char *end = put(put_number(put(path, "/proc/"), (uint64_t)pid), name);
    *end = '\0';
    return end;
}

uint32_t inner_number(long pid)
{
    static const char key[] = "\nNSpid:";
    char path[PROC_PATH], text[STATUS];
    proc_path(path, pid, "/status");
    long fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0)
        return 0;
    long size = kernel(SYS_read, fd, (long)text, sizeof text, 0, 0, 0);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    long matched = 0, at = 0;
    for (; at < size && key[matched] != '\0'; at++)
        matched = text[at] == key[matched] ? matched + 1 : text[at] == key[0];
    if (key[matched] != '\0')
        return 0;
    uint32_t value = 0; /* becomes the last number of the line */
    for (; at < size && text[at] != '\n'; at++)
        value = text[at] == '\t' ? 0 : value * 10 + (uint32_t)(text[at] - '0');
    return value;
}

long load_array(const char *name, long size, void **out)
{
    struct stat info;
    long fd = kernel(SYS_openat, AT_FDCWD, (long)name, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd == -ENOENT)
        return 0;
    if (fd < 0)
        return -1;
    long answer = kernel(SYS_fstat, fd, (long)&info, 0, 0, 0, 0);
    if (answer == 0 && info.st_size > 0 && info.st_size % size == 0)
        answer = kernel(SYS_mmap, 0, info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    if (answer <= 0)
        return -1;
    *out = (void *)answer;
    return info.st_size / size;
}
