"""A Harbor task that does nothing, run by Harbor 0.24 and by us on the same engine.

The image is there already, so nothing is built or pulled; the oracle runs `true` and the
test writes 1. Each sample is a whole process: `harbor run` or `bench eval create`, from its
start until its job is on disk, one task, and eight at a concurrency of four. CPU is that of
the process and the programs it starts, not the engine's.

Harbor lets a container's first process, which ignores it, end by itself for ten seconds.
So it is measured on the image as it is, and on one with `STOPSIGNAL SIGKILL`, which takes
that wait away and which a user's image does not have.

    export BENCHFLOW_DOCKER_IMAGE=$(.ci/docker) BENCHFLOW_COMPOSE=$(.ci/compose)
    export BENCHFLOW_HARBOR=$(.ci/harbor)
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import emit

ALONE, TOGETHER, MANY, AT_ONCE = 7, 3, 8, 4
WALL, CPU = 2.0, 0.15
IMAGE = os.environ["BENCHFLOW_DOCKER_IMAGE"]
ENDING = "benchflow-perf:ends-at-once"
CLIENT = Path(os.environ["BENCHFLOW_COMPOSE"])
HARBOR = Path(os.environ["BENCHFLOW_HARBOR"]).with_name("harbor")
FILES = {
    "instruction.md": "Do nothing.\n",
    "environment/README": "The image is in task.toml.\n",
    "solution/solve.sh": "#!/bin/sh\ntrue\n",
    "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
}

Command = Callable[[Path, Path], list[str]]


def write_tasks(root: Path, image: str, count: int) -> Path:
    """Return a directory of this many tasks that do nothing."""
    for number in range(count):
        task = root / f"nothing-{number}"
        for name, text in FILES.items():
            (task / name).parent.mkdir(parents=True, exist_ok=True)
            (task / name).write_text(text)
        (task / "task.toml").write_text(f'[environment]\ndocker_image = "{image}"\n')
    return root


def harbor(tasks: Path, jobs: Path) -> list[str]:
    """Return Harbor's command."""
    options = ["--agent", "oracle", "--n-concurrent", str(AT_ONCE), "--quiet"]
    return [str(HARBOR), "run", "--path", str(tasks), "--jobs-dir", str(jobs), *options]


def ours(tasks: Path, jobs: Path) -> list[str]:
    """Return our command."""
    bench = str(Path(sys.executable).with_name("bench"))
    options = ["--sandbox", "docker", "--concurrency", str(AT_ONCE), "--quiet"]
    return [bench, "eval", "create", "--tasks-dir", str(tasks), "--jobs-dir", str(jobs), *options]


def rewards(jobs: Path) -> list[object]:
    """Return what the rollouts below a directory ended with, in either format."""
    found: list[object] = []
    for path in jobs.glob("*/*/result.json"):
        result = json.loads(path.read_text())
        verdict = result.get("verifier_result") or result
        found.append(verdict.get("rewards", verdict).get("reward"))
    return found


def sample(command: Command, tasks: Path, home: Path) -> tuple[float, float]:
    """Run a job; return its wall and CPU seconds."""
    env = {**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(home), "DOCKER_CONFIG": str(CLIENT)}
    env |= {"PATH": f"{CLIENT / 'bin'}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as name:
        jobs = Path(name)
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(
            command(tasks, jobs), env=env, capture_output=True, text=True, check=False
        )
        wall, after = time.perf_counter() - started, os.times()
        expected = len(list(tasks.iterdir()))
        if rewards(jobs) != [1] * expected:
            raise SystemExit(f"{command.__name__}: {rewards(jobs)}\n{done.stdout}{done.stderr}")
    user = after.children_user - before.children_user
    return wall, user + after.children_system - before.children_system


def measure(name: str, command: Command, tasks: Path, home: Path, **facts: object) -> float:
    """Print the lines of a command on one directory of tasks; return its median wall seconds.

    Everything is per rollout. A first job, not counted, warms the caches of both.
    """
    count = len(list(tasks.iterdir()))
    runs = ALONE if count == 1 else TOGETHER
    sample(command, tasks, home)
    pairs = [sample(command, tasks, home) for _ in range(runs)]
    walls, cpus = ([value / count for value in column] for column in zip(*pairs, strict=True))
    together = {"tasks": count, "concurrency": min(count, AT_ONCE)}
    cpu_facts = {"limit": CPU} if "limit" in facts else {}
    emit(f"{name}.cpu", cpus, unit="cpu_s", **together, **cpu_facts)
    return emit(f"{name}.wall", walls, unit="s", **together, **facts)


def main() -> int:
    """Print the lines; fail when ours is slower than its limit."""
    missed = 0
    recipe = f"FROM {IMAGE}\nSTOPSIGNAL SIGKILL\n"
    docker = [str(CLIENT / "bin" / "docker"), "build", "--quiet", "--tag", ENDING, "-"]
    subprocess.run(docker, input=recipe, text=True, check=True, stdout=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        home.mkdir()
        for count in (1, MANY):
            tasks = write_tasks(Path(name) / f"plain-{count}", IMAGE, count)
            ending = write_tasks(Path(name) / f"ending-{count}", ENDING, count)
            theirs = measure("harbor", harbor, tasks, home)
            measure("harbor.ends_at_once", harbor, ending, home)
            middle = measure("ours", ours, tasks, home, limit=WALL, peer="harbor.wall")
            missed += middle > WALL
            emit("harbor.ratio", [theirs / middle], unit="x", tasks=count)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
