/* Find and signal the descendants of this process, by the parents in /proc. */
#include "family.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct member {
    pid_t pid;
    pid_t parent;
    char state;
    bool below; /* a descendant */
};

enum { MAX_STOPPED = 1 << 14, MAX_SCANS = 4000 };

static pid_t stopped[MAX_STOPPED]; /* by us */
static size_t stopped_count;
static struct member *members;
static size_t count, room;

/* The name of a program may contain spaces and parentheses, so the fields follow the last one. */
static bool read_member(const char *pid, struct member *member)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (size <= 0)
        return false; /* it ended meanwhile */
    text[size] = '\0';
    const char *end = strrchr(text, ')');
    int parent;
    if (end == NULL || sscanf(end + 1, " %c %d", &member->state, &parent) != 2)
        return false;
    *member = (struct member){.pid = (pid_t)atoi(pid), .parent = parent, .state = member->state};
    return true;
}

static void scan(void)
{
    count = 0;
    DIR *directory = opendir("/proc");
    for (struct dirent *entry; directory != NULL && (entry = readdir(directory)) != NULL;) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        if (count == room) {
            size_t larger = room == 0 ? 256 : 2 * room;
            struct member *moved = realloc(members, larger * sizeof *members);
            if (moved == NULL)
                break;
            members = moved, room = larger;
        }
        count += read_member(entry->d_name, &members[count]);
    }
    if (directory != NULL)
        closedir(directory);
}

/* Mark the descendants, one generation in each pass. */
static void mark(void)
{
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < count; i++) {
            if (members[i].below)
                continue;
            bool below = members[i].parent == getpid();
            for (size_t j = 0; j < count && !below; j++)
                below = members[j].below && members[j].pid == members[i].parent;
            members[i].below = below;
            changed = changed || below;
        }
    }
}

static bool is_dead(const struct member *member)
{
    return member->state == 'Z' || member->state == 'X';
}

static bool is_stopped(const struct member *member)
{
    return member->state == 'T' || member->state == 't' || is_dead(member);
}

/* Signal those that are not `done`; return how many they were. */
static size_t signal_members(pid_t except, int number, bool (*done)(const struct member *))
{
    size_t signalled = 0;
    scan();
    mark();
    for (size_t i = 0; i < count; i++) {
        if (!members[i].below || members[i].pid == except || done(&members[i]))
            continue;
        kill(members[i].pid, number);
        signalled++;
    }
    return signalled;
}

void kill_family(pid_t except)
{
    while (signal_members(except, SIGKILL, is_dead) > 0) {
        while (except == 0 && waitpid(-1, NULL, WNOHANG) > 0)
            continue;
        usleep(1000);
    }
    stopped_count = 0;
}

static bool is_known(pid_t pid)
{
    for (size_t i = 0; i < stopped_count; i++)
        if (stopped[i] == pid)
            return true;
    return false;
}

/* Remember those that run now: a process that was stopped before must stay so. */
static int remember(pid_t except)
{
    for (size_t i = 0; i < count; i++) {
        const struct member *member = &members[i];
        if (!member->below || member->pid == except || is_stopped(member) || is_known(member->pid))
            continue;
        if (stopped_count == MAX_STOPPED)
            return EAGAIN;
        stopped[stopped_count++] = member->pid;
    }
    return 0;
}

int stop_family(pid_t except)
{
    /* A process may fork before its signal arrives, so only two quiet scans are the end. */
    for (int quiet = 0, scans = 0; quiet < 2; scans++) {
        if (scans == MAX_SCANS) {
            continue_family();
            return EAGAIN;
        }
        size_t running = signal_members(except, SIGSTOP, is_stopped);
        int error = remember(except);
        if (error != 0) {
            continue_family();
            return error;
        }
        quiet = running == 0 ? quiet + 1 : 0;
        if (running > 0)
            usleep(500);
    }
    return 0;
}

void continue_family(void)
{
    while (stopped_count > 0)
        kill(stopped[--stopped_count], SIGCONT);
}
