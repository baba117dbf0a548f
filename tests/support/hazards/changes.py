"""Objects that change in a child by design; `docs/reference/live-hazards.md` says so of each."""

_EVERYWHERE = frozenset(
    {
        "CPU time that a process has used",
        "CPU time that children have used",
        "epoll: an edge that was reported is not reported again",
        "inode numbers in a listing of a directory",
        "start time of a process",
    }
)

CHANGES: dict[str, frozenset[str]] = {
    "criu": _EVERYWHERE
    | {
        "SO_INCOMING_CPU",
        "System V semaphore that is undone when its process ends",
        "TCP_WINDOW_CLAMP",
        "TCP, reset by the peer",
        "identity of a deleted file that is open",
        "inotify: watch of a deleted file that is open",
        "identity of a directory",
        "identity of a link, a named pipe and a socket",
        "inode numbers of pipes and sockets",
        "named stream: own address of an accepted connection",
        "open file of /proc, half read",
        "open file without a name (O_TMPFILE) that is given one after the fork",
        "pty, exclusive",
        "time of the last change of a file's attributes (ctime)",
    },
    "runsc": _EVERYWHERE
    | {
        "identity of a directory",
        "identity of a file that nobody has open",
        "identity of a link, a named pipe and a socket",
        "time of the last change of a file's attributes (ctime)",
    },
}
"""By engine."""
