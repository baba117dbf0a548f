"""The calls to a sandbox's init, which can wait while the sandbox is frozen or restored."""

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_native import InitClient, InitError

_REST_SECONDS = 30.0
_REACH = "reach the init of a sandbox"


class InitCalls:
    """Passes calls to the init of one sandbox, also after a restore.

    While it rests no connection to init is open, so nothing inside refers to the outside.
    A pending `wait` is cancelled then and repeated later.
    """

    def __init__(self, client: Callable[[], InitClient | None]) -> None:
        self._find = client
        self._gate = Gate()
        self._waits: set[asyncio.Task[int]] = set()
        self._codes: dict[int, int] = {}
        """Exit codes whose caller was cancelled before the code arrived."""

    def _client(self, what: str) -> InitClient:
        client = self._find()
        if client is None:
            raise InitError(errno.ECONNREFUSED, "connection", what)
        return client

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        uid: int,
        gid: int,
        groups: Sequence[int] = (),
        rlimits: Mapping[int, tuple[int, int]] = {},
        fds: tuple[int, int, int],
    ) -> int:
        """Start a program; see `InitClient.spawn`."""
        async with self._gate.while_open():
            with shortage_is_host_error(_REACH):
                return await self._client("spawn").spawn(
                    argv,
                    env=env,
                    cwd=cwd,
                    uid=uid,
                    gid=gid,
                    groups=groups,
                    rlimits=rlimits,
                    fds=fds,
                )

    async def kill(self, pid: int, signal: int, *, group: bool = True) -> None:
        """Send a signal; see `InitClient.kill`."""
        async with self._gate.while_open():
            with shortage_is_host_error(_REACH):
                await self._client("kill").kill(pid, signal, group=group)

    async def kill_all(self) -> None:
        """Kill everything but init; see `InitClient.kill_all`."""
        async with self._gate.while_open():
            with shortage_is_host_error(_REACH):
                await self._client("kill_all").kill_all()

    async def ping(self) -> str:
        """Return init's version; see `InitClient.ping`."""
        async with self._gate.while_open():
            with shortage_is_host_error(_REACH):
                return await self._client("ping").ping()

    async def wait(self, pid: int) -> int:
        """Return the exit code; see `InitClient.wait`."""
        while True:
            await self._gate.wait_open()
            if pid in self._codes:
                return self._codes.pop(pid)
            asking = asyncio.get_running_loop().create_task(self._client("wait").wait(pid))
            self._waits.add(asking)
            try:
                with shortage_is_host_error(_REACH):
                    return await asking
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and not task.cancelling() and self._gate.is_closed:
                    continue
                if asking.done() and not asking.cancelled() and asking.exception() is None:
                    self._codes[pid] = asking.result()
                raise
            finally:
                self._waits.discard(asking)

    async def rest(self) -> None:
        """Cancel or finish every call; let new calls wait until `resume`.

        Raises:
            SandboxError: Init does not answer. Calls continue.
        """
        self._gate.close()
        try:
            async with asyncio.timeout(_REST_SECONDS):
                waits = list(self._waits)
                for asking in waits:
                    asking.cancel()
                if waits:
                    await asyncio.wait(waits)
                await self._gate.wait_empty()
                # The answer means that init has closed what was given up; a dead one has, too.
                with suppress(InitError), shortage_is_host_error(_REACH):
                    await self._client("ping").ping()
        except TimeoutError as error:
            self._gate.open()
            raise SandboxError("the sandbox does not come to rest", retryable=True) from error
        except BaseException:
            self._gate.open()
            raise

    def resume(self) -> None:
        """Let calls continue."""
        self._gate.open()
