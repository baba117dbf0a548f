"""No file that costs a sandbox nothing costs the host anything, on any way out of it."""

import subprocess

import pytest
from benchflow_contracts.errors import SnapshotError, TransferError
from benchflow_contracts.sandbox import SandboxSpec

pytestmark = pytest.mark.timeout(120)

SPARSE = "import os; os.truncate(os.open('big', os.O_CREAT | os.O_RDWR), {size} << 30)"
HOLES = """
import os
with open("big", "wb") as file:
    for at in range(0, 2 << 30, 1 << 20):
        os.pwrite(file.fileno(), b"x", at)
"""
# To read it once for each name would take hours.
LINKS = """
import os
with open("first", "wb") as file:
    file.write(os.urandom(20 << 20))
for n in range(5_000):
    os.link("first", f"other{n}")
"""
SMALL = """
for n in range(5_000):
    with open(str(n), "w") as file:
        file.write("x")
"""
LIVE = """
import os, mmap
file = os.open("gone", os.O_CREAT | os.O_RDWR)
os.truncate(file, 200 << 30)
os.unlink("gone")
memory = os.memfd_create("memory")
os.truncate(memory, 200 << 30)
mapped = mmap.mmap(memory, 1 << 20)
mapped[0] = 7
print("up", flush=True)
input()
print(mapped[0], os.fstat(file).st_size >> 30, flush=True)
"""


@pytest.fixture
def small(root, tmp_path):
    """A directory of the host whose disk holds 100 MB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    ("code", "look", "seen", "least"),
    [
        (SPARSE.format(size=200), "stat -c %s big", f"{200 << 30}\n", 0),
        (HOLES, "du -k big | cut -f1", "8192\n", 2048 * 4096),
        (LINKS, "stat -c %h first", "5001\n", 20 << 20),
        (SMALL, "ls | wc -l", "5000\n", 5_000 * 4096),
    ],
    ids=["a hole", "many holes", "many names", "many small files"],
)
def test_what_takes_no_memory_inside_takes_no_disk_outside(
    with_provider, small, code, look, seen, least
):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await box.set_baseline()
        assert (await box.exec(["python3", "-I", "-c", code])).ok
        assert (await box.changed_files()).added
        image = await box.snapshot()
        assert least <= image.bytes <= least + (1 << 20)
        await provider.save(image, small / "saved")
        loaded = await provider.load(small / "saved")
        fork = await provider.create(SandboxSpec(), image=loaded)
        assert (await fork.exec(look)).stdout == seen

    with_provider(check)


def test_a_file_larger_than_the_host_can_have_is_not_saved_and_the_box_did_that(
    with_provider, small
):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        assert (await box.exec(["python3", "-I", "-c", SPARSE.format(size=1 << 32)])).ok
        with pytest.raises(TransferError, match="exceeds the limit"):
            await box.download("/workspace", small / "got")
        image = await box.snapshot()
        # A tmpfs could have it, and a disk cannot.
        with pytest.raises(SnapshotError, match="File too large") as caught:
            await provider.save(image, small.parent / "saved")
        assert caught.value.caused_by == "inside"
        assert not (small.parent / "saved").exists()
        assert list(small.iterdir()) == []

    with_provider(check)


@pytest.mark.usefixtures("criu")
def test_a_live_snapshot_holds_no_hole_of_what_has_no_name(with_provider, small):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        process = await box.spawn(["python3", "-I", "-c", LIVE])
        assert await process.stdout.read() == b"up\n"
        await provider.save(await box.snapshot("live"), small / "saved")
        image = await provider.load(small / "saved")
        assert image.bytes < 64 << 20
        fork = await provider.create(SandboxSpec(), image=image)
        carried = await fork.attach(process.id)
        await carried.stdin.write(b"\n")
        assert await carried.stdout.read() == b"7 200\n"
        await carried.aclose()
        await process.aclose()

    with_provider(check)
