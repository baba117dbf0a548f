"""The broker of live sandboxes. It deletes the sandboxes of rollouts that nobody uses any more."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import uuid4

from benchflow_contracts import (
    BenchFlowError,
    CapacityError,
    Endpoint,
    ExecResult,
    ReapPolicy,
    RolloutIdentity,
    Sandbox,
    SandboxError,
    SandboxLostError,
    SandboxProvider,
    SandboxSpec,
    SandboxTimeoutError,
    TransferError,
    UsageError,
)

from .leases import MAX_FILE_BYTES, CommandRequest, LeaseRequest, SandboxLease, SandboxState
from .lent_actions import ActionRecord, ActionResult, arguments_of, recorded, result_of
from .lent_files import read_as_user, write_as_user

_logger = logging.getLogger(__name__)
_SCOPE: Final = "nemo-gym"
_STATUS_SEC: Final = 10.0
LENT_NAME: Final = "main"
"""The name of a lent sandbox in its rollout."""


@dataclass(slots=True)
class _RolloutLease:
    """The sandboxes of one rollout, which end together."""

    rollout: str
    idle_sec: float
    renewed_at: float
    running_calls: int = 0
    refs: dict[str, str] = field(default_factory=dict[str, str])
    """References by the name of the sandbox."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _LeasedSandbox:
    sandbox: Sandbox
    rollout: _RolloutLease
    name: str
    deadline: float | None
    on_use: Callable[[], None] | None = None
    """Set for a sandbox that is lent: its owner counts the calls, and deletes the sandbox."""
    record: ActionRecord | None = None
    """Where the owner of a lent sandbox records what is done in it."""
    calls: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    """The scopes of the calls that run."""

    @property
    def is_lent(self) -> bool:
        return self.on_use is not None

    def end_calls(self) -> None:
        """Let each call that runs fail. Its process is killed before the call returns."""
        for call in self.calls:
            call.reschedule(asyncio.get_running_loop().time())


class SandboxBroker:
    """A `SandboxService` in this process, over any provider.

    The lease is of the rollout: a call to one sandbox renews all of them. `reap` deletes the
    sandboxes of a rollout without a call for `idle_sec`, which is how a consumer that died is
    noticed, and each sandbox at the deadline of its identity. `running` reaps by itself.

    A sandbox that is lent belongs to another component of this process, such as a session. The
    broker never deletes it, and its user is fixed.
    """

    def __init__(
        self,
        provider: SandboxProvider | None,
        *,
        idle_sec: float = 900.0,
        max_sandboxes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the broker, which starts nothing.

        Args:
            provider: Makes the sandboxes. `aclose` closes it. Without one, the broker only lends.
            idle_sec: The longest time without a call of a rollout.
            max_sandboxes: The most sandboxes at one time.
            clock: Seconds since the epoch.
        """
        self._provider = provider
        self._idle_sec = idle_sec
        self._max = max_sandboxes
        self._clock = clock
        self._rollouts: dict[str, _RolloutLease] = {}
        self._sandboxes: dict[str, _LeasedSandbox] = {}
        self._starting = 0

    @asynccontextmanager
    async def running(self, *, every_sec: float = 5.0) -> AsyncGenerator["SandboxBroker"]:
        """Reap every `every_sec` seconds within the block, and delete all sandboxes at its end.

        Sandboxes of a broker on this machine that has died are deleted first.
        """
        if self._provider is not None:
            await self._provider.reap(ReapPolicy(scope=_SCOPE))
        try:
            async with asyncio.TaskGroup() as tasks:
                reaper = tasks.create_task(self._reap_often(every_sec))
                try:
                    yield self
                finally:
                    reaper.cancel()
        finally:
            await self.aclose()

    async def _reap_often(self, every_sec: float) -> None:
        while True:
            await asyncio.sleep(every_sec)
            await self.reap()

    async def acquire(self, request: LeaseRequest) -> SandboxLease:
        """Start a sandbox, or return the one that the rollout has under this name."""
        key = request.identity.rollout or uuid4().hex
        rollout = self._rollout(key, request.idle_sec)
        # A client whose request was cut repeats it, and must not get a second sandbox.
        rollout.running_calls += 1
        try:
            async with rollout.starting:
                ref = rollout.refs.get(request.name)
                if ref is None:
                    ref = await self._start(request, rollout)
            return self.describe(ref)
        finally:
            rollout.running_calls -= 1
            rollout.renewed_at = self._clock()
            self._forget(rollout)

    def lend(
        self,
        sandbox: Sandbox,
        identity: RolloutIdentity,
        on_use: Callable[[], None],
        record: ActionRecord | None = None,
    ) -> SandboxLease:
        """Lend a sandbox of this process under the name `main`, until `recall` or a release.

        Commands run as the sandbox's default user, and files are read and written as that user. A
        request that names another user is refused. `on_use` is called at the start and the end of
        each call, and by the reaper while a call runs. `record` gets each command, upload and
        download, with its result.

        Raises:
            UsageError: The identity has no rollout, or the rollout has such a sandbox already.
        """
        if identity.rollout is None:
            raise UsageError("a sandbox is lent to a rollout, and the identity names none")
        rollout = self._rollout(identity.rollout, None)
        if LENT_NAME in rollout.refs:
            raise UsageError(f"the rollout {identity.rollout!r} has a sandbox {LENT_NAME!r}")
        ref = self._add(sandbox, rollout, LENT_NAME, on_use=on_use)
        self._sandboxes[ref].record = record
        return self.describe(ref)

    def recall(self, rollout: str) -> None:
        """End the loans of a rollout. A call that runs fails, and its process is killed."""
        for ref in self.refs_of(rollout):
            if self._sandboxes[ref].is_lent:
                self._end_lease(ref)

    async def _start(self, request: LeaseRequest, rollout: _RolloutLease) -> str:
        if self._provider is None:
            raise UsageError(
                f"the rollout {rollout.rollout!r} has no sandbox {request.name!r} here, and this"
                " broker makes none",
                hint="name a rollout that runs, or start a broker that has a provider",
            )
        own = sum(not leased.is_lent for leased in self._sandboxes.values())
        if self._max is not None and own + self._starting >= self._max:
            raise CapacityError(f"the broker has {self._max} sandboxes, which is its limit")
        identity = request.identity.model_copy(
            update={"rollout": rollout.rollout, "scope": request.identity.scope or _SCOPE}
        )
        self._starting += 1
        try:
            async with asyncio.timeout(request.ready_timeout_sec):
                sandbox = await self._provider.create(request.spec, identity=identity)
        except TimeoutError as error:
            raise SandboxTimeoutError(
                f"the sandbox of rollout {rollout.rollout!r} did not start in"
                f" {request.ready_timeout_sec:g} s",
                hint="raise the time for the start",
            ) from error
        finally:
            self._starting -= 1
        return self._add(sandbox, rollout, request.name, deadline=identity.deadline)

    def _add(
        self,
        sandbox: Sandbox,
        rollout: _RolloutLease,
        name: str,
        *,
        deadline: float | None = None,
        on_use: Callable[[], None] | None = None,
    ) -> str:
        ref = secrets.token_urlsafe(24)
        rollout.refs[name] = ref
        self._sandboxes[ref] = _LeasedSandbox(sandbox, rollout, name, deadline, on_use)
        return ref

    def _rollout(self, key: str, idle_sec: float | None) -> _RolloutLease:
        idle = min(idle_sec or self._idle_sec, self._idle_sec)
        new = _RolloutLease(key, idle, self._clock())
        return self._rollouts.setdefault(key, new)

    async def exec(self, ref: str, request: CommandRequest) -> ExecResult:
        """Run a command to its end."""
        async with self._call(ref) as leased:
            with recorded(leased.record, "exec", arguments_of(request)) as end:
                result = await self._run(leased, request)
                end.result = result_of(result)
                return result

    async def _run(self, leased: _LeasedSandbox, request: CommandRequest) -> ExecResult:
        return await leased.sandbox.exec(
            request.cmd if isinstance(request.cmd, str) else list(request.cmd),
            user=_user_of(leased, request.user),
            timeout=request.timeout_sec,
            cwd=request.cwd,
            env=request.env or None,
        )

    async def upload(self, ref: str, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy one regular file in."""
        async with self._call(ref) as leased:
            if not local.is_file():  # noqa: ASYNC240 - takes no time
                raise TransferError(f"{str(local)!r} is not a regular file", caused_by="operator")
            sandbox, given = leased.sandbox, _user_of(leased, user)
            path = _absolute(sandbox, remote)
            if leased.is_lent:
                arguments = {"path": path, "bytes": local.stat().st_size}  # noqa: ASYNC240
                with recorded(leased.record, "upload", arguments):
                    await write_as_user(sandbox, path, local)
            else:
                await sandbox.upload(local, path, user=given or sandbox.spec.user or "root")

    async def download(
        self, ref: str, remote: str, local: Path, *, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Copy one regular file out. `local` appears whole, or not at all."""
        async with self._call(ref) as leased:
            local.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=local.parent, prefix=".benchflow-") as scratch:
                part = Path(scratch) / "file"
                path = _absolute(leased.sandbox, remote)
                if leased.is_lent:
                    with recorded(leased.record, "download", {"path": path}) as end:
                        await read_as_user(leased.sandbox, path, part, max_bytes)
                        end.result = ActionResult(f"read {part.stat().st_size} bytes")
                else:
                    await leased.sandbox.download(path, part, max_bytes=max_bytes)
                if not part.is_file():
                    raise TransferError(f"{remote!r} is not a regular file")
                part.replace(local)

    async def status(self, ref: str) -> SandboxState:
        """Return whether the sandbox runs a command."""
        if ref not in self._sandboxes:
            return "stopped"
        try:
            async with self._call(ref) as leased:
                request = CommandRequest(cmd="true", timeout_sec=_STATUS_SEC)
                result = await self._run(leased, request)
        except SandboxError:
            return "error" if ref in self._sandboxes else "stopped"
        return "running" if result.ok else "error"

    async def endpoint(self, ref: str, port: int) -> Endpoint:
        """Return the address of a port of the spec."""
        async with self._call(ref) as leased:
            return await leased.sandbox.expose_port(port)

    async def lease(self, ref: str) -> SandboxLease:
        """Renew the lease and return it."""
        async with self._call(ref):
            return self.describe(ref)

    def rollout_of(self, ref: str) -> str | None:
        """Return the rollout of a reference, if the reference is known."""
        leased = self._sandboxes.get(ref)
        return None if leased is None else leased.rollout.rollout

    def refs_of(self, rollout: str) -> list[str]:
        """Return the references of a rollout."""
        found = self._rollouts.get(rollout)
        return [] if found is None else list(found.refs.values())

    def spec_of(self, ref: str) -> SandboxSpec:
        """Return the spec of a sandbox."""
        return self._find(ref).sandbox.spec

    async def release(self, ref: str) -> None:
        """Delete a sandbox. Of a lent one, only the reference ends."""
        leased = self._end_lease(ref)
        if leased is None or leased.is_lent:
            return
        try:
            await asyncio.shield(leased.sandbox.teardown())
        except BenchFlowError:
            # The reaper tries again.
            self._sandboxes[ref] = leased
            raise

    async def release_rollout(self, rollout: str) -> None:
        """Delete all sandboxes of a rollout."""
        for ref in self.refs_of(rollout):
            await self.release(ref)

    def _end_lease(self, ref: str) -> _LeasedSandbox | None:
        leased = self._sandboxes.pop(ref, None)
        if leased is not None:
            leased.rollout.refs.pop(leased.name, None)
            leased.end_calls()
            self._forget(leased.rollout)
        return leased

    async def reap(self) -> list[str]:
        """Delete the sandboxes whose lease or deadline has passed; return their ids.

        A failure of one deletion is logged, and the others go ahead.
        """
        now = self._clock()
        for lent in self._sandboxes.values():
            if lent.on_use is not None and lent.calls:
                lent.on_use()
        due = [ref for ref, leased in self._sandboxes.items() if self._is_over(leased, now)]
        reaped: list[str] = []
        for ref in due:
            leased = self._sandboxes.get(ref)
            if leased is None:
                continue
            _logger.warning("rollout %s: its sandbox's lease ended", leased.rollout.rollout)
            try:
                await self.release(ref)
            except BenchFlowError as error:
                _logger.warning("sandbox %s cannot be deleted: %s", leased.sandbox.id, error)
            reaped.append(leased.sandbox.id)
        return reaped

    def _is_over(self, leased: _LeasedSandbox, now: float) -> bool:
        if leased.deadline is not None and leased.deadline <= now:
            return True
        if leased.is_lent:
            return False
        rollout = leased.rollout
        return not rollout.running_calls and rollout.renewed_at + rollout.idle_sec <= now

    async def aclose(self) -> None:
        """Delete all sandboxes and close the provider."""
        for ref in list(self._sandboxes):
            with suppress(BenchFlowError):
                await self.release(ref)
        if self._provider is not None:
            await self._provider.aclose()

    @asynccontextmanager
    async def _call(self, ref: str) -> AsyncGenerator[_LeasedSandbox]:
        """Keep the lease of the rollout within the block, and renew it at both ends.

        Raises:
            SandboxLostError: The reference is unknown, or its lease ended during the block.
        """
        leased = self._find(ref)
        scope = asyncio.timeout(None)
        self._count_call(leased, 1)
        try:
            async with scope:
                leased.calls.add(scope)
                yield leased
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise SandboxLostError(
                "the lease of the sandbox ended during the call",
                hint="the sandbox was released, or its deadline passed: acquire another one",
            ) from error
        finally:
            leased.calls.discard(scope)
            self._count_call(leased, -1)
            self._forget(leased.rollout)

    def _count_call(self, leased: _LeasedSandbox, change: int) -> None:
        leased.rollout.running_calls += change
        leased.rollout.renewed_at = self._clock()
        if leased.on_use is not None:
            leased.on_use()

    def _forget(self, rollout: _RolloutLease) -> None:
        if not rollout.refs and not rollout.running_calls:
            self._rollouts.pop(rollout.rollout, None)

    def _find(self, ref: str) -> _LeasedSandbox:
        leased = self._sandboxes.get(ref)
        if leased is None:
            raise SandboxLostError(
                "the reference of the sandbox is unknown",
                hint="the sandbox was released, or its lease ended: acquire another one",
            )
        return leased

    def describe(self, ref: str) -> SandboxLease:
        """Return a lease without renewing it."""
        leased = self._find(ref)
        rollout, spec = leased.rollout, leased.sandbox.spec
        idle_end = math.inf if leased.is_lent else rollout.renewed_at + rollout.idle_sec
        ends = [end for end in (idle_end, leased.deadline) if end]
        return SandboxLease(
            ref=ref,
            sandbox=leased.sandbox.id,
            rollout=rollout.rollout,
            name=leased.name,
            workdir=spec.workdir,
            user=spec.user,
            expires_at=end if math.isfinite(end := min(ends)) else None,
        )


def _user_of(leased: _LeasedSandbox, user: str | None) -> str | None:
    """Return the user of a call. The owner of a lent sandbox has chosen the user."""
    own = leased.sandbox.spec.user or "root"
    allowed = {None, own, "0"} if own == "root" else {None, own}
    if leased.is_lent and user not in allowed:
        raise UsageError(
            f"the sandbox is lent to the user {own!r}, and the call names {user!r}",
            hint="leave out the user",
        )
    return user


def _absolute(sandbox: Sandbox, path: str) -> str:
    return path if path.startswith("/") else f"{sandbox.spec.workdir.rstrip('/')}/{path}"
