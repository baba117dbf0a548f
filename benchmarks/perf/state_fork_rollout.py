"""What a `state` fork of ClawsBench costs per child in a real rollout, in milliseconds.

From the moment that the kernel begins a child until the child's scripted agent has loaded its
session and is ready for its first prompt: box, services, gate, invariants, the comparison
with the checkpoint, and the agent. A plain copy of as many bytes of databases is beside it.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchflow_contracts import (
    Event,
    Evidence,
    PhaseEntered,
    Role,
    RolloutNode,
    SandboxCapabilities,
    VerifyResult,
)
from benchflow_engine.flags import run_config
from benchflow_engine.planes import assemble
from benchflow_kernel import (
    BranchBudget,
    GroupBranch,
    RolloutConfig,
    Scene,
    Turn,
    load_task,
    run_rollout,
)
from benchflow_sandbox_local import LocalProvider
from report import emit

CLAWSBENCH = Path(__file__).parents[1] / "clawsbench"
TASK = CLAWSBENCH / "tasks" / "book-the-review-room"
CHILDREN, PARALLEL, LIMIT = 16, 4, 60.0
SCRIPT = '[[turn]]\n[[turn.do]]\nsay = "I have looked."\n[[turn]]\n[[turn.do]]\nsay = "Done."\n'
FILL = (
    "CREATE TABLE ballast (id INTEGER PRIMARY KEY, noise TEXT);"
    " WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})"
    " INSERT INTO ballast (noise) SELECT hex(randomblob(1000)) FROM n;"
)


class AtRest(LocalProvider):
    """A local provider that takes no live snapshots, so that forks are of fidelity `state`."""

    async def capabilities(self) -> SandboxCapabilities:
        """Return what the machine can do, but for live snapshots."""
        found = await super().capabilities()
        update = {"snapshot_levels": frozenset({"filesystem"}), "live_engine": None}
        return found.model_copy(update=update)


class NoReward:
    """Gives everything a 1: grading is not what is measured."""

    name = "reward"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        """Score without a look."""
        del node, evidence
        return VerifyResult(reward=1.0)


class Stopwatch:
    """Notes when a world begins, and when its agent is ready."""

    def __init__(self) -> None:
        self.began: dict[str, float] = {}
        self.phases: dict[str, list[float]] = {}
        self.children: list[float] = []
        self._last: dict[str, tuple[str, float]] = {}

    def note(self, event: Event) -> None:
        """Take one event of the rollout."""
        if not isinstance(event, PhaseEntered):
            return
        now = time.perf_counter()
        if event.phase == "setup":
            self.began[event.node] = now
        elif event.node in self._last and event.node != "n0":
            phase, since = self._last[event.node]
            self.phases.setdefault(phase, []).append((now - since) * 1000)
            if event.phase == "execute":
                self.children.append((now - self.began[event.node]) * 1000)
        self._last[event.node] = (event.phase, now)


def make_task(folder: Path, megabytes: int) -> Path:
    """Write down ClawsBench's task with bigger databases and a script of two turns."""
    place = folder / "tasks" / TASK.name
    shutil.copytree(TASK, place)
    shutil.copy(CLAWSBENCH / "environment.toml", folder / "environment.toml")
    shutil.copytree(CLAWSBENCH / "images", folder / "images", symlinks=True)
    script = next(place.glob("**/files"), place / "files") / "opt" / "script.toml"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(SCRIPT)
    config = place / "task.toml"
    rows = megabytes * 500
    fill = f"    {{ command = \"sqlite3 /data/gmail.db '{FILL.format(rows=rows)}'\" }},\n"
    last = '    { command = "rm -r /data/seed" },\n'
    config.write_text(config.read_text().replace(last, last + (fill if rows else "")))
    return place


async def fork(folder: Path, megabytes: int, at_once: int) -> Stopwatch:
    """Run one rollout that forks into `CHILDREN` before its second turn."""
    task = load_task(make_task(folder, megabytes))
    budget = BranchBudget(concurrency=at_once, max_children=CHILDREN)
    policy = GroupBranch(n=CHILDREN, at=1, require="state", budget=budget)
    role = Role(agent="scripted", env={"BENCHFLOW_SCRIPT": "/opt/script.toml"})
    scene = Scene(roles=(role,), turns=(Turn(), Turn(prompt="go on")))
    config = RolloutConfig(scenes=(scene,), branch=policy, capture_state="none")
    watch = Stopwatch()
    async with AtRest(store=folder / "store") as provider:
        planes = replace(
            assemble(run_config(agent="scripted"), task, provider), rewards=(NoReward(),)
        )
        tree = await run_rollout(
            task, config, planes, directory=folder / "rollout", subscribers=[watch.note]
        )
    if tree.status != "completed" or len(watch.children) != CHILDREN:
        raise SystemExit(f"the rollout failed: {tree.error}")
    return watch


def copies(folder: Path, megabytes: int) -> Sequence[float]:
    """Return what plain copies of a file of that size take."""
    source = folder / "bytes"
    source.write_bytes(os.urandom(megabytes << 20))
    samples: list[float] = []
    for number in range(CHILDREN):
        started = time.perf_counter()
        shutil.copyfile(source, folder / f"copy-{number}")
        samples.append((time.perf_counter() - started) * 1000)
    return samples


async def measure(megabytes: int, at_once: int) -> None:
    """Print one size, serially or with as many at once as the machine has slots."""
    with tempfile.TemporaryDirectory() as scratch:
        watch = await fork(Path(scratch), megabytes, at_once)
        facts = {"mb": megabytes, "at_once": min(at_once, len(os.sched_getaffinity(0)))}
        name = "serial" if at_once == 1 else "parallel"
        for phase, samples in watch.phases.items():
            if phase not in ("execute", "verify", "teardown"):
                emit(f"state_fork_rollout.{name}.{phase}", samples, **facts)
        limit = {"limit": LIMIT} if at_once == 1 else {}
        emit(f"state_fork_rollout.child_{name}", watch.children, **limit, **facts)
        if at_once == 1:
            emit("state_fork_rollout.copy", copies(Path(scratch), megabytes), mb=megabytes)


async def main() -> None:
    """Measure the size of an ordinary task's world, and five and ten megabytes."""
    for megabytes in (0, 5, 10):
        for at_once in (1, PARALLEL):
            await measure(megabytes, at_once)


if __name__ == "__main__":
    if os.geteuid():
        sys.exit("state_fork_rollout: needs root")
    asyncio.run(main())
