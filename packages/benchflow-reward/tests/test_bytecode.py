"""Bytecode of the agent's is removed, and made anew by an interpreter that is the image's."""

import asyncio

import pytest
from benchflow_contracts import ExecResult, FileChanges, RewardError, SandboxTimeoutError
from benchflow_reward.script.bytecode import recompile_bytecode

REMOVE, COMPILE = "xargs -0 rm", "/bin/sh -c test -x"
CACHED = "/usr/lib/python3.11/json/__pycache__/decoder.cpython-311.pyc"
OLD = "/srv/__pycache__/work.cpython-39.pyc"


def ok(exit_code=0):
    return ExecResult(exit_code=exit_code, stdout="", stderr="", duration_sec=0)


@pytest.fixture
def renew(box):
    """Return what was removed, and each interpreter with what it was to compile."""

    def run(*changed, compiles=lambda call: ok()):
        removed, compiled = [], []

        def remove(call):
            removed.extend(call.stdin.decode().split("\0")[:-1])
            return ok()

        def compile_(call):
            compiled.append((call.cmd[3], call.stdin.decode().split("\0")))
            return compiles(call)

        box.on(REMOVE, remove)
        box.on(COMPILE, compile_)
        asyncio.run(recompile_bytecode(box, FileChanges(added=changed)))
        return removed, compiled

    return run


def test_each_version_compiles_the_sources_of_its_own(renew):
    removed, compiled = renew(CACHED, OLD, "/srv/work.py", "/srv/work.pyc")
    assert removed == [CACHED, OLD]
    assert compiled == [
        ("/usr/local/bin/python3.11", ["/usr/lib/python3.11/json/decoder.py"]),
        ("/usr/local/bin/python3.9", ["/srv/work.py"]),
    ]


def test_the_next_place_is_looked_at_where_there_is_no_interpreter(renew):
    _, compiled = renew(CACHED, compiles=lambda call: ok(127))
    assert [each for each, _ in compiled] == ["/usr/local/bin/python3.11", "/usr/bin/python3.11"]


@pytest.mark.parametrize("changed", ["/usr/local/bin/python3.11", "/usr/local/bin", "/usr/local"])
def test_an_interpreter_that_the_agent_may_have_put_there_is_not_run(renew, changed):
    _, compiled = renew(CACHED, changed)
    assert [each for each, _ in compiled] == ["/usr/bin/python3.11"]


def test_sources_that_take_too_long_stay_without_bytecode(renew):
    def late(call):
        raise SandboxTimeoutError("late")

    removed, _ = renew(CACHED, compiles=late)
    assert removed == [CACHED]


def test_nothing_is_run_where_there_is_no_bytecode(renew, box):
    renew("/srv/work.py")
    assert box.calls == []


def test_bytecode_that_cannot_be_removed_is_an_error(box):
    box.on(REMOVE, lambda call: ok(1))
    with pytest.raises(RewardError, match="cannot be removed"):
        asyncio.run(recompile_bytecode(box, FileChanges(added=[CACHED])))
