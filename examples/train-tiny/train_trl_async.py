"""Train the tiny model with the unchanged `AsyncGRPOTrainer` of TRL 1.16, without a GPU.

    python train_trl_async.py --steps 40

With a rollout service, the sandboxes may be on another machine:

    bench serve tasks --agent policy --agent-env.BENCHFLOW_POLICY_MAX_CALLS 4 --slots 3
    BENCHFLOW_SERVE_TOKEN=... python train_trl_async.py --remote http://127.0.0.1:8643

BenchFlow's worker runs groups of rollouts all the time, and computes the advantages. TRL takes
their rows, computes the loss, and sends new weights to the model server between two calls.

TRL packs the rows of a group and computes attention with a GPU kernel. `on_cpu` replaces this
kernel by the same computation in plain torch, and the look-up of the GPU's speed. TRL's packed
attention does not support GPT-2, so the model is a Llama of about the same size.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import torch
from benchflow_adapters_trainers import GroupWorker, RemoteGroups, prompt_rows
from benchflow_export import RequestedGroups
from benchflow_serve_client import ModelEndpoint, ServeClient
from datasets import Dataset
from model_server import ModelServer, serving
from rollouts import OPTIONS, LockRollouts
from tiny_model import CONTEXT, STOP, VOCABULARY, exact_value
from train_trl import tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainerState
from trl.experimental.async_grpo import (
    AsyncGRPOConfig,
    AsyncGRPOTrainer,
    async_grpo_trainer,
    packing,
)


def new_llama(seed: int) -> LlamaForCausalLM:
    """Return a model with random weights, about 21,000 of them."""
    torch.manual_seed(seed)
    size = LlamaConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=CONTEXT, hidden_size=32,
        intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        bos_token_id=None, eos_token_id=STOP, pad_token_id=STOP,
    )  # fmt: skip
    return LlamaForCausalLM(size)


class ServerWeights:
    """A `WeightTransferProtocol` of TRL: copies the trainer's weights to the model server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def init_weight_transfer(self) -> None:
        """Do nothing: the server is in this process."""

    def pause(self) -> None:
        """Do nothing: `send_weights` waits for the call that runs."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Copy the weights between two calls, and count a version."""
        with self._server.training() as model, torch.no_grad():
            weights = dict(model.named_parameters())
            for name, tensor in iterator:
                weights[name].copy_(tensor)

    def resume(self) -> None:
        """Do nothing: the server did not stop."""

    def destroy(self) -> None:
        """Do nothing: the caller stops the server."""


def packed_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    starts_q: torch.Tensor, starts_k: torch.Tensor, *_: int, softmax_scale: float, **__: object,
) -> torch.Tensor:  # fmt: skip
    """Return causal attention over segments of variable length, as the GPU kernel does."""
    outs = []
    for at in range(len(starts_q) - 1):
        q = query[starts_q[at] : starts_q[at + 1]].transpose(0, 1)
        k = key[starts_k[at] : starts_k[at + 1]].transpose(0, 1)
        v = value[starts_k[at] : starts_k[at + 1]].transpose(0, 1)
        seen = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
        scores = (q @ k.transpose(1, 2) * softmax_scale).masked_fill(~seen, float("-inf"))
        outs.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(outs)


def on_cpu() -> None:
    """Let TRL's trainer run without a GPU."""
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    kernel = SimpleNamespace(flash_attn_varlen_func=packed_attention)
    packing._flash_attn = lambda: kernel  # noqa: SLF001 - TRL loads the kernel there


def groups_of(url: str, directory: Path, service: str | None) -> LockRollouts | RemoteGroups:
    """Return what runs the rollouts of the model at `url`: this process, or a service."""
    if service is None:
        return LockRollouts(url, directory)
    endpoint = ModelEndpoint(url=url, model="tiny")
    return RemoteGroups(
        ServeClient(service), ["lock"], policy="tiny", endpoint=endpoint, options=OPTIONS
    )


class Report(TrainerCallback):
    """Prints the value of the weights after each step."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """See `TrainerCallback`."""
        del args, control
        line = {
            "step": state.global_step,
            "tokens": self._server.sampled_tokens,
            "value": round(exact_value(self._server.model), 4),
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=12, help="rows for each gradient step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.008)
    parser.add_argument("--remote", help="URL of a `bench serve` with the task (default: none)")
    flags = parser.parse_args()
    on_cpu()
    options = OPTIONS.model_copy(update={"advantage": "intra+inter"})
    server = ModelServer(new_llama(flags.seed), flags.seed)
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        server.model.save_pretrained(f"{directory}/model")
        source = RequestedGroups(
            groups_of(url, Path(directory), flags.remote), ["lock"], size=flags.rows
        )
        trainer = AsyncGRPOTrainer(
            model=f"{directory}/model",
            processing_class=tokenizer(),
            reward_funcs=[],
            train_dataset=Dataset.from_list(prompt_rows(["lock"])),
            rollout_worker=GroupWorker(source, options, queue_size=flags.rows),
            weight_transfer=ServerWeights(server),
            callbacks=[Report(server)],
            args=AsyncGRPOConfig(
                output_dir=directory,
                max_steps=flags.steps,
                per_device_train_batch_size=flags.rows,
                gradient_accumulation_steps=1,
                token_budget=-1,
                weight_sync_steps=1,
                max_staleness=4,
                learning_rate=flags.rate,
                lr_scheduler_type="constant",
                seed=flags.seed,
                dtype="float32",
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
