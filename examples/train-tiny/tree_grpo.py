"""A plain Tree-GRPO: sample groups of rollouts, credit their tokens, take one gradient step.

    python tree_grpo.py --estimator intra --tokens 1500

Prints one JSON line for each update. `value` is the exact expected return of the policy, which is
1 for the best one; 11 equally likely tokens have 0.033.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from benchflow_contracts.sample import AdvantageEstimator
from benchflow_export import CreditRow, TrainerOptions, credit_rows
from model_server import ModelServer, serving
from rollouts import OPTIONS, LockRollouts
from tiny_model import exact_value, new_model, token_logprobs
from transformers import GPT2LMHeadModel


@dataclass(frozen=True)
class Arm:
    """How rollouts are sampled and credited."""

    estimator: AdvantageEstimator
    trees: int
    fork: Literal["none", "call", "value"] = "call"
    """`none`: independent rollouts. `call`: one fork at a random model call, as in Tree-GRPO.
    `value`: children at each call, which estimate its value."""

    def branch(self, longest: int) -> dict[str, object] | None:
        """Return how the next rollouts fork. The last ones had `longest` model calls at most."""
        if self.fork == "call":
            return {"kind": "group", "n": 4, "at_call": random.randint(1, min(longest, 3))}
        return {"kind": "value", "n": 2, "every_call": 1} if self.fork == "value" else None


def loss_of(model: GPT2LMHeadModel, rows: list[CreditRow]) -> torch.Tensor:
    """Return the policy-gradient loss. The weights sampled the rows, so no ratio is needed."""
    total, tokens = torch.zeros(()), 0
    for row in rows:
        mask = torch.tensor(row.loss_mask, dtype=torch.float)
        total = total - row.advantage * (token_logprobs(model, row.token_ids) * mask).sum()
        tokens += sum(row.loss_mask)
    return total / max(tokens, 1)


async def train(arm: Arm, budget: int, seed: int, rate: float) -> AsyncIterator[dict[str, object]]:
    """Train until the model has sampled `budget` tokens. Yield the state after each group."""
    random.seed(seed)
    server = ModelServer(new_model(seed), seed)
    optimizer = torch.optim.Adam(server.model.parameters(), lr=rate)
    options = TrainerOptions.model_validate({**OPTIONS.model_dump(), "advantage": arm.estimator})
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        rollouts = LockRollouts(url, Path(directory))
        longest = 1
        while server.sampled_tokens < budget:
            group = await rollouts.group(arm.trees, arm.branch(longest))
            longest = max(len(sample.nodes) for sample in group.samples)
            rows, excluded = credit_rows(group, options)
            if rows:
                with server.training() as model:
                    optimizer.zero_grad()
                    loss_of(model, rows).backward()
                    optimizer.step()
            returns = [sample.reward for sample in group.samples]
            yield {
                "estimator": arm.estimator,
                "fork": arm.fork,
                "seed": seed,
                "tokens": server.sampled_tokens,
                "value": round(exact_value(server.model), 4),
                "mean_return": round(sum(returns) / max(len(returns), 1), 4),
                "rows": len(rows),
                "left_out": Counter(each.reason for each in (*group.excluded, *excluded)),
            }


async def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--estimator", default="intra+inter")
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--fork", choices=["none", "call", "value"], default="call")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.002)
    flags = parser.parse_args()
    arm = Arm(flags.estimator, flags.trees, flags.fork)
    async for state in train(arm, flags.tokens, flags.seed, flags.rate):
        print(json.dumps(state), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
