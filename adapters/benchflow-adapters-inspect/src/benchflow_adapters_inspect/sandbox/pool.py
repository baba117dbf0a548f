"""The providers and sandboxes that an evaluation of Inspect uses."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from uuid import uuid4

from benchflow_contracts import (
    ReapPolicy,
    RolloutIdentity,
    Sandbox,
    SandboxProvider,
    SandboxProviderFactory,
    UsageError,
)
from benchflow_kernel import Registry

from .agent_setup import AgentSetup, prepare_agent
from .settings import BenchflowSandboxConfig

SCOPE = "inspect"
"""The scope of every sandbox, by which `inspect sandbox cleanup benchflow` finds them."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenSandbox:
    """A sandbox of a sample, with the facts of its provider."""

    sandbox: Sandbox
    provider: str
    users: bool
    """Whether commands can run as any user."""
    setup: AgentSetup | None = None
    """The agent that the sandbox is prepared for."""


class SandboxPool:
    """Creates the providers once in an event loop, and deletes what a task leaves behind."""

    def __init__(self) -> None:
        self._providers: dict[tuple[str, bool], SandboxProvider] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: set[OpenSandbox] = set()

    async def check(self, settings: BenchflowSandboxConfig) -> None:
        """Check that the provider of `settings` works.

        Raises:
            UsageError: The event loop is not asyncio's.
            UnknownProviderError: The provider is not installed.
            SandboxError: It cannot create sandboxes here.
        """
        await self._provider(settings).ready()

    async def create(
        self, settings: BenchflowSandboxConfig, task: str, *, output_bytes: int
    ) -> OpenSandbox:
        """Create a sandbox.

        Raises:
            SandboxError: It did not start.
        """
        provider = self._provider(settings)
        users = (await provider.capabilities()).users
        spec = settings.spec(output_bytes=output_bytes)
        rollout, setup = uuid4().hex[:12], None
        if settings.agent is not None:
            setup, spec = await prepare_agent(settings.agent, settings.agent_model, spec, rollout)
        try:
            identity = RolloutIdentity(scope=SCOPE, task=task or None, rollout=rollout)
            sandbox = await provider.create(spec, identity=identity)
        except BaseException:
            if setup is not None:
                await setup.aclose()
            raise
        opened = OpenSandbox(sandbox, settings.provider_name(), users, setup)
        self._open.add(opened)
        return opened

    async def delete(self, opened: OpenSandbox) -> None:
        """Delete a sandbox. Idempotent."""
        self._open.discard(opened)
        await opened.sandbox.teardown()
        if opened.setup is not None:
            await opened.setup.aclose()

    async def aclose(self) -> None:
        """Delete every sandbox, and close the providers."""
        for opened in list(self._open):
            await self.delete(opened)
        providers, self._providers = self._providers, {}
        for provider in providers.values():
            await provider.aclose()

    async def reap(self, rollout: str | None, say: Callable[[str], None] = print) -> None:
        """Delete the sandboxes of evaluations whose process has ended.

        `rollout` is the rollout of one sandbox, as `bench sandbox list` shows it.
        """
        labels = {} if rollout is None else RolloutIdentity(rollout=rollout).labels()
        for name in Registry().names("benchflow.sandboxes"):
            provider = self._provider(BenchflowSandboxConfig(provider=name))
            for record in await provider.reap(ReapPolicy(scope=SCOPE, labels=labels)):
                say(f"removed {record.id} ({name})")
        await self.aclose()

    def _provider(self, settings: BenchflowSandboxConfig) -> SandboxProvider:
        loop = _asyncio_loop()
        if loop is not self._loop:
            # A provider belongs to one loop, and `eval()` starts a new loop for each call.
            self._providers, self._open, self._loop = {}, set(), loop
        key = (settings.provider_name(), settings.allow_unisolated)
        if key not in self._providers:
            factory = Registry().resolve("benchflow.sandboxes", key[0])
            made = cast("SandboxProviderFactory", factory)(allow_unisolated=key[1])
            self._providers[key] = made
        return self._providers[key]


def _asyncio_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError as error:
        raise UsageError(
            "the sandboxes of BenchFlow need asyncio",
            hint="leave out INSPECT_ASYNC_BACKEND=trio",
        ) from error


POOL = SandboxPool()
"""Inspect calls class methods of a provider, so the state of a process is here."""
