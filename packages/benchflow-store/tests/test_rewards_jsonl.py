import json

from benchflow_contracts import RewardEvent, Step, VerifyResult
from benchflow_store import rewards_jsonl

KEYS = ["ts", "type", "source", "value", "tag", "step_index", "space", "granularity", "meta"]


def test_each_verdict_is_followed_by_its_events():
    steps = [Step(id=name, started_at=0, finished_at=1) for name in ("s0", "s1")]
    event = RewardEvent(
        source="asked", value=1, space="action", granularity="step", step_id=steps[1].id, tag="t"
    )
    results = {
        "asked": VerifyResult(reward=1, events=(event,), space="action", granularity="step"),
        "reward": VerifyResult(reward=0.5, items={"a": 1}, grading="hermetic"),
    }
    lines = rewards_jsonl("n2", results, steps=steps, ts=12.5)
    assert [(line["type"], line["source"], line["value"]) for line in lines] == [
        ("process", "asked", 1),
        ("process", "asked", 1),
        ("terminal", "reward", 0.5),
    ]
    assert [line["step_index"] for line in lines] == [None, 1, None]
    assert all(list(line) == KEYS and line["ts"] == 12.5 for line in lines)
    assert lines[2]["meta"]["grading"] == "hermetic"
    assert json.loads(json.dumps(lines)) == lines


def test_an_unscored_verdict_is_null_with_its_cause():
    [line] = rewards_jsonl("n", {"reward": VerifyResult.unscored("verifier_timeout")})
    assert line["value"] is None
    assert line["meta"]["error"] == "verifier_timeout"
    assert line["ts"] > 0


def test_a_step_of_another_branch_has_no_index():
    event = RewardEvent(source="x", value=1, step_id="elsewhere")
    lines = rewards_jsonl("n", {"reward": VerifyResult(reward=1, events=(event,))})
    assert lines[1]["step_index"] is None
