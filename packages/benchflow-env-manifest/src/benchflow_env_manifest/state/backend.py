"""The base class of every kind of state."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, TableState

ROOT = "/.bf-state"
"""A directory that only root of the sandbox can read."""

Tables = Mapping[str, TableState]


class StateBackend(ABC):
    """One `[[environment.state]]`. Each call is correct also while services write.

    The methods that are not abstract are correct for plain files, which need no server.
    """

    label: str
    """Its name in errors."""
    name: str = ""
    """Its name in the state, if it does not use its paths."""
    online: bool = False
    """Whether only a running server can read and restore it."""
    reading_proves: bool = False
    """Whether `read` finds all damage that `check` finds."""
    files: tuple[str, ...] = ()
    """Regular files of it that the agent must not reach."""
    trees: tuple[str, ...] = ()
    """Files or directories of it that the agent must not reach."""
    only_live: str = ""
    """Why a `state` fork or a restore cannot include it; "" if it can."""
    holder: str = ""
    """Within `hold`, the id of the process that holds it, if there is one."""

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Keep its server from writing. With `persist`, its files then have all of its state.

        The exit never fails. A hold with `persist` lasts until it is released, also in every
        child of a live image.
        """
        del persist
        yield

    @abstractmethod
    async def capture(self, directory: str) -> str:
        """Copy it into `directory`, a new path; return the digest of the copy."""

    @abstractmethod
    async def restore(self, directory: str, digest: str) -> None:
        """Restore a copy that still has `digest`; on an error the state is unchanged."""

    @abstractmethod
    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return its contents; `folder` is an empty host directory for copies.

        `still`: the caller has frozen the sandbox. Never true for an online backend.
        """

    async def copied(self, folder: Path, *, still: bool) -> Callable[[], Awaitable[EnvState]]:
        """Copy the contents; return a function that reads the copy without the sandbox."""
        state = await self.read(folder, still=still)

        async def known() -> EnvState:
            return state

        return known

    async def glance(self) -> EnvState | None:
        """Return its contents if they are cached for its bytes, while everything runs.

        `None` if they are not cached, or if they change; then call `read`.
        """
        return None

    async def forget(self, directory: str) -> None:
        """Remove what `capture` created outside of `directory`. Idempotent."""
        del directory

    def holds(self, state: str) -> bool:
        """Return whether this backend answers SQL about `state`."""
        del state
        return False

    async def ask(
        self, queries: Mapping[str, tuple[str, str]], folder: Path, *, still: bool
    ) -> Mapping[str, object]:
        """Return the first value of each (state, SQL) query, by name. See `read`."""
        del queries, folder, still
        return {}

    async def check(self, folder: Path, *, still: bool) -> None:
        """Check that it is undamaged, without changing it. See `read`."""
        del folder, still

    async def let_go(self, holder: str) -> None:
        """Release the hold from a live image, by its `holder`."""
        del holder

    def lasting(self, state: EnvState, at: float) -> EnvState:
        """Return `state` without entries that expired before `at`, in seconds since the epoch."""
        del at
        return state

    def agree(self, then: Tables, now: Tables) -> bool:
        """Return whether a held server of a live image still has the contents `then`."""
        return then == now


def refusal(backend: StateBackend) -> EnvironmentError_:
    """Return the error of a state that is `only_live`."""
    return EnvironmentError_(backend.only_live, hint="require fidelity `live`, or keep it in files")
