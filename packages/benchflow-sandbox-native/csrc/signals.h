/* The signals of both inits: a child that ends wakes the poll, SIGTERM from outside ends the
 * sandbox. */
#ifndef BF_SIGNALS_H
#define BF_SIGNALS_H

#include <signal.h>

/* Whether SIGTERM arrived from outside. */
extern volatile sig_atomic_t terminated;

/* Both signals are blocked except during the poll, so that none is lost before it. */
void setup_signals(sigset_t *during_poll);

#endif
