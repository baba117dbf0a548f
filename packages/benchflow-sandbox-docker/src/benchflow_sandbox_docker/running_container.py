"""One life of a container: its first process and the pipes that lead to it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from benchflow_contracts.cause import refuse_shortage
from benchflow_contracts.errors import SandboxError, SandboxLimitError
from benchflow_sandbox_core.accounts import MAX_FILE, Account, Accounts
from benchflow_sandbox_core.counters import GroupCounters
from benchflow_sandbox_core.fifo.connections import FifoBox
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.streams import CONTROL, FifoDirectory, FifoStreams
from benchflow_sandbox_native import InitError

from .disk_limit import holds_more, is_full
from .engine import DockerEngine, GoneError
from .init_programs import run

_START_SECONDS = 60.0
_END_SECONDS = 30
_DISK_MB = 2048
_UNSEEN = 255
"""What the engine says of a container that ended while it did not look: it was killed itself."""
_KILLED = {128 + signal.SIGKILL, 128 + signal.SIGTERM, _UNSEEN}
Knocked = Callable[[int, int], None]


def _nobody(_door: int, _which: int) -> None:
    """Leave a connection that waits where it is."""


class RunningContainer:
    """What leads into a running container. The engine is asked for nothing but its start."""

    def __init__(self, engine: DockerEngine, container: str, pipes: Path) -> None:
        self.engine = engine
        self.container = container
        self.on_connection: Knocked = _nobody
        """Told of each connection that waits for what the host serves."""
        for end in range(3):
            os.mkfifo(pipes / f"{CONTROL}.{end}", 0o600)
        self._fifos = FifoDirectory(os.open(pipes, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        self._calls = FifoInit(self._fifos, self._knock)
        self._closed = False
        self.accounts = ContainerAccounts(self)
        self.meter = NOTHING
        self.upper: Path | None = None
        """Where the engine keeps what the container writes, once it runs and that is known."""
        self.shell = "/bin/sh"

    @classmethod
    async def start(cls, engine: DockerEngine, container: str, pipes: Path) -> "RunningContainer":
        """Start a container that was made; its first process answers on return.

        Raises:
            SandboxError: It did not start, or it cannot reach the pipes.
        """
        machine = cls(engine, container, pipes)
        try:
            await engine.do("start", container)
            await machine._meet()
        except BaseException:
            machine.close()
            raise
        return machine

    async def _meet(self) -> None:
        end = asyncio.get_running_loop().time() + _START_SECONDS
        while True:
            answers = await self._answers()
            told = await self._told()
            state = told["State"]
            if answers:
                break
            if not state["Running"] or asyncio.get_running_loop().time() > end:
                raise self._silent(state)
        # From now on the end of the pipes is the death of the container.
        self._calls.met()
        self.meter = counters_of(state["Pid"])
        driver: Mapping[str, Any] = told.get("GraphDriver") or {}
        data: Mapping[str, str] = driver.get("Data") or {}
        self.upper = Path(data["UpperDir"]) if "UpperDir" in data else None

    async def _answers(self) -> bool:
        """Whether the first process answers in a second; one that ended never does."""
        try:
            async with asyncio.timeout(1):
                await self._calls.ping()
        except (InitError, TimeoutError):
            return False
        return True

    def _silent(self, state: Mapping[str, Any]) -> SandboxError:
        return SandboxError(
            f"the container {self.container!r} does not answer: {state['Status']} with "
            f"exit code {state['ExitCode']} {state['Error']}",
            hint="the engine must see this host's files: is it remote, or in a machine of its own?",
            retryable=state["ExitCode"] in _KILLED and not state["OOMKilled"],
        )

    async def _state(self) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", (await self._told())["State"])

    async def _told(self) -> Mapping[str, Any]:
        told = await self.engine.do("inspect_container", self.container)
        return cast("Mapping[str, Any]", told)

    def host_shortage(self, disk_mb: int | None) -> str | None:
        """Return what the host refused to the container, which its own limits do not explain.

        A full disk is the container's own doing when it holds more than `disk_mb`.
        """
        short = self.meter.host_shortage()
        if short is None and self.upper is not None and is_full(self.upper):
            allowed = (disk_mb or _DISK_MB) << 20
            short = None if holds_more(self.upper, allowed) else "the engine's disk is full"
        return short

    def _knock(self, door: int, which: int) -> None:
        self.on_connection(door, which)

    @property
    def init(self) -> FifoInit:
        """The calls to the first process; raise `SandboxError` once this is closed."""
        if self._closed:
            raise SandboxError(f"the container {self.container!r} is gone")
        return self._calls

    @property
    def closed(self) -> bool:
        """Whether this life is over."""
        return self._closed

    @property
    def lost(self) -> bool:
        """Whether it ended, and not by `close`."""
        return not self._closed and self._calls.ended

    @asynccontextmanager
    async def explained(self, asked: Callable[[], bool] = lambda: True) -> AsyncGenerator[None]:
        """Let a failure of the block say what ended the container, when that is why.

        And when `asked` says so by then.
        """
        try:
            yield
        except SandboxError as error:
            if not asked() or not self.lost:
                raise
            raise await self.cause() from error

    async def cause(self) -> SandboxError:
        """Return why it is lost.

        `retryable` when it was ended from outside: nobody inside can signal the first process.
        """
        try:
            await self.engine.do("wait", self.container, timeout=_END_SECONDS)
            state = await self._state()
        except GoneError:
            return SandboxError("somebody removed the container", retryable=True)
        except SandboxError as error:
            return error
        if state["OOMKilled"]:
            return SandboxLimitError("the container ended: its memory limit was hit")
        code = state["ExitCode"]
        return SandboxError(
            f"the container ended with exit code {code}",
            hint="was the engine restarted, or the container killed?",
            retryable=code in _KILLED,
        )

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        if self._closed:
            raise SandboxError(f"the container {self.container!r} is gone")
        return self._fifos.streams()

    def close(self) -> None:
        """Let go of the container, which ends it. Idempotent."""
        if not self._closed:
            self._closed = True
            self._calls.close()
            self._fifos.close()


_ROOT = Path("/sys/fs/cgroup")
NOTHING = GroupCounters(None, None)


def counters_of(pid: int) -> GroupCounters:
    """Return the counters of the control groups that a process is in, where they can be seen.

    Raises:
        HostError: The host could not look.
    """
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError as error:
        refuse_shortage("find the counters of a container", error)
        return NOTHING
    found: dict[str, Path] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for kind in ("memory", "pids"):
            if kind in controllers.split(","):
                found[kind] = _ROOT / kind / path.strip("/")
            elif not controllers and (_ROOT / "cgroup.controllers").exists():
                found[kind] = _ROOT / path.strip("/")
    return GroupCounters(found.get("memory"), found.get("pids"))


class ContainerAccounts:
    """The users of one container, read again whenever its files have changed."""

    def __init__(self, guest: FifoBox) -> None:
        self._guest = guest
        self._seen: int | None = None
        self.passwd = b""
        self.group = b""
        self._accounts = Accounts()

    async def look_up(self, name: str) -> Account:
        """Find a user by name or number.

        Raises:
            SandboxError: There is no such user, or the sandbox is gone.
        """
        try:
            seen = await self._guest.init.accounts()
        except InitError as error:
            raise SandboxError(f"the sandbox is gone: {error}") from error
        if seen != self._seen:
            self.passwd = await self._read("/etc/passwd")
            self.group = await self._read("/etc/group")
            self._accounts, self._seen = Accounts(self.passwd, self.group), seen
        return self._accounts.look_up(name)

    async def _read(self, path: str) -> bytes:
        said = await run(self._guest, "show", path, most=MAX_FILE)
        return said.out if said.code == 0 else b""
