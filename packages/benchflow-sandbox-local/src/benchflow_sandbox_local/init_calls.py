"""Calls to a sandbox's init. They can wait while the sandbox is frozen or restored."""

import asyncio
import errno
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from benchflow_contracts.errors import SandboxError
from benchflow_sandbox_core.descriptors import shortage_is_host_error
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_native import InitClient, InitError

_REST_SECONDS = 30.0
_PROMPT_SECONDS = 60.0
_DOING = "reach the init of a sandbox"


@asynccontextmanager
async def _answered_in_time(operation: str) -> AsyncGenerator[None]:
    """Limit a call that init answers at once, and report a shortage of the host.

    Raises:
        InitError: Init does not answer.
    """
    try:
        with shortage_is_host_error(_DOING):
            async with asyncio.timeout(_PROMPT_SECONDS):
                yield
    except TimeoutError as error:
        raise InitError(errno.ETIMEDOUT, "connection", operation) from error


class InitCalls:
    """Passes calls to the init of one sandbox, also after a restore.

    Between `rest` and `resume` no connection to init is open, so nothing inside refers to the
    outside. `rest` cancels a pending `wait`, which is repeated after `resume`.
    """

    def __init__(self, client: Callable[[], InitClient | None]) -> None:
        self._find_client = client
        self._gate = Gate()
        self._waits: set[asyncio.Task[int]] = set()
        self._codes: dict[int, int] = {}
        """Exit codes whose caller was cancelled before the code arrived."""

    def _client(self, operation: str) -> InitClient:
        client = self._find_client()
        if client is None:
            raise InitError(errno.ECONNREFUSED, "connection", operation)
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
        async with self._gate.while_open(), _answered_in_time("spawn"):
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
        async with self._gate.while_open(), _answered_in_time("kill"):
            await self._client("kill").kill(pid, signal, group=group)

    async def kill_all(self) -> None:
        """Kill everything but init; see `InitClient.kill_all`."""
        async with self._gate.while_open(), _answered_in_time("kill_all"):
            await self._client("kill_all").kill_all()

    async def ping(self) -> str:
        """Return init's version; see `InitClient.ping`."""
        async with self._gate.while_open(), _answered_in_time("ping"):
            return await self._client("ping").ping()

    async def wait(self, pid: int) -> int:
        """Return the exit code; see `InitClient.wait`."""
        while True:
            await self._gate.wait_open()
            if pid in self._codes:
                return self._codes.pop(pid)
            call = asyncio.get_running_loop().create_task(self._client("wait").wait(pid))
            self._waits.add(call)
            try:
                with shortage_is_host_error(_DOING):
                    return await call
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and not task.cancelling() and self._gate.is_closed:
                    continue
                if call.done() and not call.cancelled() and call.exception() is None:
                    self._codes[pid] = call.result()
                raise
            finally:
                self._waits.discard(call)

    async def rest(self) -> None:
        """Cancel or finish every call; let new calls wait until `resume`.

        Raises:
            SandboxError: Init does not respond. Calls continue.
        """
        self._gate.close()
        try:
            async with asyncio.timeout(_REST_SECONDS):
                waits = list(self._waits)
                for call in waits:
                    call.cancel()
                if waits:
                    await asyncio.wait(waits)
                await self._gate.wait_empty()
                # After a response, init has closed the connections of cancelled calls. A dead
                # init has no connections.
                with suppress(InitError), shortage_is_host_error(_DOING):
                    await self._client("ping").ping()
        except TimeoutError as error:
            self._gate.open()
            raise SandboxError(
                f"calls to the sandbox's init did not end in {_REST_SECONDS:.0f} s", retryable=True
            ) from error
        except BaseException:
            self._gate.open()
            raise

    def resume(self) -> None:
        """Let calls continue."""
        self._gate.open()
