"""Sandboxes that run before all their memory is there."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchflow_contracts.errors import SnapshotError, UsageError
from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.readiness import readable

from .processes import LiveState

LEAST = "BENCHFLOW_LAZY_MEGABYTES"
"""The environment variable of the smallest size, when no option sets it."""
DEFAULT_MEGABYTES = 80
"""Below this size, reading all memory at once is as fast."""


@dataclass(slots=True)
class LazyRestorePolicy:
    """Decides which children run before all their memory is there."""

    megabytes: int | None = None
    """The smallest size of an image whose children do; None for no image."""
    proven: bool = False
    """Whether a probe of such a child on this machine lost nothing."""
    _trials: set[str] = field(default_factory=set[str])

    @contextmanager
    def trial(self, image: SandboxImage) -> Generator[None]:
        """Let the children of one image run early in any case, for a probe."""
        name = image.ref.rpartition("/")[2]
        self._trials.add(name)
        try:
            yield
        finally:
            self._trials.discard(name)

    def covers(self, state: LiveState) -> bool:
        """Return whether a child of `state` runs early."""
        if state.name in self._trials:
            return True
        enough = self.megabytes is not None and state.bytes >= self.megabytes << 20
        return self.proven and enough


class MemoryTransfer:
    """Waits until a sandbox has all its memory."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        """The pager writes to `writer`; it closes it when the sandbox is dead."""
        self._lost = False

    async def done(self) -> None:
        """Return when the sandbox has all of its memory.

        Raises:
            SnapshotError: The sandbox ended before.
        """
        if self._reader >= 0:
            await readable(self._reader)
            self._lost = not os.read(self._reader, 1)
            self.close()
        if self._lost:
            raise SnapshotError(
                "the sandbox was lost before all of its memory was there",
                hint="make another child; lazy_megabytes=0 brings all of its memory at once",
            )

    def started(self) -> None:
        """Leave the other end to the pager alone. Idempotent."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Stop waiting. Idempotent."""
        self.started()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


def lazy_threshold(megabytes: int | None) -> int | None:
    """Return the option, or else the value of the environment variable; None for 0."""
    if megabytes is None:
        named = os.environ.get(LEAST) or str(DEFAULT_MEGABYTES)
        if not named.isdecimal():
            raise UsageError(f"${LEAST} is {named!r}", hint="set it to a number; 0 is never")
        megabytes = int(named)
    return megabytes or None
