"""Twin grading: in a copy of the final file system, with nothing of it running."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_contracts import (
    FileChanges,
    Sandbox,
    SandboxImage,
    SandboxSpec,
    VerifyResult,
)
from benchflow_contracts.scratch import scratch_directory

from .bytecode import recompile_bytecode
from .collect_hooks import run_collect_hooks
from .concurrent import run_both
from .endless_files import endless_files_attributed
from .file_observation import observe_changed_files
from .grading_protocol import GradingTarget, LiveNode, read_verdict
from .grading_sandbox import grading_sandbox, has_services, replaced_sandbox, set_up_task
from .grading_spec import grading_spec
from .integrity import (
    integrity_report,
    make_tamper_rules,
    read_changed_files,
    read_tests,
    report_from_listings,
)
from .live_state import LiveState, read_live_state
from .opened_files import ExpectedCode
from .saved_artifacts import save_artifacts
from .tamper_rules import TamperRules
from .twin_restart import RestartReport, missing_reasons, restart_entrypoint


@dataclass(slots=True)
class TwinRun:
    """A grading in a twin, and what the twin may lack."""

    state: LiveState
    """What ran in the agent's sandbox."""
    keep: bool = False
    """Whether the agent's sandbox stands still meanwhile, and is there afterwards."""
    missing: list[str] = field(default_factory=list[str])
    """Why the tests may need the agent's own sandbox."""
    hooks: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the collect hooks ended."""


async def grade_twin(live: LiveNode, run: TwinRun | None = None) -> VerifyResult:
    """Seal the final state, end the agent's sandbox, grade in a sandbox made of the seal.

    No process of the agent's sandbox runs there, services included; `/tests` and
    `/logs/verifier` are made anew and no variable is the agent's. Files are, so
    `meta["integrity"]` says what it changed that can steer the tests, and what of it the tests
    loaded where the sandbox can observe that. The exit code of
    test.sh is recorded only. Services beside the sandbox run on, with all that they hold, as tests
    mean to ask them: the copy takes its place among them, and it stands still meanwhile.
    Nothing is ended when the rollout goes on in the agent's sandbox.

    If the protocol restarts the entrypoint, the image's entrypoint is started again in the twin if
    something runs in the agent's sandbox, and the twin has the host names of that sandbox.
    """
    spec = grading_spec(live, "twin")
    if run is None:
        run = TwinRun(await state_for_twin(live))
    with scratch_directory("grading") as scratch:
        run.hooks = await run_collect_hooks(live)
        await save_artifacts(live, scratch / "artifacts")
        async with AsyncExitStack() as stack:
            if run.keep:
                await stack.enter_async_context(live.sandbox.freeze())
            image, changes = await stack.enter_async_context(_snapshot(live))
            stack.enter_context(endless_files_attributed(changes))
            copying = replaced_sandbox if has_services(live.sandbox) else grading_sandbox
            making = stack.enter_async_context(copying(live, spec, image))
            # The tests are put in when both are done: nothing of the agent runs then.
            sandbox, _ = await run_both(making, _end(live, keep=run.keep))
            return await _grade(live, run, sandbox, (spec, changes, scratch))


async def state_for_twin(live: LiveNode) -> LiveState:
    """Return what a twin would lack, if the protocol gives the twin a part of that."""
    if not live.protocol.rules.restarts_entrypoint:
        return LiveState()
    return await read_live_state(live.sandbox)


async def _grade(
    live: LiveNode,
    run: TwinRun,
    sandbox: Sandbox,
    given: tuple[SandboxSpec, FileChanges | None, Path],
) -> VerifyResult:
    spec, changes, scratch = given
    brought = RestartReport()
    if changes is not None:
        await recompile_bytecode(sandbox, changes)
    if live.protocol.rules.restarts_entrypoint:
        brought = await restart_entrypoint(live, sandbox, run.state, changes)
    run.missing = missing_reasons(run.state, brought.notes)
    report, rules = await _integrity(live, spec, sandbox, changes)
    target = GradingTarget(sandbox, live, "twin")
    await live.protocol.place_tests(target, scratch)
    container = live.sandbox.spec.container
    mounts = (*container.volumes, *container.host_mounts)
    async with observe_changed_files(sandbox, changes, mounts) as watch:
        done = await live.protocol.run_tests(target, scratch)
    tests = await asyncio.to_thread(read_tests, live.task.parts.tests)
    integrity = await asyncio.to_thread(watch.added_to, report, ExpectedCode(tests, rules))
    brought.add_beside(watch)
    meta = {**run.hooks, "integrity": brought.added_to(integrity)}
    if brought.notes or run.missing:
        meta["live"] = [*brought.notes, *run.state.reasons]
    return await read_verdict(target, done, meta)


async def _integrity(
    live: LiveNode, spec: SandboxSpec, sandbox: Sandbox, changes: FileChanges | None
) -> tuple[dict[str, Any], TamperRules]:
    verifier = live.task.config.verifier
    rules = await make_tamper_rules(live, sandbox, changes)
    user = verifier.user or sandbox.spec.user
    if changes is not None:
        return await integrity_report(sandbox, changes, rules, user=user), rules
    async with grading_sandbox(live, spec) as pristine:
        await set_up_task(pristine, live, "twin")
        return await report_from_listings(sandbox, pristine, rules, user=user), rules


@asynccontextmanager
async def _snapshot(
    live: LiveNode,
) -> AsyncGenerator[tuple[SandboxImage, FileChanges | None], None]:
    async with live.sandbox.freeze():
        changes = await read_changed_files(live.sandbox)
        image = await live.sandbox.snapshot("filesystem")
    try:
        yield image, changes
    finally:
        await live.provider.discard(image)


async def _end(live: LiveNode, *, keep: bool) -> None:
    # One whose services go on stands still beside them, and ends with them.
    if not keep and not live.continues and not has_services(live.sandbox):
        await live.sandbox.teardown()
