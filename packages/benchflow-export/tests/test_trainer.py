"""The trainer row of a leaf has its times, its environment and its number of tokens."""

from typing import Any

from benchflow_contracts import (
    Event,
    FinishedRollout,
    NodeScored,
    PhaseEntered,
    RolloutStarted,
    Step,
    StepFinished,
    Usage,
    VerifyResult,
)
from benchflow_export.trainer import leaf_record
from benchflow_kernel import fold

META = {"identity": {"rollout": "r", "environment": "office"}}


def step(name: str, at: float, usage: Usage | None = None) -> Step:
    return Step(id=name, message=name, usage=usage, started_at=at, finished_at=at + 1)


def forked(meta: dict[str, Any], usage: Usage | None = None) -> list[Event]:
    """Return a log: one step in the root's world, then a child of which one is scored."""
    scored = VerifyResult(reward=1.0)
    return [
        RolloutStarted(seq=0, ts=9, rollout_id="r", task_id="t", root="n0", meta=meta),
        PhaseEntered(seq=1, ts=10, node="n0", phase="setup"),
        PhaseEntered(seq=2, ts=14, node="n0", phase="execute"),
        StepFinished(seq=3, ts=16, node="n1", parent="n0", step=step("a", 15, usage)),
        PhaseEntered(seq=4, ts=17, node="n2", phase="setup"),
        PhaseEntered(seq=5, ts=18, node="n3", phase="setup"),
        PhaseEntered(seq=6, ts=20, node="n2", phase="execute"),
        StepFinished(seq=7, ts=22, node="n2", parent="n1", step=step("b", 21, usage)),
        StepFinished(seq=8, ts=40, node="n3", parent="n1", step=step("c", 39)),
        PhaseEntered(seq=9, ts=41, node="n2", phase="verify"),
        PhaseEntered(seq=10, ts=42, node="n3", phase="verify"),
        NodeScored(seq=11, ts=44, node="n2", name="style", result=scored),
        NodeScored(seq=12, ts=45, node="n2", name="reward", result=scored),
    ]


def rows(events: list[Event]) -> list[dict[str, Any]]:
    rollout = FinishedRollout(
        tree=fold(events),
        task_digest="sha256:0",
        instruction="Do it.",
        agent="oracle",
        model=None,
        sandbox="local",
        finished_at=events[-1].ts,
        events=events,
    )
    return [leaf_record(rollout, leaf) for leaf in rollout.tree.leaves]


def test_the_times_are_of_the_leaf_and_not_of_its_siblings() -> None:
    timing = rows(forked(META))[0]["timing"]
    assert timing["start_time"] == 9
    assert timing["setup"] == {"start": 10, "end": 14, "duration": 4}
    assert timing["generation"] == {"start": 10, "end": 22, "duration": 12}
    assert timing["scoring"] == {"start": 41, "end": 45, "duration": 4}
    assert timing["total"] == 35


def test_a_leaf_without_a_verdict_has_no_scoring_time() -> None:
    row = rows(forked(META))[1]
    assert row["reward"] is None
    assert row["timing"]["scoring"] == {"start": 0, "end": 0, "duration": 0}
    assert row["timing"]["total"] == 0


def test_the_environment_comes_from_the_log() -> None:
    [row, _] = rows(forked(META))
    assert row["info"]["environment"] == "office"
    [row, _] = rows(forked({}))
    assert row["info"]["environment"] is None


def test_tokens_are_summed_over_the_path_or_left_out() -> None:
    [row, sibling] = rows(forked(META, Usage(input_tokens=5, output_tokens=2)))
    assert row["token_usage"] == {"input_tokens": 10.0, "output_tokens": 4.0}
    assert sibling["token_usage"] == {"input_tokens": 5.0, "output_tokens": 2.0}
    assert "token_usage" not in rows(forked(META))[0]


def test_a_row_has_the_verdict_on_each_step_of_the_task() -> None:
    log = forked(META)
    assert all("task_steps" not in row["info"] for row in rows(log))
    ends = [("n1", "look/reward", 0.0), ("n2", "paint/reward", 1.0)]
    log += [
        NodeScored(seq=13 + at, ts=46, node=node, name=name, result=VerifyResult(reward=reward))
        for at, (node, name, reward) in enumerate(ends)
    ]
    [row, _] = rows(log)
    assert row["info"]["task_steps"] == [
        {"name": "look", "node": "n1", "reward": 0.0},
        {"name": "paint", "node": "n2", "reward": 1.0},
    ]
