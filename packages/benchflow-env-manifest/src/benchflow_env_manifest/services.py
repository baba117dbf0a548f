"""The services that the framework starts, watches and stops."""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchflow_contracts import ByteReader, Process, Sandbox, SandboxError

from .manifest import Service

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./ -]*")


class Tail:
    """Keeps the last bytes written to it, and counts them all."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max = max_bytes
        self._kept = bytearray()
        self.total = 0

    def write(self, data: bytes) -> None:
        """Append; what falls out of the window is forgotten."""
        self.total += len(data)
        self._kept += data
        del self._kept[: -self._max]

    def text(self) -> str:
        """Return the kept bytes as text, without control characters but line ends."""
        text = self._kept.decode("utf-8", "replace").strip()
        return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


@dataclass(slots=True)
class RunningService:
    """One started service."""

    service: Service
    process: Process
    tail: Tail = field(default_factory=Tail)
    exit_code: int | None = None
    """Set as soon as it ended. It should not."""

    def obituary(self) -> str:
        """Return how it ended and its last lines."""
        said = self.tail.text()
        end = f"service {self.service.name!r} ended with exit code {self.exit_code}"
        return f"{end}; its last lines:\n{said}" if said else f"{end} and said nothing"


class Services:
    """A set of services. Only the processes that it started are ever stopped.

    One task, owned by this object, holds the TaskGroup of all readers: it begins with
    the first service and has ended when `stop` returns.
    """

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._env = dict(env)
        self._running: list[RunningService] = []
        self._supervisor: asyncio.Task[None] | None = None
        self.stirred = asyncio.Event()
        """Set when a service says something, or ends."""

    @property
    def running(self) -> Sequence[RunningService]:
        """What was started and not yet stopped, dead or alive."""
        return tuple(self._running)

    def dead(self) -> Sequence[RunningService]:
        """Those that ended by themselves."""
        return [each for each in self._running if each.exit_code is not None]

    async def start(self, services: Sequence[Service]) -> None:
        """Start all, as root inside the sandbox.

        Raises:
            SandboxError: One could not be started; the others are stopped again.
        """
        try:
            for service in services:
                process = await self._spawn(service.command)
                self._running.append(RunningService(service, process))
                await process.stdin.aclose()
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def _spawn(self, command: str) -> Process:
        """Start a command, without a shell where that says the same and works."""
        words = plain_words(command)
        if words is not None:
            # A shell may know the word, and says what is wrong when it does not.
            with contextlib.suppress(SandboxError):
                return await self._sandbox.spawn(words, user="root", cwd="/", env=self._env)
        return await self._sandbox.spawn(command, user="root", cwd="/", env=self._env)

    async def attach(self, services: Sequence[Service], carried: Mapping[str, str]) -> None:
        """Take hold of services that a live image carried in.

        Raises:
            SandboxError: One is not there; none is held.
        """
        try:
            for service in services:
                process = await self._sandbox.attach(carried[service.name])
                self._running.append(RunningService(service, process))
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def stop(self) -> None:
        """Kill the process groups that were started here. Idempotent."""
        running, self._running = self._running, []
        supervisor, self._supervisor = self._supervisor, None
        try:
            for each in running:
                # The sandbox may be gone already, and the service with it.
                with contextlib.suppress(SandboxError):
                    await each.process.aclose()
        finally:
            if supervisor is not None:
                supervisor.cancel()
                await asyncio.wait([supervisor])
                if not supervisor.cancelled():
                    supervisor.result()

    async def _supervise(self) -> None:
        async with asyncio.TaskGroup() as group:
            for each in self._running:
                group.create_task(self._watch(each))

    async def _watch(self, each: RunningService) -> None:
        """Read a service's output to its end, then note how it ended."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._drain(each.process.stdout, each.tail))
            group.create_task(self._drain(each.process.stderr, each.tail))
            group.create_task(self._await_end(each))

    async def _await_end(self, each: RunningService) -> None:
        # A sandbox that is gone is reported by the next call to it.
        with contextlib.suppress(SandboxError):
            each.exit_code = await each.process.wait()
            self.stirred.set()

    async def _drain(self, reader: ByteReader, tail: Tail) -> None:
        with contextlib.suppress(SandboxError):
            while data := await reader.read():
                tail.write(data)
                self.stirred.set()


def plain_words(command: str) -> list[str] | None:
    """Return the words of a command that says the same to a shell and to `execve`.

    `None` for one with an expansion, a quote, an assignment or more than one program in it.
    The first word may still be one that only a shell knows, such as `cd`.
    """
    if not _PLAIN.fullmatch(command):
        return None
    words = command.split()
    return None if "=" in words[0] else words
