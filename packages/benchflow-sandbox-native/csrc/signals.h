/* What both inits do with signals: a child that ends wakes the poll, SIGTERM from outside ends the
 * box. */
#ifndef BF_SIGNALS_H
#define BF_SIGNALS_H

#include <signal.h>

/* Whether SIGTERM came, from outside. */
extern volatile sig_atomic_t terminated;

/* Both signals stay blocked but during the poll, so that none is lost before it. */
void setup_signals(sigset_t *during_poll);

#endif
