/* Frames from the host, and answers to it. */
#include "guest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *streams;
static int from_host = -1;
static int to_host = -1;
static char *buffer;
static size_t buffered;

void die(const char *what)
{
    fprintf(stderr, "bf-guest: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* The host has opened the other end of a stream that it names, so this does not block. */
int stream_open(uint32_t stream, unsigned end, int flags)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%u.%u", streams, stream, end);
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && fcntl(fd, F_SETFL, 0) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

void control_open(const char *directory)
{
    streams = directory;
    buffer = malloc(sizeof(struct frame) + MAX_REQUEST);
    from_host = stream_open(0, 0, O_RDONLY);
    to_host = stream_open(0, 1, O_WRONLY);
    if (buffer == NULL || from_host < 0 || to_host < 0)
        die(directory);
}

int control_descriptor(void)
{
    return from_host;
}

/* Dispatch the complete frames of the buffer; return their size in bytes. */
static size_t dispatch_complete(void)
{
    size_t done = 0;
    for (;;) {
        struct frame frame;
        if (buffered - done < sizeof frame)
            return done;
        memcpy(&frame, buffer + done, sizeof frame);
        if (frame.length > MAX_REQUEST) {
            errno = E2BIG;
            die("frame");
        }
        if (buffered - done - sizeof frame < frame.length)
            return done;
        dispatch_frame(&frame, buffer + done + sizeof frame);
        done += sizeof frame + frame.length;
    }
}

void control_read(void)
{
    size_t room = sizeof(struct frame) + MAX_REQUEST - buffered;
    ssize_t got = read(from_host, buffer + buffered, room);
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0)
        die("the host");
    buffered += (size_t)got;
    size_t done = dispatch_complete();
    buffered -= done;
    memmove(buffer, buffer + done, buffered);
}

static void send_answer(const struct answer *answer)
{
    /* Shorter than PIPE_BUF, so the write is atomic. */
    ssize_t written;
    do
        written = write(to_host, answer, sizeof *answer);
    while (written < 0 && errno == EINTR);
    if (written != (ssize_t)sizeof *answer)
        die("the host");
}

void answer_value(uint64_t id, uint32_t value)
{
    struct answer answer = {.id = id, .value = value};
    send_answer(&answer);
}

void report_connection(uint32_t connection, uint32_t port)
{
    struct answer answer = {.value = connection, .which = port};
    send_answer(&answer);
}

void answer_failure(uint64_t id, int error, enum stage stage)
{
    struct answer answer = {.id = id, .error = (uint32_t)error, .stage = stage};
    send_answer(&answer);
}
