/* What launcher_process/criu/attributes.py of benchflow-sandbox-local writes, and bf-engine.so reads. */
#ifndef BF_ATTRIBUTES_H
#define BF_ATTRIBUTES_H

#include <stdint.h>

enum { ATTRIBUTE_BYTES = 128 };

enum attribute_kind {
    AFFINITY = 1,      /* a mask of CPUs */
    IO_PRIORITY = 2,   /* an int */
    PROC_FILE = 3,     /* the name of a file of the thread in /proc, a NUL, and its text */
    SOCKET_OPTION = 4, /* what the option has */
    TIMER = 5,         /* a struct period: of a timerfd that fires again and again */
};

struct period {
    int64_t seconds;
    int64_t nanoseconds;
    uint64_t ticks; /* that nobody has read */
};

/* One thing that CRIU does not set again. */
struct attribute {
    uint32_t thread; /* in the box; 0 when it is set */
    uint32_t kind;
    uint32_t descriptor; /* of a socket or a timer */
    uint32_t level; /* of a socket's option, as its name */
    uint32_t name;
    uint32_t size; /* of the value, in bytes */
    unsigned char value[ATTRIBUTE_BYTES];
};

#endif
