"""Shared grading: in the agent's own box, as Harbor does it. Opt-in, and weak."""

import tempfile
from pathlib import Path

from benchflow_contracts import VerifyResult

from benchflow_reward.live_node import LiveNode

from .grading import bench_of, verdict
from .grading_spec import grading_environment
from .hooks import run_collect_hooks
from .kept import keep_from


async def grade_shared(live: LiveNode) -> VerifyResult:
    """Add the tests to the agent's box, run them there and read the reward.

    Whatever the agent left (files, programs on its PATH, start-up files, daemons)
    is still there while the tests run, and while the reward is read. Only the
    task's `[verifier] env` is set. The exit code of test.sh is recorded only.
    """
    grading_environment(live.task, "shared")
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        scratch = Path(name)
        meta = await run_collect_hooks(live)
        await keep_from(live, scratch / "artifacts")
        await live.ready_for_tests()
        bench = bench_of(live.sandbox, live, "shared")
        await bench.place_tests(scratch)
        run = await bench.run(scratch)
        return await verdict(bench, run, live.log_dir, meta)
