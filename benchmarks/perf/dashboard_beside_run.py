"""What a faulty dashboard costs the job that it shows: processor time and wall time of the job.

The oracle plays tasks of ClawsBench in local sandboxes. In each round the same job runs without a
dashboard, and beside one that follows the job for a page with open events. After the first score
that dashboard is killed, stopped (SIGSTOP), or its index has no room on its file system of 1 MB.
The order changes in each round. Each job must have the rewards of the job without a dashboard.

The processor time is that of the job's process and of all processes that it has waited for. Other
programs disturb it less than the wall time, but they do: with a load of 15 on two cores, the same
job took 6.4 to 7.3 s. Compare both on a quiet machine, or by many rounds.
The file system needs root and `unshare`.

One JSON line for each fault on stdout: the ratios to the job without a dashboard, by rounds.
"""

import argparse
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import urlopen

from report import emit

TASKS = Path(__file__).parents[1] / "clawsbench" / "tasks"
BENCH = str(Path(sys.executable).with_name("bench"))
FAULTS = ("none", "killed", "stopped", "full disk")
LIMIT = 1.02
MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$XDG_CACHE_HOME" && exec "$@"'


@dataclass
class Cost:
    """What one job took."""

    cpu: float
    wall: float
    rewards: list[tuple[str, float | None]]


class Dashboard:
    """A dashboard with one open page, and its index on a small file system."""

    def __init__(self, home: Path) -> None:
        self.cache = home / "cache"
        self.cache.mkdir()
        command = ("unshare", "--mount", "sh", "-c", MOUNT, "sh", BENCH, "dashboard")
        self.process = subprocess.Popen(
            [*command, "--jobs-dir", home / "jobs", "--port", "0", "--no-open"],
            env={**os.environ, "XDG_CACHE_HOME": str(self.cache), "NO_COLOR": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        line = next(line for line in self.process.stderr if "http://" in line)
        self.host = line.rpartition("http://")[2].strip().rstrip("/")
        name, port = self.host.split(":")
        self.page = socket.create_connection((name, int(port)), timeout=60)
        self.page.sendall(f"GET /live?on=runs HTTP/1.1\r\nHost: {self.host}\r\n\r\n".encode())
        if b"200 OK" not in self.page.recv(64):
            raise SystemExit("the dashboard has no events")

    def break_by(self, fault: str) -> None:
        """Kill it, stop it, or leave its index no room."""
        if fault == "full disk":
            # The path leads through the mounts that only this process sees.
            place = Path(f"/proc/{self.process.pid}/root{self.cache}/rest")
            with suppress(OSError), place.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
        else:
            self.process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)

    def check_full(self) -> None:
        """Require that the index could not be written."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            with urlopen(f"http://{self.host}/healthz", timeout=30) as answer:
                if not json.load(answer)["is_following"]:
                    return
            time.sleep(0.1)
        raise SystemExit("the disk was not full")

    def close(self) -> None:
        self.page.close()
        self.process.kill()
        self.process.communicate()


@contextmanager
def dashboard(fault: str, home: Path) -> Generator[Dashboard | None]:
    """Serve a dashboard, unless there is none in this job."""
    if fault == "none":
        yield None
        return
    served = Dashboard(home)
    try:
        yield served
    finally:
        served.close()


def play(fault: str, repeats: int) -> Cost:
    """Run one job to its end."""
    with tempfile.TemporaryDirectory() as name, dashboard(fault, Path(name)) as served:
        home = Path(name)
        settings = ("--tasks-dir", TASKS, "--jobs-dir", home / "jobs", "--job-name", "job")
        amount = ("--agent", "oracle", "--repeats", str(repeats), "--concurrency", "2")
        before, began = cpu(), time.monotonic()
        job = subprocess.Popen(
            [BENCH, "eval", "create", *settings, *amount],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        if served is not None:
            while job.poll() is None and not any((home / "jobs").glob("job/*/result.json")):
                time.sleep(0.02)
            served.break_by(fault)
        _, said = job.communicate()
        wall = time.monotonic() - began
        # The killed dashboard is waited for later, so that its time is not in the job's.
        spent = cpu() - before
        if job.returncode:
            raise SystemExit(said)
        if served is not None and fault == "full disk":
            served.check_full()
        lines = (home / "jobs/job/results.jsonl").read_text().splitlines()
        results = [json.loads(line) for line in lines]
        return Cost(spent, wall, sorted((each["task_id"], each["reward"]) for each in results))


def cpu() -> float:
    """Return the processor seconds of the processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run rounds, each of one job for each fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1, help="rollouts of each task in a job")
    parser.add_argument("--max-sec", type=float, default=1_200, help="begin no round after this")
    given = parser.parse_args()
    end = time.monotonic() + given.max_sec
    found: dict[str, list[Cost]] = {fault: [] for fault in FAULTS}
    for number in range(given.rounds):
        if number > 1 and time.monotonic() > end:
            break
        turn = number % len(FAULTS)
        for fault in (*FAULTS[turn:], *FAULTS[:turn]):
            found[fault].append(play(fault, given.repeats))
            if found[fault][-1].rewards != found[FAULTS[turn]][-1].rewards:
                raise SystemExit(f"a dashboard that is {fault} changed a reward")
    show(found)


def show(found: dict[str, list[Cost]]) -> None:
    """Print the ratios, and the spread of the job without a dashboard."""
    alone = found.pop("none")
    for fault, costs in found.items():
        pairs = list(zip(costs, alone, strict=True))
        wall = [one.wall / other.wall for one, other in pairs]
        facts: dict[str, Any] = {
            "limit": LIMIT,
            "rollouts": len(alone[0].rewards),
            "cpu_sec_alone": [round(cost.cpu, 2) for cost in alone],
            "wall_median": round(median(wall), 3),
            "wall_p95": round(quantiles(wall, n=20)[-1], 3),
        }
        ratios = [one.cpu / other.cpu for one, other in pairs]
        emit(f"dashboard_beside_run.{fault.replace(' ', '_')}", ratios, unit="CPU ratio", **facts)


if __name__ == "__main__":
    main()
