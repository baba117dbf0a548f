"""One run of a container: its first process and the pipes to that process."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import (
    SandboxError,
    SandboxLimitError,
    SandboxLostError,
    SandboxTimeoutError,
)
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.counters import GroupCounters
from benchflow_sandbox_core.fifo.accounts import GuestAccounts
from benchflow_sandbox_core.fifo.connections import INIT
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.streams import CONTROL, FifoDirectory, FifoStreams
from benchflow_sandbox_core.running_box import responds
from benchflow_sandbox_native import InitError

from .disk_limit import holds_more, is_full
from .engine import DockerEngine, GoneError

_logger = logging.getLogger(__name__)
_START_SECONDS = 60.0
_END_SECONDS = 30
_DISK_MB = 2048
_UNSEEN = 255
"""The engine's exit code for a container that ended while the engine itself was down."""
_KILLED = {128 + signal.SIGKILL, 128 + signal.SIGTERM, _UNSEEN}
_UNKNOWN = 0
"""The first process never ends with it. An engine that was killed may report it for a container
that ended while the next engine started."""
_CGROUPS = Path("/sys/fs/cgroup")
_NO_COUNTERS = GroupCounters(None, None)


class RunningContainer:
    """The pipes to a running container. Only its start and its end need the engine."""

    def __init__(self, engine: DockerEngine, container: str, pipes: Path) -> None:
        self.engine = engine
        self.container = container
        self.on_connection: Callable[[int, int], None] = lambda _connection, _port: None
        """Called for each connection that waits for a port of the host."""
        for end in range(3):
            os.mkfifo(pipes / f"{CONTROL}.{end}", 0o600)
        self._fifos = FifoDirectory(os.open(pipes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._calls = FifoInit(self._fifos, self._report_connection)
        self._closed = False
        self.accounts = GuestAccounts()
        self.meter = _NO_COUNTERS
        self._upper: Path | None = None
        """The directory of the container's changed files, if the engine reports it."""
        self.shell = "/bin/sh"

    @classmethod
    async def start(cls, engine: DockerEngine, container: str, pipes: Path) -> "RunningContainer":
        """Start a created container. Its first process answers on return.

        Raises:
            SandboxError: The container did not start, or it cannot reach the pipes.
        """
        running = cls(engine, container, pipes)
        try:
            await engine.do("start", container)
            await running._wait_until_ready()
        except BaseException:
            running.close()
            raise
        return running

    async def _wait_until_ready(self) -> None:
        end = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            is_ready = await self.answers()
            inspected = await self._inspect()
            state = inspected["State"]
            if is_ready:
                break
            if not state["Running"] or asyncio.get_running_loop().time() > end:
                raise self._no_answer(state)
        # From now on, the end of the pipes means that the container has ended.
        self._calls.confirm_open()
        self.meter = counters_of(state["Pid"])
        driver: Mapping[str, Any] = inspected.get("GraphDriver") or {}
        data: Mapping[str, str] = driver.get("Data") or {}
        self._upper = Path(data["UpperDir"]) if "UpperDir" in data else None

    async def answers(self) -> bool:
        """Return whether the first process answers within a second."""
        try:
            async with asyncio.timeout(1):
                await self._calls.ping()
        except (InitError, TimeoutError):
            return False
        return True

    def _no_answer(self, state: Mapping[str, Any]) -> SandboxError:
        return SandboxError(
            f"the container {self.container!r} does not answer: {state['Status']} with "
            f"exit code {state['ExitCode']} {state['Error']}",
            hint="the engine must see this host's files: is it remote, or in a virtual machine?",
            retryable=state["ExitCode"] in _KILLED and not state["OOMKilled"],
        )

    async def _inspect(self) -> Mapping[str, Any]:
        inspected = await self.engine.do("inspect_container", self.container)
        return cast("Mapping[str, Any]", inspected)

    async def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: The user does not exist, or the sandbox has ended.
        """
        return await self.accounts.look_up(self, name)

    def host_shortage(self, disk_mb: int | None) -> str | None:
        """Return the resource that the host refused, if it was not a limit of the container.

        A full disk is the container's own fault if its files exceed `disk_mb`.
        """
        shortage = self.meter.host_shortage()
        if shortage is None and self._upper is not None and is_full(self._upper):
            allowed = (disk_mb or _DISK_MB) << 20
            shortage = None if holds_more(self._upper, allowed) else "the engine's disk is full"
        return shortage

    def _report_connection(self, connection: int, port: int) -> None:
        self.on_connection(connection, port)

    @property
    def init(self) -> FifoInit:
        """The calls to the first process; raise `SandboxError` after `close`."""
        if self._closed:
            raise SandboxError(f"the container {self.container!r} is gone")
        return self._calls

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Whether the container ended without `close`."""
        return not self._closed and self._calls.ended

    @asynccontextmanager
    async def explained(
        self,
        is_current: Callable[[], bool] = lambda: True,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> AsyncGenerator[None]:
        """Replace a `SandboxError` of the block by the cause of the container's end.

        The error stays if the container answers or is paused by us, or if `is_current` returns
        false.
        """
        try:
            yield
        except SandboxError as error:
            if not is_current():
                raise
            if self.lost:
                raise await self.cause() from error
            is_late = isinstance(error, SandboxTimeoutError) and error.caused_by != "host"
            if not is_late or is_paused() or await responds(self._calls) or is_paused():
                raise
            raise self._unanswered() from error

    def _unanswered(self) -> SandboxLostError:
        return SandboxLostError(
            f"the container {self.container!r} does not answer any more",
            hint="was the container paused, or its first process stopped?",
        )

    async def cause(self) -> SandboxError:
        """Return the cause of the container's end.

        The container is lost if something outside ended it. Processes inside cannot signal the
        first process.
        """
        try:
            state = await self._end_state()
        except GoneError:
            return SandboxLostError("another program removed the container")
        except SandboxError as error:
            return error
        if state["Running"]:
            return self._unanswered()
        if state["OOMKilled"]:
            return SandboxLimitError("the container ended: its memory limit was hit")
        is_from_outside = state["ExitCode"] in _KILLED | {_UNKNOWN}
        kind = SandboxLostError if is_from_outside else SandboxError
        return kind(
            f"the container ended with exit code {state['ExitCode']}",
            hint="was the engine restarted, or the container killed?",
        )

    async def _end_state(self) -> Mapping[str, Any]:
        """Return the state of the container once it has ended, or after 30 s."""
        try:
            await self.engine.do("wait", self.container, timeout=_END_SECONDS)
        except GoneError:
            raise
        except SandboxError as error:
            # The engine may not answer in time because the container still runs.
            _logger.debug("docker wait: %s", error)
        return cast("Mapping[str, Any]", (await self._inspect())["State"])

    @property
    def program(self) -> tuple[str, ...]:
        """The command of the guest inside."""
        return (INIT,)

    def streams(self) -> FifoStreams:
        """Create the pipes of a new process."""
        if self._closed:
            raise SandboxError(f"the container {self.container!r} is gone")
        return self._fifos.streams()

    def close(self) -> None:
        """Close the pipes, which ends the container. Idempotent."""
        if not self._closed:
            self._closed = True
            self._calls.close()
            self._fifos.close()


def counters_of(pid: int) -> GroupCounters:
    """Return the counters of a process's control groups, if this host has them.

    Raises:
        HostError: The host ran out of a resource.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        refuse_shortage("find the counters of a container", error)
        return _NO_COUNTERS
    paths: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in ("memory", "pids"):
            if kind in controllers.split(","):
                paths[kind] = _CGROUPS / kind / path.strip("/")
            elif not controllers and (_CGROUPS / "cgroup.controllers").exists():
                paths[kind] = _CGROUPS / path.strip("/")
    return GroupCounters(paths.get("memory"), paths.get("pids"))
