/* The effect of each request. */
#include "connection.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void handle_ping(struct connection *c)
{
    struct reply reply = {.text_length = sizeof BF_INIT_VERSION - 1};
    _Static_assert(sizeof BF_INIT_VERSION <= sizeof reply.text, "the version is too long");
    memcpy(reply.text, BF_INIT_VERSION, sizeof BF_INIT_VERSION);
    send_reply(c, &reply);
}

static void handle_spawn(struct connection *c)
{
    static struct spawn_request spawn; /* 5 KiB: not for the stack of each call */
    struct failure failure;
    if (c->fd_count != STDIO_FDS || !decode_spawn(c->body, c->header.length, &spawn)) {
        reply_failure(c, EINVAL, STAGE_REQUEST);
        return;
    }
    if (killing_everything() || !process_room()) {
        release_spawn(&spawn);
        reply_failure(c, killing_everything() ? EBUSY : EAGAIN, STAGE_TABLE);
        return;
    }
    c->pid = start_child(&spawn, c->fds, &c->report, &failure);
    release_spawn(&spawn);
    release_input(c);
    if (c->pid < 0) {
        reply_failure(c, (int)failure.error, (enum stage)failure.stage);
        return;
    }
    process_add(c->pid);
    c->state = SPAWNING;
}

/* Read the report pipe: it is empty after a successful exec, or has the failure. */
void finish_spawn(struct connection *c)
{
    struct failure failure = {0};
    ssize_t size = read(c->report, &failure, sizeof failure);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(c->report);
    c->report = -1;
    if (size == (ssize_t)sizeof failure) {
        process_forget(c->pid);
        reply_failure(c, (int)failure.error, (enum stage)failure.stage);
        return;
    }
    reply_value(c, (uint32_t)c->pid);
}

/* Answer the wait, or stay WAITING while the process runs. */
void answer_wait(struct connection *c)
{
    int status = 0;
    switch (process_find(c->pid, &status)) {
    case PROCESS_UNKNOWN:
        reply_failure(c, ESRCH, STAGE_WAIT);
        return;
    case PROCESS_EXITED:
        reply_value(c, (uint32_t)status);
        return;
    case PROCESS_RUNNING:
        c->state = WAITING;
        return;
    }
}

static void handle_wait(struct connection *c)
{
    uint32_t pid;
    if (!decode_wait(c->body, c->header.length, &pid)) {
        reply_failure(c, EINVAL, STAGE_REQUEST);
        return;
    }
    c->pid = pid <= INT_MAX ? (pid_t)pid : 0;
    release_input(c);
    answer_wait(c);
}

static void handle_kill(struct connection *c)
{
    struct kill_request request;
    int status;
    /* For kill(2), 0, 1 and -1 mean the own group, init and all processes: refuse them. */
    if (!decode_kill(c->body, c->header.length, &request) || request.pid < 2 ||
        request.pid > INT_MAX || request.signal >= NSIG) {
        reply_failure(c, EINVAL, STAGE_REQUEST);
        return;
    }
    pid_t pid = (pid_t)request.pid;
    /* A pid that is not a running child of init may belong to another process now. */
    if (!request.group && process_find(pid, &status) != PROCESS_RUNNING)
        reply_failure(c, ESRCH, STAGE_KILL);
    else if (kill(request.group ? -pid : pid, (int)request.signal) < 0)
        reply_failure(c, errno, STAGE_KILL);
    else
        reply_value(c, 0);
}

void dispatch(struct connection *c)
{
    switch (c->header.operation) {
    case OP_PING:
        handle_ping(c);
        return;
    case OP_SPAWN:
        handle_spawn(c);
        return;
    case OP_WAIT:
        handle_wait(c);
        return;
    case OP_KILL:
        handle_kill(c);
        return;
    case OP_KILL_ALL:
        release_input(c);
        c->state = KILLING; /* answered by connections_all_killed() */
        kill_everything();
        return;
    default:
        reply_failure(c, ENOSYS, STAGE_REQUEST);
    }
}
