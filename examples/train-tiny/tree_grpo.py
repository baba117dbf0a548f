"""A plain Tree-GRPO: sample groups of rollouts, credit their tokens, take one gradient step.

    python tree_grpo.py --estimator intra --tokens 1500

Prints one JSON line for each update. `value` is the exact expected return of the policy, which is
1 for the best one; 13 equally likely tokens have 0.021.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from benchflow_contracts.sample import AdvantageEstimator
from benchflow_export import CreditRow, TrainerOptions, credit_rows
from model_server import ModelServer, serving
from rollouts import OPTIONS, LockRollouts
from tiny_model import VOCABULARY, new_model, token_logprobs
from transformers import GPT2LMHeadModel

BEST = ["right 0", "2", "right 1", "0", "right 2", "1", "right 3", "2"]


@dataclass(frozen=True)
class Arm:
    """How rollouts are sampled and credited."""

    estimator: AdvantageEstimator
    trees: int
    leaves: int
    """The leaves of a tree. 1 is an independent rollout."""

    def branch(self) -> dict[str, object] | None:
        """Return the fork of the next group: at a random model call."""
        if self.leaves == 1:
            return None
        return {"kind": "group", "n": self.leaves, "at_call": random.randint(1, 4)}


def exact_value(model: GPT2LMHeadModel) -> float:
    """Return the expected return: a quarter for each right digit before the first wrong one."""
    with torch.no_grad():
        right = token_logprobs(model, [VOCABULARY.index(word) for word in BEST])[1::2].exp()
    return float(right.cumprod(0).sum() / 4)


def loss_of(model: GPT2LMHeadModel, rows: list[CreditRow]) -> torch.Tensor:
    """Return the policy-gradient loss. The weights are those that sampled, so no ratio is needed."""
    total, tokens = torch.zeros(()), 0
    for row in rows:
        mask = torch.tensor(row.loss_mask, dtype=torch.float)
        total = total - row.advantage * (token_logprobs(model, row.token_ids) * mask).sum()
        tokens += sum(row.loss_mask)
    return total / max(tokens, 1)


async def train(arm: Arm, budget: int, seed: int, rate: float) -> Iterator[dict[str, object]]:
    """Train until the model has sampled `budget` tokens. Return the state after each update."""
    random.seed(seed)
    server = ModelServer(new_model(seed), seed)
    optimizer = torch.optim.Adam(server.model.parameters(), lr=rate)
    options = TrainerOptions.model_validate({**OPTIONS.model_dump(), "advantage": arm.estimator})
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        async with LockRollouts(url, Path(directory)) as rollouts:
            while server.sampled_tokens < budget:
                group = await rollouts.group(arm.trees, arm.branch())
                rows, excluded = credit_rows(group, options)
                with server.training() as model:
                    loss = loss_of(model, rows)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                returns = [sample.reward for sample in group.samples]
                yield {
                    "estimator": arm.estimator,
                    "leaves": arm.leaves,
                    "seed": seed,
                    "tokens": server.sampled_tokens,
                    "value": round(exact_value(server.model), 4),
                    "mean_return": round(sum(returns) / max(len(returns), 1), 4),
                    "rows": len(rows),
                    "left_out": [str(each) for each in (*group.excluded, *excluded)],
                }


async def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--estimator", default="intra+inter")
    parser.add_argument("--trees", type=int, default=4)
    parser.add_argument("--leaves", type=int, default=4, help="1 samples independent rollouts")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.01)
    flags = parser.parse_args()
    arm = Arm(flags.estimator, flags.trees, flags.leaves)
    async for state in train(arm, flags.tokens, flags.seed, flags.rate):
        print(json.dumps(state), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
