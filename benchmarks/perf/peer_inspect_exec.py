"""The measurements of inspect_exec.py; runs with inspect-ai and prints milliseconds as JSON."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow_adapters_inspect.sandbox.settings import BenchflowSandboxConfig
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

COMMAND = ["sh", "-c", "echo one"]
WARM = 10


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Return how long `work` takes, in milliseconds."""
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def made(kind: str, config: object) -> tuple[Any, Any]:
    """Return a provider of Inspect and one environment of it."""
    provider = registry_find_sandboxenv(kind)
    await provider.task_init("bench", config)
    environments = await provider.sample_init("bench", config, {})
    return provider, environments


async def main(provider_name: str, calls: int, image: str | None) -> dict[str, list[float]]:
    """Measure by turns, so that all see the same load of the machine."""
    config = BenchflowSandboxConfig(provider=provider_name, image=image)
    open_ones = {"our": ("benchflow", config), "inspect's local": ("local", None)}
    if image is not None:
        compose = Path(tempfile.mkdtemp()) / "compose.yaml"
        compose.write_text(
            f"services:\n  default:\n    image: {image}\n    command: sleep infinity\n"
            "    x-local: true\n    network_mode: none\n"
        )
        open_ones["inspect's docker"] = ("docker", str(compose))
    environments = {name: await made(*each) for name, each in open_ones.items()}
    sandbox = environments["our"][1]["default"].sandbox
    works: dict[str, Callable[[], Awaitable[Any]]] = {"bare exec": lambda: sandbox.exec(COMMAND)}
    for name, (_, envs) in environments.items():
        environment = next(iter(envs.values()))
        works[f"{name} exec"] = lambda e=environment: e.exec(COMMAND)
        works[f"{name} write_file"] = lambda e=environment: e.write_file("a.txt", "x" * 1000)
        works[f"{name} read_file"] = lambda e=environment: e.read_file("a.txt")
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(WARM + calls):
        for name, work in works.items():
            took = await timed(work)
            if turn >= WARM:
                times[name].append(took)
    for name, (provider, envs) in environments.items():
        await provider.sample_cleanup("bench", open_ones[name][1], envs, False)
        await provider.task_cleanup("bench", open_ones[name][1], True)
    return times


_, name, number, *images = sys.argv
print(json.dumps(asyncio.run(main(name, int(number), images[0] if images else None))))
