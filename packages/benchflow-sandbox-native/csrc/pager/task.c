/* One memory that is filled: what it asks for, what it tells, and what is left. */
#include "pager.h"

#include <errno.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { AHEAD = 64 << 10, CHUNK = 256 << 10, MESSAGES = 64, MAX_TASKS = 4096 };

enum outcome { PUT, AGAIN, GONE };

static struct task tasks[MAX_TASKS];
static size_t count;
static uint8_t buffer[CHUNK] __attribute__((aligned(65536)));

struct task *tasks_add(void)
{
    if (count == MAX_TASKS)
        end(EXIT_NO_MEMORY);
    tasks[count] = (struct task){.faults = -1, .pages = -1};
    return &tasks[count++];
}

size_t tasks_count(void)
{
    return count;
}

struct task *tasks_get(size_t number)
{
    return &tasks[number];
}

void tasks_remove(size_t number)
{
    /* Its pages may be a forked one's, too: that descriptor stays open until we end. */
    close(tasks[number].faults);
    free(tasks[number].missing.list);
    tasks[number] = tasks[--count];
}

static uint64_t page_size(void)
{
    static uint64_t size;
    if (size == 0)
        size = (uint64_t)sysconf(_SC_PAGESIZE);
    return size;
}

/* Let those who wait for a page look again: it is there, or they will ask again. */
static void wake(const struct task *task, uint64_t page)
{
    struct uffdio_range range = {page, page_size()};
    ioctl(task->faults, UFFDIO_WAKE, &range);
}

/* Look at why the kernel did not take a page. */
static enum outcome refused(const struct task *task, uint64_t page, int why)
{
    if (why == ESRCH || why == ENOSPC)
        return GONE;
    if (why != EAGAIN && why != EEXIST && why != ENOENT)
        end(why == ENOMEM ? EXIT_NO_MEMORY : EXIT_LOST);
    wake(task, page);
    return AGAIN;
}

static void read_pages(const struct task *task, const struct extent *from, uint64_t start,
                       uint64_t size)
{
    uint64_t done = 0, offset = from->offset + (start - from->start);
    while (done < size) {
        ssize_t got = pread(task->pages, buffer + done, size - done, (off_t)(offset + done));
        if (got <= 0 && !(got < 0 && errno == EINTR))
            end(EXIT_TORN);
        done += got < 0 ? 0 : (uint64_t)got;
    }
}

/*
 * Put pages of an extent in their place. EAGAIN: the memory is being changed, and tells so first
 * (see task_listen), or some were put. EEXIST: the first one is there. ENOENT: not all of them
 * are in one mapping.
 */
static enum outcome put(struct task *task, const struct extent *from, uint64_t start, uint64_t size)
{
    read_pages(task, from, start, size);
    struct uffdio_copy copy = {.dst = start, .src = (uintptr_t)buffer, .len = size};
    if (ioctl(task->faults, UFFDIO_COPY, &copy) == 0) {
        extents_cut(&task->missing, start, start + size);
        return PUT;
    }
    int why = errno;
    if (why == EAGAIN && copy.copy > 0) {
        extents_cut(&task->missing, start, start + (uint64_t)copy.copy);
        return PUT;
    }
    if (why == ENOENT && size > page_size())
        return put(task, from, start, page_size());
    /* A child's memory lacks what its parent kept to itself, and that is right. The memory of
       a process of the image tells of all that it unmaps, so that its pages have a place. */
    if (why == ENOENT && !task->forked)
        end(EXIT_LOST);
    if (why == ENOENT || why == EEXIST)
        extents_cut(&task->missing, start, start + page_size());
    return refused(task, start, why);
}

static enum outcome serve(struct task *task, uint64_t page)
{
    const struct extent *extent = extents_at(&task->missing, page);
    if (extent != NULL) {
        uint64_t size = extent->end - page;
        return put(task, extent, page, size < AHEAD ? size : AHEAD);
    }
    /* Was never written, or was given back. */
    struct uffdio_zeropage zero = {.range = {page, page_size()}};
    int answer = ioctl(task->faults, UFFDIO_ZEROPAGE, &zero);
    return answer == 0 ? PUT : refused(task, page, errno);
}

static void fork_task(size_t number, int faults)
{
    struct task *child = tasks_add();
    child->faults = faults;
    child->pages = tasks[number].pages;
    child->forked = true;
    extents_inherit(&child->missing, &tasks[number].missing);
}

static bool obey(size_t number, const struct uffd_msg *message)
{
    struct task *task = &tasks[number];
    switch (message->event) {
    case UFFD_EVENT_PAGEFAULT:
        return serve(task, message->arg.pagefault.address & ~(page_size() - 1)) != GONE;
    case UFFD_EVENT_REMOVE:
    case UFFD_EVENT_UNMAP:
        extents_cut(&task->missing, message->arg.remove.start, message->arg.remove.end);
        return true;
    case UFFD_EVENT_REMAP:
        extents_move(&task->missing, message->arg.remap.from, message->arg.remap.to,
                     message->arg.remap.len);
        return true;
    case UFFD_EVENT_FORK:
        fork_task(number, (int)message->arg.fork.ufd);
        return true;
    default:
        end(EXIT_LOST);
    }
}

/*
 * One message at a time: a change counts from when it is read. Until then the kernel refuses our
 * pages (EAGAIN), so that none lands where the memory is something else by now.
 */
bool task_listen(size_t number)
{
    struct uffd_msg message;
    for (int turn = 0; turn < MESSAGES; turn++) {
        ssize_t got = read(tasks[number].faults, &message, sizeof message);
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got < 0 && errno == EINTR)
            continue;
        if (got != sizeof message)
            end(EXIT_LOST);
        if (!obey(number, &message))
            return false;
    }
    return true;
}

bool task_fill(size_t number)
{
    struct task *task = &tasks[number];
    /* The last ones: nothing has to be moved for them. */
    const struct extent *last = &task->missing.list[task->missing.count - 1];
    uint64_t size = last->end - last->start;
    if (size > CHUNK)
        size = CHUNK;
    return put(task, last, last->end - size, size) != GONE;
}
