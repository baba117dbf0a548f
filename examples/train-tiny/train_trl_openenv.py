"""Train the tiny model with TRL 1.16's `HarnessRolloutWorker` on sessions of BenchFlow.

    python train_trl_openenv.py --steps 3

TRL takes rollouts from OpenEnv's interface, `ResourceSessionFactory`. `AgentSessionFactory` starts
a rollout of the policy agent for each session, and returns the recorded tokens as its training
trace. TRL computes the advantages and the loss, and sends new weights to the model server.

TRL's worker asks for vLLM before it starts, although the agent calls the model here. So this
program answers for it, and `on_cpu` replaces the GPU kernel as in `train_trl_async.py`.
"""

import argparse
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchflow import RunConfig
from benchflow_adapters_openenv.sessions import AgentSessionFactory
from datasets import Dataset
from model_server import ModelServer, serving
from rollouts import TASK
from tiny_model import STOP
from train_trl import tokenizer
from train_trl_async import Report, ServerWeights, new_llama, on_cpu
from transformers import TrainerCallback, TrainerState
from trl.chat_template_utils import qwen3_chat_template
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_rollout_worker
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker


class Losses(TrainerCallback):
    """Prints how TRL's loss saw the rollouts: a ratio of 1 is the recorded policy."""

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: dict[str, Any], **_: object
    ) -> None:
        """See `TrainerCallback`."""
        del args, control
        if "ratio" in logs:
            names = ("reward", "ratio", "kl", "loss", "batch/trained_tokens_per_step")
            seen = {name: round(float(logs[name]), 6) for name in names}
            print(json.dumps({"step": state.global_step, **seen}), flush=True)


def worker(url: str, directory: str, rows: int) -> HarnessRolloutWorker:
    """Return TRL's worker, whose process runs our rollouts."""
    config = RunConfig.model_validate(
        {
            "agent": {
                "name": "policy",
                "model": "tiny",
                "env": {"BENCHFLOW_POLICY_MAX_CALLS": "4"},
            },
            "model": {"base_url": url, "upstream": "vllm"},
        }
    )
    processing_class = tokenizer()
    # TRL refuses a tokenizer with an unknown template, also if it renders nothing.
    processing_class.chat_template = qwen3_chat_template
    return HarnessRolloutWorker(
        model_name="tiny",
        dataset=Dataset.from_list([{"prompt": str(TASK)}]),
        reward_funcs=[],
        processing_class=processing_class,
        eos_token_ids=[STOP],
        num_generations=rows,
        max_inflight_tasks=3,
        queue_maxsize=rows,
        harness_session_factory=functools.partial(
            AgentSessionFactory, config, jobs_dir=Path(directory, "jobs")
        ),
    )


def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=12, help="rollouts of a group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.008)
    flags = parser.parse_args()
    on_cpu()
    async_rollout_worker.is_vllm_available = lambda: True
    server = ModelServer(new_llama(flags.seed), flags.seed)
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        server.model.save_pretrained(f"{directory}/model")
        settings: dict[str, Any] = {
            "output_dir": directory,
            "max_steps": flags.steps,
            "per_device_train_batch_size": flags.rows,
            "gradient_accumulation_steps": 1,
            "token_budget": -1,
            "weight_sync_steps": 1,
            "max_staleness": 4,
            "learning_rate": flags.rate,
            "lr_scheduler_type": "constant",
            "seed": flags.seed,
            "dtype": "float32",
            "bf16": False,
            "use_cpu": True,
            "gradient_checkpointing": False,
            "save_strategy": "no",
            "logging_strategy": "steps",
            "logging_steps": 1,
            "report_to": [],
            "disable_tqdm": True,
        }
        trainer = AsyncGRPOTrainer(
            model=f"{directory}/model",
            processing_class=tokenizer(),
            reward_funcs=[],
            train_dataset=Dataset.from_list([{"prompt": str(TASK)}]),
            rollout_worker=worker(url, directory, flags.rows),
            weight_transfer=ServerWeights(server),
            callbacks=[Report(server), Losses()],
            args=AsyncGRPOConfig(**settings),
        )
        trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
