"""Hermetic grading: the agent's sandbox ends before its files reach the grading sandbox."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from benchflow_contracts import Artifact, Cause, FileChanges, HasImageDigests, Sandbox, VerifyResult
from benchflow_contracts.scratch import scratch_directory
from benchflow_contracts.service import MAIN

from benchflow_reward.collect import Collected

from .artifact_changes import collected_directories, find_artifact_changes
from .artifacts import check_placeable, declared_artifacts, strip_start_up_files
from .collect_hooks import run_collect_hooks
from .concurrent import run_both
from .failure_attribution import MAX_CAUSE_CHARS
from .grading_protocol import GradingTarget, LiveNode, read_verdict
from .grading_sandbox import grading_sandbox, set_up_task
from .grading_spec import grading_spec
from .integrity import integrity_report, make_tamper_rules, read_changed_files
from .saved_artifacts import collect_artifacts


async def grade_hermetic(live: LiveNode) -> VerifyResult:
    """Copy declared artifacts out, end the agent's sandbox, grade in a fresh one.

    The fresh sandbox is made meanwhile; nothing is put into it before the agent's is gone. Nothing
    is ended when the rollout goes on in the agent's sandbox.

    An artifact that cannot be copied safely (a link, a device, a pipe, too big) is a failed
    submission: the verdict is the low end of the range, with the cause in `meta`, and no test
    runs. So an agent cannot escape a 0 by planting one. If the protocol copies partly, links and
    the like are omitted, what cannot be copied is missing, and the tests run.

    When a directory is copied, `meta["integrity"]` says what in it can steer the tests and is
    not the task's, by the rules of a twin.
    """
    rules = live.protocol.rules
    artifacts = declared_artifacts(live.task, rules, live.sandbox.spec.workdir)
    check_placeable(artifacts, rules, live.task)
    with scratch_directory("grading") as scratch:
        async with AsyncExitStack() as stack:
            making = _make_sandbox(stack, live)
            sandbox, (taken, meta) = await run_both(
                making, _take_submission(live, artifacts, scratch)
            )
            meta.update(_image(sandbox))
            refused = [item for item in taken.artifacts if item.outcome == "refused"]
            if refused:
                return _failed_submission(live, refused, meta)
            meta.update(await _place_submission(sandbox, live, taken))
            target = GradingTarget(sandbox, live, "hermetic")
            await live.protocol.place_tests(target, scratch)
            run = await live.protocol.run_tests(target, scratch)
        return await read_verdict(target, run, meta)


async def _make_sandbox(stack: AsyncExitStack, live: LiveNode) -> Sandbox:
    sandbox = await stack.enter_async_context(grading_sandbox(live, grading_spec(live, "hermetic")))
    await set_up_task(sandbox, live, "hermetic")
    return sandbox


@dataclass(frozen=True, slots=True)
class _Submission:
    """The files that were copied out of the agent's sandbox."""

    artifacts: list[Collected]
    changes: FileChanges | None
    """What the host says of the whole sandbox at the same instant; `None` where it cannot."""


async def _take_submission(
    live: LiveNode, artifacts: Sequence[Artifact], scratch: Path
) -> tuple[_Submission, dict[str, Any]]:
    """Copy the graded files out of the agent's sandbox, and end it."""
    hooks = await run_collect_hooks(live)
    changes: list[FileChanges | None] = []

    async def compare() -> None:
        changes.append(await read_changed_files(live.sandbox))

    taken = await collect_artifacts(
        live,
        artifacts,
        scratch / "artifacts",
        leave_out=live.protocol.rules.copies_partly,
        meanwhile=compare,
    )
    if not live.continues:
        await live.sandbox.teardown()
    meta = {**hooks, **await asyncio.to_thread(_screen, taken, artifacts)}
    return _Submission(taken, changes[0]), meta


async def _place_submission(sandbox: Sandbox, live: LiveNode, taken: _Submission) -> dict[str, Any]:
    """Place the artifacts. Return the integrity report on directories, if there are any.

    A file that is an artifact by its own path is expected, also below another one.
    """
    directories = collected_directories(taken.artifacts)
    if not directories:
        await live.protocol.place_artifacts(sandbox, taken.artifacts)
        return {}
    changes = await find_artifact_changes(sandbox, directories, taken.changes)
    verifier = live.task.config.verifier
    files = [item.path for item in taken.artifacts if item not in directories]
    verifier = verifier.model_copy(
        update={"expects_changes": (*verifier.expects_changes, *map(escape, files))}
    )
    workdir = live.sandbox.spec.workdir
    rules = await make_tamper_rules(live, sandbox, verifier=verifier, agent_workdir=workdir)
    await live.protocol.place_artifacts(sandbox, taken.artifacts)
    user = verifier.user or sandbox.spec.user
    return {"integrity": await integrity_report(sandbox, changes, rules, user=user)}


def _image(sandbox: Sandbox) -> dict[str, str]:
    """Return the digest of the sandbox's image, if it is known."""
    digest = sandbox.image_digests.get(MAIN) if isinstance(sandbox, HasImageDigests) else None
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
    why = "; ".join(f"artifact {path!r} is refused: {reason}" for path, reason in reasons.items())
    return VerifyResult(
        reward=low,
        cause=Cause(by="agent", what=why[:MAX_CAUSE_CHARS]),
        items={"artifacts_refused": float(len(refused))},
        grading="hermetic",
        meta={**meta, "refused": reasons},
    )
