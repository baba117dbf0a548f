"""One provisioned world: its services, its readiness and its state."""

import asyncio
import logging
from collections.abc import Mapping

from benchflow_contracts import (
    Endpoint,
    EnvHandle,
    EnvironmentError_,
    EnvState,
    ProvisionContext,
    ReadinessError,
    ReadinessProbe,
    SnapshotError,
    StateSnapshot,
)
from benchflow_contracts.pausing import running_time

from .confinement import close_state_files, hide, make_state_folders
from .installed import missing_services
from .invariants import check_invariants
from .manifest import Manifest, Service
from .readiness import probes_for, wait_until_ready
from .record import WorldRecord, read_record, write_record
from .sandbox_shell import SandboxShell
from .services import Services
from .state import ROOT, StateStore, make_store, services_in

_PAUSE_SEC = 0.05

_log = logging.getLogger(__name__)


class World:
    """The world between `provision` and `teardown`."""

    def __init__(
        self, manifest: Manifest, ctx: ProvisionContext, service_env: Mapping[str, str]
    ) -> None:
        self._manifest = manifest
        self._resumed = ctx.resumed
        self._live_services = ctx.live_services
        self._sealed_state = ctx.state
        self._services = Services(ctx.sandbox, service_env)
        self._installed: tuple[Service, ...] = ()
        self._baseline: StateSnapshot | None = None
        self._sealed = False
        self._files_checked = False
        """Whether `start` checked the state files of a fork, and `check` can skip this."""
        self.shell = SandboxShell(ctx.sandbox)
        tables = manifest.environment.state
        self.store: StateStore | None = make_store(self.shell, tables) if tables else None

    async def start(self) -> EnvHandle:
        """Start the services that this image has, or attach to those of a live image.

        Raises:
            EnvironmentError_: No service is installed, or a state path is not safe.
            SandboxError: A service could not be started; the others are stopped.
        """
        environment = self._manifest.environment
        record = await self._find_record()
        if self._live_services is None and self._resumed:
            # Paths that the parent checked stay safe, so the check runs while the services
            # start.
            await self._start_services(record)
            await self._check_store_or_stop()
        elif self._live_services is None:
            await self._ready_store()
            await self._start_services(record)
        else:
            await self._ready_store()
            self._installed = self._attached_services(services_in(self._live_services))
            await self._services.attach(self._installed, self._live_services)
            # Before the gate: a probe may be a request that writes.
            if self.store is not None:
                await self.store.servers.release(self._live_services, self._sealed_state)
        return EnvHandle(
            name=environment.name,
            services=tuple(service.name for service in self._installed),
            endpoints={
                service.name: Endpoint(url=f"http://127.0.0.1:{service.port}")
                for service in self._installed
            },
        )

    async def _start_services(self, record: WorldRecord | None) -> None:
        self._installed = await self._find_installed(record)
        await self._services.start(self._installed)

    async def _check_store_or_stop(self) -> None:
        try:
            await self._ready_store()
        except BaseException:
            await self._services.stop()
            raise
        self._files_checked = True

    async def _ready_store(self) -> None:
        if self.store is None:
            return
        await self.store.examine()
        if not self._resumed:
            databases = () if self._manifest.environment.owns_lifecycle else self.store.files
            await make_state_folders(self.shell, [*databases, f"{ROOT}/any"])

    def _attached_services(self, live: Mapping[str, str]) -> tuple[Service, ...]:
        services = self._manifest.environment.services
        if unknown := live.keys() - {service.name for service in services}:
            raise EnvironmentError_(f"live services {sorted(unknown)} are not in the manifest")
        return tuple(service for service in services if service.name in live)

    async def _find_record(self) -> WorldRecord | None:
        """Read the record of the parent world, which is trusted."""
        record = await read_record(self.shell) if self._resumed else None
        if record is not None:
            self.shell.use_results(record.tools, record.who)
        return record

    async def _find_installed(self, record: WorldRecord | None) -> tuple[Service, ...]:
        services = self._manifest.environment.services
        if record is not None:
            return tuple(each for each in services if each.name not in record.missing)
        missing = await missing_services(self.shell, services)
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
        """Wait for every probe; then close the world's files and capture the baseline."""
        probe = await self._wait()
        if probe.ready:
            await self._seal()
        return probe

    async def _wait(self) -> ReadinessProbe:
        """Wait for the probes, then until every server of the state responds."""
        probe = await self._wait_for_probes()
        timeout = self._manifest.environment.readiness.timeout_sec
        end = running_time() + timeout - probe.waited_sec
        while probe.ready and (reason := await self._server_problem()):
            if self._exit_reports() or running_time() > end:
                error = self._exit_reports() or f"not ready after {timeout:g} s: {reason}"
                return probe.model_copy(update={"ready": False, "error": error})
            await asyncio.sleep(_PAUSE_SEC)
        return probe

    async def _server_problem(self) -> str:
        return await self.store.servers.find_problem() if self.store is not None else ""

    async def _wait_for_probes(self) -> ReadinessProbe:
        environment = self._manifest.environment
        skipped = [each for each in environment.services if each not in self._installed]
        return await wait_until_ready(
            self.shell,
            probes_for(environment, self._installed, skipped),
            timeout_sec=environment.readiness.timeout_sec,
            exit_report=self._exit_reports,
            activity=self._services.activity,
        )

    def _exit_reports(self) -> str:
        return "\n".join(each.exit_report() for each in self._services.ended())

    async def _seal(self) -> None:
        """Close the world's files to the agent. A fork uses the closed files of its parent."""
        if self._resumed:
            if self.store is not None and not self._sealed and self._live_services is None:
                self.store.adopt()
            self._sealed = True
            return
        if self.store is not None:
            await close_state_files(self.shell, sorted(await self.store.examine()))
        if self._sealed:
            return
        await hide(self.shell, self._manifest.verifier.hidden_from_agent)
        if self.store is not None:
            # Services may seed their databases while they start: the task's baseline
            # is the world at the start of the agent.
            self._baseline = await self.store.snapshot()
        services = self._manifest.environment.services
        missing = [each.name for each in services if each not in self._installed]
        await write_record(self.shell, missing, self._baseline)
        self._sealed = True

    async def check(self, expected: EnvState | None) -> None:
        """Check services, state and the manifest's invariants.

        Raises:
            EnvironmentError_: A check failed.
            SnapshotError: The state is not `expected`.
        """
        if ended := self._exit_reports():
            raise EnvironmentError_(ended)
        if self.store is not None:
            checked, self._files_checked = self._files_checked, False
            await self.store.check(expected, files_checked=checked)
        if self._manifest.environment.invariants:
            await check_invariants(self.shell, self.store, self._manifest.environment.invariants)

    async def reseed(self, seed: int) -> None:
        """Run the manifest's hooks, in order.

        Raises:
            EnvironmentError_: A hook failed.
        """
        for command in self._manifest.environment.fork.reseed:
            words = ["env", f"BENCHFLOW_SEED={seed}", "sh", "-c", command]
            await self.shell.must(words, what="a reseed hook", timeout=300)

    def live_services(self) -> Mapping[str, str]:
        """Return the process id of each running service, and of each session that locks a server.

        Raises:
            SnapshotError: A service has ended.
        """
        if ended := self._exit_reports():
            raise SnapshotError(f"a service that has ended cannot be captured: {ended}")
        sessions: Mapping[str, str] = (
            self.store.servers.live_services() if self.store is not None else {}
        )
        services = {each.service.name: each.process.id for each in self._services.running}
        return {**sessions, **services}

    async def reset(self) -> None:
        """Restore the baseline with new services.

        Raises:
            ReadinessError: The services did not become ready.
        """
        if not self._sealed:
            raise EnvironmentError_(
                "the world cannot be reset before it is ready: there is no baseline"
            )
        if self._baseline is None and self._resumed:
            record = await read_record(self.shell)
            self._baseline = record.baseline if record is not None else None
        await self._services.stop()
        await self._restore_baseline(online=False)
        await self._services.start(self._installed)
        probe = await self._wait()
        if not probe.ready:
            raise ReadinessError(f"the world is not ready after a reset: {probe.error}")
        await self._restore_baseline(online=True)
        await self._seal()

    async def _restore_baseline(self, *, online: bool) -> None:
        if self.store is not None and self._baseline is not None:
            await self.store.restore(self._baseline, online=online)

    async def stop(self) -> None:
        """Stop the services that this object started or attached to. Idempotent."""
        await self._services.stop()
