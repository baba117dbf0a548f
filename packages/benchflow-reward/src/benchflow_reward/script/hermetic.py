"""Hermetic grading: the agent's box is dead before anything of it is in the grading box."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchflow_contracts import Artifact, PinnedSandbox, Sandbox, VerifyResult
from benchflow_contracts.service import MAIN

from benchflow_reward.collect import Collected
from benchflow_reward.live_node import LiveNode

from .artifacts import check_placeable, declared_artifacts, strip_start_up_files
from .at_once import both
from .grading import bench_of, verdict
from .grading_box import furnish, grading_box
from .grading_spec import grading_spec
from .hooks import run_collect_hooks
from .kept import take_artifacts
from .placing import place_artifacts


async def grade_hermetic(live: LiveNode) -> VerifyResult:
    """Copy declared artifacts out, end the agent's box, grade in a fresh one.

    The fresh box is made meanwhile; nothing is put into it before the agent's is gone. Nothing
    is ended when the rollout goes on in the agent's box.

    In our own protocol, an artifact that cannot be copied safely (a link, a device, a pipe,
    too big) is a failed submission: the verdict is the low end of the range, with the cause
    in `meta`, and no test runs. So an agent cannot escape a 0 by planting one. In Harbor's,
    links and their like are left out, what cannot be copied is missing, and the tests run.
    """
    artifacts = declared_artifacts(live.task, live.sandbox.spec.workdir)
    check_placeable(artifacts, live.task)
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        scratch = Path(name)
        async with AsyncExitStack() as stack:
            making = _furnished(stack, live)
            box, (taken, meta) = await both(making, _emptied(live, artifacts, scratch))
            meta.update(_image(box))
            refused = [item for item in taken if item.outcome == "refused"]
            if refused:
                return _failed_submission(live, refused, meta)
            await place_artifacts(box, live, taken)
            bench = bench_of(box, live, "hermetic")
            await bench.place_tests(scratch)
            run = await bench.run(scratch)
        return await verdict(bench, run, live.log_dir, meta)


async def _furnished(stack: AsyncExitStack, live: LiveNode) -> Sandbox:
    box = await stack.enter_async_context(grading_box(live, grading_spec(live, "hermetic")))
    await furnish(box, live, "hermetic")
    return box


async def _emptied(
    live: LiveNode, artifacts: Sequence[Artifact], scratch: Path
) -> tuple[list[Collected], dict[str, Any]]:
    """Take out of the agent's box what is graded, and end it."""
    hooks = await run_collect_hooks(live)
    harbor = live.task.config.verifier.protocol == "harbor"
    taken = await take_artifacts(live, artifacts, scratch / "artifacts", leave_out=harbor)
    if not live.goes_on:
        await live.sandbox.teardown()
    return taken, {**hooks, **await asyncio.to_thread(_screen, taken, artifacts)}


def _image(box: Sandbox) -> dict[str, str]:
    """Return the digest of what the box was made from, if that is known."""
    digest = box.image_digests.get(MAIN) if isinstance(box, PinnedSandbox) else None
    return {} if digest is None else {"image": digest}


def _screen(taken: Sequence[Collected], declared: Sequence[Artifact]) -> dict[str, Any]:
    paths = [artifact.source for artifact in declared]
    stripped: list[str] = []
    for item in taken:
        if item.local is not None:
            stripped += strip_start_up_files(item.local, item.path, paths)
    return {"artifacts": {item.path: item.outcome for item in taken}, "stripped": stripped}


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
