/* The bounded table of children and their exit statuses. */
#include "bf_init.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>

struct process {
    pid_t pid; /* 0 marks a free slot */
    bool exited;
    int status;
    uint64_t exit_order;
};

static struct process table[MAX_PROCESSES];
static size_t used; /* slots at or above this index have never been used */
static uint64_t exits;

static struct process *find(pid_t pid)
{
    for (size_t i = 0; i < used; i++)
        if (table[i].pid == pid)
            return &table[i];
    return NULL;
}

/* A free slot, or the slot with the oldest uncollected status. */
static struct process *vacant(void)
{
    struct process *oldest = NULL;
    for (size_t i = 0; i < used; i++) {
        if (table[i].pid == 0)
            return &table[i];
        if (table[i].exited && (oldest == NULL || table[i].exit_order < oldest->exit_order))
            oldest = &table[i];
    }
    if (used < MAX_PROCESSES)
        return &table[used++];
    return oldest;
}

bool process_room(void)
{
    return vacant() != NULL;
}

void process_add(pid_t pid)
{
    /* The kernel may reuse the pid of a child whose status was never collected. */
    struct process *slot = find(pid);
    if (slot == NULL)
        slot = vacant();
    if (slot != NULL)
        *slot = (struct process){.pid = pid};
}

void process_forget(pid_t pid)
{
    struct process *slot = find(pid);
    if (slot != NULL)
        memset(slot, 0, sizeof *slot);
}

enum process_state process_find(pid_t pid, int *status)
{
    const struct process *slot = pid > 0 ? find(pid) : NULL;
    if (slot == NULL)
        return PROCESS_UNKNOWN;
    *status = slot->status;
    return slot->exited ? PROCESS_EXITED : PROCESS_RUNNING;
}

/* The status as a shell reports it. */
static int shell_status(int raw)
{
    return WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
}

bool reap_children(void)
{
    for (;;) {
        int raw = 0;
        pid_t pid = waitpid(-1, &raw, WNOHANG);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid <= 0)
            return pid < 0;
        struct process *slot = find(pid); /* an orphan does not have a slot */
        if (slot != NULL && !slot->exited) {
            slot->exited = true;
            slot->status = shell_status(raw);
            slot->exit_order = ++exits;
        }
    }
}
