"""The public object of one sandbox, over its `Box`."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from benchflow_contracts.changed_files import FileChanges
from benchflow_contracts.door import DoorPath, Endpoint
from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
    TransferError,
)
from benchflow_contracts.observed import ObservedFiles
from benchflow_contracts.sandbox import (
    ExecResult,
    NetworkMode,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_sandbox_core.accounts import Account
from benchflow_sandbox_core.command import SandboxCommand
from benchflow_sandbox_core.counters import host_error_if_short
from benchflow_sandbox_core.fifo.connections import INIT
from benchflow_sandbox_core.file_observer import observe_files
from benchflow_sandbox_core.gate import Gate
from benchflow_sandbox_core.image_config import ImageConfig
from benchflow_sandbox_core.paths import absolute
from benchflow_sandbox_core.port_forward import Connection
from benchflow_sandbox_core.process_table import ProcessTable
from benchflow_sandbox_core.proxy.server import proxy_environment
from benchflow_sandbox_core.relay.server import Relay
from benchflow_sandbox_core.sandbox_process import SandboxProcess
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.thread import run

from benchflow_sandbox_local.cgroup.group import Group
from benchflow_sandbox_local.live.snapshots import WhileFrozen
from benchflow_sandbox_local.rootfs.base import Base
from benchflow_sandbox_local.transfer.digest import DigestCache, FileDigester
from benchflow_sandbox_local.transfer.download import Download
from benchflow_sandbox_local.transfer.upload import FileOwner, Upload

from . import entrypoint
from .box import SandboxBox
from .running_box import LocalRunningBox

_SPECIAL = 3
"""The exit code of `init plain` when it finds a pipe or a socket."""


class LocalSandbox:
    """Runs commands and transfers files in one isolated sandbox on this host."""

    def __init__(
        self,
        box: SandboxBox,
        base: Base | None,
        *,
        rooted: bool,
        known: DigestCache | None = None,
        on_removed: Callable[[], None],
    ) -> None:
        self._box = box
        self._rooted = rooted
        self._environment = {} if base is None else dict(base.environment)
        self._config = ImageConfig() if base is None else base.source.config
        self.image_digests: Mapping[str, str] = {} if base is None else base.digests
        self._changing = asyncio.Lock()
        self._work = Gate()
        """Commands and transfers in progress."""
        self.processes = ProcessTable()
        self._known = known or DigestCache()
        """Digests of the files below the sandbox's own layer."""
        self._on_removed = on_removed

    @property
    def id(self) -> str:
        """The sandbox's name, unique on this machine."""
        return self._box.name

    @property
    def spec(self) -> SandboxSpec:
        """The spec of the sandbox, with the present network and user."""
        return self._box.spec

    @property
    def box(self) -> SandboxBox:
        """The layers, the control group and the processes of this sandbox."""
        return self._box

    @property
    def running(self) -> LocalRunningBox:
        """The running sandbox; raise `SandboxError` once it is gone or lost."""
        return self._box.running

    @property
    def group(self) -> Group:
        """The control group."""
        return self._box.group

    @property
    def relays(self) -> Mapping[int, Relay]:
        """The relays of the doors, by their ports inside."""
        return self._box.services.relays

    @property
    def door_paths(self) -> Mapping[str, DoorPath]:
        """The path out of each door, by the door's name."""
        return self._box.services.door_paths

    async def switch_network(self, mode: NetworkMode, allowed_hosts: Sequence[str] = ()) -> None:
        """Change which hosts the inside can reach."""
        async with self._changing:
            _ = self.running
            await self._box.switch_network(mode, allowed_hosts)

    async def switch_user(self, user: str) -> None:
        """Set the default user. The user must already exist."""
        if self._rooted:
            self._account(user)
        self._box.spec = self.spec.model_copy(update={"user": user})

    async def start_entrypoint(self) -> None:
        """Start the spec's own entrypoint as root, or the image's as the image's user.

        Raises:
            SandboxError: The entrypoint cannot be started, or the image's entrypoint ended.
        """
        if self.spec.entrypoint == "image":
            await self.start_image_entrypoint()
        elif self.spec.entrypoint:
            command = self._command(self.spec.entrypoint, "root", "/", None)
            await entrypoint.start(self.running, command)

    async def start_image_entrypoint(self) -> bool:
        """Start the image's own entrypoint, and wait until it is ready and healthy.

        Return False if the image does not have an entrypoint.
        """
        config = self._config
        user, workdir = config.user or "root", config.workdir or "/"
        if words := config.command(self.spec.container):
            command = self._command(words, user, workdir, None)
            await entrypoint.start_image(self.running, command)
        if config.health is not None:
            await config.health.wait(partial(self._run_health_test, user, workdir))
        return bool(words)

    async def _run_health_test(
        self, user: str, workdir: str, test: Sequence[str], timeout: float
    ) -> ExecResult:
        return await self.exec(test, user=user, cwd=workdir, timeout=timeout)

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
        """Run a command to its end. See `benchflow_contracts.sandbox.Sandbox.exec`."""
        self._box.freezer.refuse_own_task()
        command = self._command(cmd, user, cwd, env)
        limit = self.spec.limits.output_bytes
        async with self._work.while_open():
            with host_error_if_short(self.host_shortage):
                async with self._box.alive() as running:
                    return await command.run(running, self.group, stdin, timeout, limit)

    async def spawn(
        self,
        cmd: str | Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> SandboxProcess:
        """Start a command with live pipes in a process group of its own."""
        self._box.freezer.refuse_own_task()
        command = self._command(cmd, user, cwd, env)
        async with self._work.while_open():
            with host_error_if_short(self.host_shortage):
                async with self._box.alive() as running:
                    process = await SandboxProcess.start(running, command)
            self.processes.add(process)
            return process

    def host_shortage(self) -> str | None:
        """Return the shortage of the host for processes inside; see `SupportsHostShortage`."""
        return self.group.host_shortage()

    def memory_kills(self) -> int:
        """Return how many processes the memory limit killed so far."""
        return self.group.hits("memory")

    async def attach(self, process_id: str) -> SandboxProcess:
        """Return a spawned process that a live image restored here. Attach each process once."""
        self._box.require_live()
        process = self.processes.claim(process_id)
        if process is None:
            raise SandboxError(
                f"sandbox {self.id!r} has no restored process {process_id!r} to attach",
                hint="attach once, in a child of a live snapshot; a process that had ended at the"
                " time of the snapshot is not restored",
            )
        return process

    def _command(
        self,
        cmd: str | Sequence[str],
        user: str | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> SandboxCommand:
        shell = self._shell() if isinstance(cmd, str) else ""
        account = self._account(user or self.spec.user)
        own = {**self._environment, **proxy_environment(self.spec), **self.spec.env}
        added = {**own, **(env or {})}
        return SandboxCommand.of(cmd, account, self._directory_of(cwd), added, shell)

    def _shell(self) -> str:
        return shell_of(self.running.root)

    def _directory_of(self, cwd: str | None) -> str:
        return cwd or self.spec.workdir

    def _account(self, name: str) -> Account:
        if self._rooted:
            return self.running.accounts.look_up(name)
        if name in {self.spec.user, "root", "0"}:
            # The user namespace maps one user: root inside, the caller outside.
            return Account(name, 0, 0, (), "/root" if name == "root" else f"/home/{name}")
        raise SandboxUnsupportedError(
            f"user {name!r} does not exist: a rootless sandbox has one user",
            hint="run as root to have users, or leave `user` out",
        )

    async def upload(self, local: Path, remote: str, *, user: str = "root") -> None:
        """Copy a regular file or a directory tree in, owned by `user`."""
        owner = self._owner(user)
        async with self._files() as root:
            work = partial(Upload, root, owner, bounded=self.running.file_access != "host")
            await run(lambda stop: work(stop=stop).run(local, remote))

    @asynccontextmanager
    async def _files(self) -> AsyncGenerator[int]:
        """Yield the root directory of the running sandbox; let live snapshots wait."""
        async with self._work.while_open(), self._box.alive() as running:
            root = os.dup(running.root)
            try:
                yield root
            finally:
                os.close(root)

    def _owner(self, user: str) -> FileOwner:
        if not self._rooted:
            return FileOwner(os.getuid(), os.getgid())  # every name means the one mapped user
        account = self._account(user)
        return FileOwner(account.uid, account.gid)

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, leave_out: bool = False
    ) -> None:
        """Copy a regular file or a directory tree out to `local`, a new path.

        The host does not see a pipe or a socket of a gVisor sandbox, so a program inside looks for
        them. While the sandbox is frozen no program can run, and the copy leaves them out.
        """
        guest = self.running.file_access == "guest"
        if guest and not (leave_out or self._box.freezer.is_frozen):
            result = await self.exec((INIT, "plain", absolute(remote)), user="root", cwd="/")
            if result.exit_code == _SPECIAL:
                raise TransferError(f"{remote!r} is, or contains, a pipe or a socket")
        async with self._files() as root:
            work = partial(Download, root, max_bytes, leave_out=leave_out)
            await run(lambda stop: work(stop=stop).run(remote, local))

    async def file_digests(
        self, paths: Sequence[str], *, max_bytes: int = 1 << 30
    ) -> Mapping[str, str]:
        """Return the SHA-256 of each regular file that exists, while the sandbox runs."""
        if self.running.file_access == "guest":
            # The host does not see data that gVisor's kernel has not written back yet.
            raise SandboxUnsupportedError("files of a gVisor sandbox cannot be read while it runs")
        async with self._files() as root:
            work = partial(FileDigester, root, max_bytes, self._known)
            return await run(lambda stop: work(stop).run(paths))

    async def set_baseline(self) -> None:
        """Set the present files as the baseline of `changed_files`."""
        await self._box.changes.set_baseline()

    @asynccontextmanager
    async def ignore_changes(self) -> AsyncGenerator[None, None]:
        """Ignore changes made inside this block, in this sandbox and in its forks."""
        box = self._box
        freeze = box.while_files_unchanged
        async with box.changes.ignore_changes(freeze, box.group, self.running.pid):
            yield

    async def changed_files(self) -> FileChanges:
        """Return the changes since the baseline, read from the host's copy of the files."""
        changes = self._box.changes
        async with self._box.alive(), self._box.while_files_unchanged():
            return await changes.changed_files()

    @asynccontextmanager
    async def observe_files(self, wanted: Callable[[str], bool]) -> AsyncGenerator[ObservedFiles]:
        """Record the files that are opened inside while the block runs."""
        if self.running.file_access != "shared":
            raise SandboxUnsupportedError(
                "the files that this sandbox opens cannot be observed: it has its own kernel, or"
                " no isolation",
                hint="use the local sandbox with isolation",
            )
        async with self._files() as root, observe_files(root, wanted) as observed:
            yield observed

    async def connect_tcp(self, port: int) -> socket.socket:
        """Connect to a port of the inside's loopback."""
        async with self._work.while_open():
            return await self.running.dial(port)

    async def connect(self, port: int) -> Connection:
        """Connect a stream to a port inside; raise `OSError` when nothing listens there."""
        return await self.running.connect(port)

    async def expose_port(self, port: int) -> Endpoint:
        """Make a port inside reachable from the host's loopback. A port has one address."""
        return await self._box.services.expose(port)

    @property
    def is_lazy(self) -> bool:
        """Whether this child of a live snapshot ran before all of its memory was loaded."""
        return self.running.is_lazy

    async def wait_for_memory(self) -> None:
        """Return when all of a lazy child's memory is loaded.

        Raises:
            SnapshotError: The child ended before.
        """
        await self.running.wait_for_memory()

    def freeze(self) -> AbstractAsyncContextManager[None]:
        """Freeze every process inside for the block. Re-entrant."""
        return self._freeze()

    @asynccontextmanager
    async def _freeze(self) -> AsyncGenerator[None]:
        # The freeze ignores a first process that is dead, so the second call looks again.
        async with self._box.alive(), self._box.freezer.while_frozen(), self._box.alive():
            yield

    async def kill_all(self) -> None:
        """Kill every process inside but init. All are dead on return."""
        async with self._changing, self._box.alive() as running:
            await running.kill_all()

    async def snapshot(
        self, level: SnapshotLevel = "filesystem", *, while_frozen: WhileFrozen | None = None
    ) -> SandboxImage:
        """Take a snapshot of one instant. The sandbox continues unharmed."""
        async with self._changing, self._box.alive():
            if level != "live":
                return await self._box.seal(while_frozen)
            return await self._box.snapshot_live(self.processes, self._work, while_frozen)

    async def restore(self, image: SandboxImage) -> None:
        """Restore `image`. All processes end; `id`, spec and endpoints stay."""
        async with self._changing:
            self._box.check(image)
            if self._box.freezer.is_frozen:
                raise SnapshotError(f"sandbox {self.id!r} is frozen: thaw it before a restore")
            self._known = DigestCache()
            await self._box.restart(image)
            if self.spec.entrypoint == "image":
                await self.start_entrypoint()

    async def teardown(self) -> None:
        """Kill every process and remove the sandbox. Idempotent."""
        await finish(self._teardown())

    async def _teardown(self) -> None:
        async with self._changing:
            self.processes.close()
            await self._box.remove()
            self._on_removed()


def shell_of(root: int) -> str:
    """Return the shell that runs strings in the sandbox whose root directory is `root`."""
    for path in ("bin/bash", "usr/bin/bash"):
        # A symlink may lead anywhere: the host does not open the path, it only passes the name.
        if os.path.lexists(f"/proc/self/fd/{root}/{path}"):
            return f"/{path}"
    return "/bin/sh"
