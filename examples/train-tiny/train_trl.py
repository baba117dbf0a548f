"""Train the tiny model with the unchanged `GRPOTrainer` of TRL 1.16.

    python train_trl.py --steps 40

The trainer asks for groups of rollouts of a task; BenchFlow runs them against the trainer's own
model, and TRL computes the advantages and the loss.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchflow_adapters_trainers import RolloutFunction, completion_reward, prompt_rows
from datasets import Dataset
from model_server import ModelServer, serving
from rollouts import OPTIONS, LockRollouts
from tiny_model import VOCABULARY, exact_value, new_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, TrainerCallback, TrainerState
from trl import GRPOConfig, GRPOTrainer


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with the model's words: TRL pads with it, and renders nothing."""
    words = {word: at for at, word in enumerate(VOCABULARY)}
    model = Tokenizer(WordLevel(words, unk_token="stop"))
    return PreTrainedTokenizerFast(tokenizer_object=model, pad_token="stop", eos_token="stop")


class Report(TrainerCallback):
    """Counts a version of the weights after each step, and prints the value."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def on_step_end(self, args: object, state: TrainerState, control: object, **_: object) -> None:
        """See `TrainerCallback`."""
        del args, control
        self._server.version += 1
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
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.01)
    flags = parser.parse_args()
    server = ModelServer(new_model(flags.seed), flags.seed)
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        function = RolloutFunction(LockRollouts(url, Path(directory)), OPTIONS)
        trainer = GRPOTrainer(
            model=server.model,
            processing_class=tokenizer(),
            reward_funcs=[completion_reward],
            rollout_func=function,
            train_dataset=Dataset.from_list(prompt_rows(["lock"])),
            callbacks=[Report(server)],
            args=GRPOConfig(
                output_dir=directory,
                max_steps=flags.steps,
                num_generations=flags.group,
                per_device_train_batch_size=flags.group,
                learning_rate=flags.rate,
                lr_scheduler_type="constant",
                seed=flags.seed,
                beta=0.0,
                bf16=False,
                use_cpu=True,
                gradient_checkpointing=False,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
        )
        trainer.train()
        function.close()


if __name__ == "__main__":
    main()
