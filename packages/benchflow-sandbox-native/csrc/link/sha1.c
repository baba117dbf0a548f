/* SHA-1, which a WebSocket handshake needs, and HMAC-SHA-1, which proves a token. */
#include "link.h"

#include <string.h>

enum { BLOCK = 64, LENGTH_SIZE = 8, INNER = 0x36, OUTER = 0x5c };

static uint32_t rotated(uint32_t word, unsigned bits)
{
    return word << bits | word >> (32 - bits);
}

static void put_word(unsigned char *to, uint32_t word)
{
    for (unsigned i = 0; i < 4; i++)
        to[i] = (unsigned char)(word >> (24 - 8 * i));
}

static uint32_t mixed(unsigned round, uint32_t b, uint32_t c, uint32_t d)
{
    if (round < 20)
        return ((b & c) | (~b & d)) + 0x5a827999;
    if (round < 40)
        return (b ^ c ^ d) + 0x6ed9eba1;
    if (round < 60)
        return ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc;
    return (b ^ c ^ d) + 0xca62c1d6;
}

static void add_block(uint32_t state[5], const unsigned char block[BLOCK])
{
    uint32_t words[80], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
    for (unsigned i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        words[i] = rotated(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    for (unsigned i = 0; i < 80; i++) {
        uint32_t next = rotated(a, 5) + mixed(i, b, c, d) + e + words[i];
        e = d, d = c, c = rotated(b, 30), b = a, a = next;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
}

void sha1(const void *bytes, size_t size, unsigned char digest[DIGEST_SIZE])
{
    uint32_t state[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    unsigned char last[2 * BLOCK] = {0};
    const unsigned char *from = bytes;
    size_t left = size;
    for (; left >= BLOCK; from += BLOCK, left -= BLOCK)
        add_block(state, from);
    memcpy(last, from, left);
    last[left] = 0x80;
    size_t end = left + 1 + LENGTH_SIZE <= BLOCK ? BLOCK : 2 * BLOCK;
    put_word(last + end - 8, (uint32_t)((uint64_t)size >> 29));
    put_word(last + end - 4, (uint32_t)(size << 3));
    for (size_t at = 0; at < end; at += BLOCK)
        add_block(state, last + at);
    for (unsigned i = 0; i < 5; i++)
        put_word(digest + 4 * i, state[i]);
}

void prove(const unsigned char token[TOKEN_SIZE], const char *role, const char *nonce,
           unsigned char digest[DIGEST_SIZE])
{
    unsigned char inner[BLOCK + ROLE_SIZE + NONCE_SIZE], outer[BLOCK + DIGEST_SIZE];
    memset(inner, INNER, BLOCK);
    memset(outer, OUTER, BLOCK);
    for (unsigned i = 0; i < TOKEN_SIZE; i++)
        inner[i] ^= token[i], outer[i] ^= token[i];
    memcpy(inner + BLOCK, role, ROLE_SIZE);
    memcpy(inner + BLOCK + ROLE_SIZE, nonce, NONCE_SIZE);
    sha1(inner, sizeof inner, outer + BLOCK);
    sha1(outer, sizeof outer, digest);
}
