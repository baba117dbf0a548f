"""From a furnished box to a verdict, by the task's protocol."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import Grading, Sandbox, VerifyResult

from benchflow_reward.live_node import LiveNode

from .bench import Bench, OurBench, ScriptRun
from .harbor_bench import HarborBench
from .test_log import keep_reward_files


def bench_of(box: Sandbox, live: LiveNode, grading: Grading) -> Bench:
    """Return the bench of the task's protocol."""
    harbor = live.task.config.verifier.protocol == "harbor"
    return HarborBench(box, live, grading) if harbor else OurBench(box, live, grading)


async def verdict(
    bench: Bench, run: ScriptRun, log_dir: Path | None, meta: Mapping[str, Any]
) -> VerifyResult:
    """Keep the reward files and parse the reward, on the host.

    Raises:
        RewardError: There is no valid reward.
    """
    await asyncio.to_thread(keep_reward_files, run.logs, log_dir)
    read = await asyncio.to_thread(bench.read, run)
    how = {"exit_code": run.result.exit_code, "duration_sec": run.result.duration_sec}
    return read.model_copy(update={"meta": {**meta, **how, **read.meta}})
