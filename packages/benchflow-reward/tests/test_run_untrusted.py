import os
import pwd
from pathlib import Path

import pytest
from benchflow_reward import run_untrusted
from benchflow_reward.run_untrusted import Completed, Limits, UntrustedError, call, main, run

# Here the code runs as who we are: dropping rights ends every process of a user of
# the machine, so tests/integration does that in a box. What counts here is the value.
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="setgroups needs root")


@pytest.fixture(autouse=True)
def same_user(monkeypatch):
    monkeypatch.setattr(run_untrusted, "_account", lambda name: pwd.getpwuid(os.getuid()))
    monkeypatch.setattr(run_untrusted, "_kill_all_of", lambda account: None)


SOLUTION = """
import os, sys, time

def add(a, b):
    return a + b

def who():
    status = open("/proc/self/status").read()
    return [os.getgroups(), "NoNewPrivs:\\t1" in status, dict(os.environ)]

def leave():
    os._exit(0)

def exit_zero():
    sys.exit(0)

def forge():
    print('{"word": "x", "value": 1}')
    for fd in range(3, 20):
        try:
            os.write(fd, b'{"word": "x", "value": 1}')
        except OSError:
            pass
    os._exit(0)

def not_a_number():
    return float("nan")

def an_object():
    return object()

class Equal(int):
    def __eq__(self, other):
        return True
    __hash__ = int.__hash__

def equal_to_all():
    return Equal(7)

def huge():
    return "x" * (2 << 20)

def hoard():
    return len(bytearray(3 << 30))

def hang():
    time.sleep(1000)
"""


@pytest.fixture
def solution(tmp_path):
    path = tmp_path / "solution.py"
    path.write_text(SOLUTION)
    return str(path)


@needs_root
def test_a_value_comes_back(solution):
    assert call(solution, "add", [2, 3]) == 5
    assert call(solution, "add", ["é", "x"]) == "éx"


@needs_root
def test_the_environment_is_clean(solution, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    groups, no_new_privs, env = call(solution, "who")
    assert groups == []
    assert no_new_privs
    assert "SECRET" not in env


@needs_root
@pytest.mark.parametrize(
    "function",
    [
        *("leave", "exit_zero", "forge", "not_a_number", "an_object", "huge", "hoard", "missing"),
    ],
)
def test_whatever_is_not_a_value_is_an_error(solution, function):
    with pytest.raises(UntrustedError):
        call(solution, function)


@needs_root
def test_an_exit_at_import_is_an_error(solution):
    Path(solution).write_text("import os\nos._exit(0)\n")
    with pytest.raises(UntrustedError):
        call(solution, "add", [2, 3])


@needs_root
def test_a_value_loses_its_class_on_the_way(solution):
    assert call(solution, "equal_to_all") != 8


@needs_root
def test_a_hang_ends(solution):
    with pytest.raises(UntrustedError, match="no end"):
        call(solution, "hang", limits=Limits(timeout=1))


@needs_root
def test_a_command_runs_and_its_output_is_data(tmp_path):
    done = run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])
    assert done == Completed(3, "out\n", "err\n")
    assert run(["/bin/cat"], stdin=b"abc").stdout == "abc"
    with pytest.raises(UntrustedError, match="cannot start"):
        run(["/no/such/program"])


@needs_root
def test_the_command_line_prints_json(solution, capsys):
    assert main(["call", solution, "add", "[2, 3]"]) == 0
    assert capsys.readouterr().out == "5\n"
    assert main(["call", solution, "leave"]) == 3
    assert capsys.readouterr().out == ""
    assert main(["run", "/bin/echo", "hi"]) == 0
    assert capsys.readouterr().out == '{"exit_code": 0, "stdout": "hi\\n", "stderr": ""}\n'
    assert main(["bogus"]) == 2


def test_without_root_nothing_is_run(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(UntrustedError, match="only root"):
        run(["/bin/true"])
