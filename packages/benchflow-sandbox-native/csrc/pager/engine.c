/* Messages of CRIU: the processes whose memory is missing, and the start of the sandbox. */
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

/* Receive one message with its descriptor and the pid of its sender; return its size. */
static ssize_t receive(int connection, void *data, size_t size, int *descriptor, pid_t *sender_pid)
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
            *sender_pid = sender.pid;
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

/* CRIU sends a negative number for a zombie, which has no memory. */
static void receive_number(struct engine *engine)
{
    int32_t number = 0;
    int unexpected = -1;
    pid_t sender_pid = 0;
    ssize_t got = receive(engine->connection, &number, sizeof number, &unexpected, &sender_pid);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        hang_up(engine);
        return;
    }
    if (got != sizeof number || unexpected >= 0)
        end(EXIT_LOST);
    if (number == FINISHED) {
        engine->finished = true;
        return;
    }
    if (number == 1)
        engine->box = (int)syscall(SYS_pidfd_open, sender_pid, 0);
    if (number == 0 || (number == 1 && engine->box < 0))
        end(EXIT_LOST);
    engine->pid = number > 0 ? number : 0;
}

static void receive_descriptor(struct engine *engine, int directory)
{
    char byte;
    int descriptor = -1;
    pid_t sender_pid;
    ssize_t got = receive(engine->connection, &byte, sizeof byte, &descriptor, &sender_pid);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0 && descriptor < 0) {
        hang_up(engine);
        return;
    }
    if (got != sizeof byte || descriptor < 0)
        end(EXIT_LOST);
    struct task *task = tasks_add();
    task->faults = descriptor;
    image_load(directory, (unsigned int)engine->pid, task);
    engine->pid = 0;
}

void engine_receive(struct engine *engine, int directory)
{
    if (engine->pid == 0)
        receive_number(engine);
    else
        receive_descriptor(engine, directory);
}
