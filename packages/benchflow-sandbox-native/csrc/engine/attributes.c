/*
 * Set the attributes of threads, sockets and timers that CRIU does not restore: see attributes.h.
 * The file `attributes` in CRIU's working directory lists them; most sandboxes do not have this
 * file. When all attributes are set, the file is deleted.
 */
#include "attributes.h"

#include "result.h"
#include "before_detach.h"
#include "proc.h"

#include <fcntl.h>
#include <time.h>

/* SET_TICKS is TFD_IOC_SET_TICKS of a timerfd. */
enum { WHO_PROCESS = 1, SET_TICKS = 0x40085400 };

static const char ATTRIBUTES[] = "attributes";

static struct attribute *attributes;
static long count = -1, left; /* -1 until the file is read */

static int set_file(long pid, const struct attribute *wanted)
{
    char path[PROC_PATH + ATTRIBUTE_BYTES];
    const char *name = (const char *)wanted->value;
    long head = 0;
    while (head < (long)wanted->size && name[head] != '\0')
        head++;
    long size = (long)wanted->size - ++head;
    if (size <= 0 || wanted->size > sizeof wanted->value)
        return -1;
    *put(proc_path(path, pid, "/"), name) = '\0';
    long fd = kernel(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CLOEXEC, 0, 0, 0);
    if (fd < 0)
        return -1;
    long answer = kernel(SYS_write, fd, (long)(name + head), size, 0, 0, 0);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    return answer == size ? 0 : -1;
}

/* Duplicate a descriptor of another process; return it, or a negative number. */
static long duplicate(long pid, uint32_t descriptor)
{
    long process = kernel(SYS_pidfd_open, pid, 0, 0, 0, 0, 0);
    if (process < 0)
        return process;
    long fd = kernel(SYS_pidfd_getfd, process, descriptor, 0, 0, 0, 0);
    kernel(SYS_close, process, 0, 0, 0, 0, 0);
    return fd;
}

/* The kernel restarts a periodic timer only when the program reads it. CRIU treats an expired timer
 * that was not read as stopped, so restart it here. */
static int restart_timer(long fd, const struct period *period)
{
    struct itimerspec now;
    if (kernel(SYS_timerfd_gettime, fd, (long)&now, 0, 0, 0, 0) < 0)
        return -1;
    if (now.it_value.tv_sec != 0 || now.it_value.tv_nsec != 0)
        return 0;
    now.it_interval.tv_sec = now.it_value.tv_sec = period->seconds;
    now.it_interval.tv_nsec = now.it_value.tv_nsec = period->nanoseconds;
    if (kernel(SYS_timerfd_settime, fd, 0, (long)&now, 0, 0, 0) < 0)
        return -1;
    uint64_t ticks = period->ticks > 0 ? period->ticks : 1;
    return kernel(SYS_ioctl, fd, SET_TICKS, (long)&ticks, 0, 0, 0) < 0 ? -1 : 0;
}

static int set_open(long pid, const struct attribute *wanted)
{
    const void *value = wanted->value;
    long answer, fd = duplicate(pid, wanted->descriptor);
    if (fd < 0)
        return -1;
    if (wanted->kind == TIMER)
        answer = restart_timer(fd, value);
    else
        answer = kernel(SYS_setsockopt, fd, wanted->level, wanted->name, (long)value, wanted->size,
                        0);
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
    return answer < 0 ? -1 : 0;
}

static int set(long pid, const struct attribute *wanted)
{
    const long value = (long)wanted->value, size = wanted->size;
    switch (wanted->kind) {
    case AFFINITY:
        return kernel(SYS_sched_setaffinity, pid, size, value, 0, 0, 0) < 0 ? -1 : 0;
    case IO_PRIORITY: {
        const int priority = *(const int *)(const void *)wanted->value;
        return kernel(SYS_ioprio_set, WHO_PROCESS, pid, priority, 0, 0, 0) < 0 ? -1 : 0;
    }
    case PROC_FILE:
        return set_file(pid, wanted);
    case SOCKET_OPTION:
    case TIMER:
        return set_open(pid, wanted);
    default:
        return -1;
    }
}

int set_attributes(long pid)
{
    if (count < 0) {
        count = left = load_array(ATTRIBUTES, sizeof *attributes, (void **)&attributes);
        if (count < 0)
            return -1;
    }
    if (left == 0)
        return 0;
    uint32_t thread = inner_number(pid);
    if (thread == 0)
        return -1;
    for (long i = 0; i < count; i++) {
        if (attributes[i].thread != thread)
            continue;
        if (set(pid, &attributes[i]) < 0)
            return -1;
        attributes[i].thread = 0;
        if (--left == 0)
            return kernel(SYS_unlinkat, AT_FDCWD, (long)ATTRIBUTES, 0, 0, 0, 0) < 0 ? -1 : 0;
    }
    return 0;
}
