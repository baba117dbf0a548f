"""The fakes keep the promises of the contracts, and satisfy the Protocols by type."""

import asyncio
import itertools

import pytest
from benchflow_contracts import (
    Evidence,
    RolloutNode,
    Sandbox,
    Step,
    UsageError,
    VerifyResult,
)
from benchflow_testing import (
    AgentSubject,
    Check,
    CheckResult,
    SandboxCheck,
    adapter_checks,
    agent_checks,
    check_agent,
    check_environment,
    check_gateway,
    check_reward,
    check_sandbox,
    check_user_model,
    environment_checks,
    exporter_checks,
    gateway_checks,
    open_sandbox_subject,
    reward_checks,
    run_check,
    run_checks,
    sandbox_checks,
    user_model_checks,
)
from benchflow_testing.checks.host_agent_checks import HOST_AGENT_CHECKS
from benchflow_testing.checks.live_checks import LIVE_CHECKS
from benchflow_testing.checks.observed_checks import OBSERVED_CHECKS
from benchflow_testing.checks.pinned_checks import PINNED_CHECKS
from benchflow_testing.checks.recipe_checks import RECIPE_CHECKS
from benchflow_testing.checks.rollout_checks import ROLLOUT_CHECKS
from benchflow_testing.checks.saved_checks import SAVED_CHECKS
from benchflow_testing.checks.service_checks import SERVICE_CHECKS
from benchflow_testing.checks.session_state_checks import CAPTURE_CHECKS
from benchflow_testing.fakes import (
    FAKE_AGENT_CAPABILITIES,
    FAKE_WITHOUT_LIVE,
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
    *(str(check) for check in RECIPE_CHECKS if "refused_if_unsupported" not in check.name),
    *(str(check) for check in PINNED_CHECKS if "same_spec" not in check.name),
    *map(str, OBSERVED_CHECKS),
    *map(str, ROLLOUT_CHECKS),
    *(str(check) for check in SERVICE_CHECKS if "refused_if_unsupported" not in check.name),
    "only_allowed_hosts_are_reachable",
    "loopback_works_in_every_network",
    "the_model_answers_in_every_network_but_none",
    "a_public_network_has_a_route",
    "doors_must_differ_in_name_and_port",
    "two_doors_lead_to_two_upstreams",
    "attach_without_live_snapshots_is_refused",
    "an_unsupported_level_is_refused",
    "network_none_has_no_route",
    "allowed_hosts_change_with_the_network",
    "a_switch_closes_forbidden_connections",
    "a_route_exists_only_while_it_is_allowed",
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
            "a_session_without_snapshots_raises_an_error",
            "a_pending_ask_continues_in_each_child",
            "a_captured_ask_is_answered_once",
            "a_busy_session_is_not_captured",
            *map(str, HOST_AGENT_CHECKS),
        }
    )

    async def main() -> None:
        provider = FakeSandboxProvider()
        all_passed(
            await check_agent(AgentSubject(FakeAgent([turn, turn]), provider)), skipped=skipped
        )
        subject = AgentSubject(FakeAgent([asking]), provider, ask_prompt="Ask me.")
        only = [
            "an_ask_ends_a_step_and_its_answer_opens_the_next",
            "a_pending_ask_continues_in_each_child",
            "a_captured_ask_is_answered_once",
        ]
        all_passed(await check_agent(subject, only=only))
        subject = AgentSubject(FakeAgent([[Hang()]]), provider, endless_prompt="Wait.")
        only = [
            "cancel_ends_the_turn",
            "a_silent_agent_is_an_error",
            "a_busy_session_is_not_captured",
        ]
        all_passed(await check_agent(subject, only=only))
        await provider.aclose()

    asyncio.run(main())


def test_without_live_forks_exactly_their_checks_are_skipped_and_say_so():
    unproven = FAKE_AGENT_CAPABILITIES.model_copy(update={"proven": {}})

    async def main() -> tuple[list[CheckResult], list[list[CheckResult]]]:
        provider = FakeSandboxProvider(capabilities=FAKE_WITHOUT_LIVE)
        only = [check.name for check in (*LIVE_CHECKS, *SAVED_CHECKS)]
        boxes = await check_sandbox(provider, only=only)
        carries = [check.name for check in CAPTURE_CHECKS]
        agents = [
            FakeAgent([[Say("hello")]]),
            FakeAgent([[Say("hello")]], capabilities=unproven),
        ]
        asked = [
            AgentSubject(agent, provider, ask_prompt="ask", endless_prompt="wait")
            for agent in agents
        ]
        return boxes, [await check_agent(subject, only=carries) for subject in asked]

    boxes, sessions = asyncio.run(main())
    passed = {result.name for result in boxes if result.status == "passed"}
    assert passed == {
        "the_live_engine_is_named",
        "attach_without_live_snapshots_is_refused",
        "a_saved_snapshot_outlives_the_snapshot",
        "a_changed_saved_snapshot_is_refused",
        "a_missing_saved_snapshot_is_not_loaded",
        "an_unknown_snapshot_is_not_saved",
    }
    reasons = {result.reason for result in boxes if result.status != "passed"}
    assert reasons == {"capabilities: no live snapshots"}
    for results in sessions:
        assert {result.status for result in results} == {"skipped"}
        assert all(result.reason.startswith("not claimed: ") for result in results)


def test_the_fake_gateway_keeps_the_promises(gateway_subject):
    all_passed(asyncio.run(check_gateway(gateway_subject())))


def test_the_fake_environment_keeps_the_promises():
    numbers = itertools.count()

    async def mutate(sandbox: Sandbox) -> None:
        await FakeWorld(sandbox).insert("mail", (next(numbers), "new"))

    async def main() -> list[CheckResult]:
        tables = {"mail": [(0, "old")], "empty": []}
        provider = FakeSandboxProvider()
        return await check_environment(lambda: FakeEnvironment(tables), provider, mutate)

    all_passed(asyncio.run(main()))


@pytest.mark.parametrize("verdict", [0.5, lambda node, _: float(len(node.steps))])
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
    only = ["exec_reports_the_exit_code", "records_have_the_identity"]

    async def main() -> list[CheckResult]:
        provider = FakeSandboxProvider()
        results = await check_sandbox(
            provider, only=only, on_result=lambda result: seen.append(result.name)
        )
        with pytest.raises(UsageError, match="no_such_check"):
            await check_sandbox(provider, only=["no_such_check"])
        return results

    assert [result.name for result in asyncio.run(main())] == only == seen


def test_checks_run_at_once_and_the_last_one_runs_alone():
    seen: list[str] = []

    async def main() -> list[CheckResult]:
        barrier = asyncio.Barrier(2)

        def check(name: str) -> Check[None]:
            async def run(_subject: None) -> None:
                if name != "last":
                    await barrier.wait()
                seen.append(name)

            return Check(name, "", run, lambda _subject: None)

        checks = [check(name) for name in ("first", "second", "last")]
        return await run_checks(checks, None, at_once=2)

    results = asyncio.run(main())
    all_passed(results)
    assert [result.name for result in results] == ["first", "second", "last"]
    assert seen[-1] == "last"


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
    [
        adapter_checks,
        sandbox_checks,
        agent_checks,
        environment_checks,
        exporter_checks,
        gateway_checks,
        reward_checks,
        user_model_checks,
    ],
)
def test_every_check_has_a_name_of_its_own_and_states_its_promise(checks):
    names = [check.name for check in checks()]
    assert len(set(names)) == len(names)
    assert all(check.promise.endswith(".") for check in checks())


def test_an_unscored_verdict_of_the_fake_names_its_cause():
    result = asyncio.run(FakeReward(None).score(RolloutNode(id="n"), Evidence()))
    assert result == VerifyResult.unscored(result.error or "")
