"""E2B's service `process.Process` over one local sandbox."""

import asyncio
import base64
import signal
from collections.abc import AsyncIterator
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


@dataclass
class _Running:
    process: Process
    events: "asyncio.Queue[Any]" = field(default_factory=lambda: asyncio.Queue(64))


class ProcessService:
    """The commands of one sandbox.

    As E2B's: a command ends with its stream of events, and `stream_input` keeps the order.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._running: dict[int, _Running] = {}
        self._next = 1000

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
        self._running[pid] = running = _Running(process)
        if not request.stdin:
            await process.stdin.aclose()
        try:
            yield _start_event(pid)
            async for event in _events(running):
                yield event
        finally:
            self._running.pop(pid, None)
            await process.aclose()

    async def stream_input(self, request: AsyncIterator[Any], ctx: Any) -> Any:  # noqa: ANN401
        """Write the input of a command in order."""
        del ctx
        running: _Running | None = None
        async for each in request:
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

    def connect(self, request: Any, ctx: Any) -> AsyncIterator[Any]:  # noqa: ANN401
        """Refuse: this server does not attach to a command."""
        del request, ctx
        raise ConnectError(Code.UNIMPLEMENTED, "connect")

    async def update(self, request: Any, ctx: Any) -> Any:  # noqa: ANN401
        """Refuse: this server has no terminals."""
        del request, ctx
        raise ConnectError(Code.UNIMPLEMENTED, "update")

    async def close(self) -> None:
        """End every command, as a sandbox that is deleted does."""
        for running in list(self._running.values()):
            await running.process.aclose()

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


def _start_event(pid: int) -> Any:  # noqa: ANN401
    return pb.StartResponse(event=_event("start", pb.ProcessEvent.StartEvent(pid=pid)))


def _event(name: str, value: Any) -> Any:  # noqa: ANN401
    one: Any = Oneof(name, value)
    return pb.ProcessEvent(event=one)


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
        code = await running.process.wait()
        end = pb.ProcessEvent.EndEvent(exit_code=code, exited=True, status=f"exit status {code}")
        await running.events.put(_event("end", end))
        await running.events.put(None)

    task = asyncio.get_running_loop().create_task(run())
    try:
        while (event := await running.events.get()) is not None:
            yield pb.StartResponse(event=event)
    finally:
        task.cancel()
