"""What the engine itself costs: rollouts whose every plane does nothing.

The shared workload: a rollout of k steps; each step is one model reply with one tool
call and its result, both of which only yield to the event loop; the record is on disk
at the end. The same workload is run on inspect-ai and verifiers, each in an
environment of its own, when they can be had (`--peers`).

The records are written to a memory file system when there is one, so that the engine is
measured and not the journal of a shared disk; one line says what the disk adds.

Numbers are CPU time of the process, by `time.process_time`. A sequential run gives the
spread over rollouts; the marginal cost of a step is the difference between rollouts of
50 steps and of 1; memory is the peak of a fresh process that holds all rollouts at once.

One JSON line per bench on stdout.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    AgentCapabilities,
    AgentNeeds,
    AskUserHandler,
    Evidence,
    ExecResult,
    Observation,
    Role,
    RolloutNode,
    SandboxSpec,
    Step,
    StepHandler,
    Task,
    TaskConfig,
    ToolCall,
    VerifyResult,
)
from benchflow_kernel import AutoUser, Planes, RolloutConfig, run_rollout
from report import emit

HERE = Path(__file__).resolve()
PEERS = {
    "inspect-ai==0.3.285": "peer_inspect.py",
    "verifiers==0.1.14": "peer_verifiers.py",
}


MEMORY = Path("/dev/shm")


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- the null planes -------------------------------------------------------------


class NullSandbox:
    """A box in which nothing happens."""

    def __init__(self, spec: SandboxSpec, ident: str) -> None:
        self.spec = spec
        self.id = ident

    async def exec(self, cmd: str, **_: object) -> ExecResult:

        await asyncio.sleep(0)
        return ExecResult(exit_code=0, stdout=cmd, stderr="", duration_sec=0.0)

    @asynccontextmanager
    async def freeze(self) -> AsyncIterator[None]:
        yield

    async def teardown(self) -> None:
        await asyncio.sleep(0)


class NullProvider:
    """Makes null boxes."""

    name = "null"

    def __init__(self) -> None:
        self._made = 0

    async def create(self, spec: SandboxSpec, **_: object) -> NullSandbox:
        await asyncio.sleep(0)
        self._made += 1
        return NullSandbox(spec, f"null-{self._made}")


class Gate:
    """Holds everyone until `n` are there and `open` is set."""

    def __init__(self, n: int) -> None:
        self._missing = n
        self.full = asyncio.Event()
        self.open = asyncio.Event()

    async def pass_through(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self.full.set()
        await self.open.wait()


class NullSession:
    """Makes `steps` steps per prompt."""

    id = "null"

    def __init__(self, sandbox: NullSandbox, role: Role, steps: int, gate: Gate | None) -> None:
        self._sandbox, self._role, self._count, self._gate = sandbox, role, steps, gate
        self.steps: list[Step] = []

    def on_ask_user(self, handler: AskUserHandler) -> None:
        del handler

    def on_step(self, handler: StepHandler) -> None:
        self._step = handler

    async def prompt(self, text: str) -> str:

        if self._gate is not None:
            await self._gate.pass_through()
        for number in range(self._count):
            started = time.time()
            await asyncio.sleep(0)  # the model call
            result = await self._sandbox.exec("true")
            last = number + 1 == self._count
            step = Step(
                id=f"s{number}",
                role=self._role.name,
                prompt=text if number == 0 else None,
                message="I will look at the next file.",
                tool_calls=(ToolCall(id=f"c{number}", title="bash", raw_input={"cmd": "true"}),),
                observations=(
                    Observation(
                        tool_call_id=f"c{number}", status="completed", content=result.stdout
                    ),
                ),
                stop_reason="end_turn" if last else None,
                started_at=started,
                finished_at=time.time(),
            )
            self.steps.append(step)
            self._step(step)
        return "end_turn"

    async def aclose(self) -> None:
        await asyncio.sleep(0)


class NullAgent:
    """Opens null sessions."""

    name = "null"

    def __init__(self, steps: int, gate: Gate | None = None) -> None:
        self._steps, self._gate = steps, gate

    def capabilities(self) -> AgentCapabilities:

        return AgentCapabilities(protocol="null")

    async def needs(self, role: Role) -> AgentNeeds:

        del role
        return AgentNeeds()

    async def connect(self, sandbox: NullSandbox, role: Role, **_: object) -> NullSession:
        await asyncio.sleep(0)
        return NullSession(sandbox, role, self._steps, self._gate)


class NullReward:
    """Gives everything a 1."""

    name = "reward"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:

        del node, evidence
        return VerifyResult(reward=1.0)


class Bench:
    """Runs null rollouts, each with its record on disk."""

    def __init__(self, folder: Path, steps: int, gate: Gate | None = None) -> None:

        self._folder = folder
        self._config = RolloutConfig.single("null")
        self._task = Task(
            id="null",
            path=folder,
            instruction="Do nothing.",
            config=TaskConfig(name="null"),
            digest="sha256:0",
        )
        self._planes = Planes(
            provider=NullProvider(),  # type: ignore[arg-type]
            agents={"null": NullAgent(steps, gate)},  # type: ignore[dict-item]
            rewards=(NullReward(),),
            environment=None,
            user=AutoUser,
        )

    async def one(self, name: str) -> None:

        tree = await run_rollout(
            self._task, self._config, self._planes, directory=self._folder / name
        )
        if tree.status != "completed" or tree.leaves[0].reward != 1.0:
            raise SystemExit(f"a null rollout failed: {tree.error}")


async def sequential(steps: int, n: int) -> list[float]:
    """Return the CPU milliseconds of each of `n` rollouts, one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), steps)
        for number in range(20):
            await bench.one(f"warm-{number}")
        samples: list[float] = []
        for number in range(n):
            before = time.process_time()
            await bench.one(f"r-{number}")
            samples.append((time.process_time() - before) * 1000)
        return samples


async def concurrent(steps: int, n: int, width: int) -> float:
    """Return the CPU milliseconds per rollout with `width` of them at once."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), steps)
        await bench.one("warm")
        slots = asyncio.Semaphore(width)

        async def one(number: int) -> None:
            async with slots:
                await bench.one(f"r-{number}")

        before = time.process_time()
        async with asyncio.TaskGroup() as group:
            for number in range(n):
                group.create_task(one(number))
        return (time.process_time() - before) * 1000 / n


async def crowd(steps: int, n: int) -> dict[str, float]:
    """Hold `n` rollouts at their prompt at once; return the memory of it."""
    with tempfile.TemporaryDirectory() as folder:
        warm = Bench(Path(folder), steps)
        await warm.one("warm")
        before = peak_rss_mb()
        gate = Gate(n)
        bench = Bench(Path(folder), steps, gate)
        async with asyncio.TaskGroup() as group:
            for number in range(n):
                group.create_task(bench.one(f"r-{number}"))
            await gate.full.wait()
            held = peak_rss_mb()
            gate.open.set()
        return {
            "rss_before_mb": round(before, 1),
            "rss_held_mb": round(held, 1),
            "rss_peak_mb": round(peak_rss_mb(), 1),
        }


def measure(n: int, crowd_size: int) -> None:
    """Run our own benches, each in a process of its own."""
    in_memory = os.access(MEMORY, os.W_OK)
    one = child("sequential", 1, n)
    fifty = child("sequential", 50, max(50, n // 4))
    marginal = (statistics.median(fifty) - statistics.median(one)) / 49
    emit("null_engine.rollout_of_1_step", one, unit="CPU ms", limit=1.15, in_memory=in_memory)
    emit("null_engine.rollout_of_50_steps", fifty, unit="CPU ms", limit=8.5, in_memory=in_memory)
    emit("null_engine.extra_step", [marginal], unit="CPU ms", limit=0.15, of=len(fifty))
    empty = statistics.median(one) - marginal
    emit("null_engine.rollout_of_0_steps", [empty], unit="CPU ms", limit=1.0, of=len(one))
    disk = child("sequential", 1, n, on_disk=True)
    emit("null_engine.rollout_of_1_step_on_disk", disk, unit="CPU ms")
    wide = [child("concurrent", 5, crowd_size) for _ in range(3)]
    emit("null_engine.rollout_of_5_steps_64_at_once", wide, unit="CPU ms", of=crowd_size)
    memory = child("crowd", 1, crowd_size)
    peak = memory.pop("rss_peak_mb")
    emit("null_engine.crowd", [peak], unit="MB", limit=250, rollouts=crowd_size, **memory)


def measure_peers() -> None:
    """Run the shared workload on every peer that can be had."""
    for package, script in PEERS.items():
        name = package.split("==")[0]
        one = peer(package, script, 1, 20, 120)
        fifty = peer(package, script, 50, 5, 25)
        if one is None or fifty is None:
            print(f"{package} cannot be had here", file=sys.stderr)
            continue
        marginal = (statistics.median(fifty) - statistics.median(one)) / 49
        facts = {"package": package, "at_once": 64}
        emit(f"null_engine.peer.{name}.rollout_of_1_step", one, unit="CPU ms", **facts)
        emit(f"null_engine.peer.{name}.rollout_of_50_steps", fifty, unit="CPU ms", **facts)
        emit(f"null_engine.peer.{name}.extra_step", [marginal], unit="CPU ms", **facts)


def peer(package: str, script: str, steps: int, small: int, large: int) -> list[float] | None:
    """Return the peer's CPU ms per rollout, three times, or `None` without the peer."""
    command = ["uv", "run", "--no-project", "--quiet", "--python", sys.executable]
    command += ["--with", package, "python", str(HERE.with_name(script))]
    samples: list[float] = []
    for _ in range(3):
        sizes = [str(steps), str(small), str(large)]
        try:
            done = subprocess.run([*command, *sizes], check=True, stdout=subprocess.PIPE)
        except (OSError, subprocess.CalledProcessError):
            return None
        samples.append(float(done.stdout.decode().strip().splitlines()[-1]))
    return samples


def child(kind: str, steps: int, n: int, *, on_disk: bool = False) -> Any:  # noqa: ANN401
    command = [sys.executable, str(HERE), "--child", kind, "--steps", str(steps), "--n", str(n)]
    env = dict(os.environ)
    if not on_disk and os.access(MEMORY, os.W_OK):
        env["TMPDIR"] = str(MEMORY)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=env)
    return json.loads(done.stdout)


def run_child(kind: str, steps: int, n: int) -> None:
    works = {
        "sequential": lambda: sequential(steps, n),
        "concurrent": lambda: concurrent(steps, n, 64),
        "crowd": lambda: crowd(steps, n),
    }
    print(json.dumps(asyncio.run(works[kind]())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=400, help="sequential rollouts")
    parser.add_argument("--crowd", type=int, default=1000, help="rollouts at once")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--child", choices=["sequential", "concurrent", "crowd"])
    parser.add_argument("--peers", action="store_true", help="also run inspect-ai and verifiers")
    given = parser.parse_args()
    if given.child:
        run_child(given.child, given.steps, given.n)
        return
    measure(given.n, given.crowd)
    if given.peers:
        measure_peers()


if __name__ == "__main__":
    main()
