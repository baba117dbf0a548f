/* The signals of both inits; see signals.h. */
#include "signals.h"

#include <stddef.h>

volatile sig_atomic_t terminated;

static void on_child(int signal_number)
{
    (void)signal_number; /* the signal only ends the poll */
}

/* Root inside cannot end the sandbox like this: the kernel reports the sender of `kill`, and only a
 * sender outside of this pid namespace has pid 0. */
static void on_terminate(int signal_number, siginfo_t *info, void *context)
{
    (void)signal_number, (void)context;
    if (info->si_code == SI_USER && info->si_pid == 0)
        terminated = 1;
}

void setup_signals(sigset_t *during_poll)
{
    struct sigaction action = {.sa_handler = SIG_DFL};
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &action, NULL); /* children would inherit an ignored signal */
    action.sa_handler = on_child;
    action.sa_flags = SA_NOCLDSTOP;
    sigaction(SIGCHLD, &action, NULL);
    struct sigaction ending = {.sa_sigaction = on_terminate, .sa_flags = SA_SIGINFO};
    sigaction(SIGTERM, &ending, NULL);
    sigset_t blocked;
    sigemptyset(during_poll);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_SETMASK, &blocked, NULL);
}
