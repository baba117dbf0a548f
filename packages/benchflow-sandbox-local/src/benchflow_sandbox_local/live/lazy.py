"""Lazy restores: sandboxes that run before all of their memory is loaded."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchflow_contracts.errors import SnapshotError, UsageError
from benchflow_contracts.sandbox import SandboxImage

from benchflow_sandbox_local.readiness import readable

from .processes import LiveState

THRESHOLD = "BENCHFLOW_LAZY_MEGABYTES"
"""The environment variable for `lazy_megabytes`, when that option is not set."""
DEFAULT_MEGABYTES = 80
"""Below this size, reading all memory at once is as fast."""


@dataclass(slots=True)
class LazyRestorePolicy:
    """Decides which children run before all of their memory is loaded."""

    megabytes: int | None = None
    """The smallest size of an image that is restored lazily; None for no lazy restores."""
    is_proven: bool = False
    """Whether a probe of a lazy restore on this machine lost nothing."""
    _trials: set[str] = field(default_factory=set[str])

    @contextmanager
    def trial(self, image: SandboxImage) -> Generator[None]:
        """Restore one image lazily in any case inside the block, for a probe."""
        name = image.ref.rpartition("/")[2]
        self._trials.add(name)
        try:
            yield
        finally:
            self._trials.discard(name)

    def covers(self, state: LiveState) -> bool:
        """Return whether `state` is restored lazily."""
        if state.name in self._trials:
            return True
        is_large = self.megabytes is not None and state.bytes >= self.megabytes << 20
        return self.is_proven and is_large


class MemoryTransfer:
    """Waits until all memory of a lazily restored sandbox is loaded."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        """The pager writes one byte when all memory is loaded. It closes the pipe at its end."""
        self._lost = False

    async def wait(self) -> None:
        """Return when all memory of the sandbox is loaded.

        Raises:
            SnapshotError: The sandbox ended before.
        """
        if self._reader >= 0:
            await readable(self._reader)
            self._lost = not os.read(self._reader, 1)
            self.close()
        if self._lost:
            raise SnapshotError(
                "the sandbox ended before all of its memory was loaded",
                hint="create another child; with lazy_megabytes=0 it waits for all of its memory",
            )

    def close_writer(self) -> None:
        """Close our descriptor of the pager's end. Idempotent."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Stop waiting. Idempotent."""
        self.close_writer()
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


def lazy_threshold(megabytes: int | None) -> int | None:
    """Return the option, the environment variable or the default; None for 0."""
    if megabytes is None:
        text = os.environ.get(THRESHOLD) or str(DEFAULT_MEGABYTES)
        if not text.isdecimal():
            raise UsageError(
                f"${THRESHOLD} is {text!r}, not a number",
                hint="set it to a number of megabytes; 0 turns lazy restores off",
            )
        megabytes = int(text)
    return megabytes or None
