"""The privileges of root in a box, which are far fewer than those of root."""

import os

from benchflow_sandbox_local.launcher_process.syscalls import capset, prctl

from .seccomp import install

_PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 23, 24, 38, 47
_AMBIENT_CLEAR_ALL = 4

KEPT = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "SYS_CHROOT": 18,
}
"""The capabilities that package managers and services in a box need."""


def drop() -> None:
    """Cut the capability sets, forbid gaining any, and install the call filter."""
    kept = set(KEPT.values())
    for number in range(64):
        if number in kept:
            continue
        try:
            prctl(_PR_CAPBSET_DROP, number)
        except OSError:
            break  # past the last capability that this kernel knows
    prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL)
    capset(sum(1 << number for number in kept))
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    install()
    os.umask(0o022)
