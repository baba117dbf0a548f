"""What a `state` fork of ClawsBench costs per child, by phase, in milliseconds.

The parent's databases are filled up to the size that is given in MB. A child is what the
kernel makes: the box from the sealed files, the services on the forked state, the gate, the
invariants, and the comparison with the checkpoint's state.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from benchflow_contracts import (
    Environment,
    EnvironmentFactory,
    EnvState,
    ProvisionContext,
    Sandbox,
    SandboxImage,
    SandboxSpec,
)
from benchflow_env_manifest import manifest_environment
from benchflow_sandbox_local import LocalProvider
from report import emit

MANIFEST = Path(__file__).parents[1] / "clawsbench" / "environment.toml"
CHILDREN, PARALLEL, LIMIT = 24, 4, 60.0
FILL = """
CREATE TABLE ballast (id INTEGER PRIMARY KEY, noise TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO ballast (noise) SELECT hex(randomblob(1000)) FROM n;
PRAGMA wal_checkpoint(TRUNCATE);
"""
# Without the last line there would be all of it twice, in the database and in its log.

Phases = dict[str, list[float]]
T = TypeVar("T")


class Clock:
    """Adds what each phase took."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases

    async def time(self, phase: str, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work` and note its milliseconds under `phase`."""
        started = time.perf_counter()
        try:
            return await work()
        finally:
            took = (time.perf_counter() - started) * 1000
            self._phases.setdefault(phase, []).append(took)


async def child(
    provider: LocalProvider, make: EnvironmentFactory, parent: "Parent", phases: Phases
) -> Callable[[], Awaitable[None]]:
    """Make one child as the kernel does; return what takes it down."""
    clock = Clock(phases)
    environment = make()
    sandbox = await clock.time("create", lambda: provider.create(parent.spec, image=parent.image))
    context = ProvisionContext(sandbox, "bench", resumed=True)
    await clock.time("provision", lambda: environment.provision(context))
    probe = await clock.time("readiness", environment.readiness)
    if not probe.ready:
        raise RuntimeError(probe.error)
    await clock.time("check", lambda: environment.check(parent.state))

    async def end() -> None:
        await environment.teardown()
        await sandbox.teardown()

    return end


class Parent:
    """A ready world, sealed once."""

    def __init__(self, spec: SandboxSpec, image: SandboxImage, state: EnvState) -> None:
        self.spec, self.image, self.state = spec, image, state


async def seal(
    environment: Environment, sandbox: Sandbox, phases: Phases
) -> tuple[SandboxImage, EnvState]:
    """Take the checkpoint: quiesce, one freeze, state, files."""
    started = time.perf_counter()
    async with environment.quiesce(), sandbox.freeze():
        frozen = time.perf_counter()
        state = await environment.query()
        image = await sandbox.snapshot()
    now = time.perf_counter()
    phases.setdefault("checkpoint", []).append((now - started) * 1000)
    phases.setdefault("frozen", []).append((now - frozen) * 1000)
    return image, state


async def measure(megabytes: int) -> None:
    """Fork one world, serially and four at a time, and print every phase."""
    with tempfile.TemporaryDirectory() as store:
        async with LocalProvider(store=Path(store)) as provider:
            make = manifest_environment(MANIFEST)
            environment = make()
            spec = environment.prepare(SandboxSpec(), task_id="bench")
            sandbox = await provider.create(spec)
            await environment.provision(ProvisionContext(sandbox, "bench"))
            probe = await environment.readiness()
            if not probe.ready:
                raise RuntimeError(probe.error)
            fill = FILL.format(rows=megabytes * 500)
            done = await sandbox.exec(["sqlite3", "/data/gmail.db", fill], user="root")
            if not done.ok:
                raise RuntimeError(done.stderr)
            checkpoint: Phases = {}
            for _ in range(5):
                image, state = await seal(environment, sandbox, checkpoint)
            parent = Parent(spec, image, state)
            show("state_fork", megabytes, checkpoint)
            await serial(provider, make, parent, megabytes)
            await parallel(provider, make, parent, megabytes)
            await environment.teardown()
            await sandbox.teardown()


async def serial(
    provider: LocalProvider, make: EnvironmentFactory, parent: Parent, megabytes: int
) -> None:
    """One child after the other."""
    phases: Phases = {}
    whole: list[float] = []
    for _ in range(CHILDREN):
        started = time.perf_counter()
        end = await child(provider, make, parent, phases)
        whole.append((time.perf_counter() - started) * 1000)
        await end()
    show("state_fork.serial", megabytes, phases)
    emit("state_fork.child_serial", whole, limit=LIMIT, mb=megabytes)


async def parallel(
    provider: LocalProvider, make: EnvironmentFactory, parent: Parent, megabytes: int
) -> None:
    """Waves of four; the wall time of a wave per child."""
    phases: Phases = {}
    whole: list[float] = []
    for _ in range(CHILDREN // PARALLEL):
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            making = [
                group.create_task(child(provider, make, parent, phases)) for _ in range(PARALLEL)
            ]
        whole.append((time.perf_counter() - started) * 1000 / PARALLEL)
        for task in making:
            await task.result()()
    show("state_fork.parallel", megabytes, phases)
    emit("state_fork.child_parallel", whole, limit=LIMIT, mb=megabytes, at_a_time=PARALLEL)


def show(prefix: str, megabytes: int, phases: Phases) -> None:
    """Print each phase."""
    for phase, samples in phases.items():
        emit(f"{prefix}.{phase}", samples, mb=megabytes)


async def main() -> None:
    """Measure the size of an ordinary task's world, and ten megabytes."""
    for megabytes in (0, 5, 10):
        await measure(megabytes)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("state_fork: needs root")
    asyncio.run(main())
