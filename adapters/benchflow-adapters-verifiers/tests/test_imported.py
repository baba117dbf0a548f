import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchflow_adapters_verifiers.imported import TASK_HASH, imported_rollouts, score_imported
from benchflow_contracts import Evidence, RolloutNode, StoreError, VerifyResult
from benchflow_kernel import trajectories
from hypothesis import given
from hypothesis import strategies as st


def node(role: str, text: str, parent: int | None, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": text, **more.pop("message", {})}
    return {"parent": parent, "message": message, "timestamp": 10.0, **more}


def trace(ident: str, score: float, **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "name": "add", "arguments": '{"a": 1}'}
    nodes = [
        node("system", "Be brief.", None),
        node("user", "What is 1 + 1?", 0),
        node(
            "assistant",
            "",
            1,
            sampled=True,
            message={"tool_calls": [call]},
            token_ids=[1, 2],
            mask=[False, True],
            logprobs=[-0.1],
        ),
        node("tool", "2", 2, message={"tool_call_id": "c1"}),
        node("assistant", f"It is {ident}.", 3, sampled=True, token_ids=[3], mask=[True]),
    ]
    return {
        "version": 1,
        "id": ident,
        "agent": {"name": "solver", "config": {}},
        "nodes": nodes,
        "calls": [{"node": 2, "model": "m", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}],
        "rewards": {"right": {"score": score, "weight": 2.0}, "short": {"score": 1.0}},
        "metrics": {"turns": 2.0},
        "ok": True,
        **more,
    }


def written(directory: Path, *records: object) -> Path:
    file = directory / "traces.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def episode(*traces: dict[str, Any]) -> dict[str, Any]:
    data = {"id": "sum-1", "prompt": "What is 1 + 1?"}
    return {"id": "e1", "task": {"data": data, "key": "k", "hash": "h"}, "traces": list(traces)}


def test_an_episode_becomes_a_tree_with_a_path_for_each_trace(tmp_path: Path) -> None:
    file = written(tmp_path, episode(trace("a", 1.0), trace("b", 0.0)))
    [rollout] = imported_rollouts(file)
    assert (rollout.tree.task_id, rollout.task_digest, rollout.model) == ("sum-1", "h", "m")
    first, second = trajectories(rollout.tree)
    assert (first.reward, second.reward) == (3.0, 1.0)
    call, answer = first.steps
    assert call.prompt == "Be brief.\n\nWhat is 1 + 1?"
    assert [each.content for each in call.observations] == ["2"]
    assert call.tool_calls[0].raw_input == {"a": 1}
    assert (answer.message, answer.stop_reason) == ("It is a.", "end_turn")
    [leaf, _] = rollout.tree.leaves
    assert leaf.results["reward"].meta[TASK_HASH] == "h"
    assert leaf.results["reward"].items == {"right": 1.0, "short": 1.0, "turns": 2.0}


def test_an_imported_rollout_is_never_on_policy(tmp_path: Path) -> None:
    """The file has tokens and log-probabilities, and none of them is read."""
    [rollout] = imported_rollouts(written(tmp_path, episode(trace("a", 1.0))))
    assert rollout.calls == {}
    assert all(step.model_calls == () for leaf in rollout.tree.leaves for step in leaf.steps)


def test_a_trace_alone_in_a_line_is_an_episode(tmp_path: Path) -> None:
    [rollout] = imported_rollouts(written(tmp_path, trace("a", 0.5)))
    assert [each.reward for each in trajectories(rollout.tree)] == [2.0]


def test_a_failed_trace_has_no_reward_instead_of_zero(tmp_path: Path) -> None:
    failed = trace("a", 0.0, ok=False, errors=[{"type": "HarnessError", "message": "it died"}])
    [rollout] = imported_rollouts(written(tmp_path, episode(failed)))
    verdict = rollout.tree.leaves[0].results["reward"]
    assert verdict.reward is None
    assert "it died" in str(verdict.error)


def test_a_reward_that_did_not_run_leaves_the_trace_unscored(tmp_path: Path) -> None:
    seeded = trace("a", 1.0, rewards={"right": None})
    [rollout] = imported_rollouts(written(tmp_path, episode(seeded)))
    assert rollout.tree.leaves[0].reward is None


def test_a_reward_scores_an_imported_rollout_afterwards(tmp_path: Path) -> None:
    class Length:
        name = "length"

        async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
            assert evidence == Evidence()
            return VerifyResult(reward=float(len(node.steps)))

    [rollout] = imported_rollouts(written(tmp_path, episode(trace("a", 1.0), trace("b", 1.0))))
    asyncio.run(score_imported(rollout, Length()))
    assert [leaf.results["length"].reward for leaf in rollout.tree.leaves] == [2.0, 2.0]
    assert [leaf.reward for leaf in rollout.tree.leaves] == [3.0, 3.0]


def test_a_line_that_is_not_an_episode_is_named(tmp_path: Path) -> None:
    file = written(tmp_path, episode(trace("a", 1.0)), {"traces": 3})
    with pytest.raises(StoreError, match=r"traces\.jsonl:2: not an episode"):
        list(imported_rollouts(file))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "task", "traces", "nodes", "parent", "message", "role"]), inner
        )
    ),
    max_leaves=12,
)


@given(changes=st.dictionaries(st.sampled_from(["nodes", "calls", "rewards", "agent"]), _JSON))
def test_any_record_is_a_rollout_or_a_named_error(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    file = written(tmp_path_factory.mktemp("t"), episode({**trace("a", 1.0), **changes}))
    with suppress(StoreError):
        [rollout] = imported_rollouts(file)
        assert rollout.tree.status == "completed"


def test_a_reward_out_of_range_is_unscored(tmp_path: Path) -> None:
    huge = trace("a", 1.0, rewards={"right": {"score": 1e300, "weight": 1e300}})
    [rollout] = imported_rollouts(written(tmp_path, episode(huge)))
    assert rollout.tree.leaves[0].reward is None
