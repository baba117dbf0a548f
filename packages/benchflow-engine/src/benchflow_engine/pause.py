"""The sandboxes of a rollout that can be paused."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import (
    BenchFlowError,
    HostError,
    ReapPolicy,
    RolloutIdentity,
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxLostError,
    SandboxProvider,
    SandboxRecord,
    SandboxSpec,
    SandboxUnsupportedError,
)
from benchflow_contracts.pausing import PauseSwitch, pause_switch
from benchflow_kernel.faults import run_shielded

_TRIES = 3


@asynccontextmanager
async def pausable_sandboxes(provider: SandboxProvider) -> AsyncGenerator[SandboxProvider]:
    """Yield a provider whose sandboxes are frozen while the running rollout is paused.

    If a sandbox cannot be frozen, the whole rollout continues, and its switch has the reason.
    """
    switch = pause_switch()
    freezer = SandboxFreezer(switch)
    try:
        with switch.follow(freezer.freeze_all, freezer.thaw_all):
            yield PausableProvider(provider, switch, freezer)
    finally:
        if freezer.is_busy:
            await run_shielded(freezer.aclose())


class SandboxFreezer:
    """Freezes the sandboxes of one rollout, each in a task of its own."""

    def __init__(self, switch: PauseSwitch) -> None:
        self._switch = switch
        self._sandboxes: list[Sandbox] = []
        self._thawed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, sandbox: Sandbox) -> None:
        """Take over a new sandbox. During a pause it is frozen at once."""
        self._sandboxes.append(sandbox)
        if self._switch.is_paused:
            self._freeze(sandbox)

    def freeze_all(self) -> None:
        """Begin to freeze each sandbox."""
        self._thawed = asyncio.Event()
        for sandbox in self._sandboxes:
            self._freeze(sandbox)

    def thaw_all(self) -> None:
        """Begin to thaw each sandbox."""
        self._thawed.set()

    @property
    def is_busy(self) -> bool:
        """Whether a sandbox is frozen, or is about to be."""
        return bool(self._tasks)

    async def aclose(self) -> None:
        """Thaw each sandbox."""
        self._thawed.set()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _freeze(self, sandbox: Sandbox) -> None:
        # The task that freezes a sandbox is its own: the tasks of the rollout may wait inside it.
        work = self._keep_frozen(sandbox, self._thawed, self._switch.begin_freeze())
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_frozen(
        self, sandbox: Sandbox, thawed: asyncio.Event, on_end: Callable[[], None]
    ) -> None:
        """Freeze a sandbox until `thawed` is set. `on_end` gets the end of the attempt."""
        try:
            await self._switch.wait_interruptible()
            for attempt in range(_TRIES):
                if thawed.is_set():
                    return
                try:
                    async with sandbox.freeze():
                        on_end()
                        await thawed.wait()
                except BenchFlowError as error:
                    if error.retryable and attempt + 1 < _TRIES:
                        continue
                    self._note_failure(sandbox, error)
                return
        finally:
            on_end()

    def _note_failure(self, sandbox: Sandbox, error: BenchFlowError) -> None:
        """Let the rollout continue, unless nothing runs in the sandbox any more."""
        cannot = isinstance(error, SandboxUnsupportedError | HostError) or error.retryable
        if isinstance(error, SandboxLostError) or not cannot:
            if sandbox in self._sandboxes:
                self._sandboxes.remove(sandbox)
        else:
            self._switch.refuse(str(error))


class PausableProvider:
    """A provider whose new sandboxes a freezer takes over. During a pause, none is created."""

    def __init__(
        self, provider: SandboxProvider, switch: PauseSwitch, freezer: SandboxFreezer
    ) -> None:
        self._provider = provider
        self._switch = switch
        self._freezer = freezer

    @property
    def name(self) -> str:
        """The registry name."""
        return self._provider.name

    async def create(
        self,
        spec: SandboxSpec,
        *,
        image: SandboxImage | None = None,
        identity: RolloutIdentity | None = None,
    ) -> Sandbox:
        """Start a sandbox as soon as the rollout is not paused."""
        async with self._switch.uninterrupted():
            sandbox = await self._provider.create(spec, image=image, identity=identity)
            self._freezer.add(sandbox)
        return sandbox

    async def ready(self) -> None:
        """Check that sandboxes can be created."""
        await self._provider.ready()

    async def capabilities(self) -> SandboxCapabilities:
        """Detect capabilities by running real probes."""
        return await self._provider.capabilities()

    def sandboxes(self, *, scope: str | None = None) -> AsyncIterator[SandboxRecord]:
        """Yield every sandbox of the provider."""
        return self._provider.sandboxes(scope=scope)

    async def discard(self, image: SandboxImage) -> None:
        """Delete a snapshot."""
        await self._provider.discard(image)

    async def save(self, image: SandboxImage, to: Path) -> None:
        """Write a snapshot to a host directory."""
        await self._provider.save(image, to)

    async def load(self, saved: Path) -> SandboxImage:
        """Load a saved snapshot."""
        return await self._provider.load(saved)

    async def reap(self, policy: ReapPolicy) -> list[SandboxRecord]:
        """Remove left-over sandboxes."""
        return await self._provider.reap(policy)

    async def aclose(self) -> None:
        """Tear down every sandbox and snapshot of the provider."""
        await self._provider.aclose()
