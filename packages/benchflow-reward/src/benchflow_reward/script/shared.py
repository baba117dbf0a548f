"""Shared grading: in the agent's own box, as Harbor does it. Opt-in, and weak."""

import tempfile
from pathlib import Path

from benchflow_contracts import VerifyResult

from benchflow_reward.live_node import LiveNode

from .grading import verdict
from .grading_box import Bench, run_checked
from .layout import TESTS

_PREPARE = """mkdir -p /logs/verifier /tests && chown "$1" /logs/verifier &&
rm -rf /logs/verifier/reward.txt /logs/verifier/reward.json"""


async def grade_shared(live: LiveNode) -> VerifyResult:
    """Add the tests to the agent's box, run them there and read the reward.

    Whatever the agent left (files, programs on its PATH, start-up files, daemons)
    is still there while the tests run, and while the reward is read. Only the
    task's `[verifier] env` is set. The exit code of test.sh is recorded only.
    """
    task = live.task
    user = task.config.verifier.user
    bench = Bench(live.sandbox, live)
    await run_checked(live.sandbox, ["/bin/sh", "-c", _PREPARE, "sh", user])
    for directory in task.parts.tests:
        await live.sandbox.upload(directory, TESTS, user=user)
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        workdir = task.config.environment.workdir
        result = await bench.run(cwd=workdir, env=task.config.verifier.env)
        logs = await bench.take_logs(Path(name))
        return await verdict(live, result, logs, grading="shared", meta={})
