"""An event loop whose clock jumps, and a link whose connections are cut where a test wants."""

import asyncio
import selectors

from benchflow_sandbox_remote.records import Frame, Record, RecordKind, RecordReader

_END = 10_000.0


class _Jumping:
    """A selector that does not wait: the clock of the loop jumps to the next timer."""

    def __init__(self, loop):
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout=None):
        events = self._real.select(0)
        if not events:
            assert timeout is not None, "everything waits, and no timer is set"
            self._loop.now += timeout
            assert self._loop.now < _END, "the test waits for something that does not happen"
        return events

    def __getattr__(self, name):
        return getattr(self._real, name)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code without threads and without I/O of the kernel."""

    def __init__(self):
        self.now = 0.0
        super().__init__(_Jumping(self))

    def time(self):
        return self.now


def run_virtual(main):
    """Run a coroutine function with the loop; no second of it is waited for."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(runner.get_loop()))


class CutError(OSError):
    """The network is cut."""


class ScriptedLink:
    """The other side of a session, as `csrc/link/session.c` behaves: it sends `frames`."""

    def __init__(self, frames=()):
        self.frames = list(frames)
        self.output = b"".join(frame.encode() for frame in self.frames)
        self.input = bytearray()
        """The bytes of the session that arrived, each once."""
        self.changed = asyncio.Event()
        self.tokens = []

    async def holds(self, frames):
        """Return when the bytes of these frames have arrived."""
        while len(self.input) < sum(len(frame.encode()) for frame in frames):
            self.changed.clear()
            await self.changed.wait()

    def receive(self, record):
        """Return the bytes of the answer to a record."""
        if record.kind == RecordKind.HELLO:
            self.tokens.append(record.payload)
            answer = [Record(RecordKind.WELCOME, len(self.input)), *self._rest(record.offset)]
        elif record.kind == RecordKind.BYTES:
            assert record.offset <= len(self.input), "the host left bytes out"
            self.input += record.payload[len(self.input) - record.offset :]
            answer = [Record(RecordKind.CONFIRM, len(self.input))]
        else:
            kinds = {RecordKind.PING: [Record(RecordKind.CONFIRM, len(self.input))]}
            answer = kinds.get(record.kind, [])
        self.changed.set()
        return b"".join(each.encode() for each in answer)

    def _rest(self, offset):
        """Yield the bytes from `offset` on, and some before them: the protocol allows this.

        The records do not begin where frames do.
        """
        for at in range(max(0, offset - 4), len(self.output), 11):
            yield Record(RecordKind.BYTES, at, self.output[at : at + 11])


class CutTransport:
    """A connection to a link that carries `up` and `down` bytes, and is cut then."""

    def __init__(self, link, up=None, down=None):
        self._link = link
        self._up, self._down = up, down
        self._reader = RecordReader()
        self._waiting = bytearray()
        self._news = asyncio.Event()
        self.is_cut = self.is_silent = False
        self.carried = [0, 0]

    def cut(self):
        self.is_cut = True
        self._news.set()

    async def write(self, data):
        if self.is_cut:
            raise CutError
        passed = data if self._up is None else data[: self._up - self.carried[0]]
        self.carried[0] += len(passed)
        if not self.is_silent:
            self._reader.add(bytes(passed))
            while (record := self._reader.take()) is not None:
                self._waiting += self._link.receive(record)
            self._news.set()
        if len(passed) < len(data):
            self.cut()
            raise CutError

    async def read(self):
        while not self._waiting or self.is_silent:
            if self.is_cut:
                raise CutError
            self._news.clear()
            await self._news.wait()
        left = len(self._waiting) if self._down is None else self._down - self.carried[1]
        data = bytes(self._waiting[:left])
        del self._waiting[:left]
        self.carried[1] += len(data)
        if not data:
            self.cut()
            raise CutError
        return data

    async def aclose(self):
        self.cut()


def data_frames(count, stream=1, end=1):
    """Return frames of different sizes, no two with the same content."""
    return [Frame(stream, 4, end, bytes([65 + n]) * (n * 5 % 17 + 1)) for n in range(count)]
