/* What is done to a process that CRIU has brought back, just before it lets go of a thread of it.
 * Each takes the number of the thread, and returns -1 when the box must not run. */
#ifndef BF_LETTING_GO_H
#define BF_LETTING_GO_H

int renumber(long pid);
int set_attributes(long pid);

#endif
