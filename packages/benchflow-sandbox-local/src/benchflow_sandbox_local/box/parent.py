"""Dying with one's parent."""

import os
import select
import signal

from . import syscalls

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(parent: int) -> None:
    """Be killed when the process `parent` ends, whatever ends it; end if it has already."""
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_seen(parent: int) -> None:
    """Do the same where the parent has no number: `parent` is a pidfd of it."""
    syscalls.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([parent], [], [], 0)[0]:
        os._exit(1)


def inherit() -> None:
    """Become the parent of all that is left by processes below this one."""
    syscalls.prctl(_PR_SET_CHILD_SUBREAPER, 1)
