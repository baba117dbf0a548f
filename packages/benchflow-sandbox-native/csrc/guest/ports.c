/* The ports inside that the host serves. Connections wait here until the host attaches a stream. */
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static int listeners[MAX_LISTENERS];
static unsigned listener_count;
static int waiting[MAX_CONNECTIONS_WAITING]; /* 0 marks a free slot: no socket has that number */

int port_listener(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(listener, (const struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, SOMAXCONN) < 0)
        return -1;
    return listener;
}

void port_open(uint16_t port)
{
    int listener = port_listener(port);
    if (listener < 0)
        die("cannot listen on a port for the host");
    listeners[listener_count++] = listener;
}

static int vacant(void)
{
    for (int slot = 0; slot < MAX_CONNECTIONS_WAITING; slot++)
        if (waiting[slot] == 0)
            return slot;
    return -1;
}

int port_descriptor(unsigned index)
{
    return index >= listener_count || vacant() < 0 ? -1 : listeners[index];
}

static void run_pump(int connection, int in, int out) __attribute__((noreturn));

static void run_pump(int connection, int in, int out)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    /* A copy here would keep another connection open after the guest has closed it. */
    for (int slot = 0; slot < MAX_CONNECTIONS_WAITING; slot++)
        if (waiting[slot] > 0 && waiting[slot] != connection)
            close(waiting[slot]);
    pump(connection, in, out);
}

/* Start to copy between a connection and a stream. Returns -1 and errno if that fails. */
static pid_t start_pump(int connection, uint32_t stream)
{
    int in = stream_open(stream, 0, O_RDONLY);
    int out = stream_open(stream, 1, O_WRONLY);
    pid_t pid = in < 0 || out < 0 ? -1 : fork();
    if (pid == 0)
        run_pump(connection, in, out);
    int error = errno;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    errno = error;
    return pid;
}

void port_accept(unsigned index)
{
    const int on = 1;
    int slot = vacant();
    int connection = slot < 0 ? -1 : accept4(listeners[index], NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0)
        return;
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    waiting[slot] = connection;
    report_connection((uint32_t)slot, index);
}

void connection_attach(uint64_t id, uint32_t connection, uint32_t stream)
{
    if (connection >= MAX_CONNECTIONS_WAITING || waiting[connection] == 0) {
        answer_failure(id, ENOENT, STAGE_REQUEST);
        return;
    }
    pid_t pid = start_pump(waiting[connection], stream);
    int error = errno;
    close(waiting[connection]);
    waiting[connection] = 0;
    if (pid < 0)
        answer_failure(id, error, STAGE_FORK);
    else
        answer_value(id, (uint32_t)pid);
}

void connections_hang_up(void)
{
    for (int slot = 0; slot < MAX_CONNECTIONS_WAITING; slot++) {
        if (waiting[slot] > 0)
            close(waiting[slot]);
        waiting[slot] = 0;
    }
}
