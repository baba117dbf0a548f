"""The fake shell: runs its subset of POSIX sh against the files of a fake sandbox."""

import posixpath
import signal
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from benchflow_contracts.process import ByteWriter

from .call import FakeStreams
from .file_system import FakeFileSystem
from .pipe import FakeCapture
from .process import FakeGate, FakeGroup
from .shell_syntax import (
    Command,
    Compound,
    FakeShellSyntaxError,
    Redirect,
    Script,
    Simple,
    Statement,
    Word,
    parse,
)

_UNLIMITED = 1 << 40


Program = Callable[["FakeShell", list[str]], Awaitable[int]]
"""A program: called with its shell and its arguments, returns its exit code.

A copy of the shell that it waits in calls it anew, with the same `shell.level`.
"""


class FakeShellExit(Exception):  # noqa: N818 - control flow, not a failure
    """The end of the shell, with its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class BytesReader:
    """A ByteReader over bytes in memory."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = data

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Return the next bytes, or `b""` at the end."""
        data, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return data

    def waiting(self) -> int:
        """Return the number of remaining bytes."""
        return len(self._data)


@dataclass(slots=True)
class Level:
    """The position in one level of a running script.

    All state of a level is here and not in local variables, so that the copy of a running
    shell continues from the same position.
    """

    at: int = 0
    code: int = 0
    base: FakeStreams | None = None
    """The streams at the start of the level."""
    streams: FakeStreams | None = None
    """The current streams, after redirections, which must not happen twice."""
    capture: FakeCapture | None = None
    data: bytes = b""
    shell: "FakeShell | None" = None
    """The subshell that the level runs."""
    below: "Level | None" = None

    @contextmanager
    def down(self) -> Generator["Level", None, None]:
        """Enter the level below: a new level, or in a copy the running level."""
        self.below = self.below or Level()
        yield self.below
        self.below = None


@dataclass(slots=True)
class FakeShell:
    """One shell process: its files, streams, variables and process group."""

    files: FakeFileSystem
    gate: FakeGate
    group: FakeGroup
    user: str
    cwd: str
    env: dict[str, str]
    streams: FakeStreams
    programs: Mapping[str, Program]
    variables: dict[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    level: Level = field(default_factory=Level)
    """The level of the running program."""

    def path(self, name: str) -> str:
        """Return `name` as an absolute path."""
        return posixpath.join(self.cwd, name)

    async def run_text(self, text: str, level: Level, arguments: Sequence[str] = ()) -> int:
        """Run shell text and return its exit code."""
        self.variables.update({str(at): word for at, word in enumerate(arguments)})
        try:
            return await self.script(parse(text), level)
        except FakeShellSyntaxError as error:
            await self.complain(f"sh: {error}")
            return 2
        except FakeShellExit as ended:
            return ended.code

    async def run_words(self, words: Sequence[str], level: Level) -> int:
        """Run one program by its argument vector."""
        try:
            return await self.program(words, level)
        except FakeShellExit as ended:
            return ended.code

    async def complain(self, line: str) -> None:
        """Write a line to stderr."""
        await self.streams.stderr.write(line.encode() + b"\n")

    def child(self, streams: FakeStreams | None = None) -> "FakeShell":
        """Return a subshell: changes to its variables and cwd stay inside."""
        return replace(
            self,
            env=dict(self.env),
            variables=dict(self.variables),
            streams=streams or self.streams,
            level=Level(),
        )

    def process(self) -> "FakeShell":
        """Return a new shell process, which inherits only exported variables."""
        inner = self.child()
        inner.variables.clear()
        return inner

    async def script(self, script: Script, level: Level) -> int:
        """Run statements in order and return the last exit code."""
        while level.at < len(script):
            statement = script[level.at]
            if statement.background:
                self._background(statement)
            else:
                with level.down() as below:
                    self.status = await self.links(statement, below)
            level.at += 1
        return self.status

    def _background(self, statement: Statement) -> None:
        inner = self.child(replace(self.streams, stdin=BytesReader()))
        self.group.background(_Background(inner, statement))
        self.variables["!"] = str(self.group.pid)
        self.status = 0

    async def links(self, statement: Statement, level: Level) -> int:
        """Run pipelines that are joined with `&&` and `||`."""
        while level.at < len(statement.links):
            link = statement.links[level.at]
            skipped = (link.joiner == "&&" and level.code) or (
                link.joiner == "||" and not level.code
            )
            if not skipped:
                with level.down() as below:
                    level.code = self.status = await self._pipeline(link.pipeline, below)
            level.at += 1
        return level.code

    async def _pipeline(self, commands: Sequence[Command], level: Level) -> int:
        level.base = base = level.base or self.streams
        if len(commands) == 1:
            with level.down() as below:
                return await self.command(commands[0], base, below)
        while level.at < len(commands):
            if level.shell is None or level.streams is None:
                last = level.at + 1 == len(commands)
                stdin = BytesReader(level.capture.data) if level.capture else base.stdin
                level.capture = None if last else FakeCapture(_UNLIMITED)
                level.streams = replace(base, stdin=stdin, stdout=level.capture or base.stdout)
                level.shell = self.child()
            with level.down() as below:
                level.code = await level.shell.command(commands[level.at], level.streams, below)
            level.at, level.shell = level.at + 1, None
        return level.code

    async def command(self, command: Command, streams: FakeStreams, level: Level) -> int:
        """Run one command with these streams."""
        await self.gate.passage()
        self.streams = streams
        try:
            self.streams = level.streams = level.streams or self._redirected(command.redirects)
            if isinstance(command, Simple):
                return await self._simple(command, level)
            return await self._compound(command, level)
        except OSError as error:
            await self.complain(f"sh: {error.filename}: {error.strerror}")
            return 1
        finally:
            self.streams = streams

    async def _compound(self, command: Compound, level: Level) -> int:
        if command.kind == "group":
            level.shell = level.shell or self.child()
            try:
                with level.down() as below:
                    return await level.shell.script(command.body, below)
            except FakeShellExit as ended:
                return ended.code
        if command.kind == "if":
            return await self._if(command, level)
        while True:
            if level.at == 0:
                with level.down() as below:
                    level.at = 2 if await self.script(command.condition or (), below) else 1
            if level.at == 2:
                return 0
            with level.down() as below:
                await self.script(command.body, below)
            level.at = 0

    async def _if(self, command: Compound, level: Level) -> int:
        if level.at == 0:
            with level.down() as below:
                level.at = 2 if await self.script(command.condition or (), below) else 1
        chosen = command.body if level.at == 1 else command.otherwise
        with level.down() as below:
            return await self.script(chosen, below) if chosen else 0

    async def _simple(self, command: Simple, level: Level) -> int:
        words = list(command.words)
        changed: dict[str, str] = {}
        while words and (pair := self._assignment(words[0])):
            changed[pair[0]] = pair[1]
            words.pop(0)
        arguments = [piece for word in words for piece in self._expand(word)]
        if not arguments:
            self.variables.update(changed)
            self.env.update({name: changed[name] for name in changed if name in self.env})
            return 0
        inner = self
        if changed:
            inner = level.shell = level.shell or self.child()
            inner.env.update(changed)
        with level.down() as below:
            return await inner.program(arguments, below)

    def _assignment(self, word: Word) -> tuple[str, str] | None:
        first = word.parts[0]
        name, equals, rest = first.text.partition("=")
        if first.variable or first.quoted or not equals or not name.isidentifier():
            return None
        tail = "".join(self._value(p.text) if p.variable else p.text for p in word.parts[1:])
        return name, rest + tail

    def _expand(self, word: Word) -> list[str]:
        pieces: list[str] = [""]
        present = False
        for part in word.parts:
            text = self._value(part.text) if part.variable else part.text
            present = present or part.quoted or not part.variable or bool(text.split())
            if not part.variable or part.quoted:
                pieces[-1] += text
                continue
            fields = text.split()
            if fields:
                pieces[-1] += fields[0]
                pieces.extend(fields[1:])
        return pieces if present else []

    def _value(self, name: str) -> str:
        special = {"?": str(self.status), "$": str(self.group.pid)}
        return special.get(name) or self.variables.get(name) or self.env.get(name, "")

    def _redirected(self, redirects: Sequence[Redirect]) -> FakeStreams:
        streams = self.streams
        for redirect in redirects:
            if redirect.operator == "2>&1":
                streams = replace(streams, stderr=streams.stdout)
            elif redirect.operator in {">&2", "1>&2"}:
                streams = replace(streams, stdout=streams.stderr)
            elif redirect.operator == "<":
                data = self.files.read(self._target(redirect), user=self.user)
                streams = replace(streams, stdin=BytesReader(data))
            elif redirect.operator.startswith("2"):
                streams = replace(streams, stderr=self._file(redirect))
            else:
                streams = replace(streams, stdout=self._file(redirect))
        return streams

    def _target(self, redirect: Redirect) -> str:
        assert redirect.target is not None
        return self.path("".join(self._expand(redirect.target)))

    def _file(self, redirect: Redirect) -> ByteWriter:
        path = self._target(redirect)
        if path == "/dev/null":
            return FakeCapture(0)
        append = redirect.operator.endswith(">>")
        self.files.write(path, b"", user=self.user, append=append)
        return _FileWriter(self.files, path, self.user)

    async def program(self, words: Sequence[str], level: Level) -> int:
        """Run a program of the sandbox, or a script file by its path."""
        await self.gate.passage()
        program = self.programs.get(posixpath.basename(words[0]))
        if program is not None and ("/" not in words[0] or _is_system(words[0])):
            self.level = level
            return await program(self, list(words[1:]))
        return await self._script_file(words, level)

    async def _script_file(self, words: Sequence[str], level: Level) -> int:
        path = self.path(words[0])
        if "/" not in words[0] or not self.files.exists(path):
            await self.complain(f"sh: {words[0]}: not found")
            return 127
        if not self.files.allowed(path, self.user, 1):
            await self.complain(f"sh: {words[0]}: Permission denied")
            return 126
        text = self.files.read(path, user=self.user).decode("utf-8", "replace")
        return await self.nested(text, words, level)

    async def nested(self, text: str, words: Sequence[str], level: Level) -> int:
        """Run text in a new shell process."""
        level.shell = level.shell or self.process()
        with level.down() as below:
            return await level.shell.run_text(text, below, words)


@dataclass(slots=True, eq=False)
class ShellRun:
    """A shell as the leader of a process group: the command and its position."""

    shell: FakeShell
    cmd: str | tuple[str, ...]
    level: Level = field(default_factory=Level)

    async def run(self) -> int:
        """Run the command. A copy continues from its position."""
        if isinstance(self.cmd, str):
            return await self.shell.run_text(self.cmd, self.level)
        return await self.shell.run_words(self.cmd, self.level)


@dataclass(slots=True, eq=False)
class _Background:
    """A statement that runs in the background."""

    shell: FakeShell
    statement: Statement
    level: Level = field(default_factory=Level)

    async def run(self) -> int:
        try:
            return await self.shell.links(self.statement, self.level)
        except FakeShellExit as ended:
            return ended.code


class _FileWriter:
    """Appends to a file, as an open descriptor does."""

    def __init__(self, files: FakeFileSystem, path: str, user: str) -> None:
        self._files, self._path, self._user = files, path, user

    async def write(self, data: bytes) -> None:
        self._files.write(self._path, data, user=self._user, append=True)

    async def aclose(self) -> None:
        return


def _is_system(path: str) -> bool:
    return posixpath.dirname(path) in {"/bin", "/usr/bin", "/sbin", "/usr/sbin"}


def signal_number(name: str) -> int:
    """Return the number of a signal given as `-9`, `-KILL` or `-SIGKILL`."""
    bare = name.removeprefix("-").removeprefix("SIG")
    if bare.isdigit():
        return int(bare)
    return int(signal.Signals[f"SIG{bare}"])
