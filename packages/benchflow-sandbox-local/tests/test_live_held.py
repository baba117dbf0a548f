"""Live forks of boxes with many processes whose pipes somebody holds."""

import asyncio
import resource
from contextlib import suppress
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.live.criu import CriuEngine
from live_traces import MANY_FILES, echo
from test_live_standby import engines

pytestmark = pytest.mark.usefixtures("criu")

MANY = 200
AT_ONCE = 10


@pytest.fixture
def restores(monkeypatch):
    """Count the restores, so that a second try does not hide a failure of the first."""
    counted = []
    revive = CriuEngine.run_restore

    def revive_counted(*arguments, **options):
        counted.append(arguments)
        return revive(*arguments, **options)

    monkeypatch.setattr(CriuEngine, "run_restore", revive_counted)
    return counted


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("exit 3", "ended with exit code 3"),
        ("echo 'no file to map' >&2; exit 1", "no file to map"),
        ("kill -9 $$", "was killed by SIGKILL"),
    ],
    ids=["code", "words", "signal"],
)
@pytest.mark.parametrize("verb", ["dump", "restore"])
def test_an_engine_that_fails_has_a_reason(with_provider, broken, verb, end, reason):
    broken(f"{verb}) {end} ;;")

    async def check(provider):
        parent = await provider.create(SandboxSpec())
        with pytest.raises(SnapshotError, match=reason):
            await provider.create(SandboxSpec(), image=await parent.snapshot("live"))
        assert (await parent.exec(["true"])).ok

    with_provider(check)


def pipes_of(process):
    held = []
    for path in process.joinpath("fd").iterdir():
        with suppress(FileNotFoundError):  # an engine that starts reads its libraries
            held.append(str(path.readlink()))
    return [name for name in held if name.startswith("pipe:")]


async def children_at_once(provider, image, count):
    async with asyncio.TaskGroup() as group:
        made = [
            group.create_task(provider.create(SandboxSpec(), image=image)) for _ in range(count)
        ]
    return [task.result() for task in made]


@pytest.mark.timeout(120)
def test_ten_children_made_at_once_have_the_pipes_of_200_held_processes(
    with_provider, store, restores
):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        processes = [await parent.spawn(["cat"]) for _ in range(MANY)]
        image = await parent.snapshot("live")
        children = await children_at_once(provider, image, AT_ONCE)
        assert len(restores) == AT_ONCE  # each of them came back at the first try
        for number, child in enumerate(children):
            carried = [await child.attach(process.id) for process in processes]
            for process in carried:
                await process.stdin.write(f"{number} {process.id}".encode())
            async with asyncio.timeout(60):
                for process in carried:
                    assert await process.stdout.read() == f"{number} {process.id}".encode()
        assert await echo(processes[-1], b"alive") == b"alive"
        # An engine that waits for another child holds no pipe of these.
        for engine in engines(store):
            assert not pipes_of(engine)

    with_provider(check)


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_processes_that_have_ended_are_not_carried_and_their_output_stays(with_provider, restores):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        running = await parent.spawn(["cat"])
        ended = [await parent.spawn(["echo", "told"]) for _ in range(3)]
        # This one has ended, too, but somebody inside still writes to its pipes.
        left = await parent.spawn("(read line; echo $line; exec sleep 1000) <&0 &")
        for process in (*ended[:2], left):
            assert await process.wait() == 0
        await parent.exec("while pgrep -x echo; do :; done")  # the last one: nobody waited for it
        image = await parent.snapshot("live")
        before = descriptors()
        child = await provider.create(SandboxSpec(), image=image)
        for process in ended:
            with pytest.raises(SandboxError, match=process.id) as refused:
                await child.attach(process.id)
            assert "had ended" in refused.value.hint
            assert await process.stdout.read() == b"told\n"
            assert await process.stdout.read() == b""
            assert await process.wait() == 0
        carried = await child.attach(left.id)
        assert await echo(carried, b"on\n") == b"on\n"
        assert await echo(await child.attach(running.id), b"alive") == b"alive"
        # What leads into the child, and the pipes of two processes.
        assert descriptors() - before <= 2 * 3 + 5
        assert await echo(left, b"parent\n") == b"parent\n"

    with_provider(check)


def test_a_frozen_box_carries_no_pipes_of_processes_that_have_ended(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        assert (await parent.exec(MANY_FILES)).ok
        ended = [await parent.spawn(["true"]) for _ in range(3)]
        for process in ended:
            assert await process.wait() == 0
        running = await parent.spawn(["cat"])
        async with parent.freeze():  # nobody inside can be asked
            image = await parent.snapshot("live")
        before = descriptors()
        child = await provider.create(SandboxSpec(), image=image)
        assert descriptors() - before <= 3 + 5
        for cat in (running, await child.attach(running.id)):
            assert await echo(cat, b"alive") == b"alive"
        for process in ended:
            assert await process.stdout.read() == b""

    with_provider(check)


def test_more_held_processes_than_a_child_can_have_are_refused_with_the_number(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        processes = [await parent.spawn(["cat"]) for _ in range(60)]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (350, limits[1]))
        try:
            with pytest.raises(
                SnapshotError, match=r"60 processes.*424 open files.*350"
            ) as refused:
                await parent.snapshot("live")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert refused.value.caused_by == "host"
        assert await echo(processes[0], b"alive") == b"alive"

    with_provider(check)
