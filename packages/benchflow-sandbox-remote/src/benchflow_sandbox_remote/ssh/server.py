"""The server on another host. It creates sandboxes there with a provider of that host.

It listens on a socket that only its user can reach, and is started by the first connection. It
deletes each sandbox at the end of its lifetime, and ends when there is nothing to do.
"""

import asyncio
import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import (
    BenchFlowError,
    SandboxError,
    SandboxLostError,
    SandboxUnsupportedError,
    UsageError,
)
from benchflow_contracts.process import ByteReader
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from pydantic import ValidationError

from benchflow_sandbox_remote.transport import PROGRAM

from .messages import MAX_FILE, MAX_LINE, VERSION, message_of, read_message, write_message

IDLE_SECONDS = float(os.environ.get("BENCHFLOW_REMOTE_IDLE", "60"))
_STEP = 0.5
_PIECE = 1 << 15
_RUN_SECONDS = 60.0
_FIELDS = {"image", "image_search", "limits", "network"}


@dataclass
class _Held:
    sandbox: Sandbox
    labels: dict[str, str]
    created_at: float
    timer: asyncio.TimerHandle


class RemoteHostServer:
    """The sandboxes of one user of this host."""

    def __init__(self, provider: SandboxProvider) -> None:
        self._provider = provider
        self._sandboxes: dict[str, _Held] = {}
        self._creations: dict[str, asyncio.Task[str]] = {}
        self._tasks = set[asyncio.Task[Any]]()
        self._connections = 0

    async def serve(self, path: str) -> None:
        """Serve until nothing was used for `IDLE_SECONDS`."""
        server = await asyncio.start_unix_server(self._handle, path, limit=MAX_LINE)
        async with server:
            idle = 0.0
            while idle < IDLE_SECONDS:
                await asyncio.sleep(_STEP)
                idle = 0.0 if self._sandboxes or self._connections else idle + _STEP
        await self._provider.aclose()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            while (request := await read_message(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    return
        except (OSError, SandboxError):
            pass  # the connection was cut, and its runner asks again
        finally:
            self._connections -= 1
            writer.close()

    async def _answer(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer a request; return whether the connection can carry another one."""
        calls: dict[str, Any] = {
            "capabilities": self._capabilities,
            "create": self._create,
            "extend": self._extend,
            "list": self._list,
            "run": self._run,
            "delete": self._delete,
        }
        call = request.pop("call", None)
        try:
            if call == "dial":
                await self._dial(reader, writer, **request)
                return False
            if call == "put":
                await self._put(reader, **request)
                write_message(writer, {"ok": None})
            elif call in calls:
                write_message(writer, {"ok": await calls[call](**request)})
            else:
                raise UsageError(f"the call {call!r} does not exist")
        except BenchFlowError as error:
            write_message(writer, message_of(error))
        except (TypeError, ValidationError) as error:
            write_message(writer, message_of(UsageError(f"{call}: {error}")))
        await writer.drain()
        return bool(call != "put")  # after a refused file the stream may have its bytes

    async def _capabilities(self) -> dict[str, Any]:
        can = await self._provider.capabilities()
        return {"version": VERSION, "capabilities": can.model_dump(mode="json")}

    async def _create(
        self, *, key: str, labels: dict[str, str], lifetime: float, spec: dict[str, Any]
    ) -> str:
        if unknown := spec.keys() - _FIELDS:
            raise SandboxUnsupportedError(f"unknown fields of a spec: {sorted(unknown)}")
        if key not in self._creations:
            plain = SandboxSpec.model_validate({**spec, "user": "root", "workdir": "/"})
            task = self._start(self._make(plain, labels, lifetime))
            self._creations[key] = task
        try:
            # A connection that is cut does not end the creation: the runner asks again.
            return await asyncio.shield(self._creations[key])
        except SandboxError:
            self._creations.pop(key, None)
            raise

    def _start(self, work: Any) -> asyncio.Task[Any]:  # noqa: ANN401
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _make(self, spec: SandboxSpec, labels: dict[str, str], lifetime: float) -> str:
        sandbox = await self._provider.create(spec)
        timer = self._timer(sandbox.id, lifetime)
        self._sandboxes[sandbox.id] = _Held(sandbox, labels, time.time(), timer)
        return sandbox.id

    def _timer(self, name: str, lifetime: float) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(lifetime, lambda: self._start(self._delete(id=name)))

    def _find(self, name: str) -> _Held:
        if name not in self._sandboxes:
            raise SandboxLostError(f"sandbox {name!r} does not exist, or its time is over")
        return self._sandboxes[name]

    async def _extend(self, *, id: str, lifetime: float) -> None:  # noqa: A002
        held = self._find(id)
        held.timer.cancel()
        held.timer = self._timer(id, lifetime)
        await asyncio.sleep(0)

    async def _list(self, *, label: str) -> list[dict[str, Any]]:
        await asyncio.sleep(0)
        return [
            {"id": name, "labels": held.labels, "created_at": held.created_at}
            for name, held in self._sandboxes.items()
            if label in held.labels
        ]

    async def _put(
        self,
        reader: asyncio.StreamReader,
        *,
        id: str,  # noqa: A002
        path: str,
        mode: int,
        size: int,
    ) -> None:
        if not 0 <= size <= MAX_FILE:
            raise UsageError(f"{size} bytes are over the limit of {MAX_FILE}")
        content = await reader.readexactly(size)
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            await self._find(id).sandbox.upload(Path(file.name), path)
        await self._run(id=id, argv=["chmod", f"{mode:o}", path])

    async def _run(self, *, id: str, argv: list[str]) -> None:  # noqa: A002
        sandbox = self._find(id).sandbox
        result = await sandbox.exec(argv, user="root", cwd="/", timeout=_RUN_SECONDS)
        if not result.ok:
            text = (result.stderr or result.stdout).strip()[-500:]
            raise SandboxError(f"{argv[0]} ended with {result.exit_code}: {text}")

    async def _dial(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        id: str,  # noqa: A002
    ) -> None:
        sandbox = self._find(id).sandbox
        process = await sandbox.spawn([PROGRAM, "dial"], user="root", cwd="/")
        write_message(writer, {"ok": None})
        tasks = {
            self._start(_copy_in(reader, process.stdin)),
            self._start(_copy_out(process.stdout, writer)),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            with contextlib.suppress(SandboxError):
                await process.aclose()

    async def _delete(self, *, id: str) -> None:  # noqa: A002
        held = self._sandboxes.pop(id, None)
        if held is not None:
            held.timer.cancel()
            await held.sandbox.teardown()


async def _copy_in(reader: asyncio.StreamReader, stdin: Any) -> None:  # noqa: ANN401
    with contextlib.suppress(OSError, SandboxError):
        while data := await reader.read(_PIECE):
            await stdin.write(data)


async def _copy_out(stdout: ByteReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, SandboxError):
        while data := await stdout.read(_PIECE):
            writer.write(data)
            await writer.drain()
