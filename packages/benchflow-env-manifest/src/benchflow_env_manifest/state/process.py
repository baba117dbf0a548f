"""State that lives in a process's memory."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState

_NOT_LIVE = "the state of service {!r} lives in its process's memory: only a live fork carries it"


class ProcessState:
    """Nothing that could be copied: a `live` checkpoint carries it, and nothing else."""

    online = False
    files: tuple[str, ...] = ()
    trees: tuple[str, ...] = ()

    def __init__(self, service: str) -> None:
        self._service = service
        self.label = f"process {service!r}"

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Do nothing."""
        del persist
        yield

    async def capture(self, directory: str) -> str:
        """Capture nothing: a snapshot of the other state may still be of use."""
        del directory
        return "memory"

    async def restore(self, directory: str, digest: str) -> None:
        """Refuse: memory cannot be rolled back under a running process."""
        del directory, digest
        raise self._refusal()

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Show nothing."""
        del folder, still
        return EnvState()

    def holds(self, state: str) -> bool:
        """Answer no: it knows no SQL."""
        del state
        return False

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Answer nothing."""
        del queries, folder, still
        return {}

    async def check(self, folder: Path, *, still: bool) -> None:
        """Prove nothing: readiness has asked the service."""
        del folder, still

    async def adopt(self, *, live: bool) -> None:
        """Refuse a fork whose processes were started anew."""
        if not live:
            raise self._refusal()

    def _refusal(self) -> EnvironmentError_:
        return EnvironmentError_(
            _NOT_LIVE.format(self._service), hint="require fidelity `live`, or keep it in files"
        )
