"""Twin grading: in a copy of the final file system, with nothing of it running."""

import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from benchflow_contracts import SandboxImage, VerifyResult

from benchflow_reward.live_node import LiveNode

from .grading import run_pinned, verdict
from .grading_box import Bench, furnish, grading_box
from .integrity import integrity_report


async def grade_twin(live: LiveNode) -> VerifyResult:
    """Seal the final state, end the agent's box, grade in a box made of the seal.

    No process of the agent's box runs there, services included; `/tests` and
    `/logs/verifier` are made anew and the environment variables are pinned. Files
    are the agent's, so `meta["integrity"]` says what differs from a pristine box.
    The exit code of test.sh is recorded only.
    """
    workdir = live.task.config.environment.workdir
    async with _sealed(live) as image, grading_box(live, image) as box:
        async with grading_box(live) as pristine:
            await furnish(pristine, live)
            dirs = [workdir, "/home", "/root", "/tmp", "/var/tmp"]  # noqa: S108 - inside the box
            integrity = await integrity_report(box, pristine, dirs)
        with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
            scratch = Path(name)
            bench = Bench(box, live)
            await bench.place_tests(scratch)
            result, logs = await run_pinned(bench, scratch, cwd=workdir)
            await box.teardown()
            meta = {"integrity": integrity}
            return await verdict(live, result, logs, grading="twin", meta=meta)


@asynccontextmanager
async def _sealed(live: LiveNode) -> AsyncGenerator[SandboxImage, None]:
    async with live.sandbox.freeze():
        image = await live.sandbox.snapshot("filesystem")
    try:
        await live.sandbox.teardown()
        yield image
    finally:
        await live.provider.discard(image)
