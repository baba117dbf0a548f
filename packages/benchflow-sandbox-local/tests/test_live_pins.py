"""Each test runs a script in a mount namespace of its own, with real overlay mounts."""

import subprocess
import sys

import pytest
from benchflow_contracts.sandbox import SandboxSpec

WORLD = """
import os, subprocess, sys
from pathlib import Path
from benchflow_sandbox_local.launcher_process.layers.inode_pins import (
    ATTRIBUTE, MAX_DEPTH, pin, pinned_number
)

class World:
    def __init__(self, top):
        self.top, self.layers = Path(top), []
        self.mount("tmpfs", "tmpfs", self.top, "")
        (self.top / "base").mkdir()
        self.mount("tmpfs", "tmpfs", self.top / "base", "")
        (self.top / "base" / "skel").mkdir()
        (self.top / "base" / "skel" / "image").write_text("image")
        (self.top / "base" / "skel" / "untouched").write_text("image")

    def mount(self, kind, source, target, options):
        command = ["mount", "-t", kind, source, str(target)]
        subprocess.run([*command, "-o", options] if options else command, check=True)

    def generation(self):
        number = len(self.layers)
        self.upper, work, root = (self.top / f"{n}{number}" for n in "uwm")
        for path in (self.upper, work, root):
            path.mkdir()
        lowers = ":".join(map(str, [*self.layers, self.top / "base" / "skel"]))
        where = f"lowerdir={lowers},upperdir={self.upper},workdir={work}"
        self.mount("overlay", "o", root, f"{where},index=on,nfs_export=on,xino=on")
        self.layers.insert(0, self.upper)
        return root

    def seal(self, root):
        pin(str(self.upper), str(root))
        subprocess.run(["umount", str(root)], check=True)

def identity(root, name):
    '''What bf-identity.so reports.'''
    path = root / name
    info = path.stat()
    try:
        value = os.getxattr(path, ATTRIBUTE)
    except OSError:
        value = None
    pinned = pinned_number(value, info.st_ino)
    return info.st_dev == root.stat().st_dev, info.st_ino if pinned is None else pinned

world = World(sys.argv[1])
"""

CHAIN = """
root = world.generation()
(root / "sub").mkdir()
for name in ("new", "sub/quiet", "moved0"):
    (root / name).write_text("x")
os.link(root / "new", root / "twin")
names = ["image", "untouched", "new", "twin", "sub/quiet"]
before = {name: identity(root, name) for name in names}
moved = identity(root, "moved0")
ours = set()
for generation in range(1, 6):
    world.seal(root)
    root = world.generation()
    def all_the_same():
        assert {name: identity(root, name) for name in names} == before, generation
        assert identity(root, f"moved{generation - 1}") == moved
    all_the_same()
    for name in ("image", "twin"):
        with (root / name).open("a") as file:
            file.write("more")
    all_the_same()
    (root / f"moved{generation - 1}").rename(root / f"moved{generation}")
    subprocess.run(["cp", "-a", root / "new", root / f"copy{generation}"], check=True)
    ours.add(identity(root, f"copy{generation}"))
    pin(str(world.upper), str(root))
    assert {name: identity(root, name) for name in names} == before, "the fork was given up"
numbers = {*before.values(), moved, *ours}
assert len(ours) == 5 and len(numbers) == len(before) - 1 + 1 + 5, numbers
assert all(same for same, number in numbers)
"""

HOSTILE = """
import socket
root = world.generation()
os.mkfifo(root / "pipe")
os.symlink("/etc/passwd", root / "link")
os.symlink("..", root / "up")
socket.socket(socket.AF_UNIX).bind(str(root / "socket"))
(root / "untouched").unlink()
(root / "big").write_text("x")
os.setxattr(root / "big", ATTRIBUTE, b"x" * 5000)
before = identity(root, "big")
extent = pin(str(world.upper), str(root))
assert (extent.files, extent.entries) == (1, 6), extent
assert extent.bytes == 4096, extent
assert identity(root, "big") == before
deep = os.open(root, os.O_RDONLY)
for depth in range(MAX_DEPTH + 2):
    os.mkdir("d", dir_fd=deep)
    deep = os.open("d", os.O_RDONLY, dir_fd=deep)
try:
    pin(str(world.upper), str(root))
except OSError as error:
    assert "nested deeper" in str(error)
else:
    raise AssertionError("no refusal")
"""


PASSED = """
from benchflow_sandbox_local.launcher_process.layers.inode_pins import (
    MAX_PASSED, highest_pinned, pass_numbers
)
root = world.generation()
assert highest_pinned(str(world.upper)) == 0
for number in range(300):
    (root / "gone").write_text("x")
    (root / "gone").unlink()
(root / "sub").mkdir()
(root / "sub" / "kept").write_text("x")
with (root / "image").open("a") as file:
    file.write("of another file system")
number = identity(root, "sub/kept")[1]
world.seal(root)
assert highest_pinned(str(world.upper)) == number > 300
(fresh := world.top / "fresh").mkdir()
world.mount("tmpfs", "tmpfs", fresh, "")
pass_numbers(str(fresh), number)
(fresh / "new").write_text("x")
assert (fresh / "new").stat().st_ino == number + 1
pass_numbers(str(fresh), number)
try:
    pass_numbers(str(fresh), 2 * MAX_PASSED)
except OSError as error:
    assert "numbers up to" in str(error)
else:
    raise AssertionError("no refusal")
"""


pytestmark = pytest.mark.usefixtures("root")


def run(script, directory):
    command = ["unshare", "--mount", sys.executable, "-c", WORLD + script, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_keeps_its_number_over_a_chain_of_forks_and_shares_it_with_no_other(tmp_path):
    run(CHAIN, tmp_path)


def test_a_hostile_tree_is_walked_without_following_or_opening_anything(tmp_path):
    run(HOSTILE, tmp_path)


def test_numbers_are_passed_until_no_new_file_can_meet_a_pinned_one(tmp_path):
    run(PASSED, tmp_path)


@pytest.mark.usefixtures("criu")
def test_no_file_of_a_loaded_world_has_the_number_of_another(with_provider, store):
    saved = store.with_name("saved")
    before = "for i in $(seq 300); do : >gone; rm gone; done; : >kept; echo x >>/etc/hosts"
    seen = "stat -c %i kept /etc/hosts"
    after = "for i in $(seq 600); do : >new$i; done; stat -c %i new* | sort -u"
    every = "find /etc /workspace -xdev -type f -links 1 -printf '%i\\n' | sort | uniq -d"

    async def save(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec(before, user="root")
        told = (await sandbox.exec(seen)).stdout
        await provider.save(await sandbox.snapshot("live"), saved)
        return told

    async def load(provider):
        await provider.create(SandboxSpec())
        sandbox = await provider.create(SandboxSpec(), image=await provider.load(saved))
        told = (await sandbox.exec(seen)).stdout
        new = (await sandbox.exec(after)).stdout.split()
        return told, new, (await sandbox.exec(every, user="root")).stdout

    told = with_provider(save)
    again, new, twice = with_provider(load)
    assert again == told
    assert len(new) == 600
    assert min(map(int, new)) > int(told.split()[0]) > 300
    assert twice == ""
