"""What one step costs through the OpenEnv adapter, both ways, in our processor time.

In: a step of an environment of no cost, on OpenEnv's server in another process, as the world of a
rollout. Out: a call of an unknown tool of our server, by OpenEnv's client in another process; the
time of our process includes OpenEnv's server code, so a server without BenchFlow is beside it.
Run it by a Python that has OpenEnv and BenchFlow: `python openenv_step.py [--steps 1000]`.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from benchflow_adapters_openenv.server import OpenEnvServer
from benchflow_adapters_openenv.world import OpenEnvClient
from benchflow_engine.scaffold import write_task
from benchflow_env_outside import WorldLimits, WorldSession
from benchflow_tool_sessions import SessionLimits
from fastapi import FastAPI
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from report import emit

BOUND_MS = 3.0
BATCH = 50
EPISODE = 8


class Nothing(Environment):
    """Does nothing."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        """Begin."""
        del seed, episode_id
        return Observation(done=False, reward=0.0)

    def step(self, action: Action) -> Observation:
        """Return an empty observation."""
        del action
        return Observation(done=False, reward=0.0)

    @property
    def state(self) -> State:
        """No state."""
        return State(episode_id="e", step_count=0)


def listen(app: FastAPI) -> str:
    """Serve an application on a thread; return its URL."""
    bound = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
    threading.Thread(target=server.run, args=([bound],), daemon=True).start()
    return f"http://127.0.0.1:{bound.getsockname()[1]}"


def app_of_nothing() -> FastAPI:
    """Return OpenEnv's server of an environment of no cost."""
    return create_app(Nothing, Action, Observation, env_name="nothing", max_concurrent_envs=8)


@contextmanager
def other_process(*args: object) -> Generator[subprocess.Popen[str]]:
    """Run this file in another role."""
    command = [sys.executable, __file__, *map(str, args)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def line_of(child: subprocess.Popen[str], prefix: str) -> str:
    """Return the next line with this prefix: OpenEnv prints to the output, too."""
    assert child.stdout is not None
    return next(line for line in child.stdout if line.startswith(prefix)).strip()


async def inbound(url: str, steps: int) -> list[float]:
    """Return our CPU milliseconds of each step of a world."""
    spent: list[float] = []
    while len(spent) < steps:
        client = OpenEnvClient(url)
        session = WorldSession("openenv", client, {}, 1, "replay", WorldLimits())
        await session.open()
        for _ in range(EPISODE):
            began = time.process_time()
            answer = await session.call("step", {})
            spent.append((time.process_time() - began) * 1000)
            assert not answer.failed
        await session.aclose()
    return spent


def outbound(url: str, steps: int, action: str) -> list[float]:
    """Return this process's CPU milliseconds of a step, which another process plays."""
    spent: list[float] = []
    with other_process("--play", url, "--action", action) as player:
        assert player.stdin is not None
        line_of(player, "ready")
        for _ in range(steps // BATCH):
            began = time.process_time()
            player.stdin.write("go\n")
            player.stdin.flush()
            line_of(player, "done")
            spent.append((time.process_time() - began) * 1000 / BATCH)
    return spent


def play(url: str, action: str) -> None:
    """Play a batch of steps for each line of the input."""
    call = {"type": "call_tool", "tool_name": "nothing", "arguments": {}}
    with GenericEnvClient(base_url=url).sync() as env:
        env.reset(seed=1)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            for _ in range(BATCH):
                env.step(call if action == "call" else {})
            sys.stdout.write("done\n")
            sys.stdout.flush()


def serve_nothing() -> None:
    """Serve the environment of no cost until the input ends."""
    sys.stdout.write(f"{listen(app_of_nothing())}\n")
    sys.stdout.flush()
    sys.stdin.read()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--play", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--action", default="call", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        return play(options.play, options.action)
    if options.serve:
        return serve_nothing()
    with other_process("--serve") as server:
        spent = asyncio.run(inbound(line_of(server, "http"), options.steps))
    emit("openenv_step.in_cpu_ms", spent, limit=BOUND_MS)
    theirs = outbound(listen(app_of_nothing()), options.steps, "nothing")
    middle = emit("openenv_step.server_without_benchflow_cpu_ms", theirs)
    with tempfile.TemporaryDirectory() as home:
        write_task(Path(home, "task"))
        limits = SessionLimits(calls=options.steps + BATCH)
        tasks = OpenEnvServer([Path(home, "task")], jobs_dir=Path(home, "jobs"), limits=limits)
        spent = outbound(listen(tasks.app), options.steps, "call")
        over = round(sum(spent) / len(spent) - middle, 4)
        emit("openenv_step.out_cpu_ms", spent, over_openenv=over, limit=BOUND_MS)
        tasks.close()
    return None


if __name__ == "__main__":
    main()
