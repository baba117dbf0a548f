/*
 * bf-init: PID 1 of a box. Spawns, waits for and kills processes on request of the
 * host, and reaps orphans. While idle it holds one fd, its listening socket, so that
 * a checkpoint of the box finds nothing that points outside.
 *
 *   bf-init [SOCKET_PATH]
 *
 * It closes every inherited fd once it listens: the end of file on a pipe given as
 * its standard output means "ready".
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
    unlink(path); /* a box made from an image has the socket of the box before it */
    mode_t before = umask(0177);
    if (bind(fd, (const struct sockaddr *)&address, sizeof address) < 0 || listen(fd, SOMAXCONN) < 0)
        die(path);
    umask(before);
    return fd;
}

/* Move the listener above the standard streams and close everything else. */
static int keep_only(int fd)
{
    int kept = fcntl(fd, F_DUPFD_CLOEXEC, STDIO_FDS);
    if (kept < 0)
        die("dup");
    if (syscall(SYS_close_range, kept + 1, UINT_MAX, 0) < 0)
        die("close_range");
    for (int other = 0; other < kept; other++)
        close(other);
    return kept;
}

static void serve(int listener, const sigset_t *during_poll) __attribute__((noreturn));

static void serve(int listener, const sigset_t *during_poll)
{
    static struct pollfd polled[2 * MAX_CONNECTIONS + 1];
    const struct timespec retry = {.tv_nsec = 50 * 1000 * 1000};
    bool starved = false; /* a failed accept leaves the listener ready: do not spin on it */
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
            continue; /* a signal: revents mean nothing */
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
    if (getpid() != 1) { /* KILLALL would be kill(-1) on the host */
        fprintf(stderr, "bf-init: refused: not PID 1 of a pid namespace\n");
        return 2;
    }
    setup_signals(&during_poll);
    connections_setup();
    int listener = keep_only(listen_at(argc == 2 ? argv[1] : "/.bf/init.sock"));
    if (chdir("/") < 0)
        exit(1);
    serve(listener, &during_poll);
}
