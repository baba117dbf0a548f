"""Daytona's toolbox of one sandbox: commands, sessions and files.

It has the weaknesses of Daytona's: the outputs of a command are one text, a command ends after 10
seconds if nothing else is asked for, a session passes on whole lines only, echoes its input unless
it is asked not to, cannot close its input, and loses input that comes before its command runs.
"""

import asyncio
import json
import secrets
import tempfile
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.process import ByteReader, Process
from benchflow_contracts.sandbox import Sandbox

from .http import Receive, Scope, Send, body_of, respond

_STDOUT, _STDERR = b"\x01\x01\x01", b"\x02\x02\x02"
_DEFAULT_SECONDS = 10
_START_SECONDS = 0.02
"""A session answers before its command runs."""
_PIECE = 1024
_DAEMON = "DAYTONA_DAEMON"


@dataclass
class _Command:
    is_echoed: bool
    log: bytearray = field(default_factory=bytearray)
    """Its output so far, each line with the mark of its stream."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    has_ended: bool = False
    task: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        self.log += data
        self._notify()

    def end(self) -> None:
        self.has_ended = True
        self._notify()

    def _notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class Toolbox:
    """The toolbox of one sandbox. Its commands run as `user`."""

    def __init__(self, sandbox: Sandbox, user: str) -> None:
        self._sandbox, self._user = sandbox, user
        self._sessions: dict[str, dict[str, _Command]] = {}
        self.sessions_created = 0
        self.restarts = 0
        """How many of the next sessions end at once, because the toolbox starts again."""

    async def __call__(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request below the path of the sandbox."""
        method, parts = scope.get("method", "WS"), path.split("/")
        match (method, *parts):
            case ("POST", "process", "execute"):
                await self._execute(json.loads(await body_of(receive)), send)
            case ("POST", "process", "session"):
                await self._create_session(json.loads(await body_of(receive)), send)
            case ("DELETE", "process", "session", session):
                found = await self._end_session(session)
                await (respond(send, 204) if found else _refuse(send, 404, "session not found"))
            case ("POST", "process", "session", session, "exec"):
                await self._start(session, json.loads(await body_of(receive)), send)
            case ("POST", "process", "session", session, "command", command, "input"):
                await self._input(session, command, json.loads(await body_of(receive)), send)
            case ("WS", "process", "session", session, "command", command, "logs"):
                await self._follow(session, command, receive, send)
            case ("POST", "files", "bulk-upload"):
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                await self._upload(headers["content-type"], await body_of(receive), send)
            case ("WS", *_):
                await send({"type": "websocket.close"})
            case _:
                await _refuse(send, 404, f"{method} /{path} is not served")

    async def _execute(self, given: dict[str, Any], send: Send) -> None:
        if unknown := given.keys() - {"command", "cwd", "envs", "timeout"}:
            await _refuse(send, 400, f"unknown fields: {sorted(unknown)}")
            return
        try:
            result = await self._sandbox.exec(
                ["sh", "-c", f"exec 2>&1\n{given['command']}"],
                user=self._user,
                cwd=given.get("cwd") or "/",
                env=given.get("envs") or {},
                timeout=given.get("timeout") or _DEFAULT_SECONDS,
            )
        except SandboxTimeoutError:
            text = "command execution timeout"
            await _refuse(send, 408, text, code="PROCESS_EXECUTION_TIMEOUT")
        except SandboxError as error:
            await _refuse(send, 400, str(error))
        else:
            await respond(send, 200, {"exitCode": result.exit_code, "result": result.stdout})

    async def _create_session(self, given: dict[str, Any], send: Send) -> None:
        if given.keys() != {"sessionId"}:
            await _refuse(send, 400, f"fields {sorted(given)}")
        elif given["sessionId"] in self._sessions:
            await _refuse(send, 409, "session already exists")
        else:
            self._sessions[given["sessionId"]] = {}
            self.sessions_created += 1
            if self.restarts:
                self.restarts -= 1
                await self.cut()
            await respond(send, 201)

    async def _start(self, session: str, given: dict[str, Any], send: Send) -> None:
        if session not in self._sessions:
            await _refuse(send, 404, "session not found")
        elif given.keys() - {"command", "runAsync", "suppressInputEcho"} or not given["runAsync"]:
            await _refuse(send, 400, f"fields {sorted(given)}")
        else:
            identity = secrets.token_hex(8)
            command = _Command(is_echoed=not given.get("suppressInputEcho"))
            self._sessions[session][identity] = command
            loop = asyncio.get_running_loop()
            command.task = loop.create_task(self._run(command, given["command"]))
            await respond(send, 202, {"cmdId": identity})

    async def _run(self, command: _Command, text: str) -> None:
        await asyncio.sleep(_START_SECONDS)
        try:
            process = await self._sandbox.spawn(["sh", "-c", text], user=self._user, cwd="/")
            command.process = process
            async with asyncio.TaskGroup() as group:
                group.create_task(_label(process.stdout, _STDOUT, command))
                group.create_task(_label(process.stderr, _STDERR, command))
            await process.wait()
        except* SandboxError:
            pass  # the sandbox is gone, and so is the session
        finally:
            command.end()

    def _command(self, session: str, command: str) -> _Command | None:
        return self._sessions.get(session, {}).get(command)

    async def _input(self, session: str, name: str, given: dict[str, Any], send: Send) -> None:
        command = self._command(session, name)
        if command is None:
            await _refuse(send, 404, "command not found")
        elif given.keys() != {"data"}:
            await _refuse(send, 400, f"fields {sorted(given)}")
        elif command.has_ended:
            text = "command has already completed"
            await _refuse(send, 410, text, code="COMMAND_ALREADY_COMPLETED")
        elif command.process is None:
            await _refuse(send, 500, "failed to open input pipe")
        else:
            data = given["data"].encode()
            data += b"" if data.endswith(b"\n") else b"\n"
            try:
                await command.process.stdin.write(data)
            except SandboxError as error:
                await _refuse(send, 500, f"failed to write to input pipe: {error}")
                return
            if command.is_echoed:
                command.write(_STDOUT + data)
            await respond(send, 204)

    async def _follow(self, session: str, name: str, receive: Receive, send: Send) -> None:
        """Send the log from its beginning, and all that comes, until the command has ended."""
        command = self._command(session, name)
        if command is None:
            await send({"type": "websocket.close"})
            return
        await receive()
        await send({"type": "websocket.accept"})

        async def left() -> None:
            await receive()

        leaving = asyncio.get_running_loop().create_task(left())
        sent = 0
        try:
            while not leaving.done():
                changed = command.changed
                while sent < len(command.log):
                    piece = bytes(command.log[sent : sent + _PIECE])
                    await send({"type": "websocket.send", "bytes": piece})
                    sent += len(piece)
                if command.has_ended and sent == len(command.log):
                    await send({"type": "websocket.close", "code": 1000})
                    return
                waiting = asyncio.get_running_loop().create_task(changed.wait())
                await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
        finally:
            leaving.cancel()

    async def _end_session(self, session: str) -> bool:
        commands = self._sessions.pop(session, None)
        for command in (commands or {}).values():
            if command.task is not None:
                command.task.cancel()
            if command.process is not None:
                with suppress(SandboxError):
                    await command.process.aclose()
            command.end()
        return commands is not None

    async def _upload(self, kind: str, body: bytes, send: Send) -> None:
        parts = _parts(kind, body)
        paths = {name.removesuffix(".path"): text for name, text in parts if name.endswith(".path")}
        errors = list[str]()
        for name, content in parts:
            if not name.endswith(".file"):
                continue
            path = paths.get(name.removesuffix(".file"), b"").decode()
            with tempfile.NamedTemporaryFile() as file:
                file.write(content)
                file.flush()
                try:
                    await self._sandbox.upload(Path(file.name), path, user=self._user)
                except SandboxError as error:
                    errors.append(f"{path}: {error}")
        await respond(send, 400 if errors else 200, {"errors": errors} if errors else {})

    async def cut(self) -> None:
        """End every session, as a toolbox that starts again does."""
        for session in list(self._sessions):
            await self._end_session(session)

    async def aclose(self) -> None:
        """End every session, as a sandbox that is deleted does."""
        await self.cut()


async def _label(reader: ByteReader, mark: bytes, command: _Command) -> None:
    """Append the output to the log, each line when it is whole."""
    line = b""
    while data := await reader.read():
        *whole, line = (line + data).split(b"\n")
        command.write(b"".join(mark + each + b"\n" for each in whole))
    if line:
        command.write(mark + line + b"\n")


def _parts(kind: str, body: bytes) -> list[tuple[str, bytes]]:
    """Return the names and the contents of a multipart body."""
    boundary = kind.partition("boundary=")[2].strip('"').encode()
    found = list[tuple[str, bytes]]()
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = head.partition(b'name="')[2].partition(b'"')[0].decode()
        found.append((urllib.parse.unquote(name), content.removesuffix(b"\r\n")))
    return found


async def _refuse(send: Send, status: int, message: str, *, code: str | None = None) -> None:
    body = {"statusCode": status, "message": message, "source": _DAEMON}
    await respond(send, status, body | ({"code": code} if code else {}))
