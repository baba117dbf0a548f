"""The worker of a driver in another process: it runs rollouts, and keeps their completions."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from benchflow_contracts import Completion, Dispatch, Executor, NodeError, Ticket
from benchflow_contracts.room import attempt_key
from pydantic_core import PydanticSerializationError

from .local_backend import LocalBackend

Batch = list[tuple[int, str]]
"""Completions as JSON, each with its number."""

_RENEWALS: Final = 3
"""How often a lease is renewed in its time."""


class LeasedWorker:
    """Runs rollouts, as long as a driver renews its lease.

    Each call of `run` and `collect` renews the lease. Without one, the worker cancels its
    rollouts: the driver is gone, or believes that the worker is. The worker keeps each completion
    until the driver says that the completion has arrived.
    """

    def __init__(
        self,
        executor: AbstractAsyncContextManager[Executor],
        lease_sec: float,
        capacity: Mapping[str, int] | None = None,
    ) -> None:
        """Prepare the worker.

        Args:
            executor: Opens the executor, and closes it at the end.
            lease_sec: How long the driver may be silent.
            capacity: What may be in use at once (default: no limits, because the driver counts).
        """
        self._executor = executor
        self._lease_sec = lease_sec
        self._capacity = dict(capacity or {})
        self._renewed = time.monotonic()
        self._backend: LocalBackend | None = None
        self._tickets: dict[str, Ticket] = {}
        self._accepted: set[str] = set()
        self._unread: dict[int, str] = {}
        self._count = 0
        self._failure = ""
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed = asyncio.Event()

    @property
    def running(self) -> int:
        """The number of attempts without a completion."""
        return len(self._tickets)

    @property
    def silent_sec(self) -> float:
        """The seconds since the driver renewed its lease."""
        return time.monotonic() - self._renewed

    async def live(self) -> None:
        """Open the executor, and run until `close`."""
        try:
            async with self._executor as executor:
                await self._serve(LocalBackend(executor, self._capacity))
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
        """Start attempts, given as JSON; see `start`."""
        await self.start([Dispatch.model_validate_json(text) for text in dispatches])

    async def start(self, dispatches: Sequence[Dispatch]) -> None:
        """Start attempts. One that arrives twice runs once.

        Raises:
            CapacityError: An attempt needs more than this worker has, or the worker is closed.
        """
        assert self._backend is not None
        self._renewed = time.monotonic()
        for dispatch in dispatches:
            key = attempt_key(dispatch)
            if key in self._accepted:
                continue
            self._accepted.add(key)
            try:
                self._tickets[key] = await self._backend.submit(dispatch)
            except BaseException:
                self._accepted.discard(key)
                raise

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
            self._tickets.pop(attempt_key(completion), None)
            self._count += 1
            self._unread[self._count] = _to_json(completion)
            self._news.set()

    async def _watch_lease(self) -> None:
        while True:
            await asyncio.sleep(self._lease_sec / _RENEWALS)
            if self.silent_sec > self._lease_sec:
                await self.fence(self._lease_sec)


def _to_json(completion: Completion) -> str:
    try:
        return completion.model_dump_json()
    except PydanticSerializationError as error:
        failure = NodeError(boundary="internal", type="UnsendableRecordError", message=str(error))
        changes = {"status": "unscored", "record": None, "error": failure}
        return completion.model_copy(update=changes).model_dump_json()
