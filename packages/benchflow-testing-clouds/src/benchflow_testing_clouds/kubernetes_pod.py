"""One pod of our server with Kubernetes' API, over a local sandbox."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.process import ByteReader, Process
from benchflow_contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec

from .http import Receive, Scope, Send

API_PORT = 6443
"""The port at which an open pod reaches the API server, on its own loopback."""
V5 = "v5.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_PIECE = 1 << 15


def now() -> str:
    """Return the time as the API writes it: in seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class PodSandbox:
    """A pod: its object in the API, and the sandbox in which its commands run.

    As with a real cluster: a command has neither a user, nor a directory, nor variables of its
    own; it continues when its connection ends; and the pod ends with its first process.
    """

    def __init__(self, body: dict[str, Any], on_change: Callable[["PodSandbox"], None]) -> None:
        self.object = body
        self.status: dict[str, Any] = {"phase": "Pending"}
        self._on_change = on_change
        self._sandbox: Sandbox | None = None
        self._commands = set[Process]()
        self._tasks = set[asyncio.Task[None]]()

    @property
    def name(self) -> str:
        """The pod's name."""
        return str(self.object["metadata"]["name"])

    @property
    def is_finished(self) -> bool:
        """Whether the pod has ended."""
        return self.status["phase"] in {"Succeeded", "Failed"}

    def set_status(self, phase: str, state: dict[str, Any], **more: str) -> None:
        """Change the status, and report it to those who watch."""
        container = self.object["spec"]["containers"][0]
        running = "running" in state
        self.status = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container["image"],
                    "imageID": "",
                    "ready": running,
                    "restartCount": 0,
                    "state": state,
                }
            ],
            **more,
        }
        self._on_change(self)

    async def start(self, provider: SandboxProvider, image: SandboxSpec, api: str | None) -> None:
        """Start the sandbox and the pod's first process; `api`: the address of an open network."""
        container, spec = self.object["spec"]["containers"][0], self.object["spec"]
        own: dict[str, Any] = {
            "user": "root",
            "workdir": "/",
            "limits": _limits(container.get("resources", {}).get("limits", {})),
        }
        if api is not None:
            door = Door(name="api", upstream=api, port=API_PORT, serves="http")
            own |= {"network": "model-only", "doors": (door,)}
        self._sandbox = await provider.create(image.model_copy(update=own))
        first = await self._spawn(container["command"])
        self.set_status("Running", {"running": {"startedAt": now()}})
        self._start(self._wait(first, spec.get("activeDeadlineSeconds")))

    def _start(self, work: Any) -> None:  # noqa: ANN401
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _spawn(self, argv: list[str]) -> Process:
        assert self._sandbox is not None
        process = await self._sandbox.spawn(argv, user="root", cwd="/", env=_SERVICE)
        self._commands.add(process)
        return process

    async def _wait(self, first: Process, seconds: int | None) -> None:
        """Wait for the end of the pod's first process, or for the deadline."""
        try:
            async with asyncio.timeout(seconds):
                code = await first.wait()
        except TimeoutError:
            await self.end("DeadlineExceeded", "Pod was active longer than specified deadline")
            return
        if self.is_finished:
            return
        reason = "Error" if code else "Completed"
        await self._stop()
        self.set_status("Failed" if code else "Succeeded", _terminated(code, reason))

    async def end(self, reason: str, message: str = "", *, container: str = "Error") -> None:
        """End the pod as the cluster does, such as by an eviction."""
        given = {"reason": reason, "message": message} if reason else {}
        # Before the processes end, so that their end is not taken for the reason.
        self.set_status("Failed", _terminated(137, container), **given)
        await self._stop()

    async def _stop(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        for process in list(self._commands):
            with contextlib.suppress(SandboxError):
                await process.aclose()
        self._commands.clear()
        if sandbox is not None:
            await sandbox.teardown()

    async def remove(self) -> None:
        """End everything at once."""
        tasks = [each for each in self._tasks if each is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._stop()

    def cut(self) -> None:
        """End the output of every command, as an API server that restarts does."""
        for task in list(self._tasks):
            if task.get_name() == "stream":
                task.cancel()

    async def exec(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one command over a WebSocket that was accepted."""
        argv = [
            value for key, value in parse_qsl(scope["query_string"].decode()) if key == "command"
        ]
        try:
            process = await self._spawn(argv)
        except SandboxError as error:
            await _send_status(send, {"status": "Failure", "message": str(error)})
            return
        streaming = asyncio.get_running_loop().create_task(_stream(process, send), name="stream")
        reading = asyncio.get_running_loop().create_task(_read(process, receive))
        self._tasks |= {streaming, reading}
        try:
            await asyncio.wait({streaming, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (streaming, reading):
                task.cancel()
                self._tasks.discard(task)
            for task in (streaming, reading):
                # The client may have gone in the middle of an output.
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await task
            # The process itself goes on: it notices only that its input has ended.
            with contextlib.suppress(SandboxError, OSError):
                await process.stdin.aclose()
            with contextlib.suppress(Exception):
                await send({"type": "websocket.close", "code": 1000})


async def _stream(process: Process, send: Send) -> None:
    async def copy(reader: ByteReader, channel: int) -> None:
        while data := await reader.read(_PIECE):
            await send({"type": "websocket.send", "bytes": bytes([channel]) + data})

    async with asyncio.TaskGroup() as group:
        group.create_task(copy(process.stdout, _STDOUT))
        group.create_task(copy(process.stderr, _STDERR))
    code = await process.wait()
    if code == 0:
        await _send_status(send, {"status": "Success", "metadata": {}})
        return
    cause = {"reason": "ExitCode", "message": str(code)}
    failure = {
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [cause]},
    }
    await _send_status(send, failure)


async def _send_status(send: Send, status: dict[str, Any]) -> None:
    await send({"type": "websocket.send", "bytes": bytes([_STATUS]) + json.dumps(status).encode()})


async def _read(process: Process, receive: Receive) -> None:
    """Write what the client sends; return when the client has gone."""
    while (message := await receive())["type"] == "websocket.receive":
        data = message.get("bytes") or b""
        with contextlib.suppress(SandboxError, OSError):
            if data[:1] == bytes([_STDIN]):
                await process.stdin.write(data[1:])
            elif data == bytes([_CLOSE, _STDIN]):
                await process.stdin.aclose()


_SERVICE = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(API_PORT)}


def _terminated(code: int, reason: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()}}


def _limits(given: dict[str, str]) -> ResourceLimits:
    fields: dict[str, Any] = {}
    if memory := given.get("memory"):
        fields["memory_mb"] = int(memory.removesuffix("Mi"))
    if disk := given.get("ephemeral-storage"):
        fields["disk_mb"] = int(disk.removesuffix("Mi"))
    return ResourceLimits(**fields)
