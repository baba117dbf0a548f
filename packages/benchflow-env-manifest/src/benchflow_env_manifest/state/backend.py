"""What every kind of state can do."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, TableState

ROOT = "/.bf-state"
"""Only root of the sandbox can look inside."""

Tables = Mapping[str, TableState]


class StateBackend(ABC):
    """One `[[environment.state]]`. Each call is right also while services write.

    What is not abstract is right for plain files, which need no server.
    """

    label: str
    """What errors call it."""
    name: str = ""
    """What the state calls it, when it is not known by its paths."""
    online: bool = False
    """Whether only a running server can read and restore it."""
    reading_proves: bool = False
    """Whether `read` finds whatever `check` would."""
    files: tuple[str, ...] = ()
    """Regular files of it that the agent must not reach."""
    trees: tuple[str, ...] = ()
    """Files or directories of it that the agent must not reach."""
    only_live: str = ""
    """Why a `state` fork or a restore cannot carry it."""
    holder: str = ""
    """Within `hold`, the id of the process that holds it, when one does."""

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Keep its server from writing; with `persist`, files hold all of it then.

        Leaving never fails. What a `persist` holds stays so until it is let go, also in
        every child of a live image.
        """
        del persist
        yield

    @abstractmethod
    async def capture(self, directory: str) -> str:
        """Copy it into `directory`, a new path; return the digest of the copy."""

    @abstractmethod
    async def restore(self, directory: str, digest: str) -> None:
        """Put a copy back when it still has `digest`; on an error it is as it was."""

    @abstractmethod
    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return its contents; `folder` is an empty host directory for copies.

        `still`: the caller holds the sandbox, nothing inside runs. Never for an online
        backend.
        """

    async def copied(self, folder: Path, *, still: bool) -> Callable[[], Awaitable[EnvState]]:
        """Copy what there is to read; what is returned reads it, and needs no sandbox."""
        state = await self.read(folder, still=still)

        async def known() -> EnvState:
            return state

        return known

    async def glance(self) -> EnvState | None:
        """Return its contents when they are known from its bytes, which all runs on beside.

        `None` when they are not, or when they change; then somebody has to `read`.
        """
        return None

    async def forget(self, directory: str) -> None:
        """Undo what `capture` left outside of `directory`. Idempotent."""
        del directory

    def holds(self, state: str) -> bool:
        """Whether SQL about `state` is for this backend."""
        del state
        return False

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Answer (state, SQL) queries by name, each by its first value. As `read`."""
        del queries, folder, still
        return {}

    async def check(self, folder: Path, *, still: bool) -> None:
        """Prove that it is whole, with its own means. Changes nothing. As `read`."""
        del folder, still

    async def let_go(self, holder: str) -> None:
        """Undo the hold that a live image carried, with the `holder` that it had."""
        del holder

    def lasting(self, state: EnvState, at: float) -> EnvState:
        """Return `state` without what only time has taken away by `at`, seconds since the epoch."""
        del at
        return state

    def agree(self, then: Tables, now: Tables) -> bool:
        """Whether a held server that was carried live still has what was read `then`."""
        return then == now


def refusal(backend: StateBackend) -> EnvironmentError_:
    """Return the error of a state that is `only_live`."""
    return EnvironmentError_(backend.only_live, hint="require fidelity `live`, or keep it in files")
