"""The backend that runs the rollouts of a job on servers of `bench serve`, on one or more hosts."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

from benchflow_contracts import CapacityError, Completion, Dispatch, Ticket, UsageError

from .server_link import ResourceCount, ServerLink
from .transport import ServiceConnection
from .worker_models import WorkerSessionRequest, attempt_key

_WATCH_SEC: Final = 1.0
_LEASES: Final = (0.1, 3600)
"""The shortest and the longest lease that a server gives."""
_OTHERS_SEC: Final = 3.0
"""How long the start waits for further servers. A server may join at any time later."""


class NoServerError(CapacityError):
    """No server is left that runs the job. The job stops, and can be resumed."""

    default_hint = "start `bench serve --allow-jobs` again, then resume the job"
    stops_job = True


def _ignore(capacity: Mapping[str, int]) -> None:
    del capacity


class HttpBackend:
    """Runs each dispatch on one server, wholly: its sandboxes and forks are there, too.

    A server repeats nothing. An attempt on a server that is silent for its lease has one
    completion, `lost`, and the driver decides on another attempt.
    """

    def __init__(
        self,
        executor: str,
        capacity: Mapping[str, int] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        servers: Sequence[str] = (),
        lease_sec: float = 30,
        start_sec: float = 90,
        grace_sec: float = 60,
        on_capacity: Callable[[Mapping[str, int]], None] = _ignore,
    ) -> None:
        """Prepare the backend.

        Args:
            executor: The executor, as `module:attr`. Servers accept the one of BenchFlow's jobs.
            capacity: The resources that may be held at once (default: what the servers have).
            options: The arguments of the executor, as JSON.
            servers: The addresses of the servers, such as `http://host:8643`. The bearer token
                of all is in $BENCHFLOW_SERVE_TOKEN.
            lease_sec: How long a server may not answer until its attempts are lost.
            start_sec: How long the first servers may take to start, and no server may be left.
            grace_sec: How long `close` waits for the teardown of what runs.
            on_capacity: Is called when servers came or went. It must not block.

        Raises:
            UsageError: No server is named, an address is wrong or occurs twice, or a time is not a
                positive number of seconds.
        """
        for seconds in (lease_sec, start_sec, grace_sec):
            if not 0 < seconds < math.inf:
                raise UsageError(f"{seconds!r} is not a positive number of seconds")
        if not _LEASES[0] <= lease_sec <= _LEASES[1]:
            raise UsageError(
                f"lease_sec {lease_sec!r} is not between {_LEASES[0]} and {_LEASES[1]}"
            )
        self._start_sec = start_sec
        self._grace_sec = grace_sec
        self._on_capacity = on_capacity
        self._total = ResourceCount(capacity or {}, "the job")
        request = WorkerSessionRequest(
            executor=executor,
            options=dict(options or {}),
            lease_sec=lease_sec,
        )
        self._connections = [ServiceConnection(url) for url in _addresses(servers)]
        self._links = {
            each.url: ServerLink(each, request, self._report, self._note_change)
            for each in self._connections
        }
        self._ended: asyncio.Queue[Completion | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._serving: list[asyncio.Task[None]] = []
        self._reported: Mapping[str, int] = {}
        self._is_closed = False

    async def start(self) -> None:
        """Open a session on each server. The task that starts has to close.

        Raises:
            UsageError: Each server refuses the job.
            NoServerError: No server answered in time. Nothing is left.
        """
        await self._group.__aenter__()
        self._serving = [self._group.create_task(each.serve()) for each in self._links.values()]
        try:
            await self._until_started()
        except BaseException:
            await self.close()
            raise

    def capacity(self) -> Mapping[str, int]:
        """Return the resources of all servers together, at most those that may be held."""
        limits = self._total.capacity
        servers = Counter(slots=0)
        for link in self._links.values():
            if link.is_available:
                servers.update(link.room.capacity)
        return {
            name: min(limits.get(name, servers[name]), servers.get(name, limits.get(name, 0)))
            for name in {**limits, **servers}
        }

    async def resize(self, capacity: Mapping[str, int]) -> None:
        """Set the resources that may be held at once; see `ResizableBackend`."""
        self._total.capacity.update(capacity)
        self._wake()

    async def submit(self, dispatch: Dispatch) -> Ticket:
        """Hand the attempt to the server with the most room; see `WorkerBackend`.

        Raises:
            NoServerError: No server is left for `start_sec` seconds.
        """
        link = await self._choose(dispatch)
        self._total.hold(dispatch)
        link.add(dispatch)
        return Ticket(
            id=attempt_key(dispatch),
            worker=link.url,
            job=dispatch.job,
            index=dispatch.index,
            attempt=dispatch.attempt,
        )

    async def completions(self) -> AsyncIterator[Completion]:
        """Yield each completion once; see `WorkerBackend`."""
        while (completion := await self._ended.get()) is not None:
            yield completion

    async def cancel(self, ticket: Ticket, grace_sec: float) -> None:
        """End an attempt; see `WorkerBackend`."""
        link = self._links.get(ticket.worker)
        if link is not None:
            await link.cancel(ticket.id, grace_sec)

    async def close(self) -> None:
        """End every attempt and every session. Repeatable."""
        if self._is_closed:
            return
        self._is_closed = True
        self._wake()
        async with asyncio.TaskGroup() as group:
            for link in self._links.values():
                group.create_task(link.close(self._grace_sec))
        for serving in self._serving:
            serving.cancel()
        await self._group.__aexit__(None, None, None)
        for connection in self._connections:
            await connection.close()
        self._ended.put_nowait(None)

    async def _until_started(self) -> None:
        """Wait for the first server as long as the start may take, and for the others a while."""
        end = time.monotonic() + self._start_sec
        links = self._links.values()
        while not all(each.is_available or each.refusal for each in links):
            if any(each.is_available for each in links):
                end = min(end, time.monotonic() + _OTHERS_SEC)
            if (left := end - time.monotonic()) <= 0:
                break
            await self._wait(left)
        if any(each.is_available for each in links):
            return
        refusals = [f"{each.url}: {each.refusal}" for each in links if each.refusal]
        if refusals:
            raise UsageError(f"no server runs this job: {refusals[0]}")
        raise NoServerError(f"no server answered within {self._start_sec:g} s: {[*self._links]}")

    async def _choose(self, dispatch: Dispatch) -> ServerLink:
        """Wait for a server with room."""
        end = time.monotonic() + self._start_sec
        while True:
            if self._is_closed:
                raise CapacityError(f"slot {dispatch.slot!r} cannot start: the backend is closed")
            if reason := self._total.refusal(dispatch):
                raise CapacityError(reason)
            links = [each for each in self._links.values() if each.is_available]
            fitting = [each for each in links if each.room.fits(dispatch)]
            if fitting and self._total.fits(dispatch):
                return min(fitting, key=lambda each: each.room.load())
            refusals = [each.room.refusal(dispatch) for each in links]
            if links and all(refusals):
                raise CapacityError(str(refusals[0]))
            left = end - time.monotonic()
            if not links and left <= 0:
                raise NoServerError(f"no server is left for slot {dispatch.slot!r}")
            if links:
                end = time.monotonic() + self._start_sec
            await self._wait(max(left, _WATCH_SEC) if not links else None)

    async def _wait(self, seconds: float | None) -> None:
        """Wait until something changes, for at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _note_change(self) -> None:
        capacity = self.capacity()
        if capacity != self._reported and not self._is_closed:
            self._reported = capacity
            self._on_capacity(capacity)
        self._wake()

    def _report(self, completion: Completion, freed: Dispatch) -> None:
        """Yield a completion, and free the resources of its dispatch."""
        self._total.give_back(freed)
        self._ended.put_nowait(completion)


def _addresses(servers: Sequence[str]) -> list[str]:
    if isinstance(servers, str):
        raise UsageError(f"servers is not a list of addresses: {servers!r}")
    if not servers:
        raise UsageError(
            "the backend 'http' has no servers",
            hint='set backend.options.servers = ["http://HOST:8643"]',
        )
    addresses = [each.rstrip("/") for each in servers]
    for each in addresses:
        if addresses.count(each) > 1:
            raise UsageError(f"server {each!r} is named twice")
    return addresses
