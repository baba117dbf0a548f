/*
 * bf-guest: the init of a sandbox that cannot receive a descriptor of the host: a sandbox on
 * gVisor's kernel, or a container of an engine. It reaches the host only by named pipes below
 * STREAMS.
 *
 *   guest.c    start-up and the event loop
 *   control.c  frames in and out
 *   ports.c    connections that wait for a stream to the host
 *   pump.c     one connection and its two pipes
 *   put.c      files from the host
 *   pack.c     files to the host, as a tar
 */
#ifndef BF_GUEST_H
#define BF_GUEST_H

#include "../bf_init.h"

#define STREAMS "/.bf/io"

enum {
    MAX_SPAWNS = 64, /* between fork and exec */
    MAX_WAITS = 4096,
    MAX_CONNECTIONS_WAITING = 64, /* accepted, and not attached to a stream yet */
    MAX_LISTENERS = 16,
};

enum guest_operation {
    GUEST_FORGET = 6,
    GUEST_ATTACH,
    GUEST_HANG_UP,
    GUEST_ABANDON,
    GUEST_ACCOUNTS,
};

struct frame {
    uint64_t id;
    uint32_t operation;
    uint32_t length;
};

/* To the host. The id 0 reports that the connection `value` waits on the port with index `which`. */
struct answer {
    uint64_t id;
    uint32_t error;
    uint32_t stage;
    uint32_t value;
    uint32_t which;
};

/* control.c: `die` ends the sandbox, which is not usable without the host. */
void die(const char *what) __attribute__((noreturn));
int stream_open(uint32_t stream, unsigned end, int flags);
void control_open(const char *directory); /* of the streams */
int control_descriptor(void);
void control_read(void); /* dispatches each complete frame */
void answer_value(uint64_t id, uint32_t value);
void report_connection(uint32_t connection, uint32_t port);
void answer_failure(uint64_t id, int error, enum stage stage);

enum put_kind { PUT_END, PUT_DIRECTORY, PUT_FILE };

/* Followed by the path, and by the bytes of a file. */
struct put_entry {
    uint32_t kind;
    uint32_t mode;
    uint32_t length; /* of the path */
    uint32_t unused;
    uint64_t size; /* of the file */
};

/* guest.c */
int guest_main(int argc, char **argv);
void dispatch_frame(const struct frame *frame, char *body);

/* ports.c: the index of a port is the number of earlier calls of port_open */
int port_listener(uint16_t port); /* on the loopback address; -1 and errno if that fails */
void port_open(uint16_t port);
int port_descriptor(unsigned index); /* -1 if no further connection can wait */
void port_accept(unsigned index);
void connection_attach(uint64_t id, uint32_t connection, uint32_t stream);
void connections_hang_up(void);

/* pump.c: both never return */
void pump(int connection, int in, int out) __attribute__((noreturn));
void pump_to(uint16_t port) __attribute__((noreturn));

/* put.c */
int put_all(uid_t uid, gid_t gid);
int show_file(const char *path);

/* pack.c */
int pack_all(const char *path, uint64_t limit, bool leave_out);

#endif
