"""Shell completion: the words that it offers, and the scripts in the shells that are installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.completion import SCRIPTS, completions
from benchflow.cli.entry import run
from benchflow_engine.scaffold import write_task

BIN = Path(sys.executable).parent
RUNS = {
    # What a shell calls for `bench eval show ba<TAB>`, and the words that it would insert.
    "bash": """
        COMP_WORDS=(bench eval show ba); COMP_CWORD=3
        _bench_completion 2>/dev/null; printf '%s\\n' "${COMPREPLY[@]}"
    """,
    "zsh": """
        compadd() { [[ $1 == -- ]] && shift && print -l -- "$@"; true }
        words=(bench eval show ba); CURRENT=4; _bench_completion
    """,
    "fish": "complete -C 'bench eval show ba'",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with two tasks and a job of one rollout, as the current directory."""
    for name in ("archive", "book"):
        write_task(tmp_path / "tasks" / name)
    job = tmp_path / "jobs" / "baseline"
    (job / "book__1f").mkdir(parents=True)
    (job / "summary.json").touch()
    (job / "book__1f" / "events.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BENCHFLOW_JOBS_DIR", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ev"], ["eval"]),
        (["eval", "cr"], ["create"]),
        (["run", "--branch-r"], ["--branch-require"]),
        (["run", "--branch", "g"], ["group"]),
        (["run", "--agent", "ora"], ["oracle"]),
        (["run", "--agent", "=", "ora"], ["oracle"]),
        (["run", "--sandbox", "lo"], ["local"]),
        (["run", "ta"], ["tasks/"]),
        (["run", "tasks/"], ["tasks/archive", "tasks/book"]),
        (["run", "--agent", "oracle", "tasks/b"], ["tasks/book"]),
        (["eval", "create", "-p", "ta"], ["tasks/"]),
        (["eval", "create", "-p", "tasks", "--include", "b"], ["book"]),
        (["eval", "create", "--job-name", ""], ["baseline"]),
        (["eval", "show", ""], ["baseline"]),
        (["rollout", "tree", ""], ["book__1f"]),
        (["agent", "show", "orac"], ["oracle"]),
        (["doctor", "--bran"], []),
        (["--install-completion", "z"], ["zsh"]),
        (["no-such-command", ""], []),
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("place")
def test_the_last_word_is_completed(words: list[str], offered: list[str]) -> None:
    assert completions(words) == offered


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_an_installation_is_repeatable_and_the_shell_completes(
    shell: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = place / "home"
    home.mkdir()
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    for _ in range(2):
        assert run(["--install-completion", shell]) == 0
    startup = home / f".{shell}rc"
    assert startup.exists() is (shell != "fish")
    assert not startup.exists() or startup.read_text().count("benchflow/completion") == 1
    assert f"wrote {home}" in capsys.readouterr().out
    program = shutil.which(shell)
    if program is None:
        return  # The script of a shell that is not installed here is only written.
    source = "" if shell == "fish" else f'. "{startup}"\n'
    done = subprocess.run(
        [program, "-c", source + RUNS[shell]],
        env={"HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["baseline"], done.stderr


def test_the_shell_of_the_user_is_the_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert run(["--show-completion"]) == 0
    assert capsys.readouterr().out == SCRIPTS["zsh"]
    assert run(["--show-completion", "tcsh"]) == 2
    assert "name one of bash, zsh, fish" in capsys.readouterr().err
