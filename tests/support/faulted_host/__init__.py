"""A host that lacks something, for one `bench` at a time: real mounts, groups and limits."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watching import DEADLINE, until

BENCH = Path(sys.executable).with_name("bench")
_ALONE = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"]
_CODE = 'cd "$1" && shift && exec "$@"'
_JOIN = 'for g in $0; do echo $$ > "$g/cgroup.procs"; done; exec "$@"'
# It stops itself, so that a fault never comes too late. `bench` imports it at its start.
_STOPS = """
import os, signal, sys

_results = []
_stops = ["once"]

def _stop(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("/result.json"):
        _results.append(arguments[1])
    elif _stops and _results and os.path.exists(_results[0]):
        try:
            _stops.pop()
        except IndexError:
            return  # Another thread stopped the process while this one looked at the file.
        os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(_stop)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a `bench` ended, and what it printed on both streams."""

    code: int
    output: str


def _new_home() -> Path:
    return Path(tempfile.mkdtemp(prefix="bf-faulted-", dir="/run"))


@dataclass(slots=True)
class FaultedHost:
    """A mount namespace of its own, where directories of a runner can be taken away."""

    home: Path = field(default_factory=_new_home)
    """Outside of the usual temporary directories, which a fault may cover."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    prefix: Sequence[str] = ()
    """What a command is started by: it limits the runner."""
    _holder: "subprocess.Popen[bytes]" = field(init=False)
    _runners: "list[subprocess.Popen[str]]" = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        """Make the namespace."""
        for name in ("tmp", "jobs"):
            (self.home / name).mkdir()
        self._holder = subprocess.Popen(
            [*_ALONE, "sh", "-c", "echo; exec sleep 1000"],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._holder.stdout.readline()

    def close(self) -> None:
        """End its commands and the namespace, and with it all that was mounted."""
        for runner in self._runners:
            with runner:
                runner.kill()
        self._holder.kill()
        self._holder.communicate()
        shutil.rmtree(self.home)

    def inside(self, *command: object) -> None:
        """Run a command in the namespace."""
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount"]
        subprocess.run([*enter, *map(str, command)], check=True)

    def seen(self, path: Path) -> Path:
        """Return how a path of the namespace is reached from outside."""
        return Path(f"/proc/{self._holder.pid}/root") / path.relative_to("/")

    def start(
        self, *words: object, cwd: Path | None = None, stops: bool = False
    ) -> "subprocess.Popen[str]":
        """Start `bench` in the namespace. With `stops`, it stops for `strike`."""
        given = {"TMPDIR": str(self.home / "tmp"), "NO_COLOR": "1", **self.variables}
        given["PYTHONFAULTHANDLER"] = "1"
        if stops:
            (self.home / "stops").mkdir()
            (self.home / "stops/sitecustomize.py").write_text(_STOPS)
            given["PYTHONPATH"] = str(self.home / "stops")
        enter = ["nsenter", f"--target={self._holder.pid}", "--mount", *self.prefix]
        command = [*enter, "sh", "-c", _CODE, "sh", str(cwd or self.home), str(BENCH)]
        runner = subprocess.Popen(
            [*command, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **given},
        )
        self._runners.append(runner)
        return runner

    def end(self, runner: "subprocess.Popen[str]") -> Ended:
        """Wait for a `bench`. One that does not end prints its stacks."""
        try:
            output, _ = runner.communicate(timeout=2 * DEADLINE)
        except subprocess.TimeoutExpired:
            runner.send_signal(signal.SIGABRT)
            runner.send_signal(signal.SIGCONT)
            output, _ = runner.communicate(timeout=DEADLINE)
            raise AssertionError(f"bench did not end:\n{output}") from None
        return Ended(runner.returncode, output)

    def strike(self, runner: "subprocess.Popen[str]", fault: Callable[[], None]) -> None:
        """Impose a fault in the middle of a job: when its first rollout is over."""
        stat = Path(f"/proc/{runner.pid}/stat")
        until("a runner that stopped", lambda: stat.read_text().rpartition(") ")[2][0] in "TZ")
        assert runner.poll() is None, "the job was over before the fault"
        fault()
        runner.send_signal(signal.SIGCONT)

    def records(self) -> list[dict[str, Any]]:
        """Return every record of the job."""
        job = self.seen(self.home / "jobs")
        return [json.loads(path.read_bytes()) for path in sorted(job.glob("*/*/result.json"))]


@dataclass(frozen=True, slots=True)
class Place:
    """A directory of the runner, in a file system of its own that can be taken away."""

    host: FaultedHost
    path: Path
    how: str
    """`full`, `inodes`, `read-only` or `gone`."""

    def prepare(self) -> None:
        """Mount the file system."""
        options = {"full": "size=1m", "inodes": "nr_inodes=400"}.get(self.how, "size=64m")
        if self.path.parts[1] == "var":
            options = options.replace("1m", "200m")
        if self.how != "gone":
            self.host.inside("mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path)

    @property
    def _filler(self) -> Path:
        return self.host.seen(self.path) / "filler"

    def take(self) -> None:
        """Take the directory away."""
        if self.how == "read-only":
            # On a mount of its own, so that files that are open do not prevent it.
            self.host.inside("mount", "--bind", self.path, self.path)
            self.host.inside("mount", "-o", "remount,bind,ro", self.path)
        elif self.how == "gone":
            self.path.rename(self._aside)
        elif self.how == "inodes":
            self._filler.mkdir()
            _until_full(lambda index: (self._filler / str(index)).touch())
        else:
            fill(self._filler)

    def give_back(self) -> None:
        """End the fault."""
        if self.how == "read-only":
            self.host.inside("umount", self.path)
        elif self.how == "gone":
            # The runner may have made another one meanwhile.
            shutil.rmtree(self.path, ignore_errors=True)
            self._aside.rename(self.path)
        elif self.how == "inodes":
            shutil.rmtree(self._filler)
        else:
            self._filler.unlink()

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f"{self.path.name}.aside")


def fill(path: Path) -> None:
    """Write a file until there is no space."""
    with path.open("wb", buffering=0) as file:
        _until_full(lambda _: file.write(b"x" * 4096))


def _until_full(step: Callable[[int], object]) -> None:
    try:
        for index in itertools.count():
            step(index)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


class LimitedGroup:
    """Control groups that a runner is put in, with a limit of one of them. cgroup v1 or v2."""

    def __init__(self, controller: str, limit: str) -> None:
        """With the limit in the units of the controller's own file."""
        root = Path("/sys/fs/cgroup")
        unified = (root / "cgroup.controllers").exists()
        self._group = (root if unified else root / controller) / f"bf-faulted-{os.getpid()}"
        if unified:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        names = {"pids": "pids.max", "memory": "memory.max" if unified else "memory.limit_in_bytes"}
        self._group.mkdir()
        (self._group / names[controller]).write_text(limit)
        self.prefix = ["sh", "-c", _JOIN, str(self._group)]

    def close(self) -> None:
        """Remove the group once it is empty."""
        until("an empty control group", self._removed)

    def _removed(self) -> bool:
        try:
            self._group.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True
