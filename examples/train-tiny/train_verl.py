"""Train the tiny model with verl 0.9.1's own worker of agent loops, advantages and loss.

    python train_verl.py --steps 40

verl's trainer needs Ray and a GPU. This program has its loop instead, on a CPU: verl's worker runs
our agent loop for each row, pads and masks the rows, and verl's functions compute the advantages
of GRPO and the clipped loss. The gradient step is torch's.
"""

# ruff: noqa: ANN401, SLF001 - verl exports no types, and its worker is made by Ray only

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchflow_contracts import UsageError
from benchflow_export import RolloutGroup
from model_server import ModelServer, serving
from omegaconf import OmegaConf
from rollouts import LockRollouts
from tiny_model import CONTEXT, exact_value, new_model
from train_trl import tokenizer
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import logprobs_from_logits

ROWS: list[RolloutGroup] = []
"""The rollouts of the next batch, one for each row."""


class Rows:
    """A GroupServer that gives verl one rollout of a group that has run."""

    async def request(self, task_id: str, size: int) -> RolloutGroup:
        """Return the next rollout. Raises a UsageError after the last one."""
        del task_id, size
        if not ROWS:
            raise UsageError("all rollouts of the group were used", hint="run a larger group")
        return ROWS.pop()

    def set_policy_version(self, version: int) -> None:
        """Do nothing: each answer of the endpoint names its weights."""


def verl_worker() -> Any:
    """Return verl's worker, without Ray, with our agent loop in its configuration."""
    lengths = {"prompt_length": 4, "response_length": CONTEXT - 4}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}, "data": {}})
    agent_loop._agent_loop_registry["benchflow"] = OmegaConf.create(
        {
            "name": "benchflow",
            "_target_": "benchflow_adapters_trainers.verl.SampleAgentLoop",
            "server": "__main__:Rows",
        }
    )
    worker = object.__new__(agent_loop.AgentLoopWorker)
    worker.__dict__.update(
        config=config, rollout_config=config.actor_rollout_ref.rollout, tokenizer=tokenizer(),
        llm_client=None, processor=None, hf_model_type=None, dataset_cls=None, tools=[],
        distillation_enabled=False, reward_loop_worker_handles=None, mm_processor_kwargs={},
    )  # fmt: skip
    return worker


async def batch_of(worker: Any, group: RolloutGroup, step: int) -> Any:
    """Return verl's batch of a group: one row for each rollout."""
    ROWS[:] = [RolloutGroup(group.task_id, (sample,)) for sample in group.samples]
    rows = [
        await worker._run_agent_loop(
            {},
            {"step": step, "sample_index": 0, "rollout_n": n, "validate": False},
            agent_name="benchflow",
            trace=False,
            raw_prompt=[{"role": "user", "content": "Open the lock."}],
            task_id="lock",
        )
        for n in range(len(ROWS))
    ]
    return worker._postprocess(rows, {"uid": np.array(["lock"] * len(rows), dtype=object)})


def loss_of(model: torch.nn.Module, batch: Any, bonus: float) -> tuple[torch.Tensor, float]:
    """Return verl's clipped loss with its advantages of GRPO and a bonus for entropy, and the KL.

    The divergence is of the log-probabilities that BenchFlow recorded from those of the model.
    """
    mask, responses = batch["response_mask"], batch["responses"]
    logits = model(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        position_ids=batch["position_ids"],
    ).logits[:, -responses.shape[1] - 1 : -1]
    uid = np.array(["lock"] * len(responses), dtype=object)
    advantages, _ = core_algos.compute_grpo_outcome_advantage(batch["rm_scores"], mask, uid)
    config = OmegaConf.create({"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2})
    config.global_batch_info = {}
    loss, metrics = core_algos.compute_policy_loss_vanilla(
        old_log_prob=batch["rollout_log_probs"],
        log_prob=logprobs_from_logits(logits, responses),
        advantages=advantages,
        response_mask=mask,
        config=config,
    )
    logprobs = torch.log_softmax(logits, dim=-1)
    entropy = core_algos.agg_loss(-(logprobs.exp() * logprobs).sum(-1), mask, "token-mean")
    return loss - bonus * entropy, metrics["actor/ppo_kl"]


async def train(flags: argparse.Namespace) -> None:
    """Take the gradient steps, and print a line for each."""
    server = ModelServer(new_model(flags.seed), flags.seed)
    optimizer = torch.optim.Adam(server.model.parameters(), lr=flags.rate)
    worker = verl_worker()
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        rollouts = LockRollouts(url, Path(directory))
        for step in range(1, flags.steps + 1):
            data = await batch_of(worker, await rollouts.group(flags.group), step)
            with server.training() as model:
                optimizer.zero_grad()
                loss, kl = loss_of(model, data.batch, flags.bonus)
                loss.backward()
                optimizer.step()
            line = {
                "step": step,
                "tokens": server.sampled_tokens,
                "value": round(exact_value(server.model), 4),
                "kl": round(kl, 6),
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--group", type=int, default=12, help="rollouts for each gradient step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.008)
    parser.add_argument("--bonus", type=float, default=0.2, help="the weight of the entropy")
    asyncio.run(train(parser.parse_args()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
