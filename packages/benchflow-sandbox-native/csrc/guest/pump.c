/* Copy bytes between one connection and two pipes. Each direction ends by itself. */
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct direction {
    int from;
    int to;
    size_t start;
    size_t end;
    bool finished;
    char bytes[1 << 16];
};

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static void fill(struct direction *d)
{
    ssize_t got = read(d->from, d->bytes, sizeof d->bytes);
    if (got < 0 && would_block())
        return;
    if (got < 0)
        _exit(1);
    d->start = 0;
    d->end = (size_t)got;
    if (got > 0)
        return;
    d->finished = true;
    if (shutdown(d->to, SHUT_WR) < 0 && errno == ENOTSOCK)
        close(d->to);
}

static void drain(struct direction *d)
{
    ssize_t put = write(d->to, d->bytes + d->start, d->end - d->start);
    if (put < 0 && !would_block())
        _exit(1); /* the reader is gone */
    if (put > 0)
        d->start += (size_t)put;
}

static void step(struct direction *d, const struct pollfd *polled)
{
    if (d->finished || polled->revents == 0)
        return;
    if (d->start < d->end)
        drain(d);
    else
        fill(d);
}

static struct pollfd wanted(const struct direction *d)
{
    if (d->finished)
        return (struct pollfd){.fd = -1};
    if (d->start < d->end)
        return (struct pollfd){.fd = d->to, .events = POLLOUT};
    return (struct pollfd){.fd = d->from, .events = POLLIN};
}

void pump(int connection, int in, int out)
{
    static struct direction inward, outward;
    inward.from = in, inward.to = connection;
    outward.from = connection, outward.to = out;
    signal(SIGPIPE, SIG_IGN);
    for (int fds[] = {connection, in, out}, i = 0; i < 3; i++)
        if (fcntl(fds[i], F_SETFL, O_NONBLOCK) < 0)
            _exit(1);
    while (!inward.finished || !outward.finished) {
        struct pollfd polled[] = {wanted(&inward), wanted(&outward)};
        if (poll(polled, 2, -1) < 0 && errno != EINTR)
            _exit(1);
        step(&inward, &polled[0]);
        step(&outward, &polled[1]);
    }
    _exit(0);
}

void pump_to(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) < 0)
        _exit(1);
    if (write(STDOUT_FILENO, "\x06", 1) != 1) /* "connected" */
        _exit(1);
    pump(connection, STDIN_FILENO, STDOUT_FILENO);
}
