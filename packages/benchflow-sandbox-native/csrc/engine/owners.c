/*
 * Create restored unix sockets as the users who made them first (SO_PEERCRED). The kernel records
 * the user of a process when it creates a pair or starts to listen, and CRIU does both as root.
 * launcher_process/criu/socket_owners.py writes the user for each process of the sandbox. All other
 * processes, such as CRIU's own ones, create sockets as root.
 */
#include "owners.h"

#include "result.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { MAX_GROUPS = 16, MAX_SAVED = 256, UNCHANGED = -1 };

struct owner {
    uint32_t process; /* its number inside */
    uint32_t uid;
    uint32_t gid;
    uint32_t count;
    uint32_t groups[MAX_GROUPS];
};

struct saved {
    long count;
    uint32_t groups[MAX_SAVED];
    long dumpable;
};

static const struct owner *owners;
static long count;

int load_owners(int fd)
{
    struct stat info;
    long answer = kernel(SYS_fstat, fd, (long)&info, 0, 0, 0, 0);
    if (answer < 0 || info.st_size <= 0 || (size_t)info.st_size % sizeof *owners != 0)
        return -1;
    answer = kernel(SYS_mmap, 0, info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (answer <= 0)
        return -1;
    owners = (const struct owner *)answer;
    count = info.st_size / (long)sizeof *owners;
    return 0;
}

static const struct owner *owner_of_this_process(void)
{
    long process = count == 0 ? 0 : kernel(SYS_getpid, 0, 0, 0, 0, 0, 0);
    for (long i = 0; i < count; i++)
        if (owners[i].process == process)
            return &owners[i];
    return NULL;
}

static int become(const struct owner *owner, struct saved *saved)
{
    saved->count = kernel(SYS_getgroups, MAX_SAVED, (long)saved->groups, 0, 0, 0, 0);
    saved->dumpable = kernel(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0, 0);
    if (saved->count < 0 || owner->count > MAX_GROUPS)
        return -1;
    if (kernel(SYS_setgroups, owner->count, (long)owner->groups, 0, 0, 0, 0) < 0)
        return -1;
    if (kernel(SYS_setresgid, UNCHANGED, owner->gid, UNCHANGED, 0, 0, 0) < 0)
        return -1;
    return (int)kernel(SYS_setresuid, UNCHANGED, owner->uid, UNCHANGED, 0, 0, 0);
}

/* A change of the user also makes the process undumpable, but CRIU must still read its memory. */
static int become_root(const struct saved *saved)
{
    if (kernel(SYS_setresuid, UNCHANGED, 0, UNCHANGED, 0, 0, 0) < 0)
        return -1;
    if (kernel(SYS_setresgid, UNCHANGED, 0, UNCHANGED, 0, 0, 0) < 0)
        return -1;
    if (kernel(SYS_setgroups, saved->count, (long)saved->groups, 0, 0, 0, 0) < 0)
        return -1;
    return (int)kernel(SYS_prctl, PR_SET_DUMPABLE, saved->dumpable, 0, 0, 0, 0);
}

/* End a process that cannot become root again: it would restore the rest as another user. */
static long as_owner(long number, long a, long b, long c, long d)
{
    struct saved saved;
    const struct owner *owner = owner_of_this_process();
    if (owner == NULL)
        return checked(kernel(number, a, b, c, d, 0, 0));
    long answer = become(owner, &saved) < 0 ? -EPERM : kernel(number, a, b, c, d, 0, 0);
    if (become_root(&saved) < 0)
        kernel(SYS_exit_group, 1, 0, 0, 0, 0, 0);
    return checked(answer);
}

int bf_socketpair(int domain, int type, int protocol, int ends[2]) __asm__("socketpair")
    __attribute__((visibility("default")));
int bf_socketpair(int domain, int type, int protocol, int ends[2])
{
    return (int)as_owner(SYS_socketpair, domain, type, protocol, (long)ends);
}

int bf_listen(int fd, int backlog) __asm__("listen") __attribute__((visibility("default")));
int bf_listen(int fd, int backlog)
{
    return (int)as_owner(SYS_listen, fd, backlog, 0, 0);
}
