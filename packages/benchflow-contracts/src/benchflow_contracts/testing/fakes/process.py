"""Fake processes: coroutines in process groups, held by a freeze gate."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from benchflow_contracts.errors import SandboxError, SandboxFrozenError

from .pipe import FakePipe

_KILLED = 137
_BROKEN_PIPE = 141

Main = Callable[[], Coroutine[Any, Any, int]]


class FakeGate:
    """What holds every fake process still while the sandbox is frozen."""

    def __init__(self) -> None:
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


class FakeGroup:
    """A process group: a leader, and what it left in the background.

    It owns its tasks: `kill` ends all of them and returns when they are gone.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._tasks: set[asyncio.Task[None]] = set()
        self._code: int | None = None
        self._over = asyncio.Event()

    def lead(self, main: Main) -> None:
        """Start the leader."""
        self._start(self._leader(main))

    def background(self, main: Main) -> None:
        """Start a process that outlives the leader unless the group is killed."""
        self._start(self._follower(main))

    async def wait(self) -> int:
        """Return the leader's exit code."""
        await self._over.wait()
        assert self._code is not None
        return self._code

    async def join(self) -> None:
        """Wait for the background processes that the calling one started."""
        rest = self._tasks - {asyncio.current_task()}
        if rest:
            await asyncio.wait(rest)

    async def kill(self) -> None:
        """End everything in the group. Idempotent."""
        self._finish(_KILLED)
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def alive(self) -> bool:
        """Whether any process of the group still runs."""
        return bool(self._tasks)

    def _start(self, body: Coroutine[Any, Any, None]) -> None:
        # A process outlives the call that started it, so no TaskGroup can own it:
        # the group does, and whoever ends the sandbox ends the group.
        task = asyncio.get_running_loop().create_task(body)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leader(self, main: Main) -> None:
        try:
            self._finish(await main())
        except SandboxError:
            self._finish(_BROKEN_PIPE)
        finally:
            self._finish(_KILLED)

    async def _follower(self, main: Main) -> None:
        try:
            await main()
        except SandboxError:
            return

    def _finish(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._over.set()


class FakeProcess:
    """A spawned fake process with live pipes."""

    def __init__(self, group: FakeGroup) -> None:
        self.id = f"process-{uuid4().hex[:12]}"
        self.group = group
        self._stdin = FakePipe()
        self._stdout = FakePipe()
        self._stderr = FakePipe()

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

    def start(self, main: Main) -> None:
        """Run `main` as the leader; its pipes end with it."""
        self.group.lead(lambda: self._main(main))

    async def wait(self) -> int:
        """Return the exit code."""
        return await self.group.wait()

    async def kill(self) -> None:
        """Kill the whole group. Idempotent."""
        await self.group.kill()
        self._end()

    async def aclose(self) -> None:
        """Kill when still running and release the pipes. Idempotent."""
        await self.kill()
        self._stdout.abandon()
        self._stderr.abandon()

    async def _main(self, main: Main) -> int:
        try:
            return await main()
        finally:
            self._end()

    def _end(self) -> None:
        self._stdin.abandon()
        self._stdout.end()
        self._stderr.end()
