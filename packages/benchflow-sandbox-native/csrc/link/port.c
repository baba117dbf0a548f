/*
 * `bf-link listen`: WebSockets of the host, by a port of the sandbox.
 *
 * Anyone who reaches the port may connect, also processes of the sandbox. So a process for each
 * connection reads the request, and the link hears nothing of a connection without the token.
 */
#include "link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 32, BACKLOG = 64, STALLED_SECONDS = 60 };

struct connection {
    pid_t pid;
    bool is_known; /* it has proven the token */
};

static struct connection connections[MAX_CONNECTIONS]; /* the oldest one is the first */
static size_t count;

static int bound(const char *address, const char *port)
{
    struct addrinfo *to, hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                  .ai_socktype = SOCK_STREAM};
    const int on = 1, off = 0;
    errno = EINVAL;
    if (getaddrinfo(address, port, &hints, &to) != 0)
        return -1;
    int listener = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* `::` includes IPv4. So no process can take the port of the other protocol. */
    if (to->ai_family == AF_INET6)
        setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(listener, to->ai_addr, to->ai_addrlen) < 0 || listen(listener, BACKLOG) < 0)
        return -1;
    return listener;
}

int listen_port(const char *address, const char *port)
{
    int listener = bound(address, port);
    bool lacks_ipv6 = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
    if (listener < 0 && lacks_ipv6 && strcmp(address, "::") == 0)
        listener = bound("0.0.0.0", port);
    return listener;
}

static void forget(size_t index)
{
    count--;
    memmove(connections + index, connections + index + 1, (count - index) * sizeof *connections);
}

static void reap(void)
{
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;)
        for (size_t i = 0; i < count; i++)
            if (connections[i].pid == pid) {
                forget(i);
                break;
            }
}

/* End the oldest connection that has not proven the token, or else the oldest one. */
static void make_room(void)
{
    size_t oldest = 0;
    while (oldest < count && connections[oldest].is_known)
        oldest++;
    oldest = oldest < count ? oldest : 0;
    kill(connections[oldest].pid, SIGKILL);
    waitpid(connections[oldest].pid, NULL, 0);
    forget(oldest);
}

static void note_known(int news)
{
    pid_t pid;
    while (recv(news, &pid, sizeof pid, MSG_DONTWAIT) == sizeof pid)
        for (size_t i = 0; i < count; i++)
            connections[i].is_known = connections[i].is_known || connections[i].pid == pid;
}

static void serve_connection(int peer, int news, const unsigned char *token)
    __attribute__((noreturn));

static void serve_connection(int peer, int news, const unsigned char *token)
{
    const int on = 1;
    const struct timeval stalled = {.tv_sec = STALLED_SECONDS};
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &stalled, sizeof stalled);
    if (shake_hands(peer, token)) {
        const pid_t pid = getpid();
        send(news, &pid, sizeof pid, MSG_NOSIGNAL);
        int link = dial_link();
        if (link >= 0)
            relay(peer, link);
    }
    shutdown(peer, SHUT_WR);
    _exit(0);
}

void serve_port(int listener, const unsigned char token[TOKEN_SIZE])
{
    int news[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, news) < 0)
        _exit(1);
    for (;;) {
        struct pollfd polled[] = {{.fd = listener, .events = POLLIN},
                                  {.fd = news[0], .events = POLLIN}};
        poll(polled, 2, count > 0 ? 1000 : -1);
        reap();
        note_known(news[0]);
        int peer = polled[0].revents ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (peer < 0)
            continue;
        if (count == MAX_CONNECTIONS)
            make_room();
        pid_t pid = fork();
        if (pid == 0) {
            close(listener);
            serve_connection(peer, news[1], token);
        }
        if (pid > 0)
            connections[count++] = (struct connection){.pid = pid};
        close(peer);
    }
}
