"""What a live fork of a whole sandbox costs, by heap, with a plain copy of its image beside it.

The sandbox runs a stdio agent with a heap, an HTTP service and a SQLite database in WAL mode.
`frozen` is the longest gap that the agent's own clock saw: from the freeze until it ran again.
"""

import argparse
import asyncio
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchflow_contracts.process import Process
from benchflow_contracts.sandbox import SandboxImage, SandboxSpec
from benchflow_sandbox_local import LocalProvider
from memory import own_memory
from report import emit

HEAPS, FORKS, CHILDREN, PARALLEL, WAVES = (10, 100, 500), 8, 8, 4, 4
LAZY_HEAPS = (100, 500)
STAGES = ("child", "first_answer", "filled")
SPEC = SandboxSpec()
AGENT = """
import http.server, os, sqlite3, sys, threading, time
heap = bytearray(os.urandom(1 << 20)) * int(sys.argv[1])
database = sqlite3.connect("state.db"); database.execute("PRAGMA journal_mode=wal")
database.execute("CREATE TABLE t (x)"); database.commit()
server = http.server.HTTPServer(("127.0.0.1", 9001), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
gap = [0.0]
def watch():
    last = time.time()
    while True:
        time.sleep(0.0005)
        now = time.time(); gap[0] = max(gap[0], now - last); last = now
threading.Thread(target=watch, daemon=True).start()
print("up", flush=True)
for line in sys.stdin:
    database.execute("INSERT INTO t VALUES (1)"); database.commit()
    print(gap[0] * 1000, flush=True); gap[0] = 0.0
"""


async def ask(process: Process) -> float:
    """Let the agent take a turn; return the longest gap in milliseconds that it saw."""
    await process.stdin.write(b"turn\n")
    answer = b""
    while not answer.endswith(b"\n"):
        answer += await process.stdout.read()
    return float(answer)


def copy_of(size: int) -> float:
    """Return the milliseconds that a copy of as many bytes in memory takes."""
    source = os.urandom(1 << 20) * max(1, size >> 20)
    started = time.perf_counter()
    bytes(bytearray(source))
    return (time.perf_counter() - started) * 1000


async def child(provider: LocalProvider, image: SandboxImage, agent: str) -> tuple[float, float]:
    """Make a child, let it answer, remove it; return its time and its memory."""
    started = time.perf_counter()
    sandbox = await provider.create(SPEC, image=image)
    took = (time.perf_counter() - started) * 1000
    carried = await sandbox.attach(agent)
    await ask(carried)
    memory = own_memory(sandbox.running.pid)
    await carried.aclose()
    await sandbox.teardown()
    return took, memory


async def wave(provider: LocalProvider, image: SandboxImage) -> float:
    """Make some children at once; return the time of one, and remove them."""
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        making = [group.create_task(provider.create(SPEC, image=image)) for _ in range(PARALLEL)]
    took = (time.perf_counter() - started) * 1000 / PARALLEL
    for task in making:
        await task.result().teardown()
    return took


async def heap(provider: LocalProvider, megabytes: int) -> None:
    """Measure one size."""
    parent = await provider.create(SPEC)
    agent = await parent.spawn(["python3", "-I", "-c", AGENT, str(megabytes)])
    await agent.stdout.read()
    frozen: list[float] = []
    whole: list[float] = []
    for _ in range(FORKS + 1):
        await ask(agent)
        started = time.perf_counter()
        image = await parent.snapshot("live")
        whole.append((time.perf_counter() - started) * 1000)
        frozen.append(await ask(agent))
        if len(whole) <= FORKS:
            await provider.discard(image)
    name, size = f"live_fork/{megabytes}mb", image.bytes
    bound = [copy_of(size) for _ in range(5)]
    emit(f"{name}/copy_of_image", bound, image_mb=size >> 20)
    emit(f"{name}/frozen", frozen[1:], limit=50 if megabytes == 10 else None)
    emit(f"{name}/snapshot", whole[1:])
    serial = [await child(provider, image, agent.id) for _ in range(CHILDREN)]
    emit(f"{name}/child_serial", [took for took, _ in serial], limit=40)
    emit(f"{name}/child_pss", [memory for _, memory in serial], unit="MB")
    waves = [await wave(provider, image) for _ in range(WAVES)]
    emit(f"{name}/child_x{PARALLEL}", waves, limit=20 if megabytes == 10 else None)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        places = asyncio.Semaphore(PARALLEL)

        async def one() -> None:
            async with places:
                await child(provider, image, agent.id)

        for _ in range(CHILDREN):
            group.create_task(one())
    each = (time.perf_counter() - started) * 1000 / CHILDREN
    emit(f"{name}/child_with_turn_and_end_x{PARALLEL}", [each])
    await provider.discard(image)
    await agent.aclose()
    await parent.teardown()


async def prepared(
    provider: LocalProvider, megabytes: int, stack: AsyncExitStack
) -> tuple[LocalProvider, SandboxImage, str]:
    """Return an image of a sandbox with a heap, and the agent in it."""
    parent = await provider.create(SPEC)
    stack.push_async_callback(parent.teardown)
    agent = await parent.spawn(["python3", "-I", "-c", AGENT, str(megabytes)])
    stack.push_async_callback(agent.aclose)
    await agent.stdout.read()
    image = await parent.snapshot("live")
    stack.push_async_callback(provider.discard, image)
    return provider, image, agent.id


async def timed(provider: LocalProvider, image: SandboxImage, agent: str) -> list[float]:
    """Make a child; return when it was there, had answered, and had all of its memory."""
    started = time.perf_counter()
    took: list[float] = []
    sandbox = await provider.create(SPEC, image=image)
    took.append(time.perf_counter() - started)
    carried = await sandbox.attach(agent)
    await ask(carried)
    took.append(time.perf_counter() - started)
    await sandbox.wait_for_memory()
    took.append(time.perf_counter() - started)
    await carried.aclose()
    await sandbox.teardown()
    return [seconds * 1000 for seconds in took]


async def lazily(whole: LocalProvider, lazy: LocalProvider, megabytes: int) -> None:
    """Measure children that come before their memory and such that come with it, in turn."""
    found: dict[str, list[list[float]]] = {"whole": [], "lazy": []}
    async with AsyncExitStack() as stack:
        worlds = {
            "whole": await prepared(whole, megabytes, stack),
            "lazy": await prepared(lazy, megabytes, stack),
        }
        for _ in range(CHILDREN + 1):
            for kind, world in worlds.items():
                found[kind].append(await timed(*world))
    for kind, rows in found.items():
        name = f"live_fork/{megabytes}mb/{kind}"
        for what, values in zip(STAGES, zip(*rows[1:], strict=True), strict=True):
            emit(f"{name}/{what}", list(values))


async def main() -> None:
    """Measure every size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("criu", "runsc"), default="criu")
    engine = parser.parse_args().engine
    with tempfile.TemporaryDirectory() as store:
        where = Path(store)
        async with LocalProvider(store=where, engine=engine, lazy_megabytes=0) as provider:
            for megabytes in HEAPS:
                await heap(provider, megabytes)
            if engine == "criu":
                async with LocalProvider(store=where / "lazy") as lazy:
                    await lazy.capabilities()
                    for megabytes in LAZY_HEAPS:
                        await lazily(provider, lazy, megabytes)


asyncio.run(main())
