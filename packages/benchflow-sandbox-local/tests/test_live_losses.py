"""What the engine would lose is refused before anything is lost, and the box continues."""

import asyncio
import json
from pathlib import Path

import pytest
from benchflow_contracts.errors import SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from live_traces import left

pytestmark = [pytest.mark.usefixtures("criu"), pytest.mark.timeout(180)]

SOURCE = Path(__file__).with_name("lossy_program.py").read_text()
DRAINS = {
    "udp": r"an unread datagram: the IPv4 socket 127.0.0.1:5353 of process 'python3'",
    "empty_datagram": r"an unread datagram: the IPv6 socket ::1:5353",
    "corked": r"a datagram that is half written \(UDP_CORK\)",
    "named_datagram": r"an unread datagram, .*'/tmp/reader'",
    "passed_user": r"unread data that names its sender",
    "sent_file": r"open files on their way .*: an unnamed unix socket",
    "inotify": r"unread inotify events of process 'python3'",
    "directory": r"listing of the directory '/tmp/many'",
    "timer": r"unread expirations of a timer \(timerfd\)",
    "netlink": r"an unread message: the netlink socket",
    "urgent": r"unread urgent data: the IPv4 socket",
    "urgent_unix": r"unread urgent data: an unnamed unix socket",
    "full": r"\d{5,} bytes that the other end has no room for: the IPv4 socket",
    "orphan": r"\d{5,} bytes of a TCP socket \(port \d+\) that was closed",
    "half_closed": r"a connection that one end has closed for writing",
    "refused": r"an error that was not reported yet: .*IPv4 socket",
    "reset": r"an error that was not reported yet: an unnamed unix socket",
    "backlog": r"a connection that was not accepted: the IPv4 socket 127.0.0.1:4321",
    "unix_backlog": r"a connection that was not accepted: the unix socket '/tmp/service'",
    "terminal": r"unread data of the terminal '/dev/p.*'",
    "typed": r"unread data of the terminal '/dev/pts/\d+'",
    "left_packets": r"the bounds of packets in a pipe \(O_DIRECT\): pipe:\[\d+\]",
}
STAYS = {
    "packets": r"the bounds of packets in a pipe \(O_DIRECT\): pipe:\[\d+\] of process 'python3'",
    "queue": r"the POSIX message queue '/queue' of process 'python3'",
    "unheld_queue": r"the POSIX message queue '/queue' which no process has open",
    "multipath": r"a multipath TCP socket, which cannot be captured",
    "peeking": r"an offset for peeking",
    "two_users": r"the maker of the unix socket '/tmp/shared' .* \(user 0, group 0 and user 1234",
}
READER = """
import os, socket, sys, time
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", 0))
sock.sendto(b"carried", sock.getsockname())
print("ready", flush=True)
while not os.path.exists("/tmp/go"):
    time.sleep(0.001)
said = sock.recv(100)
sys.stdin.read(1)
print(said.decode(), flush=True)
"""
WATCHER = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
watch = libc.inotify_init1(0)
for path in (b"/tmp/seen", b"/tmp/seen/file"):
    libc.inotify_add_watch(watch, path, 0xFFF)
print("ready", flush=True)
sys.stdin.read(1)
print(os.read(watch, 1 << 16), flush=True)
"""
MAKERS = """
import json, os, sys
os.setgroups([])
a, b = socket.socketpair()
(down, up), (back, out) = os.pipe(), os.pipe()
if not os.fork():
    a.close()
    os.setgroups([7, 8]); os.setgid(1000); os.setuid(1000)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("/tmp/service")
    listener.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect("/tmp/service")
    server, _ = listener.accept()
    left, gone = socket.socketpair()
    gone.close()
    own = [*socket.socketpair(socket.AF_UNIX, UDP), listener, client, server, left]
    while os.read(down, 1):
        late = socket.socket(socket.AF_UNIX)
        late.connect("/tmp/service")
        listener.accept()
        told = [maker(sock) for sock in (b, *own, late)]
        os.write(out, (json.dumps(told) + chr(10)).encode())
b.close()
print("ready", flush=True)
for line in sys.stdin:
    os.write(up, b"x")
    print(json.dumps([maker(a), json.loads(os.read(back, 4096))]), flush=True)
"""


WARNS = """dump) $engine "$@"; code=$?
    for each; do case $each in -D*) image=${each#-D} ;; esac; done
    echo "(00.1) Warn  (criu/new.c:7): new: the {what}" >>"$image/engine.log"
    exit $code ;;"""


async def ask(process, word):
    if word:
        await process.stdin.write(f"{word}\n".encode())
    said = b""
    async with asyncio.timeout(60):
        while not said.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, (await process.stderr.read()).decode()
            said += data
    return said.decode().strip()


def test_what_a_child_would_lack_is_refused_and_the_box_continues(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["python3", "-I", "-c", SOURCE], user="root")
        assert await ask(process, "") == "ready"
        refusals = {}
        for word in (*DRAINS, *STAYS):
            assert json.loads(await ask(process, word)) == word
            # Nothing in a held box can read what waits: no time is spent to wait for that.
            async with sandbox.freeze():
                try:
                    await provider.discard(await sandbox.snapshot("live"))
                except SnapshotError as error:
                    refusals[word] = error
        await ask(process, "nothing")
        await provider.discard(await sandbox.snapshot("live"))
        assert (await sandbox.exec(["true"])).ok
        await process.aclose()
        return refusals

    refusals = with_provider(check)
    for word, text in (DRAINS | STAYS).items():
        assert word in refusals, f"{word} was not refused"
        with pytest.raises(SnapshotError, match=text):
            raise refusals[word]
        assert refusals[word].retryable == (word in DRAINS), word
        assert refusals[word].hint != SnapshotError.default_hint


@pytest.mark.parametrize("reads", [False, True], ids=["alone", "beside-a-read"])
def test_a_snapshot_waits_until_the_box_has_read_what_would_be_lost(with_provider, reads):
    count = 0

    async def while_frozen():
        nonlocal count
        count += 1

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["python3", "-I", "-c", READER])
        assert await ask(process, "") == "ready"
        async with asyncio.TaskGroup() as group:
            snapshot = group.create_task(
                sandbox.snapshot("live", while_frozen=while_frozen if reads else None)
            )
            await asyncio.sleep(0)
            go = Path(f"/proc/{sandbox.running.pid}/root/tmp/go")
            go.touch()  # noqa: ASYNC240 - nothing can be run inside meanwhile
        child = await provider.create(SandboxSpec(), image=snapshot.result())
        assert await ask(await child.attach(process.id), "x") == "carried"
        assert await ask(process, "x") == "carried"

    with_provider(check)
    assert count == reads  # once, of the instant that was captured


@pytest.mark.parametrize("command", ["true", "seq 1 600 | xargs touch"], ids=["kept", "back"])
def test_a_fork_keeps_who_made_each_unix_socket(with_provider, command):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec(command)).ok
        source = SOURCE.replace('__name__ == "__main__"', "False") + MAKERS
        process = await sandbox.spawn(["python3", "-I", "-c", source], user="root")
        assert await ask(process, "") == "ready"
        before = json.loads(await ask(process, "x"))
        assert before == [[0, 0, 0], [[0, 0, 0], *[[1000, 1000, 2]] * 7]]
        child = await provider.create(SandboxSpec(), image=await sandbox.snapshot("live"))
        grandchild = await provider.create(SandboxSpec(), image=await child.snapshot("live"))
        for box in (child, grandchild):
            assert json.loads(await ask(await box.attach(process.id), "x")) == before
        assert json.loads(await ask(process, "x")) == before

    with_provider(check)


def test_a_snapshot_is_not_refused_for_what_the_host_itself_does_to_watched_files(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec("mkdir /tmp/seen; echo text >/tmp/seen/file")).ok
        process = await sandbox.spawn(["python3", "-I", "-c", WATCHER])
        assert await ask(process, "") == "ready"
        child = await provider.create(SandboxSpec(), image=await sandbox.snapshot("live"))
        watched = await child.attach(process.id)
        assert (await child.exec("touch /tmp/seen/new")).ok
        await watched.stdin.write(b"x")
        assert "new" in await ask(watched, "")

    with_provider(check)


@pytest.mark.parametrize("command", ["true", "seq 1 600 | xargs touch"], ids=["kept", "back"])
def test_a_warning_that_nobody_reviewed_is_a_refusal(with_provider, broken, store, command):
    broken(WARNS.replace("{what}", "phase of the moon is dropped"))

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        assert (await sandbox.exec(command)).ok
        with pytest.raises(SnapshotError, match="the phase of the moon is dropped") as refused:
            await sandbox.snapshot("live")
        assert not refused.value.retryable
        assert left(store) == set()
        if command == "true":
            assert (await sandbox.exec(["true"])).ok
        else:  # the box has ended, and nobody knows what its image lacks
            with pytest.raises(SandboxError, match="is lost"):
                await sandbox.exec(["true"])

    with_provider(check)
