/*
 * Avoid two walks of CRIU through the host's table of tracked connections, to find those of one
 * network namespace. Each walk takes 5 ms on a machine with 24 GB, while the sandbox is frozen. A
 * sandbox does not have a packet filter, so its namespace tracks no connections. If CRIU asks for
 * the unconfirmed entries instead, the kernel reads only those of the namespace.
 */
#include "result.h"

#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

enum {
    ALL = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET,
    UNCONFIRMED = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET_UNCONFIRMED,
};

struct request {
    struct nlmsghdr head;
    struct nfgenmsg body;
};

static int option(int fd, int name)
{
    int value = -1;
    unsigned int size = sizeof value;
    long answer = kernel(SYS_getsockopt, fd, SOL_SOCKET, name, (long)&value, (long)&size, 0);
    return answer == 0 ? value : -1;
}

static int asks_for_all(int fd, const struct msghdr *message)
{
    if (message->msg_iovlen != 1 || message->msg_iov->iov_len != sizeof(struct request))
        return 0;
    const struct request *request = message->msg_iov->iov_base;
    int whole = (request->head.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
    return request->head.nlmsg_type == ALL && whole && option(fd, SO_DOMAIN) == AF_NETLINK &&
           option(fd, SO_PROTOCOL) == NETLINK_NETFILTER;
}

long bf_sendmsg(int fd, const struct msghdr *message, int flags) __asm__("sendmsg")
    __attribute__((visibility("default")));
long bf_sendmsg(int fd, const struct msghdr *message, int flags)
{
    if (!asks_for_all(fd, message))
        return checked(kernel(SYS_sendmsg, fd, (long)message, flags, 0, 0, 0));
    struct request request = *(const struct request *)message->msg_iov->iov_base;
    request.head.nlmsg_type = UNCONFIRMED;
    struct iovec vector = {&request, sizeof request};
    struct msghdr changed = *message;
    changed.msg_iov = &vector;
    return checked(kernel(SYS_sendmsg, fd, (long)&changed, flags, 0, 0, 0));
}
