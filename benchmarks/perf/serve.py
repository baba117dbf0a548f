"""What the rollout service costs: to submit, to run null rollouts, and to cancel.

Sandboxes, agents and rewards are fakes in memory, so that the service and the engine are measured.
Requests go over HTTP on the loopback, from a client in the same process: its time counts, too.

- submit: the time of `POST /v1/rollouts` while 1,000 rollouts wait.
- null_rollouts: CPU time of the process for each rollout of 256 that run at once. The garbage
  collector has the threshold that `bench` sets.
- cancel: the time of `DELETE` for a rollout whose agent never ends.
- result: the time of `GET .../result` of a null rollout.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from benchflow_serve import RolloutService, create_app
from report import emit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/support"))

from served_rollouts import TASK, settings_at, wait_for_sandbox

MEMORY = Path("/dev/shm")


class Server(uvicorn.Server):
    """A server beside its client."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.has_started = asyncio.Event()

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        self.has_started.set()


@asynccontextmanager
async def serving(
    home: Path, agent: str, **settings: int
) -> AsyncIterator[tuple[RolloutService, httpx.AsyncClient]]:
    """Yield a service, and a client that reaches it over HTTP."""
    service = RolloutService(settings_at(home, agent, **settings))
    app: Any = create_app(service)
    server = Server(uvicorn.Config(app, port=0, log_level="warning", access_log=False))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        await server.has_started.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield service, client
        service.stop_streams()
        server.should_exit = True


def milliseconds(seconds: Sequence[float]) -> list[float]:
    return [each * 1e3 for each in seconds]


async def timed(request: Awaitable[httpx.Response]) -> tuple[float, Any]:
    start = time.perf_counter()
    response = await request
    seconds = time.perf_counter() - start
    response.raise_for_status()
    return seconds, response.json()


async def submit(home: Path, queued: int) -> None:
    async with serving(home, "hanging_agent", slots=1, queue=queued + 200) as (_, client):
        body = {"task": TASK}
        for _ in range(queued + 1):
            await timed(client.post("/v1/rollouts", json=body))
        times = [(await timed(client.post("/v1/rollouts", json=body)))[0] for _ in range(200)]
    emit("serve_submit", milliseconds(times), queued=queued, limit=5)


async def null_rollouts(home: Path, count: int) -> None:
    async with serving(home, "quick_agent", slots=count, queue=count) as (service, client):
        group = {"id": "warm", "size": 4, "rollout": {"task": TASK}}
        await timed(client.post("/v1/groups", json=group))
        await service.wait_group("warm", 60)
        group |= {"id": "null", "size": count}
        cpu, wall = time.process_time(), time.perf_counter()
        await timed(client.post("/v1/groups", json=group))
        ended = await service.wait_group("null", 600)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        assert ended.is_ended
        assert not ended.lost
        ids = [member.id for member in ended.members[:50]]
        results = [(await timed(client.get(f"/v1/rollouts/{each}/result")))[0] for each in ids]
    facts = {"rollouts": count, "wall_ms_each": round(wall * 1e3 / count, 2)}
    emit("serve_null_rollout_cpu", [cpu * 1e3 / count], limit=5, **facts)
    emit("serve_result", milliseconds(results))


async def cancel(home: Path, count: int) -> None:
    times: list[float] = []
    async with serving(home, "hanging_agent") as (service, client):
        for _ in range(count):
            _, status = await timed(client.post("/v1/rollouts", json={"task": TASK}))
            await wait_for_sandbox(service)
            times.append((await timed(client.delete(f"/v1/rollouts/{status['id']}")))[0])
            assert not (await service.capacity()).sandboxes
    emit("serve_cancel", milliseconds(times), limit=500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1000)
    parser.add_argument("--rollouts", type=int, default=256)
    given = parser.parse_args()
    gc.set_threshold(200_000)  # As `bench` does.
    where = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as directory:
        home = Path(directory)
        asyncio.run(submit(home / "submit", given.queued))
        asyncio.run(null_rollouts(home / "null", given.rollouts))
        asyncio.run(cancel(home / "cancel", 20))


if __name__ == "__main__":
    main()
