import asyncio

import pytest
from benchflow_contracts.errors import SandboxUnsupportedError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec

CHANGES = """
set -e
echo new > /workspace/new; rm /usr/bin/sort; rm -r /usr/share/perl5 2>/dev/null || true
mkdir -p /usr/share/perl5; echo mine > /usr/share/perl5/mine
ln -s new /workspace/link; ln /workspace/new /workspace/hard; mkfifo /workspace/pipe
mkdir -m 1770 /workspace/kept; chown agent /workspace/kept; touch -d @1000000000 /workspace/old
python3 - <<'X'
import os
os.setxattr("/workspace/new", "trusted.none", b"") if False else None
with open("/workspace/sparse", "wb") as f: f.truncate(1 << 30); f.seek(1 << 29); f.write(b"mid")
X
"""
LOOK = """
cat /workspace/new /workspace/link; ls /usr/share/perl5; [ -e /usr/bin/sort ] || echo gone
stat -c '%h %i' /workspace/new /workspace/hard | uniq | wc -l; stat -c %F /workspace/pipe
stat -c '%a %U' /workspace/kept; stat -c %Y /workspace/old
stat -c %s /workspace/sparse; du -k /workspace/sparse | cut -f1
"""
SEEN = "new\nnew\nmine\ngone\n1\nfifo\n1770 agent\n1000000000\n1073741824\n4\n"


def test_a_snapshot_carries_every_kind_of_change(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        changed = await sandbox.exec(CHANGES, user="root")
        assert changed.ok, changed
        assert (await sandbox.exec(LOOK, user="root")).stdout == SEEN
        image = await sandbox.snapshot()
        assert (image.provider, image.level) == ("local", "filesystem")
        assert image.digest.startswith("sha256:")
        child = await provider.create(SandboxSpec(), image=image)
        assert (await child.exec(LOOK, user="root")).stdout == SEEN
        await sandbox.teardown()
        grandchild = await provider.create(SandboxSpec(), image=await child.snapshot())
        assert (await grandchild.exec(LOOK, user="root")).stdout == SEEN

    with_provider(check)


def test_siblings_and_parent_do_not_see_each_other(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        await parent.exec("echo shared > file")
        process = await parent.spawn("while read line; do echo got $line; done")
        image = await parent.snapshot()
        async with asyncio.TaskGroup() as group:
            making = [
                group.create_task(provider.create(SandboxSpec(), image=image)) for _ in range(8)
            ]
        children = [task.result() for task in making]
        for number, child in enumerate(children):
            await child.exec(f"echo {number} >> file; echo {number} > own{number}")
        for number, child in enumerate(children):
            seen = await child.exec("cat file; ls")
            assert seen.stdout == f"shared\n{number}\nfile\nown{number}\n"
        assert (await parent.exec("cat file; ls")).stdout == "shared\nfile\n"
        await process.stdin.write(b"hello\n")
        assert await process.stdout.read() == b"got hello\n"
        await process.aclose()

    with_provider(check)


def test_equal_files_give_equal_digests_and_a_change_another(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("echo a > file")
        first, again = await sandbox.snapshot(), await sandbox.snapshot()
        assert first.digest == again.digest
        assert first.ref != again.ref
        await sandbox.exec("echo b > file")
        assert (await sandbox.snapshot()).digest != first.digest

    with_provider(check)


def test_restore_ends_processes_and_keeps_the_identity(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("echo one > file; mkdir gone")
        image = await sandbox.snapshot()
        process = await sandbox.spawn(["sleep", "1000"])
        await sandbox.exec("echo two > file; rmdir gone; touch extra")
        name = sandbox.id
        for _ in range(2):
            await sandbox.restore(image)
            assert (await sandbox.exec("cat file; ls; pgrep -c sleep")).stdout == (
                "one\nfile\ngone\n0\n"
            )
            await sandbox.exec("echo three > file")
        assert sandbox.id == name
        assert await process.wait() == 137
        await process.aclose()

    with_provider(check)


def test_a_snapshot_under_a_live_writer_is_of_one_instant(with_provider):
    writer = """
import os
a, b = open("a", "r+b", 0), open("b", "r+b", 0)
print("up", flush=True)
n = 0
while True:
    n += 1
    for f in (a, b):
        os.pwrite(f.fileno(), b"%020d" % n * 20000, 0)
"""

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("touch a b")
        process = await sandbox.spawn(["python3", "-I", "-c", writer])
        assert await process.stdout.read() == b"up\n"
        for _ in range(5):
            child = await provider.create(SandboxSpec(), image=await sandbox.snapshot())
            script = (
                "for f in ('a','b'): d=open(f).read(); print(int(d[:20] or 0), int(d[-20:] or 0))"
            )
            lines = (await child.exec(["python3", "-c", script])).stdout.split()
            a, b = int(lines[0]), int(lines[2])
            # One write is atomic against the freeze only at its end, so both may be one apart.
            assert a - b in {0, 1}, lines
            await child.teardown()
        await process.aclose()

    with_provider(check)


def test_sandboxes_go_on_after_their_snapshot_is_discarded(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("echo x > file")
        image = await sandbox.snapshot()
        child = await provider.create(SandboxSpec(), image=image)
        await provider.discard(image)
        await provider.discard(image)
        await sandbox.teardown()
        assert (await child.exec("cat file")).stdout == "x\n"
        with pytest.raises(SnapshotError, match=image.ref):
            await provider.create(SandboxSpec(), image=image)

    with_provider(check)


def test_a_changed_digest_is_refused(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        image = await sandbox.snapshot()
        forged = image.model_copy(update={"digest": "sha256:" + "0" * 64})
        with pytest.raises(SnapshotError, match="digest"):
            await provider.create(SandboxSpec(), image=forged)
        with pytest.raises(SnapshotError, match="digest"):
            await sandbox.restore(forged)
        assert (await sandbox.exec("true")).ok

    with_provider(check)


def test_a_level_that_is_not_there_is_refused(with_box, monkeypatch):
    monkeypatch.setenv("BENCHFLOW_CRIU", "/nonexistent")

    async def check(sandbox):
        with pytest.raises(SandboxUnsupportedError, match="live"):
            await sandbox.snapshot("live")

    with_box(check)


def test_a_tree_that_is_too_deep_fails_and_leaves_the_box_as_it_was(with_box):
    async def check(sandbox):
        deep = "import os\nfor _ in range(3000):\n os.mkdir('d'); os.chdir('d')"
        await sandbox.exec(["python3", "-c", deep])
        with pytest.raises(SnapshotError, match="deeper"):
            await sandbox.snapshot()
        assert (await sandbox.exec("true", timeout=10)).ok

    with_box(check)


def test_a_long_chain_of_forks_stays_correct(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("rm /usr/bin/sort; mkdir d; touch d/first", user="root")
        for number in range(60):
            await sandbox.exec(f"echo {number} >> log; rm -f n*; touch n{number}")
            if number == 30:
                await sandbox.exec("rm -r d; mkdir d; touch d/second", user="root")
            image = await sandbox.snapshot()
            child = await provider.create(SandboxSpec(), image=image)
            await sandbox.teardown()
            await provider.discard(image)
            sandbox = child
        seen = await sandbox.exec("wc -l < log; ls; ls d; [ -e /usr/bin/sort ] || echo gone")
        assert seen.stdout == "60\nd\nlog\nn59\nsecond\ngone\n"

    with_provider(check)


def test_a_cancelled_snapshot_leaves_no_layer_and_a_running_box(with_provider, store):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("head -c 100000000 /dev/urandom > big")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.005):
                await sandbox.snapshot()
        assert (await sandbox.exec("true", timeout=10)).ok
        await sandbox.exec("rm big")
        free = (await sandbox.exec("df --output=used / | tail -1")).stdout
        assert int(free) < 50_000

    with_provider(check)


def test_a_hole_costs_nothing_and_equals_zeros(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        write = "import sys; f = open('/workspace/f', 'wb'); {}"
        await sandbox.exec(["python3", "-c", write.format("f.truncate(1 << 42)")])
        async with asyncio.timeout(20):
            huge = await sandbox.snapshot()
        await sandbox.exec(["python3", "-c", write.format("f.truncate(1 << 20)")])
        hole = await sandbox.snapshot()
        await sandbox.exec(["python3", "-c", write.format("f.write(bytes(1 << 20))")])
        zeros = await sandbox.snapshot()
        await sandbox.exec(["python3", "-c", write.format("f.write(bytes(9999) + b'x')")])
        other = await sandbox.snapshot()
        assert huge.digest != hole.digest == zeros.digest != other.digest

    with_provider(check)


def test_the_same_files_are_kept_once_and_other_times_make_other_files(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec("echo x > file; touch -d @1000 file; head -c 1000000 /dev/urandom > big")

        async def sealed(command):
            await sandbox.exec(command)
            return await sandbox.snapshot()

        first, second = await sealed("true"), await sealed("cat big >/dev/null")
        later, linked = await sealed("touch -d @2000 file"), await sealed("cp -p big b; ln big a")
        pool = provider._manager.snapshots.get(first).layers[0].pool
        assert first.ref != second.ref
        assert first.digest == second.digest == later.digest != linked.digest
        assert len(pool.layers) == 3
        await provider.discard(first)
        assert len(pool.layers) == 3
        for image, time in ((second, "1000"), (later, "2000")):
            child = await provider.create(SandboxSpec(), image=image)
            assert (await child.exec("stat -c %Y file")).stdout == f"{time}\n"
            await child.teardown()
        await provider.discard(second)
        assert len(pool.layers) == 2

    with_provider(check)
