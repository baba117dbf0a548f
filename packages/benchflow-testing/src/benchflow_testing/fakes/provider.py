"""A provider of sandboxes in memory."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow_contracts import RolloutIdentity
from benchflow_contracts.container import NO_OPTIONS
from benchflow_contracts.errors import (
    SandboxError,
    SandboxUnsupportedError,
    SnapshotError,
    UsageError,
)
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy, SandboxRecord

from .call import ExecHandler, FakeCommands, ProgramHandler
from .faults import FakeFaults, Fault
from .file_system import FakeFileSystem
from .images import FakeImageStore, load, save
from .machine import FakeMachine
from .process import FakeGate
from .program import FakeProgram
from .sandbox import FakeSandbox

if TYPE_CHECKING:
    from benchflow_contracts.observed import ObservedFiles

FAKE_CAPABILITIES = SandboxCapabilities(
    isolation="none",
    snapshot_levels=frozenset({"filesystem", "live"}),
    live_engine="fake",
    network_modes=frozenset({"none", "model-only"}),
    resource_limits=frozenset({"output"}),
    users=True,
    freeze="kernel",
    snapshot_consistency="instant",
    kill_all=True,
    network_switch=True,
)
"""The capabilities of the fake. `model-only` is accepted, but no relay listens inside."""

FAKE_WITHOUT_LIVE = FAKE_CAPABILITIES.model_copy(
    update={
        "snapshot_levels": frozenset({"filesystem"}),
        "live_engine": None,
        "notes": {"live": "turned off by the test (hint: pass FAKE_CAPABILITIES)"},
    }
)
"""The same capabilities without live snapshots."""


class FakeSandboxProvider:
    """Creates fake sandboxes, records each operation, and fails if a test sets a fault.

    `log` has each operation in order as (operation, sandbox id), with `ready`, `create`,
    `discard`, `exec`, `spawn`, `attach`, `upload`, `download`, `expose_port`, `freeze`,
    `thaw`, `kill_all`, `switch_network`, `switch_user`, `snapshot`, `restore`, `save`, `load` and
    `teardown`; `faults` is keyed by the same names, and by `snapshot:live` and `create:live`
    for the live level alone.
    """

    def __init__(
        self,
        *,
        name: str = "fake",
        capabilities: SandboxCapabilities = FAKE_CAPABILITIES,
        files: Mapping[str, bytes | str] | None = None,
        fail_on: Mapping[str, Fault] | None = None,
        hang_on: set[str] | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        sandbox_type: type[FakeSandbox] = FakeSandbox,
    ) -> None:
        self.faults = FakeFaults.of(fail_on, hang_on)
        self.commands = FakeCommands()
        self.images = FakeImageStore()
        self.created: list[FakeSandbox] = []
        """Every created sandbox, in order, also after its teardown."""
        self.log: list[tuple[str, str]] = []
        self.observed: ObservedFiles | None = None
        """The result of `observe_files`. If `None`, sandboxes cannot observe files."""
        self.sleep = sleep
        self._sandbox_type = sandbox_type
        self._name = name
        self._capabilities = capabilities
        self._files = dict(files or {})
        self._live: dict[str, FakeSandbox] = {}
        self._orphans: set[str] = set()
        self._pids = itertools.count(100)

    @property
    def name(self) -> str:
        """The registry name."""
        return self._name

    def on(self, prefix: str, handler: ExecHandler) -> None:
        """Call `handler` for every `exec` that starts with `prefix`."""
        self.commands.on(prefix, handler)

    def on_spawn(self, prefix: str, program: ProgramHandler | FakeProgram) -> None:
        """Run `program`, or a copy of a FakeProgram, for commands that start with `prefix`."""
        self.commands.on_spawn(prefix, program)

    @property
    def live(self) -> list[FakeSandbox]:
        """The sandboxes that were not torn down."""
        return list(self._live.values())

    @property
    def operations(self) -> list[str]:
        """The names of the operations in `log`."""
        return [operation for operation, _ in self.log]

    async def ready(self) -> None:
        """Record the call, or raise a fault of the test."""
        await self.faults.raise_or_hang("ready")
        self.record("ready", self.name)

    def add_capabilities(self, **more: object) -> None:
        """Change the claimed capabilities, such as `doors="tunnel"`. No door works."""
        self._capabilities = self._capabilities.model_copy(update=more)

    async def capabilities(self) -> SandboxCapabilities:
        """Return the capabilities that the test set."""
        return self._capabilities

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> FakeSandbox:
        """Create a sandbox from the spec or from a snapshot."""
        await self.faults.raise_or_hang("create")
        self._refuse(spec)
        spec = _with_defaults(spec)
        if image is not None and image.level == "live":
            await self.faults.raise_or_hang("create:live")
        machine = self._machine(spec) if image is None else self.images.open(image)
        if machine is None:
            raise SandboxError(f"snapshot {image.ref if image else None!r} is not known")
        sandbox = self._sandbox_type(
            self, spec, machine, identity or RolloutIdentity(), from_image=image is not None
        )
        machine.resume()
        self._live[sandbox.id] = sandbox
        self.created.append(sandbox)
        self.record("create", sandbox.id)
        for bundle in spec.bundles:
            await sandbox.upload(Path(bundle.source), bundle.target)
        if image is None or image.level == "filesystem":
            sandbox.start_entrypoint()
        return sandbox

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the records of live sandboxes, of all scopes or of one."""
        for sandbox in self.live:
            if scope is None or scope == sandbox.identity.scope:
                yield self._record(sandbox)

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Idempotent."""
        await self.faults.raise_or_hang("discard")
        self.images.drop(image)
        self.record("discard", image.ref)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to `to`, a new directory."""
        await self.faults.raise_or_hang("save")
        machine = self.images.open(image)
        if machine is None:
            raise SnapshotError(f"snapshot {image.ref!r} is not known")
        save(machine, image, to)
        self.record("save", image.ref)

    async def load(self, saved: Path) -> SandboxImage:
        """Load a snapshot that a provider of this name saved."""
        await self.faults.raise_or_hang("load")
        machine, image = load(saved, self.name)
        loaded = self.images.add(machine, self.name, image.level)
        if loaded.digest != image.digest:
            self.images.drop(loaded)
            raise SnapshotError(f"{str(saved)!r} does not match its digest")
        self.record("load", loaded.ref)
        return loaded

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Delete abandoned sandboxes, and overdue sandboxes if the policy says so."""
        now = time.time()
        found = [each for each in self.live if self._record(each).wanted(policy, now)]
        records = [self._record(sandbox) for sandbox in found]
        for sandbox in found:
            if not policy.dry_run:
                await sandbox.teardown()
        return records

    async def aclose(self) -> None:
        """Tear down every sandbox and snapshot. Idempotent."""
        for sandbox in self.live:
            await sandbox.teardown()
        self.images.clear()

    def abandon(self, sandbox: FakeSandbox) -> None:
        """Treat the owner of `sandbox` as dead."""
        self._orphans.add(sandbox.id)

    def record(self, operation: str, subject: str) -> None:
        """Append to `log`."""
        self.log.append((operation, subject))

    def forget(self, sandbox: FakeSandbox) -> None:
        """Drop a sandbox that was torn down."""
        self._live.pop(sandbox.id, None)

    def next_pid(self) -> int:
        """Return a new process id."""
        return next(self._pids)

    def _refuse(self, spec: SandboxSpec) -> None:
        for mode in (spec.network, *spec.switches):
            if mode not in self._capabilities.network_modes:
                raise SandboxUnsupportedError(f"network {mode!r} is not supported")
        if spec.doors and spec.network == "none":
            raise SandboxUnsupportedError("a model endpoint needs another network than 'none'")
        if spec.allowed_hosts and spec.network != "allowlist":
            raise UsageError(f"allowed hosts need the network 'allowlist', not {spec.network!r}")
        if spec.services or spec.container != NO_OPTIONS:
            raise SandboxUnsupportedError("a fake sandbox does not have services")
        if spec.recipe is not None:
            raise SandboxUnsupportedError("a fake sandbox does not build images")

    def _record(self, sandbox: FakeSandbox) -> SandboxRecord:
        return SandboxRecord(
            id=sandbox.id,
            provider=self.name,
            owner_alive=sandbox.id not in self._orphans,
            created_at=sandbox.created_at,
            identity=sandbox.identity,
        )

    def _machine(self, spec: SandboxSpec) -> FakeMachine:
        files = _image_files(spec.user, spec.workdir).copy()
        for path, content in self._files.items():
            files.put(path, content)
        return FakeMachine(files, FakeGate(self.sleep))


@cache
def _image_files(user: str, workdir: str) -> FakeFileSystem:
    """Return the files of the fake image, to be copied."""
    files = FakeFileSystem()
    for path in ("/bin", "/dev", "/etc", "/usr/bin", "/var", f"/home/{user}"):
        files.mkdir(path, parents=True)
    files.mkdir("/root", mode=0o700)
    files.mkdir("/tmp", mode=0o777)  # noqa: S108 - a path inside the fake
    files.put("/dev/null", b"", mode=0o666)
    files.mkdir(workdir, parents=True)
    files.chown(workdir, user)
    files.chown(f"/home/{user}", user)
    return files


def _with_defaults(spec: SandboxSpec) -> SandboxSpec:
    """Return the spec with the user and directory of the fake image: `root` and `/`."""
    return spec.model_copy(update={"user": spec.user or "root", "workdir": spec.workdir or "/"})
