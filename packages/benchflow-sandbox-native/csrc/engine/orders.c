/*
 * Let CRIU start before its sandbox is known. CRIU reads the name of its file of options from the
 * environment. If that file is the descriptor ORDERS, and a socket, this receives orders from the
 * socket until an order replaces the socket by a file of options.
 */
#include "orders.h"

#include "result.h"
#include "owners.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* MAX_FDS is the limit of the kernel for one message. */
enum { ORDERS = 3, FIRST_KEPT = 64, MAX_FDS = 253, PATH = 256, LINE = 128 };

struct order {
    char text[PATH]; /* a letter, and for 'm' a path */
    int count;
    int fds[MAX_FDS];
};

static char *put(char *at, const char *text)
{
    while (*text != '\0')
        *at++ = *text++;
    *at = '\0';
    return at;
}

static int next_kept = FIRST_KEPT;
static int group = -1;

/* The launcher reads standard error when the log does not exist yet. */
static void fail(const char *why, long number)
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

static void check(const char *what, long answer)
{
    if (answer < 0)
        fail(what, -answer);
}

static void receive(struct order *order)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(MAX_FDS * sizeof(int))];
    } control;
    struct iovec vector = {order->text, PATH - 1};
    struct msghdr message = {0};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = &control;
    message.msg_controllen = sizeof control;
    long size = kernel(SYS_recvmsg, ORDERS, (long)&message, 0, 0, 0, 0);
    /* The socket ends when the launcher cancels or dies. */
    if (size <= 0)
        fail("the launcher hung up: errno ", -size);
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
        fail("too many open files for the descriptors of an order: errno ", EMFILE);
    order->text[size] = '\0';
    order->count = 0;
    if (message.msg_controllen < sizeof control.head)
        return;
    size_t bytes = control.head.cmsg_len - CMSG_LEN(0);
    order->count = (int)(bytes / sizeof(int));
    for (int i = 0; i < order->count; i++)
        order->fds[i] = ((const int *)(const void *)CMSG_DATA(&control.head))[i];
}

/* Close `fd` after the order, except for 'b'. */
static void obey(char letter, const char *path, int fd)
{
    switch (letter) {
    case 'g': /* join the v1 group whose `tasks` file is `fd` */
        check("cannot enter a group: errno ", kernel(SYS_write, fd, (long)"0", 1, 0, 0, 0));
        break;
    case 'b': /* create the sandbox in the v2 group whose directory is `fd` */
        group = fd;
        return;
    case 'm': /* attach the mount `fd` at `path` */
        check("cannot mount a part of the sandbox: errno ",
              kernel(SYS_move_mount, fd, (long)"", AT_FDCWD, (long)path, MOVE_MOUNT_F_EMPTY_PATH,
                     0));
        break;
    case 'k': /* keep `fd` under the next number */
        if (fd >= FIRST_KEPT) /* a number from FIRST_KEPT on may be overwritten */
            fail("an unknown descriptor is open beside number ", fd);
        check("cannot keep a descriptor: errno ", kernel(SYS_dup3, fd, next_kept++, 0, 0, 0, 0));
        break;
    case 'c': /* load the owners of sockets from `fd` */
        check("cannot load the owners of sockets: errno ", load_owners(fd));
        break;
    case 'o': /* use `fd` as the file of options */
        check("cannot use the options: errno ", kernel(SYS_dup3, fd, ORDERS, 0, 0, 0, 0));
        break;
    default:
        fail("unknown order: ", letter);
    }
    kernel(SYS_close, fd, 0, 0, 0, 0, 0);
}

static int is_socket(int fd)
{
    int kind = 0;
    unsigned int size = sizeof kind;
    return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_TYPE, (long)&kind, (long)&size, 0) == 0;
}

static void receive_orders(void)
{
    struct order order;
    while (is_socket(ORDERS)) {
        receive(&order);
        for (int i = 0; i < order.count; i++)
            obey(order.text[0], order.text + 1, order.fds[i]);
    }
}

long clone_into_group(const void *arguments, size_t size)
{
    struct clone_args changed = {0};
    char *to = (char *)&changed;
    const char *from = arguments;
    for (size_t i = 0; i < size && i < sizeof changed; i++)
        to[i] = from[i];
    if (group < 0 || size > sizeof changed || (changed.flags & CLONE_NEWPID) == 0)
        return kernel(SYS_clone3, (long)arguments, (long)size, 0, 0, 0, 0);
    changed.flags |= CLONE_INTO_CGROUP;
    changed.cgroup = (unsigned int)group;
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
            receive_orders();
        return (char *)(uintptr_t)value;
    }
    return NULL;
}
