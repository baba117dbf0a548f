"""Kinds of kernel state that the engine of live snapshots loses, or cannot restore, in any child.

They are looked for while a box is frozen, before the engine begins, so that the box goes on.
"""

import errno
from contextlib import suppress
from pathlib import Path

_THREAD_TIMER = "notify: signal/tid."
_ALL_HOSTS = {"010000E0", "ff020000000000000000000000000001", "ff010000000000000000000000000001"}
"""The multicast groups of every network: 224.0.0.1, ff02::1 and ff01::1."""
_OF_ADDRESSES = "ff0200000000000000000001ff"
"""How the groups begin that the kernel joins for each IPv6 address of an interface."""


def refuse_uncarried(group: str) -> None:
    """Raise `OSError` when a process of the frozen `group` has something that no child would have.

    That is a personality, a timer that signals one thread, a lease that a reader ends, and a member
    of a multicast group.
    """
    pids = Path(f"{group}/cgroup.procs").read_text(encoding="ascii").split()
    for pid in pids:
        place = Path("/proc", pid)
        if number := int(_text(place / "personality") or "0", 16):
            raise _refusal(place, f"has a personality ({number:#x})")
        if _THREAD_TIMER in _text(place / "timers"):
            raise _refusal(place, "has a POSIX timer for one thread (SIGEV_THREAD_ID)")
    for line in _text(Path("/proc/locks")).splitlines():
        fields = line.split()
        # The host reads the files of the box, and would wait for the end of such a lease.
        if fields[1] == "LEASE" and fields[3] == "WRITE" and fields[4] in pids:
            raise _refusal(Path("/proc", fields[4]), "has a lease of a file, to be told of readers")
    if pids and (joined := _groups(Path("/proc", pids[0], "net"))):
        raise OSError(
            errno.ENOTSUP, f"a socket is a member of multicast group {joined[0]}: not captured"
        )


def _refusal(place: Path, what: str) -> OSError:
    name = _text(place / "comm").strip()
    return OSError(errno.ENOTSUP, f"a process {name!r} {what}, which cannot be captured")


def _groups(net: Path) -> list[str]:
    """Return the multicast groups that somebody has joined in a network namespace."""
    joined = [line.split()[0] for line in _text(net / "igmp").splitlines() if line[:1] == "\t"]
    joined += [line.split()[2] for line in _text(net / "igmp6").splitlines()]
    joined = [group for group in joined if not group.startswith(_OF_ADDRESSES)]
    return [group for group in joined if group not in _ALL_HOSTS]


def _text(path: Path) -> str:
    """Return what a file of /proc says: nothing where the kernel has no such file."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
