"""A trainer's worker gets the rows of rollouts that run while it waits."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from benchflow_engine.flags import run_config
from benchflow_engine.live_groups import LiveGroups
from benchflow_export import (
    RequestedGroups,
    RolloutGroup,
    TrainerOptions,
    credit_rows,
    response_rows,
)
from scripted_llm import ScriptedLlm, book_the_review

TASKS = Path(__file__).parents[2] / "benchmarks" / "clawsbench" / "tasks"


@pytest.mark.timeout(300)
def test_the_rollouts_of_a_request_run_fork_and_become_rows(tmp_path: Path) -> None:
    options = TrainerOptions(advantage="process", counterfactual=True)

    async def first_group(url: str) -> RolloutGroup:
        config = run_config(
            agent="policy", base_url=f"{url}/v1", model="scripted", upstream="vllm",
            branch="ask-user",
        )  # fmt: skip
        server = LiveGroups(
            config,
            [TASKS / "book-the-review-room"],
            tmp_path,
            options=options,
            leaves_per_rollout=3,
        )
        source = RequestedGroups(server, server.task_ids, 3, epochs=1)
        source.set_policy_version(5)
        async with aclosing(source.groups()) as groups:
            return await anext(groups)

    with ScriptedLlm(book_the_review) as llm:
        group = asyncio.run(first_group(llm.url))

    assert sorted(sample.reward for sample in group.samples) == [0.0, 0.25, 1.0]
    assert group.excluded == ()
    rows, excluded = credit_rows(group, options)
    assert excluded == []
    # The endpoint names a model, not the version of its weights.
    assert {row.version for row in rows} == {5}
    for row in rows:
        sampled = bytes(t for t, on in zip(row.token_ids, row.loss_mask, strict=True) if on)
        assert b"Booked." in sampled
        # Above the fork no answer is better than another one.
        assert b"Only you can tell." not in sampled
    for sample in group.samples:
        [whole] = response_rows(sample)
        assert b"Only you can tell." in bytes(whole.response_ids)
