"""The fakes beyond the contract: scripts, records and faults."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from benchflow_contracts import (
    AgentError,
    AgentTimeoutError,
    Answer,
    Door,
    Endpoint,
    Evidence,
    ExecResult,
    ProvisionContext,
    ReapPolicy,
    RewardError,
    Role,
    RolloutIdentity,
    RolloutNode,
    SandboxError,
    SandboxSpec,
    SandboxTimeoutError,
    SnapshotError,
)
from benchflow_testing.fakes import (
    Act,
    Crash,
    FakeAgent,
    FakeCall,
    FakeEnvironment,
    FakeReward,
    FakeSandbox,
    FakeSandboxProvider,
    FakeSession,
    FakeStreams,
    FakeUserModel,
    Hang,
    Pose,
    Say,
    Stop,
    ask_with_options,
)


async def sandbox_of(provider: FakeSandboxProvider) -> FakeSandbox:
    return await provider.create(SandboxSpec(network="model-only"))


def result(text: str, code: int = 0) -> ExecResult:
    return ExecResult(exit_code=code, stdout=text, stderr="", duration_sec=0)


def test_a_registered_handler_stands_for_its_commands_and_calls_are_recorded():
    async def slow(call: FakeCall) -> ExecResult:
        await asyncio.sleep(0)
        call.sandbox.files.put("/logs/reward.txt", "1")
        return result("graded", 3)

    async def main() -> None:
        provider = FakeSandboxProvider(files={"/etc/motd": "hello"})
        provider.on("bash /tests/test.sh", slow)
        box = await sandbox_of(provider)
        box.on("uname", lambda call: result(f"{call.user} {call.env['X']}"))
        assert (await box.exec(["uname", "-a"], user="root", env={"X": "1"})).stdout == "root 1"
        graded = await box.exec("bash /tests/test.sh --all", timeout=5)
        assert (graded.exit_code, box.files.read("/logs/reward.txt")) == (3, b"1")
        assert (await box.exec("cat /etc/motd")).stdout == "hello"
        assert [call.text for call in box.calls] == [
            "uname -a",
            "bash /tests/test.sh --all",
            "cat /etc/motd",
        ]
        assert box.calls[1].timeout == 5
        assert provider.operations == ["create", "exec", "exec", "exec"]

    asyncio.run(main())


def test_a_program_with_live_pipes_plays_an_agent_in_every_fork():
    async def shouting(call: FakeCall, streams: FakeStreams) -> int:
        while line := await streams.stdin.read():
            await streams.stdout.write(line.upper())
        await streams.stderr.write(b"bye")
        return 4

    async def main() -> None:
        provider = FakeSandboxProvider()
        provider.on_spawn("agent --acp", shouting)
        parent = await sandbox_of(provider)
        child = await provider.create(parent.spec, image=await parent.snapshot())
        for box in (parent, child):
            process = await box.spawn(["agent", "--acp"])
            await process.stdin.write(b"hello\n")
            assert await process.stdout.read_line() == b"HELLO\n"
            await process.stdin.aclose()
            assert await process.wait() == 4
            assert await process.stderr.read() == b"bye"
        assert (await parent.exec("agent --acp", stdin=b"x")).stdout == "X"

    asyncio.run(main())


def test_time_inside_can_be_the_tests_own():
    async def main() -> list[float]:
        asked: list[float] = []

        async def sleep(seconds: float) -> None:
            asked.append(seconds)

        box = await sandbox_of(FakeSandboxProvider(sleep=sleep))
        assert (await box.exec("sleep 86400; echo woken")).stdout == "woken\n"
        return asked

    assert asyncio.run(main()) == [86400.0]


def test_faults_strike_by_name_and_can_be_healed():
    async def main() -> None:
        provider = FakeSandboxProvider(fail_on={"create": SandboxError("no room")})
        with pytest.raises(SandboxError, match="no room"):
            await sandbox_of(provider)
        assert provider.created == []
        del provider.faults.fail_on["create"]
        box = await sandbox_of(provider)
        provider.faults.fail_on["snapshot"] = SnapshotError("disk full")
        with pytest.raises(SnapshotError, match="disk full"):
            await box.snapshot()
        assert len(provider.images) == 0
        provider.faults.hang_on.add("upload")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await box.upload(Path(__file__), "/x")

    asyncio.run(main())


def test_an_abandoned_sandbox_is_reaped_by_label():
    async def main() -> None:
        provider = FakeSandboxProvider()
        boxes = [
            await provider.create(SandboxSpec(), identity=RolloutIdentity(scope=name))
            for name in "ab"
        ]
        for box in boxes:
            provider.abandon(box)
        seen = {record.id: record.owner_alive async for record in provider.sandboxes()}
        assert seen == {boxes[0].id: False, boxes[1].id: False}
        dry = await provider.reap(ReapPolicy(scope="a", dry_run=True))
        assert [record.id for record in dry] == [boxes[0].id]
        assert len(provider.live) == 2
        await provider.reap(ReapPolicy(scope="a"))
        assert provider.live == [boxes[1]]

    asyncio.run(main())


def test_a_killed_leader_in_flight_ends_its_exec_and_unknown_syntax_is_loud():
    async def main() -> None:
        box = await sandbox_of(FakeSandboxProvider())
        loud = await box.exec("echo $(date)")
        assert loud.exit_code == 2
        assert "does not expand" in loud.stderr
        assert (await box.exec("for x in a; do echo; done")).exit_code != 0
        with pytest.raises(SandboxTimeoutError):
            await box.exec("sleep 60", timeout=0.01)

    asyncio.run(main())


@pytest.mark.parametrize(
    "text",
    [
        "false && echo a || echo b",
        "if test 1 = 2; then echo a; else echo b; fi",
        "mkdir d; (cd d; echo x > f); cat d/f; test -e f; echo $?",
        "A='x  y'; echo $A; echo \"$A\"; echo '$A'\"'\"\\$A",
        "A=1 sh -c 'echo [$A]'; echo [$A]",
        "export B=2; sh -c 'echo $B'; C=3; sh -c 'echo [$C]'",
        "echo one > f; echo two >> f; cat < f | wc -l",
        "no-such-program-here 2>/dev/null; echo $?",
        "printf '%s-%s\\n' a b c; printf '100%%\\n'",
        "echo a >&2; echo b # comment\necho c",
        "echo a 2>&1 >&2; echo 'it''s' \"a\\\"b\" c\\ d",
        "printf '#!/bin/sh\\necho $1\\n' > s; chmod +x s; ./s arg; sh s other",
        "test -e nothing; echo $?; test ! -e nothing; echo $?; [ a = a ]; echo $?",
        "n=x; while [ $n != xxxx ]; do n=x$n; echo $n; done",
        "(exit 3); echo $?; kill -9 $$; echo never",
        "true & wait; echo $?; rm -f no; rm no 2>/dev/null; echo $?",
        "ln -s f l; echo 1 > f; cat l; test -h l; echo $?; rm l; cat f; ls",
        "cd nowhere 2>/dev/null || echo refused; echo x > no/dir || echo no",
    ],
)
def test_the_fake_shell_works_like_sh(text, tmp_path):
    async def main() -> ExecResult:
        box = await sandbox_of(FakeSandboxProvider())
        return await box.exec(text)

    real = subprocess.run(
        ["sh", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    fake = asyncio.run(main())
    code = real.returncode if real.returncode >= 0 else 128 - real.returncode
    assert (fake.stdout, fake.exit_code) == (real.stdout, code)


async def fail(session: FakeSession) -> str:
    await session.sandbox.exec("true", cwd="/nowhere")
    return "unreachable"


async def write(session: FakeSession) -> str:
    said = session.answers[-1].selected["q1"][0] if session.answers else "nothing"
    await session.sandbox.exec(f"echo {said} > said")
    return (await session.sandbox.exec("cat said")).stdout


def test_a_scripted_turn_becomes_steps_that_break_at_tool_calls_and_asks():
    ask = ask_with_options("Which?", "red", "blue")
    turn = [
        Say("Looking.", reasoning="first look"),
        Act(write, title="write", kind="edit", raw_input={"path": "said"}),
        Say("Now I ask."),
        Pose(ask, then=lambda answer: [Act(write)] if answer.outcome == "answered" else []),
        Say("Done."),
        Stop("max_tokens"),
        Say("never said"),
    ]

    async def main() -> None:
        box = await sandbox_of(FakeSandboxProvider())
        session = await FakeAgent([turn]).connect(box, Role(name="solver", skills=("s",)))

        async def user(asked):
            return Answer.choose(asked, "blue")

        session.on_ask_user(user)
        assert await session.prompt("Go.") == "max_tokens"
        first, second, third, fourth = session.steps
        assert (first.prompt, first.message, first.reasoning) == ("Go.", "Looking.", "first look")
        assert first.observations[0].tool_call_id == first.tool_calls[0].id
        assert first.observations[0].content == "nothing\n"
        assert (second.message, second.ask, second.answer) == ("Now I ask.", ask, None)
        assert third.answer == Answer.choose(ask, "blue")
        assert third.observations[0].content == "blue\n"
        assert (fourth.message, fourth.stop_reason) == ("Done.", "max_tokens")
        assert {step.role for step in session.steps} == {"solver"}
        assert await session.prompt("More?") == "end_turn"

    asyncio.run(main())


def test_a_tool_that_breaks_in_the_sandbox_is_a_failed_observation():
    async def main() -> None:
        box = await sandbox_of(FakeSandboxProvider())
        session = await FakeAgent([[Act(fail)]]).connect(box, Role())
        await session.prompt("Go.")
        seen = session.steps[0].observations[0]
        assert seen.status == "failed"
        assert "/nowhere" in seen.content

    asyncio.run(main())


def test_a_crashed_or_silent_session_is_over():
    async def main() -> None:
        box = await sandbox_of(FakeSandboxProvider())
        agent = FakeAgent([[Say("a"), Crash(AgentError("it died"))]])
        session = await agent.connect(box, Role())
        with pytest.raises(AgentError, match="it died"):
            await session.prompt("Go.")
        with pytest.raises(AgentError, match="has ended"):
            await session.prompt("Again.")
        session = await FakeAgent([[Hang()]]).connect(box, Role(idle_timeout_sec=0.01))
        with pytest.raises(AgentTimeoutError, match="no update"):
            await session.prompt("Go.")

    asyncio.run(main())


def test_a_resumed_session_plays_the_next_turn_and_a_new_one_the_first():
    async def main() -> None:
        provider = FakeSandboxProvider()
        box = await sandbox_of(provider)
        agent = FakeAgent([[Say("one")], [Say("two")]])
        session = await agent.connect(box, Role())
        await session.prompt("1")
        snapshot = await session.snapshot()
        assert snapshot.steps == 1
        child = await provider.create(box.spec, image=await box.snapshot())
        assert json.loads(child.files.read(snapshot.files[0])) == {"turn": 1}
        resumed = await agent.connect(child, Role(), resume=snapshot)
        fresh = await agent.connect(child, Role())
        for live in (resumed, fresh):
            await live.prompt("next")
        assert [live.steps[0].message for live in (resumed, fresh)] == ["two", "one"]

    asyncio.run(main())


def test_an_environment_records_its_calls_and_breaks_on_demand():
    async def main() -> None:
        environment = FakeEnvironment({"t": [(1, "a")]}, fail_on={"reset": RuntimeError("stuck")})
        spec = environment.prepare(SandboxSpec(), task_id="task-1")
        assert spec.env == {"FAKE_WORLD_TASK": "task-1"}
        box = await FakeSandboxProvider().create(spec)
        await environment.provision(ProvisionContext(sandbox=box, task_id="task-1"))
        state = await environment.query()
        assert state.databases["/state"]["t"].rows == ((1, "a"),)
        with pytest.raises(RuntimeError, match="stuck"):
            await environment.reset()
        assert environment.log == ["prepare", "provision", "query", "reset"]

    asyncio.run(main())


def test_a_snapshot_of_the_environment_can_be_taken_in_a_frozen_sandbox():
    async def main() -> None:
        environment = FakeEnvironment({"t": []})
        box = await FakeSandboxProvider().create(environment.prepare(SandboxSpec(), task_id="t"))
        await environment.provision(ProvisionContext(sandbox=box, task_id="t"))
        async with box.freeze():
            snap = await environment.snapshot()
            image = await box.snapshot()
        assert snap.path in list(box.provider.images.open(image).files)

    asyncio.run(main())


def test_rewards_and_users_record_their_input():
    async def main() -> None:
        node = RolloutNode(id="n")
        reward = FakeReward(0.25, fail_on={"score": RewardError("broken")})
        with pytest.raises(RewardError):
            await reward.score(node, Evidence())
        reward.faults.fail_on.clear()
        assert (await reward.score(node, Evidence())).reward == 0.25
        assert reward.nodes == [node, node]
        user = FakeUserModel(nudges=["more"])
        ask = ask_with_options("Which?", "a", "b")
        assert await user.answer(ask, ()) == Answer.choose(ask, "a")
        free = ask_with_options("What?", allow_custom=True)
        assert (await user.answer(free, ())).text == {"q1": "as you like"}
        assert (await user.answer(ask_with_options("Closed?"), ())).outcome == "declined"
        assert [await user.nudge(()), await user.nudge(())] == ["more", None]

    asyncio.run(main())


def test_a_spec_with_a_model_endpoint_is_accepted():
    async def main() -> None:
        endpoint = Endpoint(url="http://127.0.0.1:1")
        await FakeSandboxProvider().create(
            SandboxSpec(network="model-only", doors=(Door.to(endpoint),))
        )

    asyncio.run(main())
