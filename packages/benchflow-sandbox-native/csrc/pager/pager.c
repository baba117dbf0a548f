/* bf-pager DIRECTORY LISTENER REPORT LIFELINE: four descriptors. See pager.h. */
#include "pager.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LISTENER, CONNECTION, BOX, LIFELINE, FIRST_TASK, MAX_POLLED = FIRST_TASK + 4096 };

/* The state that the guard reads. */
struct shared {
    atomic_bool filled;
    atomic_int box;
};

static struct shared *shared;

void end(int status)
{
    _exit(status);
}

static bool ended(int fd, int milliseconds)
{
    struct pollfd waited = {fd, POLLIN, 0};
    return fd >= 0 && poll(&waited, 1, milliseconds) > 0;
}

static void await_end(int fd)
{
    while (fd >= 0 && !ended(fd, -1))
        continue;
}

/* Keep all descriptors open until the sandbox does not need them, or is dead. */
static void guard(int pager, int lifeline)
{
    prctl(PR_SET_NAME, "bf-guard");
    confine();
    await_end(pager);
    if (!atomic_load(&shared->filled)) {
        await_end(lifeline); /* the launcher closes it after the sandbox, or is dead itself */
        await_end(atomic_load(&shared->box));
    }
    end(EXIT_SUCCESS);
}

static void start_guard(int lifeline)
{
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (self < 0 || shared == MAP_FAILED)
        end(EXIT_NO_MEMORY);
    atomic_init(&shared->filled, false);
    atomic_init(&shared->box, -1);
    /* A child of the launcher, like this process, so that the launcher reaps each of them. */
    long pid = syscall(SYS_clone, CLONE_FILES | CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid < 0)
        end(EXIT_NO_MEMORY);
    if (pid == 0)
        guard(self, lifeline);
}

static bool find_incomplete(size_t *number)
{
    for (*number = 0; *number < tasks_count(); ++*number)
        if (tasks_get(*number)->missing.count > 0)
            return true;
    return false;
}

static nfds_t gather(struct pollfd *polled, const struct engine *engine, int lifeline)
{
    polled[LISTENER] = (struct pollfd){engine->listener, POLLIN, 0};
    polled[CONNECTION] = (struct pollfd){engine->connection, POLLIN, 0};
    polled[BOX] = (struct pollfd){engine->box, POLLIN, 0};
    /* Once the sandbox is known, only its end counts: the end of the launcher kills it, too. */
    polled[LIFELINE] = (struct pollfd){engine->box < 0 ? lifeline : -1, POLLIN, 0};
    nfds_t count = FIRST_TASK;
    for (size_t number = 0; number < tasks_count(); number++)
        polled[count++] = (struct pollfd){tasks_get(number)->faults, POLLIN, 0};
    return count;
}

/* From the last to the first: the last task replaces a removed one, and a new task is the last. */
static void handle_tasks(const struct pollfd *polled, size_t count)
{
    while (count-- > 0)
        if (polled[FIRST_TASK + count].revents != 0 && !task_handle(count))
            tasks_remove(count);
}

static void work(struct engine *engine, int directory, int lifeline)
{
    static struct pollfd polled[MAX_POLLED];
    size_t next;
    for (;;) {
        bool missing = find_incomplete(&next);
        bool failed = engine->connection < 0 && engine->listener < 0 && engine->box < 0;
        if (failed || (engine->finished && !missing))
            return;
        size_t polled_tasks = tasks_count();
        nfds_t count = gather(polled, engine, lifeline);
        if (poll(polled, count, engine->finished ? 0 : -1) < 0 && errno != EINTR)
            end(EXIT_LOST);
        if (polled[BOX].revents != 0 || polled[LIFELINE].revents != 0)
            return;
        handle_tasks(polled, polled_tasks);
        if (engine->finished && find_incomplete(&next) && !task_fill(next))
            tasks_remove(next);
        if (polled[LISTENER].revents != 0)
            engine_accept(engine);
        else if (polled[CONNECTION].revents != 0)
            engine_receive(engine, directory);
        atomic_store(&shared->box, engine->box);
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fputs("bf-pager: benchflow-sandbox-local starts this program\n", stderr);
        return 2;
    }
    int directory = atoi(argv[1]), report = atoi(argv[3]), lifeline = atoi(argv[4]);
    struct engine engine = {.listener = atoi(argv[2]), .connection = -1, .box = -1};
    signal(SIGPIPE, SIG_IGN);
    start_guard(lifeline);
    confine();
    work(&engine, directory, lifeline);
    size_t next;
    if (engine.finished && !find_incomplete(&next) && write(report, "F", 1) < 0)
        errno = 0; /* the runner is gone, so the sandbox will end soon */
    atomic_store(&shared->filled, true);
    end(EXIT_SUCCESS);
}
