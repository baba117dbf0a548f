"""What every kind of state can do."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from benchflow_contracts import EnvState

ROOT = "/.bf-state"
"""Only root of the sandbox can look inside."""


class StateBackend(Protocol):
    """One `[[environment.state]]`. Each call is right also while services write."""

    @property
    def label(self) -> str:
        """What errors call it."""
        ...

    @property
    def online(self) -> bool:
        """Whether only a running server can read and restore it."""
        ...

    @property
    def files(self) -> tuple[str, ...]:
        """Regular files of it that the agent must not reach."""
        ...

    @property
    def trees(self) -> tuple[str, ...]:
        """Files or directories of it that the agent must not reach."""
        ...

    def hold(self, *, persist: bool) -> AbstractAsyncContextManager[None]:
        """Keep its server from writing; with `persist`, files hold all of it then.

        Leaving never fails.
        """
        ...

    async def capture(self, directory: str) -> str:
        """Copy it into `directory`, a new path; return the digest of the copy."""
        ...

    async def restore(self, directory: str, digest: str) -> None:
        """Put a copy back when it still has `digest`; on an error it is as it was."""
        ...

    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return its contents; `folder` is an empty host directory for copies.

        `still`: the caller holds the sandbox, nothing inside runs. Never for an online
        backend.
        """
        ...

    def holds(self, state: str) -> bool:
        """Whether SQL about `state` is for this backend."""
        ...

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Answer (state, SQL) queries by name, each by its first value. As `read`."""
        ...

    async def check(self, folder: Path, *, still: bool) -> None:
        """Prove that it is whole, with its own means. Changes nothing. As `read`."""
        ...

    async def adopt(self, *, live: bool) -> None:
        """Take over what a checkpoint carried; `live` when processes were, too."""
        ...
