"""Start bf-pager, which loads the memory of a restored sandbox while the sandbox runs.

The program and its guard are children of the launcher. They are outside of the sandbox's group, so
a freeze of the sandbox does not stop them. They outlive the launcher and end after the sandbox.
While their descriptors are open, missing memory does not read as zeros.
"""

import os
import signal
import socket
from dataclasses import dataclass

from .log import how_ended

_SOCKET = "lazy-pages.socket"
"""The socket that the engine connects to, in its working directory."""
_REASONS = {65: "its image is truncated", 71: "bf-pager is out of memory"}


@dataclass(slots=True)
class PagerProcess:
    """The launcher's record of a started pager."""

    group: int
    """The process group of the program and its guard."""
    pid: int
    _lifeline: int
    """Closing this pipe reports to the pager that the sandbox is dead."""
    failure: str = ""
    """The reason why the sandbox must be killed; empty without a failure."""

    @classmethod
    def start(cls, program: str, image: str, work: str, report: int) -> "PagerProcess":
        """Start the program for the engine that will work in `work`.

        The program writes one byte to `report` when all memory of the sandbox is loaded.
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

    def record_end(self, status: int) -> None:
        """Record the end of the pager; set `failure` if the pager failed."""
        self.pid = 0
        if status != 0:
            code = os.waitstatus_to_exitcode(status)
            reason = _REASONS.get(code, f"bf-pager {how_ended(status)}")
            self.failure = f"the memory of the sandbox cannot be loaded: {reason}"

    def release(self) -> None:
        """Report to the pager that the sandbox is dead or was never started. Idempotent."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _listen(work: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(work, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Each message then contains the process id of its sender.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        # The path of a socket is limited to 107 bytes, and the directory's path may be longer.
        listener.bind(f"/proc/self/fd/{directory}/{_SOCKET}")
        listener.listen(1)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(directory)
    return listener
