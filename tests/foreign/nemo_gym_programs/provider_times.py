"""Time calls of NeMo Gym's sandbox API over our provider beside a bare sandbox; print ms.

Arguments: the URL of a broker, and the number of calls. The ways take turns. The names that end
with `_cpu` are the processor time of this process.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchflow_contracts import SandboxSpec as BareSpec
from benchflow_sandbox_local import LocalProvider
from nemo_gym.sandbox import AsyncSandbox, SandboxSpec

BROKER, COUNT = sys.argv[1], int(sys.argv[2])
COMMAND = "echo hello"


async def timed(call: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Return the milliseconds of one call: on the clock, and of this process's CPU time."""
    began, spent = time.perf_counter(), time.process_time()
    await call()
    return (time.perf_counter() - began) * 1000, (time.process_time() - spent) * 1000


async def main() -> dict[str, list[float]]:
    """Return the times by way."""
    provider = LocalProvider()
    bare = await provider.create(BareSpec(user="root"))
    options = {"user": "root"}
    here = AsyncSandbox({"benchflow": {"sandbox": "local", "defaults": options}}, SandboxSpec())
    there = AsyncSandbox({"benchflow": {"broker": BROKER, "defaults": options}}, SandboxSpec())
    await here.start()
    await there.start()
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "bare": lambda: bare.exec(COMMAND),
        "provider": lambda: here.exec(COMMAND),
        "broker": lambda: there.exec(COMMAND),
    }
    times: dict[str, list[float]] = {name + end: [] for name in ways for end in ("", "_cpu")}
    for _ in range(COUNT):
        for name, call in ways.items():
            wall, cpu = await timed(call)
            times[name].append(wall)
            times[f"{name}_cpu"].append(cpu)
    await here.stop()
    await there.stop()
    await provider.aclose()
    return times


print(json.dumps(asyncio.run(main())))
