/* The steps just before CRIU detaches from a thread of a restored process. Each takes the number of
 * the thread, and returns -1 if the sandbox must not run. */
#ifndef BF_BEFORE_DETACH_H
#define BF_BEFORE_DETACH_H

int renumber(long pid);
int set_attributes(long pid);

#endif
