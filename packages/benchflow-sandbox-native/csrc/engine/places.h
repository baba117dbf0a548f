/* What launcher_process/criu/file_numbers.py of benchflow-sandbox-local writes, and bf-engine.so reads. */
#ifndef BF_PLACES_H
#define BF_PLACES_H

#include <stdint.h>

/* One file that a process has open, as it knows it. */
struct number {
    uint32_t process; /* in the box */
    uint32_t descriptor;
    uint64_t address; /* where the process keeps the two next; 0 when that is not known */
    uint64_t device;
    uint64_t inode;
};

/* Memory that was written down: the bytes of one span follow those of the one before. */
struct span {
    uint64_t address;
    uint64_t size;
};

#endif
