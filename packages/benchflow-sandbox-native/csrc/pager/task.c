/* Fill one address space: serve its page faults, follow its changes, and load the other pages. */
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
    /* A forked task may use the same file of pages, so `pages` stays open until the pager ends. */
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

/* Wake the threads that wait for a page. If the page is still missing, they fault again. */
static void wake(const struct task *task, uint64_t page)
{
    struct uffdio_range range = {page, page_size()};
    ioctl(task->faults, UFFDIO_WAKE, &range);
}

/* Handle the error of the kernel for a page. */
static enum outcome handle_error(const struct task *task, uint64_t page, int why)
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
 * Load pages of an extent. EAGAIN: the memory is being changed, and its message must be read first
 * (see task_handle), or only some pages were loaded. EEXIST: the first page is already loaded.
 * ENOENT: not all pages are in one mapping.
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
    /* A forked child may lack mappings of its parent, so this is not an error there. A process of
       the image reports each unmap, so each of its missing pages must have a mapping. */
    if (why == ENOENT && !task->forked)
        end(EXIT_LOST);
    if (why == ENOENT || why == EEXIST)
        extents_cut(&task->missing, start, start + page_size());
    return handle_error(task, start, why);
}

static enum outcome serve(struct task *task, uint64_t page)
{
    const struct extent *extent = extents_at(&task->missing, page);
    if (extent != NULL) {
        uint64_t size = extent->end - page;
        return put(task, extent, page, size < AHEAD ? size : AHEAD);
    }
    /* A page that was never written, or was discarded. */
    struct uffdio_zeropage zero = {.range = {page, page_size()}};
    int answer = ioctl(task->faults, UFFDIO_ZEROPAGE, &zero);
    return answer == 0 ? PUT : handle_error(task, page, errno);
}

static void fork_task(size_t number, int faults)
{
    struct task *child = tasks_add();
    child->faults = faults;
    child->pages = tasks[number].pages;
    child->forked = true;
    extents_inherit(&child->missing, &tasks[number].missing);
}

static bool handle_message(size_t number, const struct uffd_msg *message)
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
 * Read one message at a time: a change applies from its reading on. Until then the kernel refuses
 * pages (EAGAIN), so that no page is loaded into memory that has changed.
 */
bool task_handle(size_t number)
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
        if (!handle_message(number, &message))
            return false;
    }
    return true;
}

bool task_fill(size_t number)
{
    struct task *task = &tasks[number];
    /* The last pages, because removing them moves no other extents in the list. */
    const struct extent *last = &task->missing.list[task->missing.count - 1];
    uint64_t size = last->end - last->start;
    if (size > CHUNK)
        size = CHUNK;
    return put(task, last, last->end - size, size) != GONE;
}
