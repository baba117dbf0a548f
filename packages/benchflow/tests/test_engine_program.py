import pytest
from benchflow.cli.doctor import VARIABLE, EngineProgram


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that makes a program which prints what it is given."""

    def make(text, status=0):
        path = tmp_path / "criu"
        path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {status}\n")
        path.chmod(0o755)
        monkeypatch.setenv(VARIABLE, str(path))
        return str(path)

    return make


@pytest.mark.parametrize("version", ["4.2", "4.2.1", "4.10", "5.0-rc1"])
def test_a_new_program_is_found_with_its_version(program, version):
    path = program(f"Version: {version}\nGitID: v{version}")
    assert EngineProgram.find() == EngineProgram(path, version)


@pytest.mark.parametrize("text", ["Version: 3.17.1", "Version: 4.1", "hello", ""])
def test_an_old_or_strange_program_is_a_problem_with_a_remedy(program, text):
    path = program(text)
    found = EngineProgram.find()
    assert path in found.problem
    assert "4.2 or newer" in found.remedy


def test_a_program_that_is_not_there_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    assert "is not a program" in EngineProgram.find().problem
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert EngineProgram.find().problem == "not found"
