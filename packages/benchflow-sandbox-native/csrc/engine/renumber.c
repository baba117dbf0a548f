/*
 * Gives the processes that CRIU brings back the numbers that their files have now, before they
 * run. A file `places` in CRIU's working directory says where SQLite keeps the old ones; there is
 * none for most boxes. CRIU lets go of the threads of a process one by one, the leader first: what
 * a process has to know is written just before that. When all is written, `places` is removed.
 * When something is not as it was said, the box is killed, and CRIU ends.
 */
#include "answer.h"
#include "places.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/uio.h>

enum { PATH = 40, STATUS = 4096, FAILED = 98 };

static const char PLACES[] = "places", LOG[] = "engine.log";

static struct number *places; /* those that are done have the process 0 */
static long count = -1, left; /* -1 until they are looked for */
static long first;            /* the first process that was let go: the box's init */

static char *put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    return at;
}

static char *put_number(char *at, uint64_t value)
{
    char digits[24], *start = digits + sizeof digits;
    *--start = '\0';
    do
        *--start = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    return put(at, start);
}

static void path_of(char path[PATH], long pid, const char *name)
{
    *put(put_number(put(path, "/proc/"), (uint64_t)pid), name) = '\0';
}

static int load(void)
{
    struct stat info;
    long fd = kernel(SYS_openat, AT_FDCWD, (long)PLACES, O_RDONLY | O_CLOEXEC, 0, 0, 0);
    if (fd == -ENOENT) {
        count = 0;
        return 0;
    }
    if (fd < 0)
        return -1;
    long answer = kernel(SYS_fstat, fd, (long)&info, 0, 0, 0, 0);
    if (answer == 0 && info.st_size > 0 && (size_t)info.st_size % sizeof *places == 0)
        answer = kernel(SYS_mmap, 0, info.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    if (answer <= 0)
        return -1;
    places = (struct number *)answer;
    count = left = info.st_size / (long)sizeof *places;
    return 0;
}

/* Return the number of a thread in its box, or 0. */
static uint32_t inner_number(long pid)
{
    static const char key[] = "\nNSpid:";
    char path[PATH], text[STATUS];
    path_of(path, pid, "/status");
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
    uint32_t value = 0; /* the last one of the line */
    for (; at < size && text[at] != '\n'; at++)
        value = text[at] == '\t' ? 0 : value * 10 + (uint32_t)(text[at] - '0');
    return value;
}

static int now(long pid, uint32_t descriptor, uint64_t numbers[2])
{
    struct stat info;
    char path[PATH];
    path_of(path, pid, "/fd/");
    char *end = path;
    while (*end != '\0')
        end++;
    *put_number(end, descriptor) = '\0';
    if (kernel(SYS_newfstatat, AT_FDCWD, (long)path, (long)&info, 0, 0, 0) < 0)
        return -1;
    numbers[0] = info.st_dev;
    numbers[1] = info.st_ino;
    return S_ISREG(info.st_mode) ? 0 : -1;
}

/* The memory may not be there yet: whoever brings it does so for this call, too. */
static int exchange(long pid, const struct number *place)
{
    uint64_t present[2], numbers[2];
    const long size = sizeof numbers;
    struct iovec theirs = {(void *)place->address, sizeof numbers};
    struct iovec ours = {present, sizeof present};
    if (now(pid, place->descriptor, numbers) < 0)
        return -1;
    if (kernel(SYS_process_vm_readv, pid, (long)&ours, 1, (long)&theirs, 1, 0) != size)
        return -1;
    if (present[0] != place->device || present[1] != place->inode)
        return -1;
    ours.iov_base = numbers;
    return kernel(SYS_process_vm_writev, pid, (long)&ours, 1, (long)&theirs, 1, 0) == size ? 0 : -1;
}

static int renumber(long pid)
{
    if (count < 0 && load() < 0)
        return -1;
    if (left == 0)
        return 0;
    uint32_t process = inner_number(pid);
    if (process == 0)
        return -1;
    for (long i = 0; i < count; i++) {
        if (places[i].process != process)
            continue;
        if (exchange(pid, &places[i]) < 0)
            return -1;
        places[i].process = 0;
        if (--left == 0)
            return kernel(SYS_unlinkat, AT_FDCWD, (long)PLACES, 0, 0, 0, 0) < 0 ? -1 : 0;
    }
    return 0;
}

static void give_up(long pid)
{
    static const char why[] = "Error (bf-engine): the numbers of files cannot be exchanged\n";
    kernel(SYS_kill, pid, SIGKILL, 0, 0, 0, 0);
    kernel(SYS_kill, first, SIGKILL, 0, 0, 0, 0);
    long fd = kernel(SYS_openat, AT_FDCWD, (long)LOG, O_WRONLY | O_APPEND | O_CLOEXEC, 0, 0, 0);
    if (fd >= 0)
        kernel(SYS_write, fd, (long)why, sizeof why - 1, 0, 0, 0);
    kernel(SYS_exit_group, FAILED, 0, 0, 0, 0, 0);
}

/* As a libc has it: what is peeked at is the answer, and not stored anywhere. */
static long trace(long request, long pid, long address, long data)
{
    long word = 0;
    int peeks = request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER;
    long answer = kernel(SYS_ptrace, request, pid, address, peeks ? (long)&word : data, 0, 0);
    if (answer < 0 || !peeks)
        return checked(answer);
    errno = 0;
    return word;
}

long bf_ptrace(long request, ...) __asm__("ptrace") __attribute__((visibility("default")));
long bf_ptrace(long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    long pid = va_arg(arguments, int);
    long address = va_arg(arguments, long);
    long data = va_arg(arguments, long);
    va_end(arguments);
    request = (int)request; /* an enum has the size of an int */
    if (request == PTRACE_DETACH) {
        first = first == 0 ? pid : first;
        if (renumber(pid) < 0)
            give_up(pid);
    }
    return trace(request, pid, address, data);
}
