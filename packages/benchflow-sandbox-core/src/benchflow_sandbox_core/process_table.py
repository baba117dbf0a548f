"""The spawned processes of one sandbox."""

from .sandbox_process import SandboxProcess


class ProcessTable:
    """The spawned processes of one sandbox whose pipes the host has open."""

    def __init__(self) -> None:
        self._processes: dict[str, SandboxProcess] = {}
        self._unclaimed: dict[str, SandboxProcess] = {}

    def add(self, process: SandboxProcess) -> None:
        """Add a process that was spawned."""
        self._processes[process.id] = process

    @property
    def all(self) -> list[SandboxProcess]:
        """The processes whose pipes are still open."""
        self._processes = {k: p for k, p in self._processes.items() if not p.released}
        return list(self._processes.values())

    async def drop_ended(self) -> None:
        """Remove the processes that have ended: a live snapshot does not contain them."""
        ended = [process.id for process in self.all if await process.ended()]
        for name in ended:
            self._processes.pop(name, None)

    def add_restored(self, process: SandboxProcess) -> None:
        """Add a process of a live image, until the caller claims it."""
        self._processes[process.id] = self._unclaimed[process.id] = process

    def claim(self, process_id: str) -> SandboxProcess | None:
        """Return a restored process, once; None for an unknown or claimed one."""
        return self._unclaimed.pop(process_id, None)

    def close(self) -> None:
        """Close the pipes of restored processes that the caller has not claimed."""
        for process in self._unclaimed.values():
            process.streams.close()
