"""One provisioned world: its services, its readiness and its state."""

import logging
from collections.abc import Mapping, Sequence

from benchflow_contracts import (
    Endpoint,
    EnvHandle,
    EnvironmentError_,
    ProvisionContext,
    ReadinessError,
    ReadinessProbe,
    StateSnapshot,
)

from .box import Box
from .confinement import close_state_files, hide, make_state_folders
from .installed import missing_services
from .manifest import Manifest, Service
from .readiness import probes_for, wait_until_ready
from .services import Services
from .state import SqliteState

_log = logging.getLogger(__name__)


class World:
    """What exists between `provision` and `teardown`."""

    def __init__(
        self, manifest: Manifest, ctx: ProvisionContext, service_env: Mapping[str, str]
    ) -> None:
        self._manifest = manifest
        self._resumed = ctx.resumed
        self._services = Services(ctx.sandbox, service_env)
        self._installed: tuple[Service, ...] = ()
        self._baseline: StateSnapshot | None = None
        self._sealed = False
        self.box = Box(ctx.sandbox)
        declared = manifest.environment.state
        self.state = SqliteState(self.box, declared.paths) if declared else None

    async def start(self) -> EnvHandle:
        """Start the services that this image has.

        Raises:
            EnvironmentError_: None is installed, or a state path is not safe.
            SandboxError: One could not be started; the others are stopped again.
        """
        environment = self._manifest.environment
        if self.state is not None:
            await self.state.examine()
            if not environment.owns_lifecycle:
                await make_state_folders(self.box, self.state.paths)
        self._installed = await self._find_installed(environment.services)
        await self._services.start(self._installed)
        return EnvHandle(
            name=environment.name,
            services=tuple(service.name for service in self._installed),
            endpoints={
                service.name: Endpoint(host="127.0.0.1", port=service.port)
                for service in self._installed
            },
        )

    async def _find_installed(self, services: Sequence[Service]) -> tuple[Service, ...]:
        missing = await missing_services(self.box, services)
        for name, reason in missing.items():
            _log.info("service %r is skipped: %s", name, reason)
        if missing and len(missing) == len(services):
            reasons = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
            raise EnvironmentError_(
                f"no service of {self._manifest.environment.name!r} is installed: {reasons}",
                hint="install one of them in the image, or correct its `command`",
            )
        return tuple(service for service in services if service.name not in missing)

    async def gate(self) -> ReadinessProbe:
        """Wait for every probe; then close the world's files and take the baseline."""
        environment = self._manifest.environment
        skipped = [each for each in environment.services if each not in self._installed]
        probe = await wait_until_ready(
            self.box,
            probes_for(environment, self._installed, skipped),
            timeout_sec=environment.readiness.timeout_sec,
            obituary=self._obituary,
        )
        if probe.ready:
            await self._seal()
        return probe

    def _obituary(self) -> str:
        return "\n".join(each.obituary() for each in self._services.dead())

    async def _seal(self) -> None:
        if self.state is not None:
            existing = await self.state.existing()
            await close_state_files(self.box, sorted(existing))
        if self._sealed:
            return
        if not self._resumed:
            await hide(self.box, self._manifest.verifier.hidden_from_agent)
        if self.state is not None:
            # Services may seed their databases while they start: the task's baseline
            # is the world that the agent is about to meet.
            self._baseline = await self.state.snapshot()
        self._sealed = True

    async def reset(self) -> None:
        """Go back to the baseline with fresh services.

        Raises:
            ReadinessError: They did not come up again.
        """
        if not self._sealed:
            raise EnvironmentError_("reset before the world was ready: there is no baseline")
        await self._services.stop()
        if self.state is not None and self._baseline is not None:
            await self.state.restore(self._baseline)
        await self._services.start(self._installed)
        probe = await self.gate()
        if not probe.ready:
            raise ReadinessError(f"the world did not come up after a reset: {probe.error}")

    async def stop(self) -> None:
        """Stop what this object started. Idempotent."""
        await self._services.stop()
