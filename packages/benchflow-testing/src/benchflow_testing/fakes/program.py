"""A program of a fake sandbox that a live snapshot can copy."""

from collections.abc import Mapping

from .call import FakeStreams
from .file_system import FakeFileSystem
from .process import FakeGate


class FakeProgram:
    """A program that reads lines. Its whole state is in its fields.

    Override `line` (and `started`, `ended`), answer with `write`, and end with `exit`. An idle
    service overrides nothing. A live snapshot deep-copies the fields, so store all state there.
    The program does not run while the sandbox is frozen.
    """

    def __init__(self) -> None:
        self.files = FakeFileSystem()
        """The files of the program's sandbox."""
        self.cmd: str | tuple[str, ...] = ()
        self.env: Mapping[str, str] = {}
        self.exit_code: int | None = None
        self._streams: FakeStreams | None = None
        self._gate = FakeGate()
        self._inbox = b""
        self._outbox = b""
        self._stdin_open = True

    def started(self) -> None:
        """Run code at the start. Called once at the spawn, not in a child with a copy."""

    def line(self, line: bytes) -> None:
        """Handle one line of stdin, without its newline."""

    def ended(self) -> None:
        """Handle the end of stdin. By default, exit with 0."""
        self.exit()

    def write(self, data: bytes) -> None:
        """Write to stdout as soon as the pipe has space."""
        self._outbox += data

    def exit(self, code: int = 0) -> None:
        """End with `code` after all output is written."""
        self.exit_code = code

    def place(
        self,
        streams: FakeStreams,
        *,
        gate: FakeGate,
        files: FakeFileSystem,
        cmd: str | tuple[str, ...],
        env: Mapping[str, str],
    ) -> None:
        """Put the program into a sandbox, before it runs for the first time."""
        self._streams, self._gate, self.files = streams, gate, files
        self.cmd, self.env = cmd, dict(env)
        self.started()

    async def run(self) -> int:
        """Serve stdin until the exit. A copy continues from its fields."""
        assert self._streams is not None
        while True:
            await self._gate.passage()
            if self._outbox:
                piece = self._outbox[:4096]
                await self._streams.stdout.write(piece)
                self._outbox = self._outbox[len(piece) :]
            elif self.exit_code is not None:
                return self.exit_code
            elif b"\n" in self._inbox:
                line, _, self._inbox = self._inbox.partition(b"\n")
                self.line(line)
            elif self._stdin_open:
                data = await self._streams.stdin.read()
                self._inbox += data
                self._stdin_open = bool(data)
            elif self._inbox:
                line, self._inbox = self._inbox, b""
                self.line(line)
            else:
                self.ended()
                if self.exit_code is None:
                    self.exit()
