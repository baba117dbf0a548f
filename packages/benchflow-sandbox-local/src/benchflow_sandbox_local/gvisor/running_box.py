"""A running gVisor sandbox, which the host reaches by named pipes."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from benchflow_contracts.door import Door, DoorPath
from benchflow_contracts.errors import HostError, SandboxError, SandboxUnsupportedError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_core.fifo.connections import INIT, connect_port
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.port_server import PortServer
from benchflow_sandbox_core.fifo.streams import FifoDirectory, FifoStreams
from benchflow_sandbox_core.pipes import Streams
from benchflow_sandbox_core.port_forward import Connection, SocketBridges
from benchflow_sandbox_core.relay.server import Relay, RelayUpstream
from benchflow_sandbox_native import InitError

from benchflow_sandbox_local.accounts import AccountBook
from benchflow_sandbox_local.launcher import Call, Launcher, LauncherError
from benchflow_sandbox_local.live.processes import ImageProcess
from benchflow_sandbox_local.readiness import is_readable, readable
from benchflow_sandbox_local.running_box import FileAccess, cannot_kill_all, explain, pid_of

_START_SECONDS = 120.0
_PAUSE_SECONDS = 60.0


class GvisorRunningBox:
    """The supervisor, the root directory and the named pipes of a running sandbox."""

    file_access: FileAccess = "guest"
    door_path: DoorPath = "tunnel"
    is_lazy = False
    program = (INIT,)

    def __init__(self, name: str, notes: dict[str, str], fds: list[int], call: Call) -> None:
        self.name = name
        self.notes = notes
        self.pidfd, self.root, pipes = fds
        self.door_ports: tuple[int, ...] = ()
        """The ports that the guest serves, in the order of their indexes."""
        self.fifos = FifoDirectory(pipes)
        self.accounts = AccountBook(self.root)
        self.on_connection: Callable[[int, int], None] = lambda _door, _which: None
        """Called with each connection that waits for a door."""
        self.restored_streams: dict[str, Streams] = {}
        """The pipes of the processes of the live image, by process id."""
        self._pid = pid_of(self.pidfd)
        self._ports: PortServer | None = None
        self._bridges = SocketBridges()
        self._call = call
        self._order_lock = asyncio.Lock()
        self._calls = FifoInit(self.fifos, self._on_door)

    @classmethod
    async def start(
        cls,
        launcher: Launcher,
        request: dict[str, Any],
        spec: SandboxSpec,
        processes: Sequence[ImageProcess] = (),
    ) -> "GvisorRunningBox":
        """Start a sandbox, or restore it from an image; its init responds on return.

        Raises:
            SandboxError: The sandbox did not start. The caller must still send `stop`.
        """
        call = await launcher.begin("start_gvisor", **request)
        try:
            answer = await call.answer()
            running = cls(request["box"], answer.message["notes"], answer.fds, call)
            running.door_ports = tuple(request["door_ports"])
        except BaseException as error:
            call.close()
            if not isinstance(error, LauncherError):
                raise
            raise explain(error, spec, fresh=request["image"] is None) from error
        try:
            await running._run(processes, restored=request["image"] is not None)
        except BaseException:
            running.close()
            raise
        return running

    async def _run(self, processes: Sequence[ImageProcess], *, restored: bool) -> None:
        self.restored_streams = {process.id: self._streams(process) for process in processes}
        # Opening a pipe waits for its other end, so the host opens all ends before the start.
        fds = self.fifos.open_all()
        reason: Exception | None = None
        try:
            self._call.send_order(do="run")
            async with asyncio.timeout(_START_SECONDS), asyncio.TaskGroup() as group:
                ended = group.create_task(self._raise_at_end())
                await self._calls.ping()
                ended.cancel()
            if restored:
                await self._calls.hang_up()
            self._calls.confirm_open()
            for process in processes:
                _close_unused(process, self.restored_streams[process.id])
            self._call.send_order(do="ready")
        except* (TimeoutError, InitError, SandboxError, OSError) as errors:
            reason = errors.exceptions[0]
        finally:
            for fd in fds:
                os.close(fd)
        if isinstance(reason, HostError):
            raise reason from None
        if isinstance(reason, TimeoutError):
            reason = TimeoutError(f"its init did not respond in {_START_SECONDS:.0f} s")
        if reason is not None:
            raise SandboxError(f"the sandbox {self.name!r} did not start: {reason}") from reason

    def _streams(self, process: ImageProcess) -> FifoStreams:
        number = next((pipe for pipe in process.pipes if pipe is not None), None)
        if number is None:
            return self.fifos.streams()
        return self.fifos.open_stream(number, process.out, process.err)

    async def _raise_at_end(self) -> None:
        """Wait for the end of the supervisor; raise its last message as an error."""
        last = await self._call.next_message()
        raise SandboxError("its supervisor ended" if last is None else str(last.message))

    def _on_door(self, door: int, which: int) -> None:
        self.on_connection(door, which)

    @property
    def init(self) -> FifoInit:
        """The calls to the sandbox's init; raise `SandboxError` once this is closed."""
        if self.closed:
            raise SandboxError(f"the sandbox {self.name!r} is gone")
        return self._calls

    @property
    def closed(self) -> bool:
        """Whether this object is closed."""
        return self.root < 0

    def streams(self) -> FifoStreams:
        """Make the pipes of a new process."""
        return self.fifos.streams()

    async def wait_for_memory(self) -> None:
        """Return at once: runsc loads all memory before the sandbox runs."""

    async def kill_all(self) -> None:
        """Refuse: init cannot find out when every process is dead."""
        raise cannot_kill_all(self.name)

    async def start_relays(self, doors: Sequence[Door]) -> Mapping[int, Relay]:
        """Serve the doors inside, over named pipes; return the relays by their ports inside."""
        served = [door for door in doors if door.port in self.door_ports]
        relays = {door.port: Relay(RelayUpstream.of(door)) for door in served}
        if relays:
            self._ports = PortServer(self, *map(relays.get, self.door_ports))
        return relays

    async def socket_inside(self) -> socket.socket:
        """Refuse: the network of the sandbox is that of another kernel."""
        raise SandboxUnsupportedError("the host cannot open a socket in a gVisor sandbox")

    async def dial(self, port: int) -> socket.socket:
        """Return a socket that is connected to a port of the inside's loopback."""
        return await self._bridges.start(await self.connect(port))

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await connect_port(self, port)

    async def disconnect(self) -> None:
        """End the connections that the host forwards into the sandbox. Idempotent."""
        ports, self._ports = self._ports, None
        if ports is not None:
            await ports.aclose()
        await self._bridges.aclose()

    @property
    def pid(self) -> int:
        """The supervisor's number on the host."""
        return self._pid

    async def ended(self) -> None:
        """Return when the supervisor, and so the whole sandbox, is dead."""
        await readable(self.pidfd)

    @property
    def has_ended(self) -> bool:
        """Whether the supervisor, and so the whole sandbox, is dead."""
        return not self.closed and is_readable(self.pidfd)

    def resume(self) -> None:
        """Resume a paused sandbox."""
        with suppress(LauncherError):  # the sandbox has ended
            self._call.send_order(do="resume")

    async def ask(self, command: str, seconds: float = _PAUSE_SECONDS) -> None:
        """Send an order to the supervisor and wait for its answer.

        Raises:
            LauncherError: The command failed.
            TimeoutError: The command took too long.
        """
        try:
            async with self._order_lock, asyncio.timeout(seconds):
                self._call.send_order(do=command)
                await self._call.answer()
        except TimeoutError as error:
            raise TimeoutError(f"runsc {command} did not end in {seconds:.0f} s") from error

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        if self.closed:
            return
        self._calls.close()
        for streams in self.restored_streams.values():
            streams.close()
        self.fifos.close()
        self._call.close()
        os.close(self.pidfd)
        os.close(self.root)
        self.pidfd = self.root = -1


def _close_unused(process: ImageProcess, streams: Streams) -> None:
    """Close the sandbox's ends here, and our ends of pipes that were closed in the image."""
    streams.close_child()
    for end, pipe in zip(streams.ends, process.pipes, strict=True):
        if pipe is None:
            end.close()
