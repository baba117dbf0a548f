/*
 * Shared declarations of bf-init, the PID 1 of a sandbox.
 *
 * Layout of the program:
 *   bf_init.c     start-up and the event loop
 *   connection.c  one request per connection (with receive.c and operation.c)
 *   request.c     decoding of hostile bytes into a request
 *   process.c     the bounded table of children and their exit statuses
 *   child.c       the steps between fork and exec
 */
#ifndef BF_INIT_H
#define BF_INIT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifndef BF_INIT_VERSION
#define BF_INIT_VERSION "unversioned"
#endif

_Static_assert(sizeof(long) == 8, "bf-init supports 64-bit Linux only");

enum {
    MAX_REQUEST = 1 << 20, /* bytes in the body of one request */
    MAX_STRINGS = 1 << 16, /* arguments plus environment entries of one spawn */
    MAX_GROUPS = 1024,
    MAX_RLIMITS = 64,
    MAX_CONNECTIONS = 256,
    MAX_PROCESSES = 4096, /* running or not yet collected children */
    STDIO_FDS = 3,
};

/* The step at which a request failed. The Python client has the same list in the same order. */
enum stage {
    STAGE_NONE,
    STAGE_REQUEST,
    STAGE_TABLE,
    STAGE_FORK,
    STAGE_SESSION,
    STAGE_STDIO,
    STAGE_RLIMIT,
    STAGE_CAPABILITIES,
    STAGE_GROUPS,
    STAGE_GID,
    STAGE_UID,
    STAGE_PRIVILEGES,
    STAGE_CWD,
    STAGE_EXEC,
    STAGE_WAIT,
    STAGE_KILL,
};

struct failure {
    uint32_t error; /* an errno value; 0 means success */
    uint32_t stage;
};

enum operation { OP_PING = 1, OP_SPAWN, OP_WAIT, OP_KILL, OP_KILL_ALL };

struct rlimit_request {
    uint32_t resource;
    uint64_t soft;
    uint64_t hard;
};

/* Strings point into the body of the request. `release_spawn` frees the arrays. */
struct spawn_request {
    uint32_t uid;
    uint32_t gid;
    uint32_t umask;
    bool no_new_privileges;
    uint32_t group_count;
    uint32_t rlimit_count;
    gid_t groups[MAX_GROUPS];
    struct rlimit_request rlimits[MAX_RLIMITS];
    char *cwd;
    char **argv;
    char **envp;
};

struct kill_request {
    uint32_t pid;
    uint32_t signal;
    bool group;
};

/* request.c: false means malformed. A decoded spawn must be released. */
bool decode_spawn(char *body, size_t length, struct spawn_request *out);
bool decode_wait(const char *body, size_t length, uint32_t *pid);
bool decode_kill(const char *body, size_t length, struct kill_request *out);
void release_spawn(struct spawn_request *spawn);

/* child.c: returns the pid and the read end of the exec report, or -1 and the failure. */
pid_t start_child(const struct spawn_request *spawn, const int stdio[STDIO_FDS], int *report,
                  struct failure *failure);

/* process.c */
enum process_state { PROCESS_UNKNOWN, PROCESS_RUNNING, PROCESS_EXITED };
bool process_room(void);
void process_add(pid_t pid);
void process_forget(pid_t pid);
enum process_state process_find(pid_t pid, int *status);
bool reap_children(void); /* true once no child is left */

/* connection.c */
void connections_setup(void);
bool connections_room(void);
bool connection_accept(int listener); /* false: the kernel has no resources now, try later */
nfds_t connections_poll(struct pollfd *out);
void connections_handle(const struct pollfd *polled);
void connections_child_exited(void);
void connections_all_killed(void);
void kill_everything(void);
bool killing_everything(void);

#endif
