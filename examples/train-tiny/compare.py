"""Compare credits at equal numbers of sampled tokens.

    python compare.py --tokens 256 --seeds 3 > real.jsonl
    python compare.py --simulated --tokens 2000 --seeds 30 > simulated.jsonl
    python compare.py --read simulated.jsonl --at 256 500 1000 2000
    python compare.py --read real.jsonl simulated.jsonl --at 128 240

Prints a line for each gradient step, and at the end a table on standard error. `--read` prints the
table of the lines of finished runs; of several files, the table that compares them.
"""

import argparse
import asyncio
import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tree_grpo import Arm, Settings, train

BASE = "independent, inter"
"""The arm that the others are compared with."""
GOOD = 0.9
ARMS = {
    BASE: Arm("inter", trees=8, fork="none"),
    "fork, step": Arm("step", trees=2),
    "fork, inter": Arm("inter", trees=2),
    "fork, intra": Arm("intra", trees=2),
    "fork, process": Arm("process", trees=2),
    "fork, intra+inter": Arm("intra+inter", trees=2),
}
Run = list[dict[str, Any]]
"""The states of one arm and one seed, after each gradient step."""
Runs = dict[str, dict[int, Run]]
"""The runs by arm and seed."""


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


def runs_of(lines: Iterable[dict[str, Any]], tokens: int) -> Runs:
    """Return the runs that sampled at least so many tokens, in the order of `ARMS`."""
    runs: Runs = {arm: {} for arm in ARMS}
    for line in lines:
        runs[line["arm"]].setdefault(line["seed"], []).append(line)
    return {
        arm: {seed: run for seed, run in seeds.items() if run[-1]["tokens"] >= tokens}
        for arm, seeds in runs.items()
    }


def difference(seeds: dict[int, Run], base: dict[int, Run], tokens: int) -> str:
    """Return the mean difference of two arms over their common seeds, with its standard error."""
    both = [
        area(run, tokens) - area(base[seed], tokens) for seed, run in seeds.items() if seed in base
    ]
    if len(both) < 2 or seeds is base:
        return ""
    error = statistics.stdev(both) / math.sqrt(len(both))
    return f"{statistics.fmean(both):.2f} ± {error:.2f}"


def table(lines: Iterable[dict[str, Any]], at: Sequence[int]) -> str:
    """Return the table of all arms: values, the mean over the tokens, and the seeds."""
    runs, last = runs_of(lines, at[-1]), at[-1]
    heads = ["rollouts, credit", *(f"{n:,} tokens" for n in at)]
    heads += ["mean over tokens", "difference", f"runs above {GOOD}", "seeds"]
    rows = [heads]
    for arm, seeds in runs.items():
        if not seeds:
            continue
        values = [spread([value_at(run, n) for run in seeds.values()]) for n in at]
        means = spread([area(run, last) for run in seeds.values()])
        good = sum(value_at(run, last) > GOOD for run in seeds.values())
        compared = difference(seeds, runs[BASE], last)
        rows.append([arm, *values, means, compared, str(good), seeds_of(seeds)])
    return as_table(rows)


def side_by_side(files: Sequence[Path], at: Sequence[int]) -> str:
    """Return the table of the values in several files, named as the files."""
    named = {file.stem: runs_of(read(file), at[-1]) for file in files}
    heads = ["rollouts, credit", *(f"{name}, {n:,} tokens" for name in named for n in at)]
    heads += [f"seeds, {name}" for name in named]
    rows = [heads]
    for arm in ARMS:
        parts = [runs[arm] for runs in named.values()]
        if all(parts):
            values = [
                spread([value_at(run, n) for run in seeds.values()]) for seeds in parts for n in at
            ]
            rows.append([arm, *values, *map(seeds_of, parts)])
    return as_table(rows)


def seeds_of(seeds: dict[int, Run]) -> str:
    """Return the seeds as text, such as `0-29`."""
    first, last = min(seeds), max(seeds)
    if first == last:
        return str(first)
    is_whole = len(seeds) == last - first + 1
    return f"{first}-{last}" if is_whole else ", ".join(map(str, sorted(seeds)))


def as_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as a table of Markdown. The first one has the heads."""
    lines = [f"| {' | '.join(line)} |".replace("|  |", "| |") for line in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def read(file: Path) -> list[dict[str, Any]]:
    """Return the lines of finished runs."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


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
    parser.add_argument("--read", type=Path, nargs="+", help="read lines of files; run nothing")
    parser.add_argument("--at", type=int, nargs="+", help="numbers of tokens of the table")
    flags = parser.parse_args()
    at = flags.at or [flags.tokens]
    if flags.read is None:
        print(table(asyncio.run(compare(flags)), at), file=sys.stderr)
    elif len(flags.read) == 1:
        print(table(read(flags.read[0]), at))
    else:
        print(side_by_side(flags.read, at))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
