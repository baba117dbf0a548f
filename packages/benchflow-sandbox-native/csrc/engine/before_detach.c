/*
 * CRIU detaches from the threads of a process one by one, the leader first. Just before that,
 * set its file numbers and attributes. If that fails, kill the sandbox and end CRIU.
 */
#include "before_detach.h"

#include "result.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ptrace.h>

enum { FAILED = 98 };

static const char LOG[] = "engine.log";

static long first; /* the first detached process: the sandbox's init */

static void fail(long pid, const char *why, long size)
{
    kernel(SYS_kill, pid, SIGKILL, 0, 0, 0, 0);
    kernel(SYS_kill, first, SIGKILL, 0, 0, 0, 0);
    long fd = kernel(SYS_openat, AT_FDCWD, (long)LOG, O_WRONLY | O_APPEND | O_CLOEXEC, 0, 0, 0);
    if (fd >= 0)
        kernel(SYS_write, fd, (long)why, size, 0, 0, 0);
    kernel(SYS_exit_group, FAILED, 0, 0, 0, 0, 0);
}

/* As in a libc, a peek returns the word instead of storing it. */
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

static void before_detach(long pid)
{
    static const char numbers[] = "Error (bf-engine): the numbers of files cannot be exchanged\n";
    static const char attributes[] =
        "Error (bf-engine): a CPU affinity, an I/O priority, a timer or an option of a socket cannot"
        " be set again\n";
    first = first == 0 ? pid : first;
    if (renumber(pid) < 0)
        fail(pid, numbers, sizeof numbers - 1);
    if (set_attributes(pid) < 0)
        fail(pid, attributes, sizeof attributes - 1);
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
    if (request == PTRACE_DETACH)
        before_detach(pid);
    return trace(request, pid, address, data);
}
