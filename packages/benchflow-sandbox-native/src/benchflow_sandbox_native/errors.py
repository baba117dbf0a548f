"""The errors of requests from the host to the init of a sandbox.

RuntimeError
└── NativeMissingError   the packaged program is missing
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
"""The stages at which a request can fail, in the order of `enum stage` of the program.

The client itself sets `"connection"`: init could not be reached, or closed the connection without
a reply. Init reports all other stages.
"""


class NativeMissingError(RuntimeError):
    """A program or library is not installed in this package."""


def reason_of(number: int) -> str:
    """Return the text of an error number, also of one that the host does not know."""
    return os.strerror(number) if 0 <= number < 1 << 31 else f"unknown error {number}"


class InitError(OSError):
    """A request to init failed.

    `errno` is the kernel's error number. `stage` is the step of the request that failed, one of
    `STAGES`: ENOENT at `"exec"` is a missing program, at `"cwd"` a missing directory.
    """

    def __init__(self, number: int, stage: str, operation: str) -> None:
        super().__init__(number, f"{operation} failed at stage {stage!r}: {reason_of(number)}")
        self.stage = stage
        self._operation = operation

    def __reduce__(self) -> tuple[type["InitError"], tuple[int, str, str]]:
        return type(self), (self.errno or 0, self.stage, self._operation)
