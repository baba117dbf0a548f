/*
 * Lets CRIU start before it is known what it is to do. CRIU asks its environment for the file
 * with its options. When that is descriptor ORDERS, and a socket, orders are taken from there
 * until a file with the options has taken the socket's place.
 */
#include "waiting.h"

#include "answer.h"
#include "owners.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* MOST is what the kernel takes in one message. */
enum { ORDERS = 3, FIRST_KEPT = 64, MOST = 253, PATH = 256, LINE = 128 };

struct order {
    char text[PATH]; /* its letter, and where */
    int count;
    int fds[MOST];
};

static char *put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    *at = '\0';
    return at;
}

static int next_kept = FIRST_KEPT;
static int birthplace = -1;

/* The standard error is what the launcher reads when there is no log yet. */
static void give_up(const char *why, long number)
{
    char line[LINE], digits[24], *end = put(put(line, "Error (bf-engine): "), why);
    char *first = digits + sizeof digits;
    *--first = '\0';
    do
        *--first = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    end = put(put(end, first), "\n");
    kernel(SYS_write, 2, (long)line, end - line, 0, 0, 0);
    for (;;)
        kernel(SYS_exit_group, 1, 0, 0, 0, 0, 0);
}

static void demand(const char *what, long answer)
{
    if (answer < 0)
        give_up(what, -answer);
}

static void receive(struct order *order)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(MOST * sizeof(int))];
    } control;
    struct iovec vector = {order->text, PATH - 1};
    struct msghdr message = {0};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    long size = kernel(SYS_recvmsg, ORDERS, (long)&message, 0, 0, 0, 0);
    /* The end of the socket is the launcher's. */
    if (size <= 0)
        give_up("the launcher hung up: errno ", -size);
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        give_up("no room for the descriptors of an order: errno ", EMFILE);
    order->text[size] = '\0';
    order->count = 0;
    if (message.msg_controllen < sizeof control.head)
        return;
    size_t bytes = control.head.cmsg_len - CMSG_LEN(0);
    order->count = (int)(bytes / sizeof(int));
    for (int i = 0; i < order->count; i++)
        order->fds[i] = ((const int *)(const void *)CMSG_DATA(&control.head))[i];
}

/* `fd` is closed by each of these, unless they keep it. */
static void obey(char letter, const char *where, int fd)
{
    switch (letter) {
    case 'g': /* be in the group whose list of threads this is */
        demand("cannot enter a group: errno ", kernel(SYS_write, fd, (long)"0", 1, 0, 0, 0));
        break;
    case 'b': /* let the box be born in the group whose directory this is */
        birthplace = fd;
        return;
    case 'm': /* show these mounts there */
        demand("cannot mount a part of the box: errno ",
               kernel(SYS_move_mount, fd, (long)"", AT_FDCWD, (long)where, MOVE_MOUNT_F_EMPTY_PATH,
                      0));
        break;
    case 'k': /* keep it, by the next number */
        if (fd >= FIRST_KEPT) /* it could be written over by one that came before it */
            give_up("a descriptor that is not ours is open beside number ", fd);
        demand("cannot keep a descriptor: errno ",
               kernel(SYS_dup3, fd, next_kept++, 0, 0, 0, 0));
        break;
    case 'c': /* this file says who made the sockets */
        demand("cannot take the owners of sockets: errno ", take_owners(fd));
        break;
    case 'o': /* these are the options */
        demand("cannot take the options: errno ", kernel(SYS_dup3, fd, ORDERS, 0, 0, 0, 0));
        break;
    default:
        give_up("an order is not known: ", letter);
    }
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
}

static int is_socket(int fd)
{
    int kind = 0;
    unsigned int size = sizeof kind;
    return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, (long)&kind, (long)&size, 0) == 0;
}

static void wait_for_options(void)
{
    struct order order;
    while (is_socket(ORDERS)) {
        receive(&order);
        for (int i = 0; i < order.count; i++)
            obey(order.text[0], order.text + 1, order.fds[i]);
    }
}

long clone_at_birthplace(const void *given, size_t size)
{
    struct clone_args changed = {0};
    char *to = (char *)&changed;
    const char *from = given;
    for (size_t i = 0; i < size && i < sizeof changed; i++)
        to[i] = from[i];
    if (birthplace < 0 || size > sizeof changed || (changed.flags & CLONE_NEWPID) == 0)
        return kernel(SYS_clone3, (long)given, (long)size, 0, 0, 0, 0);
    changed.flags |= CLONE_INTO_CGROUP;
    changed.cgroup = (unsigned int)birthplace;
    return kernel(SYS_clone3, (long)&changed, sizeof changed, 0, 0, 0, 0);
}

static const char *after(const char *text, const char *start)
{
    while (*start != '\0')
        if (*text++ != *start++)
            return NULL;
    return text;
}

extern char **environ;

char *bf_getenv(const char *name) __asm__("getenv") __attribute__((visibility("default")));
char *bf_getenv(const char *name)
{
    for (char **each = environ; each != NULL && *each != NULL; each++) {
        const char *value = after(*each, name);
        if (value == NULL || *value++ != '=')
            continue;
        const char *end = after(name, "CRIU_CONFIG_FILE");
        if (end != NULL && *end == '\0' && after(value, "/proc/self/fd/3") != NULL)
            wait_for_options();
        return (char *)(uintptr_t)value;
    }
    return NULL;
}
