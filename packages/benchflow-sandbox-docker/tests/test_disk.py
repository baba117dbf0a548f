"""No file that costs a sandbox nothing takes the engine's disk, and none is left behind."""

import asyncio
import subprocess
from contextlib import closing, suppress

import docker
import pytest
from benchflow_contracts.cause import blame
from benchflow_contracts.errors import HostError, SandboxLimitError, SnapshotError, TransferError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_docker import DockerProvider
from benchflow_sandbox_docker.commit_limiter import CommitLimiter
from benchflow_sandbox_docker.engine import DockerEngine
from own_engine import OwnEngine
from watching import until

pytestmark = pytest.mark.timeout(180)

SPARSE = "import os; os.truncate(os.open('/home/big', os.O_CREAT | os.O_RDWR), 2 << 30)"
HOLES = """
import os
with open("/home/big", "wb") as file:
    for at in range(0, 2 << 30, 1 << 20):
        os.pwrite(file.fileno(), b"x", at)
"""
SMALL = """
import os
os.mkdir("/home/many")
for n in range({number}):
    with open(f"/home/many/{{n}}", "w") as file:
        file.write("x")
"""
LINKS = """
import os
with open("/home/first", "wb") as file:
    file.write(os.urandom(20 << 20))
for n in range(100):
    os.link("/home/first", f"/home/other{n}")
"""
PIPE_BELOW_A_LINK = """
import os
os.remove("/etc/group")
os.mkfifo("/home/pipe")
os.symlink("/home/pipe", "/etc/group")
"""


@pytest.fixture(scope="module")
def small(root, image):
    """An engine with a disk in memory, which a test that fails may fill."""
    with closing(OwnEngine(disk_mb=1000)) as made:
        made.start()
        made.take(image)
        yield made


@pytest.fixture
def with_small(small, image, tmp_path, monkeypatch):
    """Run an async test with a provider of the small engine; nothing is left there after."""

    def run(test):
        async def main():
            async with DockerProvider(image=image, store=tmp_path / "store") as provider:
                return await test(provider)

        before = small.holds()
        monkeypatch.setenv("DOCKER_HOST", small.host)
        result = asyncio.run(main())
        assert small.holds() == before
        return result

    return run


async def python(box, code):
    assert (await box.exec(["python3", "-I", "-c", code], user="root")).ok


@pytest.mark.parametrize(
    ("code", "limit_mb", "told"),
    [
        (SPARSE, 100, "/home/big"),
        (HOLES, 100, "/home/big"),
        (SMALL.format(number=100_000), 200, "limit is 200 MB"),
        # The limit of a sandbox without one is half of the disk, and 10 GB at least.
        (SPARSE.replace("2 <<", "200 <<"), None, "half of the disk"),
    ],
    ids=["a hole", "many holes", "many small files", "no limit"],
)
def test_files_over_the_limit_are_in_no_snapshot_and_the_sandbox_did_that(
    with_small, small, code, limit_mb, told
):
    async def check(provider):
        box = await provider.create(SandboxSpec(limits={"disk_mb": limit_mb}))
        other = await provider.create(SandboxSpec(limits={"disk_mb": limit_mb}))
        await python(box, code)
        before = small.used_mb
        with pytest.raises(SandboxLimitError, match=told) as caught:
            await box.snapshot()
        assert not caught.value.retryable
        assert small.used_mb - before < 20
        assert (await box.exec("echo continues")).ok
        # Another sandbox of the engine notices nothing of that.
        await provider.discard(await other.snapshot())

    with_small(check)


def test_a_file_with_many_names_counts_once(with_small):
    async def check(provider):
        box = await provider.create(SandboxSpec(limits={"disk_mb": 100}))
        await python(box, LINKS)
        image = await box.snapshot()
        fork = await provider.create(SandboxSpec(), image=image)
        names = await fork.exec("stat -c %h /home/first")
        assert names.stdout == "101\n"

    with_small(check)


def test_a_snapshot_without_space_on_the_disk_is_a_host_error(with_small, small):
    async def check(provider):
        box = await provider.create(SandboxSpec(limits={"disk_mb": 4096}))
        await python(box, SPARSE)
        before = small.used_mb
        with pytest.raises(HostError, match="has space for") as caught:
            await box.snapshot()
        assert caught.value.retryable
        assert small.used_mb - before < 20

    with_small(check)


def test_a_large_file_that_was_removed_does_not_prevent_a_snapshot(with_small):
    async def check(provider):
        box = await provider.create(SandboxSpec(limits={"disk_mb": 100}))
        await python(box, SPARSE)
        with pytest.raises(SandboxLimitError):
            await box.snapshot()
        assert (await box.exec("rm /home/big", user="root")).ok
        assert (await box.snapshot()).bytes > 0

    with_small(check)


def test_a_commit_that_is_ended_copies_no_more_and_leaves_nothing(with_small, small):
    async def check(provider):
        box = await provider.create(SandboxSpec(limits={"disk_mb": 4096}))
        await python(box, SMALL.format(number=30_000))
        container, before = f"benchflow-{box.id}", small.used_mb
        engine = await DockerEngine.connect(f"{small.home}/sock", 60)
        small.api.pause(container)
        async with (
            CommitLimiter(engine).admit(container, None) as admit,
            asyncio.TaskGroup() as group,
        ):
            committing = group.create_task(asyncio.to_thread(commit, small.api, container))
            began = group.create_task(
                asyncio.to_thread(until, "a layer", lambda: small.used_mb > before + 10)
            )
            await began
            await admit.end()
        engine.close()
        made = committing.result()
        if made is not None:
            small.api.remove_image(made["Id"])
        assert small.used_mb < before

    with_small(check)


def commit(api, container):
    with suppress(docker.errors.APIError):
        return api.commit(container)
    return None


@pytest.fixture
def tiny(root, tmp_path):
    """A directory of the host whose disk holds 20 MB."""
    place = tmp_path / "tiny"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("code", [SPARSE, HOLES], ids=["a hole", "many holes"])
def test_a_download_over_its_cap_is_refused_before_its_holes_are_written(with_small, tiny, code):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await python(box, code)
        # With the disk full before the cap is met, the host would be blamed.
        with pytest.raises(TransferError, match="exceeds the limit"):
            await box.download("/home", tiny / "got")
        assert list(tiny.iterdir()) == []
        assert (await box.exec("echo continues")).ok

    with_small(check)


def test_a_snapshot_without_space_on_the_disk_is_not_saved(with_small, small, tiny):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        image = await box.snapshot()
        with pytest.raises(SnapshotError, match="has space for") as caught:
            await provider.save(image, tiny / "saved")
        assert blame(caught.value, inside="agent").by == "host"
        assert list(tiny.iterdir()) == []

    with_small(check)


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.remove('/etc/passwd'); os.mkfifo('/etc/passwd')",
        PIPE_BELOW_A_LINK,
        "import os; os.truncate('/etc/passwd', 90 << 20)",
    ],
    ids=["a pipe", "a link to a pipe", "a huge file"],
)
def test_accounts_that_would_stop_the_engine_are_in_no_snapshot(with_small, code):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await python(box, code)
        with pytest.raises(SandboxLimitError, match="/etc/") as caught:
            await box.snapshot()
        assert blame(caught.value, inside="agent").by == "agent"
        # An engine that waits at the pipe would remove no image of others.
        other = await provider.create(SandboxSpec())
        await provider.discard(await other.snapshot())

    with_small(check)


def test_an_image_without_accounts_has_snapshots(with_small):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await python(box, "import os; os.remove('/etc/passwd'); os.remove('/etc/group')")
        assert (await box.snapshot()).bytes > 0

    with_small(check)
