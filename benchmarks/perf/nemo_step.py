"""What one step costs through the NeMo Gym adapter, both ways, in processor time.

In: a tool call of a resources server as the world of a rollout. The server answers from memory, so
that the time is ours and that of the HTTP client.
Out: a call of an unknown tool at our resources server, without a network, less an empty request.
"""

import argparse
import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from benchflow_adapters_nemo_gym.resources_server import create_resources_app
from benchflow_adapters_nemo_gym.rows import make_row
from benchflow_adapters_nemo_gym.world_client import NemoGymClient
from benchflow_engine.config import RunConfig, SandboxConfig
from benchflow_engine.scaffold import write_task
from benchflow_engine.task_formats import runnable_task
from benchflow_env_outside import WorldLimits, WorldSession
from benchflow_tool_sessions import SessionManager
from report import emit

BOUND_MS = 3.0
EPISODE = 8
TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}}
ROW = {"responses_create_params": {"input": [], "tools": [TOOL]}}


def answer(request: httpx.Request) -> httpx.Response:
    """Answer as a resources server does that costs nothing."""
    if request.url.path == "/openapi.json":
        return httpx.Response(200, json={"paths": {"/verify": {}, "/add": {}}})
    return httpx.Response(200, json={"value": 1})


async def inbound(steps: int) -> list[float]:
    """Return the CPU milliseconds of each call of a world's tool."""
    spent: list[float] = []
    while len(spent) < steps:
        client = NemoGymClient("http://world", transport=httpx.MockTransport(answer))
        session = WorldSession("nemo-gym", client, ROW, 1, "replay", WorldLimits())
        await session.open()
        for number in range(EPISODE):
            began = time.process_time()
            reply = await session.call("add", {"count": number})
            spent.append((time.process_time() - began) * 1000)
            assert not reply.failed
        await session.aclose()
    return spent


async def outbound(home: Path, steps: int) -> tuple[list[float], list[float]]:
    """Return the CPU milliseconds of each tool call, and of each empty request."""
    write_task(home / "task")
    task = runnable_task(home / "task")
    config = RunConfig(sandbox=SandboxConfig(provider="local"))
    calls: list[float] = []
    empty: list[float] = []
    async with SessionManager.running(config, jobs_dir=home / "jobs") as manager:
        app = create_resources_app(manager, [task], secret=b"a secret of benchmarks")
        transport = httpx.ASGITransport(app)
        async with (
            app.lifespan(),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            await http.post("/seed_session", json=make_row(task, ()))
            for _ in range(steps):
                began = time.process_time()
                reply = await http.post("/nothing", json={"count": 1})
                calls.append((time.process_time() - began) * 1000)
                assert reply.status_code == 422
                began = time.process_time()
                await http.get("/")
                empty.append((time.process_time() - began) * 1000)
    return calls, empty


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    steps = parser.parse_args().steps
    medians = [emit("nemo_step.in_cpu_ms", asyncio.run(inbound(steps)), limit=BOUND_MS)]
    with TemporaryDirectory() as home:
        calls, empty = asyncio.run(outbound(Path(home), steps))
    emit("nemo_step.empty_cpu_ms", empty)
    over = [call - bare for call, bare in zip(calls, empty, strict=True)]
    medians.append(emit("nemo_step.out_cpu_ms", over, limit=BOUND_MS))
    if max(medians) > BOUND_MS:
        raise SystemExit(f"{max(medians):.2f} CPU ms a step is over {BOUND_MS} ms")


if __name__ == "__main__":
    main()
