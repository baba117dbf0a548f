"""The base class of every kind of state."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import EnvironmentError_, EnvState, TableState

ROOT = "/.bf-state"
"""A directory of the sandbox that only root can read."""

Tables = Mapping[str, TableState]


class StateBackend(ABC):
    """One `[[environment.state]]`. Each call is correct also while services write.

    The methods that are not abstract are correct for plain files, which need no server.
    """

    label: str
    """The name of this backend in errors."""
    name: str = ""
    """The name of this backend in the state; "" if the state has its paths."""
    online: bool = False
    """Whether only a running server can read and restore it."""
    reading_proves: bool = False
    """Whether `read` finds all damage that `check` finds."""
    files: tuple[str, ...] = ()
    """Regular files that the agent must not reach."""
    trees: tuple[str, ...] = ()
    """Files or directories that the agent must not reach."""
    only_live: str = ""
    """Why a `state` fork or a restore cannot include this state; "" if it can."""
    holder: str = ""
    """Within `hold`, the id of the process that locks the server, if there is one."""

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Stop the server from writing. With `persist`, its files then have all of its state.

        The exit never fails. A hold with `persist` lasts until it is released, also in every
        child of a live image.
        """
        del persist
        yield

    @abstractmethod
    async def capture(self, directory: str) -> str:
        """Copy the state into the new `directory`; return the digest of the copy."""

    @abstractmethod
    async def restore(self, directory: str, digest: str) -> None:
        """Restore a copy that still has `digest`; on an error the state is unchanged."""

    @abstractmethod
    async def read(self, folder: Path, *, still: bool) -> EnvState:
        """Return the contents; `folder` is an empty host directory for copies.

        `still`: the caller has frozen the sandbox. Never true for an online backend.
        """

    async def copy(self, folder: Path, *, still: bool) -> Callable[[], Awaitable[EnvState]]:
        """Copy the contents; return a function that reads the copy without the sandbox."""
        state = await self.read(folder, still=still)

        async def read_copy() -> EnvState:
            return state

        return read_copy

    async def read_cached(self) -> EnvState | None:
        """Return the contents if they are cached for the bytes of the files; nothing is stopped.

        `None` if they are not cached; then call `read`.
        """
        return None

    async def forget(self, directory: str) -> None:
        """Remove the copies of `capture` outside of `directory`. Idempotent."""
        del directory

    def answers_about(self, state: str) -> bool:
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
        """Check that the state is undamaged, without changing it. See `read`."""
        del folder, still

    async def release(self, holder: str) -> None:
        """End the `hold` of a live image; `holder` is the process of that hold."""
        del holder

    def without_expired(self, state: EnvState, at: float) -> EnvState:
        """Return `state` without entries that expired before `at`, in seconds since the epoch."""
        del at
        return state

    def is_unchanged(self, then: Tables, now: Tables) -> bool:
        """Return whether a paused server of a live image still has the contents `then`."""
        return then == now


def refusal(backend: StateBackend) -> EnvironmentError_:
    """Return the error of a state that is `only_live`."""
    return EnvironmentError_(
        backend.only_live, hint="require fidelity `live`, or keep this state in files"
    )
