/* Frames of a WebSocket as a connection to the link. The host is known here: it has the token. */
#include "link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum opcode { CONTINUED = 0, BINARY = 2, CLOSE = 8, PING = 9, PONG = 10 };

enum {
    FINAL = 0x80,
    RESERVED = 0x70,
    MASKED = 0x80,
    LENGTH = 0x7f,
    MAX_HEAD = 14,
    MAX_CONTROL = 125,
    MAX_FRAME = 1 << 20,
    PIECE = 0xffff, /* the length of a message that we send has two bytes */
    SILENCE_MS = 60000,
};

static unsigned char head[MAX_HEAD];
static size_t head_size;
static unsigned char mask[4];
static uint64_t left; /* bytes of the frame that did not come yet */
static size_t at;     /* in the payload */
static unsigned char control[MAX_CONTROL];
static bool in_message, is_open;

static void write_frame(int peer, enum opcode opcode, unsigned char *payload, size_t size)
{
    /* There is room for a header before `payload`. */
    unsigned char *start = payload - (size > MAX_CONTROL ? 4 : 2);
    start[0] = (unsigned char)(FINAL | opcode);
    start[1] = (unsigned char)(size > MAX_CONTROL ? 126 : size);
    if (size > MAX_CONTROL) {
        start[2] = (unsigned char)(size >> 8);
        start[3] = (unsigned char)size;
    }
    write_whole(peer, (const char *)start, (size_t)(payload - start) + size);
}

void write_message(int peer, const void *bytes, size_t size)
{
    unsigned char frame[2 + MAX_CONTROL];
    memcpy(frame + 2, bytes, size);
    write_frame(peer, BINARY, frame + 2, size);
}

/* The bytes of a length that does not fit into the second byte. */
static size_t length_bytes(void)
{
    int length = head[1] & LENGTH;
    return length == 127 ? 8 : length == 126 ? 2 : 0;
}

static size_t head_wanted(void)
{
    if (head_size < 2)
        return 2;
    return 2 + length_bytes() + sizeof mask;
}

/* False if the protocol does not allow the header. */
static bool begin_frame(void)
{
    unsigned opcode = head[0] & 15, length = head[1] & LENGTH;
    bool is_control = opcode >= CLOSE, is_final = head[0] & FINAL;
    const unsigned char *from = head + 2;
    size_t bytes = length_bytes();
    left = bytes == 0 ? length : 0;
    for (size_t i = 0; i < bytes; i++)
        left = left << 8 | *from++;
    memcpy(mask, from, sizeof mask);
    at = 0;
    if (head[0] & RESERVED || !(head[1] & MASKED) || left > MAX_FRAME)
        return false;
    if (is_control)
        return is_final && left <= MAX_CONTROL && opcode <= PONG;
    if (opcode != (in_message ? CONTINUED : BINARY))
        return false;
    in_message = !is_final;
    return true;
}

static void end_control(int peer, size_t size)
{
    unsigned char frame[2 + MAX_CONTROL];
    unsigned opcode = head[0] & 15;
    memcpy(frame + 2, control, size);
    if (opcode == PING)
        write_frame(peer, PONG, frame + 2, size);
    if (opcode == CLOSE) {
        write_frame(peer, CLOSE, frame + 2, size < 2 ? 0 : 2);
        is_open = false;
    }
}

/* Give the payload of data frames to the link; answer control frames. */
static bool decode(int peer, int link, unsigned char *bytes, size_t size)
{
    while (size > 0 && is_open) {
        if (head_size < head_wanted()) {
            head[head_size++] = *bytes++, size--;
            if (head_size < head_wanted())
                continue;
            if (!begin_frame())
                return false;
        }
        bool is_control = (head[0] & 15) >= CLOSE;
        size_t part = left < size ? (size_t)left : size;
        for (size_t i = 0; i < part; i++)
            bytes[i] ^= mask[(at + i) % sizeof mask];
        if (is_control)
            memcpy(control + at, bytes, part);
        else
            write_whole(link, (const char *)bytes, part);
        bytes += part, size -= part, at += part, left -= part;
        if (left > 0)
            continue;
        if (is_control)
            end_control(peer, at);
        head_size = 0;
    }
    return true;
}

void relay(int peer, int link)
{
    static unsigned char input[PIECE], output[4 + PIECE];
    is_open = true;
    for (long last = now_ms(); is_open && now_ms() - last < SILENCE_MS;) {
        struct pollfd polled[] = {{.fd = peer, .events = POLLIN}, {.fd = link, .events = POLLIN}};
        int some = poll(polled, 2, 1000);
        if (some < 0 && errno != EINTR)
            return;
        if (some <= 0)
            continue;
        if (polled[0].revents != 0) {
            ssize_t got = read(peer, input, sizeof input);
            if (got <= 0 || !decode(peer, link, input, (size_t)got))
                return;
            last = now_ms();
        }
        if (polled[1].revents != 0) {
            ssize_t got = read(link, output + 4, PIECE);
            if (got <= 0)
                return;
            write_frame(peer, BINARY, output + 4, (size_t)got);
        }
    }
}
