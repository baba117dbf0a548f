/* What CRIU says: whose memory is to be filled, and when the box runs. */
#include "pager.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FINISHED = 0x52535446 };

union control {
    char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct ucred))];
    struct cmsghdr align;
};

/* Return how much was said; a descriptor and the number of who said it go to their places. */
static ssize_t hear(int connection, void *data, size_t size, int *descriptor, pid_t *who)
{
    union control control;
    struct iovec vector = {data, size};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(connection, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0)
        return got;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part != NULL;
         part = CMSG_NXTHDR(&message, part)) {
        if (part->cmsg_level != SOL_SOCKET)
            continue;
        if (part->cmsg_type == SCM_RIGHTS)
            memcpy(descriptor, CMSG_DATA(part), sizeof *descriptor);
        struct ucred sender;
        if (part->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&sender, CMSG_DATA(part), sizeof sender);
            *who = sender.pid;
        }
    }
    if (message.msg_flags & MSG_CTRUNC)
        end(EXIT_LOST);
    return got;
}

void engine_accept(struct engine *engine)
{
    engine->connection = accept4(engine->listener, NULL, NULL, SOCK_CLOEXEC);
    if (engine->connection < 0)
        end(EXIT_LOST);
    close(engine->listener);
    engine->listener = -1;
}

static void hang_up(struct engine *engine)
{
    close(engine->connection);
    engine->connection = -1;
}

/* A negative number is a zombie's: it has no memory. */
static void hear_number(struct engine *engine)
{
    int32_t said = 0;
    int unasked = -1;
    pid_t who = 0;
    ssize_t got = hear(engine->connection, &said, sizeof said, &unasked, &who);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        hang_up(engine);
        return;
    }
    if (got != sizeof said || unasked >= 0)
        end(EXIT_LOST);
    if (said == FINISHED) {
        engine->finished = true;
        return;
    }
    if (said == 1)
        engine->box = (int)syscall(SYS_pidfd_open, who, 0);
    if (said == 0 || (said == 1 && engine->box < 0))
        end(EXIT_LOST);
    engine->pid = said > 0 ? said : 0;
}

static void hear_descriptor(struct engine *engine, int directory)
{
    char none;
    int descriptor = -1;
    pid_t who;
    ssize_t got = hear(engine->connection, &none, sizeof none, &descriptor, &who);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0 && descriptor < 0) {
        hang_up(engine);
        return;
    }
    if (got != sizeof none || descriptor < 0)
        end(EXIT_LOST);
    struct task *task = tasks_add();
    task->faults = descriptor;
    image_load(directory, (unsigned int)engine->pid, task);
    engine->pid = 0;
}

void engine_hear(struct engine *engine, int directory)
{
    if (engine->pid == 0)
        hear_number(engine);
    else
        hear_descriptor(engine, directory);
}
