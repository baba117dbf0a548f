"""The broker of live sandboxes. It deletes the sandboxes of rollouts that nobody uses any more."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
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
    Sandbox,
    SandboxError,
    SandboxLostError,
    SandboxProvider,
    SandboxTimeoutError,
    TransferError,
)

from .leases import MAX_FILE_BYTES, CommandRequest, LeaseRequest, SandboxLease, SandboxState

_logger = logging.getLogger(__name__)
_SCOPE: Final = "nemo-gym"
_STATUS_SEC: Final = 10.0


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


class SandboxBroker:
    """A `SandboxService` in this process, over any provider.

    The lease is of the rollout: a call to one sandbox renews all of them. `reap` deletes the
    sandboxes of a rollout without a call for `idle_sec`, which is how a consumer that died is
    noticed, and each sandbox at the deadline of its identity. `running` reaps by itself.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        idle_sec: float = 900.0,
        max_sandboxes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the broker, which starts nothing.

        Args:
            provider: Makes the sandboxes. `aclose` closes it.
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
        rollout = self._rollouts.get(key)
        if rollout is None:
            idle = min(request.idle_sec or self._idle_sec, self._idle_sec)
            rollout = self._rollouts[key] = _RolloutLease(key, idle, self._clock())
        # A client whose request was cut repeats it, and must not get a second sandbox.
        with self._call(rollout):
            async with rollout.starting:
                ref = rollout.refs.get(request.name)
                if ref is None:
                    ref = await self._start(request, rollout)
            return self._lease(ref)

    async def _start(self, request: LeaseRequest, rollout: _RolloutLease) -> str:
        if self._max is not None and len(self._sandboxes) + self._starting >= self._max:
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
        ref = secrets.token_urlsafe(24)
        rollout.refs[request.name] = ref
        self._sandboxes[ref] = _LeasedSandbox(sandbox, rollout, request.name, identity.deadline)
        return ref

    async def exec(self, ref: str, request: CommandRequest) -> ExecResult:
        """Run a command to its end."""
        leased = self._find(ref)
        with self._call(leased.rollout):
            return await leased.sandbox.exec(
                request.cmd if isinstance(request.cmd, str) else list(request.cmd),
                user=request.user,
                timeout=request.timeout_sec,
                cwd=request.cwd,
                env=request.env or None,
            )

    async def upload(self, ref: str, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy one regular file in."""
        leased = self._find(ref)
        if not local.is_file():  # noqa: ASYNC240 - takes no time
            raise TransferError(f"{str(local)!r} is not a regular file", caused_by="operator")
        with self._call(leased.rollout):
            sandbox = leased.sandbox
            owner = user or sandbox.spec.user or "root"
            await sandbox.upload(local, _absolute(sandbox, remote), user=owner)

    async def download(
        self, ref: str, remote: str, local: Path, *, max_bytes: int = MAX_FILE_BYTES
    ) -> None:
        """Copy one regular file out. `local` appears whole, or not at all."""
        leased = self._find(ref)
        with self._call(leased.rollout):
            local.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=local.parent, prefix=".benchflow-") as scratch:
                part = Path(scratch) / "file"
                path = _absolute(leased.sandbox, remote)
                await leased.sandbox.download(path, part, max_bytes=max_bytes)
                if not part.is_file():
                    raise TransferError(f"{remote!r} is not a regular file")
                part.replace(local)

    async def status(self, ref: str) -> SandboxState:
        """Return whether the sandbox runs a command."""
        if ref not in self._sandboxes:
            return "stopped"
        try:
            result = await self.exec(ref, CommandRequest(cmd="true", timeout_sec=_STATUS_SEC))
        except SandboxError:
            return "error" if ref in self._sandboxes else "stopped"
        return "running" if result.ok else "error"

    async def endpoint(self, ref: str, port: int) -> Endpoint:
        """Return the address of a port of the spec."""
        leased = self._find(ref)
        with self._call(leased.rollout):
            return await leased.sandbox.expose_port(port)

    async def lease(self, ref: str) -> SandboxLease:
        """Renew the lease and return it."""
        with self._call(self._find(ref).rollout):
            return self._lease(ref)

    async def release(self, ref: str) -> None:
        """Delete a sandbox."""
        leased = self._sandboxes.pop(ref, None)
        if leased is None:
            return
        leased.rollout.refs.pop(leased.name, None)
        self._forget(leased.rollout)
        try:
            await asyncio.shield(leased.sandbox.teardown())
        except BenchFlowError:
            # The reaper tries again.
            self._sandboxes[ref] = leased
            raise

    async def release_rollout(self, rollout: str) -> None:
        """Delete all sandboxes of a rollout."""
        found = self._rollouts.get(rollout)
        for ref in list(found.refs.values()) if found is not None else ():
            await self.release(ref)

    async def reap(self) -> list[str]:
        """Delete the sandboxes whose lease or deadline has passed; return their ids.

        A failure of one deletion is logged, and the others go ahead.
        """
        now = self._clock()
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
        rollout = leased.rollout
        return not rollout.running_calls and rollout.renewed_at + rollout.idle_sec <= now

    async def aclose(self) -> None:
        """Delete all sandboxes and close the provider."""
        for ref in list(self._sandboxes):
            with suppress(BenchFlowError):
                await self.release(ref)
        await self._provider.aclose()

    @contextmanager
    def _call(self, rollout: _RolloutLease) -> Generator[None]:
        """Keep the lease of a rollout within the block, and renew it at both ends."""
        rollout.running_calls += 1
        rollout.renewed_at = self._clock()
        try:
            yield
        finally:
            rollout.running_calls -= 1
            rollout.renewed_at = self._clock()
            self._forget(rollout)

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

    def _lease(self, ref: str) -> SandboxLease:
        leased = self._find(ref)
        rollout, spec = leased.rollout, leased.sandbox.spec
        ends = [end for end in (rollout.renewed_at + rollout.idle_sec, leased.deadline) if end]
        return SandboxLease(
            ref=ref,
            sandbox=leased.sandbox.id,
            rollout=rollout.rollout,
            name=leased.name,
            workdir=spec.workdir,
            user=spec.user,
            expires_at=end if math.isfinite(end := min(ends)) else None,
        )


def _absolute(sandbox: Sandbox, path: str) -> str:
    return path if path.startswith("/") else f"{sandbox.spec.workdir.rstrip('/')}/{path}"
