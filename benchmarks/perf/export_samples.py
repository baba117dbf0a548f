"""What does it cost to export trees with recorded tokens as v1-leaves and v1-graph?

Each tree has `LEAVES` leaves. The path to a leaf has `TOKENS` tokens in `CALLS` model calls, and
the leaves share the first half. The limit of the same run is `json.dumps` of as many token ids,
masks and log-probabilities.
"""

import argparse
import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    FinishedRollout,
    ModelCall,
    RolloutNode,
    RolloutTree,
    Step,
    Usage,
    VerifyResult,
)
from benchflow_export import load_exporter
from report import emit

LEAVES, TOKENS, CALLS = 8, 8_000, 16
_GOAL_SEC, _GOAL_MB = 60.0, 200.0
"""For 1,000 trees as v1-leaves."""


class Tree:
    """Makes one rollout with calls whose prompts keep their prefix."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: dict[str, ModelCall] = {}
        self.nodes: dict[str, RolloutNode] = {}

    def add(self, parent: RolloutNode, seen: list[Any], tokens: list[int]) -> RolloutNode:
        """Add one step with one call below `parent`; extend its messages and tokens."""
        name = f"n{len(self.nodes)}"
        seen.append({"role": "user", "content": f"{name} goes on"})
        each = TOKENS // CALLS // 2
        tokens += [(self.number * 7919 + len(tokens) + i) % 150_000 for i in range(each)]
        said = [(len(name) * 104_729 + len(tokens) + i) % 150_000 for i in range(each)]
        reply = {"role": "assistant", "content": f"{name} says"}
        self.calls[name] = ModelCall(
            id=name,
            node=name,
            api="openai-chat",
            request={"messages": list(seen), "temperature": 1.0},
            response={"choices": [{"message": reply, "finish_reason": "stop"}]},
            status=200,
            policy_version="7",
            prompt_token_ids=tuple(tokens),
            completion_token_ids=tuple(said),
            logprobs=tuple(-(token % 997) / 997 for token in said),
            usage=Usage(input_tokens=len(tokens), output_tokens=len(said)),
            started_at=0,
            finished_at=1,
        )
        seen.append(reply)
        tokens += said
        step = Step(id=name, model_calls=(name,), started_at=0, finished_at=1)
        node = RolloutNode(id=name, parent=parent, step=step)
        self.nodes[name] = node
        parent.children.append(node)
        return node

    def rollout(self) -> FinishedRollout:
        """Return the rollout: one stem, then one branch for each leaf."""
        root = self.nodes["root"] = RolloutNode(id="root")
        at, seen, tokens = root, list[Any](), list[int]()
        for _ in range(CALLS // 2):
            at = self.add(at, seen, tokens)
        for leaf in range(LEAVES):
            end, own_seen, own = at, list(seen), list(tokens)
            for _ in range(CALLS - CALLS // 2):
                end = self.add(end, own_seen, own)
            end.results["reward"] = VerifyResult(reward=leaf / LEAVES)
        tree = RolloutTree(f"r{self.number}", "task", root, self.nodes, status="completed")
        return FinishedRollout(
            tree=tree,
            task_digest="d",
            instruction="Go on.",
            agent="policy",
            model="m",
            sandbox="local",
            finished_at=1,
            calls=self.calls,
        )


def export(name: str, trees: int, directory: Path) -> tuple[float, str, int]:
    """Return the CPU seconds without the making of trees, the sha256 and the number of tokens."""
    making = 0.0

    def rollouts() -> Iterator[FinishedRollout]:
        nonlocal making
        for number in range(trees):
            began = time.process_time()
            rollout = Tree(number).rollout()
            making += time.process_time() - began
            yield rollout

    directory.mkdir()
    began = time.process_time()
    load_exporter(name).export("job", rollouts(), directory)
    spent = time.process_time() - began - making
    [file] = directory.iterdir()
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    tokens = sum(line.count(b"true") + line.count(b"false") for line in file.open("rb"))
    file.unlink()
    return spent, digest, tokens


def plain_json() -> float:
    """Return the CPU seconds of `json.dumps` of one tree's token fields."""
    ids, flags = list(range(TOKENS)), [True] * (TOKENS // 2) + [False] * (TOKENS // 2)
    logprobs = [-(token % 997) / 997 for token in range(TOKENS // 2)]
    began = time.process_time()
    for _ in range(LEAVES):
        json.dumps({"token_ids": ids, "mask": flags, "logprobs": logprobs, "advantages": logprobs})
    return time.process_time() - began


def main() -> int:
    """Print the cost of both formats for 1,000 trees; fail above the goals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=100)
    trees = parser.parse_args().trees
    limit = sorted(plain_json() for _ in range(9))[4]
    missed = 0
    for name in ("v1-leaves", "v1-graph"):
        with tempfile.TemporaryDirectory() as scratch:
            spent, digest, tokens = export(name, trees, Path(scratch) / "a")
            again, same, _ = export(name, trees, Path(scratch) / "b")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        distinct = trees * (TOKENS // 2) * (1 + LEAVES)
        per_1000 = [1000 * each / trees for each in (spent, again)]
        emit(
            f"export_{name}",
            per_1000,
            unit="CPU s per 1,000 trees of 8 leaves of 8,000 tokens",
            trees=trees,
            **({"limit": _GOAL_SEC} if name == "v1-leaves" else {}),
            peak_mb=round(peak, 1),
            limit_mb=_GOAL_MB,
            same_bytes=digest == same,
            tokens_written=tokens,
            ratio_to_distinct_tokens=round(tokens / distinct, 3),
            ratio_to_json_dumps=round(min(per_1000) / (1000 * limit), 2),
        )
        missed += digest != same or peak > _GOAL_MB
        missed += name == "v1-leaves" and min(per_1000) > _GOAL_SEC
        missed += name == "v1-graph" and tokens > 1.1 * distinct
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
