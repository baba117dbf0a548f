"""State that lives in a process's memory."""

from pathlib import Path

from benchflow_contracts import EnvState

from .backend import StateBackend, refusal


class ProcessState(StateBackend):
    """Nothing that could be copied: a `live` checkpoint carries it, and nothing else."""

    def __init__(self, service: str) -> None:
        self.label = f"process {service!r}"
        self.only_live = (
            f"the state of service {service!r} lives in its process's memory: only a live fork"
            " carries it"
        )

    async def capture(self, directory: str) -> str:
        """Capture nothing: a snapshot of the other state may still be of use."""
        del directory
        return "memory"

    async def restore(self, directory: str, digest: str) -> None:
        """Refuse: memory cannot be rolled back under a running process."""
        del directory, digest
        raise refusal(self)

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Show nothing."""
        del folder, still
        return EnvState()
