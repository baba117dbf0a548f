"""What a call of NeMo Gym's sandbox API costs over a bare sandbox: in its process, and by a broker.

NeMo Gym runs in its own Python. The three ways take turns, and each overhead is the difference of
two calls of one turn. A line whose name has `cpu` is processor time: of NeMo Gym's process over
that of a bare call, and all that the broker's process used, its starts of commands too, a call.
"""

import asyncio
import os
import secrets
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from benchflow_adapters_nemo_gym import SandboxBroker
from benchflow_adapters_nemo_gym.broker_app import create_broker_app
from benchflow_engine.http_listener import open_listener, url_of
from benchflow_sandbox_local import LocalProvider

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

import nemo_gym_home
from report import emit

CALLS = 300
LIMIT_MS = 10
CPU_LIMIT_MS = 3


async def measure() -> dict[str, list[float]]:
    """Serve a broker, and let NeMo Gym's process time the three ways."""
    token = secrets.token_urlsafe(24)
    app = create_broker_app(SandboxBroker(LocalProvider()), [token])
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    with open_listener("127.0.0.1", 0, backlog=16) as listener, TemporaryDirectory() as home:
        url = url_of(listener)
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(server.serve([listener]))
            began = time.process_time()
            times: dict[str, list[float]] = await asyncio.to_thread(_times, url, token, Path(home))
            times["server_cpu"] = [(time.process_time() - began) * 1000 / CALLS]
            server.should_exit = True
            await serving
    return times


def _times(url: str, token: str, home: Path) -> Any:  # noqa: ANN401
    env = {**os.environ, "BENCHFLOW_BROKER_TOKEN": token}
    env["PYTHONPATH"] = str(nemo_gym_home.our_packages())
    return nemo_gym_home.run("provider_times.py", url, CALLS, cwd=home, env=env)


def main() -> None:
    """Print the time of a bare call, and the two overheads."""
    times = asyncio.run(measure())
    emit("nemo_bare_exec", times["bare"])
    emit("nemo_bare_exec_cpu", times["bare_cpu"])
    over = []
    for end, limit in (("", LIMIT_MS), ("_cpu", CPU_LIMIT_MS)):
        for way in ("provider", "broker"):
            bare, theirs = times[f"bare{end}"], times[f"{way}{end}"]
            more = [one - other for one, other in zip(theirs, bare, strict=True)]
            middle = emit(f"nemo_{way}_overhead{end}", more, limit=limit)
            if middle > limit:
                over.append(f"{way}{end}: {middle:.1f} ms a call is over {limit} ms")
    emit("nemo_broker_server_cpu", times["server_cpu"], calls=CALLS)
    if over:
        raise SystemExit("; ".join(over))


if __name__ == "__main__":
    main()
