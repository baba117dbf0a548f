"""The backend that runs rollouts on the nodes of a Ray cluster."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from benchflow_contracts import UsageError
from benchflow_contracts.remote_workers import RemoteBackend

from . import connection
from .cluster import LocalCluster
from .connection import LABEL
from .errors import NoNodeError, RayStartError
from .node import Node, NodeLostError

_WATCH_SEC: Final = 1.0
_HEAD_SEC: Final = 40.0
"""How long the head may not answer. After 60 seconds, Ray ends this process."""
_LOG: Final = logging.getLogger(__name__)


def _ignore(capacity: Mapping[str, int]) -> None:
    del capacity


class RayBackend(RemoteBackend[Node]):
    """Runs each dispatch in an actor of one node, wholly: its sandboxes and forks are there, too.

    A node takes part if it has the custom resource `benchflow`, also if it joins later. Ray
    repeats nothing: an attempt whose node is lost has a completion that says so, and the driver
    decides on another attempt. A lost attempt that ends after all has a second completion.
    """

    worker_kind = "node of the Ray cluster"
    no_worker_error = NoNodeError

    def __init__(
        self,
        executor: str,
        capacity: Mapping[str, int] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        address: str | None = None,
        lease_sec: float = 30,
        start_sec: float = 90,
        grace_sec: float = 60,
        on_capacity: Callable[[Mapping[str, int]], None] = _ignore,
    ) -> None:
        """Prepare the backend.

        Args:
            executor: The executor, as `module:attr`, which every node can import: an object, or
                a factory that is called with `options`.
            capacity: The resources that may be held at once (default: what the nodes have).
            options: The arguments of the factory, as JSON.
            address: The address of a running cluster (default: start one node on this machine,
                with `capacity["slots"]` slots).
            lease_sec: How long a node may not answer until its attempts are lost.
            start_sec: How long the first nodes may take to start.
            grace_sec: How long `close` waits for the teardown of what runs.
            on_capacity: Is called when nodes joined or left. It must not block.

        Raises:
            UsageError: A time is not a positive number of seconds.
        """
        super().__init__(capacity, lease_sec=lease_sec, start_sec=start_sec, grace_sec=grace_sec)
        self._executor = executor
        self._options = dict(options or {})
        self._address = address
        self._lease_sec = lease_sec
        self._grace_sec = grace_sec
        self._on_capacity = on_capacity
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._group = asyncio.TaskGroup()
        self._watching: asyncio.Task[None] | None = None
        self._cluster: LocalCluster | None = None
        self._is_connected = False
        self._actors: dict[str, Any] = {}
        self._refusals: dict[str, str] = {}
        """Why the executor cannot be opened on a node."""

    async def start(self) -> None:
        """Connect, and start an actor on each node. The task that starts has to close.

        Raises:
            RayStartError: Ray did not start, or no node takes part. Nothing is left.
            UsageError: The executor cannot be opened on any node.
        """
        await self._group.__aenter__()
        try:
            await self._connect()
            self._watching = self._group.create_task(self._watch())
            await self._until_started()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End every attempt and every actor, and the cluster if this backend started it."""
        if self.total.is_closed:
            return
        self.total.close()
        self.wake()
        if self._watching is not None:
            self._watching.cancel()
        async with asyncio.TaskGroup() as group:
            for node in self.workers.values():
                group.create_task(node.close(self._grace_sec))
        for serving in self._serving.values():
            serving.cancel()
        await self._group.__aexit__(None, None, None)
        # Without the head, these calls would wait until Ray ends this process.
        if self._actors and not self.failure:
            await connection.end_actors([*self._actors.values()])
        if self._is_connected and not self.failure:
            await connection.disconnect()
        if self._cluster is not None:
            await self._cluster.close()
        self.end_completions()

    async def _connect(self) -> None:
        if self._address is None:
            slots = self.total.capacity.get("slots", os.cpu_count() or 1)
            self._cluster = LocalCluster([{LABEL: slots}], start_sec=self.start_sec)
            await self._cluster.start()
        address = self._address or (self._cluster.address if self._cluster else "")
        self._is_connected = await connection.connect(address, self.start_sec)

    async def _until_started(self) -> None:
        end = time.monotonic() + self.start_sec
        while not self._are_opened() and (left := end - time.monotonic()) > 0:
            await self.wait(left)
        if self._refusals and not self.workers:
            refusal = next(iter(self._refusals.values()))
            raise UsageError(f"no node can run {self._executor!r}: {refusal}")
        if not any(node.is_available for node in self.workers.values()):
            raise RayStartError(
                f"no node of the Ray cluster had free slots within {self.start_sec:g} s",
                hint=f"start nodes with `ray start --resources='{{\"{LABEL}\": 8}}'`; "
                "one job at a time uses a node",
            )

    def _are_opened(self) -> bool:
        """Return whether every node that is known has answered."""
        available = {name for name, node in self.workers.items() if node.is_available}
        return bool(self._serving) and self._serving.keys() == available | self._refusals.keys()

    async def _watch(self) -> None:
        """Serve each node that joins, and give up each node that left, or all without a head."""
        answered = time.monotonic()
        while not self.failure:
            alive = await connection.alive_nodes()
            if alive is None and time.monotonic() - answered > _HEAD_SEC:
                self.failure, alive = "the head of the Ray cluster does not answer", {}
                _LOG.warning("the head of the Ray cluster does not answer for %g s", _HEAD_SEC)
            if alive is not None:
                answered = time.monotonic()
                for name, capacity in alive.items():
                    if name not in self._serving:
                        self._serving[name] = self._group.create_task(self._serve(name, capacity))
                for name in self._serving.keys() - alive.keys():
                    self._serving[name].cancel()
            await asyncio.sleep(_WATCH_SEC)

    async def _serve(self, name: str, capacity: Mapping[str, int]) -> None:
        """Use a node until it is lost. A node without an executor is not asked again."""
        self._actors[name] = actor = connection.create_actor(
            name, capacity["slots"], self._executor, self._options, self._lease_sec
        )
        node = Node(name, capacity, actor, self._lease_sec, self.report, self.wake)
        try:
            if refusal := await node.open():
                _LOG.warning("node %s cannot run %r: %s", name, self._executor, refusal)
                self._refusals[name] = refusal
                self.wake()
                await asyncio.Event().wait()
            self.workers[name] = node
            self._on_capacity(self.capacity())
            await node.serve()
        except NodeLostError as error:
            _LOG.warning("node %s of the Ray cluster is lost: %s", name, error)
        finally:
            self._drop(node)

    def _drop(self, node: Node) -> None:
        node.lose()
        self._refusals.pop(node.name, None)
        if self.workers.pop(node.name, None) is not None and not self.total.is_closed:
            self._on_capacity(self.capacity())
        if not self.total.is_closed:
            del self._serving[node.name]
        self.wake()
