"""Fake processes: bodies in process groups, held by a freeze gate."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

from benchflow_contracts.errors import SandboxError, SandboxFrozenError

from .pipe import FakePipe

_KILLED = 137
_BROKEN_PIPE = 141


class Body(Protocol):
    """What a fake process runs.

    A live snapshot deep-copies it while `run` waits, and then calls `run` of the copy: it
    must continue from the state in its fields.
    """

    async def run(self) -> int:
        """Run to the end and return the exit code."""
        ...


class FakeGate:
    """A gate that stops every fake process while the sandbox is frozen.

    A copy is open: the processes of a snapshot run as soon as they are started.
    """

    def __init__(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._sleep = sleep
        self._holders: list[asyncio.Task[Any] | None] = []
        self._open = asyncio.Event()
        self._open.set()
        self.freezes = 0
        """How often the gate was closed; a nested freeze does not count."""

    @property
    def frozen(self) -> bool:
        """Whether nothing may run now."""
        return bool(self._holders)

    @contextmanager
    def closed(self) -> Generator[None, None, None]:
        """Hold everything that passes here. Re-entrant."""
        if not self._holders:
            self.freezes += 1
            self._open.clear()
        holder = asyncio.current_task()
        self._holders.append(holder)
        try:
            yield
        finally:
            self._holders.remove(holder)
            if not self._holders:
                self._open.set()

    def refuse_own_task(self) -> None:
        """Raise when the caller would wait for what it holds still itself."""
        if asyncio.current_task() in self._holders:
            raise SandboxFrozenError("the sandbox is frozen by this task: nothing inside can run")

    async def passage(self) -> None:
        """Let others run, then wait until nothing is frozen."""
        await asyncio.sleep(0)
        while self.frozen:
            await self._open.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the sandbox's clock. A carried process sleeps the whole time again."""
        await self._sleep(seconds)
        await self.passage()

    def __deepcopy__(self, _memo: dict[int, Any]) -> "FakeGate":
        return FakeGate(self._sleep)

    def __reduce__(self) -> tuple[type["FakeGate"], tuple[()]]:
        return FakeGate, ()


@dataclass(slots=True, eq=False)
class _Member:
    """One process of a group; without a task it was copied and is to be resumed."""

    body: Body
    leads: bool
    task: asyncio.Task[None] | None = None


class FakeGroup:
    """A process group: a leader, and what it left in the background.

    It owns its tasks: `kill` ends all of them and returns when they are gone. A copy
    has the same processes, none of which runs before `resume`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: list[_Member] = []
        self._code: int | None = None
        self._over = asyncio.Event()

    def lead(self, body: Body) -> None:
        """Start the leader."""
        self._start(_Member(body, leads=True))

    def background(self, body: Body) -> None:
        """Start a process that outlives the leader unless the group is killed."""
        self._start(_Member(body, leads=False))

    def resume(self) -> None:
        """Start every process of a copied group, each where it was."""
        members, self._members = self._members, []
        for member in members:
            self._start(member)

    async def wait(self) -> int:
        """Return the leader's exit code."""
        await self._over.wait()
        assert self._code is not None
        return self._code

    async def join(self) -> None:
        """Wait for the background processes that the calling one started."""
        own = asyncio.current_task()
        rest = {task for task in self._tasks if task is not own}
        if rest:
            await asyncio.wait(rest)

    async def kill(self) -> None:
        """End everything in the group. Idempotent."""
        self._finish(_KILLED)
        own = asyncio.current_task()
        tasks = {task for task in self._tasks if task is not own}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def alive(self) -> bool:
        """Whether any process of the group still runs."""
        return bool(self._members)

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        return {member.task for member in self._members if member.task is not None}

    def _start(self, member: _Member) -> None:
        # A process outlives the call that started it, so no TaskGroup can own it:
        # the group owns it, and the end of the sandbox ends the group.
        self._members.append(member)
        body = self._leader(member.body) if member.leads else self._follower(member.body)
        member.task = asyncio.get_running_loop().create_task(body)
        member.task.add_done_callback(lambda _: self._members.remove(member))

    async def _leader(self, body: Body) -> None:
        try:
            self._finish(await body.run())
        except SandboxError:
            self._finish(_BROKEN_PIPE)
        finally:
            self._finish(_KILLED)

    async def _follower(self, body: Body) -> None:
        try:
            await body.run()
        except SandboxError:
            return

    def _finish(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._over.set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "FakeGroup":
        twin = FakeGroup(self.pid)
        memo[id(self)] = twin
        twin._members = [
            _Member(deepcopy(member.body, memo), member.leads) for member in self._members
        ]
        if self._code is not None:
            twin._finish(self._code)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {"pid": self.pid, "_members": self._members, "_code": self._code}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _over=asyncio.Event(), _code=None)
        if state["_code"] is not None:
            self._finish(state["_code"])


@dataclass(slots=True, eq=False)
class _Piped:
    """A body whose end closes the pipes of its process."""

    body: Body
    process: "FakeProcess"

    async def run(self) -> int:
        try:
            return await self.body.run()
        finally:
            self.process.end()


class FakeProcess:
    """A spawned fake process with live pipes."""

    def __init__(self, group: FakeGroup) -> None:
        self._id = f"process-{uuid4().hex[:12]}"
        self.group = group
        self.body: Body | None = None
        """What it runs: a test may look at the state of a `FakeProgram`."""
        self._stdin = FakePipe()
        self._stdout = FakePipe()
        self._stderr = FakePipe()

    @property
    def id(self) -> str:
        """Unique, kept by a live snapshot."""
        return self._id

    @property
    def stdin(self) -> FakePipe:
        """The pipe that the process reads."""
        return self._stdin

    @property
    def stdout(self) -> FakePipe:
        """The pipe that the process writes."""
        return self._stdout

    @property
    def stderr(self) -> FakePipe:
        """The pipe of its error output."""
        return self._stderr

    def start(self, body: Body) -> None:
        """Run `body` as the leader; the pipes end with it."""
        self.body = body
        self.group.lead(_Piped(body, self))

    async def wait(self) -> int:
        """Return the exit code."""
        return await self.group.wait()

    async def kill(self) -> None:
        """Kill the whole group. Idempotent."""
        await self.group.kill()
        self.end()

    async def aclose(self) -> None:
        """Kill when still running and release the pipes. Idempotent."""
        await self.kill()
        self._stdout.abandon()
        self._stderr.abandon()

    def end(self) -> None:
        """Close the inner ends of the pipes."""
        self._stdin.abandon()
        self._stdout.end()
        self._stderr.end()
