/* What /proc tells of a process, and text for it, without a libc. */
#ifndef BF_PROC_H
#define BF_PROC_H

#include <stdint.h>

enum { PROC_PATH = 64 };

/* Append; return the new end. */
char *put(char *at, const char *text);
char *put_number(char *at, uint64_t value);

/* Write "/proc/PID" and `name`; return the end. */
char *proc_path(char path[PROC_PATH], long pid, const char *name);

/* Return the number of a thread in its box, or 0. */
uint32_t inner_number(long pid);

/* Map a file of the working directory that is an array of elements of `size` bytes, for good.
 * Return how many there are, 0 when there is no file, and -1 on failure. */
long load_array(const char *name, long size, void **out);

#endif
