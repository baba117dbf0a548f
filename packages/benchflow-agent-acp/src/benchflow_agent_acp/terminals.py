"""`terminal/*`: commands that the agent runs through its client."""

import asyncio
import base64
from dataclasses import dataclass, field
from typing import Any

from acp.schema import (
    CreateTerminalRequest,
    KillTerminalRequest,
    ReleaseTerminalRequest,
    TerminalOutputRequest,
    WaitForTerminalExitRequest,
)
from benchflow_contracts import Process, Sandbox, SandboxError, caused_outside
from benchflow_contracts.process import ByteReader
from pydantic import BaseModel, ConfigDict, ValidationError

from .connection import INVALID_PARAMS, METHOD_NOT_FOUND, Connection
from .state import IncomingRequest

_OUTPUT_BYTES = 1024 * 1024
_MAX_TERMINALS = 16


class EndedTerminal(BaseModel):
    """A command that has ended, and its output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    output: str
    """In base64."""
    truncated: bool
    exit_code: int


class TerminalsState(BaseModel):
    """The terminals of a session while no command runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int = 0
    ended: tuple[EndedTerminal, ...] = ()


@dataclass(slots=True)
class _Terminal:
    process: Process | None
    """`None` if the command ended before a fork."""
    limit: int
    output: bytearray = field(default_factory=bytearray)
    truncated: bool = False
    exited: asyncio.Event = field(default_factory=asyncio.Event)
    exit_code: int | None = None

    async def kill(self) -> None:
        if self.process is not None:
            await self.process.kill()

    async def drain(self, reader: ByteReader) -> None:
        while chunk := await reader.read():
            self.output += chunk
            if len(self.output) > self.limit:
                del self.output[: len(self.output) - self.limit]
                self.truncated = True


class Terminals:
    """The terminals of one session. Every terminal ends with its turn, or earlier.

    The task that serves `terminal/create` owns the process until the process ends.
    """

    def __init__(self, sandbox: Sandbox, connection: Connection) -> None:
        self._sandbox = sandbox
        self._connection = connection
        self._open: dict[str, _Terminal] = {}
        self._count = 0

    @property
    def running(self) -> bool:
        """Whether a command runs in one of the terminals."""
        return any(not terminal.exited.is_set() for terminal in self._open.values())

    def state(self) -> TerminalsState:
        """Return the ended terminals. A running terminal is lost with its turn."""
        ended = tuple(
            EndedTerminal(
                id=key,
                output=base64.b64encode(terminal.output).decode("ascii"),
                truncated=terminal.truncated,
                exit_code=terminal.exit_code,
            )
            for key, terminal in self._open.items()
            if terminal.exit_code is not None
        )
        return TerminalsState(count=self._count, ended=ended)

    def restore(self, state: TerminalsState) -> None:
        """Restore the terminals that ended before a fork."""
        self._count = state.count
        for ended in state.ended:
            output = bytearray(base64.b64decode(ended.output))
            terminal = _Terminal(None, len(output), output, ended.truncated)
            terminal.exit_code = ended.exit_code
            terminal.exited.set()
            self._open[ended.id] = terminal

    async def serve(self, request: IncomingRequest) -> None:
        """Answer one `terminal/*` request."""
        try:
            if request.method == "terminal/create":
                await self._create(request)
            else:
                await self._connection.reply(request, await self._use(request))
        except (ValidationError, KeyError) as error:
            await self._connection.refuse(request.id, INVALID_PARAMS, f"{error!s:.300}")
        except NotImplementedError as error:
            await self._connection.refuse(request.id, METHOD_NOT_FOUND, str(error))
        except SandboxError as error:
            if caused_outside(error):
                raise
            await self._connection.refuse(request.id, INVALID_PARAMS, f"{error!s:.300}")

    async def _create(self, request: IncomingRequest) -> None:
        params = CreateTerminalRequest.model_validate(request.params)
        if len(self._open) >= _MAX_TERMINALS:
            raise KeyError(f"more than {_MAX_TERMINALS} terminals")
        # Without arguments, the command is a shell command line.
        process = await self._sandbox.spawn(
            [params.command, *params.args] if params.args else params.command,
            cwd=params.cwd,
            env={variable.name: variable.value for variable in params.env or ()},
        )
        try:
            self._count += 1
            key = f"terminal-{self._count}"
            limit = min(params.output_byte_limit or _OUTPUT_BYTES, _OUTPUT_BYTES)
            terminal = self._open[key] = _Terminal(process, limit)
            await process.stdin.aclose()
            await self._connection.reply(request, {"terminalId": key})
            await self._follow(terminal, process)
        finally:
            await process.aclose()

    async def _follow(self, terminal: _Terminal, process: Process) -> None:
        async with asyncio.TaskGroup() as drains:
            drains.create_task(terminal.drain(process.stdout))
            drains.create_task(terminal.drain(process.stderr))
        terminal.exit_code = await process.wait()
        terminal.exited.set()

    async def _use(self, request: IncomingRequest) -> dict[str, Any]:
        params = request.params
        if request.method == "terminal/output":
            return self._output(self._find(TerminalOutputRequest.model_validate(params)))
        if request.method == "terminal/wait_for_exit":
            terminal = self._find(WaitForTerminalExitRequest.model_validate(params))
            await terminal.exited.wait()
            return {"exitCode": terminal.exit_code}
        if request.method == "terminal/kill":
            await self._find(KillTerminalRequest.model_validate(params)).kill()
            return {}
        if request.method == "terminal/release":
            release = ReleaseTerminalRequest.model_validate(params)
            await self._find(release).kill()
            del self._open[release.terminal_id]
            return {}
        raise NotImplementedError(f"unknown method {request.method!r:.100}")

    def _find(
        self,
        params: TerminalOutputRequest
        | WaitForTerminalExitRequest
        | KillTerminalRequest
        | ReleaseTerminalRequest,
    ) -> _Terminal:
        return self._open[params.terminal_id]

    def _output(self, terminal: _Terminal) -> dict[str, Any]:
        result: dict[str, Any] = {
            "output": terminal.output.decode("utf-8", "ignore"),
            "truncated": terminal.truncated,
        }
        if terminal.exited.is_set():
            result["exitStatus"] = {"exitCode": terminal.exit_code}
        return result
