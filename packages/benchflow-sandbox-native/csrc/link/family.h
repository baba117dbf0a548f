/* The processes that this one started, directly or not. Orphans of them must return to it: it is
 * PID 1, or a child subreaper. */
#ifndef BF_FAMILY_H
#define BF_FAMILY_H

#include <sys/types.h>

/* Kill all of them but `except`; return when they are dead. */
void kill_family(pid_t except);

/* Stop all of them but `except`. Returns 0 when none of them runs, or an errno value. */
int stop_family(pid_t except);

/* Continue those that `stop_family` stopped. */
void continue_family(void);

#endif
