/*
 * The init of a sandbox that the host reaches by named pipes.
 *
 *   bf-guest PORT[,PORT] [STREAMS]
 *                          run as init; listen on each PORT above 0 for the host
 *   bf-guest connect PORT  connect to PORT, and copy bytes from and to the standard streams
 *   bf-guest plain PATH    exit with 3 if there is a pipe or a socket at or below PATH
 *   bf-guest put UID GID   write the files and directories that stdin contains, for that owner
 *   bf-guest pack PATH MAX_BYTES LEAVE_OUT
 *                          write a tar of a file or a directory to stdout; with LEAVE_OUT, leave
 *                          out entries below it that are neither
 *   bf-guest show PATH     write a regular file to stdout
 *   bf-guest shut          allow only root to open the pipes
 *
 * Stream 0 is the control stream: frames in, answers out. Every other stream has up to three
 * pipes, which become the standard streams of a process. Init stores a status until the host
 * sends GUEST_FORGET, so that each sandbox restored from a checkpoint can read it again.
 */
#include "guest.h"
#include "../signals.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct spawning {
    uint64_t id;
    pid_t pid;
    int report;
};

struct waiting {
    uint64_t id;
    pid_t pid; /* 0 marks a free slot */
};

static struct spawning spawning[MAX_SPAWNS];
static size_t spawning_count;
static struct waiting waiting[MAX_WAITS];
static void close_all(int stdio[STDIO_FDS])
{
    for (int i = 0; i < STDIO_FDS; i++)
        if (stdio[i] >= 0)
            close(stdio[i]);
}

/* Open the ends of a stream that `mask` selects, and /dev/null for the others. */
static bool open_all(uint32_t stream, uint32_t mask, int stdio[STDIO_FDS])
{
    bool all_open = true;
    for (unsigned i = 0; i < STDIO_FDS; i++) {
        int flags = i == 0 ? O_RDONLY : O_WRONLY;
        stdio[i] = mask & (1u << i) ? stream_open(stream, i, flags)
                                    : open("/dev/null", flags | O_CLOEXEC);
        all_open = all_open && stdio[i] >= 0;
    }
    return all_open;
}

static void handle_spawn(uint64_t id, char *body, size_t length)
{
    static struct spawn_request spawn;
    uint32_t head[2]; /* the stream, and the mask of its ends */
    int stdio[STDIO_FDS];
    if (length < sizeof head || !decode_spawn(body + sizeof head, length - sizeof head, &spawn)) {
        answer_failure(id, EINVAL, STAGE_REQUEST);
        return;
    }
    memcpy(head, body, sizeof head);
    struct spawning *slot = &spawning[spawning_count];
    struct failure failure = {.error = EAGAIN, .stage = STAGE_TABLE};
    pid_t pid = -1;
    if (!open_all(head[0], head[1], stdio))
        failure = (struct failure){.error = (uint32_t)errno, .stage = STAGE_STDIO};
    else if (spawning_count < MAX_SPAWNS && process_room())
        pid = start_child(&spawn, stdio, &slot->report, &failure);
    close_all(stdio);
    release_spawn(&spawn);
    if (pid < 0) {
        answer_failure(id, (int)failure.error, (enum stage)failure.stage);
        return;
    }
    process_add(pid);
    slot->id = id;
    slot->pid = pid;
    spawning_count++;
}

/* Read the report pipe: it is empty after a successful exec, or has the failure. */
static bool finish_spawn(const struct spawning *slot)
{
    struct failure failure = {0};
    ssize_t size = read(slot->report, &failure, sizeof failure);
    if (size < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    close(slot->report);
    if (size == (ssize_t)sizeof failure) {
        process_forget(slot->pid);
        answer_failure(slot->id, (int)failure.error, (enum stage)failure.stage);
    } else {
        answer_value(slot->id, (uint32_t)slot->pid);
    }
    return true;
}

/* Answer and return true; return false while the process runs. */
static bool answer_wait(uint64_t id, pid_t pid)
{
    int status = 0;
    enum process_state state = process_find(pid, &status);
    if (state == PROCESS_UNKNOWN)
        answer_failure(id, ESRCH, STAGE_WAIT);
    else if (state == PROCESS_EXITED)
        answer_value(id, (uint32_t)status);
    return state != PROCESS_RUNNING;
}

static void handle_wait(uint64_t id, const char *body, size_t length)
{
    uint32_t pid;
    if (!decode_wait(body, length, &pid) || pid > INT_MAX) {
        answer_failure(id, EINVAL, STAGE_REQUEST);
        return;
    }
    if (answer_wait(id, (pid_t)pid))
        return;
    for (size_t i = 0; i < MAX_WAITS; i++) {
        if (waiting[i].pid == 0) {
            waiting[i] = (struct waiting){.id = id, .pid = (pid_t)pid};
            return;
        }
    }
    answer_failure(id, EAGAIN, STAGE_TABLE);
}

static void handle_kill(uint64_t id, const char *body, size_t length)
{
    struct kill_request request;
    int status;
    if (!decode_kill(body, length, &request) || request.pid < 2 || request.pid > INT_MAX ||
        request.signal >= NSIG) {
        answer_failure(id, EINVAL, STAGE_REQUEST);
        return;
    }
    pid_t pid = (pid_t)request.pid;
    if (!request.group && process_find(pid, &status) != PROCESS_RUNNING)
        answer_failure(id, ESRCH, STAGE_KILL);
    else if (kill(request.group ? -pid : pid, (int)request.signal) < 0)
        answer_failure(id, errno, STAGE_KILL);
    else
        answer_value(id, 0);
}

static void handle_forget(const char *body, size_t length)
{
    uint32_t pid;
    int status;
    if (decode_wait(body, length, &pid) && pid <= INT_MAX &&
        process_find((pid_t)pid, &status) == PROCESS_EXITED)
        process_forget((pid_t)pid);
}

/* End a process that has not executed its program yet: its caller was cancelled. */
static void handle_abandon(uint64_t id, const char *body, size_t length)
{
    uint64_t wanted;
    if (length != sizeof wanted) {
        answer_failure(id, EINVAL, STAGE_REQUEST);
        return;
    }
    memcpy(&wanted, body, sizeof wanted);
    for (size_t i = 0; i < spawning_count; i++) {
        if (spawning[i].id != wanted)
            continue;
        kill(spawning[i].pid, SIGKILL);
        kill(-spawning[i].pid, SIGKILL);
        process_forget(spawning[i].pid);
        close(spawning[i].report);
        spawning[i] = spawning[--spawning_count];
        break;
    }
    answer_value(id, 0);
}

static void handle_attach(uint64_t id, const char *body, size_t length)
{
    uint32_t pair[2]; /* the waiting connection and the stream */
    if (length != sizeof pair) {
        answer_failure(id, EINVAL, STAGE_REQUEST);
        return;
    }
    memcpy(pair, body, sizeof pair);
    connection_attach(id, pair[0], pair[1]);
}

/* Answer with a number that changes with the files of users: the host then reads them again. */
static void handle_accounts(uint64_t id)
{
    static const char *const files[] = {"/etc/passwd", "/etc/group"};
    uint64_t hash = 14695981039346656037u; /* FNV-1a over the inode, size and times */
    for (size_t i = 0; i < 2; i++) {
        struct stat info;
        memset(&info, 0, sizeof info);
        lstat(files[i], &info);
        const uint64_t seen[] = {info.st_ino, (uint64_t)info.st_size,
                                 (uint64_t)info.st_mtim.tv_sec, (uint64_t)info.st_mtim.tv_nsec,
                                 (uint64_t)info.st_ctim.tv_sec, (uint64_t)info.st_ctim.tv_nsec};
        for (size_t j = 0; j < sizeof seen; j++)
            hash = (hash ^ ((const unsigned char *)seen)[j]) * 1099511628211u;
    }
    answer_value(id, (uint32_t)(hash ^ hash >> 32));
}

void dispatch_frame(const struct frame *frame, char *body)
{
    switch (frame->operation) {
    case OP_PING:
        answer_value(frame->id, 0);
        return;
    case OP_SPAWN:
        handle_spawn(frame->id, body, frame->length);
        return;
    case OP_WAIT:
        handle_wait(frame->id, body, frame->length);
        return;
    case OP_KILL:
        handle_kill(frame->id, body, frame->length);
        return;
    case GUEST_FORGET:
        handle_forget(body, frame->length);
        return;
    case GUEST_ATTACH:
        handle_attach(frame->id, body, frame->length);
        return;
    case GUEST_HANG_UP:
        connections_hang_up();
        return;
    case GUEST_ABANDON:
        handle_abandon(frame->id, body, frame->length);
        return;
    case GUEST_ACCOUNTS:
        handle_accounts(frame->id);
        return;
    default:
        answer_failure(frame->id, ENOSYS, STAGE_REQUEST);
    }
}

static void finish_spawns(const struct pollfd *polled)
{
    size_t pending = 0;
    for (size_t i = 0; i < spawning_count; i++)
        if (polled[i].revents == 0 || !finish_spawn(&spawning[i]))
            spawning[pending++] = spawning[i];
    spawning_count = pending;
}

static void serve(const sigset_t *during_poll) __attribute__((noreturn));

static void serve(const sigset_t *during_poll)
{
    enum { FIRST_SPAWN = 1 + MAX_LISTENERS };
    static struct pollfd polled[MAX_SPAWNS + FIRST_SPAWN];
    for (;;) {
        reap_children();
        for (size_t i = 0; i < MAX_WAITS; i++)
            if (waiting[i].pid != 0 && answer_wait(waiting[i].id, waiting[i].pid))
                waiting[i].pid = 0;
        polled[0] = (struct pollfd){.fd = control_descriptor(), .events = POLLIN};
        for (unsigned i = 0; i < MAX_LISTENERS; i++)
            polled[1 + i] = (struct pollfd){.fd = port_descriptor(i), .events = POLLIN};
        for (size_t i = 0; i < spawning_count; i++)
            polled[FIRST_SPAWN + i] = (struct pollfd){.fd = spawning[i].report, .events = POLLIN};
        int ready = ppoll(polled, spawning_count + FIRST_SPAWN, NULL, during_poll);
        if (terminated)
            exit(128 + SIGTERM);
        if (ready <= 0)
            continue; /* a signal: revents are not valid */
        finish_spawns(polled + FIRST_SPAWN);
        for (unsigned i = 0; i < MAX_LISTENERS; i++)
            if (polled[1 + i].revents != 0)
                port_accept(i);
        if (polled[0].revents != 0)
            control_read();
    }
}

static uint16_t port_of(const char *text, char **end)
{
    unsigned long port = strtoul(text, end, 10);
    if (*end == text || (**end != '\0' && **end != ',') || port > UINT16_MAX) {
        fprintf(stderr, "bf-guest: %s is not a port\n", text);
        exit(2);
    }
    return (uint16_t)port;
}

static void open_ports(const char *text)
{
    for (int count = 0; count < MAX_LISTENERS; count++) {
        char *end;
        uint16_t port = port_of(text, &end);
        if (port > 0)
            port_open(port);
        if (*end == '\0')
            return;
        text = end + 1;
    }
    fprintf(stderr, "bf-guest: more than %d ports\n", MAX_LISTENERS);
    exit(2);
}

static int refuse_special(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)path, (void)kind, (void)where;
    return S_ISFIFO(info->st_mode) || S_ISSOCK(info->st_mode);
}

/* Look for pipes and sockets, which the host cannot see in the files of a gVisor sandbox. */
static int all_plain(const char *path)
{
    return nftw(path, refuse_special, 16, FTW_PHYS) > 0 ? 3 : 0;
}

int guest_main(int argc, char **argv)
{
    sigset_t during_poll;
    char *end;
    if (argc == 3 && strcmp(argv[1], "connect") == 0)
        pump_to(port_of(argv[2], &end));
    if (argc == 3 && strcmp(argv[1], "plain") == 0)
        return all_plain(argv[2]);
    if (argc == 2 && strcmp(argv[1], "shut") == 0)
        return chmod("/.bf", 0700) < 0;
    if (argc == 3 && strcmp(argv[1], "show") == 0)
        return show_file(argv[2]);
    if (argc == 5 && strcmp(argv[1], "pack") == 0)
        return pack_all(argv[2], strtoull(argv[3], NULL, 10), strcmp(argv[4], "1") == 0);
    if (argc == 4 && strcmp(argv[1], "put") == 0)
        return put_all((uid_t)strtoul(argv[2], NULL, 10), (gid_t)strtoul(argv[3], NULL, 10));
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: bf-guest PORT[,PORT] [STREAMS]; or with connect, pack, plain, put, show or shut\n");
        return 2;
    }
    /* Orphans return to this process, as they do to PID 1. */
    if (getpid() != 1 && prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        die("subreaper");
    /* Root inside lacks CAP_SYS_PTRACE, so then it cannot reach the memory or the descriptors. */
    if (prctl(PR_SET_DUMPABLE, 0) < 0)
        die("dumpable");
    setup_signals(&during_poll);
    control_open(argc == 3 ? argv[2] : STREAMS);
    open_ports(argv[1]);
    serve(&during_poll);
}
