import asyncio
import errno

import pytest
from benchflow_contracts.errors import HostError, SandboxError
from benchflow_sandbox_local import stopped_processes
from benchflow_sandbox_local.stopped_processes import while_stopped

TICKER = "while :; do echo x >> /tmp/ticks; done"
FORKER = "while :; do (echo x >> /tmp/ticks); done"


async def size(sandbox, tmp_path, name):
    await sandbox.download("/tmp/ticks", tmp_path / name)
    return (tmp_path / name).stat().st_size


@pytest.mark.parametrize("script", [TICKER, FORKER])
def test_every_process_stands_still_and_goes_on(with_box, tmp_path, script):
    async def check(sandbox):
        processes = [await sandbox.spawn(script) for _ in range(3)]
        await sandbox.exec("while [ ! -s /tmp/ticks ]; do :; done", timeout=10)
        for turn in range(3):
            async with while_stopped(sandbox.running.pid):
                held = await size(sandbox, tmp_path, f"{turn}a")
                await asyncio.sleep(0.1)
                assert await size(sandbox, tmp_path, f"{turn}b") == held
            grown = f"while [ $(stat -c %s /tmp/ticks) -le {held} ]; do :; done"
            assert (await sandbox.exec(grown, timeout=10)).ok
        for process in processes:
            await process.aclose()

    with_box(check)


def test_what_was_stopped_inside_stays_stopped(with_box):
    async def check(sandbox):
        process = await sandbox.spawn("kill -STOP $$; echo woken")
        state = f"while ! grep -q 'State:.T' /proc/{process.pid}/status; do :; done"
        await sandbox.exec(state, timeout=10)
        async with while_stopped(sandbox.running.pid):
            pass
        assert (
            await sandbox.exec(f"grep -c 'State:.T' /proc/{process.pid}/status")
        ).stdout == "1\n"
        await sandbox.exec(f"kill -CONT {process.pid}")
        assert await process.stdout.read() == b"woken\n"
        await process.aclose()

    with_box(check)


def test_a_box_that_is_gone_cannot_be_held(with_box):
    async def check(sandbox):
        pid = sandbox.running.pid
        await sandbox.teardown()
        with pytest.raises((SandboxError, FileNotFoundError)):
            async with while_stopped(pid):
                pass

    with_box(check)


def test_a_process_whose_state_the_host_cannot_read_is_not_taken_for_stopped(with_box, monkeypatch):
    def short(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    async def check(sandbox):
        process = await sandbox.spawn(["cat"])
        with monkeypatch.context() as patch:
            patch.setattr(stopped_processes.Path, "read_text", short)
            with pytest.raises(HostError, match="open files"):
                await while_stopped(sandbox.running.pid).__aenter__()
        await process.aclose()

    with_box(check)
