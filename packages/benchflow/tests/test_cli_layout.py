"""What a narrow terminal shows: every reward, value, fidelity and id, whole."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from benchflow.cli import doctor
from benchflow.cli.doctor import Finding
from benchflow.cli.entry import run
from benchflow.cli.narrate import narrator
from benchflow.cli.output import print_table
from benchflow.cli.story import Story
from benchflow.cli.task_check import show_cheats
from benchflow_contracts import (
    Ask,
    AskOption,
    Branched,
    BranchRecord,
    Event,
    NodeScored,
    NodeValued,
    Question,
    RolloutFinished,
    RolloutRecord,
    RolloutStarted,
    Step,
    StepFinished,
    Value,
    VerifyResult,
)
from benchflow_engine.cheating import CheatOutcome
from benchflow_kernel import fold

BENCH = Path(sys.executable).with_name("bench")
ROLLOUT = "reconcile-the-quarterly-ledger-of-the-northern-branch__0123abcd"
TASK = "accounting-benchmark-suite/reconcile-the-quarterly-ledger-of-the-northern-branch"
JOB = "2026-11-26-nightly-regression-of-the-accounting-suite"
AGENT = "an-agent-with-a-rather-long-registry-name"
NODES = ["n0", "n1-asks-the-user-which-ledger", "n2-first-child-of-the-fork", "n3-second-child"]
REWARDS = ("0.125", "0.875")


class Terminal(io.StringIO):
    """Standard output as a terminal has it."""

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return what was printed, without styles."""
        return re.sub(r"\x1b\[[\d;]*m", "", self.getvalue())


@pytest.fixture(params=[80, 40])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("NO_COLOR", "1")
    return Terminal()


def step(node: str, *, ask: Ask | None = None, message: str = "") -> Step:
    return Step(id=f"s-{node}", message=message, ask=ask, started_at=1.0, finished_at=2.0)


def events() -> list[Event]:
    root, asked, *children = NODES
    options = tuple(AskOption(id=str(n), label=f"the ledger of branch {n}") for n in range(2))
    question = Question(id="q", text="Which ledger shall I reconcile first?", options=options)
    ask = Ask(id="a", channel="elicitation", questions=(question,), kind="question")
    record = BranchRecord(policy="ask-user", fidelity="replay", reason="not live", children=2)
    long = "A message that is much longer than a line of a narrow terminal can hold. " * 2
    found: list[Event] = [
        RolloutStarted(seq=0, ts=0, rollout_id=ROLLOUT, task_id=TASK, root=root),
        StepFinished(seq=1, ts=1, node=asked, parent=root, step=step(asked, ask=ask)),
        Branched(seq=2, ts=1, node=asked, record=record),
    ]
    for child, reward, option in zip(children, REWARDS, options, strict=True):
        at = len(found)
        said = step(child, message=long)
        found += [
            StepFinished(seq=at, ts=2, node=child, parent=asked, step=said, label=option.label),
            NodeScored(
                seq=at + 1,
                ts=3,
                node=child,
                name="reward",
                result=VerifyResult(reward=float(reward)),
            ),
        ]
    value = Value(mean=0.5, n=2, variance=0.28125, stderr=0.375)
    found.append(NodeValued(seq=len(found), ts=4, node=asked, value=value))
    found.append(RolloutFinished(seq=len(found), ts=5, status="completed"))
    return found


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    job = tmp_path / "jobs" / JOB
    home = job / ROLLOUT
    home.mkdir(parents=True)
    (home / "events.jsonl").write_text("".join(e.model_dump_json() + "\n" for e in events()))
    record = RolloutRecord(
        rollout_id=ROLLOUT,
        task_id=TASK,
        task_digest="sha256:0",
        agent=AGENT,
        model=None,
        sandbox="local",
        status="completed",
        reward=0.875,
        grading="hermetic",
        finished_at=3.0,
    )
    (home / "result.json").write_text(record.model_dump_json())
    (job / "summary.json").write_text(json.dumps({"planned": 1}))
    return tmp_path / "jobs"


@pytest.mark.parametrize(
    ("command", "values"),
    [
        (["eval", "list"], [JOB, AGENT, "0.875", "1/1"]),
        (["eval", "show", JOB], [ROLLOUT, TASK, "0.875", "hermetic", "completed"]),
        (["rollout", "list"], [ROLLOUT, TASK, AGENT, "0.875", "completed"]),
        (
            ["rollout", "tree", ROLLOUT],
            [ROLLOUT, TASK, *NODES, *REWARDS, "V = 0.5 (n=2, se=0.375)", "fork x2 (replay)"],
        ),
        (["rollout", "show", ROLLOUT], NODES[1:3]),
        (["rollout", "show", ROLLOUT, "--leaf", NODES[3]], [NODES[3]]),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else None,
)
def test_a_narrow_terminal_shows_every_value_whole(
    jobs: Path, terminal: Terminal, command: list[str], values: list[str]
) -> None:
    with redirect_stdout(terminal):
        assert run([*command, "--jobs-dir", str(jobs)]) == 0
    assert [value for value in values if value not in terminal.text()] == []


@pytest.mark.parametrize("command", [["tree", ROLLOUT], ["show", ROLLOUT], ["list"]])
def test_an_ascii_pipe_gets_every_value(jobs: Path, command: list[str]) -> None:
    done = subprocess.run(
        [BENCH, "rollout", *command, "--jobs-dir", str(jobs)],
        env={"PYTHONIOENCODING": "ascii", "PATH": os.environ["PATH"]},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert (NODES[1].encode() in done.stdout) or (ROLLOUT.encode() in done.stdout)


def test_a_running_rollout_is_narrated_with_whole_values(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        receive = narrator()
        for event in events():
            receive(event)
    shown = terminal.text()
    assert [node for node in NODES[1:] if node not in shown] == []
    assert all(f"reward = {reward}" in " ".join(shown.split()) for reward in REWARDS)


def test_the_story_of_a_demo_has_whole_values_in_30_lines(terminal: Terminal) -> None:
    with redirect_stdout(terminal):
        story = Story()
        for event in events():
            story(event)
        story.end(fold(events()))
        story.tell("Record", f"jobs/{ROLLOUT}", fit="copy")
    shown = terminal.text()
    assert [node for node in NODES[1:] if node not in shown] == []
    assert all(f"reward {reward}" in shown for reward in REWARDS)
    assert "0.5 (n=2, se=0.375)" in " ".join(shown.split())
    assert ROLLOUT in shown
    assert shown.count("\n") <= 30


def test_cheats_are_shown_with_whole_values(terminal: Terminal) -> None:
    outcome = CheatOutcome(
        cheat="replaces-the-interpreter-before-the-tests",
        attempt="Write another python3.",
        stopped="The tests run elsewhere.",
        reward=0.125,
        integrity="suspicious",
        verdict="flagged",
    )
    with redirect_stdout(terminal):
        show_cheats([(TASK, outcome)])
    shown = terminal.text()
    assert all(value in shown for value in (TASK, outcome.cheat, "0.125", "suspicious", "flagged"))


def test_the_doctor_prints_one_remedy_a_line(terminal: Terminal) -> None:
    finding = Finding(
        check="sandbox a-provider-of-our-own",
        status="warn",
        detail="isolation namespaces; live forks no",
        remedies=("live: install criu", "network: load nf_tables"),
    )
    with redirect_stdout(terminal):
        doctor.show([finding])
    lines = terminal.text().splitlines()
    assert "      remedy: live: install criu" in lines
    assert "      remedy: network: load nf_tables" in lines
    assert finding.check in terminal.text()


def test_lines_of_a_table_fit_into_the_terminal(terminal: Terminal) -> None:
    rows = [("n1", "0.5", "a note of several words that is wrapped between two of them")]
    with redirect_stdout(terminal):
        print_table(("node", "reward", "note"), rows, empty="nothing")
    lines = terminal.text().splitlines()
    assert max(map(len, lines)) <= int(os.environ["COLUMNS"])
    assert " ".join(terminal.text().split()).endswith("between two of them")
