"""Boxes on gVisor's kernel, for real. `.ci/runsc` unpacks the program."""

import errno
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchflow_contracts.errors import HostError, SandboxError, SnapshotError
from benchflow_contracts.sandbox import SandboxSpec
from benchflow_contracts.sandbox_record import ReapPolicy
from benchflow_sandbox_local.launcher import Launcher, LauncherShortError
from benchflow_testing import check_sandbox
from live_traces import echo

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("runsc")]

RUNNER = """
import asyncio, json, sys
from pathlib import Path
from benchflow_contracts import RolloutIdentity, SandboxSpec
from benchflow_sandbox_local import LocalProvider

async def main():
    provider = LocalProvider(store=Path(sys.argv[1]), engine="runsc")
    sandbox = await provider.create(SandboxSpec(), identity=RolloutIdentity(scope="killed"))
    await sandbox.spawn(["sleep", "86399"])
    await provider.create(SandboxSpec(), image=await sandbox.snapshot("live"))
    boxes = [box.group for box in provider._manager.sandboxes.values()]
    print(json.dumps([[list(g.paths), g.members()] for g in boxes]), flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""

DELETED = """
import os, sys
file = open("deleted", "w+")
os.unlink("deleted")
for line in sys.stdin:
    file.write(line)
    file.seek(0)
    print(file.read(), end="", flush=True)
"""


@pytest.mark.timeout(600)
def test_a_gvisor_box_keeps_every_promise_of_the_contract(with_provider):
    results = with_provider(check_sandbox, engine="runsc")
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    # Live snapshots, which are proven two forks deep, are not among what is skipped.
    assert {r.reason for r in results if r.status == "skipped"} == {
        "every level is supported",
        "not claimed: sandboxes of live owners are not reaped",
        "capabilities: there are live snapshots",
        "capabilities: no network mode allowlist",
        "capabilities: no network mode public",
        "capabilities: no builds",
        "capabilities: no kill_all",
        "capabilities: no services",
        "capabilities: no pids limit",
        "capabilities: no memory limit",
        "changes cannot be ignored here: the sandbox has processes that could write, too",
        (
            "files cannot be observed here: the files that this sandbox opens cannot be observed: "
            "it has its own kernel, or no isolation"
        ),
    }


@pytest.mark.timeout(300)
def test_a_box_with_a_deleted_file_open_is_not_forked_and_goes_on(with_provider):
    async def main(provider):
        box = await provider.create(SandboxSpec())
        process = await box.spawn(["python3", "-c", DELETED])
        await process.stdin.write(b"one\n")
        assert await process.stdout.read() == b"one\n"
        with pytest.raises(SnapshotError, match="deleted") as refused:
            await box.snapshot("live")
        await process.stdin.write(b"two\n")
        assert await process.stdout.read() == b"one\ntwo\n"
        return refused.value

    refused = with_provider(main, engine="runsc")
    assert refused.retryable
    assert "close the files" in (refused.hint or "")


@pytest.mark.parametrize(
    ("end", "reason"),
    [("return 3", "exit code 3: it logged nothing"), ("abort()", "killed by SIGABRT")],
    ids=["code", "signal"],
)
def test_a_program_that_ends_at_once_is_the_reason_why_there_is_no_box(
    with_provider, tmp_path, monkeypatch, end, reason
):
    source, program = tmp_path / "runsc.c", tmp_path / "runsc"
    source.write_text(f"#include <stdlib.h>\nint main(void) {{ {end}; }}\n")
    subprocess.run(["cc", "-static", "-o", program, source], check=True)
    monkeypatch.setenv("BENCHFLOW_RUNSC", str(program))

    async def main(provider):
        with pytest.raises(SandboxError, match=reason):
            await provider.create(SandboxSpec())

    with_provider(main, engine="runsc")


@pytest.mark.timeout(300)
def test_a_checkpoint_that_nobody_took_does_not_keep_a_box_from_the_next(
    with_provider, monkeypatch
):
    ask = Launcher.ask

    async def lacking(launcher, op, *fds, **request):
        if op == "take_image":
            raise LauncherShortError("take: no open files", errno.EMFILE)
        return await ask(launcher, op, *fds, **request)

    async def main(provider):
        box = await provider.create(SandboxSpec())
        with monkeypatch.context() as patch:
            patch.setattr(Launcher, "ask", lacking)
            with pytest.raises(HostError):
                await box.snapshot("live")
        child = await provider.create(SandboxSpec(), image=await box.snapshot("live"))
        assert (await child.exec(["true"])).ok

    with_provider(main, engine="runsc")


@pytest.mark.timeout(300)
def test_processes_that_have_ended_are_not_carried_by_gvisor_either(with_provider):
    async def main(provider):
        box = await provider.create(SandboxSpec())
        running, ended = await box.spawn(["cat"]), await box.spawn(["echo", "told"])
        assert await ended.wait() == 0
        child = await provider.create(SandboxSpec(), image=await box.snapshot("live"))
        with pytest.raises(SandboxError, match=ended.id):
            await child.attach(ended.id)
        assert await ended.stdout.read() == b"told\n"
        for cat in (running, await child.attach(running.id)):
            assert await echo(cat, b"alive") == b"alive"

    with_provider(main, engine="runsc")


@pytest.mark.timeout(300)
def test_a_killed_runner_leaves_nothing_of_a_gvisor_box_and_its_child(with_provider, store):
    command = [sys.executable, "-c", RUNNER, str(store)]
    runner = subprocess.Popen(command, stdout=subprocess.PIPE)
    boxes = json.loads(runner.stdout.readline())
    runner.kill()
    runner.wait()
    runner.stdout.close()
    assert len(boxes) == 2

    async def main(provider):
        return await provider.reap(ReapPolicy())

    assert len(with_provider(main)) == 2
    for paths, members in boxes:
        assert members
        assert not [path for path in paths if Path(path).exists()]
        wait_until_gone(members)


def wait_until_gone(members):
    deadline = time.monotonic() + 60
    while any(runs_gvisor(pid) for pid in members):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # the end of a process that is not ours has no event


def runs_gvisor(pid):
    """Whether that number still is a process of a box, and no other's by now."""
    try:
        return b"runsc" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
