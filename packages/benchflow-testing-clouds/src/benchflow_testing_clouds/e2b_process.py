"""E2B's service `process.Process` over one local sandbox."""

import asyncio
import base64
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchflow_contracts.errors import SandboxError
from benchflow_contracts.process import ByteReader, Process
from benchflow_contracts.sandbox import Sandbox
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.process import process_pb as pb
from protobuf import Oneof

_PIECE = 32768
_CUT_SECONDS = 1.0


@dataclass
class _Running:
    process: Process
    exit: "asyncio.Task[int]"
    is_read: bool = False
    """Whether a stream of its events is open."""
    events: "asyncio.Queue[Any]" = field(default_factory=lambda: asyncio.Queue(64))


class ProcessService:
    """The commands of one sandbox.

    As E2B's: a command survives its stream of events, `connect` opens another one, and
    `stream_input` keeps the order. Unlike E2B's, output waits while no stream is open.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._running: dict[int, _Running] = {}
        self._next = 1000
        self._streams = set[asyncio.Task[Any]]()
        """The requests that `drop` ends."""
        self._cut = asyncio.Event()

    def _add(self, pid: int, process: Process) -> _Running:
        waiting = asyncio.get_running_loop().create_task(process.wait())
        self._running[pid] = running = _Running(process, waiting)
        return running

    async def fork(self, sandbox: Sandbox, commands: Mapping[int, str]) -> "ProcessService":
        """Return the service of a child of a live snapshot that has these commands."""
        service = ProcessService(sandbox)
        service._next = self._next
        for pid, name in commands.items():
            try:
                service._add(pid, await sandbox.attach(name))
            except SandboxError:
                continue  # it had ended
        return service

    async def drop(self) -> dict[int, str]:
        """Cut every stream, as a snapshot does; return the commands that run, by their pids.

        The handles of the others are closed: an image of the sandbox would carry them.
        """
        self._cut.set()
        self._cut = asyncio.Event()
        if self._streams:
            _, waiting = await asyncio.wait(set(self._streams), timeout=_CUT_SECONDS)
            for task in waiting:
                task.cancel()  # the client does not read
        for pid in [pid for pid, running in self._running.items() if running.exit.done()]:
            await self._remove(pid)
        return {pid: running.process.id for pid, running in self._running.items()}

    async def _remove(self, pid: int) -> None:
        running = self._running.pop(pid, None)
        if running is not None:
            await running.process.aclose()
            running.exit.cancel()

    async def _uncut(self, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield `events` until `drop` ends the present request."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._streams.add(task)
        cut = loop.create_task(self._cut.wait())
        try:
            while True:
                step = loop.create_task(_next(events))
                try:
                    await asyncio.wait([step, cut], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    is_cut = not step.done()
                    step.cancel()
                    await asyncio.wait([step])
                if is_cut:
                    _ = step.cancelled() or step.exception()
                    raise ConnectError(Code.UNAVAILABLE, "the sandbox was paused")
                if (event := step.result()) is None:
                    return
                yield event
        finally:
            cut.cancel()
            self._streams.discard(task)

    async def list(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """List the commands."""
        del request, ctx
        return pb.ListResponse(processes=[pb.ProcessInfo(pid=pid) for pid in self._running])

    async def start(self, request: Any, ctx: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """Start a command, and stream its events."""
        config = request.process
        try:
            process = await self._sandbox.spawn(
                [config.cmd, *config.args],
                user=_user(ctx) or "root",
                cwd=config.cwd or "/",
                env=dict(config.envs),
            )
        except SandboxError as error:
            raise ConnectError(Code.INVALID_ARGUMENT, str(error)) from error
        pid, self._next = self._next, self._next + 1
        running = self._add(pid, process)
        if not request.stdin:
            await process.stdin.aclose()
        async for event in self._events(pid, running):
            yield pb.StartResponse(event=event)

    async def connect(self, request: Any, ctx: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """Stream the events of a command whose stream was cut."""
        del ctx
        running = self._find(request.process)
        if running.is_read:
            raise ConnectError(Code.UNIMPLEMENTED, "two streams of one command")
        async for event in self._events(int(request.process.selector.value), running):
            yield pb.ConnectResponse(event=event)

    async def _events(self, pid: int, running: _Running) -> AsyncIterator[Any]:
        running.is_read = True
        try:
            yield _event("start", pb.ProcessEvent.StartEvent(pid=pid))
            async for event in self._uncut(_events(running)):
                yield event
        finally:
            running.is_read = False
            if running.exit.done():
                await self._remove(pid)

    async def stream_input(self, request: AsyncIterator[Any], ctx: Any) -> Any:  # noqa: ANN401
        """Write the input of a command in order."""
        del ctx
        running: _Running | None = None
        async for each in self._uncut(request):
            event: Any = each.event
            if event is not None and event.field == "start":
                running = self._find(event.value.process)
            elif event is not None and event.field == "data" and running is not None:
                await _write(running, event.value.input)
        return pb.StreamInputResponse()

    async def send_input(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Write to the input of a command."""
        del ctx
        await _write(self._find(request.process), request.input)
        return pb.SendInputResponse()

    async def send_signal(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Kill a command; other signals are refused."""
        del ctx
        running = self._find(request.process)
        if int(request.signal) != signal.SIGKILL:
            raise ConnectError(Code.UNIMPLEMENTED, f"signal {request.signal}")
        await running.process.kill()
        return pb.SendSignalResponse()

    async def close_stdin(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Close the input of a command."""
        del ctx
        await self._find(request.process).process.stdin.aclose()
        return pb.CloseStdinResponse()

    async def update(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Refuse: this server has no terminals."""
        del request, ctx
        raise ConnectError(Code.UNIMPLEMENTED, "update")

    async def close(self) -> None:
        """End every command, as a sandbox that is deleted does."""
        for pid in list(self._running):
            await self._remove(pid)

    def _find(self, selector: Any) -> _Running:  # noqa: ANN401
        one: Any = selector.selector
        if one is None or one.field != "pid" or one.value not in self._running:
            raise ConnectError(Code.NOT_FOUND, "no such process")
        return self._running[one.value]


def _user(ctx: Any) -> str:  # noqa: ANN401
    kind, _, value = (ctx.request_headers.get("authorization") or "").partition(" ")
    if kind.lower() != "basic":
        return ""
    return base64.b64decode(value).decode().partition(":")[0]


def _event(name: str, value: Any) -> Any:  # noqa: ANN401
    one: Any = Oneof(name, value)
    return pb.ProcessEvent(event=one)


async def _next(events: AsyncIterator[Any]) -> Any:  # noqa: ANN401
    return await anext(events, None)


async def _write(running: _Running, given: Any) -> None:  # noqa: ANN401
    try:
        await running.process.stdin.write(given.input.value)
    except SandboxError as error:
        raise ConnectError(Code.FAILED_PRECONDITION, str(error)) from error


async def _events(running: _Running) -> AsyncIterator[Any]:
    async def copy(reader: ByteReader, name: str) -> None:
        while data := await reader.read(_PIECE):
            one: Any = Oneof(name, data)
            await running.events.put(_event("data", pb.ProcessEvent.DataEvent(output=one)))

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(copy(running.process.stdout, "stdout"))
            group.create_task(copy(running.process.stderr, "stderr"))
        code = await asyncio.shield(running.exit)
        end = pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit status {code}")
        await running.events.put(_event("end", end))
        await running.events.put(None)

    task = asyncio.get_running_loop().create_task(run())
    try:
        while (event := await running.events.get()) is not None:
            yield event
    finally:
        task.cancel()
