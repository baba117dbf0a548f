"""A Ray cluster of this machine alone, in a process that ends with its owner."""

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from .errors import RayStartError
from .process_tree import kill_descendants

_MOST_LOAD: Final = 15.0
"""The load of a core above which Ray was never seen to start."""
_ATTEMPTS: Final = 2
_PAUSE_SEC: Final = 5.0
"""The pause before another attempt to start, and the first pause while the load is too high."""
_STOP_SEC: Final = 20.0
_PROGRAM: Final = f"{__package__}.cluster_process"
_LOG: Final = logging.getLogger(__name__)

ENVIRONMENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # With it, Ray starts its workers by `uv run`, and copies the working directory to them.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


class LocalCluster:
    """Nodes on the loopback interface, for one machine and for tests. Not for many machines."""

    def __init__(
        self,
        nodes: Sequence[Mapping[str, int]],
        *,
        start_sec: float = 90,
        idle_sec: float = 90,
    ) -> None:
        """Prepare a cluster.

        Args:
            nodes: The resources of each node, such as `{"benchflow": 8}`. The first one is the
                head.
            start_sec: The longest time that a node may take to start.
            idle_sec: How long a start waits while the machine is too busy for Ray.
        """
        self._resources = [dict(node) for node in nodes]
        self._start_sec = start_sec
        self._idle_sec = idle_sec
        self._process: asyncio.subprocess.Process | None = None
        self.address = ""
        """The address of the head, after the start."""
        self.raylets: list[int] = []
        """The process of each node that runs its workers, by the number of the node."""
        self.session: int | None = None
        """The session of all processes of the cluster, after the start."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the nodes, one after the other. If that fails, end all of them and start once more.

        Raises:
            RayStartError: The machine stayed too busy, or a node did not start in time, twice.
        """
        causes: list[str] = []
        while True:
            await self._until_idle()
            try:
                return await self._start_once()
            except RayStartError as error:
                causes.append(str(error))
            if len(causes) == _ATTEMPTS:
                # The same cause twice is one cause.
                both = "; then: ".join(dict.fromkeys(causes))
                raise RayStartError(f"Ray did not start in {_ATTEMPTS} attempts: {both}")
            _LOG.warning("Ray did not start: %s; trying once more", causes[-1])
            await asyncio.sleep(_PAUSE_SEC)

    async def _until_idle(self) -> None:
        """Wait until the load is low enough for Ray, with growing pauses."""
        pause, waited = _PAUSE_SEC, 0.0
        cores = os.cpu_count() or 1
        while (load := os.getloadavg()[0]) > _MOST_LOAD * cores:
            busy = f"the load is {load:.0f} on {cores} cores"
            if waited >= self._idle_sec:
                raise RayStartError(f"Ray did not start: {busy}, after {waited:.0f} s")
            pause = min(pause, self._idle_sec - waited)
            _LOG.warning("Ray waits %.0f s to start: %s", pause, busy)
            await asyncio.sleep(pause)
            pause, waited = 2 * pause, waited + pause

    async def _start_once(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _PROGRAM,
            str(self._start_sec),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        self.session = self._process.pid
        self.raylets.clear()
        try:
            for resources in self._resources:
                await self.add_node(resources)
        except BaseException:
            await self.close()
            raise

    async def add_node(self, resources: Mapping[str, int]) -> int:
        """Start one more node, and return its number.

        Raises:
            RayStartError: The node did not start in time. The whole cluster is closed.
        """
        answer = await self._ask({"add": dict(resources)})
        self.address = answer["address"]
        self.raylets.append(int(answer["pid"]))
        return int(answer["node"])

    async def kill_node(self, number: int) -> None:
        """Kill every process of a node, as when its machine fails."""
        await self._ask({"kill": number})

    async def close(self) -> None:
        """Kill every process that the cluster started. Repeatable."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_SEC):
                await process.wait()
        except TimeoutError:
            # Processes below it are its children while it lives, so it ends last.
            await asyncio.to_thread(kill_descendants, process.pid)
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise RayStartError("the Ray cluster is not running")
        process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            async with asyncio.timeout(self._start_sec):
                line = await process.stdout.readline()
        except TimeoutError:
            # The answer may still come, and would be taken for that of the next request.
            await self.close()
            message = f"a node did not start within {self._start_sec:g} s"
            raise RayStartError(message) from None
        answer: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in answer:
            raise RayStartError(f"a node did not start: {answer['error']}")
        return answer
