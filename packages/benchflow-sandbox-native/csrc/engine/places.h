/* The records that launcher_process/criu/file_numbers.py of benchflow-sandbox-local writes and
 * bf-engine.so reads. */
#ifndef BF_PLACES_H
#define BF_PLACES_H

#include <stdint.h>

/* One file that a process has open, with the numbers that the process knows. */
struct number {
    uint32_t process; /* its number inside */
    uint32_t descriptor;
    uint64_t address; /* at which the process stores device and inode; 0 for unknown */
    uint64_t device;
    uint64_t inode;
};

/* A range of dumped memory. The bytes of all spans follow each other in the file. */
struct span {
    uint64_t address;
    uint64_t size;
};

#endif
