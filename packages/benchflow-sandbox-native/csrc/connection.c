/*
 * One request per connection:
 *
 *   client: header {u32 operation, u32 length}, body, three fds with a spawn
 *   init:   reply {u32 error, u32 stage, u32 value, u32 text length}, text
 *   client: one byte = "received"
 *   init:   closes
 *
 * If a connection ends without that byte, init undoes the request: it kills a spawned
 * process, and keeps the status of a wait. So a caller that is cancelled or dies at any
 * point leaves no unknown process, and loses no exit status.
 */
#include "connection.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static struct connection connections[MAX_CONNECTIONS];
static size_t open_count;
static bool killing;

#define EACH(c) struct connection *c = connections; c < connections + MAX_CONNECTIONS; c++

void connections_setup(void)
{
    for (EACH(c))
        *c = (struct connection){.fd = -1, .report = -1};
}

bool connections_room(void)
{
    return open_count < MAX_CONNECTIONS;
}

static void close_received_fds(struct connection *c)
{
    while (c->fd_count > 0)
        close(c->fds[--c->fd_count]);
}

void release_input(struct connection *c)
{
    close_received_fds(c);
    free(c->body);
    c->body = NULL;
}

void close_connection(struct connection *c)
{
    release_input(c);
    if (c->report >= 0)
        close(c->report);
    close(c->fd);
    *c = (struct connection){.fd = -1, .report = -1};
    open_count--;
}

/* The caller is gone before it knew the pid, so no caller would ever end this process. */
static void abandon_spawn(struct connection *c)
{
    kill(c->pid, SIGKILL);
    kill(-c->pid, SIGKILL);
    process_forget(c->pid);
}

void abandon(struct connection *c)
{
    bool spawned = c->state == SPAWNING ||
                   (c->state == REPLIED && c->header.operation == OP_SPAWN && c->pid > 0);
    if (spawned)
        abandon_spawn(c);
    close_connection(c);
}

void send_reply(struct connection *c, const struct reply *reply)
{
    size_t length = offsetof(struct reply, text) + reply->text_length;
    release_input(c);
    c->state = REPLIED;
    /* Far smaller than any socket buffer, so it is sent completely or not at all. */
    if (send(c->fd, reply, length, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length)
        abandon(c);
}

void reply_value(struct connection *c, uint32_t value)
{
    struct reply reply = {.value = value};
    send_reply(c, &reply);
}

void reply_failure(struct connection *c, int error, enum stage stage)
{
    struct reply reply = {.error = (uint32_t)error, .stage = stage};
    c->pid = 0;
    send_reply(c, &reply);
}

bool connection_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS;
    struct ucred peer;
    socklen_t size = sizeof peer;
    /* A peer with a pid in this namespace is inside the sandbox; a peer on the host has pid 0. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid != 0) {
        close(fd);
        return true;
    }
    for (EACH(c)) {
        if (c->state == FREE) {
            *c = (struct connection){.state = HEADER, .fd = fd, .report = -1};
            open_count++;
            receive_request(c); /* most requests have already arrived */
            return true;
        }
    }
    close(fd);
    return true;
}

nfds_t connections_poll(struct pollfd *out)
{
    nfds_t count = 0;
    for (EACH(c)) {
        if (c->state == FREE)
            continue;
        c->polled = count;
        out[count++] = (struct pollfd){.fd = c->fd, .events = POLLIN};
        if (c->state == SPAWNING)
            out[count++] = (struct pollfd){.fd = c->report, .events = POLLIN};
    }
    return count;
}

void connections_handle(const struct pollfd *polled)
{
    for (EACH(c)) {
        if (c->state == FREE)
            continue;
        bool ready = polled[c->polled].revents != 0;
        if (c->state == SPAWNING && !ready && polled[c->polled + 1].revents != 0)
            finish_spawn(c);
        else if (ready && (c->state == HEADER || c->state == BODY))
            receive_request(c);
        else if (ready && c->state == REPLIED)
            receive_acknowledgement(c);
        else if (ready)
            abandon(c); /* a client sends nothing before the reply: it hung up */
    }
}

void connections_child_exited(void)
{
    for (EACH(c))
        if (c->state == WAITING)
            answer_wait(c);
}

void kill_everything(void)
{
    killing = true;
    kill(-1, SIGKILL); /* PID 1 is exempt, and a fork in progress cannot slip through */
}

bool killing_everything(void)
{
    return killing;
}

void connections_all_killed(void)
{
    killing = false;
    for (EACH(c))
        if (c->state == KILLING)
            reply_value(c, 0);
}
