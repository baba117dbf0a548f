/* Frames from the host, and answers to it. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int from_host = -1;
static int to_host = -1;
static char *held;
static size_t held_size;

void die(const char *what)
{
    fprintf(stderr, "bf-guest: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The host holds the other end of a stream that it names, so this never waits. */
int stream_open(uint32_t stream, unsigned end, int flags)
{
    char path[64];
    snprintf(path, sizeof path, STREAMS "/%u.%u", stream, end);
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fcntl(fd, F_SETFL, 0) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void control_open(void)
{
    held = malloc(sizeof(struct frame) + MAX_REQUEST);
    from_host = stream_open(0, 0, O_RDONLY);
    to_host = stream_open(0, 1, O_WRONLY);
    if (held == NULL || from_host < 0 || to_host < 0)
        die(STREAMS);
}

int control_descriptor(void)
{
    return from_host;
}

/* Dispatch what is whole and return the bytes that this took. */
static size_t dispatch_held(void)
{
    size_t done = 0;
    for (;;) {
        struct frame frame;
        if (held_size - done < sizeof frame)
            return done;
        memcpy(&frame, held + done, sizeof frame);
        if (frame.length > MAX_REQUEST) {
            errno = E2BIG;
            die("frame");
        }
        if (held_size - done - sizeof frame < frame.length)
            return done;
        dispatch_frame(&frame, held + done + sizeof frame);
        done += sizeof frame + frame.length;
    }
}

void control_read(void)
{
    size_t room = sizeof(struct frame) + MAX_REQUEST - held_size;
    ssize_t got = read(from_host, held + held_size, room);
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0)
        die("the host");
    held_size += (size_t)got;
    size_t done = dispatch_held();
    held_size -= done;
    memmove(held, held + done, held_size);
}

static void answer(const struct answer *answer)
{
    /* Far below PIPE_BUF, so it arrives whole. */
    ssize_t written;
    do
        written = write(to_host, answer, sizeof *answer);
    while (written < 0 && errno == EINTR);
    if (written != (ssize_t)sizeof *answer)
        die("the host");
}

void answer_value(uint64_t id, uint32_t value)
{
    struct answer told = {.id = id, .value = value};
    answer(&told);
}

void answer_knock(uint32_t door, uint32_t which)
{
    struct answer told = {.value = door, .which = which};
    answer(&told);
}

void answer_failure(uint64_t id, int error, enum stage stage)
{
    struct answer told = {.id = id, .error = (uint32_t)error, .stage = stage};
    answer(&told);
}
