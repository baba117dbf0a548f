"""The conformance kit of an Environment."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchflow_contracts.base import BaseEnvironment
from benchflow_contracts.environment import (
    Environment,
    EnvironmentFactory,
    EnvState,
    ProvisionContext,
)
from benchflow_contracts.errors import SnapshotError
from benchflow_contracts.sandbox import (
    Sandbox,
    SandboxCapabilities,
    SandboxImage,
    SandboxProvider,
    SandboxSpec,
)

from .check import Check, CheckResult, expect, expect_equal, promise, run_checks

_TASK = "kit"
_PAUSES_SEC = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)


@dataclass(frozen=True, slots=True)
class EnvironmentSubject:
    """An environment under test, the sandboxes it lives in, and a change to its state."""

    make: EnvironmentFactory
    provider: SandboxProvider
    capabilities: SandboxCapabilities
    spec: SandboxSpec
    mutate: Callable[[Sandbox], Awaitable[None]]
    """Changes the live state; a second call changes it again."""

    @asynccontextmanager
    async def world(
        self,
        *,
        image: SandboxImage | None = None,
        carried: Mapping[str, str] | None = None,
        state: EnvState | None = None,
        seed: int | None = None,
    ) -> AsyncGenerator[tuple[Environment, Sandbox], None]:
        """Provision a ready environment, and tear everything down at the end."""
        environment = self.make()
        spec = environment.prepare(self.spec, task_id=_TASK)
        sandbox = await self.provider.create(spec, image=image)
        try:
            resumed = image is not None
            context = ProvisionContext(
                sandbox=sandbox,
                task_id=_TASK,
                resumed=resumed,
                live_services=carried,
                state=state,
                seed=seed,
            )
            await environment.provision(context)
            probe = await environment.readiness()
            expect(probe.ready, f"the environment is not ready: {probe.error}")
            yield environment, sandbox
        finally:
            await environment.teardown()
            await sandbox.teardown()

    async def changed(self, environment: Environment, sandbox: Sandbox) -> EnvState:
        """Change the state and return it; fail when the change does not show."""
        before = await environment.query()
        await self.mutate(sandbox)
        after = await environment.query()
        expect(after != before, "a change of the state does not show in query()")
        return after


EnvironmentCheck = Check[EnvironmentSubject]


def _lacks_forks(subject: EnvironmentSubject) -> str | None:
    levels = subject.capabilities.snapshot_levels
    return None if "filesystem" in levels else "capabilities: no filesystem snapshots"


@promise()
async def prepare_only_adds_to_the_spec(subject: EnvironmentSubject) -> None:
    """The workdir, user, limits and variables of the spec stay; the call may be repeated."""
    spec = subject.spec.model_copy(update={"env": {**subject.spec.env, "KIT": "kept"}})
    prepared = subject.make().prepare(spec, task_id=_TASK)
    expect_equal(prepared.workdir, spec.workdir, "the workdir")
    expect_equal(prepared.user, spec.user, "the user")
    expect_equal(prepared.limits, spec.limits, "the limits")
    expect_equal(prepared.env.get("KIT"), "kept", "a variable")
    expect_equal(subject.make().prepare(spec, task_id=_TASK), prepared, "a second call")


@promise()
async def query_shows_the_state_and_does_not_change_it(subject: EnvironmentSubject) -> None:
    """Two queries without a change between them are equal; a change shows."""
    async with subject.world() as (environment, sandbox):
        expect_equal(await environment.query(), await environment.query(), "a second query")
        await subject.changed(environment, sandbox)


def _lacks_state_snapshots(subject: EnvironmentSubject) -> str | None:
    """Return the reason if the state cannot be restored in place."""
    refuses = getattr(type(subject.make()), "snapshot", None) is BaseEnvironment.snapshot
    return "not claimed: the environment does not snapshot its state" if refuses else None


@promise(_lacks_state_snapshots)
async def restore_rolls_the_state_back(subject: EnvironmentSubject) -> None:
    """The state is as at the snapshot, however often it was changed and restored."""
    async with subject.world() as (environment, sandbox):
        before = await environment.query()
        snapshot = await environment.snapshot()
        expect_equal(await environment.query(), before, "the state after a snapshot")
        for _ in range(2):
            await subject.changed(environment, sandbox)
            await environment.restore(snapshot)
            expect_equal(await environment.query(), before, "the restored state")
        await subject.changed(environment, sandbox)


@promise(_lacks_state_snapshots)
async def snapshots_are_independent(subject: EnvironmentSubject) -> None:
    """A later snapshot does not replace an earlier one; either can be restored."""
    async with subject.world() as (environment, sandbox):
        first_state = await environment.query()
        first = await environment.snapshot()
        second_state = await subject.changed(environment, sandbox)
        second = await environment.snapshot()
        expect(first.id != second.id, "two snapshots have one id")
        for snapshot, state in ((first, first_state), (second, second_state)):
            await environment.restore(snapshot)
            expect_equal(await environment.query(), state, "the restored state")


@promise(_lacks_state_snapshots)
async def reset_returns_to_the_baseline(subject: EnvironmentSubject) -> None:
    """The state is as after `provision`, also when snapshots were taken since."""
    async with subject.world() as (environment, sandbox):
        baseline = await environment.query()
        await subject.changed(environment, sandbox)
        await environment.snapshot()
        await environment.reset()
        expect_equal(await environment.query(), baseline, "the state after reset")
        await subject.changed(environment, sandbox)


def _lacks_freeze(subject: EnvironmentSubject) -> str | None:
    return "capabilities: no freeze" if subject.capabilities.freeze == "none" else None


@promise(_lacks_freeze)
async def the_state_can_be_read_while_frozen(subject: EnvironmentSubject) -> None:
    """`query` works while the sandbox is frozen."""
    async with subject.world() as (environment, sandbox):
        before = await subject.changed(environment, sandbox)
        async with sandbox.freeze():
            expect_equal(await environment.query(), before, "the state under a freeze")
        await subject.changed(environment, sandbox)


@promise(_lacks_forks)
async def a_fork_has_the_state_of_its_parent(subject: EnvironmentSubject) -> None:
    """A world from a checkpoint continues from its state, independently of the parent."""
    async with subject.world() as (parent, sandbox):
        await subject.changed(parent, sandbox)
        if _lacks_state_snapshots(subject) is None:
            await parent.snapshot()
        at_fork = await parent.query()
        image = await sandbox.snapshot("filesystem")
        try:
            async with subject.world(image=image) as (child, inner):
                expect_equal(await child.query(), at_fork, "the child's state")
                await subject.changed(child, inner)
                expect_equal(await parent.query(), at_fork, "the parent's state")
        finally:
            await subject.provider.discard(image)


@promise()
async def a_ready_world_passes_its_check(subject: EnvironmentSubject) -> None:
    """`check` holds, also in a second call, and changes nothing."""
    async with subject.world() as (environment, _):
        before = await environment.query()
        await environment.check()
        await environment.check()
        expect_equal(await environment.query(), before, "the state after a check")


@promise()
async def a_check_refuses_another_state(subject: EnvironmentSubject) -> None:
    """`check` passes with the current state, and fails with the state before a change."""
    async with subject.world() as (environment, sandbox):
        before = await environment.query()
        await environment.check(before)
        changed = await subject.changed(environment, sandbox)
        await environment.check(changed)
        try:
            await environment.check(before)
        except SnapshotError:
            return
        raise AssertionError("check: an old state passed as the current state")


@promise()
async def reseed_may_be_called_with_any_seed(subject: EnvironmentSubject) -> None:
    """`reseed` works whether there is a hook or not; the world passes its check after it."""
    async with subject.world(seed=7) as (environment, _):
        for seed in (0, 2**31 - 1):
            await environment.reseed(seed)
        await environment.check()


@promise(_lacks_freeze)
async def a_quiesced_world_can_be_read_while_frozen(
    subject: EnvironmentSubject,
) -> None:
    """Within `quiesce` and a freeze, `query` is the state of that instant, repeatedly."""
    async with subject.world() as (environment, sandbox):
        before = await subject.changed(environment, sandbox)
        for _ in range(2):
            async with environment.quiesce(), sandbox.freeze():
                expect_equal(await environment.query(), before, "the quiesced state")
                expect_equal(await environment.query(), before, "a second reading")
        await subject.changed(environment, sandbox)
        await environment.check()


def _lacks_live(subject: EnvironmentSubject) -> str | None:
    levels = subject.capabilities.snapshot_levels
    return None if "live" in levels else "capabilities: no live snapshots"


async def _live_image(
    parent: Environment, sandbox: Sandbox
) -> tuple[Mapping[str, str], SandboxImage]:
    """Take a live snapshot of a quiesced world. Retry temporary failures."""
    for pause in _PAUSES_SEC:
        try:
            async with parent.quiesce(), sandbox.freeze():
                return await parent.live_services(), await sandbox.snapshot("live")
        except SnapshotError as error:
            if not error.retryable:
                raise
            await asyncio.sleep(pause)
    async with parent.quiesce(), sandbox.freeze():
        return await parent.live_services(), await sandbox.snapshot("live")


@promise(_lacks_live)
async def a_live_fork_continues_with_the_same_services(subject: EnvironmentSubject) -> None:
    """A live child attaches to its copies of the services, independently of the parent."""
    async with subject.world() as (parent, sandbox):
        at_fork = await subject.changed(parent, sandbox)
        carried, image = await _live_image(parent, sandbox)
        try:
            world = subject.world(image=image, carried=carried, state=at_fork)
            async with world as (child, inner):
                expect_equal(await child.query(), at_fork, "the child's state")
                async with child.quiesce():
                    expect_equal(
                        set(await child.live_services()), set(carried), "the child's services"
                    )
                await child.check()
                await subject.changed(child, inner)
                expect_equal(await parent.query(), at_fork, "the parent's state")
            await subject.changed(parent, sandbox)
        finally:
            await subject.provider.discard(image)


@promise()
async def worlds_are_isolated(subject: EnvironmentSubject) -> None:
    """A change in one sandbox's world does not show in another's."""
    async with subject.world() as (first, sandbox), subject.world() as (second, _):
        before = await second.query()
        await subject.changed(first, sandbox)
        expect_equal(await second.query(), before, "the other world's state")


@promise()
async def teardown_may_be_repeated(subject: EnvironmentSubject) -> None:
    """A second teardown does nothing, also without a provision before it."""
    await subject.make().teardown()
    async with subject.world() as (environment, _):
        await environment.teardown()
        await environment.teardown()


_CHECKS: tuple[EnvironmentCheck, ...] = (
    prepare_only_adds_to_the_spec,
    query_shows_the_state_and_does_not_change_it,
    restore_rolls_the_state_back,
    snapshots_are_independent,
    reset_returns_to_the_baseline,
    the_state_can_be_read_while_frozen,
    a_fork_has_the_state_of_its_parent,
    a_ready_world_passes_its_check,
    a_check_refuses_another_state,
    reseed_may_be_called_with_any_seed,
    a_quiesced_world_can_be_read_while_frozen,
    a_live_fork_continues_with_the_same_services,
    worlds_are_isolated,
    teardown_may_be_repeated,
)


def environment_checks() -> list[EnvironmentCheck]:
    """Return every check; `str(check)` is its name."""
    return list(_CHECKS)


async def check_environment(
    make: EnvironmentFactory,
    provider: SandboxProvider,
    mutate: Callable[[Sandbox], Awaitable[None]],
    *,
    spec: SandboxSpec | None = None,
    only: Sequence[str] | None = None,
    on_result: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Run the checks against the environments of `make`, which must declare state.

    `mutate` acts on the world as an agent would, from inside its sandbox, and changes
    the state anew at each call. `provider` stays open.

    Raises:
        UsageError: `only` names a check that does not exist.
    """
    capabilities = await provider.capabilities()
    subject = EnvironmentSubject(make, provider, capabilities, spec or SandboxSpec(), mutate)
    return await run_checks(_CHECKS, subject, only=only, on_result=on_result)
