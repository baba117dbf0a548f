"""Pause, read and release the servers of the state together."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchflow_contracts import EnvironmentError_, EnvState, SandboxFrozenError

from .backend import StateBackend
from .reading import in_folder, read_all

_HOLDER_PREFIX = "state:"
"""The prefix of names of holders in `live_services`. No service has such a name."""


class Servers:
    """All backends whose state only a running server can read."""

    def __init__(self, backends: Sequence[StateBackend]) -> None:
        self._backends = tuple(each for each in backends if each.online)

    async def find_problem(self) -> str:
        """Return why a server does not respond yet, or `""`."""
        try:
            for each in self._backends:
                await in_folder(partial(each.check, still=False))
        except EnvironmentError_ as exc:
            return str(exc)
        return ""

    @asynccontextmanager
    async def hold(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Stop all servers from writing; see `StateBackend.hold`.

        Raises:
            EnvironmentError_: A server did not become idle; all are released.
        """
        async with AsyncExitStack() as stack:
            for each in self._backends:
                await _hold(each, stack, persist=persist)
            yield

    async def read(self) -> EnvState:
        """Return the state of all servers."""
        return await read_all(self._backends, still=False)

    def live_services(self) -> Mapping[str, str]:
        """Return the processes that lock the servers, for a live image."""
        return {_HOLDER_PREFIX + each.name: each.holder for each in self._backends if each.holder}

    async def release(self, live_services: Mapping[str, str], sealed: EnvState | None) -> None:
        """Release the servers of a live image after a check that each has the state `sealed`.

        They were paused when the image was captured, so nothing can have written since.

        Raises:
            EnvironmentError_: A server has another state.
        """
        if sealed is not None and self._backends:
            databases = (await self.read()).databases
            for each in self._backends:
                then, now = sealed.databases.get(each.name, {}), databases.get(each.name, {})
                if not each.is_unchanged(then, now):
                    raise EnvironmentError_(
                        f"{each.label} does not have the state of the live checkpoint",
                        hint="capture live checkpoints within `quiesce()`",
                    )
        for each in self._backends:
            await each.release(live_services.get(_HOLDER_PREFIX + each.name, ""))


def services_in(live_services: Mapping[str, str]) -> Mapping[str, str]:
    """Return the services without the processes that lock servers."""
    return {
        name: ident for name, ident in live_services.items() if not name.startswith(_HOLDER_PREFIX)
    }


async def _hold(server: StateBackend, stack: AsyncExitStack, *, persist: bool) -> None:
    try:
        await stack.enter_async_context(server.hold(persist=persist))
    except SandboxFrozenError as exc:
        raise EnvironmentError_(
            f"{server.label} cannot be read while the sandbox is frozen",
            hint="enter `quiesce()` before the freeze",
        ) from exc
