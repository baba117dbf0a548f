import asyncio
import json
import runpy
from importlib.resources import files

import pytest
from benchflow_agent_acp.builtin import oracle, scripted
from benchflow_agent_acp.logs import read_wire_log
from benchflow_agent_acp.steps import steps_from_wire
from benchflow_contracts import AgentError, AgentTimeoutError, Answer, Role

ASKING = """
[[turn]]
[[turn.do]]
think = "Which day?"
[[turn.do]]
run = "echo looking"
[[turn.do]]
ask = "Which day shall I book?"
id = "day"
options = [{ id = "mon", label = "Monday" }, { id = "tue", label = "Tuesday" }]
[[turn.do]]
when = { day = "mon" }
run = "echo monday > booking.txt"
[[turn.do]]
when = { day = "tue" }
write = "booking.txt"
text = "tuesday\\n"
[[turn.do]]
say = "Done."
[[turn]]
[[turn.do]]
when = { day = "tue" }
say = "It is still Tuesday."
"""


def role_with(tmp_path, script, **fields):
    path = tmp_path / "script.toml"
    path.write_text(script)
    return Role(name="solver", env={"BENCHFLOW_SCRIPT": str(path)}, **fields)


async def choose_tuesday(ask):
    return Answer.choose(ask, "tue")


@pytest.mark.parametrize(("text", "why"), [(None, "No such file"), ("[[turn", "Expected")])
def test_an_unreadable_script_is_reported_with_its_path_and_a_remedy(
    in_sandbox, tmp_path, text, why
):
    path = tmp_path / "script.toml"
    if text is not None:
        path.write_text(text)
    role = Role(name="solver", env={"BENCHFLOW_SCRIPT": str(path)})

    async def body(sandbox):
        session = await scripted().connect(sandbox, role, log_dir=tmp_path / "log")
        with pytest.raises(AgentError, match="cannot read the script") as failed:
            await session.prompt("Book a day.")
        await session.aclose()
        return str(failed.value)

    told = in_sandbox(body)
    assert str(path) in told
    assert why in told
    assert "BENCHFLOW_SCRIPT" in told


def test_a_script_acts_asks_and_continues_with_the_answer(in_sandbox, tmp_path):
    role = role_with(tmp_path, ASKING)
    log_dir = tmp_path / "log"

    async def body(sandbox):
        session = await scripted().connect(sandbox, role, log_dir=log_dir)
        seen = []
        session.on_ask_user(choose_tuesday)
        session.on_step(seen.append)
        assert await session.prompt("Book a day.") == "end_turn"
        assert seen == session.steps
        await session.aclose()
        assert all(process.group_is_dead for process in sandbox.processes)
        assert (sandbox.workspace / "booking.txt").read_text() == "tuesday\n"
        return session

    session = in_sandbox(body)
    first, second, third = session.steps
    assert first.prompt == "Book a day."
    assert first.reasoning == "Which day?"
    assert [call.title for call in first.tool_calls] == ["echo looking"]
    assert first.observations[0].content == "looking\n"
    assert first.ask is not None
    assert first.ask.branchable
    assert first.ask.kind == "question"
    assert second.answer == Answer(selected={"day": ("tue",)})
    assert second.tool_calls[0].name == "write"
    assert second.observations[0].raw_output == {
        "diffs": [
            {
                "path": str(tmp_path / "workspace/booking.txt"),
                "old_text": None,
                "new_text": "tuesday\n",
            }
        ]
    }
    assert third.message == "Done."
    assert third.stop_reason == "end_turn"
    assert {step.role for step in session.steps} == {"solver"}
    records = read_wire_log(log_dir / "acp_wire.jsonl")
    assert steps_from_wire(records, role="solver") == session.steps


def test_a_killed_session_resumes_in_a_new_process_with_the_next_turn(in_sandbox, tmp_path):
    role = role_with(tmp_path, ASKING)

    async def body(sandbox):
        agent = scripted()
        session = await agent.connect(sandbox, role)
        session.on_ask_user(choose_tuesday)
        await session.prompt("Book a day.")
        snapshot = await session.snapshot()
        await session.aclose()
        again = await agent.connect(sandbox, role, resume=snapshot)
        assert again.id == session.id
        assert await again.prompt("Which day is it?") == "end_turn"
        await again.aclose()
        return session, again, snapshot

    session, again, snapshot = in_sandbox(body)
    assert snapshot.files == (str(tmp_path / "home/.benchflow-scripted"),)
    assert [step.message for step in again.steps] == ["It is still Tuesday."]
    assert {step.id for step in again.steps}.isdisjoint(step.id for step in session.steps)


def test_a_session_without_a_turn_resumes_as_a_new_session(in_sandbox, tmp_path):
    role = role_with(tmp_path, ASKING)

    async def body(sandbox):
        session = await scripted().connect(sandbox, role)
        snapshot = await session.snapshot()
        await session.aclose()
        again = await scripted().connect(sandbox, role, resume=snapshot)
        again.on_ask_user(choose_tuesday)
        await again.prompt("Book a day.")
        await again.aclose()
        assert again.id != session.id
        return again.steps

    assert in_sandbox(body)[-1].message == "Done."


def test_skills_are_copied_to_the_directories_of_the_agent(in_sandbox, tmp_path):
    (tmp_path / "skills/booking").mkdir(parents=True)
    (tmp_path / "skills/booking/SKILL.md").write_text("Book early.")
    role = role_with(tmp_path, ASKING, skills_dir=str(tmp_path / "skills"))

    async def body(sandbox):
        await (await scripted().connect(sandbox, role)).aclose()

    in_sandbox(body)
    assert (tmp_path / "home/.agents/skills/booking/SKILL.md").read_text() == "Book early."


def test_a_permission_request_is_not_a_question(in_sandbox, tmp_path):
    script = """
    [[turn]]
    [[turn.do]]
    run = "touch yes"
    permission = true
    [[turn.do]]
    run = "touch no"
    permission = true
    """
    asks = []

    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, script))

        async def first_only(ask):
            asks.append(ask)
            return Answer.choose(ask, "allow") if len(asks) == 1 else Answer(outcome="declined")

        session.on_ask_user(first_only)
        await session.prompt("go")
        await session.aclose()
        assert (sandbox.workspace / "yes").exists()
        assert not (sandbox.workspace / "no").exists()
        return session

    session = in_sandbox(body)
    assert {ask.kind for ask in asks} == {"permission"}
    answers = [step.answer for step in session.steps if step.answer]
    assert answers[1] == Answer(selected={"permission": ("reject",)})


def test_cancel_ends_the_turn_and_the_command_in_it(in_sandbox, tmp_path):
    script = '[[turn]]\n[[turn.do]]\nrun = "touch started; sleep 60; touch finished"\n'

    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, script))
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(session.prompt("go"))
            # The command itself says when it runs; only then is there something to cancel.
            await sandbox.exec("until test -e started; do sleep 0.01; done")
            await session.cancel()
        assert turn.result() == "cancelled"
        assert await session.prompt("again") == "end_turn"
        await session.aclose()
        assert not (sandbox.workspace / "finished").exists()
        return session

    session = in_sandbox(body)
    assert session.steps[0].stop_reason == "cancelled"


def test_a_cancel_during_a_question_answers_cancelled(in_sandbox, tmp_path):
    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, ASKING))

        async def cancel(ask):
            await session.cancel()
            return Answer.choose(ask, "mon")

        session.on_ask_user(cancel)
        assert await session.prompt("go") == "cancelled"
        await session.aclose()
        return session

    session = in_sandbox(body)
    assert session.steps[-1].answer == Answer(outcome="cancelled")
    assert session.steps[-1].stop_reason == "cancelled"


def test_a_failing_script_is_an_agent_error_and_its_step_is_recorded(in_sandbox, tmp_path):
    script = '[[turn]]\n[[turn.do]]\nrun = "echo broken >&2; exit 3"\n'

    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, script))
        with pytest.raises(AgentError, match="exit code 3"):
            await session.prompt("go")
        await session.aclose()
        return session

    session = in_sandbox(body)
    assert session.steps[0].observations[0].status == "failed"
    assert session.steps[0].stop_reason is None


def test_an_agent_that_exits_in_a_turn_is_reported_with_its_code(in_sandbox, tmp_path):
    script = '[[turn]]\n[[turn.do]]\nthink = "oh"\n[[turn.do]]\nexit = 7\n'
    log_dir = tmp_path / "log"

    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, script), log_dir=log_dir)
        with pytest.raises(AgentError, match="exit code 7"):
            await session.prompt("go")
        with pytest.raises(AgentError):
            await session.prompt("again")
        await session.aclose()
        return session

    session = in_sandbox(body)
    assert session.steps[0].reasoning == "oh"
    assert session.steps[0].meta["incomplete"]
    records = read_wire_log(log_dir / "acp_wire.jsonl")
    assert steps_from_wire(records) == [
        step.model_copy(update={"role": "agent"}) for step in session.steps
    ]


def test_a_silent_agent_is_cancelled_and_killed(in_sandbox, tmp_path, monkeypatch):
    monkeypatch.setattr("benchflow_agent_acp.session.CANCEL_GRACE_SEC", 0.4)
    script = "[[turn]]\n[[turn.do]]\nhang = 60\n"

    async def body(sandbox):
        role = role_with(tmp_path, script, idle_timeout_sec=0.3)
        session = await scripted().connect(sandbox, role)
        with pytest.raises(AgentTimeoutError, match="silent"):
            await session.prompt("go")
        assert sandbox.processes[-1].group_is_dead
        await session.aclose()

    in_sandbox(body)


def test_a_turn_that_takes_too_long_is_cancelled_in_time(in_sandbox, tmp_path):
    script = '[[turn]]\n[[turn.do]]\nrun = "sleep 60"\n'

    async def body(sandbox):
        role = role_with(tmp_path, script, timeout_sec=0.5)
        session = await scripted().connect(sandbox, role)
        with pytest.raises(AgentTimeoutError, match="did not end its turn"):
            await session.prompt("go")
        await session.aclose()
        return session

    session = in_sandbox(body)
    assert session.steps[-1].stop_reason == "cancelled"


def test_timeouts_do_not_count_the_time_of_the_user(in_sandbox, tmp_path):

    async def body(sandbox):
        role = role_with(tmp_path, ASKING, idle_timeout_sec=5, timeout_sec=5)
        session = await scripted().connect(sandbox, role)
        clocks = []

        async def slow(ask):
            clocks.append(session._clock._timeout.when())
            await asyncio.sleep(0)
            return Answer.choose(ask, "mon")

        session.on_ask_user(slow)
        await session.prompt("go")
        await session.aclose()
        assert clocks == [None]

    in_sandbox(body)


def test_a_failed_handshake_leaves_no_process(in_sandbox, tmp_path):
    agent = scripted()
    # It stays: an agent that has ended may be found dead before its message is read.
    program = "import time; print('{bad', flush=True); time.sleep(1000)"
    launch = agent.decl.launch.model_copy(update={"args": ("-c", program)})
    broken = type(agent)(agent.decl.model_copy(update={"launch": launch}))

    async def body(sandbox):
        with pytest.raises(AgentError, match="broken message"):
            await broken.connect(sandbox, Role())
        assert sandbox.processes[-1].group_is_dead

    in_sandbox(body)


def test_the_oracle_runs_a_script_over_acp(in_sandbox, tmp_path):
    (tmp_path / "solution").mkdir()
    (tmp_path / "solution/script.toml").write_text(
        '[[turn]]\n[[turn.do]]\nrun = "echo hi > out.txt"\n'
    )

    async def body(sandbox):
        agent = oracle()
        assert (await agent.needs(Role())).solution
        session = await agent.connect(sandbox, Role())
        assert await session.prompt("go") == "end_turn"
        await session.aclose()
        assert (sandbox.workspace / "out.txt").read_text() == "hi\n"

    in_sandbox(body)


def test_the_shipped_example_script_runs(in_sandbox, tmp_path):
    script = files("benchflow_agent_acp").joinpath("scripts/example.toml").read_text()

    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, script))
        session.on_ask_user(choose_tuesday)
        await session.prompt("go")
        await session.aclose()
        assert (sandbox.workspace / "booking.txt").read_text() == "tuesday\n"
        assert (sandbox.workspace / "notes/summary.txt").exists()

    in_sandbox(body)


def test_every_step_survives_a_round_trip_as_json(in_sandbox, tmp_path):
    async def body(sandbox):
        session = await scripted().connect(sandbox, role_with(tmp_path, ASKING))
        session.on_ask_user(choose_tuesday)
        await session.prompt("go")
        await session.aclose()
        return session.steps

    for step in in_sandbox(body):
        assert type(step).model_validate_json(step.model_dump_json()) == step
        json.loads(step.model_dump_json())


def test_the_agent_reads_and_writes_json_as_the_library_does():
    program = runpy.run_path(
        str(files("benchflow_agent_acp").joinpath("in_sandbox/scripted_agent.py"))
    )
    loads, dumps = program["make_codec"]()
    assert loads is not json.loads, "it shall do without the library"
    value = {"a": [1, -2.5e300, True, None, '\u2028 "\\ \U0001f600 \ud800'], "": {"b": [{}]}}
    assert dumps(value) == json.dumps(value)
    assert loads(" " + json.dumps(value) + "\n") == value
    for bad in ("", "{", "{} {}", "nope", '{"a": }'):
        with pytest.raises(ValueError, match=r"JSON|Expecting"):
            loads(bad)
    with pytest.raises(TypeError):
        dumps({"a": object()})
