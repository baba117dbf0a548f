"""Shared grading: in the agent's own sandbox. Opt-in, and weak."""

from typing import Any

from benchflow_contracts import VerifyResult
from benchflow_contracts.scratch import scratch_directory

from benchflow_reward.errors import VerifierTimeoutError

from .collect_hooks import run_collect_hooks
from .endless_files import attribute_timeout
from .grading_protocol import GradingTarget, LiveNode, read_verdict
from .grading_sandbox import checked_host
from .grading_spec import grading_environment
from .integrity import integrity_report, make_tamper_rules, read_changed_files, report_beside_agent
from .intruders import add_intruders, observe_intruders
from .saved_artifacts import save_artifacts


async def grade_shared(live: LiveNode, hooks: dict[str, Any] | None = None) -> VerifyResult:
    """Add the tests to the agent's sandbox, run them there and read the reward.

    Whatever the agent left (files, programs on its PATH, start-up files, daemons)
    is still there while the tests run, and while the reward is read. Only the
    task's `[verifier] env` is set. The exit code of test.sh is recorded only.
    With `hooks`, collect hooks were run and artifacts were kept before.

    `meta["integrity"]` says what it changed before the tests came, as in a twin, and is never
    `clean`: nobody sees all that its processes do beside the tests. One of them that opens a file
    of the grader's makes the verdict `tampered`, where the sandbox can observe that.
    """
    grading_environment(live.task, "shared")
    with scratch_directory("grading") as scratch:
        if hooks is None:
            hooks = await run_collect_hooks(live)
            await save_artifacts(live, scratch / "artifacts")
        report = await _integrity(live)
        await live.ready_for_tests()
        target = GradingTarget(live.sandbox, live, "shared")
        async with observe_intruders(live.sandbox) as found:
            try:
                with checked_host(live.sandbox):
                    await live.protocol.place_tests(target, scratch)
                    run = await live.protocol.run_tests(target, scratch)
            except VerifierTimeoutError as error:
                named = attribute_timeout(error, await read_changed_files(live.sandbox))
                if named is None:
                    raise
                raise named from error
        meta = {**hooks, "integrity": add_intruders(report, found)}
        return await read_verdict(target, run, meta)


async def _integrity(live: LiveNode) -> dict[str, Any]:
    """Return the report on the agent's changes, before the tests add theirs.

    After the tests of an earlier step nobody knows whose a change is.
    """
    if has_shared_grading(live):
        return report_beside_agent(None)
    sandbox, verifier = live.sandbox, live.task.config.verifier
    changes = await read_changed_files(sandbox)
    if changes is None:
        return report_beside_agent(None)
    rules = await make_tamper_rules(live, sandbox, changes)
    user = verifier.user or sandbox.spec.user
    return report_beside_agent(await integrity_report(sandbox, changes, rules, user=user))


def has_shared_grading(live: LiveNode) -> bool:
    """Whether tests of an earlier step ran in the agent's sandbox."""
    return any(verdict.grading == "shared" for verdict in _earlier(live))


def _earlier(live: LiveNode) -> list[VerifyResult]:
    return [verdict for node in live.node.path for verdict in node.results.values()]
