"""The backend that runs the rollouts of a job on servers of `bench serve`, on one or more hosts."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from benchflow_contracts import CapacityError, UsageError
from benchflow_contracts.remote_workers import RemoteBackend

from .server_link import ServerLink
from .transport import ServiceConnection
from .worker_models import WorkerSessionRequest

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


class HttpBackend(RemoteBackend[ServerLink]):
    """Runs each dispatch on one server, wholly: its sandboxes and forks are there, too.

    A server repeats nothing. An attempt on a server that is silent for its lease has one
    completion, `lost`, and the driver decides on another attempt.
    """

    worker_kind = "server"
    no_worker_error = NoServerError

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
        super().__init__(capacity, lease_sec=lease_sec, start_sec=start_sec, grace_sec=grace_sec)
        if not _LEASES[0] <= lease_sec <= _LEASES[1]:
            raise UsageError(
                f"lease_sec {lease_sec!r} is not between {_LEASES[0]} and {_LEASES[1]}"
            )
        self._grace_sec = grace_sec
        self._on_capacity = on_capacity
        request = WorkerSessionRequest(
            executor=executor,
            options=dict(options or {}),
            lease_sec=lease_sec,
        )
        self._connections = [ServiceConnection(url) for url in _addresses(servers)]
        self.workers = {
            each.url: ServerLink(each, request, self.report, self._note_change)
            for each in self._connections
        }
        self._group = asyncio.TaskGroup()
        self._serving: list[asyncio.Task[None]] = []
        self._reported: Mapping[str, int] = {}

    async def start(self) -> None:
        """Open a session on each server. The task that starts has to close.

        Raises:
            UsageError: Each server refuses the job.
            NoServerError: No server answered in time. Nothing is left.
        """
        await self._group.__aenter__()
        self._serving = [self._group.create_task(each.serve()) for each in self.workers.values()]
        try:
            await self._until_started()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every attempt and every session. Repeatable."""
        if self.total.is_closed:
            return
        self.total.close()
        self.wake()
        async with asyncio.TaskGroup() as group:
            for link in self.workers.values():
                group.create_task(link.close(self._grace_sec))
        for serving in self._serving:
            serving.cancel()
        await self._group.__aexit__(None, None, None)
        for connection in self._connections:
            await connection.close()
        self.end_completions()

    async def _until_started(self) -> None:
        """Wait for the first server as long as the start may take, and for the others a while."""
        end = time.monotonic() + self.start_sec
        links = self.workers.values()
        while not all(each.is_available or each.refusal for each in links):
            if any(each.is_available for each in links):
                end = min(end, time.monotonic() + _OTHERS_SEC)
            if (left := end - time.monotonic()) <= 0:
                break
            await self.wait(left)
        if any(each.is_available for each in links):
            return
        refusals = [f"{each.name}: {each.refusal}" for each in links if each.refusal]
        if refusals:
            raise UsageError(f"no server runs this job: {refusals[0]}")
        raise NoServerError(f"no server answered within {self.start_sec:g} s: {[*self.workers]}")

    def _note_change(self) -> None:
        capacity = self.capacity()
        if capacity != self._reported and not self.total.is_closed:
            self._reported = capacity
            self._on_capacity(capacity)
        self.wake()


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
