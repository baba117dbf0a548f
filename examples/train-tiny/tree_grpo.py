"""A plain Tree-GRPO: sample groups of rollouts, credit their tokens, take one gradient step.

    python tree_grpo.py --credit intra+inter

Prints one JSON line for each update. `value` is the exact expected return of the policy, which is
1 for the best one; 11 equally likely tokens have 0.033.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from benchflow_contracts import AdvantageEstimator, Sample
from benchflow_export import CreditRow, ExcludedLeaf, RolloutGroup, credit_rows
from model_server import ModelServer, serving
from rollouts import OPTIONS, LockRollouts
from simulated import SimulatedRollouts
from tiny_model import exact_value, new_model
from transformers import GPT2LMHeadModel


@dataclass(frozen=True)
class Arm:
    """How rollouts are sampled and credited."""

    credit: AdvantageEstimator | Literal["step"]
    """`step`: V(node) - V(parent) on the first sampled token of a branch, and on no other one."""
    trees: int
    """The trees of a group, whose returns are a baseline for each other."""
    fork: Literal["none", "call", "value"] = "call"
    """`none`: independent rollouts. `call`: one fork at a random model call, as in Tree-GRPO.
    `value`: children at each call, which estimate its value."""

    def branch(self, longest: int) -> dict[str, object] | None:
        """Return how the next rollouts fork. The last ones had `longest` model calls at most."""
        if self.fork == "call":
            return {"kind": "group", "n": 4, "at_call": random.randint(1, min(longest, 3))}
        return {"kind": "value", "n": 2, "every_call": 1} if self.fork == "value" else None

    def rows(self, group: RolloutGroup) -> tuple[list[CreditRow], list[ExcludedLeaf]]:
        """Return the rows of a group with the advantages of this arm."""
        if self.credit == "step":
            samples = tuple(map(with_step_credit, group.samples))
            return Arm("process", self.trees).rows(replace(group, samples=samples))
        return credit_rows(group, OPTIONS.model_copy(update={"advantage": self.credit}))


def with_step_credit(sample: Sample) -> Sample:
    """Return the sample with `step` credit in the place of `process`."""
    parents = dict(zip(sample.nodes[1:], sample.nodes, strict=False))
    advantages: list[float | None] = []
    for span in sample.spans:
        parent = parents.pop(span.node, None) if span.kind == "sampled" else None
        difference = None if parent is None else sample.values[span.node] - sample.values[parent]
        advantages.append(difference)
    return sample.model_copy(update={"advantages": {"process": tuple(advantages)}})


def loss_of(model: GPT2LMHeadModel, rows: list[CreditRow], bonus: float) -> torch.Tensor:
    """Return the policy-gradient loss with a bonus for entropy.

    The weights sampled the rows themselves, so no ratio of probabilities is needed.
    """
    ids = torch.zeros(len(rows), max(len(row.token_ids) for row in rows), dtype=torch.long)
    mask = torch.zeros(ids.shape)
    for at, row in enumerate(rows):
        ids[at, : len(row.token_ids)] = torch.tensor(row.token_ids)
        mask[at, : len(row.token_ids)] = torch.tensor(row.loss_mask)
    logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1], dim=-1)
    chosen = logprobs.gather(2, ids[:, 1:, None])[:, :, 0]
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    advantages = torch.tensor([row.advantage for row in rows])
    # Credits have different units. Divided by their size, they are all as strong as the bonus.
    advantages /= advantages.square().mean().sqrt() + 1e-6
    terms = (advantages[:, None] * chosen + bonus * entropy) * mask[:, 1:]
    return -terms.sum() / mask[:, 1:].sum()


@dataclass(frozen=True)
class Settings:
    """Numbers of a training run."""

    tokens: int = 800
    """Sampled tokens in all."""
    tokens_per_step: int = 16
    """A gradient step is taken when at least as many tokens were sampled since the last one."""
    rate: float = 0.008
    bonus: float = 0.2
    """The weight of the entropy. Without it, many runs stop to explore at a value of 1/3."""

    is_simulated: bool = False
    """Whether the task is simulated, without sandboxes."""


class Rollouts(Protocol):
    """Returns groups of rollouts of the lock."""

    async def group(self, trees: int, branch: Mapping[str, Any] | None = None) -> RolloutGroup:
        """Run `trees` rollouts, each forked as `branch` says."""
        ...


@contextmanager
def rollouts_of(server: ModelServer, *, is_simulated: bool) -> Generator[Rollouts]:
    """Yield rollouts of the server's model: real ones, or simulated ones."""
    if is_simulated:
        yield SimulatedRollouts(server)
        return
    with serving(server) as url, tempfile.TemporaryDirectory() as directory:
        yield LockRollouts(url, Path(directory))


async def train(arm: Arm, seed: int, settings: Settings) -> AsyncIterator[dict[str, object]]:
    """Train until the model has sampled enough tokens. Yield the state after each step.

    The last state comes once more, with all tokens.
    """
    random.seed(seed)
    server = ModelServer(new_model(seed), seed)
    optimizer = torch.optim.Adam(server.model.parameters(), lr=settings.rate)
    with rollouts_of(server, is_simulated=settings.is_simulated) as rollouts:
        longest, steps, leaves, rows = 1, 0, 0, list[CreditRow]()
        excluded: Counter[str] = Counter()
        due = settings.tokens_per_step

        def state() -> dict[str, object]:
            return {
                "credit": arm.credit,
                "fork": arm.fork,
                "seed": seed,
                "step": steps,
                "tokens": server.sampled_tokens,
                "leaves": leaves,
                "value": round(exact_value(server.model), 4),
                "excluded": dict(excluded),
            }

        while server.sampled_tokens < settings.tokens:
            group = await rollouts.group(arm.trees, arm.branch(longest))
            longest = max((len(sample.nodes) for sample in group.samples), default=1)
            added, without = arm.rows(group)
            rows += added
            leaves += len(group.samples)
            excluded.update(each.reason for each in (*group.excluded, *without))
            if not rows or server.sampled_tokens < due:
                continue
            with server.training() as model:
                optimizer.zero_grad()
                loss_of(model, rows, settings.bonus).backward()
                optimizer.step()
            due, rows, steps = server.sampled_tokens + settings.tokens_per_step, [], steps + 1
            yield state()
        yield state()


async def main() -> None:
    """Train with the flags of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--credit", default="intra+inter")
    parser.add_argument("--trees", type=int, default=2)
    parser.add_argument("--fork", choices=["none", "call", "value"], default="call")
    parser.add_argument("--tokens", type=int, default=Settings.tokens)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    arm = Arm(flags.credit, flags.trees, flags.fork)
    async for state in train(arm, flags.seed, Settings(tokens=flags.tokens)):
        print(json.dumps(state), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
