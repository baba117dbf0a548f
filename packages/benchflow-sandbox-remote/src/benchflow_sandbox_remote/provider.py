"""The provider of sandboxes of one cloud."""

import asyncio
import logging
import random
import secrets
import time
from collections.abc import AsyncIterator
from typing import Self

from benchflow_contracts.base import BaseProvider, refuse_unsupported
from benchflow_contracts.errors import CapacityError, SandboxError, SandboxUnsupportedError
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import SandboxCapabilities, SandboxImage, SandboxSpec
from benchflow_contracts.sandbox_record import Owner, ReapPolicy, SandboxRecord
from benchflow_sandbox_core.spec import check_spec

from .cloud import Cloud, CloudRecord, CloudSandbox
from .sandbox import RemoteSandbox

OWNER = "benchflow.owner"
"""The label with the id of the runner that created a sandbox."""
_TRIES = 6
_FIRST_PAUSE, _MAX_PAUSE = 1.0, 30.0
_EXTENSIONS = 4
"""How often a lifetime is extended before it would end."""
_logger = logging.getLogger(__name__)


class RemoteProvider(BaseProvider):
    """Creates sandboxes in a cloud, lists those of every runner, and keeps its own alive.

    A sandbox lives for `lifetime` seconds after the last heartbeat of its runner. So the cloud
    deletes the sandboxes of a runner that was killed. The sandboxes of other runners are listed
    with an unknown owner, and only `ReapPolicy.overdue` deletes them.
    """

    optional_fields = frozenset({"image", "ports"})

    def __init__(
        self,
        name: str,
        cloud: Cloud,
        capabilities: SandboxCapabilities,
        *,
        lifetime: float = 300.0,
        lost_after: float = 120.0,
    ) -> None:
        super().__init__()
        self.name = name
        self.static_capabilities = capabilities
        self._cloud = cloud
        self._lifetime, self._lost_after = lifetime, lost_after
        self._owner = Owner()
        self._heartbeat: asyncio.Task[None] | None = None

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> RemoteSandbox:
        """Create a sandbox. A call that failed for a moment is tried again with the same key.

        Raises:
            SandboxUnsupportedError: The cloud does not support the spec.
            SandboxError: The sandbox did not start, and nothing is left behind.
        """
        if image is not None:
            raise SandboxUnsupportedError(f"sandbox {self.name!r} does not support snapshots")
        refuse_unsupported(spec, self.name, await self.capabilities())
        self._refuse_fields(spec)
        check_spec(spec)
        identity = identity or RolloutIdentity()
        cloud = await self._create(spec, {**identity.labels(), OWNER: self._owner.id})
        sandbox = await RemoteSandbox.start(cloud, spec, lost_after=self._lost_after)
        self.track(sandbox, identity)
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().create_task(self._keep_alive())
        return sandbox

    async def _create(self, spec: SandboxSpec, labels: dict[str, str]) -> CloudSandbox:
        key, pause = secrets.token_hex(16), _FIRST_PAUSE
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._cloud.create(
                    spec, key=key, labels=labels, lifetime=self._lifetime
                )
            except SandboxError as error:
                if not error.retryable or attempt == _TRIES:
                    raise
                asked = error.retry_after if isinstance(error, CapacityError) else None
                _logger.info("%s: try %d of a sandbox failed: %s", self.name, attempt, error)
            # Many runners that failed at one time do not come back at one time.
            await asyncio.sleep(asked or pause * random.uniform(0.5, 1.5))  # noqa: S311
            pause = min(2 * pause, _MAX_PAUSE)
        raise AssertionError("unreachable")

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._lifetime / _EXTENSIONS)
            for sandbox in list(self._sandboxes):
                if sandbox.is_closed:
                    continue
                try:
                    await self._cloud.extend(sandbox.id, self._lifetime)
                except SandboxError as error:
                    # The next one may succeed. If none does, calls of the sandbox say it is lost.
                    _logger.warning("%s: cannot extend %s: %s", self.name, sandbox.id, error)

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the sandboxes of the account that a runner of BenchFlow created."""
        async for each in self._cloud.list(OWNER):
            record = self._record(each)
            if scope is None or scope == record.identity.scope:
                yield record

    def _record(self, record: CloudRecord) -> SandboxRecord:
        labels = dict(record.labels)
        owner = labels.pop(OWNER, "")
        is_own = owner == self._owner.id
        return SandboxRecord(
            id=record.id,
            provider=self.name,
            owner=self._owner if is_own else None,
            owner_alive=True if is_own else None,
            created_at=record.created_at,
            identity=RolloutIdentity.of_labels(labels),
        )

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Delete the sandboxes that `policy` selects, also those of other runners."""
        now = time.time()
        records = [each async for each in self.sandboxes() if each.wanted(policy, now)]
        if not policy.dry_run:
            for record in records:
                await self._cloud.delete(record.id)
        return records

    async def aclose(self) -> None:
        """Delete all sandboxes of this instance, and close the cloud's connections. Idempotent."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.cancel()
            await asyncio.wait([heartbeat])
        await super().aclose()
        await self._cloud.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
