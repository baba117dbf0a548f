"""The size limit of all live images."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchflow_contracts.errors import SnapshotError

_MB = 20  # bits


class LiveImageBudget:
    """Limits the bytes of the processes of all live images.

    Several snapshots at once never reserve the same bytes.
    """

    def __init__(self, limit: int, used: Callable[[], int]) -> None:
        self._limit = limit
        self._used = used
        self._reserved = 0

    @contextmanager
    def reserve(self, need: int) -> Generator[None]:
        """Reserve `need` bytes inside the block. After the block, the image itself counts.

        Raises:
            SnapshotError: Fewer bytes are left.
        """
        used = self._used() + self._reserved
        if used + need > self._limit:
            raise SnapshotError(
                f"a live image of about {need >> _MB} MB is over the budget: {used >> _MB} of "
                f"{self._limit >> _MB} MB are used",
                hint="discard images, or raise the provider's live_budget_mb",
            )
        self._reserved += need
        try:
            yield
        finally:
            self._reserved -= need


_OWN = ("RssAnon:", "RssShmem:")


def resident_bytes(pid: int) -> int:
    """Return the bytes of a process that its image must contain; 0 for a dead process."""
    total = 0
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(_OWN):
                total += int(line.split()[1]) << 10
    return total
