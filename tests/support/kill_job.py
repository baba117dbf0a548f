"""Kill whole jobs by SIGKILL, resume them, and require what a job without a kill has.

`python kill_job.py instants 1000 [SEED]` kills 1,000 runners at random instants.
`python kill_job.py calls [LAST]` kills runners at the first, second, ... LAST rename, flush, write
and deletion of a thread, until no thread reaches the number. It needs strace and root.

`python kill_job.py points [CALLS]` kills runners before and after the first CALLS calls of each
function in `crash_points`.

Each job is resumed until it ends. Then its facts, results and summary equal those of a job without
a kill, except for the columns that `UNCOMPARED` names, and nothing is left of its runners.
"""

import atexit
import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from benchflow.cli import main as bench
from crash_points import CrashPoint, crash_points
from fault_job import FaultJob, write_tasks
from watching import until

SLOTS = 6
MARK = str(2 * 10**9 + os.getpid())
SOLUTION = "#!/bin/sh\necho 'hello, world' > /workspace/greeting.txt\nsleep {} >/dev/null 2>&1 &\n"
CALLS = (
    "rename,renameat,renameat2",
    "fsync,fdatasync",
    "unlink,unlinkat,rmdir",
    "ftruncate",
    "pwrite64",
    "write",
)


class ForkedRunner:
    """A runner of a job: a fork of this process, because imports take longer than the job."""

    def __init__(self, job: FaultJob, inject: str = "", point: CrashPoint | None = None) -> None:
        self._log = job.home / "runner.log"
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            _run(job, self._log, read, point)
        os.close(read)
        self._tracer = _trace(self.pid, inject) if inject else None
        os.close(self._write)

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or `None` if the runner does not end in this time."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._end_tracer()
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                return None
            time.sleep(0.002)

    def kill(self) -> None:
        """Kill all processes of the runner's process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._end_tracer()

    def output(self) -> str:
        """Return what the runner said."""
        return self._log.read_text("utf-8", "replace")

    def _end_tracer(self) -> None:
        if self._tracer is not None:
            with suppress(subprocess.TimeoutExpired):
                self._tracer.wait(5)
            self._tracer.kill()
            self._tracer.wait()
            self._tracer = None


def _trace(pid: int, inject: str) -> subprocess.Popen[bytes]:
    trace = f"trace={inject.partition(':')[0]}"
    words = ["strace", "-f", "-qq", "-o", os.devnull, "-e", trace, "-e", f"inject={inject}"]
    tracer = subprocess.Popen([*words, "-p", str(pid)])
    status = Path(f"/proc/{pid}/status")
    until("a tracer", lambda: "TracerPid:\t0\n" not in status.read_text())
    return tracer


def _run(job: FaultJob, log: Path, read: int, point: CrashPoint | None) -> NoReturn:
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(output, number)
        os.chdir(job.home)
        os.environ.update({"NO_COLOR": "1", "TMPDIR": str(job.scratch)})
        tempfile.tempdir = None
        os.read(read, 1)
        if point is not None:
            point.arm()
        bench([*map(str, job.command)])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
        # As an interpreter that ends: the runner deletes its temporary directory.
        atexit._run_exitfuncs()
    finally:
        os._exit(code)


class Killer:
    """Runs jobs with the same plan in one directory, and counts kills."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.kills = 0
        self.jobs = 0
        write_tasks(home, SOLUTION.format(MARK))
        self.whole = self._job("whole")
        begin = time.monotonic()
        self._end(self.whole)
        self.seconds = time.monotonic() - begin
        self.whole.check_complete(SLOTS, {})

    def _job(self, name: str) -> FaultJob:
        words = ("--agent=oracle", f"--repeats={SLOTS // 2}", "--concurrency=3")
        return FaultJob(self.home, name, *words)

    def _end(self, job: FaultJob) -> None:
        runner = ForkedRunner(job)
        code = runner.wait(120)
        assert code == 0, f"{job.name} ended with {code}: {runner.output()}"

    def kill_until_it_ends(self, next_kill: Callable[[FaultJob], bool]) -> None:
        """Run a job. `next_kill` runs one runner, and returns whether it was killed."""
        self.jobs += 1
        job, scored = self._job(f"job{self.jobs}"), dict[int, str]()
        while next_kill(job):
            self.kills += 1
            now = job.scored()
            assert scored.items() <= now.items(), "a score was lost"
            scored = now
        self._end(job)
        job.check_complete(SLOTS, scored)
        job.check_same_as(self.whole)
        job.check_nothing_left(MARK)
        shutil.rmtree(job.directory)


def kill_at_instants(killer: Killer, kills: int, seed: int) -> None:
    """Kill so many runners at random instants."""
    instants = random.Random(seed)

    def kill(job: FaultJob) -> bool:
        if killer.kills >= kills:
            return False
        runner = ForkedRunner(job)
        # Some kills hit the start and the clean-up of a resume, others the rollouts and commits.
        longest = killer.seconds * instants.choice((0.5, 1, 2))
        code = runner.wait(instants.uniform(0, longest))
        assert code in (None, 0), runner.output()
        runner.kill()
        return code is None

    while killer.kills < kills:
        killer.kill_until_it_ends(kill)
        print(f"{killer.kills} kills of {killer.jobs} jobs", flush=True)


def kill_at_calls(killer: Killer, last: int) -> None:
    """Kill one runner of a job at each system call of each kind."""
    for calls in CALLS:
        for when in range(1, last + 1):
            codes: list[int | None] = []

            def kill(job: FaultJob, inject: str, codes: list[int | None]) -> bool:
                if codes:
                    return False
                runner = ForkedRunner(job, inject)
                codes.append(runner.wait(120))
                assert codes[0] in (0, -signal.SIGKILL), runner.output()
                runner.kill()
                return codes[0] != 0

            inject = f"{calls}:signal=SIGKILL:when={when}"
            killer.kill_until_it_ends(lambda job, i=inject, c=codes: kill(job, i, c))
            if codes == [0]:
                break
        print(f"{calls}: {killer.kills} kills until here", flush=True)


def kill_at_points(killer: Killer, calls: int) -> None:
    """Kill a runner at each point. A job is killed at one point after the other."""
    left = crash_points(calls)
    # A job that is far enough does not reach its first steps: these points get a new job.
    for_new_jobs: list[CrashPoint] = []
    missed: list[CrashPoint] = []

    def kill(job: FaultJob) -> bool:
        is_new = bool(for_new_jobs) and not job.directory.exists()
        if not is_new and not left:
            return False
        point = (for_new_jobs if is_new else left).pop(0)
        runner = ForkedRunner(job, point=point)
        code = runner.wait(120)
        assert code in (0, -signal.SIGKILL), runner.output()
        runner.kill()
        if code == 0:
            (missed if is_new else for_new_jobs).append(point)
        return code != 0

    while left or for_new_jobs:
        killer.kill_until_it_ends(kill)
        print(f"{killer.kills} kills of {killer.jobs} jobs", flush=True)
    for point in missed:
        print(f"not reached: {point.side} call {point.call} of {point.function}")


def preload(home: Path) -> None:
    """Import what a job imports, so that forks do not have to."""
    names = home / "modules"
    pid = os.fork()
    if pid == 0:
        job = FaultJob(home, "modules", "--agent=oracle")
        os.chdir(home)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        with suppress(SystemExit):
            bench([*map(str, job.command)])
        names.write_text("\n".join(sys.modules))
        os._exit(0)
    os.waitpid(pid, 0)
    for name in names.read_text().split():
        with suppress(Exception):
            importlib.import_module(name)


def main(what: str, count: str = "1000000", seed: str = "") -> None:
    """Kill jobs as `what` says, and print what was done."""
    number = int(seed or random.SystemRandom().randrange(10**6))
    if what == "instants":
        print(f"seed {number}", flush=True)
    # A TemporaryDirectory would be deleted by the end of each fork.
    home = Path(tempfile.mkdtemp(prefix="kill-job-"))
    try:
        write_tasks(home, SOLUTION.format(MARK))
        preload(home)
        killer = Killer(home)
        if what == "instants":
            kill_at_instants(killer, int(count), number)
        elif what == "points":
            kill_at_points(killer, int(count))
        else:
            kill_at_calls(killer, int(count))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    used = sum(os.times()[:4])
    print(f"{killer.kills} kills of {killer.jobs} jobs, {used:.0f} CPU s")
    print("nothing was lost, doubled or left")


if __name__ == "__main__":
    main(*sys.argv[1:])
