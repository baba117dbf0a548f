/*
 * One connection, and the functions that these three files share.
 *
 *   connection.c  the table of connections, replies, the poll set
 *   receive.c     bytes into a request
 *   operation.c   a request into its effect
 */
#ifndef BF_CONNECTION_H
#define BF_CONNECTION_H

#include "bf_init.h"

enum state { FREE, HEADER, BODY, SPAWNING, WAITING, KILLING, REPLIED };

struct header {
    uint32_t operation;
    uint32_t length;
};

struct reply {
    uint32_t error;
    uint32_t stage;
    uint32_t value;
    uint32_t text_length;
    char text[32];
};

struct connection {
    enum state state;
    int fd;
    struct header header;
    size_t received; /* of the header, then of the body */
    char *body;
    int fds[STDIO_FDS];
    int fd_count;
    pid_t pid;  /* the process of a spawn or of a wait */
    int report; /* read end of the exec report while spawning */
    nfds_t polled;
};

/* connection.c */
void close_connection(struct connection *c);
void release_input(struct connection *c);
void abandon(struct connection *c);
void send_reply(struct connection *c, const struct reply *reply);
void reply_value(struct connection *c, uint32_t value);
void reply_failure(struct connection *c, int error, enum stage stage);

/* receive.c */
void receive_request(struct connection *c);
void receive_acknowledgement(struct connection *c);

/* operation.c */
void dispatch(struct connection *c);
void finish_spawn(struct connection *c);
void answer_wait(struct connection *c);

#endif
