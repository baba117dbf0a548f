"""A runner that is killed at any step of a checkpoint leaves nothing half-made, or alive."""

import asyncio
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchflow_contracts import SandboxRecord
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_kernel.rollout.checkpoint_manifest import saved_checkpoints
from benchflow_sandbox_local import LocalProvider
from benchflow_store.saved_checkpoints import delete_checkpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="the store of a checkpoint needs root"),
]

CLAWS = Path(__file__).parents[2] / "benchmarks" / "clawsbench"
RUNNER = Path(__file__).with_name("standing_runner.py")
SCRIPT = '[[turn]]\n[[turn.do]]\nsay = "One."\n[[turn]]\n[[turn.do]]\nsay = "Two."\n'
PATIENCE = 240.0
_PR_SET_CHILD_SUBREAPER = 36

# The engine stops itself when its next step is the wanted one.
ENGINE = """#!/bin/sh
case "$1" in dump|restore)
    export BENCHFLOW_TEST_ENGINE={steps}:$$
    set -- "$@" --action-script {steps}/step ;;
esac
exec {program} "$@"
"""
ACTION = """#!/bin/sh
[ "$CRTOOLS_SCRIPT_ACTION" != "$(cat {steps}/wanted)" ] || kill -STOP ${{BENCHFLOW_TEST_ENGINE##*:}}
"""


@pytest.fixture
def orphans() -> Iterator[Callable[[], list[str]]]:
    """Become the parent of what a killed runner leaves; tell what of it still runs."""
    libc, mine = ctypes.CDLL(None), children()
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0

    def left() -> list[str]:
        for pid in children() - mine:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return [f"{pid}: {command(pid)}" for pid in children() - mine]

    yield left
    assert libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) == 0


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has just ended
            found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return "gone"


def until(what: str, found: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.02)


@dataclass
class World:
    """A task, a store, and an engine that can be stopped at its steps."""

    folder: Path
    task: Path
    engine: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def rollout(self) -> Path:
        return self.folder / "rollout"

    def start(self, fidelity: str, step: str, engine_step: str) -> subprocess.Popen[str]:
        (self.engine.parent / "wanted").write_text(engine_step)
        return subprocess.Popen(
            [sys.executable, RUNNER, self.task, self.folder, fidelity, step],
            env={
                **os.environ,
                "BENCHFLOW_CRIU": str(self.engine),
                # What is restored first is then the parent: one with few files would be kept.
                "BENCHFLOW_TEST_FILES": "600" if engine_step in RESTORING else FILES.get(step, "0"),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )

    def engine_stands(self) -> bool:
        mark = f"BENCHFLOW_TEST_ENGINE={self.engine.parent}:".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    status = (process / "stat").read_text().rpartition(")")[2].split()
                    if status[0] == "T":
                        return True
        return False


@pytest.fixture(scope="module")
def shared(criu: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return where all share what the probe of live forks found, and the engine."""
    steps = tmp_path_factory.mktemp("engine")
    for name, text in {"engine": ENGINE, "step": ACTION}.items():
        (steps / name).write_text(text.format(steps=steps, program=criu))
        (steps / name).chmod(0o755)
    (steps / "wanted").write_text("none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("BENCHFLOW_CRIU", str(steps / "engine"))

        async def probe() -> str | None:
            async with LocalProvider(store=steps / "store") as provider:
                found = await provider.capabilities()
            return None if "live" in found.snapshot_levels else found.notes["live"]

        refused = asyncio.run(probe())
        if refused is not None:
            pytest.skip(refused)
        yield steps / "engine"


@pytest.fixture
def world(tmp_path: Path, shared: Path) -> World:
    task = tmp_path / "tasks" / "book-the-review-room"
    shutil.copytree(CLAWS / "tasks" / task.name, task)
    shutil.copy(CLAWS / "environment.toml", tmp_path)
    shutil.copytree(CLAWS / "images", tmp_path / "images", symlinks=True)
    (task / "solution" / "script.toml").write_text(SCRIPT)
    return World(tmp_path, task, shared)


STEPS = {
    "state": ("quiesced", "copying", "sealed", "published", "saved", "named"),
    "live": ("carried", "engine-started", "sealed", "published"),
}
FILES = {"copying": "5000"}
KEPT = {"state": {"sandbox", "environment"}, "live": {"sandbox", "environment", "session"}}
RESTORING = ("pre-restore", "post-restore", "pre-resume")
ENGINE_STEPS = ("pre-dump", "post-dump", *RESTORING)


@pytest.mark.parametrize(
    ("fidelity", "step", "engine_step"),
    [
        *((fidelity, step, "none") for fidelity, steps in STEPS.items() for step in steps),
        *(("live", "none", step) for step in ENGINE_STEPS),
    ],
)
def test_nothing_half_made_is_seen_and_nothing_is_left(
    world: World,
    orphans: Callable[[], list[str]],
    fidelity: str,
    step: str,
    engine_step: str,
) -> None:
    runner = world.start(fidelity, step, engine_step)
    assert runner.stdout is not None
    try:
        if engine_step == "none":
            assert runner.stdout.readline().strip() == step
        else:
            until("the engine at its step", lambda: world.engine_stands() or ended(runner))
            assert runner.poll() is None
    finally:
        runner.kill()
        runner.wait()
        runner.stdout.close()
    until_gone(orphans)
    left = asyncio.run(reap(world.store, dry_run=True))
    assert left
    groups = [folder for folder, _, _ in os.walk("/sys/fs/cgroup")]
    assert not [path for path in groups if any(record.id in path for record in left)]
    assert asyncio.run(reap(world.store)) == left
    assert asyncio.run(records(world.store)) == []
    assert not list((world.store / "mnt").iterdir())
    assert str(world.store) not in Path("/proc/self/mountinfo").read_text()
    published = checkpoints(world.rollout / "events.jsonl")
    assert all(layers >= KEPT[fidelity] for layers in published)
    assert bool(published) == (step in {"published", "saved", "named"})
    if step == "named":
        # It has its name, so it is whole: a world can be made from it.
        [(path, manifest)] = saved_checkpoints(world.rollout)
        assert asyncio.run(revived(world.store, path)) == manifest.image.digest
    else:
        assert list(saved_checkpoints(world.rollout)) == []
        assert delete_checkpoints(world.folder) == []
        assert list(world.rollout.glob("checkpoints/*")) == []


def ended(runner: subprocess.Popen[str]) -> bool:
    return runner.poll() is not None


def until_gone(orphans: Callable[[], list[str]]) -> None:
    end = time.monotonic() + PATIENCE
    while orphans():
        assert time.monotonic() < end, orphans()
        time.sleep(0.02)


async def reap(store: Path, *, dry_run: bool = False) -> list[SandboxRecord]:
    """Do what `bench sandbox prune` does, in a store of our own."""
    return await LocalProvider(store=store).reap(ReapPolicy(dry_run=dry_run))


async def records(store: Path) -> list[SandboxRecord]:
    """Return what the store knows of boxes, of whichever runner."""
    return [record async for record in LocalProvider(store=store).sandboxes()]


async def revived(store: Path, kept: Path) -> str:
    """Return the digest of a saved checkpoint from which a box was made that works."""
    async with LocalProvider(store=store) as provider:
        image = await provider.load(kept / "image")
        box = await provider.create(SandboxSpec(), image=image)
        assert (await box.exec("test -x /usr/local/bin/claw-gcal")).ok
        return image.digest


def checkpoints(log: Path) -> list[set[str]]:
    """Return the layers of each checkpoint that the log tells of; its last line may be torn."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return [set(event["layers"]) for event in events if event["kind"] == "checkpointed"]
