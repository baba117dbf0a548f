/* The signals of both inits; see signals.h. */
#include "signals.h"

#include <stddef.h>

volatile sig_atomic_t terminated;

static void on_child(int signal_number)
{
    (void)signal_number; /* its only use is to end the poll */
}

static void on_terminate(int signal_number)
{
    (void)signal_number;
    terminated = 1;
}

void setup_signals(sigset_t *during_poll)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &action, NULL); /* an ignored signal would be inherited */
    action.sa_handler = on_child;
    action.sa_flags = SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, NULL);
    action.sa_handler = on_terminate;
    sigaction(SIGTERM, &action, NULL);
    sigset_t blocked;
    sigemptyset(during_poll);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}
