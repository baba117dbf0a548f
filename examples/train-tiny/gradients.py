"""Compare the gradients of credits with the exact gradient, at equal numbers of sampled tokens.

    python gradients.py --blocks 6 > gradients.jsonl

The expected return of the model is known, so its gradient is, too. The weights stay the same: all
credits of forked rollouts see the same samples. The number is the cosine between the gradient of a
block of samples and the exact one: 1 is perfect, 0 is as good as a random direction.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from benchflow_export import CreditRow, RolloutGroup
from model_server import ModelServer, serving
from rollouts import LockRollouts
from tiny_model import exact_value, expected_return, new_model
from transformers import GPT2LMHeadModel
from tree_grpo import Arm, loss_of

ARMS = {
    "independent": [Arm("inter", trees=8, fork="none")],
    "fork": [
        Arm(credit, trees=2) for credit in ("step", "process", "intra", "inter", "intra+inter")
    ],
}
"""The credits of the same samples."""


def policy_of(value: float, seed: int) -> GPT2LMHeadModel:
    """Return a model of at least this value, trained with the exact gradient."""
    model = new_model(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    while exact_value(model) < value:
        optimizer.zero_grad()
        (-expected_return(model)).backward()
        optimizer.step()
    return model


def gradient(model: GPT2LMHeadModel, loss: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a loss as one vector, downhill."""
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    zeros = (torch.zeros_like(each) for each in model.parameters())
    full = (zero if part is None else part for part, zero in zip(parts, zeros, strict=True))
    return -torch.cat([part.flatten() for part in full])


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the cosine of two vectors; 0 if one of them is 0."""
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


class Sampler:
    """Samples blocks of groups from one fixed model."""

    def __init__(self, server: ModelServer, rollouts: LockRollouts) -> None:
        self._server = server
        self._rollouts = rollouts
        self._longest = 1

    async def block(self, arm: Arm, tokens: int) -> list[RolloutGroup]:
        """Return groups for which the model has sampled at least so many tokens."""
        groups: list[RolloutGroup] = []
        end = self._server.sampled_tokens + tokens
        while self._server.sampled_tokens < end:
            group = await self._rollouts.group(arm.trees, arm.branch(self._longest))
            self._longest = max((len(sample.nodes) for sample in group.samples), default=1)
            groups.append(group)
        return groups


def agreement(model: GPT2LMHeadModel, arm: Arm, groups: Sequence[RolloutGroup]) -> float:
    """Return the cosine between the gradient of a block and the exact gradient."""
    rows = list[CreditRow]()
    for group in groups:
        rows += arm.rows(group)[0]
    exact = gradient(model, -expected_return(model))
    return cosine(gradient(model, loss_of(model, rows, 0.0)), exact) if rows else 0.0


async def main() -> None:
    """Print a line for each block and credit, and a table on standard error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--values", type=float, nargs="+", default=[0.0, 0.33, 0.66])
    parser.add_argument("--blocks", type=int, default=6, help="each has its own seed")
    parser.add_argument("--tokens", type=int, default=64, help="sampled tokens of a block")
    flags = parser.parse_args()
    found: dict[tuple[float, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(flags.blocks):
            for value in flags.values:
                random.seed(seed)
                server = ModelServer(policy_of(value, seed), seed)
                with serving(server) as url:
                    sampler = Sampler(server, LockRollouts(url, Path(directory)))
                    for shape, arms in ARMS.items():
                        begin = server.sampled_tokens
                        groups = await sampler.block(arms[0], flags.tokens)
                        for arm in arms:
                            number = agreement(server.model, arm, groups)
                            found.setdefault((value, shape, arm.credit), []).append(number)
                            line = {
                                "policy": round(exact_value(server.model), 3),
                                "seed": seed,
                                "shape": shape,
                                "credit": arm.credit,
                                "tokens": server.sampled_tokens - begin,
                                "leaves": sum(len(group.samples) for group in groups),
                                "cosine": round(number, 4),
                            }
                            print(json.dumps(line), flush=True)
    for (value, shape, credit), numbers in found.items():
        spread = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
        mean = f"{statistics.fmean(numbers):.2f} +- {spread:.2f}"
        print(f"{value:.2f} {shape:12} {credit:12} {mean}", file=sys.stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
