"""The init of a gVisor box, on this kernel: it needs nothing of gVisor's."""

import asyncio
import os
import shutil
import signal
import subprocess

import pytest
from benchflow_sandbox_core.fifo.init import FifoInit
from benchflow_sandbox_core.fifo.streams import FifoDirectory
from benchflow_sandbox_native import InitError, guest_path

INIT = "/.bf/init"
AS_ROOT = {"env": {}, "cwd": "/", "uid": 0, "gid": 0}


@pytest.fixture
def with_guest(root, tmp_path):
    """Run an async test against a started guest and the directory of its pipes."""
    place = tmp_path / ".bf" / "io"
    place.mkdir(parents=True)
    shutil.copy(guest_path(), tmp_path / ".bf" / "init")

    def run(test):
        async def main():
            fifos = FifoDirectory(os.open(place, os.O_RDONLY | os.O_DIRECTORY))
            fifos.streams().close_child()
            knocks = asyncio.Queue()
            calls = FifoInit(fifos, knocks.put_nowait)
            command = ["unshare", "--pid", "--net", "--fork", "--kill-child"]
            command += [f"--root={tmp_path}", INIT, "0"]
            guest = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: ASYNC220
            try:
                await calls.ping()
                calls.confirm_open()
                await test(calls, fifos, guest)
            finally:
                calls.close()
                fifos.close()
                guest.kill()
                guest.wait()

        asyncio.run(asyncio.wait_for(main(), 60))

    return run


def test_a_call_that_somebody_swallows_ends_and_so_does_the_box(with_guest, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_core.fifo.init._PROMPT_SECONDS", 0.2)

    async def main(calls, _fifos, guest):
        # Stopped, it takes no frame, as if another had read it.
        guest_pid = int(subprocess.check_output(["pgrep", "-P", str(guest.pid)]))  # noqa: ASYNC221
        os.kill(guest_pid, signal.SIGSTOP)
        with pytest.raises(InitError, match="kill of 7"):
            await calls.kill(7, signal.SIGKILL)
        assert calls.ended
        with pytest.raises(InitError, match="ping"):
            await calls.ping()

    with_guest(main)


def test_a_process_is_started_and_its_code_can_be_asked_for_once(with_guest):
    async def main(calls, fifos, _guest):
        with fifos.streams() as streams:
            argv = [INIT, "plain", "/.bf/io"]
            pid = await calls.spawn(argv, **AS_ROOT, fds=streams.child)
            streams.close_child()
            assert await calls.wait(pid) == 3  # there are pipes
            assert await streams.stdout.read() == b""
            with pytest.raises(InitError, match="wait"):
                await calls.wait(pid)

    with_guest(main)


def test_a_missing_program_and_a_wrong_directory_are_told_apart(with_guest):
    async def main(calls, fifos, _guest):
        for argv, cwd, stage in (
            (["/nothing"], "/", "exec"),
            ([INIT, "plain", "/"], "/none", "cwd"),
        ):
            with fifos.streams() as streams, pytest.raises(InitError) as failed:
                await calls.spawn(argv, **AS_ROOT | {"cwd": cwd}, fds=streams.child)
            assert failed.value.stage == stage

    with_guest(main)


def test_a_stream_that_nobody_has_open_leaves_no_name(with_guest):
    async def main(calls, fifos, _guest):
        number = fifos.streams().number
        with fifos.streams() as streams:
            pid = await calls.spawn([INIT, "plain", "/"], **AS_ROOT, fds=streams.child)
            streams.close_child()
            await calls.wait(pid)
        with pytest.raises(FileNotFoundError):
            fifos.open_stream(streams.number)
        fifos.open_stream(number).close()

    with_guest(main)


async def ping_on(calls):
    while True:
        await calls.ping()


def test_a_call_fails_when_the_guest_ends(with_guest):
    async def main(calls, _fifos, guest):
        guest.kill()  # and PID 1 with it
        with pytest.raises(InitError, match="connection"):
            await ping_on(calls)

    with_guest(main)
