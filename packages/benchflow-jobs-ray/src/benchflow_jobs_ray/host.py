"""The actor of a node: it runs rollouts with one executor, and keeps their completions."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from benchflow_contracts import Completion, Dispatch, Executor, NodeError, Ticket, UsageError
from benchflow_jobs.local_backend import LocalBackend
from benchflow_kernel import load_path
from pydantic_core import PydanticSerializationError

Batch = list[tuple[int, str]]
"""Completions as JSON, each with its number."""

_RENEWALS: Final = 3
"""How often a lease is renewed in its time."""


class WorkerHost:
    """Runs rollouts on one node, as long as a driver renews its lease.

    Each call of `collect` renews the lease. Without one, the host cancels its rollouts: the driver
    is gone, or believes that the host is. The host keeps each completion until the driver says
    that the completion has arrived.
    """

    def __init__(self, executor: str, options: Mapping[str, Any], lease_sec: float) -> None:
        self._executor = executor
        self._options = dict(options)
        self._lease_sec = lease_sec
        self._renewed = time.monotonic()
        self._backend: LocalBackend | None = None
        self._tickets: dict[str, Ticket] = {}
        self._unread: dict[int, str] = {}
        self._count = 0
        self._failure = ""
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()

    async def live(self) -> None:
        """Open the executor, and run until `close`."""
        try:
            async with open_executor(self._executor, self._options) as executor:
                await self._serve(LocalBackend(executor, {}))
        except Exception as error:  # noqa: BLE001 - `ready` reports it to the driver
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._ready.set()
            self._closed.set()

    async def ready(self) -> str:
        """Wait until rollouts can run. Return why they cannot, or an empty string."""
        await self._ready.wait()
        return self._failure

    async def run(self, dispatches: list[str]) -> None:
        """Start attempts, given as JSON."""
        assert self._backend is not None
        self._renewed = time.monotonic()
        for text in dispatches:
            dispatch = Dispatch.model_validate_json(text)
            self._tickets[key_of(dispatch)] = await self._backend.submit(dispatch)

    async def collect(self, arrived: int) -> Batch:
        """Return the completions after number `arrived`; wait for one for a while."""
        self._renewed = time.monotonic()
        for number in [number for number in self._unread if number <= arrived]:
            del self._unread[number]
        if not self._unread and not self._closed.is_set():
            self._news.clear()
            try:
                async with asyncio.timeout(self._lease_sec / _RENEWALS):
                    await self._news.wait()
            except TimeoutError:
                pass
        return list(self._unread.items())

    async def cancel(self, keys: list[str]) -> None:
        """Begin to cancel attempts. Their completions arrive when they are torn down."""
        for key in keys:
            await self._cancel(key, 0)

    async def fence(self, grace_sec: float) -> list[str]:
        """Cancel every attempt. Return those that still run after the grace."""
        async with asyncio.TaskGroup() as group:
            for key in self._tickets:
                group.create_task(self._cancel(key, grace_sec))
        return list(self._tickets)

    async def close(self) -> None:
        """Cancel every attempt, wait for their teardown, and close the executor."""
        self._closing.set()
        await self._closed.wait()

    async def _cancel(self, key: str, grace_sec: float) -> None:
        ticket = self._tickets.get(key)
        if ticket is not None and self._backend is not None:
            await self._backend.cancel(ticket, grace_sec)

    async def _serve(self, backend: LocalBackend) -> None:
        self._backend = backend
        await backend.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(backend))
                watch = group.create_task(self._watch_lease())
                self._renewed = time.monotonic()
                self._ready.set()
                await self._closing.wait()
                watch.cancel()
                await backend.close()
        finally:
            await backend.close()

    async def _keep(self, backend: LocalBackend) -> None:
        async for completion in backend.completions():
            self._tickets.pop(key_of(completion), None)
            self._count += 1
            self._unread[self._count] = _to_json(completion)
            self._news.set()

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_sec / _RENEWALS)
            if time.monotonic() - self._renewed > self._lease_sec:
                await self.fence(self._lease_sec)


def _to_json(completion: Completion) -> str:
    try:
        return completion.model_dump_json()
    except PydanticSerializationError as error:
        failure = NodeError(boundary="internal", type="UnsendableRecordError", message=str(error))
        changes = {"status": "unscored", "record": None, "error": failure}
        return completion.model_copy(update=changes).model_dump_json()


def key_of(each: Dispatch | Completion) -> str:
    """Return the key of an attempt. A driver hands an attempt out only once."""
    return f"{each.index}/{each.attempt}/{each.epoch}"


@asynccontextmanager
async def open_executor(path: str, options: Mapping[str, Any]) -> AsyncGenerator[Executor]:
    """Import the executor at `path`, as `module:attr`, and open it.

    A class or a function is called with `options`. Its result may be an asynchronous context
    manager that yields the executor.

    Raises:
        UsageError: There is not an executor at that path.
    """
    found: Any = cast("Any", load_path(path))
    is_factory = isinstance(found, type) or not hasattr(found, "run")
    if is_factory and not callable(found):
        raise UsageError(f"{path!r} is not an executor: it has no method `run`")
    made: Any = cast("Any", found(**options) if is_factory else found)
    if hasattr(made, "__aenter__"):
        async with made as opened:
            yield _checked(path, opened)
    else:
        yield _checked(path, made)


def _checked(path: str, made: object) -> Executor:
    if not callable(getattr(made, "run", None)):
        raise UsageError(f"{path!r} made {type(made).__name__}, which has no method `run`")
    return cast("Executor", made)
