"""Starting bf-pager, which fills the memory of a restored sandbox while the sandbox runs.

The program and its guard are children of the launcher, outside of the sandbox's group: a
freeze of the sandbox must not stop them. They outlive the launcher and end after the sandbox.
Until then their descriptors keep missing memory from reading as zeros.
"""

import os
import signal
import socket
from dataclasses import dataclass

from .log import how_ended

_SOCKET = "lazy-pages.socket"
"""The socket that the engine connects to, in its working directory."""
_WHY = {65: "its image is truncated", 71: "there is no memory for it"}


@dataclass(slots=True)
class PagerProcess:
    """The launcher's side of a pager that was started."""

    group: int
    """The process group of the program and its guard."""
    pid: int
    _lifeline: int
    """While it is open, the sandbox is not known to be dead."""
    failure: str = ""
    """Why the sandbox must not continue; empty while all is well."""

    @classmethod
    def start(cls, program: str, image: str, work: str, report: int) -> "PagerProcess":
        """Start the program for the engine that will work in `work`.

        It writes one byte to `report` when the sandbox has all of its memory.
        """
        watched, lifeline = os.pipe2(os.O_CLOEXEC)
        directory = os.open(image, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _listen(work) as listener:
                fds = (directory, listener.fileno(), report, watched)
                for fd in fds:
                    os.set_inheritable(fd, True)
                pid = os.posix_spawn(
                    program,
                    [program, *map(str, fds)],
                    {},
                    setpgroup=0,
                    setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
                )
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.set_inheritable(report, False)
            os.close(directory)
            os.close(watched)
        return cls(pid, pid, lifeline)

    def ended(self, status: int) -> None:
        """Record how it ended; set `failure` when that was too early."""
        self.pid = 0
        if status != 0:
            code = os.waitstatus_to_exitcode(status)
            why = _WHY.get(code, f"bf-pager {how_ended(status)}")
            self.failure = f"the memory of the sandbox cannot be read: {why}"

    def let_go(self) -> None:
        """Tell the pager that the sandbox is dead or was never started. Idempotent."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _listen(work: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Each message says which process it is from.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # The name of a socket is short, and that of the directory may be long.
        listener.bind(f"/proc/self/fd/{directory}/{_SOCKET}")
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
