import asyncio
import os
import resource

import pytest
from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.limits import ResourceLimits
from benchflow_contracts.sandbox import SandboxSpec


def test_output_exit_code_and_streams_are_told_apart(with_box):
    async def check(sandbox):
        result = await sandbox.exec("echo out; echo err >&2; exit 7")
        assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")
        assert not result.ok
        assert result.duration_sec > 0

    with_box(check)


def test_an_argument_vector_is_not_read_by_a_shell(with_box):
    async def check(sandbox):
        assert (await sandbox.exec(["echo", "$HOME; ls", "a b"])).stdout == "$HOME; ls a b\n"

    with_box(check)


def test_the_spec_gives_user_directory_and_environment(with_box):
    async def check(sandbox):
        result = await sandbox.exec("id -un; pwd; echo $ONE $TWO $HOME", env={"TWO": "2b"})
        assert result.stdout == "tester\n/srv/here\n1 2b /home/tester\n"
        other = await sandbox.exec("id -u; pwd; echo $HOME", user="root", cwd="/tmp")
        assert other.stdout == "0\n/tmp\n/root\n"
        assert (await sandbox.exec("touch file && stat -c %U .")).stdout == "tester\n"

    with_box(check, user="tester", workdir="/srv/here", env={"ONE": "1", "TWO": "2"})


def test_a_process_killed_by_a_signal_reports_as_a_shell_does(with_box):
    async def check(sandbox):
        assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"])).exit_code == 143

    with_box(check)


def test_stdin_is_passed_on_and_then_ends(with_box):
    async def check(sandbox):
        data = os.urandom(300_000).hex().encode()
        result = await sandbox.exec(["wc", "-c"], stdin=data)
        assert int(result.stdout) == len(data)
        assert (await sandbox.exec(["cat"])).stdout == ""
        assert (await sandbox.exec(["true"], stdin=data)).ok

    with_box(check)


def test_what_cannot_be_decoded_is_replaced(with_box):
    async def check(sandbox):
        assert (await sandbox.exec(r"printf 'a\377b'")).stdout == "a\ufffdb"

    with_box(check)


def test_a_command_that_cannot_start_is_an_error_that_names_it(with_box):
    async def check(sandbox):
        with pytest.raises(SandboxError, match="no-such-program"):
            await sandbox.exec(["no-such-program"])
        with pytest.raises(SandboxError, match="/nowhere"):
            await sandbox.exec(["true"], cwd="/nowhere")
        with pytest.raises(SandboxError, match="nobody-here"):
            await sandbox.exec(["true"], user="nobody-here")

    with_box(check)


def test_a_timeout_kills_the_whole_group(with_box):
    async def check(sandbox):
        script = "sleep 1000 & echo started > /tmp/started; sleep 1000"
        with pytest.raises(SandboxTimeoutError):
            await sandbox.exec(script, timeout=0.5)
        assert (await sandbox.exec(["cat", "/tmp/started"])).ok
        assert (await sandbox.exec("pgrep -c sleep")).stdout == "0\n"

    with_box(check)


def test_a_cancelled_command_leaves_no_process(with_box):
    async def check(sandbox):
        async def long():
            await sandbox.exec("echo x > /tmp/here; sleep 1000 & sleep 1000")

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await long()
        assert (await sandbox.exec("cat /tmp/here; pgrep -c sleep")).stdout == "x\n0\n"

    with_box(check)


def test_a_daemon_that_keeps_the_pipes_open_is_not_waited_for(with_box):
    async def check(sandbox):
        result = await sandbox.exec("(setsid sleep 30 &) ; echo done", timeout=10)
        assert result.stdout == "done\n"
        flood = await sandbox.exec("(setsid yes &) ; echo done", timeout=10)
        assert flood.stdout.startswith("done\n") or "done\n" in flood.stdout
        await sandbox.exec("pkill yes")

    with_box(check)


def test_a_flood_of_output_is_cut_counted_and_does_not_grow_the_runner(with_box):
    async def check(sandbox):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await sandbox.exec("head -c 300000000 /dev/zero | tr '\\0' x; echo e >&2")
        assert result.ok
        assert len(result.stdout) == 1000
        assert result.stdout_dropped == 300_000_000 - 1000
        assert (result.stderr, result.stderr_dropped) == ("e\n", 0)
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kb < 32 * 1024

    with_box(check, limits=ResourceLimits(output_bytes=1000))


def test_many_commands_at_once_do_not_mix(with_box):
    async def check(sandbox):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sandbox.exec(f"sleep 0.05; echo {n}")) for n in range(40)]
        assert [task.result().stdout for task in tasks] == [f"{n}\n" for n in range(40)]

    with_box(check)


def test_nothing_runs_after_teardown(with_provider):
    async def check(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.teardown()
        await sandbox.teardown()
        with pytest.raises(SandboxError, match=sandbox.id):
            await sandbox.exec("true")

    with_provider(check)


def test_the_entrypoint_runs_as_root_with_the_specs_environment(with_box):
    async def check(sandbox):
        script = "for i in $(seq 100); do [ -e /tmp/up ] && break; sleep 0.05; done; cat /tmp/up"
        assert (await sandbox.exec(script)).stdout == "0 yes\n"

    command = ("sh", "-c", "echo $(id -u) $READY > /tmp/up.new; mv /tmp/up.new /tmp/up; sleep 100")
    with_box(check, entrypoint=command, env={"READY": "yes"})


def test_a_command_that_is_held_before_it_starts_is_late(with_box):
    async def late(sandbox):
        async with asyncio.timeout(10):
            with pytest.raises(SandboxTimeoutError):
                await sandbox.exec("touch /tmp/ran", timeout=0.3)

    async def check(sandbox):
        async with sandbox.freeze(), asyncio.TaskGroup() as group:
            await group.create_task(late(sandbox))
        assert not (await sandbox.exec(["test", "-e", "/tmp/ran"])).ok

    with_box(check)
