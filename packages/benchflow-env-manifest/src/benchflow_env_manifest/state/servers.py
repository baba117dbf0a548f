"""The backends whose state only a running server can read."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from benchflow_contracts import EnvironmentError_, EnvState, SandboxFrozenError

from .backend import StateBackend
from .reading import in_folder, read_all

_CARRIED = "state:"
"""The prefix of holders in `capture`. No service has such a name."""


class Servers:
    """All servers together: held, read and released as one."""

    def __init__(self, backends: Sequence[StateBackend]) -> None:
        self._backends = tuple(each for each in backends if each.online)

    async def serving(self) -> str:
        """Return why a server does not respond yet, or `""`."""
        try:
            for each in self._backends:
                await in_folder(partial(each.check, still=False))
        except EnvironmentError_ as exc:
            return str(exc)
        return ""

    @asynccontextmanager
    async def held(self, *, persist: bool) -> AsyncGenerator[None, None]:
        """Keep all from writing; see `StateBackend.hold`.

        Raises:
            EnvironmentError_: A server did not become idle; none is held.
        """
        async with AsyncExitStack() as stack:
            for each in self._backends:
                await _hold(each, stack, persist=persist)
            yield

    async def read(self) -> EnvState:
        """Return the state of all servers."""
        return await read_all(self._backends, still=False)

    def live_services(self) -> Mapping[str, str]:
        """Return the processes that hold the servers, for a live image."""
        return {_CARRIED + each.name: each.holder for each in self._backends if each.holder}

    async def let_go(self, carried: Mapping[str, str], sealed: EnvState | None) -> None:
        """Release the servers of a live image after a check that each has the state `sealed`.

        They were held when the image was taken, so nothing can have written since.

        Raises:
            EnvironmentError_: A server has another state.
        """
        if sealed is not None and self._backends:
            found = (await self.read()).databases
            for each in self._backends:
                then, now = sealed.databases.get(each.name, {}), found.get(each.name, {})
                if not each.agree(then, now):
                    raise EnvironmentError_(
                        f"{each.label} does not hold what the live checkpoint says of it",
                        hint="take live checkpoints within `quiesce()`",
                    )
        for each in self._backends:
            await each.let_go(carried.get(_CARRIED + each.name, ""))


def services_in(carried: Mapping[str, str]) -> Mapping[str, str]:
    """Return the services of `capture`, without the holders of servers."""
    return {name: ident for name, ident in carried.items() if not name.startswith(_CARRIED)}


async def _hold(server: StateBackend, stack: AsyncExitStack, *, persist: bool) -> None:
    try:
        await stack.enter_async_context(server.hold(persist=persist))
    except SandboxFrozenError as exc:
        raise EnvironmentError_(
            f"{server.label} cannot be read while the sandbox is frozen",
            hint="enter `quiesce()` before the freeze",
        ) from exc
