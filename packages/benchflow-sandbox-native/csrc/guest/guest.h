/*
 * bf-guest: the init of a box to which no descriptor of the host can be handed: one on gVisor's
 * kernel, or a container of an engine. All that leads outside is a named pipe below STREAMS.
 *
 *   guest.c    start-up and the event loop
 *   control.c  frames in and out
 *   doors.c    connections that wait to be led outside
 *   pump.c     one connection and its two pipes
 *   put.c      files from the host
 */
#ifndef BF_GUEST_H
#define BF_GUEST_H

#include "../bf_init.h"

#define STREAMS "/.bf/io"

enum {
    MAX_SPAWNS = 64, /* between fork and exec */
    MAX_WAITS = 4096,
    MAX_DOORS = 64, /* connections that were accepted and not led on yet */
    MAX_LISTENERS = 16,
};

enum guest_operation { GUEST_FORGET = 6, GUEST_LEAD, GUEST_HANG_UP, GUEST_ABANDON, GUEST_ACCOUNTS };

struct frame {
    uint64_t id;
    uint32_t operation;
    uint32_t length;
};

/* To the host. An id of 0 tells that connection `value` waits, which came to the port `which`. */
struct answer {
    uint64_t id;
    uint32_t error;
    uint32_t stage;
    uint32_t value;
    uint32_t which;
};

/* control.c: `die` ends the box, since without the host nobody can use it. */
void die(const char *what) __attribute__((noreturn));
int stream_open(uint32_t stream, unsigned end, int flags);
void control_open(void);
int control_descriptor(void);
void control_read(void); /* dispatches each frame that is whole */
void answer_value(uint64_t id, uint32_t value);
void answer_knock(uint32_t door, uint32_t which);
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
void dispatch_frame(const struct frame *frame, char *body);

/* doors.c */
void doors_open(uint16_t port); /* the first call opens port 0 of the answers, and so on */
int doors_descriptor(unsigned which); /* -1 when nobody can be let in */
void doors_accept(unsigned which);
void doors_lead(uint64_t id, uint32_t door, uint32_t stream);
void doors_hang_up(void);

/* pump.c: both never return */
void pump(int connection, int in, int out) __attribute__((noreturn));
void pump_to(uint16_t port) __attribute__((noreturn));

/* put.c */
int put_all(uid_t uid, gid_t gid);
int show_file(const char *path);

#endif
