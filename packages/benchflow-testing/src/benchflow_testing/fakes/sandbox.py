"""A sandbox in memory."""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.door import Endpoint
from benchflow_contracts.errors import (
    SandboxError,
    SandboxTimeoutError,
    SandboxUnsupportedError,
    SnapshotError,
    TransferError,
    UsageError,
)
from benchflow_contracts.observed import ObservedFiles
from benchflow_contracts.sandbox import (
    ExecResult,
    NetworkMode,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_contracts.service import MAIN

from . import transfer
from .call import ExecHandler, FakeCall, FakeCommands, FakeStreams, HandlerRun, ProgramHandler
from .file_system import FakeFileSystem
from .machine import FakeMachine
from .pipe import FakeCapture
from .process import FakeGate, FakeGroup, FakeProcess, Runnable
from .program import FakeProgram
from .programs import PROGRAMS
from .shell import BytesReader, FakeShell, ShellRun

if TYPE_CHECKING:
    from .provider import FakeSandboxProvider


class FakeSandbox:
    """A sandbox in memory, created by a `FakeSandboxProvider`.

    A command runs a handler of the test (`on`, `on_spawn`, here or on the provider), or else the
    fake shell. Files are in `files`, and every `exec` and `spawn` is in `calls`. The sandbox has
    no network and no resource limits, except the output limit. Each user with a home directory
    exists.
    """

    def __init__(
        self,
        provider: "FakeSandboxProvider",
        spec: SandboxSpec,
        machine: FakeMachine,
        identity: RolloutIdentity,
        *,
        from_image: bool,
    ) -> None:
        self.provider = provider
        self.machine = machine
        """The files and processes, which a live snapshot copies."""
        self.identity = identity
        self.created_at = time.time()
        self.calls: list[FakeCall] = []
        self.commands = FakeCommands()
        self.endpoints: dict[int, Endpoint] = {}
        """The results of `expose_port`, by port (default: the same port of loopback)."""
        self.alive = True
        self._spec = spec
        self._id = f"fake-{uuid4().hex[:12]}"
        self._attachable = dict(machine.processes)
        self._from_image = from_image

    @property
    def files(self) -> FakeFileSystem:
        """The files inside."""
        return self.machine.files

    @property
    def gate(self) -> FakeGate:
        """The gate that stops processes while the sandbox is frozen."""
        return self.machine.gate

    @property
    def id(self) -> str:
        """The unique id, which `restore` does not change."""
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        """The spec, with the current network and user."""
        return self._spec

    @property
    def image_digests(self) -> Mapping[str, str]:
        """A digest of the image's name, since the image does not have bytes."""
        return {MAIN: f"sha256:{sha256(str(self._spec.image).encode()).hexdigest()}"}

    @property
    def freezes(self) -> int:
        """The number of freezes. A nested freeze does not count."""
        return self.gate.freezes

    def on(self, prefix: str, handler: ExecHandler) -> None:
        """Call `handler` for every `exec` in this sandbox that starts with `prefix`."""
        self.commands.on(prefix, handler)

    def on_spawn(self, prefix: str, program: ProgramHandler | FakeProgram) -> None:
        """Run `program`, or a copy of a FakeProgram, for commands that start with `prefix`."""
        self.commands.on_spawn(prefix, program)

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Run a command to its end."""
        await self._begin("exec")
        self.gate.refuse_own_task()
        call = self._call(cmd, user, cwd, env, stdin=stdin, timeout=timeout)
        started = time.monotonic()
        handler = self.commands.handler(call.text) or self.provider.commands.handler(call.text)
        try:
            async with asyncio.timeout(timeout):
                if handler is not None:
                    return await _call_handler(handler, call)
                return await self._run(call, started)
        except TimeoutError as error:
            raise SandboxTimeoutError(f"{call.text!r} ran for more than {timeout} s") from error

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> FakeProcess:
        """Start a command with live pipes in a new process group."""
        await self._begin("spawn")
        call = self._call(cmd, user, cwd, env)
        process = self.machine.process(self.provider.next_pid())
        streams = FakeStreams(process.stdin, process.stdout, process.stderr)
        process.start(self._program(call, streams, process.group))
        return process

    async def attach(self, process_id: str) -> FakeProcess:
        """Return a process that a live snapshot copied, once."""
        await self._begin("attach")
        if (await self.provider.capabilities()).live_engine is None:
            raise SandboxUnsupportedError("the fake sandbox does not have live snapshots")
        process = self._attachable.pop(process_id, None)
        if process is None:
            raise SandboxError(
                f"sandbox {self.id!r} has no copied process {process_id!r} to attach to"
            )
        return process

    def start_entrypoint(self) -> None:
        """Start the spec's entrypoint as root. A fake image does not have an entrypoint."""
        entrypoint = self.spec.entrypoint
        if entrypoint is not None and entrypoint != "image":
            process = self.machine.process(self.provider.next_pid())
            streams = FakeStreams(process.stdin, process.stdout, process.stderr)
            process.start(
                self._program(self._call(entrypoint, "root", "/", None), streams, process.group)
            )

    def place(self, program: FakeProgram, cmd: str) -> FakeProcess:
        """Run `program`, without a record in the log and without faults. Not in the contract."""
        process = self.machine.process(self.provider.next_pid())
        streams = FakeStreams(process.stdin, process.stdout, process.stderr)
        program.place(streams, gate=self.gate, files=self.files, cmd=cmd, env=self.spec.env)
        process.start(program)
        return process

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        await self._begin("upload")
        self._check_user(user)
        try:
            transfer.upload(self.files, local, _absolute(remote), user=user)
        except OSError as error:
            raise TransferError(f"upload to {remote!r} failed: {error.strerror}") from error

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path."""
        await self._begin("download")
        try:
            transfer.download(
                self.files, _absolute(remote), local, max_bytes=max_bytes, leave_out=leave_out
            )
        except OSError as error:
            raise TransferError(f"download of {remote!r} failed: {error.strerror}") from error

    async def set_baseline(self) -> None:
        """Store the current files as the baseline of `changed_files`."""
        await self._begin("set_baseline")
        if self._from_image:
            raise SandboxUnsupportedError(f"sandbox {self.id!r} was made from a snapshot")
        self.files.set_baseline()

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None, None]:
        """Ignore changes made inside this block."""
        await self._begin("ignore_changes")
        await asyncio.sleep(0)  # the event loop removes ended processes in its next turn
        if not self.files.has_baseline or self.machine.is_busy:
            raise SandboxUnsupportedError(f"sandbox {self.id!r} has no baseline, or a process runs")
        before = self.files.prints()
        yield
        self.files.ignore_since(before)

    async def changed_files(self) -> FileChanges:
        """Return the changes since the baseline."""
        await self._begin("changed_files")
        changes = self.files.changed_files()
        if changes is None:
            raise SandboxUnsupportedError(f"sandbox {self.id!r} has no baseline")
        return changes

    @asynccontextmanager
    async def observe_files(self, wanted: Callable[[str], bool]) -> AsyncGenerator[ObservedFiles]:
        """Yield the files of the provider's `observed` whose paths are `wanted`."""
        await self._begin("observe_files")
        source = self.provider.observed
        if source is None:
            raise SandboxUnsupportedError("the fake sandbox does not observe files")
        observed = ObservedFiles(lost="the observation has not ended")
        yield observed
        observed.processes, observed.lost = source.processes, source.lost
        observed.opened = [file for file in source.opened if wanted(file.path)]

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Change the network in `spec`."""
        await self._begin("switch_network")
        if mode not in {self.spec.network, *self.spec.switches}:
            raise SandboxUnsupportedError(
                f"network {mode!r} is not among the switches of sandbox {self.id!r}"
            )
        if allowed_hosts and mode != "allowlist":
            raise UsageError(f"allowed hosts need the network 'allowlist', not {mode!r}")
        update = {"network": mode, "allowed_hosts": tuple(allowed_hosts)}
        self._spec = self._spec.model_copy(update=update)

    async def switch_user(self, user: str) -> None:
        """Set the default user."""
        await self._begin("switch_user")
        self._check_user(user)
        self._spec = self._spec.model_copy(update={"user": user})

    async def expose_port(self, port: int) -> Endpoint:
        """Return the endpoint that the test put into `endpoints`."""
        await self._begin("expose_port")
        return self.endpoints.get(port, Endpoint(url=f"http://127.0.0.1:{port}"))

    async def kill_all(self) -> None:
        """Kill every process. The files stay."""
        await self._begin("kill_all")
        for group in [*self.machine.groups]:
            await group.kill()

    @asynccontextmanager
    async def freeze(self) -> AsyncGenerator[None, None]:
        """Stop every process inside the block. Re-entrant."""
        await self._begin("freeze")
        with self.gate.closed():
            yield
        self.provider.record("thaw", self.id)

    async def snapshot(
        self,
        level: SnapshotLevel = "filesystem",
        *,
        while_frozen: Callable[[], Awaitable[None]] | None = None,
    ) -> SandboxImage:
        """Store a copy of the files, and of the processes if `level` is `live`."""
        if while_frozen is not None:
            return await self._snapshot_after(while_frozen, level)
        await self._begin("snapshot")
        if level not in (await self.provider.capabilities()).snapshot_levels:
            raise SandboxUnsupportedError(f"the fake sandbox does not have {level!r} snapshots")
        await self.provider.faults.raise_or_hang(f"snapshot:{level}")
        return self.provider.images.seal(self.machine, self.provider.name, level)

    async def _snapshot_after(
        self, while_frozen: Callable[[], Awaitable[None]], level: SnapshotLevel
    ) -> SandboxImage:
        image: SandboxImage | None = None
        try:
            async with self.freeze():
                await while_frozen()
                image = await self.snapshot(level)
        except BaseException:
            if image is not None:
                await self.provider.discard(image)
            raise
        return image

    async def restore(self, image: SandboxImage) -> None:
        """Restore `image`. All processes end, and the processes of a live image run."""
        await self._begin("restore")
        machine = self.provider.images.open(image)
        if machine is None:
            raise SnapshotError(f"snapshot {image.ref!r} is not known to this provider")
        await self.machine.halt()
        self.machine = machine
        self._attachable = dict(machine.processes)
        machine.resume()

    async def teardown(self) -> None:
        """End every process and delete all state. Idempotent."""
        if not self.alive:
            return
        await self.provider.faults.raise_or_hang("teardown")
        self.provider.record("teardown", self.id)
        self.alive = False
        await self.machine.halt()
        self.provider.forget(self)

    async def _begin(self, operation: str) -> None:
        if not self.alive:
            raise SandboxError(f"sandbox {self.id!r} was torn down")
        await self.provider.faults.raise_or_hang(operation)
        self.provider.record(operation, self.id)

    def _call(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
    ) -> FakeCall:
        name = user or self.spec.user
        self._check_user(name)
        where = cwd or self.spec.workdir
        entry = self.files.entry(where)
        if entry is None or entry.kind != "dir":
            raise SandboxError(f"the working directory {where!r} does not exist")
        home = "/root" if name == "root" else f"/home/{name}"
        base = {"PATH": "/usr/bin:/bin", "HOME": home, "USER": name}
        call = FakeCall(
            sandbox=self,
            cmd=cmd if isinstance(cmd, str) else tuple(cmd),
            user=name,
            cwd=where,
            env={**base, **self.spec.env, **(env or {})},
            stdin=stdin,
            timeout=timeout,
        )
        self.calls.append(call)
        return call

    def _check_user(self, user: str) -> None:
        if user not in {"root", self.spec.user} and not self.files.exists(f"/home/{user}"):
            raise SandboxError(f"user {user!r} does not exist in sandbox {self.id!r}")

    async def _run(self, call: FakeCall, started: float) -> ExecResult:
        limit = self.spec.limits.output_bytes
        out, err = FakeCapture(limit), FakeCapture(limit)
        group = self.machine.group(self.provider.next_pid())
        group.lead(self._program(call, FakeStreams(BytesReader(call.stdin), out, err), group))
        finished = False
        try:
            code = await group.wait()
            finished = True
        finally:
            if not finished:
                await group.kill()
        if not self.alive:
            raise SandboxError(f"sandbox {self.id!r} was torn down during {call.text!r}")
        return ExecResult(
            exit_code=code,
            stdout=out.text,
            stderr=err.text,
            stdout_dropped=out.dropped,
            stderr_dropped=err.dropped,
            duration_sec=time.monotonic() - started,
        )

    def _program(self, call: FakeCall, streams: FakeStreams, group: FakeGroup) -> Runnable:
        program = self.commands.program(call.text) or self.provider.commands.program(call.text)
        if isinstance(program, FakeProgram):
            program = deepcopy(program)
            program.place(streams, gate=self.gate, files=self.files, cmd=call.cmd, env=call.env)
            return program
        if program is not None:
            return HandlerRun(program, call, streams)
        shell = FakeShell(
            files=self.files,
            gate=self.gate,
            group=group,
            user=call.user,
            cwd=call.cwd,
            env=dict(call.env),
            streams=streams,
            programs=PROGRAMS,
        )
        return ShellRun(shell, call.cmd)


async def _call_handler(handler: ExecHandler, call: FakeCall) -> ExecResult:
    result = handler(call)
    return await result if inspect.isawaitable(result) else result


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise TransferError(f"{path!r} is not an absolute path")
    return path
