/* The addresses inside that the host serves: connections wait here until it takes them. */
#include "guest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

static int listeners[MAX_LISTENERS];
static unsigned listener_count;
static int doors[MAX_DOORS]; /* 0 is a free one: no socket has that number */

void doors_open(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        bind(listener, (const struct sockaddr *)&address, sizeof address) < 0 ||
        listen(listener, SOMAXCONN) < 0)
        die("a port of the host's");
    listeners[listener_count++] = listener;
}

static int vacant(void)
{
    for (int door = 0; door < MAX_DOORS; door++)
        if (doors[door] == 0)
            return door;
    return -1;
}

int doors_descriptor(unsigned which)
{
    return which >= listener_count || vacant() < 0 ? -1 : listeners[which];
}

void doors_accept(unsigned which)
{
    int door = vacant();
    int connection = door < 0 ? -1 : accept4(listeners[which], NULL, NULL, SOCK_CLOEXEC);
    if (connection < 0)
        return;
    doors[door] = connection;
    answer_knock((uint32_t)door, which);
}

static void lead(int connection, int in, int out) __attribute__((noreturn));

static void lead(int connection, int in, int out)
{
    sigset_t none;
    sigemptyset(&none);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    pump(connection, in, out);
}

void doors_lead(uint64_t id, uint32_t door, uint32_t stream)
{
    if (door >= MAX_DOORS || doors[door] == 0) {
        answer_failure(id, ENOENT, STAGE_REQUEST);
        return;
    }
    int in = stream_open(stream, 0, O_RDONLY);
    int out = stream_open(stream, 1, O_WRONLY);
    pid_t pid = in < 0 || out < 0 ? -1 : fork();
    if (pid == 0)
        lead(doors[door], in, out);
    int error = errno;
    if (in >= 0)
        close(in);
    if (out >= 0)
        close(out);
    close(doors[door]);
    doors[door] = 0;
    if (pid < 0)
        answer_failure(id, error, STAGE_FORK);
    else
        answer_value(id, (uint32_t)pid);
}

void doors_hang_up(void)
{
    for (int door = 0; door < MAX_DOORS; door++) {
        if (doors[door] > 0)
            close(doors[door]);
        doors[door] = 0;
    }
}
