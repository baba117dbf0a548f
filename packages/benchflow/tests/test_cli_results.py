"""`bench rollout list` and `bench eval show`: what a job came to."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchflow.cli.entry import run
from benchflow_contracts import RolloutRecord, RolloutStarted, VerifyResult
from benchflow_store import GroupRecord, GroupVerdict, LostMember, append_group


def write_result(
    home: Path, task: str, reward: float | None, *, at: float = 1.0, slot: str | None = None
) -> None:
    home.mkdir(parents=True)
    record = RolloutRecord(
        rollout_id=home.name,
        task_id=task,
        task_digest="sha256:0",
        agent="oracle",
        model=None,
        sandbox="local",
        status="failed" if reward is None else "completed",
        reward=reward,
        finished_at=at,
        slot=slot,
    )
    (home / "result.json").write_text(record.model_dump_json())


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job of three rollouts, one without a score, beside a rollout that is running."""
    jobs = tmp_path / "jobs"
    write_result(jobs / "job" / "book__1", "bench/book", 1.0, at=3.0)
    write_result(jobs / "job" / "book__2", "bench/book", 0.5, at=2.0)
    write_result(jobs / "job" / "paint__1", "bench/paint", None, at=1.0)
    (jobs / "job" / "summary.json").write_text(json.dumps({"planned": 3}))
    running = jobs / "paint__2"
    running.mkdir()
    started = RolloutStarted(seq=0, ts=0, rollout_id=running.name, task_id="bench/paint", root="n0")
    (running / "events.jsonl").write_text(started.model_dump_json() + "\n")
    return jobs


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["rollout", "list", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rollouts_are_listed_with_the_newest_last(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = listed(capsys, str(jobs))
    names = [row["id"] for row in rows]
    assert names == ["paint__1", "book__2", "book__1", "paint__2"]
    assert rows[-1]["status"] == "unfinished"
    assert rows[-1]["task"] == "bench/paint"
    assert Path(rows[0]["directory"]) == jobs / "job" / "paint__1"


def test_the_rollouts_of_one_job_are_listed(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["id"] for row in listed(capsys, str(jobs / "job"))] == [
        "paint__1",
        "book__2",
        "book__1",
    ]


def test_rollouts_are_chosen_by_task_and_by_failure(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = listed(capsys, "--jobs-dir", str(jobs), "--task", "book")
    assert {row["task"] for row in found} == {"bench/book"}
    found = listed(capsys, "--jobs-dir", str(jobs), "--task", "bench/p*", "--failed")
    assert [row["id"] for row in found] == ["paint__1", "paint__2"]


def test_a_damaged_result_is_named_and_the_others_are_listed(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (jobs / "job" / "book__1" / "result.json").write_text("{")
    assert run(["rollout", "list", str(jobs), "--json"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == 3
    assert "book__1" in said.err


def test_a_directory_that_does_not_exist_is_wrong_usage(tmp_path: Path) -> None:
    assert run(["rollout", "list", str(tmp_path / "none")]) == 2


def test_a_job_is_shown_with_its_tasks_and_pass_at_k(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["eval", "show", "job", "--jobs-dir", str(jobs)]) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert next(x for x in lines if "book__1" in x)[:3] == ["book__1", "bench/book", "1"]
    assert ["bench/book", "2", "0", "0.75", "0.5", "1"] in lines
    assert ["bench/paint", "1", "1", "-", "-", "-"] in lines
    assert "pass@1 0.5, mean of 1 of 2 tasks; a pass is a reward >= 1" in said.err
    assert "2 of 3 scored, 1 without a score" in said.err


def test_a_job_is_shown_with_a_column_of_its_group_reward(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unscored = VerifyResult(reward=None, error="the judge did not answer")
    leaves = (
        ("book__1", "n1", VerifyResult(reward=0.2)),
        ("book__1", "n2", VerifyResult(reward=0.4)),
        ("book__2", "n1", unscored),
    )
    group = GroupRecord(
        task="bench/book",
        task_digest="sha256:0",
        reward="rank",
        leaves=tuple(
            GroupVerdict(rollout=rollout, leaf=leaf, result=result)
            for rollout, leaf, result in leaves
        ),
        lost=(LostMember(name="book__3", reason="the slot has no rollout that counts"),),
    )
    append_group(jobs / "job", group)
    assert run(["eval", "show", "job", "--jobs-dir", str(jobs)]) == 0
    said = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in said.out.splitlines() if line}
    assert rows["rollout"][2:5] == ["reward", "group", "rank"]
    assert rows["book__1"][2:4] == ["1", "0.3"]
    assert rows["book__2"][2:4] == ["0.5", "-"]
    assert rows["paint__1"][2:4] == ["-", "-"]
    assert "mean of group reward 'rank': 0.3, over 2 leaves" in said.err
    assert "group reward 'rank', bench/book: 2 of 3 leaves" in said.err
    assert "lost: book__3: the slot has no rollout" in said.err
    assert "mean reward 0.75" in said.err


def test_attempts_of_different_variants_are_not_mixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, variant in enumerate(("large", "large", "small")):
        reward = 1.0 if variant == "large" else None
        place = tmp_path / "j" / f"book__{number}"
        write_result(place, "bench/book", reward, slot=f"bench/book#{number}@{variant}")
    (tmp_path / "j" / "summary.json").write_text('{"planned": 3}')
    words = ["eval", "show", "j", "--jobs-dir", str(tmp_path)]
    assert run(words) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert ["bench/book", "large", "2", "0", "1", "1", "1"] in lines
    assert ["bench/book", "small", "1", "1", "-", "-", "-"] in lines
    assert "pass@" not in said.err
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pass_at_k"] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("show job --pass-reward nan", "for --pass-reward. It is not a finite number"),
        ("create --tasks-dir tasks --fail-under nan", "for --fail-under. It is not a finite"),
        ("create --tasks-dir tasks --repeats 70000", "--repeats 70000: Input should be less"),
        (f"create --tasks-dir tasks --job-name {'n' * 300}", "it is longer than 200 bytes"),
    ],
)
def test_a_number_or_name_that_no_job_can_have_is_a_usage_error(
    jobs: Path, capsys: pytest.CaptureFixture[str], words: str, says: str
) -> None:
    assert run(["eval", *words.split(), "--jobs-dir", str(jobs)]) == 2
    assert says in capsys.readouterr().err


def test_the_reward_that_passes_is_an_option(
    jobs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["eval", "show", "job", "--jobs-dir", str(jobs), "--pass-reward", "0.5", "--json"]
    assert run(command) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["pass_at_k"] == [
        {"k": 1, "value": 1.0, "tasks": 1},
        {"k": 2, "value": 1.0, "tasks": 1},
    ]
    assert [task["task_id"] for task in report["tasks"]] == ["bench/book", "bench/paint"]
