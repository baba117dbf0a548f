"""From a finished test run to a verdict."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_contracts import ExecResult, Grading, RewardError, VerifyResult

from benchflow_reward.live_node import LiveNode
from benchflow_reward.reward_file import parse_reward

from .grading_box import Bench
from .test_log import keep_reward_files
from .verifier_env import pinned_env


async def run_pinned(bench: Bench, scratch: Path, *, cwd: str) -> tuple[ExecResult, Path]:
    """Run test.sh with the pinned environment; take its logs while nothing runs."""
    env = pinned_env(bench.live.task.config.verifier)
    result = await bench.run(cwd=cwd, env=env)
    async with bench.box.freeze():
        return result, await bench.take_logs(scratch)


async def verdict(
    live: LiveNode,
    result: ExecResult,
    logs: Path,
    *,
    grading: Grading,
    meta: Mapping[str, Any],
) -> VerifyResult:
    """Parse the reward on the host.

    Raises:
        RewardFormatError: The reward files break the grammar.
        RewardError: Hermetic tests ended with a non-zero exit code.
    """
    await asyncio.to_thread(keep_reward_files, logs, live.log_dir)
    if grading == "hermetic" and not result.ok:
        # Foreign test scripts end with pytest's exit code and so may fail; ours
        # end with 0 when they came to a verdict. Anything else is a crash.
        raise RewardError(
            f"test.sh ended with exit code {result.exit_code}; no reward is read",
            hint="read verifier/test-stdout.txt; test.sh exits 0 after it wrote its verdict",
        )
    within = live.task.config.verifier.reward_range
    parsed = await asyncio.to_thread(parse_reward, logs, reward_range=within)
    return VerifyResult(
        reward=parsed.reward,
        items=parsed.items,
        grading=grading,
        meta={
            **meta,
            "exit_code": result.exit_code,
            "duration_sec": result.duration_sec,
            "metadata": dict(parsed.metadata),
        },
    )
