"""Modal's service of commands over local sandboxes: `TaskCommandRouter`."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import BenchFlowError, SandboxError
from benchflow_contracts.process import ByteReader, Process
from benchflow_contracts.sandbox import Sandbox
from grpclib.const import Status
from modal_proto import task_command_router_pb2 as pb

from .grpc_service import Refusal, Stream, answer, refuse_unknown, take
from .modal_memory import EXEC_MARK

FILE_PROGRAM = "/__modal/.bin/modal-sandbox-fs-tools"
"""Modal puts this program into every sandbox. The SDK's calls for files run it."""
_MAX_ARGUMENTS = 1 << 16
_UNREAD = 1 << 20
_PIECE = 1 << 16
_START = {
    "task_id",
    "exec_id",
    "command_args",
    "stdout_config",
    "stderr_config",
    "timeout_secs",
    "workdir",
    "secret_sources",
}


@dataclass
class _ExecOutput:
    data: bytearray = field(default_factory=bytearray)
    sent: int = 0
    ended: bool = False


class ModalExec:
    """One command. Its output can be read again from any offset, its input is by offset too."""

    def __init__(self, process: Process | None, timeout: float | None) -> None:
        self._process = process
        self._changed = asyncio.Condition()
        self._outputs = (_ExecOutput(), _ExecOutput())
        self.written = 0
        self.input_ended = False
        self.code: int | None = None
        self.expired = False
        self.interruption: Refusal | None = None
        """Raised once by each reader of the output."""
        loop = asyncio.get_running_loop()
        self._timer = None if not timeout else loop.call_later(timeout, self._expire)
        self._tasks = set[asyncio.Task[None]]()
        if process is not None:
            self._start(self._run(process))

    def _start(self, work: Any) -> None:  # noqa: ANN401
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _expire(self) -> None:
        """Kill the command. The SDK has given up by its own clock, and reports -1."""
        self.expired = True
        if self._process is not None:
            self._start(self._process.kill())

    async def _run(self, process: Process) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(process.stdout, self._outputs[0]))
            group.create_task(self._copy(process.stderr, self._outputs[1]))
        try:
            await self.end(await process.wait())
        except SandboxError:
            await self.end(255)  # the sandbox is gone

    async def _copy(self, reader: ByteReader, output: _ExecOutput) -> None:
        while data := await reader.read(_PIECE):
            async with self._changed:
                output.data += data
                self._changed.notify_all()
                await self._changed.wait_for(lambda: len(output.data) - output.sent < _UNREAD)

    async def end(self, code: int, error: bytes = b"") -> None:
        """Set the exit code. All output has been read."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._changed:
            self._outputs[1].data += error
            self.code = code
            for output in self._outputs:
                output.ended = True
            self._changed.notify_all()

    async def interrupt(self, error: Refusal) -> None:
        """End the streams of the output. The command continues."""
        async with self._changed:
            self.interruption = error
            self._changed.notify_all()

    async def read(self, stream: Stream, number: int, offset: int) -> None:
        """Send the output from an offset until its end."""
        seen = self.interruption
        while piece := await self._next(self._outputs[number], offset, seen):
            offset += len(piece)
            await stream.send_message(pb.TaskExecStdioReadResponse(data=piece))

    async def _next(self, output: _ExecOutput, offset: int, seen: Refusal | None) -> bytes:
        def has_news() -> bool:
            is_cut = self.interruption is not seen
            return len(output.data) > offset or output.ended or is_cut

        async with self._changed:
            await self._changed.wait_for(has_news)
            if self.interruption is not None and self.interruption is not seen:
                raise self.interruption
            piece = bytes(output.data[offset : offset + _PIECE])
            output.sent = max(output.sent, offset + len(piece))
            self._changed.notify_all()
        return piece

    async def wait(self) -> int:
        """Return the exit code."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.code is not None)
        return self.code or 0

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write input. Bytes before `offset` have been written already."""
        if offset > self.written:
            raise Refusal(Status.INVALID_ARGUMENT, f"offset {offset} is over {self.written}")
        new = data[self.written - offset :]
        if self.code is not None:
            raise Refusal(Status.FAILED_PRECONDITION, "the command has ended")
        self.written += len(new)
        await self._take(new)
        if eof and not self.input_ended:
            self.input_ended = True
            await self._take_end()

    async def _take(self, data: bytes) -> None:
        assert self._process is not None
        try:
            await self._process.stdin.write(data)
        except SandboxError as error:
            raise Refusal(Status.FAILED_PRECONDITION, str(error)) from error

    async def _take_end(self) -> None:
        assert self._process is not None
        await self._process.stdin.aclose()

    async def close(self) -> None:
        """Kill the command."""
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            await self._process.aclose()
        if self._tasks:
            await asyncio.wait(list(self._tasks))


class ModalFileExec(ModalExec):
    """The program for files, which writes its input to a path."""

    def __init__(self, sandbox: Sandbox, path: str) -> None:
        super().__init__(None, None)
        self._sandbox, self._path = sandbox, path
        self._data = bytearray()

    async def _take(self, data: bytes) -> None:
        self._data += data

    async def _take_end(self) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(self._data)
            file.flush()
            try:
                await self._sandbox.upload(Path(file.name), self._path, user="root")
            except SandboxError as error:
                failure = {"error_kind": "Other", "message": str(error)}
                await self.end(1, json.dumps(failure).encode())
                return
        await self.end(0)


class ModalTask:
    """The container of one sandbox. It is idle while no command runs."""

    def __init__(
        self,
        name: str,
        sandbox: Sandbox,
        token: str,
        idle: float | None,
        on_idle: Callable[[], None],
    ) -> None:
        self.id, self.sandbox, self.token = name, sandbox, token
        self.execs: dict[str, ModalExec] = {}
        self._idle, self._on_idle = idle, on_idle
        self._timer: asyncio.TimerHandle | None = None
        self._watching = set[asyncio.Task[None]]()
        self._touch()

    def _touch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._idle and not self._watching:
            self._timer = asyncio.get_running_loop().call_later(self._idle, self._on_idle)

    def add(self, name: str, command: ModalExec) -> None:
        """Add a command, and restart the clock when it has ended."""
        self.execs[name] = command

        async def watch() -> None:
            await command.wait()

        task = asyncio.get_running_loop().create_task(watch())
        self._watching.add(task)
        task.add_done_callback(self._ended)
        self._touch()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._watching.discard(task)
        if not task.cancelled():
            self._touch()

    async def forget(self) -> None:
        """Forget the commands that have ended: a snapshot would carry their streams."""
        for name in [name for name, command in self.execs.items() if command.code is not None]:
            await self.execs.pop(name).close()

    async def close(self) -> None:
        """End every command."""
        if self._timer is not None:
            self._timer.cancel()
        self._idle = None
        gone = Refusal(Status.NOT_FOUND, f"no task {self.id}")
        for task in list(self._watching):
            task.cancel()
        for command in self.execs.values():
            await command.interrupt(gone)
            await command.close()


class TaskRouter:
    """The commands of all sandboxes of an account."""

    def __init__(
        self,
        on_snapshot: Callable[["ModalTask", int], Awaitable[str]],
        on_memory: Callable[["ModalTask"], Awaitable[str]],
    ) -> None:
        self.tasks: dict[str, ModalTask] = {}
        self._on_snapshot, self._on_memory = on_snapshot, on_memory
        self._taken: dict[str, asyncio.Task[str]] = {}

    def check(self, authorization: str) -> None:
        """Refuse a token that does not belong to a task."""
        if authorization not in {f"Bearer {task.token}" for task in self.tasks.values()}:
            raise Refusal(Status.NOT_FOUND, "the task of this token has ended")

    def _task(self, name: str) -> ModalTask:
        if name not in self.tasks:
            raise Refusal(Status.NOT_FOUND, f"no task {name}")
        return self.tasks[name]

    def _exec(self, request: Any) -> ModalExec:  # noqa: ANN401
        execs = self._task(request.task_id).execs
        if request.exec_id not in execs:
            raise Refusal(Status.NOT_FOUND, f"no command {request.exec_id}")
        return execs[request.exec_id]

    async def task_snapshot_filesystem(self, stream: Stream) -> None:
        """Take a snapshot of the files. A second call with its id returns the same image."""
        request = await take(stream, {"task_id", "snapshot_id", "ttl_seconds"})
        task, seconds = self._task(request.task_id), request.ttl_seconds
        if seconds <= 0 and seconds != -1:
            raise Refusal(Status.INVALID_ARGUMENT, f"ttl_seconds is {seconds}")
        if request.snapshot_id not in self._taken:
            work = self._take(task, seconds)
            self._taken[request.snapshot_id] = asyncio.get_running_loop().create_task(work)
        image = await self._taken[request.snapshot_id]
        await answer(stream, pb.TaskSnapshotFilesystemResponse(image_id=image))

    async def task_snapshot_memory(self, stream: Stream) -> None:
        """Take a snapshot of the memory, which ends the sandbox."""
        request = await take(stream, {"task_id", "idempotency_key"})
        name = await self._on_memory(self._task(request.task_id))
        await answer(stream, pb.TaskSnapshotMemoryResponse(snapshot_id=name))

    async def _take(self, task: ModalTask, seconds: int) -> str:
        try:
            return await self._on_snapshot(task, seconds)
        except BenchFlowError as error:
            raise Refusal(Status.INTERNAL, str(error)) from error

    async def task_exec_start(self, stream: Stream) -> None:
        """Start a command. A second call with its id does nothing."""
        request = await take(stream, _START)
        task = self._task(request.task_id)
        if request.exec_id not in task.execs:
            task.add(request.exec_id, await self._start(task, request))
        await answer(stream, pb.TaskExecStartResponse())

    async def _start(self, task: ModalTask, request: Any) -> ModalExec:  # noqa: ANN401
        arguments = list(request.command_args)
        if sum(map(len, arguments)) > _MAX_ARGUMENTS:
            raise Refusal(Status.INVALID_ARGUMENT, f"arguments are over {_MAX_ARGUMENTS} bytes")
        if request.workdir and not request.workdir.startswith("/"):
            raise Refusal(Status.INVALID_ARGUMENT, "the working directory is not absolute")
        if arguments[0] == FILE_PROGRAM:
            order = json.loads(arguments[1])
            if order.keys() != {"WriteFile"}:
                raise Refusal(Status.UNIMPLEMENTED, f"{FILE_PROGRAM} {sorted(order)}")
            return ModalFileExec(task.sandbox, order["WriteFile"]["path"])
        env = {EXEC_MARK: request.exec_id}
        for source in request.secret_sources:
            refuse_unknown(source, {"env"})
            env |= dict(source.env.contents)
        try:
            process = await task.sandbox.spawn(
                arguments, user="root", cwd=request.workdir or None, env=env
            )
        except SandboxError as error:
            raise Refusal(Status.INVALID_ARGUMENT, str(error)) from error
        return ModalExec(process, request.timeout_secs or None)

    async def task_exec_stdio_read(self, stream: Stream) -> None:
        """Stream the output of a command from an offset."""
        request = await take(stream, {"task_id", "exec_id", "offset", "file_descriptor"})
        await self._exec(request).read(stream, request.file_descriptor, request.offset)

    async def task_exec_stdin_write(self, stream: Stream) -> None:
        """Write input at an offset."""
        request = await take(stream, {"task_id", "exec_id", "offset", "data", "eof"})
        await self._exec(request).write(request.offset, request.data, eof=request.eof)
        await answer(stream, pb.TaskExecStdinWriteResponse())

    async def task_exec_stdin_write_stream(self, stream: Stream) -> None:
        """Write a stream of input; its last message ends the input."""
        command: ModalExec | None = None
        offset = 0
        async for each in stream:
            kind = each.WhichOneof("payload")
            if kind == "start":
                command = self._exec(each.start)
                offset = each.start.offset
            elif command is None:
                raise Refusal(Status.INVALID_ARGUMENT, "the stream does not say its command")
            else:
                await command.write(offset, each.data, eof=kind == "end")
                offset += len(each.data)
        await answer(stream, pb.TaskExecStdinWriteStreamResponse())

    async def task_exec_stdin_status(self, stream: Stream) -> None:
        """Return how much input a command has."""
        command = self._exec(await take(stream, {"task_id", "exec_id"}))
        await answer(
            stream,
            pb.TaskExecStdinStatusResponse(
                num_bytes_written=command.written, closed=command.input_ended
            ),
        )

    async def task_exec_poll(self, stream: Stream) -> None:
        """Return the exit code of a command that has ended."""
        command = self._exec(await take(stream, {"task_id", "exec_id"}))
        await answer(stream, pb.TaskExecPollResponse(**_status(command.code)))

    async def task_exec_wait(self, stream: Stream) -> None:
        """Return the exit code of a command at its end."""
        command = self._exec(await take(stream, {"task_id", "exec_id"}))
        code = await command.wait()
        if command.expired:
            await asyncio.sleep(1)
        await answer(stream, pb.TaskExecWaitResponse(**_status(code)))


def _status(code: int | None) -> dict[str, int]:
    """Return the field of an exit code; Modal reports a signal as such."""
    if code is None:
        return {}
    return {"signal": code - 128} if code > 128 else {"code": code}
