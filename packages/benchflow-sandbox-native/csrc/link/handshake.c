/* The beginning of a WebSocket: the request of the host, which must prove that it has the token. */
#include "link.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum { MAX_REQUEST = 1 << 14, DEADLINE_MS = 10000, KEY_SIZE = 24, ACCEPT_SIZE = 28 };

static const char guid[] = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
static const char refusal[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"
                              "Connection: close\r\n\r\n";

/* A part of the request, without the spaces around it. */
struct text {
    const char *start;
    size_t size;
};

/* Read a whole request, and nothing after it: the host waits for the answer. */
static bool read_request(int peer, char request[MAX_REQUEST + 1])
{
    size_t size = 0;
    for (long end = now_ms() + DEADLINE_MS, left; (left = end - now_ms()) > 0;) {
        struct pollfd polled = {.fd = peer, .events = POLLIN};
        if (poll(&polled, 1, (int)left) < 0 && errno != EINTR)
            return false;
        ssize_t got = recv(peer, request + size, MAX_REQUEST - size, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (got <= 0)
            return false; /* the end, or a request that is too long */
        size += (size_t)got;
        request[size] = '\0';
        const char *whole = memmem(request, size, "\r\n\r\n", 4);
        if (whole != NULL)
            return whole + 4 == request + size && strlen(request) == size;
    }
    return false;
}

/* Return the value of a header that occurs once; else its start is NULL. */
static struct text value_of(const char *request, const char *name)
{
    struct text found = {NULL, 0};
    size_t length = strlen(name);
    for (const char *line = strstr(request, "\r\n") + 2; *line != '\r';) {
        const char *end = strstr(line, "\r\n");
        if (strncasecmp(line, name, length) == 0 && line[length] == ':') {
            const char *start = line + length + 1, *last = end;
            if (found.start != NULL)
                return (struct text){NULL, 0};
            while (start < last && (*start == ' ' || *start == '\t'))
                start++;
            while (last > start && (last[-1] == ' ' || last[-1] == '\t'))
                last--;
            found = (struct text){start, (size_t)(last - start)};
        }
        line = end + 2;
    }
    return found;
}

static bool is_text(struct text text, const char *expected)
{
    return text.start != NULL && text.size == strlen(expected) &&
           strncasecmp(text.start, expected, text.size) == 0;
}

static bool is_proof(struct text proof, const unsigned char digest[DIGEST_SIZE])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char difference = 0;
    if (proof.start == NULL || proof.size != 2 * DIGEST_SIZE)
        return false;
    for (size_t i = 0; i < DIGEST_SIZE; i++) {
        difference |= (unsigned char)(proof.start[2 * i] ^ digits[digest[i] >> 4]);
        difference |= (unsigned char)(proof.start[2 * i + 1] ^ digits[digest[i] & 15]);
    }
    return difference == 0;
}

static void accept_request(int peer, struct text key, const unsigned char digest[DIGEST_SIZE])
{
    unsigned char hash[DIGEST_SIZE];
    char joined[KEY_SIZE + sizeof guid], accepted[ACCEPT_SIZE], answer[256];
    memcpy(joined, key.start, KEY_SIZE);
    memcpy(joined + KEY_SIZE, guid, sizeof guid);
    sha1(joined, sizeof joined - 1, hash);
    encode(hash, sizeof hash, accepted);
    int size = snprintf(answer, sizeof answer,
                        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                        "Connection: Upgrade\r\nSec-WebSocket-Accept: %.*s\r\n\r\n",
                        ACCEPT_SIZE, accepted);
    write_whole(peer, answer, (size_t)size);
    write_message(peer, digest, DIGEST_SIZE);
}

/* The first message proves that this side has the token, too: the host sends nothing before it. */
bool shake_hands(int peer, const unsigned char token[TOKEN_SIZE])
{
    static char request[MAX_REQUEST + 1];
    unsigned char digest[DIGEST_SIZE];
    bool accepted = read_request(peer, request) && strncmp(request, "GET ", 4) == 0;
    if (accepted) {
        struct text key = value_of(request, "Sec-WebSocket-Key");
        struct text nonce = value_of(request, "X-Benchflow-Nonce");
        accepted = is_text(value_of(request, "Upgrade"), "websocket") &&
                   is_text(value_of(request, "Sec-WebSocket-Version"), "13") &&
                   key.start != NULL && key.size == KEY_SIZE && nonce.start != NULL &&
                   nonce.size == NONCE_SIZE;
        if (accepted) {
            prove(token, "host", nonce.start, digest);
            accepted = is_proof(value_of(request, "X-Benchflow-Proof"), digest);
        }
        if (accepted) {
            prove(token, "link", nonce.start, digest);
            accept_request(peer, key, digest);
        }
    }
    if (!accepted)
        send(peer, refusal, sizeof refusal - 1, MSG_NOSIGNAL);
    return accepted;
}
