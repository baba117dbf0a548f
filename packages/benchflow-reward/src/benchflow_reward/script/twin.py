"""Twin grading: in a copy of the final file system, with nothing of it running."""

import asyncio
import tempfile
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

from .again import Brought, bring_again, missing
from .at_once import both
from .bytecode import renew_bytecode
from .grading_box import furnish, grading_box, has_services, stand_in_box
from .grading_protocol import GradingTarget, LiveNode, read_verdict
from .grading_spec import grading_spec
from .hooks import run_collect_hooks
from .integrity import inside_report, integrity_report, steering, text_of, told_by_host
from .kept import keep_from
from .live_state import LiveState, live_state
from .opened import Expected
from .stalled import unless_stalled
from .steering import Steering
from .watching import watching


@dataclass(slots=True)
class TwinRun:
    """A grading in a twin, and what the twin may lack."""

    state: LiveState
    """What ran in the agent's box."""
    keep: bool = False
    """Whether the agent's box stands still meanwhile, and is there afterwards."""
    missing: list[str] = field(default_factory=list[str])
    """Why the tests may need the agent's own box."""
    hooks: dict[str, Any] = field(default_factory=dict[str, Any])
    """How the collect hooks ended."""


async def grade_twin(live: LiveNode, run: TwinRun | None = None) -> VerifyResult:
    """Seal the final state, end the agent's box, grade in a box made of the seal.

    No process of the agent's box runs there, services included; `/tests` and
    `/logs/verifier` are made anew and no variable is the agent's. Files are, so
    `meta["integrity"]` says what it changed that can steer the tests, and what of it the tests
    loaded where the sandbox can observe that. The exit code of
    test.sh is recorded only. Services beside the box run on, with all that they hold, as tests
    mean to ask them: the copy takes its place among them, and it stands still meanwhile.
    Nothing is ended when the rollout goes on in the agent's box.

    If the protocol restarts the entrypoint, the image's entrypoint is started again in the twin if
    something runs in the agent's sandbox, and the twin has the host names of that sandbox.
    """
    spec = grading_spec(live, "twin")
    if run is None:
        run = TwinRun(await state_for_twin(live))
    with tempfile.TemporaryDirectory(prefix="bf-grading-") as name:
        scratch = Path(name)
        run.hooks = await run_collect_hooks(live)
        await keep_from(live, scratch / "artifacts")
        async with AsyncExitStack() as stack:
            if run.keep:
                await stack.enter_async_context(live.sandbox.freeze())
            image, changes = await stack.enter_async_context(_sealed(live))
            stack.enter_context(unless_stalled(changes))
            copying = stand_in_box if has_services(live.sandbox) else grading_box
            making = stack.enter_async_context(copying(live, spec, image))
            # The tests are put in when both are done: nothing of the agent runs then.
            box, _ = await both(making, _end(live, keep=run.keep))
            return await _grade(live, run, box, (spec, changes, scratch))


async def state_for_twin(live: LiveNode) -> LiveState:
    """Return what a twin would lack, if the protocol gives the twin a part of that."""
    if not live.protocol.rules.restarts_entrypoint:
        return LiveState()
    return await live_state(live.sandbox)


async def _grade(
    live: LiveNode,
    run: TwinRun,
    box: Sandbox,
    given: tuple[SandboxSpec, FileChanges | None, Path],
) -> VerifyResult:
    spec, changes, scratch = given
    brought = Brought()
    if changes is not None:
        await renew_bytecode(box, changes)
    if live.protocol.rules.restarts_entrypoint:
        brought = await bring_again(live, box, run.state, changes)
    run.missing = missing(run.state, brought.notes)
    report, rules = await _integrity(live, spec, box, changes)
    target = GradingTarget(box, live, "twin")
    await live.protocol.place_tests(target, scratch)
    container = live.sandbox.spec.container
    mounts = (*container.volumes, *container.host_mounts)
    async with watching(box, changes, mounts) as watch:
        done = await live.protocol.run_tests(target, scratch)
    tests = await asyncio.to_thread(text_of, live.task.parts.tests)
    integrity = await asyncio.to_thread(watch.added_to, report, Expected(tests, rules))
    brought.add_beside(watch)
    meta = {**run.hooks, "integrity": brought.added_to(integrity)}
    if brought.notes or run.missing:
        meta["live"] = [*brought.notes, *run.state.reasons]
    return await read_verdict(target, done, meta)


async def _integrity(
    live: LiveNode, spec: SandboxSpec, box: Sandbox, changes: FileChanges | None
) -> tuple[dict[str, Any], Steering]:
    verifier = live.task.config.verifier
    rules = await steering(live, box, changes)
    user = verifier.user or box.spec.user
    if changes is not None:
        return await integrity_report(box, changes, rules, user=user), rules
    async with grading_box(live, spec) as pristine:
        await furnish(pristine, live, "twin")
        return await inside_report(box, pristine, rules, user=user), rules


@asynccontextmanager
async def _sealed(live: LiveNode) -> AsyncGenerator[tuple[SandboxImage, FileChanges | None], None]:
    async with live.sandbox.freeze():
        changes = await told_by_host(live.sandbox)
        image = await live.sandbox.snapshot("filesystem")
    try:
        yield image, changes
    finally:
        await live.provider.discard(image)


async def _end(live: LiveNode, *, keep: bool) -> None:
    # One whose services go on stands still beside them, and ends with them.
    if not keep and not live.continues and not has_services(live.sandbox):
        await live.sandbox.teardown()
