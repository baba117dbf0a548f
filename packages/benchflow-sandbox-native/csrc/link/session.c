/* Records of a connection, and the two byte streams of the session. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A confirmation of fewer bytes waits until other bytes are sent, or the host pings. */
enum { HEAD = sizeof(struct record), RESERVE = 1 << 12, CONFIRM_BYTES = 1 << 15 };

/* Bytes that the host has not confirmed: a ring whose first byte has the number `confirmed`. */
static char *ring;
static uint64_t confirmed, written;

static unsigned char expected[TOKEN_SIZE];
static int connection = -1;
static bool welcomed, pinged;
static uint64_t sent;              /* of `written`, on this connection */
static uint64_t received, counted; /* from the host, and confirmed to it */

static char incoming[HEAD + MAX_RECORD];
static size_t incoming_size;
static char outgoing[2 * (HEAD + MAX_RECORD)]; /* records that the socket did not take yet */
static size_t outgoing_start, outgoing_end;
static char partial[sizeof(struct frame) + MAX_PAYLOAD];
static size_t partial_size;

void session_setup(const unsigned char token[TOKEN_SIZE])
{
    memcpy(expected, token, TOKEN_SIZE);
    ring = malloc(MAX_UNCONFIRMED);
    if (ring == NULL)
        fail("memory");
}

size_t session_room(void)
{
    size_t room = MAX_UNCONFIRMED - (size_t)(written - confirmed);
    return room > RESERVE ? room - RESERVE : 0;
}

static void append(const void *bytes, size_t size)
{
    const char *from = bytes;
    while (size > 0) {
        size_t at = (size_t)(written % MAX_UNCONFIRMED);
        size_t part = size < MAX_UNCONFIRMED - at ? size : MAX_UNCONFIRMED - at;
        memcpy(ring + at, from, part);
        from += part, size -= part, written += part;
    }
}

void session_send(const struct frame *frame, const void *payload)
{
    append(frame, sizeof *frame);
    append(payload, frame->length);
}

void session_attach(int next)
{
    if (connection >= 0)
        close(connection);
    connection = next;
    welcomed = pinged = false;
    incoming_size = outgoing_start = outgoing_end = 0;
}

static void put_record(uint32_t kind, uint64_t offset, size_t length)
{
    struct record record = {.length = (uint32_t)length, .kind = kind, .offset = offset};
    memcpy(outgoing + outgoing_end, &record, sizeof record);
    outgoing_end += sizeof record;
}

static size_t outgoing_room(void)
{
    if (outgoing_start == outgoing_end)
        outgoing_start = outgoing_end = 0;
    return sizeof outgoing - outgoing_end;
}

/* Fill the buffer of the connection: a confirmation first, and then bytes of the session. */
static void fill_outgoing(void)
{
    if (!welcomed || outgoing_room() < HEAD)
        return;
    uint64_t news = received - counted;
    if (pinged || news >= CONFIRM_BYTES || (news > 0 && sent < written)) {
        put_record(RECORD_CONFIRM, received, 0);
        counted = received;
        pinged = false;
    }
    while (sent < written && outgoing_room() > HEAD) {
        size_t at = (size_t)(sent % MAX_UNCONFIRMED), size = (size_t)(written - sent);
        size_t most = outgoing_room() - HEAD;
        size = size < most ? size : most;
        size = size < MAX_RECORD ? size : MAX_RECORD;
        size = size < MAX_UNCONFIRMED - at ? size : MAX_UNCONFIRMED - at;
        put_record(RECORD_BYTES, sent, size);
        memcpy(outgoing + outgoing_end, ring + at, size);
        outgoing_end += size;
        sent += size;
    }
}

/* Give the bytes of the session to the streams, one complete frame after the other. */
static void take(const char *bytes, size_t size)
{
    while (size > 0) {
        struct frame frame = {0};
        size_t wanted = sizeof frame;
        if (partial_size == 0 && size >= sizeof frame) {
            memcpy(&frame, bytes, sizeof frame);
            if (frame.length <= MAX_PAYLOAD && frame.length <= size - sizeof frame) {
                stream_frame(&frame, bytes + sizeof frame);
                bytes += sizeof frame + frame.length, size -= sizeof frame + frame.length;
                continue;
            }
        }
        if (partial_size >= sizeof frame) {
            memcpy(&frame, partial, sizeof frame);
            wanted += frame.length;
        }
        size_t part = wanted - partial_size < size ? wanted - partial_size : size;
        memcpy(partial + partial_size, bytes, part);
        partial_size += part, bytes += part, size -= part;
        if (partial_size < sizeof frame)
            continue;
        memcpy(&frame, partial, sizeof frame);
        if (frame.length > MAX_PAYLOAD) {
            errno = EPROTO;
            fail("frame");
        }
        if (partial_size == sizeof frame + frame.length) {
            partial_size = 0;
            stream_frame(&frame, partial + sizeof frame);
        }
    }
}

static bool is_expected(const char *token)
{
    unsigned char difference = 0;
    for (size_t i = 0; i < TOKEN_SIZE; i++)
        difference |= (unsigned char)token[i] ^ expected[i];
    return difference == 0;
}

/* False ends the connection; the session stays. */
static bool handle_record(const struct record *record, const char *bytes)
{
    if (!welcomed) {
        if (record->kind != RECORD_HELLO || record->length != TOKEN_SIZE || !is_expected(bytes) ||
            record->offset < confirmed || record->offset > written)
            return false;
        confirmed = sent = record->offset;
        counted = received;
        welcomed = true;
        put_record(RECORD_WELCOME, received, 0);
        return true;
    }
    switch (record->kind) {
    case RECORD_BYTES:
        if (record->offset > received)
            return false;
        if (record->offset + record->length > received) {
            size_t known = (size_t)(received - record->offset);
            received = record->offset + record->length;
            take(bytes + known, record->length - known);
        }
        return true;
    case RECORD_CONFIRM:
        if (record->offset > written)
            return false;
        if (record->offset > confirmed)
            confirmed = record->offset;
        return true;
    case RECORD_PING:
        pinged = true; /* confirm also when nothing is new */
        return true;
    default:
        return false;
    }
}

static bool handle_incoming(void)
{
    size_t done = 0;
    struct record record;
    while (incoming_size - done >= sizeof record) {
        memcpy(&record, incoming + done, sizeof record);
        if (record.length > MAX_RECORD)
            return false;
        if (incoming_size - done - sizeof record < record.length)
            break;
        if (!handle_record(&record, incoming + done + sizeof record))
            return false;
        done += sizeof record + record.length;
    }
    incoming_size -= done;
    memmove(incoming, incoming + done, incoming_size);
    return true;
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static bool read_connection(void)
{
    ssize_t got = recv(connection, incoming + incoming_size, sizeof incoming - incoming_size, 0);
    if (got < 0)
        return would_block();
    incoming_size += (size_t)got;
    return got > 0 && handle_incoming();
}

static bool write_connection(void)
{
    size_t left = outgoing_end - outgoing_start;
    ssize_t put = send(connection, outgoing + outgoing_start, left, MSG_NOSIGNAL);
    if (put < 0)
        return would_block();
    outgoing_start += (size_t)put;
    return true;
}

void session_poll(struct pollfd *polled)
{
    fill_outgoing();
    short events = POLLIN | (outgoing_start < outgoing_end ? POLLOUT : 0);
    *polled = (struct pollfd){.fd = connection, .events = events};
}

void session_handle(const struct pollfd *polled)
{
    if (polled->revents == 0)
        return;
    bool alive = true;
    if (polled->revents & POLLOUT)
        alive = write_connection();
    if (alive && polled->revents & ~POLLOUT)
        alive = read_connection();
    if (!alive)
        session_attach(-1);
}
