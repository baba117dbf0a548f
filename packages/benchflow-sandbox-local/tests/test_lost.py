"""A sandbox that something outside ends or stops is lost: no fault of anyone inside."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from benchflow_contracts import SandboxLostError, SandboxTimeoutError, blame
from benchflow_contracts.sandbox import SandboxSpec
from watching import until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["criu", pytest.param("runsc", marks=pytest.mark.slow)])
def with_box(request, with_provider):
    """Run an async test against one sandbox of each kernel."""
    request.getfixturevalue(request.param)

    def run(test):
        async def main(provider):
            return await test(await provider.create(SandboxSpec()))

        return with_provider(main, engine=request.param)

    return run


def first_process(box):
    """Return the process that is the sandbox: its init, or gVisor's kernel."""
    if box.running.file_access == "shared":
        return box.running.pid
    for pid in box.group.members():
        if b"runsc-sandbox" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no kernel")


async def kill(box):
    os.kill(first_process(box), signal.SIGKILL)
    until("its end", lambda: box.running.has_ended)


async def lost(call):
    with pytest.raises(SandboxLostError) as caught:
        await call
    assert blame(caught.value, inside="agent").by == "host"
    assert caught.value.retryable
    return str(caught.value)


async def freeze(box):
    async with box.freeze():
        pass


def test_a_command_whose_sandbox_is_killed_is_lost(with_box):
    async def check(box):
        process = await box.spawn(["sleep", "1000"])
        async with asyncio.TaskGroup() as group:
            running = group.create_task(lost(box.exec("echo up; sleep 1000")))
            await box.exec("true")
            await kill(box)
        assert "ended" in running.result()
        assert await process.wait() == 137
        await lost(box.exec("true"))

    with_box(check)


def test_nothing_is_read_out_of_a_sandbox_that_was_killed(with_box, tmp_path):
    async def check(box):
        await box.exec("echo answer > /workspace/answer.txt")
        await kill(box)
        (tmp_path / "file").touch()
        for call in (
            box.download("/workspace/answer.txt", tmp_path / "answer"),
            box.download("/workspace/absent.txt", tmp_path / "absent", leave_out=True),
            box.upload(tmp_path / "file", "/workspace/file"),
            box.spawn(["true"]),
            box.snapshot(),
            freeze(box),
        ):
            await lost(call)
        await box.teardown()

    with_box(check)


# A process that the freezer of control groups has stopped dies at the thaw alone.
@pytest.mark.slow
@pytest.mark.usefixtures("runsc")
def test_a_gvisor_that_is_killed_while_it_is_frozen_has_no_missing_file(with_provider, tmp_path):
    async def check(provider):
        box = await provider.create(SandboxSpec())
        await box.exec("echo answer > /workspace/answer.txt")

        async def download():
            async with box.freeze():
                await kill(box)
                await box.download("/workspace/answer.txt", tmp_path / "answer", leave_out=True)

        await lost(download())

    with_provider(check, engine="runsc")


def test_a_sandbox_that_does_not_answer_is_lost_and_can_be_removed(with_box, monkeypatch):
    monkeypatch.setattr("benchflow_sandbox_core.running_box._ANSWER_SECONDS", 2)
    monkeypatch.setattr("benchflow_sandbox_local.init_calls._PROMPT_SECONDS", 2)
    monkeypatch.setattr("benchflow_sandbox_core.fifo.init._PROMPT_SECONDS", 2)

    async def check(box):
        async with asyncio.TaskGroup() as group:
            running = group.create_task(lost(box.exec("touch /tmp/up; sleep 1000", timeout=3)))
            await box.exec("until test -e /tmp/up; do sleep 0.02; done")
            os.kill(first_process(box), signal.SIGSTOP)
        assert "answer" in running.result()
        await box.teardown()

    with_box(check)


def test_a_process_inside_that_stops_every_other_does_not_make_the_sandbox_lost(with_box):
    async def check(box):
        with pytest.raises(SandboxTimeoutError):
            await box.exec("kill -STOP -1; kill -STOP 1; sleep 1000", timeout=3)
        assert (await box.exec("echo yes")).stdout == "yes\n"

    with_box(check)
