"""Compare estimators at equal numbers of sampled tokens.

    python compare.py --tokens 1500 --seeds 3 > curves.jsonl

Prints the lines of every run, and a table on standard error: the mean and the range over the seeds
of the exact value at the end, and the mean over the whole run.
"""

import argparse
import asyncio
import json
import statistics
import sys

from tree_grpo import Arm, train

ARMS = {
    "independent, inter": Arm("inter", trees=16, fork="none"),
    "fork, intra": Arm("intra", trees=4),
    "fork, intra+inter": Arm("intra+inter", trees=4),
    "values, process": Arm("process", trees=3, fork="value"),
}


async def main() -> None:
    """Run every arm with every seed, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arm", choices=ARMS, help="run one arm (default: all)")
    parser.add_argument("--rate", type=float, default=0.002)
    flags = parser.parse_args()
    ends: dict[str, list[tuple[float, float]]] = {}
    for name, arm in ARMS.items():
        if flags.arm not in (None, name):
            continue
        for seed in range(flags.seeds):
            values: list[float] = []
            async for state in train(arm, flags.tokens, seed, flags.rate):
                print(json.dumps({"arm": name, **state}), flush=True)
                values.append(float(str(state["value"])))
            ends.setdefault(name, []).append((values[-1], statistics.fmean(values)))
    for name, each in ends.items():
        last = [end for end, _ in each]
        mean = statistics.fmean(average for _, average in each)
        spread = f"{min(last):.2f} to {max(last):.2f}"
        print(f"{name:18} {statistics.fmean(last):.2f} ({spread})  {mean:.2f}", file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(main())
