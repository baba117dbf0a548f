"""What a sandbox in a container costs: starting, commands, forks of the files, a rollout.

Times are wall milliseconds as a caller of the public API sees them, engine included. The CPU of a
rollout is that of the runner's process alone: the engine's is not ours.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from benchflow_contracts.sandbox import SandboxSpec
from benchflow_engine.flags import run_config
from benchflow_engine.rollout import run_in
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_sandbox_docker import DockerProvider
from report import emit

LIVES, COMMANDS, FORKS, CHILDREN, ROLLOUTS = 20, 400, 12, 4, 12
SPEC = SandboxSpec()
T = TypeVar("T")


async def timed(samples: list[float], work: Callable[[], Awaitable[T]]) -> T:
    """Await `work` and add what it took, in milliseconds."""
    started = time.perf_counter()
    result = await work()
    samples.append((time.perf_counter() - started) * 1000)
    return result


async def lives(provider: DockerProvider) -> None:
    """Start and tear down."""
    start: list[float] = []
    end: list[float] = []
    for _ in range(LIVES):
        sandbox = await timed(start, lambda: provider.create(SPEC))
        await timed(end, sandbox.teardown)
    emit("docker.start", start)
    emit("docker.teardown", end)


async def commands(provider: DockerProvider) -> None:
    """Run /bin/true by `exec`, and start it by `spawn`."""
    sandbox = await provider.create(SPEC)
    vector: list[float] = []
    shell: list[float] = []
    spawned: list[float] = []
    for _ in range(COMMANDS):
        await timed(vector, lambda: sandbox.exec(["/bin/true"]))
        await timed(shell, lambda: sandbox.exec("true"))
    for _ in range(COMMANDS // 4):
        process = await timed(spawned, lambda: sandbox.spawn(["/bin/true"]))
        await process.wait()
        await process.aclose()
    await sandbox.teardown()
    emit("docker.exec", vector, limit=3.0)
    emit("docker.exec_shell", shell)
    emit("docker.spawn", spawned)


async def forks(provider: DockerProvider) -> None:
    """Fork a small container: pause, commit and run, one child at a time, and four of one image."""
    parent = await provider.create(SPEC)
    await parent.exec("seq 1000 > file")
    sealing: list[float] = []
    one: list[float] = []
    four: list[float] = []
    for _ in range(FORKS):
        started = time.perf_counter()
        image = await timed(sealing, parent.snapshot)
        child = await provider.create(SPEC, image=image)
        one.append((time.perf_counter() - started) * 1000)
        await child.teardown()
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(provider.create(SPEC, image=image)) for _ in range(CHILDREN)]
        four.append((time.perf_counter() - started) * 1000 / CHILDREN)
        for task in made:
            await task.result().teardown()
        await provider.discard(image)
    await parent.teardown()
    emit("docker.fork_seal", sealing)
    emit("docker.fork_one_child", one, limit=400.0, bytes=image.bytes)
    emit("docker.fork_child_of_four", four, limit=400.0)


async def rollouts(provider: DockerProvider, folder: Path) -> None:
    """Run the oracle on a tiny task, graded in a box of its own."""
    write_task(folder / "tiny")
    task = runnable_task(folder / "tiny")
    options = run_config(agent="oracle", sandbox="docker")
    wall: list[float] = []
    cpu: list[float] = []
    for number in range(ROLLOUTS + 1):
        before = time.process_time()
        where = folder / str(number)
        result = await timed(wall, lambda to=where: run_in(provider, task, options, directory=to))
        cpu.append((time.process_time() - before) * 1000)
        if result.reward != 1.0:
            raise SystemExit(f"a rollout failed: {result.record.error}")
    # The first one imports what the others have.
    emit("docker.rollout", wall[1:], limit=2000.0)
    emit("docker.rollout_cpu", cpu[1:], unit="CPU ms", limit=150.0, first=round(cpu[0], 1))


async def main() -> None:
    """Run every bench on a store of its own."""
    with tempfile.TemporaryDirectory() as folder:
        async with DockerProvider(store=Path(folder) / "store") as provider:
            await (await provider.create(SPEC)).teardown()
            await lives(provider)
            await commands(provider)
            await forks(provider)
            await rollouts(provider, Path(folder))


if __name__ == "__main__":
    if "BENCHFLOW_DOCKER_IMAGE" not in os.environ:
        sys.exit("docker_sandbox: export BENCHFLOW_DOCKER_IMAGE=$(.ci/docker)")
    asyncio.run(main())
