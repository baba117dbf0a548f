"""verl's own worker instantiates our agent loop, and pads, masks and scores its output."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import trainer_servers
from benchflow_adapters_trainers import LostRolloutError, SampleAgentLoop
from benchflow_adapters_trainers.verl import _server_at
from trainer_servers import one_by_one

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>")),
        pad_token="<pad>",
    )


def worker(returns: list[float | None], response_length: int = 6, **more: Any) -> Any:
    """Return verl's worker without Ray, with our agent loop in its configuration."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop import agent_loop as module

    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {"prompt_length": 4, "response_length": response_length}
            },
            "data": {},
        }
    )
    declared = {
        "name": "benchflow",
        "_target_": "benchflow_adapters_trainers.verl.SampleAgentLoop",
        "server": "trainer_servers:make_server",
    }
    trainer_servers.SERVER.append(
        one_by_one(*returns, broken=more.pop("broken", False), experts=more.pop("experts", False))
    )
    _server_at.cache_clear()
    module._agent_loop_registry["benchflow"] = OmegaConf.create({**declared, **more})
    made = object.__new__(module.AgentLoopWorker)
    made.__dict__.update(
        config=config,
        rollout_config=config.actor_rollout_ref.rollout,
        llm_client=None,
        tokenizer=tokenizer(),
        processor=None,
        hf_model_type=None,
        dataset_cls=None,
        tools=[],
        distillation_enabled=False,
        reward_loop_worker_handles=None,
        mm_processor_kwargs={},
    )
    return made


def row(worker: Any, **more: Any) -> Any:
    trajectory = {"step": 3, "sample_index": 0, "rollout_n": 0, "validate": False}
    fields = {"raw_prompt": [{"role": "user", "content": "Do it."}], "task_id": "t", **more}
    return asyncio.run(
        worker._run_agent_loop({}, trajectory, agent_name="benchflow", trace=False, **fields)
    )


def test_verl_pads_and_masks_what_the_model_saw() -> None:
    output = row(worker([1.0]))
    assert output.input_ids.tolist() == [[0, 1, 2, 3, 4, 5, 6, 7, 0, 0]]
    assert output.attention_mask.tolist() == [[0, 1, 1, 1, 1, 1, 1, 1, 0, 0]]
    assert output.response_mask.tolist() == [[1, 1, 0, 1, 0, 0]]
    assert output.response_logprobs.tolist() == [[-0.5, -0.5, 0, -0.5, 0, 0]]
    assert (output.reward_score, output.num_turns) == (1.0, 4)
    fields = output.extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (3, 4)
    assert (fields["benchflow_rollout"], fields["benchflow_excluded"]) == ("r0", None)


def test_verl_computes_the_advantages_and_the_loss_of_a_batch() -> None:
    import numpy as np
    import torch
    from verl.trainer.ppo import core_algos

    rows = [row(worker([reward])) for reward in (1.0, 0.0)]
    rows.append(row(worker([None], attempts=1, lost_reward=0.5)))
    data = worker([])._postprocess(rows, {"uid": np.array(["p"] * 3, dtype=object)})
    assert data.batch["rm_scores"].sum(-1).tolist() == [1.0, 0.0, 0.5]
    assert data.non_tensor_batch["benchflow_excluded"].tolist() == [
        None,
        None,
        "r0/n2: unscored: lost",
    ]
    mask = data.batch["response_mask"]
    assert mask.sum(-1).tolist() == [3, 3, 0]
    advantages, _ = core_algos.compute_grpo_outcome_advantage(
        data.batch["rm_scores"], mask, data.non_tensor_batch["uid"]
    )
    assert advantages[2].abs().sum() == 0
    assert advantages[0, 0] == pytest.approx(-float(advantages[1, 0]))
    scores = torch.zeros_like(data.batch["rollout_log_probs"], requires_grad=True)
    core_algos.agg_loss(-scores.exp() * advantages, mask, "token-mean").backward()
    gradient = scores.grad
    assert gradient is not None
    assert (gradient != 0).tolist() == (mask != 0).tolist()


def test_verl_asks_again_for_a_lost_rollout_and_then_fails_by_name() -> None:
    assert row(worker([None, 1.0])).reward_score == 1.0
    made = worker([1.0, 0.0])
    # verl makes an agent loop for each row, and all of them have one server.
    assert [row(made).reward_score for _ in range(2)] == [1.0, 0.0]
    with pytest.raises(LostRolloutError, match=r"task 't': r1/n2: unscored: lost"):
        row(worker([None, None]))


def test_verl_never_gets_a_row_that_is_cut() -> None:
    output = row(worker([1.0], response_length=3))
    assert output.response_mask.tolist() == [[0, 0, 0]]
    assert (output.reward_score, output.extra_fields["benchflow_excluded"]) == (
        1.0,
        "r0/n2: too-long: 3+4 tokens",
    )


def test_verl_gets_a_broken_sample_as_several_outputs_or_masked() -> None:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

    output = row(worker([1.0], broken=True))
    assert output.extra_fields["benchflow_excluded"] == "r0/n2: inexact: 1 breaks"
    assert output.response_mask.sum() == 0

    made = worker([1.0])
    made.config.actor_rollout_ref.rollout.prompt_length = 8
    loop = SampleAgentLoop(
        SimpleNamespace(config=made.config),
        None,
        made.tokenizer,
        server=one_by_one(1.0, broken=True),
        allow_breaks=True,
    )
    outputs = asyncio.run(loop.run({}, task_id="t"))
    assert isinstance(loop, AgentLoopBase)
    assert all(isinstance(each, AgentLoopOutput) for each in outputs)
    rows = [each.as_dict() for each in outputs]
    assert [each["response_mask"].tolist() for each in rows] == [[1, 1], [1]]
    assert [each["rm_scores"].sum() for each in rows] == [1, 1]


def test_verl_pads_and_joins_the_experts_of_tokens() -> None:
    """The router of verl replays them by the position of a token; a lost row has zeros."""
    import numpy as np
    from verl.trainer.ppo import metric_utils

    made = worker([1.0, None], experts=True, attempts=1, lost_reward=0.5)
    rows = [row(made), row(made)]
    read = [1, 2, 3, 4, 5, 6, 6]
    assert rows[0].routed_experts[0, :, 0, 0].tolist() == [0, *read, 0, 0]
    assert rows[0].routed_experts[0, 1:8, 1, 0].tolist() == [token + 1 for token in read]
    data = made._postprocess(rows, {"uid": np.array(["p"] * 2, dtype=object)})
    experts = data.batch["routed_experts"]
    assert experts.shape == (2, 10, 2, 1)
    assert not experts[1].any()
    # verl does not count the last sampled token, which no model has read.
    loads = metric_utils._compute_rollout_moe_load_counts(experts, data.batch["response_mask"], 8)
    assert loads is not None
    assert [each.nonzero().flatten().tolist() for each in loads] == [[4, 5], [5, 6]]


def test_verl_gets_an_error_for_a_row_without_experts_among_rows_with_them() -> None:
    groups = one_by_one(1.0, experts=True), one_by_one(1.0)
    made = worker([])
    server = SimpleNamespace(request=groups[0].request, set_policy_version=lambda _: None)
    settings = SimpleNamespace(config=made.config)
    loop = SampleAgentLoop(settings, None, made.tokenizer, server=server, attempts=1)
    assert asyncio.run(loop.run({}, task_id="t")).routed_experts.shape == (7, 2, 1)
    server.request = groups[1].request
    with pytest.raises(LostRolloutError, match="no experts"):
        asyncio.run(loop.run({}, task_id="t"))
