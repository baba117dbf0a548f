"""`bench dashboard` without its package."""

import subprocess
import sys

import pytest
from benchflow.cli.entry import run


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "benchflow_dashboard", None)
    assert run(["dashboard", "--no-open"]) == 2
    assert "pip install 'benchflow[dashboard]'" in capsys.readouterr().err


def test_help_does_not_import_the_dashboard() -> None:
    program = (
        "import sys; from benchflow.cli.entry import run; run(['--help']);"
        "sys.exit(bool({'benchflow_dashboard', 'litestar', 'uvicorn'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    assert ended.returncode == 0
