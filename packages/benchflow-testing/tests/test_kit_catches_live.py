"""The kit catches a broken live fork: of a sandbox, of a session, and of a model line."""

import asyncio
import shutil

import pytest
from benchflow_contracts import (
    AgentError,
    Answer,
    Endpoint,
    SandboxError,
    SandboxSpec,
    SandboxUnsupportedError,
    SnapshotError,
)
from benchflow_testing import (
    AgentSubject,
    check_agent,
    check_gateway,
    check_sandbox,
)
from benchflow_testing.checks import live_checks
from benchflow_testing.fakes import (
    FAKE_CAPABILITIES,
    FAKE_WITHOUT_LIVE,
    FakeAgent,
    FakeMachine,
    FakeModelGateway,
    FakeModelRoute,
    FakeSandbox,
    FakeSandboxProvider,
    FakeSession,
    Hang,
    Pose,
    Say,
    ask_with_options,
)
from benchflow_testing.fakes.shell import Level


@pytest.fixture(autouse=True)
def _impatient(impatient, monkeypatch):
    monkeypatch.setattr(live_checks, "STILL_SEC", 0.1)


def broken_images(change):
    """Return a provider class whose images are opened as `change(sealed)` says."""

    class Broken(FakeSandboxProvider):
        def __init__(self, **rest):
            super().__init__(**rest)
            self.images.open = lambda image: change(self.images._sealed[image.ref])

    return Broken


def files_only(sealed):
    return FakeMachine(sealed.files.copy())


def started_anew(sealed):
    machine = sealed.copy()
    for group in machine.groups:
        for member in group._members:
            body = getattr(member.program, "program", member.program)
            body.level = Level()
            body.shell.variables.clear()
    return machine


def without_unread_output(sealed):
    machine = sealed.copy()
    for process in machine.processes.values():
        process.stdout._buffer.clear()
    return machine


def with_other_ids(sealed):
    machine = sealed.copy()
    machine.processes = {f"{key}-copy": process for key, process in machine.processes.items()}
    return machine


def the_image_itself(sealed):
    return sealed


class SealsLate(FakeSandboxProvider):
    """A live snapshot is what its sandbox has become when a child is made."""

    def __init__(self, **rest):
        super().__init__(**rest)
        seal = self.images.seal

        def late(machine, provider, level):
            image = seal(machine, provider, level)
            self.images._sealed[image.ref] = machine
            return image

        self.images.seal = late


class ReadsAfterTheSnapshot(FakeSandbox):
    async def snapshot(self, level="filesystem", *, while_frozen=None):
        image = await super().snapshot(level)
        if while_frozen is not None:
            await while_frozen()
        return image


class EndsWithTheParent(FakeSandbox):
    async def snapshot(self, level="filesystem"):
        image = await super().snapshot(level)
        await self.machine.halt()
        return image


class AttachesTwice(FakeSandbox):
    async def attach(self, process_id):
        held = await super().attach(process_id)
        self._carried[process_id] = held
        return held


class AttachesToItsOwn(FakeSandbox):
    async def attach(self, process_id):
        try:
            return await super().attach(process_id)
        except SandboxError:
            return self.machine.processes.get(process_id) or await self.spawn("cat")


class AttachFailsPlainly(FakeSandbox):
    async def attach(self, process_id):
        raise SandboxError("no")


class ForksOnce(FakeSandboxProvider):
    async def create(self, spec, *, image=None, identity=None):
        box = await super().create(spec, image=image, identity=identity)
        if image is not None:

            async def refuse(level="filesystem"):
                raise SnapshotError("a child cannot be forked")

            box.snapshot = refuse
        return box


class OneAtATime(FakeSandboxProvider):
    busy = False

    async def create(self, spec, **rest):
        if self.busy:
            raise SandboxError("busy")
        self.busy = True
        try:
            await asyncio.sleep(0)
            return await super().create(spec, **rest)
        finally:
            self.busy = False


class KeepsDiscarded(FakeSandboxProvider):
    async def discard(self, image):
        return


class SavesAReference(FakeSandboxProvider):
    kept = None

    async def save(self, image, to):
        to.mkdir()
        (to / "image").write_text(image.model_dump_json())
        self.kept = image

    async def load(self, saved):
        return self.kept


class SavesFilesOnly(FakeSandboxProvider):
    async def load(self, saved):
        loaded = await super().load(saved)
        self.images._sealed[loaded.ref] = files_only(self.images._sealed[loaded.ref])
        return loaded


class LoadsAnything(FakeSandboxProvider):
    async def load(self, saved):
        try:
            return await super().load(saved)
        except SnapshotError:
            return self.images.add(FakeMachine(self.created[0].files), self.name, "filesystem")


class SavesAnything(FakeSandboxProvider):
    async def save(self, image, to):
        to.mkdir()
        shutil.rmtree(to)
        try:
            await super().save(image, to)
        except SnapshotError:
            to.mkdir()
            raise


NAMELESS = FAKE_CAPABILITIES.model_copy(update={"live_engine": None})
BOASTFUL = FAKE_WITHOUT_LIVE.model_copy(update={"live_engine": "criu"})
BROKEN = [
    (FakeSandboxProvider(capabilities=NAMELESS), "the_live_engine_is_named"),
    (FakeSandboxProvider(capabilities=BOASTFUL), "the_live_engine_is_named"),
    (broken_images(files_only)(), "a_live_snapshot_copies_the_processes"),
    (broken_images(started_anew)(), "a_live_child_has_the_memory_of_its_parent"),
    (SealsLate(), "a_live_snapshot_has_the_state_of_the_freeze"),
    (
        FakeSandboxProvider(sandbox_type=ReadsAfterTheSnapshot),
        "a_live_snapshot_has_the_state_that_while_frozen_reads",
    ),
    (FakeSandboxProvider(sandbox_type=EndsWithTheParent), "the_parent_keeps_its_processes"),
    (broken_images(with_other_ids)(), "attach_returns_the_process_of_the_child"),
    (broken_images(the_image_itself)(), "attach_returns_the_process_of_the_child"),
    (broken_images(without_unread_output)(), "unread_output_comes_first_in_every_child"),
    (
        FakeSandboxProvider(sandbox_type=AttachesTwice),
        "attach_refuses_unknown_and_attached_processes",
    ),
    (
        FakeSandboxProvider(sandbox_type=AttachesToItsOwn),
        "attach_refuses_unknown_and_attached_processes",
    ),
    (
        FakeSandboxProvider(sandbox_type=AttachFailsPlainly, capabilities=FAKE_WITHOUT_LIVE),
        "attach_without_live_snapshots_is_refused",
    ),
    (broken_images(the_image_itself)(), "live_children_are_isolated"),
    (OneAtATime(), "many_live_children_start_at_once"),
    (ForksOnce(), "a_live_child_can_be_forked_again"),
    (KeepsDiscarded(), "children_survive_the_discard_of_a_live_snapshot"),
    (SavesAReference(), "a_saved_snapshot_outlives_the_snapshot"),
    (SavesFilesOnly(), "a_saved_live_snapshot_continues"),
    (LoadsAnything(), "a_changed_saved_snapshot_is_refused"),
    (LoadsAnything(), "a_missing_saved_snapshot_is_not_loaded"),
    (SavesAnything(), "an_unknown_snapshot_is_not_saved"),
]


@pytest.mark.parametrize(("provider", "name"), BROKEN)
def test_a_broken_live_fork_fails_the_check_of_its_promise(provider, name):
    async def main() -> str:
        await provider.create(SandboxSpec())
        (result,) = await check_sandbox(provider, only=[name])
        for sandbox in provider.created:
            await sandbox.machine.halt()
        return result.status

    assert asyncio.run(main()) == "failed"


def test_a_provider_that_does_not_save_snapshots_is_skipped_with_a_reason():
    class SavesNothing(FakeSandboxProvider):
        async def save(self, image, to):
            raise SandboxUnsupportedError("nothing is saved")

    only = ["a_saved_snapshot_outlives_the_snapshot", "a_changed_saved_snapshot_is_refused"]
    results = asyncio.run(check_sandbox(SavesNothing(), only=only))
    assert {(r.status, r.reason) for r in results} == {
        ("skipped", "not claimed: the provider does not save snapshots")
    }


class ForgetsSteps(FakeSession):
    def continue_from(self, carry):
        super().continue_from(carry.model_copy(update={"steps": ()}))


class CarriesObjects(FakeSession):
    async def capture(self):
        carry = await super().capture()
        return carry.model_copy(update={"data": {**carry.data, "prompts": (object(),)}})


class ForgetsTheAsk(FakeSession):
    async def capture(self):
        return (await super().capture()).model_copy(update={"ask": None})


class AnswersForEverybody(FakeSession):
    first: Answer | None = None

    async def answer(self, answer):
        kind = type(self)
        kind.first = kind.first or answer
        return await super().answer(kind.first)


class ProceedsAgain(FakeSession):
    async def answer(self, answer):
        try:
            return await super().answer(answer)
        except RuntimeError:
            return "end_turn"


class CarriesAtAnyTime(FakeSession):
    async def capture(self):
        scope, self._scope = self._scope, None
        try:
            return await super().capture()
        finally:
            self._scope = scope


class GivesUpForGood(FakeSession):
    async def capture(self):
        try:
            return await super().capture()
        except SnapshotError as error:
            raise SnapshotError(str(error)) from error


class AttachesAnything(FakeAgent):
    async def attach(self, sandbox, role, carry, *, log_dir=None):
        own = carry.model_copy(update={"agent": self.name})
        try:
            return await super().attach(sandbox, role, own)
        except AgentError:
            return await self.connect(sandbox, role)


TALK = [[Say("hello")], [Say("again")]]
ASKING = [[Pose(ask_with_options("Which?", "a", "b")), Say("thanks")]]
BROKEN_SESSIONS = [
    (ForgetsSteps, TALK, "a_session_is_captured_at_a_turn_boundary"),
    (CarriesObjects, TALK, "a_session_state_is_json"),
    (ForgetsTheAsk, ASKING, "a_pending_ask_continues_in_each_child"),
    (AnswersForEverybody, ASKING, "a_pending_ask_continues_in_each_child"),
    (ProceedsAgain, ASKING, "a_captured_ask_is_answered_once"),
    (ProceedsAgain, TALK, "answer_without_a_restored_ask_is_refused"),
    (CarriesAtAnyTime, [[Hang()]], "a_busy_session_is_not_captured"),
    (GivesUpForGood, [[Hang()]], "a_busy_session_is_not_captured"),
]


@pytest.mark.parametrize(("kind", "turns", "name"), BROKEN_SESSIONS)
def test_a_broken_carry_fails_the_check_of_its_promise(kind, turns, name):
    agent = FakeAgent(turns, session_type=kind)
    subject = AgentSubject(agent, FakeSandboxProvider(), ask_prompt="ask", endless_prompt="wait")
    (result,) = asyncio.run(check_agent(subject, only=[name]))
    assert result.status == "failed"


def test_an_agent_that_attaches_to_anything_fails():
    subject = AgentSubject(AttachesAnything(TALK), FakeSandboxProvider())
    only = ["attach_refuses_the_state_of_another_agent"]
    (result,) = asyncio.run(check_agent(subject, only=only))
    assert result.status == "failed"


def gateway_with(**methods):
    """Return a gateway class whose lines have these methods instead."""
    line_type = type("BrokenLine", (FakeModelRoute,), methods)

    class Broken(FakeModelGateway):
        async def open(self, rollout_id, node, **rest):
            line = await super().open(rollout_id, node, **rest)
            line.__class__ = line_type
            return line

    return Broken


class SharesCalls(FakeModelGateway):
    async def open(self, rollout_id, node, **rest):
        line = await super().open(rollout_id, node, **rest)
        line._calls = self.lines[0]._calls
        return line


class ForgetsReplay(FakeModelGateway):
    async def open(self, rollout_id, node, *, replay=(), **rest):
        return await super().open(rollout_id, node, **rest)


class ForgetsBudgets(FakeModelGateway):
    async def open(self, rollout_id, node, *, budget=None, **rest):
        return await super().open(rollout_id, node, **rest)


class ShowsSecrets(FakeModelGateway):
    async def open(self, rollout_id, node, *, upstream, **rest):
        line = await super().open(rollout_id, node, upstream=upstream, **rest)
        line._endpoint = Endpoint(url=line.endpoint.url, headers=upstream.headers)
        return line


async def quiet_at_once(self, timeout):
    return True


async def swaps_nothing(self, upstream):
    return


async def closes_nothing(self):
    return


BROKEN_GATEWAYS = [
    (gateway_with(calls=lambda self: list(reversed(self._calls))), "every_call_is_recorded"),
    (SharesCalls, "routes_are_separate"),
    (ForgetsReplay, "recorded_calls_are_replayed"),
    (ForgetsReplay, "a_diverging_call_is_refused"),
    (ForgetsBudgets, "calls_beyond_the_budget_are_refused"),
    (gateway_with(quiesce=quiet_at_once), "quiesce_waits_for_calls_in_flight"),
    (gateway_with(swap=swaps_nothing), "a_swap_sends_later_calls_to_the_new_upstream"),
    (gateway_with(aclose=closes_nothing), "a_closed_route_keeps_its_record"),
    (ShowsSecrets, "credentials_are_not_recorded"),
]


@pytest.mark.parametrize(("kind", "name"), BROKEN_GATEWAYS)
def test_a_broken_gateway_fails_the_check_of_its_promise(kind, name, gateway_subject):
    (result,) = asyncio.run(check_gateway(gateway_subject(kind), only=[name]))
    assert result.status == "failed"
