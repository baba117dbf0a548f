"""What the engine of live snapshots does not carry, and BenchFlow sets again or refuses."""

import asyncio
import json

import pytest
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import SandboxSpec

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("criu")]

# One process has them, its thread has an affinity of its own, and a second process has defaults.
HOLDER = """
import ctypes, json, os, platform, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
intel = platform.machine() == "x86_64"
threading.Thread(target=threading.Event().wait, daemon=True).start()
thread = max(map(int, os.listdir("/proc/self/task")))
ticked = threading.Event()
def tick():
    while os.read(timer, 8):
        ticked.set()
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
timer = libc.timerfd_create(1, 0)
assert libc.timerfd_settime(timer, 0, struct.pack("4q", 0, 10**8, 0, 1), None) == 0
threading.Thread(target=tick, daemon=True).start()
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
OPTIONS = [
    (near, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 7777),
    (server, socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 7),
    (far, socket.IPPROTO_IP, 21, 3),
    (datagrams, socket.IPPROTO_IP, 11, 1),
]
if sys.argv[1] == "changed":
    os.sched_setaffinity(thread, {0})
    libc.syscall(251 if intel else 30, 1, 0, 2 << 13 | 7)
    libc.prctl(29, 777_000, 0, 0, 0)
    open("/proc/self/coredump_filter", "w").write("0x7f")
    for sock, level, name, value in OPTIONS:
        sock.setsockopt(level, name, value)
for line in sys.stdin:
    ticked.clear()
    ticked.wait()  # the periodic timer fires in each child
    print(json.dumps([
        sorted(os.sched_getaffinity(0)),
        sorted(os.sched_getaffinity(thread)),
        libc.syscall(252 if intel else 31, 1, 0),
        libc.prctl(30, 0, 0, 0, 0),
        open("/proc/self/coredump_filter").read(),
        [sock.getsockopt(level, name) for sock, level, name, _ in OPTIONS],
    ]), flush=True)
"""


async def look(process):
    """Return what a holder has."""
    await process.stdin.write(b"look\n")
    line = b""
    async with asyncio.timeout(60):
        while not line.endswith(b"\n"):
            data = await process.stdout.read()
            assert data, await process.stderr.read()
            line += data
    return json.loads(line)


def test_a_grandchild_has_the_attributes_of_its_processes_threads_and_sockets(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        held = [
            await sandbox.spawn(["python3", "-I", "-c", HOLDER, kind])
            for kind in ("changed", "default")
        ]
        before = [await look(process) for process in held]
        for _ in range(2):
            image = await sandbox.snapshot("live")
            sandbox = await provider.create(SandboxSpec(), image=image)
        after = [await look(await sandbox.attach(process.id)) for process in held]
        assert after == before
        assert before[0][1:] == [[0], 16391, 777_000, "0000007f\n", [7777, 7, 3, 1]]
        return before[1]

    _, affinity, *rest = with_provider(check)
    # The other process has what a new one has.
    assert (len(affinity) >= 1, rest[0], rest[1], rest[3]) == (True, 0, 50_000, [0, 0, 0, 0])


REFUSED = {
    "has a personality": "import ctypes; ctypes.CDLL(None).personality(0x40000)",
    "member of multicast group": (
        "import socket; held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM);"
        "near = socket.inet_aton('239.1.2.3') + socket.inet_aton('127.0.0.1');"
        "held.setsockopt(0, socket.IP_ADD_MEMBERSHIP, near)"
    ),
    "EFD_SEMAPHORE": "import os; held = os.eventfd(1, os.EFD_SEMAPHORE)",
    "IN_ONESHOT": (
        "import ctypes; libc = ctypes.CDLL(None); held = libc.inotify_init();"
        "assert libc.inotify_add_watch(held, b'/tmp', 0x80000100) == 1"
    ),
    "has a write lease of a file": (
        "import fcntl; held = open('leased', 'w'); fcntl.fcntl(held, 1024, fcntl.F_WRLCK)"
    ),
    "SIGEV_THREAD_ID": (
        "import ctypes, os, struct; made = ctypes.c_void_p();"
        "event = struct.pack('qiii44x', 0, 10, 4, os.getpid());"
        "assert ctypes.CDLL(None).timer_create(1, event, ctypes.byref(made)) == 0"
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_child_would_have_is_refused_and_the_box_continues(with_provider, message):
    source = f"{REFUSED[message]}\nwhile True: print(input(), flush=True)"

    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.spawn(["python3", "-I", "-c", source])
        await process.stdin.write(b"1\n")
        assert await process.stdout.read() == b"1\n"
        with pytest.raises(SnapshotError, match=message):
            await sandbox.snapshot("live")
        await process.stdin.write(b"2\n")
        assert await process.stdout.read() == b"2\n"
        await process.kill()
        await process.wait()
        await provider.discard(await sandbox.snapshot("live"))

    with_provider(check)
