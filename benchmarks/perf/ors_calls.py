"""What does an ORS call cost over a bare exec of the sandbox, and a world of no cost in a step?

`call`: `true` by the tool `bash` through our client and our server on loopback, less the same
`exec` in the sandbox of the same provider, call by call in turn. `step`: CPU of our client for one
call of a tool that does nothing, on a server in another process.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "tests" / "support"
sys.path.insert(0, str(SUPPORT))

from benchflow_adapters_ors import OrsClient, OrsSession  # noqa: E402
from benchflow_contracts import SandboxSpec  # noqa: E402
from benchflow_engine.scaffold import write_task  # noqa: E402
from benchflow_sandbox_local import LocalProvider  # noqa: E402
from ors_server import served  # noqa: E402
from report import emit  # noqa: E402

CALLS = 200


async def measure_calls(url: str) -> None:
    """Print the overhead of a call in ms."""
    provider = LocalProvider()
    sandbox = await provider.create(SandboxSpec())
    overheads: list[float] = []
    bare: list[float] = []
    try:
        async with OrsClient(url) as client, await opened(client) as session:
            for _ in range(CALLS):
                began = time.perf_counter()
                await sandbox.exec(["bash", "-c", "true"])
                middle = time.perf_counter()
                await session.call("bash", {"command": "true"})
                bare.append((middle - began) * 1000)
                overheads.append((time.perf_counter() - middle) * 1000 - bare[-1])
    finally:
        await sandbox.teardown()
    emit("ors_call_bare_exec", bare)
    emit("ors_call_overhead", overheads, limit=10)


async def measure_steps(url: str) -> None:
    """Print the CPU of our client for one call that does nothing, in ms."""
    costs: list[float] = []
    async with OrsClient(url) as client, await opened(client) as session:
        for _ in range(CALLS):
            began = time.process_time()
            await session.call("nothing", {})
            costs.append((time.process_time() - began) * 1000)
    emit("ors_client_cpu_per_call", costs, limit=3)


async def opened(client: OrsClient) -> OrsSession:
    """Return a session on the first task, which the caller opens."""
    page = await client.tasks("tasks", "train", 0, 1)
    (spec,) = page.tasks
    assert isinstance(spec, dict)
    return OrsSession(client, "tasks", spec)


def main() -> None:
    """Serve a task in the local sandbox, then one in memory."""
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        write_task(home / "tasks" / "one")
        with served(home, home / "tasks", sandbox="local") as url:
            asyncio.run(measure_calls(url))
        with served(home, home / "tasks", sandbox="memory") as url:
            asyncio.run(measure_steps(url))


if __name__ == "__main__":
    main()
