"""The policy agent as a real process, against the scripted model server."""

import asyncio
import json
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from benchflow_agent_acp import AcpAgent
from benchflow_agent_policy import policy
from benchflow_contracts import AgentError, Answer, Door, Endpoint, McpServer, Role
from benchflow_testing import AgentSubject, check_agent
from scripted_llm import ModelReply, ScriptedLlm, ToolUse, WriteOneFile

DONE = ModelReply(text="Done.")


def shell(command, text="", **arguments):
    return ModelReply(text=text, tools=(ToolUse("shell", {"command": command, **arguments}),))


class Replies:
    """Answers the n-th call with the n-th reply; a `None` is never reached."""

    def __init__(self, *replies):
        self.replies = list(replies)

    def __call__(self, request):
        return self.replies.pop(0)


def role_for(llm, **fields):
    env = {
        "OPENAI_BASE_URL": f"{llm.url}/v1",
        "BENCHFLOW_POLICY_BACKOFF": "0.01",
        **fields.pop("env", {}),
    }
    return Role(model="policy-7b", env=env, **fields)


def with_model(sandbox):
    endpoint = Endpoint(url="http://127.0.0.1:9")
    changed = {"doors": (Door.to(endpoint),), "network": "model-only"}
    sandbox.spec = sandbox.spec.model_copy(update=changed)
    return sandbox


@pytest.fixture
def play(in_sandbox):
    """Run one prompt per text against the replies; return what the test looks at."""

    def run(replies, *texts, answer=None, role=None, agent=None, log_dir=None):
        async def body(sandbox):
            connected = agent or policy()
            session = await connected.connect(with_model(sandbox), wanted, log_dir=log_dir)
            if answer is not None:
                session.on_ask_user(answer)
            try:
                reasons = [await session.prompt(text) for text in texts or ("Go.",)]
                return session, reasons, sandbox, await session.snapshot()
            finally:
                await session.aclose()
                assert all(process.group_is_dead for process in sandbox.processes)

        policy_of_test = replies if callable(replies) else Replies(*replies)
        with ScriptedLlm(policy_of_test) as llm:
            wanted = role_for(llm, **(role or {}))
            return (*in_sandbox(body), llm.requests)

    return run


def test_the_policy_agent_keeps_the_contract(host_sandbox, tmp_path):
    class Provider:
        count = 0

        async def create(self, spec, *, image=None, identity=None):
            self.count += 1
            root = tmp_path / str(self.count)
            root.mkdir()
            sandbox = with_model(host_sandbox(root))
            sandbox.teardown = sandbox.aclose
            return sandbox

    def act(request):
        if "Ask" in request.user_text and not request.tool_results:
            ask = {"question": "Which?", "options": ["a", "b"]}
            return ModelReply(tools=(ToolUse("ask_user", ask),))
        if "endless" in request.user_text:
            return shell("sleep 60")
        return shell("echo one") if not request.tool_results else DONE

    with ScriptedLlm(act) as llm:
        role = role_for(llm, timeout_sec=30)
        subject = AgentSubject(
            agent=policy(), provider=Provider(), role=role, ask_prompt="Ask.",
            endless_prompt="Do something endless.",
        )  # fmt: skip
        only = (
            "a_session_resumes_from_its_snapshot",
            "an_ask_ends_a_step_and_its_answer_opens_the_next",
            "cancel_ends_the_turn",
        )
        results = asyncio.run(check_agent(subject, only=only))
    for result in results:
        result.raise_if_failed()
    assert {result.name for result in results if result.status == "passed"} == set(only)


def test_it_acts_with_its_shell_until_the_model_is_done(play, tmp_path):
    first = ModelReply(
        text="I write it.",
        reasoning="A file is wanted.",
        tools=(ToolUse("shell", {"command": "echo hi > hello.txt; cat hello.txt; exit 3"}),),
    )
    session, reasons, sandbox, _, requests = play([first, DONE], "Write hello.txt.")
    assert reasons == ["end_turn"]
    assert (sandbox.workspace / "hello.txt").read_text() == "hi\n"
    acting, closing = session.steps
    assert acting.reasoning == "A file is wanted."
    assert acting.message == "I write it."
    assert [(call.name, call.kind) for call in acting.tool_calls] == [("shell", "execute")]
    assert acting.observations[0].status == "failed"
    assert acting.observations[0].content == "hi\n\n[exit code 3]"
    assert closing.message == "Done."
    assert closing.usage.input_tokens == 22
    assert [request.model for request in requests] == ["policy-7b"] * 2
    assert not any(request.stream for request in requests)


def test_each_request_begins_with_the_one_before_it_token_by_token(play, tmp_path):
    replies = [
        ModelReply(text="First.", reasoning="Hm.", tools=(ToolUse("shell", {"command": "true"}),)),
        shell("echo ünïcode", text="  spaces kept  "),
        DONE,
        DONE,
    ]
    _, _, _, snapshot, requests = play(replies, "One.", "Two.")
    said = [request.raw["messages"] for request in requests]
    for before, after in pairwise(said):
        assert after[: len(before)] == before
    assert len({json.dumps(request.raw["tools"]) for request in requests}) == 1
    assert all(request.raw["return_token_ids"] is True for request in requests)
    state = json.loads(Path(snapshot.files[0], f"{snapshot.session_id}.json").read_text())
    assert state["chain"] == {**state["chain"], "links": 3, "breaks": 0}


def test_an_endpoint_that_refuses_token_ids_does_not_get_them_again(play):
    def act(request):
        if "return_token_ids" in request.raw:
            return ModelReply(status=400, text="Unrecognized argument: return_token_ids")
        return shell("true") if not request.tool_results else DONE

    *_, requests = play(act)
    assert ["return_token_ids" in request.raw for request in requests] == [True, False, False]


def test_its_question_reaches_the_user_as_an_ask(play):
    ask = {"question": "Which day?", "options": ["Monday", "Tuesday"], "allow_other": True}
    replies = [ModelReply(tools=(ToolUse("ask_user", ask),)), DONE]
    asks = []

    async def choose(question):
        asks.append(question)
        return Answer.choose(question, "Tuesday")

    session, reasons, _, _, requests = play(replies, answer=choose)
    assert reasons == ["end_turn"]
    assert asks[0].branchable
    assert asks[0].channel == "elicitation"
    assert asks[0].questions[0].text == "Which day?"
    assert asks[0].questions[0].allow_custom
    assert requests[1].tool_results == ("The user answered: Tuesday",)
    assert [step.ask is not None for step in session.steps] == [True, False]
    assert session.steps[1].answer == Answer(selected={"answer": ("Tuesday",)})


def test_an_unanswered_question_does_not_end_the_turn(play):
    ask = {"question": "Which day?"}
    *_, requests = play([ModelReply(tools=(ToolUse("ask_user", ask),)), DONE])
    assert "no answer" in requests[1].tool_results[0]


def test_a_new_process_resumes_from_the_session_file(in_sandbox):
    async def body(sandbox):
        session = await policy().connect(with_model(sandbox), role)
        await session.prompt("The secret is alpha-7.")
        snapshot = await session.snapshot()
        await session.aclose()
        again = await policy().connect(sandbox, role, resume=snapshot)
        assert again.id == session.id
        assert await again.prompt("Go on.") == "end_turn"
        await again.aclose()
        return snapshot

    with ScriptedLlm(Replies(shell("true"), DONE, DONE)) as llm:
        role = role_for(llm, reasoning_effort="low")
        snapshot = in_sandbox(body)
    assert [path.rpartition("/")[2] for path in snapshot.files] == [".benchflow-policy"]
    before, after = llm.requests[1].raw, llm.requests[2].raw
    assert after["messages"][: len(before["messages"])] == before["messages"]
    assert "alpha-7" in str(after["messages"])
    assert after["reasoning_effort"] == "low"


def test_a_temporary_failure_of_the_model_is_retried(play):
    busy = ModelReply(status=503, text="busy")
    session, reasons, *_, requests = play([busy, ModelReply(status=429), DONE])
    assert reasons == ["end_turn"]
    assert len(requests) == 3
    assert session.steps[-1].message == "Done."


@pytest.mark.parametrize(
    ("replies", "says", "calls"),
    [
        ([ModelReply(status=401, text="who are you?")], "refused the call: HTTP 401", 1),
        ([ModelReply(status=500)] * 2, "failed 2 times: HTTP 500", 2),
    ],
)
def test_a_permanent_failure_of_the_model_is_a_typed_error(play, replies, says, calls):
    role = {"env": {"BENCHFLOW_POLICY_ATTEMPTS": "2"}}
    seen = []

    def act(request):
        seen.append(request)
        return replies.pop(0)

    with pytest.raises(AgentError, match=says):
        play(act, role=role)
    assert len(seen) == calls


@pytest.mark.parametrize(
    ("replies", "env", "reason"),
    [
        ([ModelReply(status=400, text="maximum context length is 4096")], {}, "max_tokens"),
        ([ModelReply(text="cut", finish="length")], {}, "max_tokens"),
        ([ModelReply(finish="content_filter")], {}, "refusal"),
        ([shell("true")] * 2, {"BENCHFLOW_POLICY_MAX_CALLS": "2"}, "max_turn_requests"),
        ([shell("true")], {"BENCHFLOW_POLICY_CONTEXT_TOKENS": "10"}, "max_tokens"),
    ],
)
def test_every_limit_has_its_stop_reason(play, replies, env, reason):
    _, reasons, *_ = play(replies, role={"env": env})
    assert reasons == [reason]


def test_a_turn_is_cancelled_while_the_model_thinks_and_the_next_one_works(in_sandbox):
    thinking, enough = threading.Event(), threading.Event()

    def act(request):
        if request.user_text == "Think.":
            thinking.set()
            enough.wait(60)
        return DONE

    async def body(sandbox):
        session = await policy().connect(with_model(sandbox), role)
        async with asyncio.TaskGroup() as tasks:
            turn = tasks.create_task(session.prompt("Think."))
            await asyncio.to_thread(thinking.wait, 60)
            await session.cancel()
        enough.set()
        assert turn.result() == "cancelled"
        assert await session.prompt("Again.") == "end_turn"
        await session.aclose()

    with ScriptedLlm(act) as llm:
        role = role_for(llm)
        in_sandbox(body)


def test_the_model_gets_an_error_for_an_invalid_call(play):
    calls = (ToolUse("launch", {}), ToolUse("shell", {"command": 7}), ToolUse("ask_user", {}))
    session, reasons, *_, requests = play([ModelReply(tools=calls), DONE])
    assert reasons == ["end_turn"]
    nothing, wrong, empty = requests[1].tool_results
    assert "no tool 'launch'" in nothing
    assert "must be a command line" in wrong
    assert "must be a text" in empty
    seen = [item.status for step in session.steps for item in step.observations]
    assert seen == ["failed", "failed"]


def test_tool_output_is_limited_and_a_background_job_does_not_block(play):
    flood = "head -c 9000000 /dev/zero | tr '\\0' x; echo the end; sleep 300 &"
    role = {"env": {"BENCHFLOW_POLICY_OUTPUT_CHARS": "2000"}}
    *_, requests = play([shell(flood), shell("sleep 60", timeout=0.2), DONE], role=role)
    seen, late = requests[2].tool_results
    assert len(seen) < 2100
    assert "characters were cut" in seen
    assert "the end" in seen
    assert late.endswith("[ended after 0.2 s]")


def test_the_mode_ask_requests_permission_for_each_call(play):
    gated = policy().decl.model_copy(update={"mode": type(policy().decl.mode)(unattended="ask")})
    asks = []

    async def first_only(ask):
        asks.append(ask.kind)
        return Answer.choose(ask, "allow" if len(asks) == 1 else "reject")

    replies = [shell("touch yes"), shell("touch no"), DONE]
    _, _, sandbox, _, requests = play(replies, answer=first_only, agent=AcpAgent(gated))
    assert asks == ["permission", "permission"]
    assert (sandbox.workspace / "yes").exists()
    assert not (sandbox.workspace / "no").exists()
    assert "did not allow" in requests[2].tool_results[1]


STDIO_SERVER = """
import json, sys
def say(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
print("a banner, which is no message", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, key = message.get("method"), message.get("id")
    if method == "initialize":
        say(id=key, result={"protocolVersion": "2025-06-18", "capabilities": {}})
    elif method == "tools/list" and "cursor" not in message["params"]:
        say(id="s-1", method="ping")
        tool = {"name": "add.up", "description": "Adds.", "inputSchema": {"type": "object"}}
        say(id=key, result={"tools": [tool], "nextCursor": "more"})
    elif method == "tools/list":
        say(id=key, result={"tools": [{"name": "die"}]})
    elif method == "tools/call" and message["params"]["name"] == "die":
        sys.exit(1)
    elif method == "tools/call":
        total = sum(message["params"]["arguments"]["numbers"])
        say(id=key, result={"content": [{"type": "text", "text": f"total {total}"}]})
"""


def test_the_model_gets_the_tools_of_an_mcp_server(play, tmp_path):
    server = tmp_path / "server.py"
    server.write_text(STDIO_SERVER)
    mcp = McpServer(name="calc", command=sys.executable, args=("-I", str(server)))
    add = ModelReply(tools=(ToolUse("mcp__calc__add_up", {"numbers": [3, 4]}),))
    die = ModelReply(tools=(ToolUse("mcp__calc__die", {}),))
    *_, requests = play([add, die, die, DONE], role={"mcp_servers": (mcp,)})
    assert list(requests[0].tools) == [
        "shell", "ask_user", "mcp__calc__add_up", "mcp__calc__die",
    ]  # fmt: skip
    assert requests[1].tool_results == ("total 7",)
    assert "has ended" in requests[2].tool_results[1]
    assert "has ended" in requests[3].tool_results[2]


def test_a_broken_tool_server_fails_the_start(play):
    mcp = McpServer(name="calc", command="/bin/false")
    with pytest.raises(AgentError, match="'calc'"):
        play([DONE], role={"mcp_servers": (mcp,)})


def test_the_skills_of_its_role_are_in_the_prompt(play, tmp_path):
    skill = tmp_path / "skills" / "booking"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: booking\ndescription: Books zebra hall.\n---\n")
    *_, requests = play([DONE], role={"skills_dir": str(tmp_path / "skills")})
    assert "booking: Books zebra hall." in requests[0].raw["messages"][0]["content"]


def test_the_standard_scripted_model_makes_it_write_a_file(play):
    _, _, sandbox, *_ = play(WriteOneFile("hello.txt", "hello\n"), "Write hello.txt.")
    assert (sandbox.workspace / "hello.txt").read_text() == "hello\n"
