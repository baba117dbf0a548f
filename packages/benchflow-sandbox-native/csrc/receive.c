/* Receive a request, and the acknowledgement of a reply. */
#include "connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Store the fds of one message; more than a spawn needs are a protocol error. */
static bool store_fds(struct connection *c, struct msghdr *message)
{
    bool valid = (message->msg_flags & MSG_CTRUNC) == 0;
    /* The kernel merges all fds of one receive into one control message. */
    struct cmsghdr *rights = CMSG_FIRSTHDR(message);
    if (rights == NULL || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS)
        return valid;
    size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(rights) + i * sizeof fd, sizeof fd);
        if (c->fd_count < STDIO_FDS) {
            c->fds[c->fd_count++] = fd;
        } else {
            close(fd);
            valid = false;
        }
    }
    return valid;
}

enum progress { PROGRESS_MORE, PROGRESS_BLOCKED, PROGRESS_BROKEN };

/* Receive at most `size` bytes, and none of the next request. */
static enum progress receive_some(struct connection *c, char *into, size_t size)
{
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int) * STDIO_FDS)];
    } control;
    struct iovec part = {.iov_base = into, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t got = recvmsg(c->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? PROGRESS_BLOCKED : PROGRESS_BROKEN;
    if (!store_fds(c, &message) || got == 0)
        return PROGRESS_BROKEN;
    c->received += (size_t)got;
    return PROGRESS_MORE;
}

static void begin_body(struct connection *c)
{
    if (c->header.length > MAX_REQUEST) {
        reply_failure(c, E2BIG, STAGE_REQUEST);
        return;
    }
    c->body = malloc((size_t)c->header.length + 1);
    if (c->body == NULL) {
        reply_failure(c, ENOMEM, STAGE_REQUEST);
        return;
    }
    c->received = 0;
    c->state = BODY;
}

void receive_request(struct connection *c)
{
    while (c->state == HEADER || c->state == BODY) {
        if (c->state == BODY && c->received == c->header.length) {
            dispatch(c);
            return;
        }
        bool head = c->state == HEADER;
        char *base = head ? (char *)&c->header : c->body;
        size_t size = head ? sizeof c->header : c->header.length;
        switch (receive_some(c, base + c->received, size - c->received)) {
        case PROGRESS_BLOCKED:
            return;
        case PROGRESS_BROKEN:
            close_connection(c);
            return;
        case PROGRESS_MORE:
            if (head && c->received == sizeof c->header)
                begin_body(c);
        }
    }
}

void receive_acknowledgement(struct connection *c)
{
    char byte;
    ssize_t got = recv(c->fd, &byte, 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got != 1) {
        abandon(c);
        return;
    }
    int status;
    if (c->header.operation == OP_WAIT && process_find(c->pid, &status) == PROCESS_EXITED)
        process_forget(c->pid);
    close_connection(c);
}
