"""Twin grading: in a copy of the final file system, with nothing of it running."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import RewardError, Sandbox, SandboxImage, SandboxSpec, VerifyResult

from benchflow_reward.live_node import LiveNode

from .grading import bench_of, verdict
from .grading_box import furnish, grading_box
from .grading_spec import grading_spec
from .hooks import run_collect_hooks
from .integrity import integrity_report
from .kept import keep_from


async def grade_twin(live: LiveNode) -> VerifyResult:
    """Seal the final state, end the agent's box, grade in a box made of the seal.

    No process of the agent's box runs there, services included; `/tests` and
    `/logs/verifier` are made anew and no variable is the agent's. Files are, so
    `meta["integrity"]` says what differs from a pristine box. The exit code of test.sh is
    recorded only. Containers beside the box are graded alive. Nothing is ended when the
    rollout goes on in the agent's box.
    """
    spec = grading_spec(live, "twin")
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        scratch = Path(name)
        hooks = await run_collect_hooks(live)
        await keep_from(live, scratch / "artifacts")
        async with _sealed(live) as image, _copy(live, spec, image) as box:
            async with grading_box(live, spec) as pristine:
                await furnish(pristine, live, "twin")
                dirs = [box.spec.workdir, "/home", "/root", "/tmp", "/var/tmp"]  # noqa: S108 - inside the box
                integrity = await integrity_report(box, pristine, dirs)
            bench = bench_of(box, live, "twin")
            await bench.place_tests(scratch)
            run = await bench.run(scratch)
        return await verdict(bench, run, live.log_dir, {**hooks, "integrity": integrity})


@asynccontextmanager
async def _copy(
    live: LiveNode, spec: SandboxSpec, image: SandboxImage
) -> AsyncGenerator[Sandbox, None]:
    """Make the box that grades.

    Services run on beside it, with all that they hold, as tests mean to ask them: then it takes
    the agent's own place among them, which ends every process that was there.
    """
    if not live.sandbox.spec.services:
        async with grading_box(live, spec, image) as box:
            yield box
        return
    await live.sandbox.restore(image)
    try:
        yield live.sandbox
    finally:
        await live.sandbox.teardown()


@asynccontextmanager
async def _sealed(live: LiveNode) -> AsyncGenerator[SandboxImage, None]:
    beside = bool(live.sandbox.spec.services)
    if beside and live.goes_on:
        raise RewardError(
            "between steps there is no copy of a box that has services",
            hint="grade with --isolation shared",
        )
    async with live.sandbox.freeze():
        image = await live.sandbox.snapshot("filesystem")
    try:
        if not live.goes_on and not beside:
            await live.sandbox.teardown()
        yield image
    finally:
        await live.provider.discard(image)
