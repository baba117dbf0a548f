/*
 * bf-init: PID 1 of a sandbox. It spawns, waits for and kills processes on request of
 * the host, and reaps orphans. While idle it has one fd open, its listening socket, so
 * that a checkpoint of the sandbox does not meet an fd of the host.
 *
 *   bf-init [SOCKET_PATH]
 *
 * It closes every inherited fd once it listens: end of file on a pipe that is its
 * standard output means "ready".
 */
#include "bf_init.h"
#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what) __attribute__((noreturn));

static void die(const char *what)
{
    fprintf(stderr, "bf-init: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        die("socket");
    unlink(path); /* a sandbox from a snapshot has the socket file of the earlier sandbox */
    mode_t before = umask(0177);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, SOMAXCONN) < 0)
        die(path);
    umask(before);
    return fd;
}

/* Move the listener above the standard streams and close everything else. */
static int close_all_except(int fd)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDIO_FDS);
    if (copy < 0)
        die("dup");
    if (syscall(SYS_close_range, copy + 1, UINT_MAX, 0) < 0)
        die("close_range");
    for (int other = 0; other < copy; other++)
        close(other);
    return copy;
}

static void serve(int listener, const sigset_t *during_poll) __attribute__((noreturn));

static void serve(int listener, const sigset_t *during_poll)
{
    static struct pollfd polled[2 * MAX_CONNECTIONS + 1];
    const struct timespec retry = {.tv_nsec = 50 * 1000 * 1000};
    bool starved = false; /* after a failed accept the listener stays ready: pause, do not spin */
    for (;;) {
        bool childless = reap_children();
        connections_child_exited();
        if (killing_everything() && childless) {
            connections_all_killed();
            if (terminated)
                exit(0);
        }
        nfds_t count = connections_poll(polled);
        nfds_t watched = count;
        if (connections_room() && !starved)
            polled[watched++] = (struct pollfd){.fd = listener, .events = POLLIN};
        int ready = ppoll(polled, watched, starved ? &retry : NULL, during_poll);
        if (terminated && !killing_everything())
            kill_everything();
        starved = false;
        if (ready <= 0)
            continue; /* a signal: revents are not valid */
        connections_handle(polled);
        if (watched > count && polled[count].revents != 0)
            starved = !connection_accept(listener);
    }
}

int main(int argc, char **argv)
{
    sigset_t during_poll;
    if (argc > 2) {
        fprintf(stderr, "usage: bf-init [SOCKET_PATH]\n");
        return 2;
    }
    if (getpid() != 1) { /* kill_all would be kill(-1) on the host */
        fprintf(stderr, "bf-init: refused: not PID 1 of a pid namespace\n");
        return 2;
    }
    setup_signals(&during_poll);
    connections_setup();
    int listener = close_all_except(listen_at(argc == 2 ? argv[1] : "/.bf/init.sock"));
    if (chdir("/") < 0)
        exit(1);
    serve(listener, &during_poll);
}
