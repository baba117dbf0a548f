"""Import a log of Inspect, score it by a BenchFlow reward, and export it: `import_log.py FILE`."""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import cast

from benchflow_adapters_inspect.logs import import_log
from benchflow_contracts import (
    Evidence,
    Exporter,
    ExporterFactory,
    RolloutNode,
    StoreError,
    TakesTrainingOptions,
    TrainingOptions,
    VerifyResult,
)
from benchflow_kernel import Registry


class SaysBoth:
    """A reward that reads only the node."""

    name = "reward"

    async def score(self, node: RolloutNode, evidence: Evidence) -> VerifyResult:
        said = node.steps[-1].message
        return VerifyResult(reward=float("blue" in said and "green" in said))


def lines(name: str, options: TrainingOptions) -> int:
    """Return how many lines an exporter writes; -1 if it refuses the rollouts."""
    exporter: Exporter = cast("ExporterFactory", Registry().resolve("benchflow.exporters", name))()
    assert isinstance(exporter, TakesTrainingOptions)
    exporter = exporter.with_options(options)
    with tempfile.TemporaryDirectory() as directory:
        try:
            exporter.export("job", iter(rollouts), Path(directory))
        except StoreError:
            return -1
        files = [path for path in Path(directory).rglob("*") if path.is_file()]
        return sum(len(path.read_text().splitlines()) for path in files)


rollouts = list(import_log(Path(sys.argv[1])))
leaves = [leaf for rollout in rollouts for leaf in rollout.tree.leaves]
verdicts = [asyncio.run(SaysBoth().score(leaf, Evidence())) for leaf in leaves]
print(
    json.dumps(
        {
            "rewards": [leaf.reward for leaf in leaves],
            "prompts": [leaf.steps[0].prompt for leaf in leaves],
            "messages": [leaf.steps[-1].message for leaf in leaves],
            "scored_again": [verdict.reward for verdict in verdicts],
            "own_rows": lines("sft", TrainingOptions()),
            "sft_rows": lines("sft", TrainingOptions(imported="train")),
            "token_rows": lines("tinker", TrainingOptions(imported="train")),
        }
    )
)
