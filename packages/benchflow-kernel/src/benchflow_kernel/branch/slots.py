"""Slots of the machine: the number of forked children that run at once."""

import asyncio
import errno
import fcntl
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import StoreError

_LOOK_AGAIN_SEC = 0.05
_held: set[Path] = set()
"""Slots of this process. Record locks do not exclude their own process."""


class MachineSlots:
    """Slots that all rollouts of one user on one machine share.

    A slot is a record lock on a file. The kernel releases it when its process dies, and a
    forked helper cannot inherit it. Only children take a slot, not roots. A child that has a
    slot never waits for another one.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self._files = [directory / f"slot-{index}" for index in range(max(1, count))]

    @classmethod
    def of_this_machine(cls) -> "MachineSlots":
        """Return the user's slots: one per CPU that this process may run on."""
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else None
        if base is None:
            base = Path(tempfile.gettempdir())
        return cls(base / f"benchflow-{os.getuid()}" / "slots", len(os.sched_getaffinity(0)))

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        """Hold one slot; wait until one is free.

        Raises:
            StoreError: The directory of the slots cannot be used.
        """
        path, descriptor = await self._take()
        try:
            yield
        finally:
            os.close(descriptor)
            _held.discard(path)

    async def _take(self) -> tuple[Path, int]:
        while True:
            for path in self._files:
                descriptor = None if path in _held else _lock(path)
                if descriptor is not None:
                    _held.add(path)
                    return path, descriptor
            # Other processes cannot notify this one, so it polls.
            await asyncio.sleep(_LOOK_AGAIN_SEC)


def _lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock, or None if another process has it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.stat().st_uid != os.getuid():
            raise PermissionError(f"{str(path.parent)!r} belongs to another user")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StoreError(
            f"the slots of the machine cannot be used: {error}",
            hint="set XDG_RUNTIME_DIR to a directory that you can write to",
        ) from error
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return None
        raise StoreError(f"the lock {str(path)!r} cannot be taken: {error}") from error
    return descriptor
