"""Limits of forks: the budget of a rollout, and the slots of the machine."""

import asyncio
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import StoreError

from benchflow_kernel.config import BranchBudget

from .checkpoint import CheckpointRefs

_MB = 1024 * 1024

_MEMINFO = Path("/proc/meminfo")

_POLL_SEC = 0.05

_own_slots: set[Path] = set()
"""Slots of this process. Record locks do not exclude their own process."""


class BranchBudgetTracker:
    """Compares a rollout's forks with its budget. Time counts from the creation of the tracker.

    An exhausted budget is not a failure: `refusal` returns the reason, and the branch run
    continues without the fork.
    """

    def __init__(
        self,
        budget: BranchBudget,
        refs: CheckpointRefs,
        tokens: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        free_memory: Callable[[], int | None] | None = None,
    ) -> None:
        self._budget = budget
        self._refs = refs
        self._tokens = tokens
        self._clock = clock
        self._free_memory = free_memory or available_memory
        self._start = clock()
        self._forks = 0
        self._refused_bytes = 0
        """Bytes of the last checkpoint that did not fit."""

    def refusal(self, budget: BranchBudget, children: int, depth: int) -> str | None:
        """Return the reason a fork into `children` at `depth` is not allowed, or None.

        `budget` belongs to the policy of the fork. A nested policy limits its own
        children and depth. The outermost policy also limits the rollout.
        """
        if children > budget.max_children:
            return f"{children} children are more than max_children {budget.max_children}"
        if depth >= budget.max_depth:
            return f"max_depth {budget.max_depth} is reached"
        return self._rollout_refusal()

    def disk_refusal(self, size: int) -> str | None:
        """Return the reason a checkpoint of `size` bytes exceeds the budget, or None."""
        limit, used_bytes = self._budget.disk_mb, self._refs.disk_bytes
        if limit is None or used_bytes + size <= limit * _MB:
            return None
        self._refused_bytes = size
        return f"checkpoints would use {(used_bytes + size) / _MB:.1f} MB of disk_mb {limit}"

    def record_fork(self) -> None:
        """Count a fork."""
        self._forks += 1

    def _rollout_refusal(self) -> str | None:
        budget = self._budget
        if budget.max_forks is not None and self._forks >= budget.max_forks:
            return f"max_forks {budget.max_forks} is reached"
        if budget.wall_sec is not None and self._clock() - self._start >= budget.wall_sec:
            return f"wall_sec {budget.wall_sec:g} is over"
        if budget.tokens is not None and (used := self._tokens()) >= budget.tokens:
            return f"{used} of {budget.tokens} tokens are spent"
        used_bytes = self._refs.disk_bytes
        if budget.disk_mb is not None and used_bytes >= budget.disk_mb * _MB:
            return f"checkpoints use {used_bytes // _MB} MB of disk_mb {budget.disk_mb}"
        # The next checkpoint is about as large, and only a snapshot can measure it.
        if self._refused_bytes and (refusal := self.disk_refusal(self._refused_bytes)) is not None:
            return refusal
        free = None if budget.memory_mb is None else self._free_memory()
        if free is not None and budget.memory_mb is not None and free < budget.memory_mb * _MB:
            return f"{free // _MB} MB are free, fewer than memory_mb {budget.memory_mb}"
        return None


def available_memory() -> int | None:
    """Return the bytes of available memory, or None if the machine does not report them."""
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError:
        return None
    value = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if value is None else int(value) * 1024


class MachineSlots:
    """Slots that all rollouts of one user on one machine share.

    A slot is a record lock on a file. The kernel releases it when its process dies, and a
    forked helper cannot inherit it. Only children take a slot, not roots. A child that has a
    slot never waits for another slot.
    """

    def __init__(self, directory: Path, count: int) -> None:
        self._directory = directory
        self._count = max(1, count)

    @classmethod
    def of_this_machine(cls) -> "MachineSlots":
        """Return the user's slots: one per CPU that this process may run on."""
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else None
        if base is None:
            base = Path(tempfile.gettempdir())
        return cls(base / f"benchflow-{os.getuid()}" / "slots", len(os.sched_getaffinity(0)))

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold one slot; wait until one is free.

        Raises:
            StoreError: The directory of the slots cannot be used.
        """
        path, descriptor = await self._take()
        try:
            yield
        finally:
            os.close(descriptor)
            _own_slots.discard(path)

    async def _take(self) -> tuple[Path, int]:
        files = [self._directory / f"slot-{index}" for index in range(self._count)]
        while True:
            for path in files:
                descriptor = None if path in _own_slots else _lock(path)
                if descriptor is not None:
                    _own_slots.add(path)
                    return path, descriptor
            # Other processes cannot notify this one, so it polls.
            await asyncio.sleep(_POLL_SEC)


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
