"""Connections that are cut, sandboxes that are lost, and processes that resist."""

import asyncio
import secrets

import pytest
from benchflow_contracts.door import Door
from benchflow_contracts.errors import SandboxError, SandboxLostError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_sandbox_remote.running_box import RemoteBox

NUMBERS = b"".join(b"%d\n" % number for number in range(1, 60_001))


async def read_all(process, size=4096):
    data = bytearray()
    while piece := await process.stdout.read(size):
        data += piece
    return bytes(data)


@pytest.mark.parametrize("way", ["bytes", "lines", "websocket"])
def test_a_cut_connection_loses_and_repeats_no_byte_in_either_direction(with_sandbox, way):
    async def test(sandbox, cloud):
        process = await sandbox.spawn("cat")

        async def write():
            for at in range(0, len(NUMBERS), 50_000):
                await process.stdin.write(NUMBERS[at : at + 50_000])
                await cloud.cut()
                assert (await sandbox.exec("true")).ok  # there is a new connection
            await process.stdin.aclose()

        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read_all(process))
            group.create_task(write())
        assert reading.result() == NUMBERS
        assert await process.wait() == 0
        assert sandbox.connections > 5

    with_sandbox(test, way=way)


class Short:
    """A connection that is cut after some bytes in each direction, also inside a frame."""

    def __init__(self, transport, size):
        self.transport = transport
        self.left = [size, size]

    def _pass(self, way, data):
        passed = data[: self.left[way]]
        self.left[way] -= len(passed)
        return passed

    async def read(self):
        data = self._pass(1, await self.transport.read())
        if not data:
            raise OSError("cut")
        return data

    async def write(self, data):
        passed = self._pass(0, data)
        await self.transport.write(passed)
        if len(passed) < len(data):
            raise OSError("cut")

    async def aclose(self):
        await self.transport.aclose()


def test_the_link_continues_wherever_a_connection_is_cut_in_a_call(with_sandbox):
    async def test(sandbox, cloud):
        sizes = []
        cloud.wrap = lambda transport: Short(transport, sizes.pop()) if sizes else transport
        process = await sandbox.spawn("cat")
        cut = 0
        for size in range(0, 700, 23):  # a call has some hundred bytes in each direction
            before = sandbox.connections
            sizes.append(size)
            await cloud.cut()
            line = b"%d\n" % size
            await process.stdin.write(line)
            assert (await sandbox.exec(f"echo {size}; exit 3")).stdout == line.decode()
            assert await process.stdout.read() == line
            cut += sandbox.connections - before > 1
        await process.stdin.aclose()
        assert await process.wait() == 0
        assert cut > 15

    with_sandbox(test)


def test_a_command_that_runs_while_the_network_is_away_is_not_lost(with_sandbox):
    async def test(sandbox, cloud):
        await sandbox.exec("mkfifo go")
        async with asyncio.TaskGroup() as group:
            script = ": > waits; read line < go; echo $line; exit 7"
            running = group.create_task(sandbox.exec(script))
            while not (await sandbox.exec("test -e waits")).ok:
                continue
            cloud.is_away = True
            await cloud.cut()
            await cloud.refused.wait()
            # The command ends without a connection.
            await cloud.box.exec("echo a > /workspace/go", user="root")
            assert not running.done()
            cloud.is_away = False
        assert (running.result().exit_code, running.result().stdout) == (7, "a\n")

    with_sandbox(test)


def test_a_short_call_waits_for_the_network_as_long_as_the_session(with_sandbox, monkeypatch):
    limit = 0.2
    monkeypatch.setattr("benchflow_sandbox_core.fifo.init._PROMPT_SECONDS", limit)

    async def test(sandbox, cloud):
        cloud.is_away = True
        await cloud.cut()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(sandbox.exec("echo here"))
            await asyncio.sleep(3 * limit)
            assert not running.done()
            cloud.is_away = False
        assert running.result().stdout == "here\n"

    with_sandbox(test)


def test_a_sandbox_that_stays_away_is_lost_and_every_call_says_so(with_sandbox):
    async def test(sandbox, cloud):
        process = await sandbox.spawn("cat")
        cloud.is_away = True
        await cloud.cut()
        with pytest.raises(SandboxLostError, match="could not be reached for 1 s"):
            await sandbox.exec("sleep 1000")
        assert await process.stdout.read() == b""
        with pytest.raises(SandboxLostError):
            await sandbox.exec("true")
        with pytest.raises(SandboxLostError):
            await sandbox.kill_all()

    with_sandbox(test, lost_after=1)


COUNT = """
import socket, sys, time
with socket.create_server(("127.0.0.1", 8000)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    total = 0
    while data := connection.recv(1000):
        total += len(data)
    print(total, flush=True)
"""


def test_the_last_bytes_of_a_connection_arrive_though_the_host_has_closed_it(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        process = await sandbox.spawn(["python3", "-c", COUNT])
        assert await process.stdout.read() == b"ready\n"
        with await sandbox.connect_tcp(8000) as connection:
            await asyncio.get_running_loop().sock_sendall(connection, bytes(3_000_000))
        assert await process.stdout.read() == b"3000000\n"

    with_sandbox(test)


FLOOD = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60) for _ in range(65)]
held[64].sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
try:
    print(held[64].recv(100), flush=True)
except ConnectionResetError:
    print(b"", flush=True)
sys.stdin.read()
"""


def test_one_connection_too_many_is_closed_and_all_end_with_their_process(with_sandbox):
    async def main(sandbox, _cloud):
        port = sandbox.spec.doors[0].port
        flood = await sandbox.spawn(["python3", "-c", FLOOD, str(port)])
        # The last one is closed at once. It does not wait inside for one of the others to end.
        assert await flood.stdout.read() == b"b''\n"
        await flood.aclose()
        code = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}', timeout=60)"
        while "HTTP Error 502" not in (await sandbox.exec(["python3", "-c", code])).stderr:
            pass  # the runner has not seen the end of all connections yet

    door = Door(upstream="http://127.0.0.1:9")
    with_sandbox(main, SandboxSpec(network="model-only", doors=(door,)))


def test_a_wrong_token_gets_no_session(with_sandbox):
    async def test(sandbox, cloud):
        stranger = RemoteBox(cloud.dial, bytes(32))
        with pytest.raises(SandboxError, match="ended the connection"):
            await stranger.start()
        assert (await sandbox.exec("echo here")).stdout == "here\n"

    with_sandbox(test)


def test_another_user_inside_can_reach_neither_the_socket_nor_the_token(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        result = await sandbox.exec("ls /.benchflow; /.benchflow/link dial; ls -l /proc/*/exe")
        assert "Permission denied" in result.stderr
        assert "link" not in result.stdout
        assert not (await sandbox.exec("ls /.benchflow/token", user="root")).ok

    with_sandbox(test)


def test_one_reader_that_does_not_read_stops_no_other_stream(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        stalled = await sandbox.spawn("yes")
        assert await stalled.stdout.read(2) == b"y\n"
        for _ in range(20):
            result = await sandbox.exec("head -c 100000 /dev/zero | tr '\\0' x")
            assert len(result.stdout) == 100_000

    with_sandbox(test)


def test_kill_all_reaches_processes_that_left_their_session_and_their_parent(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        daemon = "setsid sh -c 'sleep 1000 & exec sleep 2000' >/dev/null 2>&1 </dev/null &"
        await sandbox.exec(daemon)
        await sandbox.kill_all()
        left = await sandbox.exec("cat /proc/*/cmdline | tr '\\0' ' '", user="root")
        assert "sleep" not in left.stdout
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"

    with_sandbox(test)


def test_a_freeze_stops_programs_that_start_others_all_the_time(with_sandbox, tmp_path):
    script = "i=0; while :; do i=$((i+1)); /bin/echo $i > /workspace/count; done"

    async def test(sandbox, cloud):
        del cloud
        await sandbox.exec("echo 0 > /workspace/count")
        process = await sandbox.spawn(script)
        for _ in range(3):
            async with sandbox.freeze():
                states = [await count(sandbox) for _ in range(3)]
            assert len(set(states)) == 1
        await process.aclose()

    async def count(sandbox):
        local = tmp_path / secrets.token_hex(4)
        await sandbox.download("/workspace/count", local)
        return local.read_bytes()

    with_sandbox(test)


def test_a_process_that_was_stopped_before_a_freeze_stays_stopped_after_it(with_sandbox):
    async def test(sandbox, cloud):
        del cloud
        process = await sandbox.spawn("echo $$; kill -STOP $$; echo continued")
        pid = int((await process.stdout.read()).decode())
        state = f"cut -d' ' -f3 /proc/{pid}/stat"
        while (await sandbox.exec(state)).stdout != "T\n":
            continue
        async with sandbox.freeze():
            pass
        assert (await sandbox.exec(state)).stdout == "T\n"
        await process.aclose()

    with_sandbox(test)


def test_a_start_that_fails_deletes_the_sandbox_of_the_cloud(with_provider):
    async def test(provider):
        with pytest.raises(SandboxError):
            await provider.create(SandboxSpec(user="not a name"))
        assert [made.is_deleted for made in provider.cloud.made.values()] == [True]

    with_provider(test)
