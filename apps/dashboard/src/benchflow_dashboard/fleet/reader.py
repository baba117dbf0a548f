"""The fleet as one view, within a time limit."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchflow_contracts import SandboxRecord

from .sources import JobQueue, provider_names, read_left_directories, read_queues, read_sandboxes
from .timed_source import Reading, TimedSource


@dataclass(frozen=True, slots=True)
class ProviderSandboxes:
    """The sandboxes of one provider."""

    provider: str
    state: Reading[Sequence[SandboxRecord]]

    @property
    def records(self) -> Sequence[SandboxRecord]:
        """The sandboxes as last known."""
        return self.state.value or ()

    @property
    def left(self) -> Sequence[SandboxRecord]:
        """Sandboxes of runs that have certainly ended."""
        return [record for record in self.records if record.owner_alive is False]

    @property
    def place(self) -> int:
        """The place on the page: what lives first, and what cannot be read last."""
        return 0 if self.records else 2 if self.state.problem else 1


@dataclass(frozen=True, slots=True)
class FleetView:
    """What lives on this machine, and what waits."""

    providers: tuple[ProviderSandboxes, ...]
    directories: Reading[Sequence[str]]
    """Temporary directories that ended runs left."""
    queues: Reading[Sequence[JobQueue]]
    """The jobs that run."""


class FleetReader:
    """Reads providers, directories and queues side by side. Safe to use from several threads."""

    def __init__(
        self,
        live_jobs: Callable[[], Sequence[Path]],
        *,
        names: Callable[[], Sequence[str]] = provider_names,
        read: Callable[[str], Sequence[SandboxRecord]] = read_sandboxes,
    ) -> None:
        """Prepare. `live_jobs` returns the directories of the jobs that run."""
        self._providers = {name: TimedSource(name, _bind(read, name)) for name in names()}
        self._directories = TimedSource("directories", read_left_directories)
        self._queues = TimedSource("queues", lambda: read_queues(live_jobs()))

    def view(self, wait_sec: float = 2.0) -> FleetView:
        """Return the last answers, after a wait of at most `wait_sec` for all of them together."""
        end = time.monotonic() + wait_sec
        for source in self._providers.values():
            source.begin()
        self._directories.begin()
        self._queues.begin()

        def left() -> float:
            return max(end - time.monotonic(), 0.0)

        return FleetView(
            providers=tuple(
                ProviderSandboxes(name, source.reading(left()))
                for name, source in self._providers.items()
            ),
            directories=self._directories.reading(left()),
            queues=self._queues.reading(left()),
        )


def _bind(
    read: Callable[[str], Sequence[SandboxRecord]], name: str
) -> Callable[[], Sequence[SandboxRecord]]:
    return lambda: read(name)
