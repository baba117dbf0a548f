"""The errors of requests from the host to the init of a box.

RuntimeError
└── NativeMissingError   the packaged program is not there
OSError
└── InitError            init refused or failed, or cannot be reached
"""

import os
from typing import Final

STAGES: Final[tuple[str, ...]] = (
    "connection",
    "request",
    "table",
    "fork",
    "session",
    "stdio",
    "rlimit",
    "capabilities",
    "groups",
    "gid",
    "uid",
    "privileges",
    "cwd",
    "exec",
    "wait",
    "kill",
)
"""Where a request can fail, in the order of the program's own list.

`"connection"` is the only stage that init does not name itself: it could not be reached,
or it closed the connection without a reply.
"""


class NativeMissingError(RuntimeError):
    """The static init program is not installed next to this package."""


class InitError(OSError):
    """A request to init failed.

    `errno` is the kernel's error number and `stage`, one of `STAGES`, says which part of the
    request met it: ENOENT at `"exec"` is a missing program, at `"cwd"` a missing directory.
    """

    def __init__(self, number: int, stage: str, what: str) -> None:
        super().__init__(number, f"{what} failed at stage {stage!r}: {os.strerror(number)}")
        self.stage = stage
        self._what = what

    def __reduce__(self) -> tuple[type["InitError"], tuple[int, str, str]]:
        return type(self), (self.errno or 0, self.stage, self._what)
