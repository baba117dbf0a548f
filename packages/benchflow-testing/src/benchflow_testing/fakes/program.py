"""A program of a fake sandbox that a live snapshot can carry."""

from collections.abc import Mapping

from .call import FakeStreams
from .file_system import FakeFileSystem
from .process import FakeGate


class FakeProgram:
    """A line-driven program whose whole state is in its fields.

    Override `line` (and `started`, `ended`), answer with `write`, and end with `exit`;
    an idle service overrides nothing. Nothing may be kept outside of the fields, since a
    live snapshot deep-copies them: the copy has read and written what the original had,
    no more and no less. Nothing is handled while the sandbox is frozen.
    """

    def __init__(self) -> None:
        self.files = FakeFileSystem()
        """Those of the sandbox that it runs in."""
        self.cmd: str | tuple[str, ...] = ()
        self.env: Mapping[str, str] = {}
        self.exit_code: int | None = None
        self._streams: FakeStreams | None = None
        self._gate = FakeGate()
        self._inbox = b""
        self._outbox = b""
        self._stdin_open = True

    def started(self) -> None:
        """Begin. Called once, where it is spawned; not in a child that carries it."""

    def line(self, line: bytes) -> None:
        """Take one line of stdin, without its newline."""

    def ended(self) -> None:
        """Take the end of stdin. Exits with 0 unless overridden."""
        self.exit()

    def write(self, data: bytes) -> None:
        """Write to stdout, as soon as there is room."""
        self._outbox += data

    def exit(self, code: int = 0) -> None:
        """End with `code` when everything is written."""
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
        """Serve stdin until the exit. On a copy: go on from the fields."""
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
