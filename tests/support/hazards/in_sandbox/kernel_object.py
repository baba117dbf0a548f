"""What an object of the kernel is here, and the registry of all of them.

A builder is a generator. It builds its object in a process of its own and yields; after the fork it
continues in every process that has the object, and raises `Lost` when the object has changed.
"""

import ctypes
import errno
import os
import platform
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 10.0
"""Seconds to wait for something that must come."""

HELD = b"held over the fork"
BIG = 4 << 20
"""Bytes: more than the kernel queues by itself."""

Builder = Callable[[Path], Iterator[None]]

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Lost(Exception):  # noqa: N818 - a finding, not an error
    """The object is not what was built."""


@dataclass(frozen=True)
class KernelObject:
    """One object: its name, its section of the page, and how to build it."""

    name: str
    section: str
    build: Builder


OBJECTS: dict[str, KernelObject] = {}


@dataclass(frozen=True)
class Section:
    """A part of the page; a decorator that registers builders in it by name."""

    title: str

    def __call__(self, name: str) -> Callable[[Builder], Builder]:
        """Register a builder."""

        def register(build: Builder) -> Builder:
            assert name not in OBJECTS, name
            OBJECTS[name] = KernelObject(name, self.title, build)
            return build

        return register


def expect(found: object, wanted: object, what: str) -> None:
    """Raise `Lost` unless `found` is what was built."""
    if found != wanted:
        raise Lost(f"{what}: {shorten(found)} instead of {shorten(wanted)}")


def shorten(value: object) -> str:
    """Return a value as a reader of the page needs it."""
    text = repr(value)
    return text if len(text) < 80 else f"{text[:60]}... ({len(text)} characters)"


def call(result: int, what: str) -> int:
    """Return what a function of the C library returned; raise its error."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {errno.errorcode.get(number, number)}")
    return result


def syscall(name: str, x86: int, arm: int, *arguments: object) -> int:
    """Make a system call that neither Python nor the C library offers."""
    number = {"x86_64": x86, "aarch64": arm}[platform.machine()]
    return call(libc.syscall(ctypes.c_long(number), *arguments), name)


def readable(fd: object, what: str) -> None:
    """Wait until `fd` can be read."""
    if not select.select([fd], [], [], PATIENCE)[0]:
        raise Lost(f"{what}: nothing came in {PATIENCE:.0f} s")


def is_empty(fd: object, what: str) -> None:
    """Raise `Lost` when something that was not built can be read."""
    if select.select([fd], [], [], 0)[0]:
        raise Lost(f"{what}: something came out of nothing")


class Helper:
    """A child process that runs one function when it is told, and reports what it returned.

    `prepare` runs at once, in the child. A helper that `blocks` runs its function at once, too:
    its process is inside of that function at the fork.
    """

    def __init__(
        self,
        work: Callable[[], object],
        *,
        prepare: Callable[[], object] = lambda: None,
        blocks: bool = False,
    ) -> None:
        told, self._tell = os.pipe()
        self._report, report = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._tell)
            os.close(self._report)
            run_helper(work, prepare, told, report, blocks=blocks)
        os.close(told)
        os.close(report)
        self._wait_for(b"ready")
        if blocks:
            self._wait_until_it_sleeps()

    def tell(self) -> None:
        """Let it run its function."""
        os.write(self._tell, b"\n")

    def ends(self) -> int:
        """Return the signal that ends its process."""
        readable(self._report, "the end of a child process")
        expect(os.read(self._report, 1 << 16), b"", "what a child process says")
        return os.waitpid(self.pid, 0)[1] & 0x7F

    def result(self) -> str:
        """Let it run its function; return the text of the result, or raise its error."""
        self.tell()
        readable(self._report, "a child process")
        text = os.read(self._report, 1 << 16).decode()
        if text.startswith("error: "):
            raise Lost(f"in a child process: {text[7:]}")
        return text

    def _wait_for(self, word: bytes) -> None:
        readable(self._report, "a child process")
        text = os.read(self._report, 1 << 16)
        if text != word:
            raise OSError(errno.ECHILD, text.decode())

    def _wait_until_it_sleeps(self) -> None:
        for _ in range(20_000):
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "S" and not select.select([self._report], [], [], 0.001)[0]:
                return


def run_helper(
    work: Callable[[], object],
    prepare: Callable[[], object],
    told: int,
    report: int,
    *,
    blocks: bool,
) -> None:
    """Be a helper's process."""
    try:
        prepare()
        os.write(report, b"ready")
        if not blocks:
            os.read(told, 1)
        text = str(work())
    except BaseException as error:
        text = f"error: {error}" if isinstance(error, (Lost, OSError)) else f"error: {error!r}"
    os.write(report, text.encode()[: 1 << 15])
    while True:
        signal.pause()


def status(field: str, pid: object = "self") -> str:
    """Return a line of a process's status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == field:
            return value.strip()
    raise OSError(errno.ENOENT, f"/proc/{pid}/status has no {field}")
