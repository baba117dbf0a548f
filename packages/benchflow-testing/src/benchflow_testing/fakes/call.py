"""The call of a fake program, and the registered programs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.process import ByteReader, ByteWriter
from benchflow_contracts.sandbox import ExecResult

if TYPE_CHECKING:
    from .program import FakeProgram
    from .sandbox import FakeSandbox


@dataclass(frozen=True, slots=True)
class FakeCall:
    """The request of one `exec` or `spawn` of a fake sandbox."""

    sandbox: "FakeSandbox"
    cmd: str | tuple[str, ...]
    user: str
    cwd: str
    env: Mapping[str, str]
    """The whole environment of the process."""
    stdin: bytes = b""
    timeout: float | None = None

    @property
    def text(self) -> str:
        """The command as one line, which is compared with registered prefixes."""
        return self.cmd if isinstance(self.cmd, str) else " ".join(self.cmd)


@dataclass(frozen=True, slots=True)
class FakeStreams:
    """The live streams of a fake program."""

    stdin: ByteReader
    stdout: ByteWriter
    stderr: ByteWriter


ExecHandler = Callable[[FakeCall], ExecResult | Awaitable[ExecResult]]
"""Replaces a command: returns its result."""

ProgramHandler = Callable[[FakeCall, FakeStreams], Awaitable[int]]
"""Replaces a program with live pipes, such as an agent: returns its exit code.

A coroutine cannot be copied, so a live snapshot needs a `FakeProgram` instead.
"""


@dataclass(frozen=True, slots=True)
class HandlerRun:
    """A running `ProgramHandler`."""

    program: ProgramHandler
    call: FakeCall
    streams: FakeStreams

    async def run(self) -> int:
        """Run the handler to its end."""
        return await self.program(self.call, self.streams)

    def __deepcopy__(self, _memo: dict[int, Any]) -> "HandlerRun":
        raise SnapshotError(
            f"the fake program {self.call.text!r} is a coroutine, which cannot be copied",
            hint="register a FakeProgram",
        )


class FakeCommands:
    """Commands that a test registered, by prefix. The last registration wins."""

    def __init__(self) -> None:
        self._handlers: list[tuple[str, ExecHandler]] = []
        self._programs: list[tuple[str, ProgramHandler | FakeProgram]] = []

    def on(self, prefix: str, handler: ExecHandler) -> None:
        """Call `handler` for every `exec` whose command starts with `prefix`."""
        self._handlers.insert(0, (prefix, handler))

    def on_spawn(self, prefix: str, program: "ProgramHandler | FakeProgram") -> None:
        """Run `program`, or a copy of a FakeProgram, for commands that start with `prefix`."""
        self._programs.insert(0, (prefix, program))

    def handler(self, text: str) -> ExecHandler | None:
        """Return the handler for a command, or `None`."""
        return next((h for prefix, h in self._handlers if text.startswith(prefix)), None)

    def program(self, text: str) -> "ProgramHandler | FakeProgram | None":
        """Return the program for a command, or `None`."""
        return next((p for prefix, p in self._programs if text.startswith(prefix)), None)
