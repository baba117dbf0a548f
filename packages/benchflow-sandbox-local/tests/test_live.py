"""Live snapshots, as a user of the provider meets them."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec

pytestmark = pytest.mark.usefixtures("criu")

COUNTER = """
import sys
said = []
for line in sys.stdin:
    said.append(line.strip())
    with open("said", "a") as file: file.write(line)
    print(*said, open("said").read().split(), flush=True)
"""


async def ask(process, text):
    """Send a line and return what comes back."""
    await process.stdin.write(f"{text}\n".encode())
    return await line_of(process)


async def line_of(process):
    answer = b""
    async with asyncio.timeout(60):
        while not answer.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, await process.stderr.read()
            answer += data
    return answer.decode().rstrip()


def test_children_and_parent_go_on_from_one_instant_each_on_its_own(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", COUNTER])
        assert await ask(process, "shared") == "shared ['shared']"
        image = await parent.snapshot("live")
        assert (image.provider, image.level) == ("local", "live")
        assert image.digest.startswith("sha256:")
        assert await ask(process, "parent") == "shared parent ['shared', 'parent']"
        for name in ("first", "second"):
            child = await provider.create(SandboxSpec(), image=image)
            carried = await child.attach(process.id)
            assert carried.id == process.id
            assert await ask(carried, name) == f"shared {name} ['shared', '{name}']"
            assert (await child.exec(["cat", "said"])).stdout == f"shared\n{name}\n"
            with pytest.raises(SandboxError, match=process.id):
                await child.attach(process.id)
            await carried.kill()
            assert await carried.wait() == 137
        await process.stdin.aclose()
        assert await process.wait() == 0

    with_provider(check)


def test_output_that_nobody_read_is_carried_and_input_that_nobody_read_is_refused(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn("echo told; read line; echo $line; exec sleep 1000")
        async with asyncio.timeout(60):
            while process.stdout.waiting() < 5:
                await parent.exec(["true"])
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        carried = await child.attach(process.id)
        assert await line_of(carried) == await line_of(process) == "told"
        assert await ask(carried, "child") == "child"
        assert await ask(process, "parent") == "parent"
        await process.stdin.write(b"unread\n")
        with pytest.raises(SnapshotError, match="has not read 7 bytes") as refused:
            await parent.snapshot("live")
        assert refused.value.retryable
        assert (await parent.exec("pgrep -c sleep")).stdout == "1\n"
        for each in (process, carried):
            await each.aclose()

    with_provider(check)


def test_a_snapshot_of_a_held_sandbox_leaves_it_held(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", COUNTER])
        await ask(process, "before")
        async with parent.freeze():
            image = await parent.snapshot("live")
            await process.stdin.write(b"after\n")
            assert process.stdin.unread() == 6
            child = await provider.create(SandboxSpec(), image=image)
            carried = await child.attach(process.id)
            assert await ask(carried, "child") == "before child ['before', 'child']"
            assert process.stdin.unread() == 6
        assert await line_of(process) == "before after ['before', 'after']"
        await process.aclose()
        await carried.aclose()

    with_provider(check)


@pytest.mark.slow
def test_a_chain_of_forks_keeps_everything_and_eight_children_share_no_port(with_provider):
    server = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    name = "root"
    def do_GET(self):
        if self.path != "/": Handler.name = self.path[1:]
        self.send_response(200); self.end_headers(); self.wfile.write(Handler.name.encode())
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", 9001), Handler).serve_forever()
"""
    get = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1]).read().decode())"

    async def fetch(sandbox, path):
        url = f"http://127.0.0.1:9001/{path}"
        done = await sandbox.exec(["python3", "-I", "-c", get, url])
        return done.stdout.strip() or done.stderr

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        service = await sandbox.spawn(["python3", "-I", "-c", server])
        async with asyncio.timeout(60):
            while await fetch(sandbox, "") != "root":
                continue
        for level in range(3):
            assert await fetch(sandbox, f"level{level}") == f"level{level}"
            image = await sandbox.snapshot("live")
            sandbox = await provider.create(SandboxSpec(), image=image)
        async with asyncio.TaskGroup() as group:
            making = [
                group.create_task(provider.create(SandboxSpec(), image=image)) for _ in range(8)
            ]
        children = [task.result() for task in making]
        for number, child in enumerate(children):
            assert await fetch(child, "") == "level2"
            await fetch(child, f"child{number}")
        for number, child in enumerate(children):
            assert await fetch(child, "") == f"child{number}"
        async with AsyncExitStack() as stack:
            for child in children:
                carried = await child.attach(service.id)
                stack.push_async_callback(carried.aclose)

    with_provider(check)


ORPHAN = """
import ctypes, os, time
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
leader = os.fork()
if not leader:
    os.setsid()
    if not os.fork():
        while True:
            with open("ticks", "a") as file: file.write("x")
            time.sleep(0.02)
    os._exit(0)
os.waitpid(leader, 0)
print("orphaned", flush=True)
time.sleep(1000)
"""


def test_a_daemon_below_a_subreaper_continues_without_the_leader_of_its_session(with_provider):
    async def check(provider):
        parent = await provider.create(SandboxSpec())
        process = await parent.spawn(["python3", "-I", "-c", ORPHAN])
        assert await line_of(process) == "orphaned"
        image = await parent.snapshot("live")
        child = await provider.create(SandboxSpec(), image=image)
        now = "test -e ticks && wc -c < ticks"
        for sandbox in (child, parent):
            before = (await sandbox.exec(now)).stdout
            grows = f"while test $(wc -c < ticks) -eq {int(before)}; do sleep 0.01; done"
            assert (await sandbox.exec(grows, timeout=60)).ok

    with_provider(check)
