"""Checks of `Sandbox.exec`."""

import asyncio
import os
from unittest import mock

from benchflow_contracts.errors import SandboxError, SandboxTimeoutError
from benchflow_contracts.sandbox import Sandbox

from benchflow_testing.check import expect, expect_equal, expect_error, promise
from benchflow_testing.sandbox_subject import (
    TICKER,
    SandboxCheck,
    SandboxSubject,
    lacks_users,
)

_BACKGROUND_TICKER = f"({TICKER}) & wait"


def _lacks_output_cap(subject: SandboxSubject) -> str | None:
    known = "output" in subject.capabilities.resource_limits
    return None if known else "capabilities: no output limit"


@promise()
async def exec_reports_the_exit_code(subject: SandboxSubject) -> None:
    """A non-zero exit is a result, not an error."""
    async with subject.open_sandbox() as sandbox:
        for code in (0, 1, 7, 255):
            result = await sandbox.exec(f"exit {code}")
            expect_equal(result.exit_code, code, f"the exit code of `exit {code}`")
        expect_equal((await sandbox.exec(["false"])).exit_code, 1, "the exit code of false")


@promise()
async def exec_reports_a_signal_as_128_plus_n(subject: SandboxSubject) -> None:
    """A process that signal n ended has exit code 128 + n."""
    async with subject.open_sandbox() as sandbox:
        for number in (9, 15):
            text = f"kill -{number} $$"
            for cmd in (text, ["sh", "-c", text]):
                result = await sandbox.exec(cmd)
                expect_equal(result.exit_code, 128 + number, f"the exit code of {cmd!r}")


@promise()
async def exec_keeps_stdout_and_stderr_apart(subject: SandboxSubject) -> None:
    """Each stream has only its own bytes, unchanged."""
    async with subject.open_sandbox() as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; printf 'no newline'")
        expect_equal(result.stdout, "out\nno newline", "stdout")
        expect_equal(result.stderr, "err\n", "stderr")


@promise()
async def exec_replaces_bytes_that_are_not_utf8(subject: SandboxSubject) -> None:
    """Output is decoded as UTF-8 with replacement characters, and never raises an error."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "bytes", b"\xff\xfe ok \xc3\xa9")
        result = await sandbox.exec(["cat", "bytes"])
        expect_equal(result.stdout, "\ufffd\ufffd ok é", "stdout")


@promise()
async def exec_feeds_stdin_and_closes_it(subject: SandboxSubject) -> None:
    """The command reads `stdin`, then end of file. The default is an empty `stdin`."""
    async with subject.open_sandbox() as sandbox:
        data = b"line 1\nline 2"
        expect_equal((await sandbox.exec(["cat"], stdin=data)).stdout, data.decode(), "stdout")
        empty = await sandbox.exec(["cat"], timeout=10)
        expect_equal(empty.stdout, "", "stdout without stdin")


@promise()
async def exec_passes_an_argument_vector_unchanged(subject: SandboxSubject) -> None:
    """A vector does not pass through a shell: no word splitting, globbing or expansion."""
    words = ["a b", "*", "$HOME", "'", '"', "`id`", "", "é", "line\nbreak", "; exit 3"]
    async with subject.open_sandbox() as sandbox:
        result = await sandbox.exec(["printf", "[%s]\\n", *words])
        expect_equal(result.stdout, "".join(f"[{word}]\n" for word in words), "stdout")


@promise()
async def exec_runs_a_string_in_a_shell(subject: SandboxSubject) -> None:
    """A string is shell text. It may have operators, quotes and several lines."""
    async with subject.open_sandbox() as sandbox:
        text = 'X=one\nY=\'two  three\'\ntest "$X" = one && echo "$X $Y" || exit 9'
        expect_equal(await subject.output(sandbox, text), "one two  three\n", "stdout")


@promise()
async def exec_sets_the_given_environment(subject: SandboxSubject) -> None:
    """Every process has the spec's variables. Variables of the call are added to these."""
    spec = subject.spec_with(env={"FROM_SPEC": "spec value", "BOTH": "spec"})
    async with subject.open_sandbox(spec=spec) as sandbox:
        text = 'echo "$FROM_SPEC|$BOTH|$FROM_CALL"'
        found = await sandbox.exec(text, env={"BOTH": "call", "FROM_CALL": "it's $HOME"})
        expect_equal(found.stdout, "spec value|call|it's $HOME\n", "the environment")
        plain = await sandbox.exec(["sh", "-c", text])
        expect_equal(plain.stdout, "spec value|spec|\n", "the environment of the next call")


@promise()
async def variables_of_the_runner_are_not_visible_inside(subject: SandboxSubject) -> None:
    """A variable of the host process is not visible inside."""
    with mock.patch.dict(os.environ, {"BENCHFLOW_KIT_SECRET": "leaked"}):
        async with subject.open_sandbox() as sandbox:
            found = await subject.output(sandbox, 'echo "[$BENCHFLOW_KIT_SECRET]"')
    expect_equal(found, "[]\n", "a variable of the runner")


@promise()
async def exec_starts_in_the_working_directory(subject: SandboxSubject) -> None:
    """The default is the spec's `workdir`, which is created if missing. `cwd` overrides it."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "here", b"top")
        await subject.put(sandbox, "deep/er/here", b"below")
        expect_equal(await subject.output(sandbox, "cat here"), "top", "the file in workdir")
        below = await sandbox.exec(["cat", "here"], cwd=subject.inside("deep/er"))
        expect_equal(below.stdout, "below", "the file in cwd")
        expect_equal(await subject.output(sandbox, "echo x > made && cat made"), "x\n", "workdir")


@promise()
async def exec_refuses_a_missing_directory(subject: SandboxSubject) -> None:
    """A command whose `cwd` does not exist raises an error and does not run elsewhere."""
    async with subject.open_sandbox() as sandbox:
        call = sandbox.exec("echo ran", cwd=subject.inside("not/there"))
        await expect_error(SandboxError, call, "exec in a missing directory")


@promise(lacks_users)
async def exec_runs_as_the_given_user(subject: SandboxSubject) -> None:
    """`user=None` is the spec's user; `root` is root."""
    async with subject.open_sandbox() as sandbox:
        default = await subject.output(sandbox, "id -un")
        expect_equal(default.strip(), subject.spec.user, "the default user")
        root = await sandbox.exec("id -u", user="root")
        expect_equal(root.stdout.strip(), "0", "the number of root")


@promise(lacks_users)
async def exec_refuses_an_unknown_user(subject: SandboxSubject) -> None:
    """A command of an unknown user raises an error and does not run as another user."""
    async with subject.open_sandbox() as sandbox:
        call = sandbox.exec("echo ran", user="no-such-user-here")
        await expect_error(SandboxError, call, "exec as an unknown user")


@promise()
async def a_missing_program_is_never_a_success(subject: SandboxSubject) -> None:
    """A missing program raises SandboxError, or exits with 127 as in a shell."""
    async with subject.open_sandbox() as sandbox:
        try:
            result = await sandbox.exec(["no-such-program-here"])
        except SandboxError:
            return
        expect_equal(result.exit_code, 127, "the exit code of a missing program")


@promise()
async def a_timeout_kills_the_whole_group(subject: SandboxSubject) -> None:
    """When SandboxTimeoutError is raised, a grandchild in the background is dead too."""
    async with subject.open_sandbox() as sandbox:
        call = sandbox.exec(_BACKGROUND_TICKER, timeout=2.0)
        await expect_error(SandboxTimeoutError, call, "exec beyond its timeout")
        await subject.expect_no_tick(sandbox, "after the timeout")
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")


@promise()
async def cancellation_kills_the_whole_group(subject: SandboxSubject) -> None:
    """When a cancelled `exec` returns, none of its processes runs."""
    async with subject.open_sandbox() as sandbox:
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_run(sandbox, _BACKGROUND_TICKER))
            await subject.wait_for_tick(sandbox)
            call.cancel()
        await subject.expect_no_tick(sandbox, "after the cancellation")
        expect_equal(await subject.output(sandbox, "echo on"), "on\n", "the next command")


async def _run(sandbox: Sandbox, cmd: str) -> None:
    await sandbox.exec(cmd)


@promise(_lacks_output_cap)
async def exec_caps_output_and_counts_the_rest(subject: SandboxSubject) -> None:
    """Each stream returns `limits.output_bytes` bytes. Further bytes are counted exactly."""
    spec = subject.spec_with(limits={"output_bytes": 1000})
    async with subject.open_sandbox(spec=spec) as sandbox:
        await subject.put(sandbox, "big", b"y" * 250_000)
        result = await sandbox.exec("cat big; cat big >&2; cat big >&2")
        expect_equal(len(result.stdout), 1000, "the length of stdout")
        expect_equal(result.stdout_dropped, 249_000, "stdout_dropped")
        expect_equal(len(result.stderr), 1000, "the length of stderr")
        expect_equal(result.stderr_dropped, 499_000, "stderr_dropped")
        small = await sandbox.exec("echo small")
        expect_equal((small.stdout, small.stdout_dropped), ("small\n", 0), "the next command")


@promise()
async def exec_returns_a_megabyte_on_each_stream(subject: SandboxSubject) -> None:
    """Neither stream blocks the other, and no byte is lost below the limit."""
    async with subject.open_sandbox() as sandbox:
        await subject.put(sandbox, "big", b"0123456789abcdef" * 65536)
        result = await sandbox.exec("cat big >&2; cat big")
        expect_equal(len(result.stdout), 1 << 20, "the length of stdout")
        expect_equal(result.stdout, result.stderr, "stdout against stderr")


@promise()
async def concurrent_execs_do_not_mix(subject: SandboxSubject) -> None:
    """Commands that run at once get their own output and exit code."""

    async def run_one(number: int) -> None:
        result = await sandbox.exec(
            f"echo {number}; cat; echo e{number} >&2; exit {number}", stdin=b"z"
        )
        expect_equal(
            (result.exit_code, result.stdout, result.stderr),
            (number, f"{number}\nz", f"e{number}\n"),
            f"the result of command {number}",
        )

    async with subject.open_sandbox() as sandbox, asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(run_one(number))


@promise()
async def exec_does_not_wait_for_background_processes(subject: SandboxSubject) -> None:
    """`exec` returns when its command ends, even if a daemon still has its pipes open."""
    async with subject.open_sandbox() as sandbox:
        result = await sandbox.exec(f"({TICKER}) & echo started", timeout=10)
        expect_equal(result.stdout, "started\n", "stdout")
        await subject.wait_for_tick(sandbox)


@promise()
async def execs_do_not_share_shell_state(subject: SandboxSubject) -> None:
    """Variables and the directory of one command do not reach the next."""
    async with subject.open_sandbox() as sandbox:
        await sandbox.exec("mkdir -p away; cd away; export LEFT=1; RIGHT=1; exit 0")
        found = await subject.output(sandbox, 'echo x > mark; echo "[$LEFT$RIGHT]"')
        expect_equal(found, "[]\n", "variables of the command before")
        in_workdir = await subject.get(sandbox, "mark") == b"x\n"
        expect(in_workdir, "the next command did not start in the workdir")


EXEC_CHECKS: tuple[SandboxCheck, ...] = (
    exec_reports_the_exit_code,
    exec_reports_a_signal_as_128_plus_n,
    exec_keeps_stdout_and_stderr_apart,
    exec_replaces_bytes_that_are_not_utf8,
    exec_feeds_stdin_and_closes_it,
    exec_passes_an_argument_vector_unchanged,
    exec_runs_a_string_in_a_shell,
    exec_sets_the_given_environment,
    variables_of_the_runner_are_not_visible_inside,
    exec_starts_in_the_working_directory,
    exec_refuses_a_missing_directory,
    exec_runs_as_the_given_user,
    exec_refuses_an_unknown_user,
    a_missing_program_is_never_a_success,
    a_timeout_kills_the_whole_group,
    cancellation_kills_the_whole_group,
    exec_caps_output_and_counts_the_rest,
    exec_returns_a_megabyte_on_each_stream,
    concurrent_execs_do_not_mix,
    exec_does_not_wait_for_background_processes,
    execs_do_not_share_shell_state,
)
