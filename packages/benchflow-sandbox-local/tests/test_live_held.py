"""Live forks of boxes with many processes whose pipes somebody holds."""

import asyncio
from contextlib import suppress

import pytest
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_local.live.forker import Forker
from live_traces import echo
from test_live_standby import engines

pytestmark = pytest.mark.usefixtures("criu")

MANY = 200
AT_ONCE = 10


@pytest.fixture
def restores(monkeypatch):
    """Count the restores, so that a second try does not hide a failure of the first."""
    counted = []
    revive = Forker.revive

    def revive_counted(*arguments, **options):
        counted.append(arguments)
        return revive(*arguments, **options)

    monkeypatch.setattr(Forker, "revive", revive_counted)
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
