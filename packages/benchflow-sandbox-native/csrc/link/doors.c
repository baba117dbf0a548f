/* The ports inside that the host serves. The index of a door is its place in the arguments. */
#include "link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

static int listeners[MAX_DOORS];
static size_t count;

void doors_setup(const char *ports)
{
    char *end = NULL;
    for (; end == NULL || *end == ','; ports = end + 1) {
        unsigned long port = strtoul(ports, &end, 10);
        if (end == ports || port > UINT16_MAX || count == MAX_DOORS) {
            errno = EINVAL;
            fail("ports");
        }
        if (port == 0)
            continue; /* the host serves none */
        listeners[count] = port_listener((uint16_t)port);
        if (listeners[count++] < 0)
            fail("port");
    }
}

void doors_poll(struct pollfd polled[MAX_DOORS])
{
    bool can_accept = stream_can_accept();
    for (size_t i = 0; i < MAX_DOORS; i++) {
        int fd = can_accept && i < count ? listeners[i] : -1;
        polled[i] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
}

void doors_handle(const struct pollfd polled[MAX_DOORS])
{
    const int on = 1;
    for (unsigned door = 0; door < count; door++) {
        if (polled[door].revents == 0 || !stream_can_accept())
            continue;
        int connection = accept4(listeners[door], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection < 0)
            continue;
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        stream_accept(connection, door);
    }
}
