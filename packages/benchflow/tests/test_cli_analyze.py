"""`bench analyze`: jobs compared on the command line, and SQL over their facts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchflow.cli.commands import with_default
from benchflow.cli.completion import completions
from benchflow.cli.entry import run
from benchflow_contracts import RolloutRecord


def write_job(jobs: Path, name: str, rewards: dict[str, list[float | None]]) -> None:
    slots = {f"{task}#{at}": "d" for task, values in rewards.items() for at in range(len(values))}
    for task, values in rewards.items():
        for repeat, reward in enumerate(values):
            record = RolloutRecord(
                rollout_id=f"{task}__{repeat}",
                task_id=task,
                task_digest="d",
                agent="oracle",
                model="m",
                sandbox="local",
                status="failed" if reward is None else "completed",
                reward=reward,
                slot=f"{task}#{repeat}",
                finished_at=1.0,
            )
            rollout = jobs / name / record.rollout_id
            rollout.mkdir(parents=True)
            (rollout / "result.json").write_text(record.model_dump_json())
    (jobs / name / "job.json").write_text(json.dumps({"slots": slots, "options": {}}))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two jobs, neither of which has a summary."""
    monkeypatch.chdir(tmp_path)
    tasks = [f"t{at}" for at in range(12)]
    half: dict[str, list[float | None]] = {t: [float(at % 2)] for at, t in enumerate(tasks)}
    write_job(tmp_path / "jobs", "before", {**half, "t0": [None]})
    write_job(tmp_path / "jobs", "after", {task: [1.0] for task in tasks})
    return tmp_path / "jobs"


def test_jobs_are_compared_in_tables(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "before", "aft"]) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["Variants"]
    assert lines[2][:5] == ["before", "11", "12", "1", "0.545"]
    assert lines[3][:5] == ["after", "12", "12", "0", "1.000"]
    assert ["Comparisons"] in lines
    assert any(line[:4] == ["after", "before", "11", "5/0/6"] for line in lines)
    assert "McNemar's exact test, 5 tasks won and 0 lost, p 0.062" in said.err


def test_a_report_is_json_or_markdown_and_a_plot(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", "before", "after", "--json", "--plot", "a.svg", "--seed", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["options"]["seed"] == 5
    assert report["comparisons"][0]["paired"]["mcnemar"]["wins"] == 5
    assert Path("a.svg").read_text().startswith("<svg")
    assert run(["analyze", "--md", "--k", "1", "before"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# Analysis of `before`")
    assert "pass@1" in text


def test_one_select_is_answered(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "SELECT job, sum(scored) AS scored FROM variant_summary GROUP BY job ORDER BY job"
    assert run(["analyze", "sql", "before", sql, "--also", "after", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"job": "after", "scored": 12},
        {"job": "before", "scored": 11},
    ]
    assert run(["analyze", "sql", "before", "FROM trials", "--max-rows", "2"]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 3
    assert "only the first 2 rows are shown" in said.err


def test_without_a_statement_the_views_are_listed(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", "sql", "before"]) == 0
    assert "variant_summary" in capsys.readouterr().out


@pytest.mark.parametrize("sql", ["COPY trials TO 'x.csv'", "SELECT 1; SELECT 2", "FROM nothing"])
def test_another_statement_is_wrong_usage(
    jobs: Path, capsys: pytest.CaptureFixture[str], sql: str
) -> None:
    assert run(["analyze", "sql", "before", sql]) == 2
    assert "hint: " in capsys.readouterr().err
    assert not Path("x.csv").exists()


def test_a_job_without_facts_has_no_parquet(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "parquet", "before"]) == 4
    assert "does not have facts" in capsys.readouterr().err


def test_a_job_without_a_resolved_slot_is_shown(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (jobs / "empty").mkdir()
    (jobs / "empty" / "job.json").write_text('{"slots": {"t0#0": "d"}, "options": {}}')
    assert run(["analyze", "empty"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert "no slot is resolved yet\nempty is not complete: 0 of 1 slots" in said.err


def test_an_unknown_job_is_named(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", "nope"]) == 2
    assert "has no job 'nope'" in capsys.readouterr().err


def test_a_group_with_a_default_needs_no_verb() -> None:
    assert with_default(["analyze", "a", "b"]) == ["analyze", "show", "a", "b"]
    assert with_default(["analyze", "--json", "a"]) == ["analyze", "show", "--json", "a"]
    assert with_default(["analyze", "sql", "a"]) == ["analyze", "sql", "a"]
    assert with_default(["analyze"]) == ["analyze"]
    assert with_default(["analyze", "--help"]) == ["analyze", "--help"]
    assert with_default(["eval", "a"]) == ["eval", "a"]
    assert with_default(["run", "a"]) == ["run", "a"]


def test_jobs_are_completed(jobs: Path) -> None:
    for name in ("before", "after"):
        (jobs / name / "summary.json").write_text("{}")
    assert completions(["analyze", "b"]) == ["before"]
    assert {"after", "before", "show", "sql"} < set(completions(["analyze", ""]))
    assert completions(["analyze", "sql", "a"]) == ["after"]
    assert "--margin" in completions(["analyze", "before", "--m"])


def test_help_loads_nothing_of_the_analysis() -> None:
    program = (
        "import sys; from benchflow.cli.entry import run; run(['--help']);"
        "sys.exit(bool({'duckdb', 'numpy', 'benchflow_analysis'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_program_ends_without_a_warning_of_its_libraries(jobs: Path) -> None:
    program = "from benchflow.cli import main; main(['analyze', 'after', '--md'])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    assert done.stderr == b""
    assert done.stdout.startswith(b"# Analysis")
