"""The fakes keep the promises of the contracts, and satisfy the Protocols by type."""

import asyncio
import itertools

import pytest
from benchflow_contracts import (
    RolloutNode,
    Sandbox,
    Step,
    UsageError,
    VerifyResult,
)
from benchflow_contracts.testing import (
    AgentSubject,
    CheckResult,
    SandboxCheck,
    agent_checks,
    check_agent,
    check_environment,
    check_reward,
    check_sandbox,
    check_user_model,
    environment_checks,
    open_sandbox_subject,
    reward_checks,
    run_check,
    sandbox_checks,
    user_model_checks,
)
from benchflow_contracts.testing.fakes import (
    Act,
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

# What a fake cannot do, and its capabilities say so or its world has no program for it.
HONEST_SKIPS = {
    "an_unsupported_level_is_refused",
    "no_network_means_no_route",
    "an_exposed_port_reaches_the_server_inside",
    "the_process_cap_holds",
    "the_memory_cap_holds",
    "the_disk_cap_holds",
}


def all_passed(results: list[CheckResult], *, skipped: frozenset[str] = frozenset()) -> None:
    assert {r.name: r.reason for r in results if r.status == "failed"} == {}
    assert {r.name for r in results if r.status == "skipped"} == skipped


@pytest.mark.parametrize("check", sandbox_checks(), ids=str)
def test_the_fake_sandbox_keeps_the_promise(check: SandboxCheck):
    async def main() -> CheckResult:
        async with open_sandbox_subject(FakeSandboxProvider()) as subject:
            return await run_check(check, subject)

    result = asyncio.run(main())
    result.raise_if_failed()
    assert (result.status == "skipped") == (check.name in HONEST_SKIPS)


async def look(session: FakeSession) -> str:
    return (await session.sandbox.exec("echo seen")).stdout


def test_the_fake_agent_keeps_the_promises():
    turn = [Say("I look.", reasoning="why not"), Act(look), Say("Done.")]
    asking = [Say("One thing."), Pose(ask_with_options("Which?", "a", "b")), Say("Thanks.")]
    skipped = frozenset(
        {
            "an_ask_ends_a_step_and_its_answer_opens_the_next",
            "cancel_ends_the_turn",
            "a_silent_agent_is_an_error",
            "a_session_that_cannot_be_carried_says_so",
        }
    )

    async def main() -> None:
        provider = FakeSandboxProvider()
        all_passed(
            await check_agent(AgentSubject(FakeAgent([turn, turn]), provider)), skipped=skipped
        )
        subject = AgentSubject(FakeAgent([asking]), provider, ask_prompt="Ask me.")
        all_passed(await check_agent(subject, only=[str(agent_checks()[4])]))
        subject = AgentSubject(FakeAgent([[Hang()]]), provider, endless_prompt="Wait.")
        only = ["cancel_ends_the_turn", "a_silent_agent_is_an_error"]
        all_passed(await check_agent(subject, only=only))
        await provider.aclose()

    asyncio.run(main())


def test_the_fake_environment_keeps_the_promises():
    numbers = itertools.count()

    async def mutate(sandbox: Sandbox) -> None:
        await FakeWorld(sandbox).insert("mail", (next(numbers), "new"))

    async def main() -> list[CheckResult]:
        tables = {"mail": [(0, "old")], "empty": []}
        provider = FakeSandboxProvider()
        return await check_environment(lambda: FakeEnvironment(tables), provider, mutate)

    all_passed(asyncio.run(main()))


@pytest.mark.parametrize("verdict", [0.5, None, lambda node: float(len(node.steps))])
def test_the_fake_reward_keeps_the_promises(verdict):
    def node() -> RolloutNode:
        root = RolloutNode(id="root")
        step = Step(id="s1", started_at=0, finished_at=1)
        root.children.append(RolloutNode(id="leaf", parent=root, step=step))
        return root.children[0]

    all_passed(asyncio.run(check_reward(FakeReward(verdict), node)))


def test_the_fake_user_keeps_the_promises():
    results = asyncio.run(check_user_model(lambda: FakeUserModel(nudges=["go on", "and on"])))
    all_passed(results)


def test_the_kit_tells_results_in_order_and_refuses_unknown_names():
    seen: list[str] = []
    only = ["exec_reports_the_exit_code", "labels_show_in_the_records"]

    async def main() -> list[CheckResult]:
        provider = FakeSandboxProvider()
        results = await check_sandbox(
            provider, only=only, on_result=lambda result: seen.append(result.name)
        )
        with pytest.raises(UsageError, match="no_such_check"):
            await check_sandbox(provider, only=["no_such_check"])
        return results

    assert [result.name for result in asyncio.run(main())] == only == seen


def test_the_whole_kit_leaves_no_sandbox_and_no_snapshot():
    async def main() -> FakeSandboxProvider:
        provider = FakeSandboxProvider()
        wanted = [
            name for name in map(str, sandbox_checks()) if "restore" in name or "child" in name
        ]
        all_passed(await check_sandbox(provider, only=wanted))
        return provider

    provider = asyncio.run(main())
    assert provider.live == []
    assert len(provider.images) == 0
    assert provider.operations.count("create") > 10


@pytest.mark.parametrize(
    "checks",
    [sandbox_checks, agent_checks, environment_checks, reward_checks, user_model_checks],
)
def test_every_check_has_a_name_of_its_own_and_states_its_promise(checks):
    names = [check.name for check in checks()]
    assert len(set(names)) == len(names)
    assert all(check.promise.endswith(".") for check in checks())


def test_an_unscored_verdict_of_the_fake_names_its_cause():
    result = asyncio.run(FakeReward(None).score(RolloutNode(id="n")))
    assert result == VerifyResult.unscored(result.error or "")
