"""A Harbor task that does nothing, run by Harbor 0.24 and by us on the same engine.

The image is there already, so nothing is built or pulled; the oracle runs `true` and the
test writes 1. Each sample is a whole process: `harbor run` or `bench eval create`, from its
start until its job is on disk, one task, and eight at a concurrency of four. Lines are per
rollout; those that end in `marginal` are what seven more cost, for each. CPU is that of the
process and the programs it starts, not the engine's. Ours runs on our local sandbox too.

Harbor lets a container's first process, which ignores it, end by itself for ten seconds.
So it is measured on the image as it is, and on one with `STOPSIGNAL SIGKILL`, which takes
that wait away and which a user's image does not have. Both programs run from their bytecode,
as installed programs do. Harbor takes most of the four minutes: `--peer-runs` says how often.

    export BENCHFLOW_DOCKER_IMAGE=$(.ci/docker) BENCHFLOW_COMPOSE=$(.ci/compose)
    export BENCHFLOW_HARBOR=$(.ci/harbor)
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from report import emit

MANY, AT_ONCE = 8, 4
WALL, LOCAL_WALL, CPU = 2.0, 0.4, 0.15
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
    return [*_bench(tasks, jobs), "--sandbox", "docker"]


def ours_local(tasks: Path, jobs: Path) -> list[str]:
    """Return our command for the local sandbox, which has no public network."""
    return [*_bench(tasks, jobs), "--sandbox", "local", "--offline"]


def _bench(tasks: Path, jobs: Path) -> list[str]:
    bench = str(Path(sys.executable).with_name("bench"))
    options = ["--concurrency", str(AT_ONCE), "--quiet"]
    return [bench, "eval", "create", "--tasks-dir", str(tasks), "--jobs-dir", str(jobs), *options]


def rewards(jobs: Path) -> list[object]:
    """Return what the rollouts below a directory ended with, in either format."""
    found: list[object] = []
    for path in jobs.glob("*/*/result.json"):
        result = json.loads(path.read_text())
        verdict = result.get("verifier_result") or result
        found.append(verdict.get("rewards", verdict).get("reward"))
    return found


@dataclass(frozen=True, slots=True)
class Cost:
    """What a job took, in seconds."""

    wall: float
    cpu: float


def sample(command: Command, tasks: Path, home: Path) -> Cost:
    """Run a job to its end."""
    env = {**os.environ, "HARBOR_TELEMETRY": "off", "HOME": str(home), "DOCKER_CONFIG": str(CLIENT)}
    env |= {"PATH": f"{CLIENT / 'bin'}:{os.environ['PATH']}"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
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
    return Cost(wall, user + after.children_system - before.children_system)


def measure(
    name: str, command: Command, tasks: Path, home: Path, runs: int, **wall: object
) -> Cost:
    """Print the lines of a command on one directory of tasks; return the median of a job.

    A first job, not counted, warms the caches of a command that runs one task.
    """
    count = len(list(tasks.iterdir()))
    if count == 1:
        sample(command, tasks, home)
    costs = [sample(command, tasks, home) for _ in range(runs)]
    facts: dict[str, object] = {"tasks": count, "concurrency": min(count, AT_ONCE)}
    cpu = {"limit": CPU} if "limit" in wall else {}
    emit(f"{name}.cpu", [each.cpu / count for each in costs], unit="cpu_s", **facts, **cpu)
    emit(f"{name}.wall", [each.wall / count for each in costs], unit="s", **facts, **wall)
    return Cost(median(each.wall for each in costs), median(each.cpu for each in costs))


def marginal(name: str, one: Cost, many: Cost, wall: float) -> None:
    """Print what each rollout beyond the first costs, by the medians of both jobs."""
    more = MANY - 1
    emit(f"{name}.cpu.marginal", [(many.cpu - one.cpu) / more], unit="cpu_s", limit=CPU)
    emit(f"{name}.wall.marginal", [(many.wall - one.wall) / more], unit="s", limit=wall)


def tag_ending() -> None:
    """Make the image whose first process is killed at once."""
    recipe = f"FROM {IMAGE}\nSTOPSIGNAL SIGKILL\n"
    docker = [str(CLIENT / "bin" / "docker"), "build", "--quiet", "--tag", ENDING, "-"]
    subprocess.run(docker, input=recipe, text=True, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    """Print the lines; fail when ours is slower on Docker than its limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="samples of ours, of one task")
    parser.add_argument(
        "--peer-runs", type=int, default=2, help="as many of Harbor; 0 leaves it out"
    )
    asked = parser.parse_args()
    if asked.peer_runs:
        tag_ending()
    found: dict[str, list[Cost]] = {"ours": [], "ours.local": []}
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "home"
        home.mkdir()
        for count in (1, MANY):
            runs = asked.runs if count == 1 else max(1, asked.runs // 2)
            tasks = write_tasks(Path(name) / f"plain-{count}", IMAGE, count)
            mine = measure("ours", ours, tasks, home, runs, limit=WALL, peer="harbor.wall")
            local = measure("ours.local", ours_local, tasks, home, runs, limit=LOCAL_WALL)
            found["ours"].append(mine)
            found["ours.local"].append(local)
            if asked.peer_runs:
                ending = write_tasks(Path(name) / f"ending-{count}", ENDING, count)
                peer_runs = asked.peer_runs if count == 1 else max(1, asked.peer_runs // 2)
                theirs = measure("harbor", harbor, tasks, home, peer_runs)
                measure("harbor.ends_at_once", harbor, ending, home, peer_runs)
                emit("harbor.ratio", [theirs.wall / mine.wall], unit="x", tasks=count)
    marginal("ours", *found["ours"], wall=WALL)
    marginal("ours.local", *found["ours.local"], wall=LOCAL_WALL)
    slowest = max(found["ours"][0].wall, found["ours"][1].wall / MANY)
    return int(slowest > WALL)


if __name__ == "__main__":
    sys.exit(main())
