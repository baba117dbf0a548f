"""Start, watch and stop the services of a world."""

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchflow_contracts import ByteReader, Process, Sandbox, SandboxError

from .manifest import Service

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./ -]*")


class Tail:
    """The last bytes of an output, and the count of all."""

    def __init__(self, max_bytes: int = 8192) -> None:
        self._max = max_bytes
        self._last = bytearray()
        self.total = 0

    def write(self, data: bytes) -> None:
        """Append `data`; drop the oldest bytes beyond the limit."""
        self.total += len(data)
        self._last += data
        del self._last[: -self._max]

    def text(self) -> str:
        """Return the last bytes as text; control characters except tabs and line ends are "�"."""
        text = self._last.decode("utf-8", "replace").strip()
        return "".join(char if char.isprintable() or char in "\n\t" else "�" for char in text)


@dataclass(slots=True)
class RunningService:
    """One started service."""

    service: Service
    process: Process
    tail: Tail = field(default_factory=Tail)
    exit_code: int | None = None
    """The exit code if the service has ended, which is always an error."""

    def exit_report(self) -> str:
        """Return the exit code of the service and its last lines."""
        output = self.tail.text()
        end = f"service {self.service.name!r} ended with exit code {self.exit_code}"
        return f"{end}; its last lines:\n{output}" if output else f"{end} without any output"


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
        self.activity = asyncio.Event()
        """Set when a service prints something or ends."""

    @property
    def running(self) -> Sequence[RunningService]:
        """The services that were started and not stopped, also those that ended."""
        return tuple(self._running)

    def ended(self) -> Sequence[RunningService]:
        """Return the services that ended by themselves."""
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
            # The word may be a builtin of the shell; if not, the shell reports the error.
            with contextlib.suppress(SandboxError):
                return await self._sandbox.spawn(words, user="root", cwd="/", env=self._env)
        return await self._sandbox.spawn(command, user="root", cwd="/", env=self._env)

    async def attach(self, services: Sequence[Service], process_ids: Mapping[str, str]) -> None:
        """Attach to the services of a live image.

        Raises:
            SandboxError: A process is missing; then no service is attached.
        """
        try:
            for service in services:
                process = await self._sandbox.attach(process_ids[service.name])
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
            self.activity.set()

    async def _drain(self, reader: ByteReader, tail: Tail) -> None:
        with contextlib.suppress(SandboxError):
            while data := await reader.read():
                tail.write(data)
                self.activity.set()


def plain_words(command: str) -> list[str] | None:
    """Return the words of a command that has the same effect without a shell.

    `None` if it has an expansion, a quote, an assignment or several programs. The first word
    may still be a shell builtin, such as `cd`.
    """
    if not _PLAIN.fullmatch(command):
        return None
    words = command.split()
    return None if "=" in words[0] else words
