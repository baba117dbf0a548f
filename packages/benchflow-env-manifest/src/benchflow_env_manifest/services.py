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
        """Append; bytes before the window are dropped."""
        self.total += len(data)
        self._kept += data
        del self._kept[: -self._max]

    def text(self) -> str:
        """Return the kept bytes as text, without control characters except line ends."""
        text = self._kept.decode("utf-8", "replace").strip()
        return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


@dataclass(slots=True)
class RunningService:
    """One started service."""

    service: Service
    process: Process
    tail: Tail = field(default_factory=Tail)
    exit_code: int | None = None
    """Set when the service ended, which it should not."""

    def obituary(self) -> str:
        """Return the exit code of the service and its last lines."""
        said = self.tail.text()
        end = f"service {self.service.name!r} ended with exit code {self.exit_code}"
        return f"{end}; its last lines:\n{said}" if said else f"{end} and printed nothing"


class Services:
    """A set of services. It stops only processes that it started.

    One task of this object runs the TaskGroup of all readers. It starts with the first
    service and has ended when `stop` returns.
    """

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str]) -> None:
        self._sandbox = sandbox
        self._env = dict(env)
        self._running: list[RunningService] = []
        self._supervisor: asyncio.Task[None] | None = None
        self.stirred = asyncio.Event()
        """Set when a service prints something or ends."""

    @property
    def running(self) -> Sequence[RunningService]:
        """The started services, dead or alive, until they are stopped."""
        return tuple(self._running)

    def dead(self) -> Sequence[RunningService]:
        """The services that ended by themselves."""
        return [each for each in self._running if each.exit_code is not None]

    async def start(self, services: Sequence[Service]) -> None:
        """Start all, as root inside the sandbox.

        Raises:
            SandboxError: A service could not be started; the others are stopped.
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
        """Start a command, without a shell if that has the same meaning and works."""
        words = plain_words(command)
        if words is not None:
            # A shell may know the word; else the shell reports the error.
            with contextlib.suppress(SandboxError):
                return await self._sandbox.spawn(words, user="root", cwd="/", env=self._env)
        return await self._sandbox.spawn(command, user="root", cwd="/", env=self._env)

    async def attach(self, services: Sequence[Service], carried: Mapping[str, str]) -> None:
        """Attach to the services of a live image.

        Raises:
            SandboxError: A service is missing; none is attached.
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
                # The sandbox and its services may be gone already.
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
        """Read a service's output to its end, then record its exit."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._drain(each.process.stdout, each.tail))
            group.create_task(self._drain(each.process.stderr, each.tail))
            group.create_task(self._await_end(each))

    async def _await_end(self, each: RunningService) -> None:
        # The next call to a lost sandbox reports it.
        with contextlib.suppress(SandboxError):
            each.exit_code = await each.process.wait()
            self.stirred.set()

    async def _drain(self, reader: ByteReader, tail: Tail) -> None:
        with contextlib.suppress(SandboxError):
            while data := await reader.read():
                tail.write(data)
                self.stirred.set()


def plain_words(command: str) -> list[str] | None:
    """Return the words of a command that means the same to a shell and to `execve`.

    `None` if it has an expansion, a quote, an assignment or several programs. The first word
    may still be a shell builtin, such as `cd`.
    """
    if not _PLAIN.fullmatch(command):
        return None
    words = command.split()
    return None if "=" in words[0] else words
