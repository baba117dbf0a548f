"""The provider of sandboxes of one cloud."""

import asyncio
import logging
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar

from benchflow_contracts.base import BaseProvider, refuse_unsupported
from benchflow_contracts.errors import (
    AccountError,
    CapacityError,
    CredentialsError,
    HostError,
    SandboxError,
    SandboxUnsupportedError,
)
from benchflow_contracts.identity import RolloutIdentity
from benchflow_contracts.sandbox import (
    SandboxCapabilities,
    SandboxImage,
    SandboxSpec,
    SnapshotLevel,
)
from benchflow_contracts.sandbox_record import Owner, ReapPolicy, SandboxRecord
from benchflow_sandbox_core.shield import finish
from benchflow_sandbox_core.spec import check_spec

from .cloud import (
    Cloud,
    CloudRecord,
    CloudSandbox,
    HasImage,
    HasSize,
    ListsImages,
    SnapshotCloud,
    SupportsBuilds,
    SupportsConnect,
    answer_of,
)
from .cost_meter import CostMeter
from .images import RemoteImage, RemoteImages
from .live_proof import prove_live, with_live
from .network_proof import prove_closed, with_open_network
from .rate_limit import RateLimiter, account_file
from .sandbox import RemoteSandbox
from .terms import CloudTerms, load_capabilities, load_terms

OWNER = "benchflow.owner"
"""The label with the id of the runner that created a sandbox."""
KEY = "benchflow.key"
"""The label with the key of the creation of a sandbox, which all tries share."""
_TRIES = 6
_FIRST_PAUSE, _MAX_PAUSE = 1.0, 30.0
_EXTENSIONS = 4
"""How often a lifetime is extended before it would end."""
_PROBE_SECONDS = 120.0
_CLOCK_SKEW = 300.0
_UNUSED_SECONDS = 24 * 3600.0
"""E2B lets no sandbox live longer, so a job that uses an image has started one within this time."""
_LIST_SECONDS, _MOST_LISTED, _FORGET_SECONDS = 300.0, 100_000, 10.0
_logger = logging.getLogger(__name__)
T = TypeVar("T")


class RemoteOptions(TypedDict, total=False):
    """The options that every provider of a cloud has; see `RemoteProvider`."""

    allow_unisolated: bool
    lifetime: float
    lost_after: float
    terms: CloudTerms | None


class RemoteProvider(BaseProvider):
    """Creates sandboxes in a cloud, lists those of every runner, and keeps its own alive.

    A sandbox lives for `lifetime` seconds after the last heartbeat of its runner. So the cloud
    deletes the sandboxes of a runner that was killed. The sandboxes of other runners are listed
    with an unknown owner, and only `ReapPolicy.overdue` deletes them.

    `terms` has the rate of new sandboxes, which all processes of this user share for one
    `account`, and the prices. `account` is the key, or a name; it is not stored.
    `allow_unisolated` changes nothing: a sandbox of a cloud is isolated.
    """

    optional_fields = frozenset({"image", "ports"})
    create_seconds = 900.0
    """The limit of a creation with all of its tries, in which a cloud may pull an image."""
    package: str | None = None
    """The Python package whose `capabilities.toml` and `terms.toml` count without arguments."""
    key_hint: str | None = None
    """How to set the key of an account, which is `account`. `None`: a cloud without keys."""

    def __init__(
        self,
        name: str,
        cloud: Cloud,
        capabilities: SandboxCapabilities | None = None,
        *,
        allow_unisolated: bool = False,
        lifetime: float = 300.0,
        lost_after: float = 120.0,
        terms: CloudTerms | None = None,
        account: str = "",
    ) -> None:
        self.check_key(name, account)
        super().__init__(allow_unisolated=allow_unisolated)
        if self.package is not None:
            capabilities = capabilities or load_capabilities(self.package, name)
            terms = terms or load_terms(name, self.package)
        assert capabilities is not None, f"{name}: neither capabilities nor a package"
        self.name = name
        self.static_capabilities = capabilities
        self._cloud = cloud
        self._lifetime, self._lost_after = lifetime, lost_after
        self._owner = Owner()
        self._terms = terms
        self._limiter = (
            None if terms is None else RateLimiter(account_file(name, account), terms.creates)
        )
        self._costs = CostMeter(None if terms is None else terms.prices)
        self._heartbeat: asyncio.Task[None] | None = None
        self._probed: SandboxCapabilities | None = None
        self._probing = asyncio.Lock()
        self._images = (
            RemoteImages(name, cloud, capabilities.snapshot_levels)
            if isinstance(cloud, SnapshotCloud)
            else None
        )

    @classmethod
    def check_key(cls, name: str, account: str) -> None:
        """Check that a key is set, if the cloud has keys.

        A provider calls this before it imports an SDK that loads slowly.

        Raises:
            CredentialsError: `account` is empty.
        """
        if cls.key_hint is not None and not account:
            raise CredentialsError(f"{name}: no credentials", hint=cls.key_hint)

    async def ready(self) -> None:
        """Check the account; see `SupportsConnect`."""
        if isinstance(self._cloud, SupportsConnect):
            await self._cloud.connect()

    async def probe(self) -> SandboxCapabilities:
        """Return `static_capabilities`. Override it if they depend on the account."""
        return self.static_capabilities

    async def prove_network(
        self, can: SandboxCapabilities, address: str, remedy: str
    ) -> SandboxCapabilities:
        """Return `can`, or with the network `public` alone if a closed network is not proven.

        The `create` of the cloud gets `network`, and makes one sandbox that is `open` and one with
        `none`. Both are deleted at the end. `remedy` says how to get closed networks; see
        `prove_closed`.

        Raises:
            SandboxError: A sandbox cannot be started or reached.
        """
        create: Any = self._cloud.create
        labels = {OWNER: self._owner.id, "benchflow.purpose": "probe"}
        options = {"labels": labels, "lifetime": _PROBE_SECONDS}
        async with AsyncExitStack() as stack:
            probes = list[CloudSandbox]()
            for network in ("open", "none"):
                key = f"probe-{secrets.token_hex(8)}"
                probes.append(await create(SandboxSpec(), key=key, network=network, **options))
                stack.push_async_callback(probes[-1].delete)
            reason = await prove_closed(probes[0], probes[1], address)
        return can if reason is None else with_open_network(can, f"{reason}: {remedy}")

    async def prove_live(self, engine: str) -> SandboxCapabilities:
        """Return the capabilities, with live snapshots of `engine` if one of them is proven.

        The cloud makes one sandbox, its live snapshot and one sandbox of that; see `prove_live`.

        Raises:
            SandboxError: The cloud did not create a sandbox, and may do so later.
        """
        images = self._images
        assert images is not None, f"{self.name}: no snapshots"
        images.levels |= frozenset[SnapshotLevel]({"live"})

        async def open_sandbox(image: SandboxImage | None) -> RemoteSandbox:
            stored = None if image is None else images.get(image)
            sandbox = await self._open(SandboxSpec(), stored, RolloutIdentity(scope="probe"))
            sandbox.images = images
            return sandbox

        can = self.static_capabilities
        try:
            can = with_live(can, engine, await prove_live(open_sandbox, self.discard))
        finally:
            images.levels = can.snapshot_levels
        return can

    async def capabilities(self) -> SandboxCapabilities:
        """Return what the first call of `probe` returned. Concurrent calls share it."""
        async with self._probing:
            if self._probed is None:
                self._probed = await self.probe()
        return self._probed

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
            HostError: The cloud did not answer within `create_seconds`. It may be tried again.
            SandboxError: The sandbox did not start, and nothing is left behind.
        """
        stored = None if image is None else self._stored(image)
        refuse_unsupported(spec, self.name, await self.capabilities())
        self._refuse_fields(spec)
        check_spec(spec)
        identity = identity or RolloutIdentity()
        sandbox = await self._open(spec, stored, identity)
        sandbox.images = self._images
        if self._images is not None:
            sandbox.reopen = partial(self._reopen, sandbox.spec, identity)
        self.track(sandbox, identity)
        if self._heartbeat is None:
            self._heartbeat = asyncio.get_running_loop().create_task(self._keep_alive())
        return sandbox

    def _stored(self, image: SandboxImage) -> RemoteImage:
        if self._images is None:
            raise SandboxUnsupportedError(f"sandbox {self.name!r} does not support snapshots")
        return self._images.get(image)

    async def _open(
        self, spec: SandboxSpec, stored: RemoteImage | None, identity: RolloutIdentity
    ) -> RemoteSandbox:
        """Create a sandbox and reach its link. The processes of a live snapshot continue."""
        labels = {**identity.labels(), OWNER: self._owner.id}
        cloud = await self._create(spec, labels, None if stored is None else stored.ref)
        if stored is not None and isinstance(cloud, HasImage):
            cloud.image = stored.config
        self._start_cost(cloud, spec, identity)
        lost_after, name = self._lost_after, cloud.id  # a snapshot may change the id
        try:
            if stored is not None and stored.level == "live":
                sandbox = await RemoteSandbox.resume(cloud, spec, stored, lost_after=lost_after)
            else:
                sandbox = await RemoteSandbox.start(cloud, spec, lost_after=lost_after)
        except BaseException:
            self._costs.stop(name)
            raise
        sandbox.on_deleted = lambda: self._costs.stop(name)
        return sandbox

    async def _reopen(
        self, spec: SandboxSpec, identity: RolloutIdentity, image: SandboxImage
    ) -> RemoteSandbox:
        """Create a sandbox from the files of a snapshot."""
        sandbox = await self._open(spec, self._stored(image), identity)
        try:
            await sandbox.kill_all()
        except BaseException:
            await sandbox.teardown()
            raise
        return sandbox

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot. Its sandboxes continue. Idempotent."""
        if self._images is not None:
            await self._images.delete(image.ref)

    async def _create(
        self, spec: SandboxSpec, labels: Mapping[str, str], snapshot: str | None
    ) -> CloudSandbox:
        create = self._cloud.create
        if snapshot is not None:
            assert isinstance(self._cloud, SnapshotCloud)
            create = partial(self._cloud.create_from, snapshot)
        elif isinstance(self._cloud, SupportsBuilds):
            await self._retried(partial(self._cloud.build, spec))
        key = secrets.token_hex(16)
        options: dict[str, Any] = {"key": key, "labels": {**labels, KEY: key}}
        options["lifetime"] = self._lifetime
        creating = self._retried(partial(create, spec, **options), self._await_permit)
        try:
            return await answer_of(creating, "create a sandbox", self.create_seconds)
        except BaseException as error:
            if not isinstance(error, AccountError):
                await finish(self._forget(key))
            raise

    async def _forget(self, key: str) -> None:
        """Delete the sandbox of a key, if a try left it without a readable answer."""
        with suppress(SandboxError, TimeoutError):  # the cloud deletes it after its lifetime
            async with asyncio.timeout(_FORGET_SECONDS):
                async for each in self._cloud.list(OWNER):
                    if each.labels.get(KEY) == key:
                        await self._cloud.delete(each.id)

    async def _retried(
        self,
        call: Callable[[], Awaitable[T]],
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> T:
        """Return what `call` returns. Repeat a call that failed for a moment, after a pause."""
        pause = _FIRST_PAUSE
        for attempt in range(1, _TRIES + 1):
            if before is not None:
                await before()
            try:
                return await call()
            except SandboxError as error:
                if not error.retryable or attempt == _TRIES:
                    raise
                asked = error.retry_after if isinstance(error, CapacityError) else None
                _logger.info("%s: try %d of a sandbox failed: %s", self.name, attempt, error)
            if asked and self._limiter is not None:
                await asyncio.to_thread(self._limiter.pause, asked)
                continue
            # Many runners that failed at one time do not come back at one time.
            await asyncio.sleep(asked or pause * random.uniform(0.5, 1.5))  # noqa: S311
            pause = min(2 * pause, _MAX_PAUSE)
        raise AssertionError("unreachable")

    async def _await_permit(self) -> None:
        """Wait until the account may create a sandbox.

        Raises:
            CapacityError: The wait would be too long.
        """
        if self._limiter is None:
            return
        try:
            await self._limiter.acquire()
        except OSError as error:
            # The cloud refuses what is too fast, and such a refusal is tried again.
            _logger.warning("%s: the rate of calls is not limited here: %s", self.name, error)
            self._limiter = None

    def _start_cost(
        self, cloud: CloudSandbox, spec: SandboxSpec, identity: RolloutIdentity
    ) -> None:
        prices = None if self._terms is None else self._terms.prices
        if prices is not None:
            size = cloud.size if isinstance(cloud, HasSize) else None
            kinds = self.static_capabilities.resource_limits
            size = size or prices.size_of(spec.limits, kinds)
            self._costs.start(cloud.id, identity.rollout, size)

    def cost_usd(self, rollout: str) -> float | None:
        """Return what the sandboxes of a rollout have cost so far; see `HasCosts`."""
        return self._costs.cost_usd(rollout) if self._costs.is_known else None

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._lifetime / _EXTENSIONS)
            every = [each for each in self._sandboxes if isinstance(each, RemoteSandbox)]
            # A sandbox that is busy waits, and the other ones do not wait for it.
            for sandbox in sorted(every, key=lambda each: not each.may_extend):
                if sandbox.is_closed:
                    continue
                try:
                    extending = sandbox.extend(
                        lambda name: self._cloud.extend(name, self._lifetime)
                    )
                    await answer_of(extending, "extend a sandbox")
                except SandboxError as error:
                    # The next one may succeed. If none does, calls of the sandbox say it is lost.
                    _logger.warning("%s: cannot extend %s: %s", self.name, sandbox.id, error)

    async def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield the sandboxes of the account that a runner of BenchFlow created."""
        async for each in self._listed():
            record = self._record(each)
            if scope is None or scope == record.identity.scope:
                yield record

    async def _listed(self) -> AsyncIterator[CloudRecord]:
        """Yield the list of the cloud, which a server could continue without an end."""
        clock, every = asyncio.get_running_loop().time, self._cloud.list(OWNER)
        ends = clock() + _LIST_SECONDS
        for _ in range(_MOST_LISTED):
            try:
                yield await answer_of(anext(every), "list the sandboxes", max(0.0, ends - clock()))
            except StopAsyncIteration:
                return
        raise HostError(f"{self.name}: the account lists more than {_MOST_LISTED} sandboxes")

    def _record(self, record: CloudRecord) -> SandboxRecord:
        labels = dict(record.labels)
        owner, _ = labels.pop(OWNER, ""), labels.pop(KEY, "")
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
        """Delete the sandboxes that `policy` selects, also those of other runners.

        A deadline counts as passed five minutes after it by this machine's clock, because the
        clock of the runner that set it may be another one.

        With `built_images`, the images that no sandbox started from for a day are selected, too.
        Their records have the names of the images as ids.
        """
        now = time.time() - _CLOCK_SKEW
        records = [each async for each in self.sandboxes() if each.wanted(policy, now)]
        if not policy.dry_run:
            for record in records:
                await answer_of(self._cloud.delete(record.id), "delete a sandbox")
        if policy.built_images and isinstance(self._cloud, ListsImages):
            records += await self._reap_images(self._cloud, now, dry_run=policy.dry_run)
        return records

    async def _reap_images(
        self, cloud: ListsImages, now: float, *, dry_run: bool
    ) -> list[SandboxRecord]:
        async with asyncio.timeout(_LIST_SECONDS):
            every = [each async for each in cloud.images()]
        unused = [each for each in every if each.used_at < now - _UNUSED_SECONDS]
        for each in [] if dry_run else unused:
            await answer_of(cloud.discard(each.id), "delete an image")
        return [
            SandboxRecord(id=one.name, provider=self.name, owner_alive=None, created_at=one.used_at)
            for one in unused
        ]

    async def aclose(self) -> None:
        """Delete all sandboxes of this instance, and close the cloud's connections. Idempotent."""
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.cancel()
            await asyncio.wait([heartbeat])
        await super().aclose()
        if self._images is not None:
            await self._images.aclose()
        await self._cloud.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def options_of(prefix: str, **given: str | None) -> dict[str, str]:
    """Return the options that are given, or else set by variables such as `{prefix}API_KEY`."""
    found = {
        name: value or os.environ.get(f"{prefix}{name.upper()}") for name, value in given.items()
    }
    return {name: value for name, value in found.items() if value}


def found_file(variable: str, default: str, *more: Path) -> str:
    """Return the first file that exists: one that a variable names, or else that of `default`.

    A variable may name several. `more` are looked for at the end. `""`: none of them exists.
    """
    named = os.environ.get(variable, default).split(os.pathsep)
    files = [Path(name).expanduser() for name in named if name]
    return next((str(file) for file in (*files, *more) if file.exists()), "")
