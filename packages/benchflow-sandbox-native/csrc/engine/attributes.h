/* The records that launcher_process/criu/attributes.py of benchflow-sandbox-local writes and
 * bf-engine.so reads. */
#ifndef BF_ATTRIBUTES_H
#define BF_ATTRIBUTES_H

#include <stdint.h>

enum { ATTRIBUTE_BYTES = 128 };

enum attribute_kind {
    AFFINITY = 1,      /* a mask of CPUs */
    IO_PRIORITY = 2,   /* an int */
    PROC_FILE = 3,     /* the name of a file of the thread in /proc, a NUL, and the text to write */
    SOCKET_OPTION = 4, /* the value of the option */
    TIMER = 5,         /* a struct period of a periodic timerfd */
};

struct period {
    int64_t seconds;
    int64_t nanoseconds;
    uint64_t ticks; /* expirations that the program has not read */
};

/* One attribute that CRIU does not restore. */
struct attribute {
    uint32_t thread; /* its number inside; 0 after the attribute is set */
    uint32_t kind;
    uint32_t descriptor; /* of a socket or a timer */
    uint32_t level;      /* of a socket option */
    uint32_t name;       /* of a socket option */
    uint32_t size;       /* of the value, in bytes */
    unsigned char value[ATTRIBUTE_BYTES];
};

#endif
