/* `bf-link reach`: whether a sandbox can connect to an address. A proof that a network is closed. */
#include "link.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

enum { REACHED = 0, NOT_REACHED = 3, WRONG = 2, WAIT_MS = 3000 };

static int connected(const struct addrinfo *to)
{
    int error = 0, fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t size = sizeof error;
    if (fd < 0)
        return 0;
    if (connect(fd, to->ai_addr, to->ai_addrlen) == 0)
        return 1;
    struct pollfd waiting = {.fd = fd, .events = POLLOUT};
    if (errno != EINPROGRESS || poll(&waiting, 1, WAIT_MS) != 1)
        return 0;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

/* The process ends after this, so nothing is closed. A name is refused: only numbers are reached. */
int reach(const char *address, const char *port)
{
    struct addrinfo *to, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                  .ai_socktype = SOCK_STREAM};
    if (getaddrinfo(address, port, &hints, &to) != 0) {
        fprintf(stderr, "bf-link: %s port %s is not an address\n", address, port);
        return WRONG;
    }
    return connected(to) ? REACHED : NOT_REACHED;
}
