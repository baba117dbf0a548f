/*
 * bf-link: carries the pipes of bf-guest over one connection that may be cut and made again.
 *
 *   link.c     start-up and the event loop
 *   session.c  records of a connection, and the two byte streams of the session
 *   streams.c  the pipes of bf-guest, with credit for each end
 *   listen.c   the socket of the sandbox, and the connection to the host
 *   doors.c    the ports inside that the host serves
 *   family.c   the processes below the link: kill, stop and continue them
 *   reach.c    `bf-link reach`: whether an address can be reached
 *   dial.c     `bf-link dial`: the standard streams as a connection, also as lines of base64
 *   port.c     `bf-link listen`: connections by a port of the sandbox, as WebSockets
 *   handshake.c, websocket.c, sha1.c  the parts of it
 *
 * A connection carries records. Both sides number the bytes of the session, and keep what the
 * other side has not confirmed. So a new connection continues where the last one was cut: no byte
 * is lost or read twice. The bytes of the session are frames, which name a stream and an end.
 *
 * The host is trusted. Processes of the sandbox cannot reach the socket, unless they are root. They
 * can reach the port, but a connection without the token ends before the link hears of it.
 */
#ifndef BF_LINK_H
#define BF_LINK_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HOME "/.benchflow"
#define PROGRAM HOME "/link" /* this file */
#define STREAMS HOME "/io"
#define SOCKET HOME "/socket"
#define TOKEN HOME "/token"

enum {
    ENDS = 3,                /* stdin, stdout and stderr of a stream */
    MAX_STREAMS = 1024,      /* open at once */
    MAX_DOORS = 16,
    MAX_ACCEPTED = 256,      /* connections to doors at once; others wait */
    MAX_PAYLOAD = 1 << 15,   /* bytes in one frame */
    WINDOW = 1 << 18,        /* bytes that one end may have on the way */
    MAX_UNCONFIRMED = 1 << 20,
    TOKEN_SIZE = 32,
    MAX_RECORD = 1 << 16,
    DIGEST_SIZE = 20,
    NONCE_SIZE = 32, /* hexadecimal digits */
    ROLE_SIZE = 4,
};

enum record_kind {
    RECORD_HELLO = 1, /* from the host: its token; `offset` counts the bytes that it has */
    RECORD_WELCOME,   /* to the host: `offset` counts the bytes that we have */
    RECORD_BYTES,     /* bytes of the session from `offset` on */
    RECORD_CONFIRM,   /* the sender has the bytes before `offset` */
    RECORD_PING,      /* asks for a confirmation */
};

struct record {
    uint32_t length; /* of the bytes that follow */
    uint32_t kind;
    uint64_t offset;
};

enum frame_kind {
    FRAME_OPEN = 1, /* host: create the pipes of a stream */
    FRAME_RELEASE,  /* host: close our copies of the guest's ends, and remove the names */
    FRAME_CLOSE,    /* host: close an end, or all ends if `end` is ENDS */
    FRAME_DATA,
    FRAME_END,    /* guest: the end of an output; host: the end of stdin */
    FRAME_CREDIT, /* the receiver has consumed a number of bytes, a uint32_t */
    FRAME_BROKEN, /* guest: nobody reads stdin any more */
    FRAME_KILL,   /* host, stream 0: kill every process but bf-guest */
    FRAME_FREEZE, /* host, stream 0: stop them */
    FRAME_THAW,   /* host, stream 0: continue them */
    FRAME_ANSWER, /* guest, stream 0: to each of the last three, in order; an errno or 0 */
    FRAME_DRAIN,  /* host: a process of the stream has ended */
    FRAME_DRAINED, /* guest: the bytes that its pipes had then were sent */
    FRAME_ACCEPTED, /* guest: a new stream, of a connection to the door with the index `end` */
};

struct frame {
    uint32_t stream;
    uint16_t kind;
    uint16_t end;
    uint32_t length; /* of the payload */
};

/* link.c */
void fail(const char *what) __attribute__((noreturn));
uint32_t run_order(unsigned kind); /* returns an errno value or 0 */

/* session.c */
void session_setup(const unsigned char token[TOKEN_SIZE]);
size_t session_room(void); /* bytes that `session_send` accepts now */
void session_send(const struct frame *frame, const void *payload);
void session_attach(int connection); /* replaces the connection; -1 has none */
void session_poll(struct pollfd *polled);
void session_handle(const struct pollfd *polled);

/* streams.c */
void streams_setup(void);
void stream_frame(const struct frame *frame, const char *payload);
size_t streams_poll(struct pollfd *polled);
void streams_handle(const struct pollfd *polled, size_t count);
bool stream_can_accept(void);
void stream_accept(int connection, unsigned door); /* takes the connection, or closes it */

/* doors.c: connections to them become streams */
void doors_setup(const char *ports);
void doors_poll(struct pollfd polled[MAX_DOORS]);
void doors_handle(const struct pollfd polled[MAX_DOORS]);

/* listen.c */
int listen_setup(void);
int listen_accept(int listener);

/* dial.c */
void dial(bool lines, unsigned silence) __attribute__((noreturn));
int dial_link(void); /* -1 and errno if there is no link */
void write_whole(int to, const char *from, size_t size); /* or end the process */
size_t encode(const unsigned char *from, size_t size, char *to); /* base64 */
long now_ms(void);

/* port.c */
int listen_port(const char *address, const char *port); /* -1 and errno if that fails */
void serve_port(int listener, const unsigned char token[TOKEN_SIZE]) __attribute__((noreturn));

/* handshake.c: whether the host has the token; it then knows that we have it, too */
bool shake_hands(int peer, const unsigned char token[TOKEN_SIZE]);

/* websocket.c */
void write_message(int peer, const void *bytes, size_t size); /* of at most 125 bytes */
void relay(int peer, int link); /* until one of them ends, or the host is silent */

/* sha1.c */
void sha1(const void *bytes, size_t size, unsigned char digest[DIGEST_SIZE]);
/* HMAC with the token of a role, which has ROLE_SIZE characters, and a nonce. */
void prove(const unsigned char token[TOKEN_SIZE], const char *role, const char *nonce,
           unsigned char digest[DIGEST_SIZE]);

/* reach.c: the exit code */
int reach(const char *address, const char *port);

/* ../guest/ports.c */
int port_listener(uint16_t port);

/* ../guest/guest.c */
int guest_main(int argc, char **argv);

#endif
