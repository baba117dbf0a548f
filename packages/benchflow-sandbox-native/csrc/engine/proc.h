/* Read /proc, and write text, without a libc. */
#ifndef BF_PROC_H
#define BF_PROC_H

#include <stdint.h>

enum { PROC_PATH = 64 };

/* Append to a text; return its new end. */
char *put(char *at, const char *text);
char *put_number(char *at, uint64_t value);

/* Write "/proc/PID" and `name`; return the end. */
char *proc_path(char path[PROC_PATH], long pid, const char *name);

/* Return the number of a thread inside its sandbox; 0 for a dead one. */
uint32_t inner_number(long pid);

/* Map a file of the working directory that is an array of elements of `size` bytes. Return the
 * number of elements; 0 if the file does not exist, and -1 on failure. */
long load_array(const char *name, long size, void **out);

#endif
