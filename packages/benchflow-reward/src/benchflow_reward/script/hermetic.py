"""Hermetic grading: the agent's box is dead before anything is graded."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchflow_contracts import Sandbox, VerifyResult

from benchflow_reward.collect import Collected, collect
from benchflow_reward.live_node import LiveNode

from .artifacts import declared_artifacts, strip_start_up_files
from .grading import run_pinned, verdict
from .grading_box import Bench, furnish, grading_box, run_checked

_CLEAR = 'set -eu; for p in "$@"; do rm -rf -- "$p"; done'


async def grade_hermetic(live: LiveNode) -> VerifyResult:
    """Copy declared artifacts out, end the agent's box, grade in a fresh one.

    An artifact that cannot be copied safely (a link, a device, a pipe, too big) is
    a failed submission: the verdict is the low end of the range, with the cause in
    `meta`, and no test runs. So an agent cannot escape a 0 by planting one.
    """
    paths = declared_artifacts(live.task)
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        scratch = Path(name)
        staged = scratch / "artifacts"
        staged.mkdir()
        artifacts = await collect(live.sandbox, paths, staged)
        await live.sandbox.teardown()
        meta = await asyncio.to_thread(_screen, artifacts, paths)
        if refused := [item for item in artifacts if item.outcome == "refused"]:
            return _failed_submission(live, refused, meta)
        async with grading_box(live) as box:
            await furnish(box, live)
            await _place(box, artifacts)
            bench = Bench(box, live)
            await bench.place_tests(scratch)
            result, logs = await run_pinned(bench, scratch, cwd="/")
        return await verdict(live, result, logs, grading="hermetic", meta=meta)


def _screen(artifacts: Sequence[Collected], declared: Sequence[str]) -> dict[str, Any]:
    stripped: list[str] = []
    for item in artifacts:
        if item.local is not None:
            stripped += strip_start_up_files(item.local, item.path, declared)
    return {"artifacts": {item.path: item.outcome for item in artifacts}, "stripped": stripped}


async def _place(box: Sandbox, artifacts: Sequence[Collected]) -> None:
    if not artifacts:
        return
    # The box shows what the agent left, so what it deleted is gone here too.
    await run_checked(box, ["/bin/sh", "-c", _CLEAR, "sh", *(item.path for item in artifacts)])
    for item in artifacts:
        if item.local is not None:
            await box.upload(item.local, item.path)


def _failed_submission(
    live: LiveNode, refused: Sequence[Collected], meta: dict[str, Any]
) -> VerifyResult:
    low, _ = live.task.config.verifier.reward_range
    reasons = {item.path: item.reason for item in refused}
    return VerifyResult(
        reward=low,
        items={"artifacts_refused": float(len(refused))},
        grading="hermetic",
        meta={**meta, "refused": reasons},
    )
