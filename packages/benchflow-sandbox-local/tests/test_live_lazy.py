"""Children that run before all of their memory is there: right or dead, never wrong."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SandboxLostError, SnapshotError, UsageError
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local import LocalProvider
from benchflow_sandbox_local.in_sandbox import lazy_probe_program
from benchflow_sandbox_local.live import criu
from benchflow_sandbox_local.live.fork_probe import LostInForkError
from benchflow_sandbox_local.live.lazy import LazyRestorePolicy, lazy_threshold
from benchflow_sandbox_local.live.lazy_probe import probe_lazy

TOY = Path(lazy_probe_program.__file__).read_text()
MEGABYTES = 64
LEAST = 16
"""Small enough for the toy to be large."""

lazily = pytest.mark.usefixtures("criu")


async def parent_of(provider, megabytes=MEGABYTES):
    """Return a sandbox with a toy, and the toy."""
    sandbox = await provider.create(SandboxSpec())
    toy = await sandbox.spawn(["python3", "-I", "-c", TOY, str(megabytes)])
    assert await answer(toy) == "ready"
    return sandbox, toy


async def answer(toy):
    said = b""
    async with asyncio.timeout(60):
        while not said.endswith(b"\n"):
            data = await toy.stdout.read()
            assert data, await toy.stderr.read()
            said += data
    return json.loads(said)


async def look(toy):
    """Return what the toy finds wrong."""
    await toy.stdin.write(b"look\n")
    return await answer(toy)


def children(pid):
    """Yield the number and the name of each child of a process."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):
                yield int(child), Path(f"/proc/{child}/comm").read_text().strip()


def launcher():
    """Return the number of the launcher of this process."""
    for pid, _ in children(os.getpid()):
        with suppress(OSError):
            if "launcher_process.server" in Path(f"/proc/{pid}/cmdline").read_text():
                return pid
    raise AssertionError("there is no launcher")


def pagers(pid):
    """Return the pagers and guards of a launcher, by name."""
    return {name: child for child, name in children(pid) if name in {"bf-pager", "bf-guard"}}


async def no_pager_left():
    """Return when all pagers of this process have ended."""

    def wait():
        deadline = time.monotonic() + 60
        while pagers(launcher()):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    await asyncio.to_thread(wait)


async def child_with_a_stopped_pager(provider, image):
    """Return a child that still lacks memory, and what its pager and its guard are."""
    for _ in range(10):
        child = await provider.create(SandboxSpec(), image=image)
        found = pagers(launcher())
        with suppress(KeyError, ProcessLookupError):
            os.kill(found["bf-pager"], signal.SIGSTOP)
            if pagers(launcher()) == found and found.keys() == {"bf-pager", "bf-guard"}:
                return child, found
        await child.teardown()
    raise AssertionError("all of the memory was there at once, ten times")


def run(with_provider, check, **options):
    """Run a test against a provider that has found out what works here."""

    async def proven(provider):
        assert "live" in (await provider.capabilities()).snapshot_levels
        await check(provider)
        await no_pager_left()

    with_provider(proven, lazy_megabytes=LEAST, **options)


@lazily
def test_a_large_child_runs_before_its_memory_is_there_and_lacks_nothing(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        for _ in range(2):
            child = await provider.create(SandboxSpec(), image=image)
            assert child.is_lazy
            toy = await child.attach(toy.id)
            assert await look(toy) == {}
            await child.wait_for_memory()
            assert await look(toy) == {}
            image = await child.snapshot("live")
        assert not parent.is_lazy

    run(with_provider, check)


@lazily
def test_a_small_child_and_one_of_an_unproven_machine_come_with_their_memory(with_provider):
    async def check(provider):
        parent, _ = await parent_of(provider, 4)
        image = await parent.snapshot("live")
        assert not (await provider.create(SandboxSpec(), image=image)).is_lazy
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        assert not child.is_lazy
        assert await look(await child.attach(toy.id)) == {}
        await child.wait_for_memory()

    with_provider(check, lazy_megabytes=LEAST)


@lazily
def test_a_fork_of_a_child_waits_for_its_memory(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child, found = await child_with_a_stopped_pager(provider, image)
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            snapshot = group.create_task(child.snapshot("live"))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not snapshot.done()
            os.kill(found["bf-pager"], signal.SIGCONT)
        for box in (child, await provider.create(SandboxSpec(), image=snapshot.result())):
            assert await look(await box.attach(toy.id)) == {}

    run(with_provider, check)


@lazily
def test_memory_comes_into_a_box_that_is_held(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        async with child.freeze():
            await child.wait_for_memory()
        assert await look(await child.attach(toy.id)) == {}

    run(with_provider, check)


@lazily
def test_a_child_whose_pager_is_killed_is_dead_and_has_read_nothing(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child, found = await child_with_a_stopped_pager(provider, image)
        carried = await child.attach(toy.id)
        await carried.stdin.write(b"look\n")
        os.kill(found["bf-pager"], signal.SIGKILL)
        async with asyncio.timeout(60):
            assert await carried.wait() == 137
            assert await carried.stdout.read() == b""
        with pytest.raises(SnapshotError, match="ended before all of its memory"):
            await child.wait_for_memory()
        with pytest.raises(SandboxLostError):
            await child.snapshot("live")
        with pytest.raises(SandboxError):
            await child.exec(["true"])
        await child.teardown()
        assert child.group.members() == []
        assert await look(toy) == {}

    run(with_provider, check)


@lazily
def test_a_child_whose_guard_is_killed_lacks_nothing(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child, found = await child_with_a_stopped_pager(provider, image)
        os.kill(found["bf-guard"], signal.SIGKILL)
        os.kill(found["bf-pager"], signal.SIGCONT)
        assert await look(await child.attach(toy.id)) == {}

    run(with_provider, check)


@lazily
def test_a_child_that_is_torn_down_before_its_memory_is_there_leaves_nothing(with_provider):
    async def check(provider):
        parent, _ = await parent_of(provider)
        image = await parent.snapshot("live")
        child, found = await child_with_a_stopped_pager(provider, image)
        os.kill(found["bf-pager"], signal.SIGCONT)
        await child.teardown()
        await provider.discard(image)
        await no_pager_left()

    run(with_provider, check)


@lazily
def test_an_image_may_be_discarded_while_a_child_of_it_still_needs_it(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        child, found = await child_with_a_stopped_pager(provider, image)
        await provider.discard(image)
        os.kill(found["bf-pager"], signal.SIGCONT)
        assert await look(await child.attach(toy.id)) == {}

    run(with_provider, check)


@lazily
def test_a_child_with_less_memory_than_its_image_is_dead_and_says_nothing_wrong(with_provider):
    async def check(provider):
        parent, toy = await parent_of(provider)
        image = await parent.snapshot("live")
        spec = SandboxSpec(limits=ResourceLimits(memory_mb=MEGABYTES // 2))
        try:
            child = await provider.create(spec, image=image)
        except SnapshotError:
            return  # it did not even come so far
        carried = await child.attach(toy.id)
        with suppress(SandboxError):
            await carried.stdin.write(b"look\n")
        async with asyncio.timeout(60):
            assert await carried.wait() == 137
            assert await carried.stdout.read() == b""

    run(with_provider, check)


@lazily
@pytest.mark.parametrize("pager", ["/bin/false", "/bin/true", "/nowhere"])
def test_a_machine_that_cannot_is_found_out_and_children_come_whole(
    with_provider, monkeypatch, tmp_path, pager
):
    monkeypatch.setattr(criu, "pager_path", lambda: Path(pager))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    async def check(provider):
        found = await provider.capabilities()
        assert "live" in found.snapshot_levels
        assert "did not restore a sandbox lazily" in found.notes["lazy"]
        parent, toy = await parent_of(provider)
        child = await provider.create(SandboxSpec(), image=await parent.snapshot("live"))
        assert not child.is_lazy
        assert await look(await child.attach(toy.id)) == {}
        await no_pager_left()

    with_provider(check, lazy_megabytes=LEAST)


def test_a_page_that_is_lost_is_found_by_the_probe():
    class UndigestedImage:
        is_lazy = True
        id = "toy"

        def __init__(self):
            self.stdin = self.stdout = self
            self.said = [b'"ready"\n']

        async def spawn(self, command):
            return self

        async def attach(self, process_id):
            return self

        async def snapshot(self, level):
            return self

        ref = "1-f/i"

        async def read(self):
            return self.said.pop()

        async def write(self, data):
            self.said.append(b'{"a forked child": 3}\n')

        async def teardown(self):
            pass

    class Maker:
        async def create(self, spec, image, labels):
            return UndigestedImage() if image is None else image

        async def discard(self, image):
            pass

    with pytest.raises(LostInForkError, match="'a forked child': 3"):
        asyncio.run(probe_lazy(Maker(), LazyRestorePolicy(), SandboxSpec()))


def test_the_toy_finds_what_is_wrong():
    memory = lazy_probe_program.Memory(4)
    assert lazy_probe_program.check(memory) == {}
    missing = max(memory.expected)
    lazy_probe_program.LIBC.madvise(
        lazy_probe_program.ctypes.c_void_p(missing), lazy_probe_program.ctypes.c_size_t(1), 4
    )
    assert lazy_probe_program.check(memory) == {
        "thread": 1,
        "a forked child": 256,
        "the process": 1,
    }


@pytest.mark.parametrize(
    ("named", "said", "expected"),
    [(None, "", 80), (None, "200", 200), (None, "0", None), (0, "200", None), (5, "", 5)],
)
def test_the_least_size_is_named_or_the_environments(monkeypatch, named, said, expected):
    monkeypatch.setenv("BENCHFLOW_LAZY_MEGABYTES", said)
    assert lazy_threshold(named) == expected


def test_a_size_that_is_no_number_is_refused(monkeypatch):
    monkeypatch.setenv("BENCHFLOW_LAZY_MEGABYTES", "many")
    with pytest.raises(UsageError, match="'many'"):
        LocalProvider()


RUNNER = f"""
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from benchflow_sandbox_local import LocalProvider
from test_live_lazy import LEAST, child_with_a_stopped_pager, launcher, parent_of

async def main():
    provider = LocalProvider(store=Path(sys.argv[1]), lazy_megabytes=LEAST)
    await provider.capabilities()
    parent, _ = await parent_of(provider)
    image = await parent.snapshot("live")
    child, found = await child_with_a_stopped_pager(provider, image)
    print(json.dumps([launcher(), found, child.group.paths[0]]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@lazily
@pytest.mark.parametrize("victim", ["runner", "launcher"])
def test_when_who_made_a_child_is_killed_it_is_dead_and_nobody_is_left(store, victim):
    if os.geteuid() != 0:
        pytest.skip("live snapshots need root")
    command = [sys.executable, "-c", RUNNER, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as runner:
        pid, found, group = json.loads(runner.stdout.readline())
        if victim == "runner":
            runner.kill()
        else:
            os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while members(group):  # with the pager still stopped
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(found["bf-pager"], signal.SIGCONT)
        while any(alive(each) for each in found.values()):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        runner.kill()


def members(group):
    """Return the processes of a group; none when it is gone."""
    with suppress(OSError):
        return Path(group, "cgroup.procs").read_text()
    return ""


def alive(pid):
    """Whether a process runs; one that nobody collects does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
