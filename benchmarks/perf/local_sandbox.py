"""What a local sandbox costs: starting, running a command, forking the files, in milliseconds."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from report import emit

LIVES, COMMANDS, CHILDREN, PARALLEL = 60, 400, 48, 4
SPEC = SandboxSpec()


async def timed(samples: list[float], work: Callable[[], Awaitable[object]]) -> object:
    """Await `work` and add what it took, in milliseconds."""
    started = time.perf_counter()
    result = await work()
    samples.append((time.perf_counter() - started) * 1000)
    return result


def peer(command: list[str], runs: int) -> list[float]:
    """Time a program of the machine that does a part of the same work."""
    samples: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples.append((time.perf_counter() - started) * 1000)
    return samples


def raw_spawn(runs: int) -> list[float]:
    """Time posix_spawn and wait of /bin/true: what the kernel alone takes."""
    samples: list[float] = []
    for _ in range(runs):
        started = time.perf_counter()
        pid = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(pid, 0)
        samples.append((time.perf_counter() - started) * 1000)
    return samples


async def lives(provider: LocalProvider) -> None:
    """Start and tear down, against the `unshare` program with the same namespaces."""
    whole: list[float] = []
    start: list[float] = []

    async def life() -> None:
        sandbox = await timed(start, lambda: provider.create(SPEC))
        await sandbox.teardown()

    await life()
    start.clear()
    for _ in range(LIVES):
        await timed(whole, life)
    flags = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--mount-proc"]
    other = emit("peer.unshare_true", peer(["unshare", *flags, "true"], 30))
    middle = emit("local.start", start, peer="peer.unshare_true", ratio=ratio(start, other))
    emit("local.start_teardown", whole, limit=80.0, peer="peer.unshare_true", start=middle)


async def commands(provider: LocalProvider) -> None:
    """Run /bin/true by `exec`, and start it by `spawn`, against a bare posix_spawn."""
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
    bare = emit("peer.posix_spawn_true", raw_spawn(COMMANDS))
    emit("local.exec", vector, limit=2.0, peer="peer.posix_spawn_true", ratio=ratio(vector, bare))
    emit("local.exec_shell", shell, peer="peer.posix_spawn_true", ratio=ratio(shell, bare))
    emit("local.spawn", spawned, peer="peer.posix_spawn_true", ratio=ratio(spawned, bare))
    await sandbox.teardown()


async def forks(provider: LocalProvider, files: int) -> None:
    """Fork the files: one child after the other, and four at a time."""
    parent = await provider.create(SPEC)
    script = f"mkdir d; cd d; for i in $(seq {files}); do head -c 10240 /dev/zero > f$i; done"
    await parent.exec(script)
    sealing: list[float] = []
    image = None
    for _ in range(10):
        image = await timed(sealing, parent.snapshot)
    assert isinstance(image, SandboxImage)
    size = image.bytes
    serial: list[float] = []
    for _ in range(CHILDREN):
        child = await timed(serial, lambda: provider.create(SPEC, image=image))
        await child.teardown()
    facts = {"files": files, "bytes": size}
    emit("local.fork_seal", sealing, **facts)
    emit("local.fork_child_serial", serial, limit=15.0, **facts)
    emit("local.fork_child_parallel", await waves(provider, image), limit=15.0, **facts)
    await parent.teardown()


async def waves(provider: LocalProvider, image: SandboxImage) -> list[float]:
    """Return the wall time per child of waves of four."""
    samples: list[float] = []
    for _ in range(CHILDREN // PARALLEL):
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            making = [
                group.create_task(provider.create(SPEC, image=image)) for _ in range(PARALLEL)
            ]
        samples.append((time.perf_counter() - started) * 1000 / PARALLEL)
        for task in making:
            await task.result().teardown()
    return samples


def ratio(samples: list[float], other: float) -> float:
    """Return the median of `samples` as a multiple of `other`."""
    return round(sorted(samples)[len(samples) // 2] / other, 2)


async def main() -> None:
    """Run every bench on a store of its own."""
    with tempfile.TemporaryDirectory() as store:
        started = time.perf_counter()
        async with LocalProvider(store=Path(store)) as provider:
            await (await provider.create(SPEC)).teardown()
            emit("local.first_start", [(time.perf_counter() - started) * 1000])
            await lives(provider)
            await commands(provider)
            await forks(provider, 5)
            await forks(provider, 500)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("local_sandbox: needs root")
    asyncio.run(main())
