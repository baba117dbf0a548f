/* The standard streams as a connection to the link, in bytes or in lines of base64. */
#include "link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 3 << 12, LINE = PIECE / 3 * 4 + 1 };

static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static void give_up(const char *what) __attribute__((noreturn));

static void give_up(const char *what)
{
    fprintf(stderr, "bf-link: %s: %s\n", what, strerror(errno));
    exit(1);
}

void write_whole(int to, const char *from, size_t size)
{
    while (size > 0) {
        ssize_t put = write(to, from, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            exit(1); /* the other side has gone */
        from += put, size -= (size_t)put;
    }
}

size_t encode(const unsigned char *from, size_t size, char *to)
{
    size_t length = 0;
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        uint32_t group = (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                         (left > 2 ? from[i + 2] : 0);
        to[length++] = letters[group >> 18];
        to[length++] = letters[group >> 12 & 63];
        to[length++] = left > 1 ? letters[group >> 6 & 63] : '=';
        to[length++] = left > 2 ? letters[group & 63] : '=';
    }
    return length;
}

static void write_line(int to, const unsigned char *from, size_t size)
{
    static char line[LINE];
    size_t length = encode(from, size, line);
    line[length++] = '\n';
    write_whole(to, line, length);
}

/* Return the six bits of a letter, or -1 for another character. */
static int value_of(unsigned char letter)
{
    static signed char after[256]; /* 0 for no letter */
    for (int i = 0; after['A'] == 0 && i < 64; i++)
        after[(unsigned char)letters[63 - i]] = (signed char)(64 - i);
    return after[letter] - 1;
}

/* Decode each group of four letters; other characters, such as line breaks, separate lines. */
static void write_decoded(int to, const char *from, size_t size)
{
    static uint32_t group;
    static unsigned digits, padding;
    static char decoded[PIECE + 3];
    size_t length = 0;
    for (size_t i = 0; i < size; i++) {
        int value = value_of((unsigned char)from[i]);
        if (value < 0 && from[i] != '=')
            continue;
        padding += from[i] == '=';
        group = group << 6 | (uint32_t)(value < 0 ? 0 : value);
        if (++digits < 4)
            continue;
        decoded[length++] = (char)(group >> 16);
        if (padding < 2)
            decoded[length++] = (char)(group >> 8);
        if (padding < 1)
            decoded[length++] = (char)group;
        group = digits = padding = 0;
    }
    write_whole(to, decoded, length);
}

static void copy(int from, int to, bool encode, bool decode)
{
    static char piece[PIECE];
    ssize_t got = read(from, piece, sizeof piece);
    if (got < 0 && errno == EINTR)
        return;
    if (got <= 0)
        exit(0);
    if (encode)
        write_line(to, (const unsigned char *)piece, (size_t)got);
    else if (decode)
        write_decoded(to, piece, (size_t)got);
    else
        write_whole(to, piece, (size_t)got);
}

long now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

int dial_link(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET};
    int link = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link >= 0 && connect(link, (const struct sockaddr *)&address, sizeof address) < 0) {
        close(link);
        return -1;
    }
    return link;
}

/* End after `silence` seconds without input, if not 0. A host that was killed may not have closed
 * the input, and a cloud keeps a sandbox alive while a command runs in it. */
void dial(bool lines, unsigned silence)
{
    int link = dial_link();
    if (link < 0)
        give_up(SOCKET);
    for (long last = now_ms();;) {
        if (silence > 0 && now_ms() - last >= 1000L * silence)
            exit(0);
        struct pollfd polled[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                  {.fd = link, .events = POLLIN}};
        int some = poll(polled, 2, silence > 0 ? 1000 : -1);
        if (some < 0 && errno != EINTR)
            give_up("poll");
        if (some <= 0)
            continue;
        if (polled[0].revents != 0) {
            copy(STDIN_FILENO, link, false, lines);
            last = now_ms();
        }
        if (polled[1].revents != 0)
            copy(link, STDOUT_FILENO, lines, false);
    }
}
