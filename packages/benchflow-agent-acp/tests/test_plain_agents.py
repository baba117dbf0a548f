import pytest
from benchflow_agent_acp.builtin import nop, oracle
from benchflow_contracts import AgentError, Role


def solution(tmp_path, text):
    (tmp_path / "solution").mkdir(exist_ok=True)
    (tmp_path / "solution/solve.sh").write_text(text)


def test_nop_ends_each_turn_immediately_and_starts_nothing(in_sandbox):
    async def body(sandbox):
        session = await nop().connect(sandbox, Role(name="solver"))
        seen = []
        session.on_step(seen.append)
        assert await session.prompt("one") == "end_turn"
        assert await session.prompt("two") == "end_turn"
        snapshot = await session.snapshot()
        again = await nop().connect(sandbox, Role(), resume=snapshot)
        await again.prompt("three")
        await session.aclose()
        with pytest.raises(AgentError, match="has ended"):
            await session.prompt("four")
        assert sandbox.processes == []
        assert seen == session.steps
        return [*session.steps, *again.steps]

    steps = in_sandbox(body)
    assert [step.id for step in steps] == ["nop-1", "nop-2", "nop-3"]
    assert all(not step.tool_calls and step.stop_reason == "end_turn" for step in steps)


def test_the_oracle_runs_the_solution_once_as_a_tool_call(in_sandbox, tmp_path):
    solution(tmp_path, "echo solved | tee answer.txt; echo note >&2; echo again >> count")

    async def body(sandbox):
        session = await oracle().connect(sandbox, Role())
        await session.prompt("go")
        await session.prompt("nudge")
        await session.aclose()
        assert (sandbox.workspace / "answer.txt").read_text() == "solved\n"
        assert (sandbox.workspace / "count").read_text() == "again\n"
        return session.steps

    first, second = in_sandbox(body)
    assert first.tool_calls[0].kind == "execute"
    assert first.observations[0].status == "completed"
    assert first.observations[0].content == "solved\nnote\n"
    assert second.tool_calls == ()


def test_a_failing_solution_is_recorded_and_is_an_agent_error(in_sandbox, tmp_path):
    solution(tmp_path, "echo nearly; echo no such table >&2; exit 4")

    async def body(sandbox):
        session = await oracle().connect(sandbox, Role())
        with pytest.raises(AgentError, match=r"exit code 4.*no such table"):
            await session.prompt("go")
        return session.steps

    (step,) = in_sandbox(body)
    assert step.observations[0].raw_output == {"exit_code": 4}
    assert step.observations[0].status == "failed"


def test_a_task_without_a_solution_is_an_agent_error(in_sandbox):
    async def body(sandbox):
        with pytest.raises(AgentError, match="neither"):
            await oracle().connect(sandbox, Role())

    in_sandbox(body)


def test_a_solution_runs_by_the_command_of_its_task_and_may_fail(in_sandbox, tmp_path):
    (tmp_path / "logs/agent").mkdir(parents=True)
    solution(
        tmp_path, "#!/usr/bin/env python3\nimport os\nprint(os.environ['K'])\nraise SystemExit(3)\n"
    )

    async def body(sandbox):
        command = (
            "(/solution/solve.sh) > /logs/agent/oracle.txt; code=$?; cat /logs/agent/*; exit $code"
        )
        role = Role(env={"K": "v"}, solution_command=command, solution_may_fail=True)
        session = await oracle().connect(sandbox, role)
        assert await session.prompt("go") == "end_turn"
        return session.steps

    (step,) = in_sandbox(body)
    assert step.observations[0].content == "v\n"
    assert step.observations[0].raw_output == {"exit_code": 3}
    assert (tmp_path / "logs/agent/oracle.txt").read_text() == "v\n"
