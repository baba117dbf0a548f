"""The kits of Agent, Environment, Reward and User Model can fail."""

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from benchflow_contracts import (
    Answer,
    EnvironmentError_,
    EnvState,
    Evidence,
    RewardEvent,
    RolloutNode,
    SessionSnapshot,
    Step,
    VerifyResult,
)
from benchflow_testing import (
    AgentSubject,
    check_agent,
    check_environment,
    check_reward,
    check_user_model,
)
from benchflow_testing.fakes import (
    FAKE_AGENT_CAPABILITIES,
    FakeAgent,
    FakeEnvironment,
    FakeReward,
    FakeSandboxProvider,
    FakeSession,
    FakeUserModel,
    FakeWorld,
    Hang,
    Pose,
    Say,
    ask_with_options,
)


class TellsStepsTwice(FakeSession):
    def on_step(self, handler):
        super().on_step(handler)
        super().on_step(handler)


class LosesTheReason(FakeSession):
    async def prompt(self, text):
        await super().prompt(text)
        self._steps[-1] = self._steps[-1].model_copy(update={"stop_reason": None})
        return "end_turn"


class ForgetsTheAnswer(FakeSession):
    async def prompt(self, text):
        reason = await super().prompt(text)
        self._steps = [step.model_copy(update={"answer": None}) for step in self._steps]
        return reason


class AsksTwice(FakeSession):
    def on_ask_user(self, handler):
        async def twice(ask):
            await handler(ask)
            return await handler(ask)

        super().on_ask_user(twice)


class TellsStepsLate(FakeSession):
    def on_step(self, handler):
        self.late = handler

    async def prompt(self, text):
        reason = await super().prompt(text)
        for step in self.steps:
            self.late(step)
        return reason


class EndsTurnsOnCancel(FakeSession):
    async def prompt(self, text):
        await super().prompt(text)
        return "end_turn"


class PromptsAfterClose(FakeSession):
    def _check_usable(self):
        return


class CannotResume(FakeSession):
    async def snapshot(self):
        snapshot = await super().snapshot()
        return SessionSnapshot(agent="somebody else", session_id=snapshot.session_id, cwd="/")


class SharesSteps(FakeSession):
    steps: ClassVar[list[Step]] = []

    def _finish(self, *, ask=None, stop_reason=None):
        self.steps.append(self._draft.finished(ask, stop_reason))


TALK = [[Say("hello")], [Say("again")]]
ASKING = [[Pose(ask_with_options("Which?", "a", "b")), Say("thanks")]]
BROKEN_SESSIONS = [
    (TellsStepsTwice, TALK, "each_step_is_reported_once_and_in_order"),
    (LosesTheReason, TALK, "a_turn_writes_its_steps"),
    (SharesSteps, TALK, "sessions_are_isolated"),
    (ForgetsTheAnswer, ASKING, "an_ask_ends_a_step_and_its_answer_opens_the_next"),
    (AsksTwice, ASKING, "an_ask_ends_a_step_and_its_answer_opens_the_next"),
    (TellsStepsLate, ASKING, "an_ask_ends_a_step_and_its_answer_opens_the_next"),
    (EndsTurnsOnCancel, [[Hang()]], "cancel_ends_the_turn"),
    (PromptsAfterClose, TALK, "a_closed_session_takes_no_prompt"),
    (CannotResume, TALK, "a_session_resumes_from_its_snapshot"),
]


class AgentWith(FakeAgent):
    def __init__(self, kind, turns, **rest):
        super().__init__(turns, **rest)
        self.kind = kind

    async def connect(self, sandbox, role, *, resume=None, log_dir=None):
        return self.kind(
            self._turns, sandbox, role, agent=self.name, faults=self.faults, resume=resume
        )


@pytest.mark.parametrize(("kind", "turns", "name"), BROKEN_SESSIONS)
def test_a_broken_session_fails_the_check_of_its_promise(kind, turns, name):
    subject = AgentSubject(
        AgentWith(kind, turns), FakeSandboxProvider(), ask_prompt="ask", endless_prompt="wait"
    )
    (result,) = asyncio.run(check_agent(subject, only=[name]))
    assert result.status == "failed"


def test_an_agent_that_captures_a_session_without_the_capability_fails():
    capabilities = FAKE_AGENT_CAPABILITIES.model_copy(update={"session_snapshot": "none"})
    agent = FakeAgent(TALK, capabilities=capabilities)
    name = "a_session_without_snapshots_raises_an_error"
    (result,) = asyncio.run(check_agent(AgentSubject(agent, FakeSandboxProvider()), only=[name]))
    assert result.status == "failed"


class RestoresNothing(FakeEnvironment):
    async def restore(self, snap):
        return


class ResetsToTheLastSnapshot(FakeEnvironment):
    last = None

    async def snapshot(self):
        self.last = await super().snapshot()
        return self.last

    async def reset(self):
        await self.restore(self.last)


class KeepsOneSnapshot(FakeEnvironment):
    async def snapshot(self):
        snap = await super().snapshot()
        await self.world.write(await self.world.read(), "only")
        return snap.model_copy(update={"path": f"{self.world.home}/only"})

    async def restore(self, snap):
        await self.world.write(await self.world.read("only"))


class QueryWrites(FakeEnvironment):
    async def query(self):
        await self.world.insert("log", ("queried",))
        return await super().query()


class QueryShowsNothing(FakeEnvironment):
    async def query(self):
        return EnvState()


class AsksInside(FakeEnvironment):
    async def provision(self, ctx):
        self.box = ctx.sandbox
        return await super().provision(ctx)

    async def query(self):
        await self.box.exec("true")
        return await super().query()


class SeedsAgain(FakeEnvironment):
    async def provision(self, ctx):
        return await super().provision(type(ctx)(sandbox=ctx.sandbox, task_id=ctx.task_id))


class DropsVariables(FakeEnvironment):
    def prepare(self, spec, *, task_id):
        return spec.model_copy(update={"env": {}})


class LivesOutside(FakeEnvironment):
    tables: ClassVar[dict[str, int]] = {"n": 0}

    async def query(self):
        self.tables["n"] += 1
        return EnvState(files={"n": str(self.tables["n"] // 3)})


class CheckWrites(FakeEnvironment):
    async def check(self, expected=None):
        await self.world.insert("log", ("checked",))


class BelievesAnything(FakeEnvironment):
    async def check(self, expected=None):
        await super().check()


class ReseedsOnce(FakeEnvironment):
    async def reseed(self, seed):
        if "reseed" in self.log:
            raise EnvironmentError_("seeded already")
        await super().reseed(seed)


class NeverResumes(FakeEnvironment):
    held = False

    @asynccontextmanager
    async def quiesce(self):
        self.held = True
        yield

    async def check(self, expected=None):
        if self.held:
            raise EnvironmentError_("still held")


class TearsDownOnce(FakeEnvironment):
    async def teardown(self):
        if "teardown" in self.log:
            raise RuntimeError("again")
        await super().teardown()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (RestoresNothing, "restore_rolls_the_state_back"),
        (ResetsToTheLastSnapshot, "reset_returns_to_the_baseline"),
        (KeepsOneSnapshot, "snapshots_are_independent"),
        (QueryWrites, "query_shows_the_state_and_does_not_change_it"),
        (QueryShowsNothing, "query_shows_the_state_and_does_not_change_it"),
        (AsksInside, "the_state_can_be_read_while_frozen"),
        (SeedsAgain, "a_fork_has_the_state_of_its_parent"),
        (DropsVariables, "prepare_only_adds_to_the_spec"),
        (LivesOutside, "worlds_are_isolated"),
        (CheckWrites, "a_ready_world_passes_its_check"),
        (BelievesAnything, "a_check_refuses_another_state"),
        (ReseedsOnce, "reseed_may_be_called_with_any_seed"),
        (NeverResumes, "a_quiesced_world_can_be_read_while_frozen"),
        (TearsDownOnce, "teardown_may_be_repeated"),
    ],
)
def test_a_broken_environment_fails_the_check_of_its_promise(kind, name):
    numbers = itertools.count()

    async def mutate(sandbox):
        await FakeWorld(sandbox).insert("mail", (next(numbers),))

    (result,) = asyncio.run(
        check_environment(lambda: kind({"mail": []}), FakeSandboxProvider(), mutate, only=[name])
    )
    assert result.status == "failed"


def node() -> RolloutNode:
    root = RolloutNode(id="root")
    return RolloutNode(id="leaf", parent=root, step=Step(id="s1", started_at=0, finished_at=1))


def writes_the_result(node: RolloutNode, _evidence: Evidence) -> float:
    node.results["reward"] = VerifyResult(reward=1.0)
    return 1.0


def points_elsewhere(node: RolloutNode, _evidence: Evidence) -> VerifyResult:
    event = RewardEvent(source="x", value=1.0, granularity="step", step_id="of another tree")
    return VerifyResult(reward=1.0, events=(event,))


def scores_infinity(node: RolloutNode, _evidence: Evidence) -> VerifyResult:
    return VerifyResult.model_construct(reward=float("inf"), items={}, events=())


def scores_nothing_silently(node: RolloutNode, _evidence: Evidence) -> VerifyResult:
    return VerifyResult.model_construct(reward=None, error=None, items={}, events=())


def takes_a_world_for_granted(_node: RolloutNode, evidence: Evidence) -> float:
    return float(bool(evidence.world.sandbox))


def is_never_able_to_score(_node: RolloutNode, evidence: Evidence) -> float:
    evidence.require_world("reward")
    return 1.0


@pytest.mark.parametrize(
    ("verdict", "name"),
    [
        (takes_a_world_for_granted, "missing_evidence_is_an_error_of_its_own_type"),
        (is_never_able_to_score, "a_reward_scores_the_nodes_that_it_is_made_for"),
        (None, "a_reward_scores_the_nodes_that_it_is_made_for"),
        (writes_the_result, "scoring_does_not_change_the_tree"),
        (points_elsewhere, "events_point_to_steps_of_the_path"),
        (scores_infinity, "a_verdict_has_a_reward_or_a_cause"),
        (scores_nothing_silently, "a_verdict_has_a_reward_or_a_cause"),
    ],
)
def test_a_broken_reward_fails_the_check_of_its_promise(verdict, name):
    (result,) = asyncio.run(check_reward(FakeReward(verdict), node, only=[name]))
    assert result.status == "failed"


def test_a_reward_that_scores_only_once_fails():
    left = [1.0]
    reward = FakeReward(lambda node, _: left.pop() if left else None)
    only = ["a_reward_scores_more_than_one_node"]
    (result,) = asyncio.run(check_reward(reward, node, only=only))
    assert result.status == "failed"


def test_a_reward_without_a_name_fails():
    reward = FakeReward(1.0, name="")
    (result,) = asyncio.run(
        check_reward(reward, node, only=["the_name_of_a_reward_does_not_change"])
    )
    assert result.status == "failed"


@pytest.mark.parametrize(
    "rule",
    [
        lambda ask: Answer(selected={ask.questions[0].id: ("never offered",)}),
        lambda ask: Answer(selected={"never asked": ()}),
        lambda ask: Answer(selected={q.id: tuple(o.id for o in q.options) for q in ask.questions}),
        lambda ask: Answer(text={ask.questions[0].id: "free text"}),
        lambda ask: Answer(outcome="declined", text={ask.questions[0].id: "no"}),
    ],
)
def test_an_answer_that_does_not_fit_fails(rule):
    only = ["an_answer_fits_its_ask"]
    (result,) = asyncio.run(check_user_model(lambda: FakeUserModel(rule), only=only))
    assert result.status == "failed"


def test_a_user_that_nudges_for_ever_or_with_nothing_fails():
    only = ["nudges_come_to_an_end"]
    for nudges in (["go on"] * 5000, [" "]):
        made = lambda nudges=nudges: FakeUserModel(nudges=nudges)  # noqa: E731
        (result,) = asyncio.run(check_user_model(made, only=only))
        assert result.status == "failed"


def test_a_user_that_cannot_be_closed_twice_fails():
    class ClosesOnce(FakeUserModel):
        async def aclose(self):
            assert not self.closed
            await super().aclose()

    (result,) = asyncio.run(check_user_model(ClosesOnce, only=["closing_may_be_repeated"]))
    assert result.status == "failed"
