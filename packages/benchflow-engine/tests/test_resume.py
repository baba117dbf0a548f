"""From which checkpoints a rollout that was cut short can resume."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchflow_contracts import (
    BeganFrom,
    Branched,
    BranchRecord,
    NodeError,
    PhaseEntered,
    RolloutFinished,
    RolloutStarted,
    SandboxImage,
    SessionSnapshot,
    Step,
    StepFinished,
    Task,
    TaskConfig,
    Usage,
)
from benchflow_contracts.agent import AgentCapabilities
from benchflow_engine.resume import ResumePoint, resume_points, was_cut_short
from benchflow_kernel import CheckpointManifest, EventLog
from benchflow_kernel.rollout.checkpoint_manifest import SavedSession, SavedStep, SavedTurn
from benchflow_store import RESUMED_FROM, StoredRollout, name_successor, seal_config, write_inputs
from benchflow_store.record import RanWith
from benchflow_testing.fakes import FakeAgent

TASK = Task(
    id="demo",
    path=Path("/no/such/task"),
    digest="sha256:0",
    instruction="do it",
    config=TaskConfig(name="demo"),
)


@pytest.fixture(autouse=True)
def own_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


IMAGE = SandboxImage(
    provider="fake", level="filesystem", consistency="instant", ref="r", digest="d", bytes=1
)


def step(number: int) -> Step:
    return Step(
        id=f"s{number}",
        usage=Usage(input_tokens=10, output_tokens=number),
        model_calls=(f"n0.{number:06d}",),
        started_at=float(number),
        finished_at=float(number),
    )


def rollout(directory: Path, *later: tuple[type[Any], dict[str, Any]], **meta: Any) -> Path:
    """Write the log of a rollout with two steps, n1 and n2."""
    write_inputs(directory, TASK, RanWith("fake", None, "local"), {})
    with EventLog(directory / "events.jsonl") as log:
        log.append(RolloutStarted, rollout_id=directory.name, task_id="demo", root="n0", meta=meta)
        log.append(StepFinished, node="n1", parent="n0", step=step(1))
        log.append(StepFinished, node="n2", parent="n1", step=step(2))
        for kind, fields in later:
            log.append(kind, **fields)
    return directory


def save(
    directory: Path, node: str, taken_at: float, *, sealed: bool = True, **fields: Any
) -> Path:
    manifest = CheckpointManifest.model_validate(
        {
            "rollout_id": directory.name,
            "task_id": "demo",
            "task_digest": "sha256:0",
            "node": node,
            "turn": 0,
            "checkpoint_turn": 0,
            "fidelity": "state",
            "ref": "r",
            "layers": {},
            "image": IMAGE,
            "schedule": (SavedTurn(scene="main", role="agent", agent="fake"),),
            "history": tuple(SavedStep(step=step(at + 1)) for at in range(int(node[1:]))),
            "taken_at": taken_at,
            **fields,
        }
    )
    plain = manifest.model_dump(mode="json", exclude={"seal"})
    path = directory / "checkpoints" / node
    path.mkdir(parents=True)
    text = json.dumps(seal_config(plain) if sealed else plain)
    (path / "checkpoint.json").write_text(text)
    return path


def points(
    directory: Path, *, agent: FakeAgent | None = None, trust: bool = False
) -> tuple[list[ResumePoint], list[str]]:
    refusals: list[str] = []
    stored = StoredRollout(directory)
    found = resume_points(stored, TASK, agent or FakeAgent(), refusals, trust=trust)
    return list(found), refusals


def names(found: list[ResumePoint]) -> list[str | None]:
    return [point.began.checkpoint for point in found]


def test_the_last_checkpoint_comes_first_and_says_what_was_paid(tmp_path: Path) -> None:
    directory = rollout(tmp_path / "r1")
    save(directory, "n0", 1.0)
    save(directory, "n2", 2.0, ended=True)
    found, refusals = points(directory)
    assert names(found) == ["n2", "n0"]
    assert refusals == []
    began = found[0].began
    assert (began.point, began.rollout, began.fidelity) == ("grading", "r1", "state")
    assert began.prior is not None
    assert (began.prior.steps, began.prior.model_calls) == (2, 2)
    assert began.prior.usage == Usage(input_tokens=20, output_tokens=3)
    assert found[1].began.point == "checkpoint"


def test_a_damaged_and_a_foreign_checkpoint_are_refused_by_name(tmp_path: Path) -> None:
    directory = rollout(tmp_path / "r1")
    save(directory, "n0", 1.0)
    save(directory, "n1", 2.0, sealed=False)
    torn = save(directory, "n2", 3.0) / "checkpoint.json"
    torn.write_bytes(torn.read_bytes()[:-40])
    (directory / "checkpoints" / ".n9.part").mkdir()
    found, refusals = points(directory)
    assert names(found) == ["n0"]
    assert [text.partition(":")[0] for text in refusals] == ["n1", "n2"]
    assert "was not saved by this user" in refusals[0]
    assert names(points(directory, trust=True)[0]) == ["n1", "n0"]


def test_another_version_of_the_task_and_a_lost_node_are_refused(tmp_path: Path) -> None:
    directory = rollout(tmp_path / "r1")
    save(directory, "n1", 1.0, task_digest="sha256:1")
    save(directory, "n3", 2.0)
    found, refusals = points(directory)
    assert found == []
    assert refusals == [
        "n1: it is of another version of the task",
        "n3: the log does not have its node 'n3'",
    ]


def test_a_forked_rollout_resumes_at_its_first_fork(tmp_path: Path) -> None:
    record = BranchRecord(policy="value", fidelity="state", reason="", children=2)
    directory = rollout(tmp_path / "r1", (Branched, {"node": "n1", "record": record}))
    save(directory, "n1", 1.0)
    save(directory, "n2", 2.0)
    found, refusals = points(directory)
    assert names(found) == ["n1"]
    assert refusals == ["n2: it is below the fork of node 'n1', whose branches run again"]


def test_session_files_need_an_agent_that_reads_them(tmp_path: Path) -> None:
    directory = rollout(tmp_path / "r1")
    snapshot = SessionSnapshot(agent="fake", session_id="x", cwd="/")
    session = SavedSession(role="agent", agent="fake", snapshot=snapshot)
    save(directory, "n1", 1.0, sessions=(session,))
    save(directory, "n0", 0.0)
    reader = FakeAgent()
    assert names(points(directory, agent=reader)[0]) == ["n1", "n0"]
    other = FakeAgent(capabilities=AgentCapabilities(protocol="fake"))
    found, refusals = points(directory, agent=other)
    assert names(found) == ["n0"]
    assert refusals == ["n1: agent 'fake' cannot resume its conversation from files"]


def test_the_checkpoints_of_the_earlier_attempt_come_after_its_own(tmp_path: Path) -> None:
    first = rollout(tmp_path / "r1")
    save(first, "n0", 5.0)
    began = BeganFrom(point="checkpoint", rollout="r1", directory="/moved/since", checkpoint="n0")
    second = rollout(tmp_path / "r2", **{RESUMED_FROM: began.model_dump(mode="json")})
    save(second, "n1", 1.0)
    found, _ = points(second)
    assert [(p.began.rollout, p.began.checkpoint) for p in found] == [("r2", "n1"), ("r1", "n0")]


def failed_attempt(directory: Path, checkpoint: str, *phases: str) -> Path:
    """Write an attempt that resumed r1 from a checkpoint and failed after some phases."""
    began = BeganFrom(point="checkpoint", rollout="r1", directory="/r1", checkpoint=checkpoint)
    error = NodeError(boundary="snapshot", type="SnapshotError", message="another kernel")
    return rollout(
        directory,
        *((PhaseEntered, {"node": "n0", "phase": phase}) for phase in phases),
        (RolloutFinished, {"status": "failed", "error": error}),
        **{RESUMED_FROM: began.model_dump(mode="json")},
    )


def test_a_checkpoint_from_which_an_attempt_could_not_start_is_not_taken_again(
    tmp_path: Path,
) -> None:
    first = rollout(tmp_path / "r1")
    for at in range(3):
        save(first, f"n{at}", float(at))
    name_successor(first, failed_attempt(tmp_path / "r2", "n2", "start"))
    assert was_cut_short(first)
    found, refusals = points(tmp_path / "r2")
    assert names(found) == ["n1", "n0"]
    assert refusals == ["n2: attempt 'r2' could not start: SnapshotError: another kernel"]
    name_successor(tmp_path / "r2", failed_attempt(tmp_path / "r3", "n1", "start"))
    assert names(points(tmp_path / "r3")[0]) == ["n0"]


@pytest.mark.parametrize("phase", ["execute", "verify"])
def test_an_attempt_that_failed_at_work_has_ended(tmp_path: Path, phase: str) -> None:
    assert not was_cut_short(failed_attempt(tmp_path / "r2", "n2", "start", phase))


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_only_a_rollout_without_an_end_was_cut_short(tmp_path: Path, status: str) -> None:
    assert was_cut_short(rollout(tmp_path / "r1"))
    ended = rollout(tmp_path / "r2", (RolloutFinished, {"status": status}))
    assert was_cut_short(ended) == (status == "cancelled")
    name_successor(tmp_path / "r1", tmp_path / "r2")
    assert was_cut_short(tmp_path / "r1") == (status == "cancelled")
    damaged = rollout(tmp_path / "r3")
    (damaged / "events.jsonl").write_text("{}\n{}\n")
    assert not was_cut_short(damaged)
    assert not was_cut_short(tmp_path / "r4")


def test_a_rollout_that_never_began_has_no_points(tmp_path: Path) -> None:
    assert points(tmp_path / "r1") == ([], [])
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "events.jsonl").write_text('{"kind": "rollout_st')
    assert points(tmp_path / "r1") == ([], [])
