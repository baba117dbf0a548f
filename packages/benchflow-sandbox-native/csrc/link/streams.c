/* The pipes of bf-guest, and connections to doors. Each end has credit, so that one slow reader does
 * not stop the others. */
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct stream {
    uint32_t number;
    int ours[ENDS];  /* -1: closed */
    int theirs[ENDS]; /* the guest's ends, until the host releases them */
    char *input;     /* bytes of stdin that the pipe did not take yet */
    size_t start, size;
    uint32_t consumed;      /* bytes of stdin that the host has no credit for yet */
    uint32_t credit[ENDS];  /* bytes of an output that the host accepts */
    bool ended[ENDS];       /* an output that ended, and the host does not know it */
    bool ending;            /* stdin ends after `input` */
    bool closing;           /* the stream ends after `input` */
    bool broken;            /* nobody reads stdin, and the host does not know it */
    bool draining;          /* the host waits for FRAME_DRAINED */
    uint32_t undrained[ENDS]; /* bytes of an output to send before it */
    bool accepted;          /* a connection, whose ends 0 and 1 are one socket */
    bool used;
};

/* The host chooses the numbers below. */
static const uint32_t FIRST_ACCEPTED = 1u << 31;

static struct stream streams[MAX_STREAMS];
/* The stream and the end of each descriptor that `streams_poll` listed. */
static struct { uint16_t stream, end; } polled_ends[MAX_STREAMS * ENDS];
static char bytes[MAX_PAYLOAD];
static size_t slots; /* no stream has a later place in `streams` */
static uint32_t accepted_count, accepted_open;

static void name_of(uint32_t number, unsigned end, char path[64])
{
    snprintf(path, 64, STREAMS "/%u.%u", number, end);
}

static struct stream *find(uint32_t number)
{
    for (size_t i = 0; i < slots; i++)
        if (streams[i].used && streams[i].number == number)
            return &streams[i];
    return NULL;
}

static void close_end(struct stream *stream, unsigned end)
{
    if (stream->ours[end] < 0)
        return;
    if (stream->accepted && end == 0)
        shutdown(stream->ours[end], SHUT_WR); /* the other end is a copy of the socket */
    close(stream->ours[end]);
    stream->ours[end] = -1;
}

/* A pipe without a name still works, and /dev/stdin of a process still leads to it. */
static void release(struct stream *stream)
{
    char path[64];
    for (unsigned end = 0; end < ENDS; end++) {
        if (stream->theirs[end] < 0)
            continue;
        close(stream->theirs[end]);
        stream->theirs[end] = -1;
        name_of(stream->number, end, path);
        unlink(path);
    }
}

static void close_stream(struct stream *stream)
{
    release(stream);
    for (unsigned end = 0; end < ENDS; end++)
        close_end(stream, end);
    free(stream->input);
    accepted_open -= stream->accepted;
    memset(stream, 0, sizeof *stream);
    while (slots > 0 && !streams[slots - 1].used)
        slots--;
}

/* The reading end is opened first: a writing end without a reader is refused. */
static bool open_end(struct stream *stream, unsigned end)
{
    const int flags = O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW;
    char path[64];
    name_of(stream->number, end, path);
    unlink(path);
    /* Any user may open it through /proc/self/fd; the directory keeps others from the name. */
    if (mkfifo(path, 0600) < 0 || chmod(path, 0666) < 0)
        return false;
    int reader = open(path, O_RDONLY | flags), writer = open(path, O_WRONLY | flags);
    stream->ours[end] = end == 0 ? writer : reader;
    stream->theirs[end] = end == 0 ? reader : writer;
    return reader >= 0 && writer >= 0;
}

/* Return a stream without ends, or NULL. */
static struct stream *new_stream(uint32_t number)
{
    size_t place = 0;
    while (place < slots && streams[place].used)
        place++;
    char *input = place < MAX_STREAMS ? malloc(WINDOW) : NULL;
    if (input == NULL)
        return NULL;
    struct stream *stream = &streams[place];
    *stream = (struct stream){.number = number, .used = true, .input = input};
    for (unsigned end = 0; end < ENDS; end++) {
        stream->ours[end] = stream->theirs[end] = -1;
        stream->credit[end] = WINDOW;
    }
    slots = place < slots ? slots : place + 1;
    return stream;
}

static void open_stream(uint32_t number)
{
    struct stream *slot = find(number) == NULL ? new_stream(number) : NULL;
    if (slot == NULL)
        fail("stream");
    for (unsigned end = 0; end < ENDS; end++)
        if (!open_end(slot, end))
            fail("pipe");
}

void streams_setup(void)
{
    open_stream(0);
}

/* Nobody reads stdin any more. */
static void lose_reader(struct stream *stream)
{
    stream->broken = true;
    close_end(stream, 0);
    if (stream->closing)
        close_stream(stream);
}

static void write_input(struct stream *stream)
{
    while (stream->size > 0 && stream->ours[0] >= 0) {
        size_t part = WINDOW - stream->start < stream->size ? WINDOW - stream->start : stream->size;
        ssize_t put = write(stream->ours[0], stream->input + stream->start, part);
        if (put < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (put < 0) {
            lose_reader(stream);
            return;
        }
        stream->start = (stream->start + (size_t)put) % WINDOW;
        stream->size -= (size_t)put;
        stream->consumed += (uint32_t)put;
    }
    if (stream->ending)
        close_end(stream, 0);
    if (stream->closing)
        close_stream(stream);
}

static void add_input(struct stream *stream, const char *payload, size_t size)
{
    if (stream->ours[0] < 0)
        return; /* the host learns that nobody reads */
    if (size > WINDOW - stream->size) {
        errno = EPROTO;
        fail("credit");
    }
    ssize_t put = stream->size == 0 ? write(stream->ours[0], payload, size) : 0;
    if (put > 0) /* `write_input` meets an error again */
        payload += put, size -= (size_t)put, stream->consumed += (uint32_t)put;
    while (size > 0) {
        size_t at = (stream->start + stream->size) % WINDOW;
        size_t part = WINDOW - at < size ? WINDOW - at : size;
        memcpy(stream->input + at, payload, part);
        payload += part, size -= part, stream->size += part;
    }
    write_input(stream);
}

static void report(struct stream *stream, unsigned end, uint16_t kind, size_t length,
                   const void *payload)
{
    struct frame frame = {stream->number, kind, (uint16_t)end, (uint32_t)length};
    session_send(&frame, payload);
}

bool stream_can_accept(void)
{
    return accepted_open < MAX_ACCEPTED && session_room() >= sizeof(struct frame);
}

void stream_accept(int connection, unsigned door)
{
    int copy = fcntl(connection, F_DUPFD_CLOEXEC, 0);
    struct stream *stream = copy < 0 ? NULL : new_stream(FIRST_ACCEPTED + accepted_count);
    if (stream == NULL) {
        close(connection);
        if (copy >= 0)
            close(copy);
        return;
    }
    stream->accepted = true;
    stream->ours[0] = connection;
    stream->ours[1] = copy;
    accepted_count++, accepted_open++;
    report(stream, door, FRAME_ACCEPTED, 0, NULL);
}

/* What comes later is not of the process that ended: it may have left a daemon. */
static void begin_drain(struct stream *stream)
{
    stream->draining = true;
    for (unsigned end = 1; end < ENDS; end++) {
        int size = 0;
        if (stream->ours[end] >= 0 && ioctl(stream->ours[end], FIONREAD, &size) == 0)
            stream->undrained[end] = (uint32_t)size;
    }
}

/* The host sends one order at a time, so the session has room for its answer. */
static void answer_order(uint16_t kind)
{
    uint32_t error = run_order(kind);
    report(&streams[0], 0, FRAME_ANSWER, sizeof error, &error);
}

static void handle_close(struct stream *stream, unsigned end)
{
    if (end < ENDS) {
        close_end(stream, end);
        return;
    }
    if (stream->size == 0 || stream->ours[0] < 0) {
        close_stream(stream);
        return;
    }
    stream->closing = true;
    release(stream);
    for (end = 1; end < ENDS; end++)
        close_end(stream, end);
}

void stream_frame(const struct frame *frame, const char *payload)
{
    uint32_t amount = 0;
    struct stream *stream = find(frame->stream);
    if (frame->kind == FRAME_OPEN) {
        open_stream(frame->stream);
        return;
    }
    if (stream == NULL || frame->end > ENDS)
        return; /* it crossed the end of the stream */
    switch (frame->kind) {
    case FRAME_RELEASE:
        release(stream);
        return;
    case FRAME_CLOSE:
        handle_close(stream, frame->end);
        return;
    case FRAME_DATA:
        add_input(stream, payload, frame->length);
        return;
    case FRAME_END:
        stream->ending = true;
        write_input(stream);
        return;
    case FRAME_DRAIN:
        begin_drain(stream);
        return;
    case FRAME_KILL:
    case FRAME_FREEZE:
    case FRAME_THAW:
        if (frame->stream == 0)
            answer_order(frame->kind);
        return;
    case FRAME_CREDIT:
        if (frame->length == sizeof amount && frame->end < ENDS) {
            memcpy(&amount, payload, sizeof amount);
            stream->credit[frame->end] += amount;
        }
    }
}

/* Send what the host does not know yet, as far as there is room. */
static void report_state(struct stream *stream)
{
    const size_t most = sizeof(struct frame) + sizeof(uint32_t);
    if (stream->consumed >= WINDOW / 4 && session_room() >= most) {
        report(stream, 0, FRAME_CREDIT, sizeof stream->consumed, &stream->consumed);
        stream->consumed = 0;
    }
    if (stream->broken && session_room() >= most) {
        report(stream, 0, FRAME_BROKEN, 0, NULL);
        stream->broken = false;
    }
    for (unsigned end = 1; end < ENDS; end++) {
        if (stream->ended[end] && session_room() >= most) {
            report(stream, end, FRAME_END, 0, NULL);
            stream->ended[end] = false;
        }
    }
}

static void report_drained(struct stream *stream)
{
    for (unsigned end = 1; end < ENDS; end++)
        if (stream->ours[end] >= 0 && stream->undrained[end] > 0)
            return;
    if (stream->draining && session_room() >= sizeof(struct frame)) {
        report(stream, 0, FRAME_DRAINED, 0, NULL);
        stream->draining = false;
    }
}

static bool is_readable_now(const struct stream *stream, unsigned end)
{
    return end > 0 && stream->ours[end] >= 0 && stream->credit[end] > 0 &&
           session_room() >= sizeof(struct frame) + MAX_PAYLOAD;
}

size_t streams_poll(struct pollfd *polled)
{
    size_t count = 0;
    for (size_t i = 0; i < slots; i++) {
        struct stream *stream = &streams[i];
        if (!stream->used)
            continue;
        report_state(stream);
        report_drained(stream);
        for (unsigned end = 0; end < ENDS; end++) {
            short events = is_readable_now(stream, end) ? POLLIN : 0;
            if (end == 0 && stream->size > 0)
                events = POLLOUT;
            /* Without an event, stdin still reports that nobody reads it. */
            if (stream->ours[end] < 0 || (events == 0 && end > 0))
                continue;
            polled[count] = (struct pollfd){.fd = stream->ours[end], .events = events};
            polled_ends[count].stream = (uint16_t)i;
            polled_ends[count++].end = (uint16_t)end;
        }
    }
    return count;
}

static void read_output(struct stream *stream, unsigned end)
{
    if (!is_readable_now(stream, end))
        return; /* another stream took the room */
    size_t most = stream->credit[end] < MAX_PAYLOAD ? stream->credit[end] : MAX_PAYLOAD;
    ssize_t got = read(stream->ours[end], bytes, most);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        close_end(stream, end);
        stream->ended[end] = true;
        return;
    }
    stream->credit[end] -= (uint32_t)got;
    uint32_t left = stream->undrained[end];
    stream->undrained[end] = left > (uint32_t)got ? left - (uint32_t)got : 0;
    report(stream, end, FRAME_DATA, (size_t)got, bytes);
}

void streams_handle(const struct pollfd *polled, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct stream *stream = &streams[polled_ends[i].stream];
        unsigned end = polled_ends[i].end;
        if (polled[i].revents == 0 || !stream->used || stream->ours[end] != polled[i].fd)
            continue;
        if (end > 0) {
            read_output(stream, end);
        } else if (polled[i].revents & (POLLERR | POLLHUP)) {
            lose_reader(stream);
        } else {
            write_input(stream);
        }
    }
}
