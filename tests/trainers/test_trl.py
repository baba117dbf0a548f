"""TRL's own trainers take steps from our rows, on a CPU, with a tiny model."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchflow_adapters_trainers import (
    GroupWorker,
    RolloutFunction,
    completion_reward,
    prompt_rows,
)
from benchflow_contracts import BenchFlowError, FinishedRollout, VerifyResult
from benchflow_export import StoredGroups, TrainerOptions
from tiny_policy import forked_rollout, log_probabilities, save_tiny_model

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(300)]


class NoTransfer:
    """A `WeightTransferProtocol` that sends nothing: the rollouts are finished."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def send_weights(self, iterator: Any) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...


def reference_attention(
    query, key, value, starts_q, starts_k, _most_q, _most_k, *, softmax_scale, causal, **_
):
    """Flash attention over segments of variable length, in plain torch."""
    import torch

    assert causal
    outs = []
    groups = query.shape[1] // key.shape[1]
    for at in range(len(starts_q) - 1):
        q = query[starts_q[at] : starts_q[at + 1]].transpose(0, 1)
        k, v = (
            each[starts_k[at] : starts_k[at + 1]].transpose(0, 1).repeat_interleave(groups, 0)
            for each in (key, value)
        )
        n, m = q.shape[1], k.shape[1]
        seen = torch.ones(n, m, dtype=torch.bool).tril(m - n)
        scores = (q @ k.transpose(1, 2)) * softmax_scale
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outs.append((weights @ v).transpose(0, 1))
    return torch.cat(outs)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the kernel of TRL's packed attention and its name of the GPU, and nothing else."""
    from trl.experimental.async_grpo import async_grpo_trainer, packing

    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: None)
    kernel = SimpleNamespace(flash_attn_varlen_func=reference_attention)
    monkeypatch.setattr(packing, "_flash_attn", lambda: kernel)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def load(directory: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(directory, dtype="float32")


def async_trainer(model_dir: Path, out: Path, worker: GroupWorker, **more: Any) -> Any:
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    args = {
        "output_dir": str(out),
        "max_steps": 1,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "token_budget": -1,
        "learning_rate": 0.01,
        "weight_sync_steps": 1,
        "logging_steps": 1,
        "report_to": [],
        "dtype": "float32",
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "heartbeat_stale_after_s": 20.0,
        **more,
    }
    return AsyncGRPOTrainer(
        model=str(model_dir),
        reward_funcs=[],
        args=AsyncGRPOConfig(**args),
        train_dataset=Dataset.from_list(prompt_rows(["t"])),
        rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )


def rollouts(model: Any, trees: int = 2) -> list[FinishedRollout]:
    return [forked_rollout(model, f"r{n}", (1.0, 0.0)) for n in range(trees)]


def gains(model_dir: Path, trainer: Any) -> list[float]:
    """Return how much more probable each leaf's own token is after the training."""
    before, after = load(model_dir), load(model_dir)
    after.load_state_dict(trainer.model.state_dict())
    leaves = (([1, 2, 3, 4, 5, 6], [7]), ([1, 2, 3, 4, 5, 8], [9]))
    return [
        log_probabilities(after, *leaf)[0] - log_probabilities(before, *leaf)[0] for leaf in leaves
    ]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("shared_prefix", ["per_leaf", "once"])
@pytest.mark.parametrize("token_budget", [-1, 64])
def test_the_async_trainer_takes_a_step_that_raises_the_good_leaf(
    model_dir: Path, tmp_path: Path, shared_prefix: Any, token_budget: int
) -> None:
    # TRL's loader waits for the batch after the last one: two more trees than a step needs.
    trees = 40 if token_budget > 0 else 4
    options = TrainerOptions(advantage="intra", shared_prefix=shared_prefix)
    stored = rollouts(load(model_dir), trees)
    worker = GroupWorker(StoredGroups(lambda: stored, options), options)
    trainer = async_trainer(model_dir, tmp_path, worker, token_budget=token_budget)
    trainer.train()

    [log] = [entry for entry in trainer.state.log_history if "ratio" in entry]
    # The trainer computes the log-probabilities that we recorded: each token is at its place.
    assert log["ratio"] == pytest.approx(1, abs=1e-4)
    assert log["kl"] == pytest.approx(0, abs=1e-5)
    if token_budget < 0:
        # Per leaf: three tokens in each of four leaves. Once: a tree of three rows with 2 + 1 + 1
        # tokens, and the first row of the next tree.
        trained = {"per_leaf": 12, "once": 6}[shared_prefix]
        assert log["batch/trained_tokens_per_step"] == trained
    assert log["benchflow/excluded_unscored_total"] == trees
    good, bad = gains(model_dir, trainer)
    assert good > 0 > bad


@pytest.mark.usefixtures("on_cpu")
def test_the_async_trainer_drops_what_older_weights_sampled(
    model_dir: Path, tmp_path: Path
) -> None:
    model = load(model_dir)
    old = [forked_rollout(model, "old", (1.0, 0.0), "v0")]
    fresh = [forked_rollout(model, f"r{n}", (1.0, 0.0), "v9") for n in range(4)]
    options = TrainerOptions(advantage="intra")
    worker = GroupWorker(StoredGroups(lambda: [*old, *fresh], options), options)
    trainer = async_trainer(model_dir, tmp_path, worker, max_staleness=0)
    trainer.train()
    [log] = [entry for entry in trainer.state.log_history if "ratio" in entry]
    assert log["sample/dropped_stale_total"] == 2


@pytest.mark.usefixtures("on_cpu")
def test_the_async_trainer_ends_with_the_reason_if_the_rollouts_end(
    model_dir: Path, tmp_path: Path
) -> None:
    model = load(model_dir)
    lost = forked_rollout(model, "r0", (1.0, 0.0))
    for leaf in lost.tree.leaves:
        leaf.results["reward"] = VerifyResult.unscored("the verifier died")
    worker = GroupWorker(StoredGroups(lambda: [lost]))
    trainer = async_trainer(model_dir, tmp_path, worker)
    with pytest.raises(BenchFlowError, match="ended after 1 groups"):
        trainer.train()


def test_the_grpo_trainer_takes_a_step_from_the_rollout_function(
    model_dir: Path, tmp_path: Path
) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    stored = rollouts(load(model_dir))
    function = RolloutFunction(StoredGroups(lambda: stored))
    trainer = GRPOTrainer(
        model=str(model_dir),
        reward_funcs=[completion_reward],
        rollout_func=function,
        train_dataset=Dataset.from_list(prompt_rows(["t"])),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            max_steps=1,
            num_generations=6,
            per_device_train_batch_size=6,
            learning_rate=0.01,
            logging_steps=1,
            report_to=[],
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            save_strategy="no",
            model_init_kwargs={"dtype": "float32"},
        ),
    )
    seen: list[Any] = []
    original = trainer._generate_and_score_completions
    trainer._generate_and_score_completions = lambda inputs: (
        seen.append(original(inputs)) or seen[-1]
    )
    trainer.train()
    function.close()

    # Four leaves, and two lost ones that the baseline does not have: (1 + 0 + 1 + 0) / 4.
    assert [leaf.reason for leaf in function.excluded] == ["unscored", "unscored"]
    [batch] = seen
    std = 0.5 / ((1 / 3) ** 0.5 + 1e-4)
    order = batch["advantages"].tolist()
    assert sorted(order) == pytest.approx([-std, -std, 0, 0, std, std], rel=1e-3)
    lost = [at for at, value in enumerate(order) if value == 0]
    assert batch["tool_mask"][lost].sum() == len(lost) * (batch["tool_mask"].shape[1] - 1)
    good, bad = gains(model_dir, trainer)
    assert good > bad
