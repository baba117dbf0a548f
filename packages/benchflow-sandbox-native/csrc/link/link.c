/*
 * The link between a sandbox on another machine and its host.
 *
 *   bf-link serve PORT[,PORT]  start bf-guest, open these ports for the host, and serve the link;
 *                              the token is read from a file, which is removed. Returns when the
 *                              link can be dialled.
 *   bf-link dial               copy bytes between the standard streams and the link
 *   bf-link dial lines         the same with lines of base64, for streams that carry only text
 *   bf-link dial bytes SECONDS, bf-link dial lines SECONDS
 *                              the same, until nothing came from the host for that time
 *   bf-link listen ADDRESS PORT
 *                              serve the link on a port of the sandbox, as WebSockets, with a token
 *                              of its own from the same file; returns when the port is open
 *   bf-link reach ADDRESS PORT end with 0 if a TCP connection opens within 3 s, else with 3
 *   bf-link guest ...          bf-guest, so that one file is all that a sandbox needs
 *
 * It runs as root of the sandbox. If bf-guest or the link ends, every process that bf-guest started
 * is killed.
 */
#include "link.h"
#include "../signals.h"
#include "family.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int ready = -1; /* the parent waits for one byte */
static pid_t guest;

void fail(const char *what)
{
    int error = errno;
    if (ready >= 0)
        dprintf(ready, "bf-link: %s: %s\n", what, strerror(error));
    kill_family(0);
    if (guest > 0)
        unlink(SOCKET); /* `bf-link listen` has no socket of its own */
    _exit(1);
}

uint32_t run_order(unsigned kind)
{
    if (kind == FRAME_FREEZE)
        return (uint32_t)stop_family(guest);
    if (kind == FRAME_THAW)
        continue_family();
    else
        kill_family(guest);
    return 0;
}

static void make_directory(const char *path)
{
    if ((mkdir(path, 0700) < 0 && errno != EEXIST) || chmod(path, 0700) < 0)
        fail(path);
}

static void start_guest(void)
{
    guest = fork();
    if (guest < 0)
        fail("fork");
    if (guest == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        execl(PROGRAM, "bf-link", "guest", "0", STREAMS, (char *)NULL);
        _exit(127);
    }
}

static void serve(int listener, const sigset_t *during_poll) __attribute__((noreturn));

static void serve(int listener, const sigset_t *during_poll)
{
    enum { DOORS = 2, FIRST = DOORS + MAX_DOORS };
    static struct pollfd polled[FIRST + MAX_STREAMS * ENDS];
    for (;;) {
        size_t count = streams_poll(polled + FIRST);
        session_poll(&polled[0]);
        doors_poll(polled + DOORS);
        polled[1] = (struct pollfd){.fd = listener, .events = POLLIN};
        int some = ppoll(polled, count + FIRST, NULL, during_poll);
        for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0;) {
            errno = ECHILD;
            if (pid == guest)
                fail("bf-guest ended");
        }
        if (some <= 0)
            continue; /* a signal: revents are not valid */
        session_handle(&polled[0]);
        streams_handle(polled + FIRST, count);
        doors_handle(polled + DOORS);
        if (polled[1].revents != 0) {
            int connection = listen_accept(listener);
            if (connection >= 0)
                session_attach(connection);
        }
    }
}

static void report_ready(void)
{
    if (write(ready, "\x06", 1) != 1)
        fail("the caller");
    close(ready);
    ready = -1;
}

/* Leave the streams of the caller, whose end must not end this process. */
static void detach(void)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    /* Root inside may lack CAP_SYS_PTRACE, and then cannot read the token. */
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || setsid() < 0 || null < 0 || chdir("/") < 0)
        fail("detach");
    for (int fd = 0; fd < ENDS; fd++)
        dup2(null, fd);
    umask(0077);
    signal(SIGPIPE, SIG_IGN); /* a process may close its stdin */
}

static void run_link(char **words, const unsigned char *token)
{
    sigset_t during_poll;
    detach();
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        fail("prctl");
    setup_signals(&during_poll);
    make_directory(HOME);
    make_directory(STREAMS);
    session_setup(token);
    streams_setup();
    int listener = listen_setup();
    doors_setup(words[0]);
    start_guest();
    report_ready();
    serve(listener, &during_poll);
}

static void run_port(char **words, const unsigned char *token)
{
    detach();
    int listener = listen_port(words[0], words[1]);
    if (listener < 0)
        fail("port");
    report_ready();
    serve_port(listener, token);
}

/* Run a server in the background; return when it can be reached. */
static int start(void (*run)(char **words, const unsigned char *token), char **words)
{
    unsigned char token[TOKEN_SIZE];
    char answer[256];
    int report[2], file = open(TOKEN, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0 || read(file, token, sizeof token) != sizeof token || unlink(TOKEN) < 0) {
        fprintf(stderr, "bf-link: " TOKEN " is not a file of %d bytes\n", TOKEN_SIZE);
        return 2;
    }
    close(file);
    if (pipe2(report, O_CLOEXEC) < 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(report[0]);
        ready = report[1];
        run(words, token);
    }
    close(report[1]);
    ssize_t size = pid < 0 ? -1 : read(report[0], answer, sizeof answer);
    if (size == 1 && answer[0] == '\x06')
        return 0;
    if (size > 0)
        fprintf(stderr, "%.*s", (int)size, answer);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0)
        return start(run_link, argv + 2);
    if (argc == 4 && strcmp(argv[1], "listen") == 0)
        return start(run_port, argv + 2);
    if (argc >= 2 && argc <= 4 && strcmp(argv[1], "dial") == 0)
        dial(argc >= 3 && strcmp(argv[2], "lines") == 0,
             argc == 4 ? (unsigned)strtoul(argv[3], NULL, 10) : 0);
    if (argc == 4 && strcmp(argv[1], "reach") == 0)
        return reach(argv[2], argv[3]);
    if (argc >= 2 && strcmp(argv[1], "guest") == 0)
        return guest_main(argc - 1, argv + 1);
    fprintf(stderr, "usage: bf-link serve PORT[,PORT] | listen ADDRESS PORT |"
                    " dial [lines|bytes [SECONDS]] | reach ADDRESS PORT | guest ...\n");
    return 2;
}
