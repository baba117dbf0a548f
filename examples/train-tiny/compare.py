"""Compare credits at equal numbers of sampled tokens.

    python compare.py --seeds 3 > curves.jsonl

Prints a line for each gradient step, and at the end a table on standard error: the exact value at
the end of each run, and the mean of the value over the tokens of a run.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence

import torch
from tree_grpo import Arm, Settings, train

ARMS = {
    "independent, inter": Arm("inter", trees=8, fork="none"),
    "fork, step": Arm("step", trees=2),
    "fork, intra": Arm("intra", trees=2),
    "fork, process": Arm("process", trees=2),
    "fork, intra+inter": Arm("intra+inter", trees=2),
}


def area(states: Iterable[Mapping[str, object]]) -> float:
    """Return the mean of the value over the sampled tokens of a run."""
    points = [(int(str(state["tokens"])), float(str(state["value"]))) for state in states]
    starts = [0, *(tokens for tokens, _ in points)]
    areas = [value * (end - begin) for (end, value), begin in zip(points, starts, strict=False)]
    return sum(areas) / points[-1][0]


def row(name: str, runs: Sequence[Sequence[Mapping[str, object]]]) -> str:
    """Return the line of the table for one arm: the value at the end of each run, and means."""
    ends = [float(str(run[-1]["value"])) for run in runs]
    each = " ".join(f"{end:.2f}" for end in ends)
    means = [area(run) for run in runs]
    mean = statistics.fmean(means)
    spread = statistics.stdev(means) if len(means) > 1 else 0.0
    leaves = statistics.fmean(int(str(run[-1]["leaves"])) for run in runs)
    steps = statistics.fmean(int(str(run[-1]["step"])) for run in runs)
    counts = f"{leaves:.0f} leaves, {steps:.0f} steps"
    return f"{name:20} {each}  mean over tokens {mean:.2f} +- {spread:.2f}, {counts}"


async def main() -> None:
    """Run every arm with every seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arm", choices=ARMS, help="run one arm (default: all)")
    parser.add_argument("--tokens", type=int, default=Settings.tokens)
    flags = parser.parse_args()
    arms = {name: arm for name, arm in ARMS.items() if flags.arm in (None, name)}
    settings = Settings(tokens=flags.tokens)
    runs: dict[str, list[list[dict[str, object]]]] = {name: [] for name in arms}
    for seed in range(flags.seeds):
        for name, arm in arms.items():
            runs[name].append([])
            async for state in train(arm, seed, settings):
                print(json.dumps({"arm": name, **state}), flush=True)
                runs[name][-1].append(state)
    for name, each in runs.items():
        print(row(name, each), file=sys.stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    asyncio.run(main())
