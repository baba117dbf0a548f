"""SkyRL's own checks, padding, advantages and loss read our generator's output, without a GPU."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from benchflow_adapters_trainers import SampleGenerator
from benchflow_contracts import FinishedRollout
from benchflow_export import StoredGroups
from trainer_servers import scored_rollout

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]


def batch(size: int, phase: Any = "train") -> tuple[Any, list[str]]:
    """Return the generator's input, made by SkyRL, for one prompt."""
    from skyrl.train.generators.utils import prepare_generator_input

    prompt = {
        "prompt": [{"role": "user", "content": "Do it."}],
        "env_class": None,
        "env_extras": {"task_id": "t"},
        "uid": "p0",
    }
    made: tuple[Any, list[str]] = prepare_generator_input([prompt], size, {}, "none", phase, 3)
    return made


def trained(rollouts: list[FinishedRollout], size: int, *, step_wise: bool = False) -> Any:
    """Return what SkyRL's trainer makes of our output, up to its advantages."""
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.trainer import RayPPOTrainer
    from skyrl.train.utils.trainer_utils import validate_generator_output

    config = SkyRLTrainConfig()
    config.generator.n_samples_per_prompt = size
    config.generator.step_wise_trajectories = step_wise
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = 1
    trainer = SimpleNamespace(
        cfg=config,
        all_metrics={},
        tokenizer=SimpleNamespace(pad_token_id=0),
        dispatch=SimpleNamespace(get_lcm_dp_size=lambda: 1),
    )
    generator = SampleGenerator(StoredGroups(lambda: rollouts), step_wise=step_wise)
    request, uids = batch(size)
    output = asyncio.run(generator.generate(request))
    validate_generator_output(len(uids), output, step_wise=step_wise)
    metrics = output.pop("rollout_metrics")
    output, uids = (
        (output, [each.instance_id for each in output["trajectory_ids"]])
        if step_wise
        else (output, uids)
    )
    output, uids = RayPPOTrainer.postprocess_generator_output(trainer, output, uids)
    data = RayPPOTrainer.convert_to_training_input(trainer, output, uids)
    data["values"] = None
    RayPPOTrainer.compute_advantages_and_returns(trainer, data)
    return SimpleNamespace(
        data=data, metrics=metrics, output=output, config=config, reports=trainer.all_metrics
    )


def test_skyrl_pads_and_masks_what_the_model_saw() -> None:
    seen = trained([scored_rollout("r0", 1.0, 0.0), scored_rollout("r1", 1.0, 0.0)], 4)
    data = seen.data
    assert data["sequences"].tolist()[0] == [1, 2, 3, 4, 5, 6, 7]
    assert data["loss_mask"].tolist() == [[1, 1, 0, 1]] * 4
    assert data["rollout_logprobs"].tolist() == [[-0.5, -0.5, 0, -0.5]] * 4
    # One leaf of each tree first: left, left, right, right.
    assert data["rewards"].sum(-1).tolist() == [1, 1, 0, 0]
    std = (1 / 3) ** 0.5 + 1e-6
    assert data["advantages"][:, 0].tolist() == pytest.approx([0.5 / std] * 2 + [-0.5 / std] * 2)


def test_skyrl_neither_trains_on_a_lost_rollout_nor_compares_with_it() -> None:
    import torch
    from skyrl.backends.skyrl_train.utils.ppo_utils import ppo_policy_loss

    seen = trained([scored_rollout("r0", 1.0, 0.0), scored_rollout("r1", None, None)], 4)
    data = seen.data
    assert [row["benchflow_excluded"] for row in seen.output["env_metrics"]] == [
        None,
        None,
        "r0/n4: unscored: lost",
        "r1/n2: unscored: lost",
    ]
    assert seen.output["stop_reasons"] == ["stop", "stop", "error", "error"]
    assert data["rewards"].sum(-1).tolist() == [1, 0, 0.5, 0.5]
    assert data["loss_mask"].sum(-1).tolist() == [3, 3, 0, 0]
    # The lost ones are at the mean: the advantages of the others stay on both sides of it.
    advantages = data["advantages"][:, -1].tolist()
    assert advantages[2:] == [0, 0]
    assert advantages[0] == pytest.approx(-advantages[1])
    log_probs = torch.zeros_like(data["loss_mask"], requires_grad=True)
    loss, _ = ppo_policy_loss(
        log_probs,
        torch.zeros_like(log_probs),
        data["advantages"],
        seen.config.trainer.algorithm,
        data["loss_mask"],
    )
    loss.backward()
    gradient = log_probs.grad
    assert gradient is not None
    assert (gradient != 0).tolist() == (data["loss_mask"] != 0).tolist()
    assert seen.metrics["benchflow/excluded_unscored"] == 4


def test_skyrl_reads_a_broken_sample_as_steps_or_not_at_all() -> None:
    rollouts = [scored_rollout("r0", 1.0, 0.0, broken=True)]
    whole = trained(rollouts, 2)
    assert whole.data["loss_mask"].sum(-1).tolist() == [0, 3]
    assert whole.data["rewards"].sum(-1).tolist() == [1, 0]
    assert whole.metrics["benchflow/excluded_inexact"] == 1
    steps = trained(rollouts, 2, step_wise=True)
    assert steps.output["is_last_step"] == [False, True, True]
    assert steps.data["loss_mask"].sum(-1).tolist() == [2, 1, 3]
    first, second, other = steps.data["advantages"].tolist()
    assert max(first) == max(second) == pytest.approx(-min(other))


def test_skyrl_joins_batches_of_our_output() -> None:
    from skyrl.train.generators.utils import concatenate_generator_outputs

    outputs = []
    for name in ("r0", "r1"):
        source = StoredGroups(lambda name=name: [scored_rollout(name, 1.0, 0.0)])  # type: ignore[misc]
        outputs.append(asyncio.run(SampleGenerator(source).generate(batch(2)[0])))
    joined = concatenate_generator_outputs(outputs)
    assert len(joined["response_ids"]) == 4
    assert joined["rollout_metrics"]["benchflow/samples"] == 4


def test_our_generator_is_skyrls() -> None:
    from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

    request, _ = batch(2, "eval")
    assert set(request) == set(GeneratorInput.__annotations__)
    generator = SampleGenerator(StoredGroups(lambda: [scored_rollout("r0", 1.0, 0.0)]))
    output = asyncio.run(generator.generate(request))
    assert set(output) == set(GeneratorOutput.__annotations__)
    assert hasattr(GeneratorInterface, "generate")


def test_skyrl_pads_the_experts_of_tokens_and_leaves_them_out_if_a_row_lacks_them() -> None:
    rollouts = [
        scored_rollout("r0", 1.0, 0.0, experts=True),
        scored_rollout("r1", None, None, experts=True),
    ]
    experts = trained(rollouts, 4).data["rollout_expert_indices"]
    assert experts.shape == (4, 7, 2, 1)
    assert experts[0, :, 0, 0].tolist() == [1, 2, 3, 4, 5, 6, 6]
    assert experts[1, :, 1, 0].tolist() == [2, 3, 4, 5, 6, 9, 9]
    assert not experts[2:].any()
    mixed = [scored_rollout("r0", 1.0, 0.0, experts=True), scored_rollout("r1", 1.0, 0.0)]
    assert trained(mixed, 4).data["rollout_expert_indices"] is None
