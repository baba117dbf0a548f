"""Fake processes: programs in process groups, which a gate stops while frozen."""

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


class Runnable(Protocol):
    """The program of a fake process.

    A live snapshot deep-copies the program while `run` waits, and then calls `run` of the copy.
    `run` must continue from the state in the fields.
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
        """The number of freezes. A nested freeze does not count."""

    @property
    def frozen(self) -> bool:
        """Whether the gate is closed."""
        return bool(self._holders)

    @contextmanager
    def closed(self) -> Generator[None, None, None]:
        """Close the gate inside the block. Re-entrant."""
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
        """Raise if the calling task has closed the gate, because it would wait forever."""
        if asyncio.current_task() in self._holders:
            raise SandboxFrozenError("this task has frozen the sandbox, so nothing inside can run")

    async def passage(self) -> None:
        """Let other tasks run, then wait until the gate is open."""
        await asyncio.sleep(0)
        while self.frozen:
            await self._open.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep by the sandbox's clock. A copied process sleeps the whole time again."""
        await self._sleep(seconds)
        await self.passage()

    def __deepcopy__(self, _memo: dict[int, Any]) -> "FakeGate":
        return FakeGate(self._sleep)

    def __reduce__(self) -> tuple[type["FakeGate"], tuple[()]]:
        return FakeGate, ()


@dataclass(slots=True, eq=False)
class _Member:
    """One process of a group. Without a task, it is a copy that does not run yet."""

    program: Runnable
    leads: bool
    task: asyncio.Task[None] | None = None


class FakeGroup:
    """A process group: a leader and its background processes.

    The group owns its tasks. `kill` ends all tasks and waits for them. A copy
    has the same processes, which do not run before `resume`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._members: list[_Member] = []
        self._code: int | None = None
        self._over = asyncio.Event()

    def lead(self, program: Runnable) -> None:
        """Start the leader."""
        self._start(_Member(program, leads=True))

    def background(self, program: Runnable) -> None:
        """Start a process that continues after the leader's end, until the group is killed."""
        self._start(_Member(program, leads=False))

    def resume(self) -> None:
        """Continue every process of a copied group from its state."""
        members, self._members = self._members, []
        for member in members:
            self._start(member)

    async def wait(self) -> int:
        """Return the leader's exit code."""
        await self._over.wait()
        assert self._code is not None
        return self._code

    async def join(self) -> None:
        """Wait for the other processes of the group."""
        own = asyncio.current_task()
        rest = {task for task in self._tasks if task is not own}
        if rest:
            await asyncio.wait(rest)

    async def kill(self) -> None:
        """Kill every process of the group. Idempotent."""
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
        # A process continues after the call that started it, so the group owns the task.
        # The end of the sandbox ends the group.
        self._members.append(member)
        run = self._leader(member.program) if member.leads else self._follower(member.program)
        member.task = asyncio.get_running_loop().create_task(run)
        member.task.add_done_callback(lambda _: self._members.remove(member))

    async def _leader(self, program: Runnable) -> None:
        try:
            self._finish(await program.run())
        except SandboxError:
            self._finish(_BROKEN_PIPE)
        finally:
            self._finish(_KILLED)

    async def _follower(self, program: Runnable) -> None:
        try:
            await program.run()
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
            _Member(deepcopy(member.program, memo), member.leads) for member in self._members
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
    """A program that closes the pipes of its process at its end."""

    program: Runnable
    process: "FakeProcess"

    async def run(self) -> int:
        try:
            return await self.program.run()
        finally:
            self.process.end()


class FakeProcess:
    """A spawned fake process with live pipes."""

    def __init__(self, group: FakeGroup) -> None:
        self._id = f"process-{uuid4().hex[:12]}"
        self.group = group
        self.program: Runnable | None = None
        """The program of the process. A test may read the state of a `FakeProgram`."""
        self._stdin = FakePipe()
        self._stdout = FakePipe()
        self._stderr = FakePipe()

    @property
    def id(self) -> str:
        """The unique id. A copy in a live snapshot has the same id."""
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

    def start(self, program: Runnable) -> None:
        """Run `program` as the leader. The pipes end with the program."""
        self.program = program
        self.group.lead(_Piped(program, self))

    async def wait(self) -> int:
        """Return the exit code."""
        return await self.group.wait()

    async def kill(self) -> None:
        """Kill the whole group. Idempotent."""
        await self.group.kill()
        self.end()

    async def aclose(self) -> None:
        """Kill the process if it runs, and release the pipes. Idempotent."""
        await self.kill()
        self._stdout.abandon()
        self._stderr.abandon()

    def end(self) -> None:
        """Close the inner ends of the pipes."""
        self._stdin.abandon()
        self._stdout.end()
        self._stderr.end()
