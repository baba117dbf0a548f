/*
 * The steps from fork to exec. It is a fork and not a vfork: the agent could trace or stop a
 * child that already runs as the agent. With vfork that child would share init's memory, and
 * stop PID 1 too. The copy takes some tens of microseconds.
 */
#include "bf_init.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_PATH "/usr/local/bin:/usr/bin:/bin"

static int report_fd; /* of the forked child only */

static void fail(int stage) __attribute__((noreturn));

static void fail(int stage)
{
    struct failure failure = {.error = (uint32_t)errno, .stage = (uint32_t)stage};
    /* Shorter than PIPE_BUF, so the write is atomic. Without a reader, SIGPIPE ends the child. */
    ssize_t written = write(report_fd, &failure, sizeof failure);
    _exit(written == (ssize_t)sizeof failure ? 127 : 126);
}

/* Put the three streams at 0..2 and the report pipe at 3, and close all the rest. */
static void arrange_fds(const int stdio[STDIO_FDS], int report)
{
    int high[STDIO_FDS];
    report_fd = report;
    int report_high = fcntl(report, F_DUPFD_CLOEXEC, STDIO_FDS + 1);
    if (report_high < 0)
        fail(STAGE_STDIO);
    report_fd = report_high;
    for (int i = 0; i < STDIO_FDS; i++) {
        high[i] = fcntl(stdio[i], F_DUPFD_CLOEXEC, STDIO_FDS + 1);
        if (high[i] < 0)
            fail(STAGE_STDIO);
    }
    for (int i = 0; i < STDIO_FDS; i++)
        if (dup2(high[i], i) < 0)
            fail(STAGE_STDIO);
    if (dup3(report_high, STDIO_FDS, O_CLOEXEC) < 0)
        fail(STAGE_STDIO);
    report_fd = STDIO_FDS;
    /* Every fd of init is close-on-exec; this covers a child that is stopped before its exec. */
    (void)syscall(SYS_close_range, STDIO_FDS + 1, UINT_MAX, 0);
}

static void reset_signals(void)
{
    sigset_t none;
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void set_rlimits(const struct spawn_request *spawn)
{
    for (uint32_t i = 0; i < spawn->rlimit_count; i++) {
        const struct rlimit_request *wanted = &spawn->rlimits[i];
        struct rlimit limit = {.rlim_cur = wanted->soft, .rlim_max = wanted->hard};
        if (wanted->resource > INT_MAX) {
            errno = EINVAL;
            fail(STAGE_RLIMIT);
        }
        if (setrlimit((int)wanted->resource, &limit) < 0)
            fail(STAGE_RLIMIT);
    }
}

/* Only root can clear the bounding set, so this comes before the change of the user. */
static void clear_bounding_set(void)
{
    for (unsigned long capability = 0; capability < 64; capability++) {
        int present = prctl(PR_CAPBSET_READ, capability, 0, 0, 0);
        if (present < 0)
            break; /* past the last capability of this kernel */
        if (present > 0 && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0)
            fail(STAGE_CAPABILITIES);
    }
    if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL)
        fail(STAGE_CAPABILITIES);
}

/* setuid does not clear the inheritable set, and with some securebits it clears no set. */
static void clear_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (syscall(SYS_capset, &header, none) < 0)
        fail(STAGE_CAPABILITIES);
}

static void set_groups(const struct spawn_request *spawn)
{
    if (setgroups(spawn->group_count, spawn->groups) == 0)
        return;
    /* A user namespace may deny setgroups to all; then root without groups has to be enough. */
    if (errno == EPERM && spawn->uid == 0 && spawn->group_count == 0)
        return;
    fail(STAGE_GROUPS);
}

static void become(const struct spawn_request *spawn)
{
    if (spawn->uid != 0)
        clear_bounding_set();
    set_groups(spawn);
    if (setresgid(spawn->gid, spawn->gid, spawn->gid) < 0)
        fail(STAGE_GID);
    if (setresuid(spawn->uid, spawn->uid, spawn->uid) < 0)
        fail(STAGE_UID);
    if (spawn->uid != 0)
        clear_capabilities();
    if ((spawn->uid != 0 || spawn->no_new_privileges) && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        fail(STAGE_PRIVILEGES);
}

static const char *path_variable(char *const *envp)
{
    for (; *envp != NULL; envp++)
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    return DEFAULT_PATH;
}

/* Try each PATH entry. An empty one is skipped: the cwd may belong to the agent. */
static void exec_on_path(const struct spawn_request *spawn)
{
    const char *name = spawn->argv[0];
    int outcome = ENOENT;
    for (const char *entry = path_variable(spawn->envp); *entry != '\0';) {
        size_t length = strcspn(entry, ":");
        char program[PATH_MAX];
        if (length > 0 && length + 1 + strlen(name) < sizeof program) {
            snprintf(program, sizeof program, "%.*s/%s", (int)length, entry, name);
            execve(program, spawn->argv, spawn->envp);
            if (errno != ENOENT && errno != ENOTDIR && errno != EACCES)
                return;
            if (errno == EACCES)
                outcome = EACCES;
        }
        entry += length;
        entry += *entry == ':';
    }
    errno = outcome;
}

static void run_child(const struct spawn_request *spawn, const int stdio[STDIO_FDS], int report)
    __attribute__((noreturn));

static void run_child(const struct spawn_request *spawn, const int stdio[STDIO_FDS], int report)
{
    arrange_fds(stdio, report);
    reset_signals();
    if (setsid() < 0)
        fail(STAGE_SESSION);
    set_rlimits(spawn);
    umask(spawn->umask);
    become(spawn);
    if (chdir(spawn->cwd) < 0) /* with the permissions of the target user */
        fail(STAGE_CWD);
    if (strchr(spawn->argv[0], '/') != NULL)
        execve(spawn->argv[0], spawn->argv, spawn->envp);
    else
        exec_on_path(spawn);
    fail(STAGE_EXEC);
}

pid_t start_child(const struct spawn_request *spawn, const int stdio[STDIO_FDS], int *report,
                  struct failure *failure)
{
    int ends[2];
    *failure = (struct failure){.stage = STAGE_FORK};
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
        failure->error = (uint32_t)errno;
        return -1;
    }
    pid_t pid = fork();
    if (pid == 0)
        run_child(spawn, stdio, ends[1]);
    if (pid < 0) {
        failure->error = (uint32_t)errno;
        close(ends[0]);
    } else {
        *report = ends[0];
    }
    close(ends[1]);
    return pid;
}
