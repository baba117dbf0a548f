"""Compare credits at equal numbers of sampled tokens.

    python compare.py --tokens 256 --seeds 3 > real.jsonl
    python compare.py --simulated --tokens 2000 --seeds 10 > simulated.jsonl
    python compare.py --read simulated.jsonl --at 500 1000 2000

Prints a line for each gradient step, and at the end a table on standard error. `--read` prints the
table of the lines of finished runs.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tree_grpo import Arm, Settings, train

ARMS = {
    "independent, inter": Arm("inter", trees=8, fork="none"),
    "fork, step": Arm("step", trees=2),
    "fork, inter": Arm("inter", trees=2),
    "fork, intra": Arm("intra", trees=2),
    "fork, process": Arm("process", trees=2),
    "fork, intra+inter": Arm("intra+inter", trees=2),
}
Run = list[dict[str, Any]]
"""The states of one arm and one seed, after each gradient step."""


def value_at(run: Run, tokens: int) -> float:
    """Return the value of the last weights that had seen at most so many tokens."""
    seen = [state["value"] for state in run if state["tokens"] <= tokens]
    return float(seen[-1] if seen else run[0]["value"])


def area(run: Run, tokens: int) -> float:
    """Return the mean of the value over the first `tokens` sampled tokens."""
    begin, total = 0, 0.0
    for state in run:
        end = min(int(state["tokens"]), tokens)
        total += float(state["value"]) * (end - begin)
        begin = end
    return total / begin


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation, as text."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.2f} ± {deviation:.2f}"


def table(lines: Iterable[dict[str, Any]], at: Sequence[int]) -> str:
    """Return the table of all arms. An arm's runs are those that reached the last value of `at`."""
    runs: dict[str, dict[int, Run]] = {}
    for line in lines:
        runs.setdefault(line["arm"], {}).setdefault(line["seed"], []).append(line)
    heads = ["rollouts, credit", "seeds", *(f"value at {n}" for n in at), "mean over tokens"]
    rows = [heads, ["---"] * len(heads)]
    for arm, seeds in runs.items():
        ended = [run for run in seeds.values() if run[-1]["tokens"] >= at[-1]]
        if not ended:
            continue
        values = [spread([value_at(run, tokens) for run in ended]) for tokens in at]
        means = spread([area(run, at[-1]) for run in ended])
        rows.append([arm, str(len(ended)), *values, means])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


async def compare(flags: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every arm with every seed, one after the other. Return the lines."""
    settings = Settings(tokens=flags.tokens, is_simulated=flags.simulated)
    lines: list[dict[str, Any]] = []
    for seed in range(flags.first_seed, flags.first_seed + flags.seeds):
        for name, arm in ARMS.items():
            if flags.arm in (None, name):
                async for state in train(arm, seed, settings):
                    lines.append({"arm": name, **state})
                    print(json.dumps(lines[-1]), flush=True)
    return lines


def main() -> None:
    """Compare, or read the lines of an earlier comparison."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--arm", choices=ARMS, help="run one arm (default: all)")
    parser.add_argument("--tokens", type=int, default=Settings.tokens)
    parser.add_argument("--simulated", action="store_true", help="simulate the task")
    parser.add_argument("--read", type=Path, help="read lines from this file; run nothing")
    parser.add_argument("--at", type=int, nargs="+", help="numbers of tokens of the table")
    flags = parser.parse_args()
    if flags.read is None:
        lines, file = asyncio.run(compare(flags)), sys.stderr
    else:
        lines, file = [json.loads(line) for line in flags.read.open()], sys.stdout
    print(table(lines, flags.at or [flags.tokens]), file=file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
